"""Relaxed mass against brute force; neighbours on the rows that the decoder uses; their cache."""

import golden
import numpy as np
import pytest
import reference
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from lanternpp import relax
from lanternpp.relax import Relaxation, cached_nearest_codes, nearest_codes, relaxed_mass
from lanternpp.vq import Tokenizer, VQConfig


def mass(own: float, near: list[float], limit: float) -> float:
    return relaxed_mass(*(torch.tensor([x], dtype=torch.float64) for x in (own, near, limit))).item()


@pytest.mark.parametrize("rule, bound", [("lantern", 0.2), ("lanternpp", 2.5), ("annealed", 2.5), ("exact", 2.5)])
@pytest.mark.parametrize("k", [0, 1, 4, 11])
def test_relaxed_mass_equals_brute_force(rule, bound, k):
    random, relaxation, compared = np.random.default_rng(k), Relaxation(rule, k, bound, gamma=0.7), 0
    for _ in range(50):
        r = random.dirichlet(np.full(12, 0.5)) * (random.random(12) < 0.7)
        nearest = np.array([[j for j in random.permutation(12) if j != i] for i in range(12)])
        codes, depth = np.arange(12), random.integers(1, 6, 12)
        rows = torch.from_numpy(r).expand(12, -1)
        near = rows.gather(1, torch.from_numpy(nearest)[:, :k])
        limit = relaxation.limit(torch.from_numpy(r), torch.from_numpy(depth))
        found = torch.from_numpy(r) if relaxation.strict else relaxed_mass(torch.from_numpy(r), near, limit)
        for x in codes:
            margin = reference.Margin()
            expected = r[x] + reference.pooled(r, x, nearest[x], relaxation, depth[x], margin)
            if margin.least > 1e-9:
                compared += 1
                assert found[x].item() == pytest.approx(expected, abs=1e-12)
                assert r[x] <= expected
                if rule in ("lanternpp", "annealed"):
                    assert expected <= bound * r[x] + 1e-12  # λ: a code of probability 0 stays there
                elif rule == "lantern":
                    assert expected <= r[x] + bound + 1e-12
    assert compared > 500


def test_prefix_rule():
    """Trap 11: if the nearest code alone exceeds the bound nothing is pooled, though the next would fit."""
    assert mass(0.1, [0.5, 0.01, 0.01], 0.3) == pytest.approx(0.1)
    assert mass(0.1, [0.2, 0.5, 0.01], 0.3) == pytest.approx(0.3)  # stops at the second, the third is not taken
    assert mass(0.1, [0.01, 0.2, 0.05], 0.3) == pytest.approx(0.36)
    assert mass(0.1, [0.0, 0.0, 0.3], 0.3) == pytest.approx(0.4)  # a sum equal to the bound is within it
    assert mass(0.1, [0.0, 0.2], 0.0) == pytest.approx(0.1)


def test_the_rule_is_named_and_not_guessed_from_the_bound():
    """Trap 1: one number above and below 1 would be λ here and δ there."""
    r, depth = torch.tensor([0.2]), torch.tensor([1])
    for bound in (0.5, 1.5):
        assert Relaxation("lantern", 5, bound).limit(r, depth).item() == pytest.approx(bound)
    assert Relaxation("lanternpp", 5, 1.5).limit(r, depth).item() == pytest.approx(0.1)
    assert Relaxation("annealed", 5, 1.5, gamma=0.5).limit(r, depth + 2).item() == pytest.approx(0.025)


@pytest.mark.parametrize("rule, k, bound, strict", [
    ("exact", 10, 5.0, True), ("lantern", 0, 0.3, True), ("lantern", 5, 0.0, True), ("lanternpp", 5, 1.0, True),
    ("annealed", 5, 1.0, True), ("lantern", 5, 0.01, False), ("lanternpp", 5, 1.01, False), ("annealed", 1, 2.0, False)
])
def test_strict(rule, k, bound, strict):
    assert Relaxation(rule, k, bound).strict is strict


def brute(rows: torch.Tensor, k: int) -> torch.Tensor:
    distance = (rows[:, None].double() - rows.double()).pow(2).sum(-1)
    table = [sorted((j for j in range(len(rows)) if j != i), key=lambda j: (distance[i, j].item(), j))[:k]
             for i in range(len(rows))]
    return torch.tensor(table)


