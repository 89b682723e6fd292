"""Logits to distributions against brute force; draws without replacement; the noise of a run."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch

from lanternpp.sampling import Noise, Sampling, distribution, draw_ranked, guide

STREAMS = ("draft", "target", "uniform")


def brute(logits: np.ndarray, sampling: Sampling, banned=()) -> np.ndarray:
    """One row, in float64."""
    logits = logits.astype(np.float64).copy()
    logits[list(banned)] = -np.inf
    if sampling.temperature > 0:
        logits /= sampling.temperature
        if 0 < sampling.top_k < len(logits):
            logits[logits < np.sort(logits)[-sampling.top_k]] = -np.inf
    p = np.exp(logits - logits.max())
    p /= p.sum()
    if sampling.temperature > 0 and sampling.top_p < 1:
        kept, total = np.zeros_like(p), 0.0
        for code in np.argsort(-p, kind="stable"):
            if total >= sampling.top_p:
                break
            kept[code], total = p[code], total + p[code]
        p = kept / kept.sum()
    return p


@pytest.mark.parametrize("temperature", [0.0, 0.3, 1.0, 2.0])
@pytest.mark.parametrize("top_k", [0, 1, 5, 40, 1000])
@pytest.mark.parametrize("top_p", [1.0, 0.9, 0.5, 0.01])
def test_distribution_equals_brute_force(temperature, top_k, top_p):
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(5, 40, generator=generator)
    sampling, banned = Sampling(1.0, temperature, top_k, top_p), [3, 17]
    mask = torch.zeros(40, dtype=torch.bool)
    mask[banned] = True
    for found, drop in ((distribution(logits, sampling), ()), (distribution(logits, sampling, mask), banned)):
        expected = np.stack([brute(row, sampling, drop) for row in logits.numpy()])
        assert found.dtype == torch.float32
        np.testing.assert_allclose(found.numpy(), expected, atol=2e-6)
        assert ((found > 0).numpy() == (expected > 0)).all()
        assert not found[:, list(drop)].any()
    assert (logits == 3 * torch.randn(5, 40, generator=generator.manual_seed(0))).all()  # not changed in place


def test_truncation_by_hand():
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()
    # Top-p keeps a code while the mass before it is below the bound, so the one that crosses it stays. It counts what
    # top-k left: 4/7 alone are over half.
    for top_k, top_p, kept in ((2, 1.0, [4, 3, 0, 0]), (0, 0.6, [4, 3, 0, 0]), (0, 0.75, [4, 3, 2, 0]),
                               (2, 0.5, [1, 0, 0, 0])):
        found = distribution(logits, Sampling(top_k=top_k, top_p=top_p))[0]
        assert found.tolist() == pytest.approx([x / sum(kept) for x in kept], abs=1e-6)
    # Fewer codes than top-k once some are banned.
    banned = torch.tensor([True, True, True, False])
    assert distribution(logits, Sampling(top_k=2), banned).tolist() == [[0, 0, 0, 1]]


def test_codes_that_tie_at_the_edge_of_top_k_all_stay():
    p = distribution(torch.tensor([[2.0, 1.0, 1.0, 0.0]]), Sampling(top_k=2))
    assert (p > 0).tolist() == [[True, True, True, False]]


def test_low_temperatures_stay_finite():
    logits = torch.tensor([[400.0, 399.0, -400.0]])
    for temperature in (1e-3, 0.05):
        p = distribution(logits, Sampling(temperature=temperature))
        assert p.isfinite().all() and p.sum() == 1 and p[0, 0] > 0.999
    assert Sampling(temperature=0).greedy and not Sampling(temperature=0.05).greedy


def test_guidance():
    conditional, unconditional = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, 3.0]])
    both = torch.stack([conditional, unconditional])
    assert guide(both, 3.0)[0].tolist() == [[2.0, 0.0]]
    assert guide(both, 1.0)[0].tolist() == conditional.tolist()
    assert guide(both, 0.0)[0].tolist() == unconditional.tolist()
    assert guide(conditional.unsqueeze(0), 7.5)[0].tolist() == conditional.tolist()  # one row: no guidance


def test_bfloat16_logits_are_mixed_and_normalised_in_float32():
    """Trap 9. In bfloat16 the guided logits would lose all but 3 digits, and probabilities their sum of 1."""
    generator = torch.Generator().manual_seed(1)
    logits = (10 * torch.randn(2, 3, 500, generator=generator)).bfloat16()
    mixed = guide(logits, 7.5)
    assert mixed.dtype == torch.float32 and torch.equal(mixed, guide(logits.float(), 7.5))
    p = distribution(mixed, Sampling(top_k=100, top_p=0.9))
    assert p.dtype == torch.float32 and (p.sum(-1) - 1).abs().max() < 1e-6
    assert (logits[1] + 7.5 * (logits[0] - logits[1])).float().sub(mixed).abs().max() > 0.1  # the control


def p_value(statistic: float, degrees: int) -> float:
    half = torch.tensor([degrees, statistic], dtype=torch.float64) / 2
    return float(torch.special.gammaincc(half[0], half[1]))


def fit(drawn: torch.Tensor, law: dict[tuple[int, ...], float]) -> float:
    """Chi-square p-value of draws (n, k); 0 if something impossible was drawn."""
    seen = Counter(map(tuple, drawn.tolist()))
    if set(seen) - set(law):
        return 0.0
    expected = {key: value * len(drawn) for key, value in law.items()}
    return p_value(sum((seen[key] - e) ** 2 / e for key, e in expected.items()), len(law) - 1)


def test_ranked_draws_are_draws_without_replacement():
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05, 0.0])
    noise = torch.empty(40_000, 5).exponential_(generator=torch.Generator().manual_seed(2))
    drawn = draw_ranked(weights.expand(40_000, -1), noise, 3)
    w = weights.tolist()
    law = {(a, b, c): w[a] * w[b] / (1 - w[a]) * w[c] / (1 - w[a] - w[b]) for a, b, c in permutations(range(4), 3)}
    assert sum(law.values()) == pytest.approx(1)
    assert fit(drawn, law) > 1e-3
    # Controls: the same weights as independent draws, and the greatest weights in order.
    again = torch.multinomial(weights, 120_000, True, generator=torch.Generator().manual_seed(3)).view(-1, 3)
    assert fit(again, law) == 0
    assert fit(torch.tensor([[0, 1, 2]]).expand(40_000, -1), law) < 1e-6
    fair = {key: 1 / len(law) for key in law}
    assert fit(drawn, fair) < 1e-6


def test_ranked_draws_of_fewer_are_a_prefix_and_impossible_codes_come_last():
    generator = torch.Generator().manual_seed(4)
    weights = torch.rand(100, 8, generator=generator)
    weights[:, 2] = weights[:, 5] = 0
    noise = torch.empty(100, 8).exponential_(generator=generator)
    drawn = draw_ranked(weights, noise, 8)
    assert all(sorted(row) == list(range(8)) for row in drawn.tolist())
    assert all({2, 5} == set(row) for row in drawn[:, 6:].tolist())
    for count in (1, 3, 6):
        assert torch.equal(draw_ranked(weights, noise, count), drawn[:, :count])


def filled(seed: int, positions: int = 40, codes: int = 50, children: int = 4) -> dict[str, torch.Tensor]:
    noise = Noise(1, positions, codes, children)
    noise.refill([seed])
    return {name: getattr(noise, name)[0].clone() for name in STREAMS}


def test_noise_is_a_function_of_seed_and_position_alone():
    """Not of the tree's width or depth (which sets the number of positions), nor of what was drawn before."""
    small, torch_state = filled(7, positions=20, children=2), torch.get_rng_state()
    torch.manual_seed(99)
    large = filled(7, positions=60, children=127)
    for name in ("draft", "target"):
        assert torch.equal(small[name], large[name][:20])
    assert torch.equal(small["uniform"], large["uniform"][:20, :2])
    torch.set_rng_state(torch_state)
    noise = Noise(2, 20, 50, 2)
    noise.refill([8, 9])
    noise.refill([6, 7])  # one of several pictures
    assert all(torch.equal(getattr(noise, name)[1], small[name]) for name in STREAMS)
    alone = Noise(1, 20, 50, 0)  # a tree of a root alone: nothing is drafted
    alone.refill([7])
    assert alone.draft is alone.uniform is None and torch.equal(alone.target[0], small["target"])


