"""How the bundled model is made: captions, compositing, growth of depth, resuming, the drafter's loss."""

import numpy as np
import pytest
import torch
from toy import SHAPE, bundle, drafter, target

from lanternpp.drafter import DrafterConfig
from lanternpp.hub import ModelError
from lanternpp.sampling import Sampling
from lanternpp.training import data, loop, prior
from lanternpp.training import drafter as drafting

RECORD = {"label": "dog face", "tags": ["pet", "puppy"], "group": 3, "style": "fluent", "concept": "1F436"}


def pictures(count=6):
    rng = np.random.default_rng(0)
    labels = sorted(data.CORE_LABELS)
    records = [{**RECORD, "label": labels[i // 2], "concept": str(i // 2), "style": list(data.STYLES)[i % 2]}
               for i in range(count)]
    return data.Pictures(rng.integers(0, 255, (count, 128, 128, 4), dtype=np.uint8), records)


def test_captions_name_what_is_shown():
    rng = np.random.default_rng(0)
    texts = [data.caption(RECORD, "blue", rng) for _ in range(300)]
    assert all("dog" in t or "face" in t for t in texts)
    assert 0.7 < np.mean(["blue background" in t for t in texts]) < 0.97
    assert 0.8 < np.mean([any(w in t for w in data.STYLES["fluent"]) for t in texts]) < 0.97
    assert not any(w in t for t in texts for w in ("flat", "classic", "red background"))


def test_pictures_on_the_grid_have_the_same_tokens_wherever_they_stand():
    """A picture only moves by whole tokens, over all nine places; in any place it is also cut across tokens."""
    solid = np.full((data.SIZE, data.SIZE, 4), 255, dtype=np.uint8)
    found = {place: set() for place in ("grid", "any", "centre")}
    for place, boxes in found.items():
        for seed in range(200):
            shown = (data.composite(solid, np.random.default_rng(seed), "green", place) == 255).all(-1)
            rows, columns = np.flatnonzero(shown.any(1)), np.flatnonzero(shown.any(0))
            boxes.add((rows[0], columns[0], rows[-1] + 1, columns[-1] + 1))
    inner = data.SIZE - 2 * data.TOKEN
    assert found["grid"] == {(y, x, y + inner, x + inner) for y in (0, 8, 16) for x in (0, 8, 16)}
    assert found["centre"] == {(8, 8, 8 + inner, 8 + inner)}
    assert any(edge % data.TOKEN for box in found["any"] for edge in box)


def test_a_row_is_led_astray_by_one_other_picture():
    """Wrong codes stand in their own places, singly in about half of the rows and else in whole patches."""
    torch.manual_seed(0)
    codes = torch.arange(400).unsqueeze(1) * 1000 + torch.arange(256)
    shown = prior.astray(codes)
    wrong = shown != codes
    assert torch.equal(shown[wrong], codes.roll(1, 0)[wrong])
    assert 0.15 < wrong.float().mean() < 0.25 and (wrong.float().mean(1) < 0.02).float().mean() > 0.1
    patches = wrong.view(400, 4, 4, 4, 4).transpose(2, 3).flatten(3)
    whole = (patches.all(-1) | ~patches.any(-1)).flatten(1).all(1)
    assert 0.4 < whole.float().mean() < 0.75


def test_composite_keeps_the_background_and_the_picture():
    rng = np.random.default_rng(0)
    clear = np.zeros((128, 128, 4), np.uint8)
    ground = data.composite(clear, rng, "green").reshape(-1, 3).mean(0)
    assert np.abs(ground - data.BACKGROUNDS["green"]).max() < 25
    solid = np.full((128, 128, 4), 255, np.uint8)
    assert data.composite(solid, rng, "green")[50:78, 50:78].min() == 255


def test_split_is_by_concept():
    chosen = pictures(20)
    train, held = data.split(chosen, held_out=0.2)
    assert len(train) + len(held) == 20
    concepts = [{chosen.records[i]["concept"] for i in part} for part in (train, held)]
    assert concepts[0].isdisjoint(concepts[1]) and concepts[1]


def test_missing_data_names_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match="lanternpp.training.data"):
        data.load_pictures(tmp_path)


def test_growth_keeps_the_function():
    from dataclasses import replace

    from lanternpp.transformer import Transformer
    small = target()
    large = Transformer(replace(SHAPE, layers=5)).eval()
    large.load_state_dict(prior.grow(small.state_dict(), 5))
    words, codes = torch.tensor([[0, 2, 3, 4, 5]]), torch.randint(0, SHAPE.codes, (1, 16))
    with torch.no_grad():
        assert torch.allclose(prior.logits_of(small, words, codes), prior.logits_of(large, words, codes), atol=1e-6)


def test_hidden_tokens_are_hidden():
    model = target()
    words, codes = torch.tensor([[0, 2, 3, 4, 5]]), torch.randint(0, SHAPE.codes, (1, 16))
    other = codes.clone()
    other[0, 3] = (codes[0, 3] + 1) % SHAPE.codes
    keep = torch.ones(1, 15, dtype=torch.bool)
    keep[0, 3] = False
    with torch.no_grad():
        assert torch.equal(prior.logits_of(model, words, codes, keep=keep),
                           prior.logits_of(model, words, other, keep=keep))
        assert not torch.equal(prior.logits_of(model, words, codes), prior.logits_of(model, words, other))


def test_prior_resumes(tmp_path, monkeypatch):
    from dataclasses import replace
    words = bundle().words
    shape = replace(SHAPE, grid=4, condition=40)
    monkeypatch.setattr(prior, "SMALL", shape)

    def encode(images):
        return torch.nn.functional.avg_pool2d(images.mean(1, keepdim=True), 32).flatten(1).mul(31).add(32).long()

    for minutes in (0.02, 0.04):
        prior.train(encode, words, pictures(), tmp_path, minutes, layers=2, decay=0.5, batch=2, views=1)
    state = loop.resume(tmp_path / "prior.pt")
    assert state["minutes"] >= 0.04 and state["step"] > 0 and state["config"]["layers"] == 2
    steps = state["step"]
    prior.train(encode, words, pictures(), tmp_path, 0.05, layers=3, decay=0.5, batch=2, views=1)
    state = loop.resume(tmp_path / "prior.pt")
    assert state["step"] >= steps and state["config"]["layers"] == 3


def test_prior_refuses_to_cut_a_deeper_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(prior, "SMALL", SHAPE)
    with pytest.raises(ModelError, match="2 layers"):
        prior.train(None, bundle().words, pictures(), tmp_path, 0.01, layers=1, decay=0, init=target().state_dict())


def test_collected_samples_belong_to_their_target(tmp_path):
    words = torch.tensor([[0, 2, 3, 4, 5]])
    codes = [drafting.collect(target(seed), lambda _: words, ["a"], Sampling(2.0), tmp_path, 0)[0]
             for seed in (0, 0, 1)]
    assert torch.equal(codes[0], codes[1]) and not torch.equal(codes[0], codes[2])
    assert len(list(tmp_path.iterdir())) == 2


def test_samples_are_the_targets_own():
    """Batched sampling gives the hidden states that a teacher-forced pass over its codes gives."""
    model = target()
    words = torch.tensor([[0, 2, 3, 4, 5], [0, 0, 3, 3, 6]])
    codes, hidden = drafting.sample(model, words, Sampling(2.0, 1.0, 40), torch.Generator().manual_seed(0))
    rows = model.prefix_rows(words, guided=True)
    with torch.no_grad():
        x = torch.cat([rows, model.embed(codes[:, :-1].repeat(2, 1), model.caption_shift(rows))], dim=1)
        again = model(x, torch.arange(x.shape[1]))
    assert torch.allclose(hidden.flatten(0, 1), again, atol=1e-5)
    assert torch.allclose(hidden, drafting.teacher_forced(model, words, codes), atol=1e-5)


def test_drafter_learns(tmp_path):
    model = target()
    words = torch.randint(1, SHAPE.condition, (24, SHAPE.prefix))
    sampling = Sampling(2.0, 1.0, 40)
    codes, hidden = drafting.sample(model, words, sampling, torch.Generator().manual_seed(0))
    held = drafting.Shown(codes[16:], hidden[:, 16:])

    def batches(count):
        index = torch.randint(0, 16, (count,))
        return drafting.Shown(codes[index], hidden[:, index])

    config = DrafterConfig(attention_norm=True, norm_eps=1e-5)
    before = drafting.batch_loss(drafter(model), model, held, sampling, None, 0.3)
    trained = drafting.train(model, batches, held, sampling, tmp_path, 0.08, config)
    after = drafting.batch_loss(trained, model, held, sampling, None, 0.3)
    assert after[0] < before[0] and after[1] > before[1]
    assert (tmp_path / "drafter.pt").exists()


def test_muon_steps_along_the_nearest_orthogonal_matrix():
    torch.manual_seed(0)
    for shape in ((12, 30), (30, 12)):
        start, gradient = torch.randn(shape), torch.randn(shape)
        u, _, v = torch.linalg.svd(gradient, full_matrices=False)
        assert torch.nn.functional.cosine_similarity(loop.orthogonal(gradient).flatten(), (u @ v).flatten(), 0) > 0.97
        assert 0.6 < torch.linalg.svdvals(loop.orthogonal(gradient)).min()
        weight = torch.nn.Parameter(start.clone())
        weight.grad = gradient.clone()
        loop.Muon([weight], lr=0.1, weight_decay=0.5).step()
        moved = (start * 0.95 - weight.detach()).square().mean().sqrt()
        assert abs(moved / (0.1 * 0.2) - 1) < 0.15  # root mean square 0.2 times the rate, as AdamW's updates have