@pytest.mark.parametrize("block", [1024, 7])
def test_neighbours_equal_brute_force(block):
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(50, 4, generator=generator)
    table = nearest_codes(rows, 9, block)
    assert table.dtype == torch.int64  # trap 6: unsigned 16-bit numbers cannot index
    assert torch.equal(table, brute(rows, 9))
    assert not (table == torch.arange(50).unsqueeze(1)).any()
    assert nearest_codes(rows, 1000).shape == (50, 49)


def test_equal_distances_are_in_order_of_code():
    """A grid is all ties; equal codes are at distance 0 of each other, and each still leaves itself out."""
    grid = torch.cartesian_prod(torch.arange(5.0), torch.arange(5.0))
    assert torch.equal(nearest_codes(grid, 24), brute(grid, 24))
    generator = torch.Generator().manual_seed(1)
    rows = F.normalize(torch.randn(40, 8, generator=generator), dim=-1)
    twice = torch.cat([rows, rows])
    table = nearest_codes(twice, 30)
    assert torch.equal(table, brute(twice, 30))
    assert table[:40, 0].tolist() == list(range(40, 80)) and table[40:, 0].tolist() == list(range(40))


@pytest.mark.golden
def test_neighbours_are_those_of_the_rows_that_the_decoder_uses():
    """Trap 7: this codebook's rows have unequal norms and its tokenizer normalises them."""
    config, tensors = golden.load("llamagen_vq")
    raw = tensors["w/quantize.embedding.weight"]
    used = nearest_codes(F.normalize(raw, dim=-1), 20)
    assert (used != nearest_codes(raw, 20)).float().mean() > 0.2
    codes, width = config["codebook"]
    tokenizer = Tokenizer(VQConfig(codes, width, 16, (16, 16), layers_per_block=1, norm_num_groups=4,
                                   mid_block_add_attention=False, lowest_attention=False, normalize=True))
    tokenizer.vq.quantize.embedding.weight.data.copy_(raw)
    assert torch.equal(nearest_codes(tokenizer.codebook.detach(), 20), used)


def test_neighbours_do_not_depend_on_the_rows_dtype_in_memory():
    rows = torch.randn(64, 8, generator=torch.Generator().manual_seed(2)).bfloat16()
    assert torch.equal(nearest_codes(rows, 10), nearest_codes(rows.float(), 10))


@pytest.fixture
def rows() -> torch.Tensor:
    return torch.randn(30, 4, generator=torch.Generator().manual_seed(3))


def test_cache_round_trip(rows, tmp_path, monkeypatch):
    table = cached_nearest_codes(rows, tmp_path, 6)
    assert torch.equal(table, nearest_codes(rows, 6)) and len(list(tmp_path.iterdir())) == 1
    monkeypatch.setattr(relax, "nearest_codes", None)  # a second call computes nothing
    again = cached_nearest_codes(rows, tmp_path, 6)
    assert again.dtype == torch.int64 and torch.equal(again, table)
    monkeypatch.undo()
    # Another codebook or another k is another table.
    assert torch.equal(cached_nearest_codes(rows + torch.arange(4.0) * rows, tmp_path, 6),
                       nearest_codes(rows + torch.arange(4.0) * rows, 6))
    assert cached_nearest_codes(rows, tmp_path, 7).shape == (30, 7)
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.parametrize("spoil", ["truncated", "empty", "text", "other key", "other shape", "folder"])
def test_corrupt_cache_is_made_again(rows, tmp_path, spoil):
    table = cached_nearest_codes(rows, tmp_path, 6)
    file, = tmp_path.iterdir()
    if spoil == "truncated":
        file.write_bytes(file.read_bytes()[:100])
    elif spoil == "empty":
        file.write_bytes(b"")
    elif spoil == "text":
        file.write_text("version https://git-lfs.github.com/spec/v1\n" * 3)
    elif spoil == "other key":
        save_file({"table": table}, file)
    elif spoil == "other shape":
        save_file({"neighbours": table[:5].contiguous()}, file)
    else:
        file.unlink()
        file.mkdir()
    assert torch.equal(cached_nearest_codes(rows, tmp_path, 6), table)
    if spoil != "folder":
        assert torch.equal(load_file(file)["neighbours"].long(), table)


def test_folder_that_cannot_be_written_is_no_error(rows, tmp_path):
    (tmp_path / "file").write_text("")
    for folder in (tmp_path / "missing", tmp_path / "file", "/proc", None):
        assert torch.equal(cached_nearest_codes(rows, folder, 6), nearest_codes(rows, 6))