def test_noise_refills_in_place():
    noise = Noise(1, 5, 6, 2)
    before = [getattr(noise, name).data_ptr() for name in STREAMS]
    noise.refill([1])
    assert before == [getattr(noise, name).data_ptr() for name in STREAMS]
    assert not noise.state_dict()  # nothing of it is saved with a model


def test_noise_ranges_and_laws():
    noise = filled(3, positions=400, codes=500, children=100)
    for name in ("draft", "target"):
        x = noise[name]
        assert x.dtype == torch.float32 and x.min() > 0 and x.isfinite().all()
        cells = torch.histc(1 - torch.exp(-x.double()), 50, 0, 1)  # uniform if x is exponential
        assert p_value(((cells - x.numel() / 50) ** 2 / (x.numel() / 50)).sum().item(), 49) > 1e-3
    u = noise["uniform"]
    assert u.min() > 0 and u.max() <= 1
    cells = torch.histc(u.double(), 50, 0, 1)
    assert p_value(((cells - u.numel() / 50) ** 2 / (u.numel() / 50)).sum().item(), 49) > 1e-3


def independent(a: torch.Tensor, b: torch.Tensor) -> bool:
    """No correlation beyond 5 standard errors, in either their values or their ranks' tails."""
    a, b = a.flatten().double(), b.flatten().double()
    count = min(len(a), len(b))
    a, b = a[:count], b[:count]
    return all(abs(torch.corrcoef(torch.stack([x, y]))[0, 1]) < 5 / count ** 0.5
               for x, y in ((a, b), (a.log(), b.log()), ((a > 1).double(), (b < 0.1).double())))


@pytest.mark.parametrize("seed", [0, 1, 2**31 - 1, 2**32, 2**63 - 1])
def test_streams_are_independent(seed):
    noise = filled(seed, positions=100, codes=100, children=100)
    uniform = -(1 - noise["uniform"] * (1 - 1e-6)).log()  # as exponential noise, so that equal streams would be equal
    for a, b in (("draft", "target"), ("draft", "uniform"), ("target", "uniform")):
        left, right = (uniform if name == "uniform" else noise[name] for name in (a, b))
        assert independent(left, right) and not torch.equal(left, right)
        assert independent(left[1:], right[:-1])
    assert independent(noise["draft"][1:], noise["draft"][:-1])  # nor are positions alike
    assert not independent(noise["draft"], noise["draft"])  # the control


def test_seeds_differ():
    """Neighbouring seeds, and seeds that only differ above 32 bits, share no stream with one another."""
    seeds = [0, 1, 2, 2**31 - 1, 2**32, 2**32 + 1, 2**33, 2**63 - 1]
    rows = [filled(seed, positions=1, codes=64)[name][0].tolist() for seed in seeds for name in ("draft", "target")]
    assert len({tuple(row) for row in rows}) == 2 * len(seeds)
    assert independent(filled(0)["draft"], filled(1)["draft"])


def test_a_seed_paints_the_same_everywhere():
    """Pinned numbers: a change of the generator changes every picture that somebody knows by its seed."""
    noise = filled(7, positions=2, codes=4, children=2)
    first = {"draft": [[1.1379100, 3.0108275, 2.7836561, 0.2425187], [1.6222359, 1.5453883, 0.9704615, 1.1657512]],
             "target": [[0.0854119, 0.5728455, 0.1329191, 0.2353208], [0.5857462, 1.9256222, 0.4926604, 1.3260678]],
             "uniform": [[0.9357921, 0.5320739], [0.6525474, 0.1301054]]}
    for name, rows in first.items():
        torch.testing.assert_close(noise[name], torch.tensor(rows), rtol=0, atol=1e-6)
