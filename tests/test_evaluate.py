"""Painting in resumable batches, and the comparison with AR: what equals AR is called so, what does not is not."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import toy

from lanternpp import evaluate
from lanternpp.evaluate import LOOKS, Seen, compare, default_prompts, floor_quantile, paint, painted
from lanternpp.pipeline import LanternPipeline
from lanternpp.scorer import BUNDLED, Scorer, parts


@pytest.fixture(scope="module")
def pipe():
    return LanternPipeline(toy.bundle())


def run(pipe, settings, prompts, seeds, folder, **how):
    return list(paint(pipe, settings, prompts, seeds, folder, batch=2, **how))


PROMPTS, SEEDS = ["red apple", "blue fox, 3d", "a flat apple", "fox", "red fox"], [3, 4, 5, 6, 7]


def test_batches_paint_what_single_runs_paint(pipe, tmp_path):
    for method in ("ar", "coupled"):
        settings = pipe.check(prompt="x", method=method, **({} if method == "ar" else {"tree": "3,2"}))
        assert run(pipe, settings, PROMPTS, SEEDS, tmp_path) == [2, 4, 5]
        made = painted(pipe, settings, PROMPTS, SEEDS, tmp_path, batch=2)
        for text, seed, codes, steps in zip(PROMPTS, SEEDS, made.codes.tolist(), made.steps.tolist(), strict=True):
            alone = pipe(text, method="ar", seed=seed).trace  # coupled paints AR's picture, too
            assert alone.tokens == codes and (steps == alone.steps if method == "ar" else steps < alone.steps)
        assert made.accepted_length == 1 if method == "ar" else made.accepted_length > 1


def test_a_stopped_run_goes_on_and_workers_share(pipe, tmp_path, monkeypatch):
    settings = pipe.check(prompt="x", method="ar")
    stream = paint(pipe, settings, PROMPTS, SEEDS, tmp_path, batch=2)
    next(stream)
    stream.close()
    assert len(list(tmp_path.glob("*.safetensors"))) == 1
    with pytest.raises(FileNotFoundError):
        painted(pipe, settings, PROMPTS, SEEDS, tmp_path, batch=2)
    assert run(pipe, settings, PROMPTS, SEEDS, tmp_path, worker=1, workers=2) == [2]
    assert run(pipe, settings, PROMPTS, SEEDS, tmp_path, worker=0, workers=2) == [2, 3]
    monkeypatch.setattr(pipe, "lend", None)  # nothing is left to decode
    assert run(pipe, settings, PROMPTS, SEEDS, tmp_path) == [2, 4, 5]


def test_the_name_does_not_depend_on_threads(pipe):
    names, before = set(), torch.get_num_threads()
    torch.manual_seed(0)
    kept, pipe.bundle.target.head.weight.data = pipe.bundle.target.head.weight.data, torch.randn(4096, 320)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            names.add(evaluate.mark(pipe, pipe.check(prompt="x"), PROMPTS, SEEDS))
    finally:
        torch.set_num_threads(before)
        pipe.bundle.target.head.weight.data = kept
    assert len(names) == 1


def test_what_is_painted_is_named_by_all_that_matters(pipe):
    base = pipe.check(prompt="x", method="lanternpp", tree="3,2", k=5, bound=2.0)
    names = {evaluate.mark(pipe, s, p, i) for s, p, i in [
        (base, PROMPTS, SEEDS),
        (pipe.check(prompt="x", method="lanternpp", tree="3,2", k=5, bound=3.0), PROMPTS, SEEDS),
        (base, PROMPTS[::-1], SEEDS), (base, PROMPTS, SEEDS[::-1]),
        (pipe.check(prompt="x", method="exact", tree="3,2", k=5, bound=2.0), PROMPTS, SEEDS)]}
    other = pipe.check(prompt="y", seed=9, method="lanternpp", tree="3,2", k=5, bound=2.0)
    assert len(names) == 5 and evaluate.mark(pipe, other, PROMPTS, SEEDS) in names
    norm = pipe.bundle.drafter.blocks[0].mlp_norm.weight
    plain = evaluate.mark(pipe, base.baseline(), PROMPTS, SEEDS)
    kept, norm.data = norm.data, norm.data + 1e-3
    try:  # another drafter paints other pictures, but not by plain AR
        assert evaluate.mark(pipe, base, PROMPTS, SEEDS) not in names
        assert evaluate.mark(pipe, base.baseline(), PROMPTS, SEEDS) == plain
    finally:
        norm.data = kept


def test_default_prompts_name_every_look_once_before_any_twice():
    prompts = default_prompts(len(LOOKS) + 5, seed=1)
    assert {parts(p) for p in prompts[: len(LOOKS)]} == set(LOOKS)
    assert default_prompts(9, 1) == prompts[:9] != default_prompts(9, 2)


def seen(seed: int, shift: float = 0.0, right: float = 0.8, n: int = 300) -> Seen:
    random = np.random.default_rng(seed)
    rank = torch.from_numpy(np.where(random.random(n) < right, 0, 7))
    return Seen(torch.from_numpy(random.normal(shift, 1, (n, 8))), torch.from_numpy(random.random(n)), rank)


def near(one: Seen, share: float, seed: int, shift: float = 0.0) -> Seen:
    """Pictures that share their noise with others', as a method's do with AR's of the same seed."""
    own = np.random.default_rng(seed).normal(0, 1, one.features.shape)
    features = share * one.features + (1 - share**2) ** 0.5 * torch.from_numpy(own)
    features[:, 0] += shift
    return replace(one, features=features)


def test_equivalence_is_granted_to_equals_and_refused_to_others():
    ar, again, real = seen(0, right=1), seen(1, right=1), seen(2).features
    same = compare(seen(3, right=1), ar, again, real)
    assert same["equivalent"] and same["frechet_ar"] <= same["frechet_floor"]
    assert compare(ar, ar, again, real)["equivalent"]  # the very pictures
    worse = compare(seen(3, right=0.9), ar, again, real)  # alignment falls by ten points
    assert not worse["equivalent"] and worse["top1_interval"][1] < -0.02
    elsewhere = compare(seen(3, shift=0.4, right=1), ar, again, real)
    assert not elsewhere["equivalent"] and elsewhere["frechet_ar"] > elsewhere["frechet_floor"]
    few = compare(seen(3, n=20, right=0.8), seen(0, n=20, right=0.8), seen(1, n=20), seen(2, n=20).features)
    assert not few["equivalent"]  # an interval as wide as this proves nothing


def test_few_pictures_without_a_change_prove_nothing():
    ar, again, real = (seen(s, n=30, right=1) for s in range(3))
    found = compare(ar, ar, again, real.features)
    assert found["top1_change"] == 0 and not found["equivalent"]
    low, high = found["top1_interval"]
    assert low <= -0.03 and high >= 0.03


@pytest.mark.parametrize("share", [0.0, 0.95])
def test_the_floor_holds_its_level(share):
    """A method that is AR passes about 39 times of 40, whatever noise it shares with AR."""
    passed = 0
    for s in range(1, 25):
        ar, again = seen(2 * s), seen(2 * s + 1)
        method = near(ar, share, s + 1000)
        passed += evaluate.quality.frechet(method.features, again.features) <= floor_quantile(method, ar, again,
                                                                                              draws=60)
    assert passed >= 21


def test_the_floor_is_passed_by_one_equal_in_forty(monkeypatch):
    """Any numbers in exchangeable order will do for distances: the level does not hang on what they measure."""
    rng, one = np.random.default_rng(0), seen(0, n=4)
    monkeypatch.setattr(evaluate.quality, "frechet", lambda *_: rng.random())
    passed = [evaluate.quality.frechet() > floor_quantile(one, one, one) for _ in range(3000)]
    assert 0.018 < np.mean(passed) < 0.03


def test_a_change_does_not_hide_behind_shared_noise():
    """Control: compared with the AR of its own seeds, this method would seem as near as AR's other seeds are."""
    caught = hidden = 0
    for s in range(8):
        ar, again = seen(2 * s), seen(2 * s + 1)
        method = near(ar, 0.95, s + 1000, shift=0.3)
        caught += evaluate.quality.frechet(method.features, again.features) > floor_quantile(method, ar, again,
                                                                                             draws=60)
        hidden += evaluate.quality.frechet(method.features, ar.features) < evaluate.quality.frechet(again.features,
                                                                                                    ar.features)
    assert caught >= 7 and hidden >= 7


def test_sets_of_other_sizes_are_not_compared():
    with pytest.raises(ValueError, match="equal size"):
        compare(seen(0), seen(1), seen(2), seen(3, n=200).features)


def test_prompts_that_share_a_real_picture():
    """Copies of one picture would leave a manifold without width, in which nothing lies."""
    ar, again, real = seen(0), seen(1), seen(2).features
    copied = real[:60].repeat(5, 1)
    once = evaluate.quality.precision_recall(real[:60], ar.features)
    row = evaluate.beside(again, ar, copied)
    assert row["precision"] > 0.5 * once[0] > 0
    assert evaluate.quality.precision_recall(copied, again.features)[0] < 0.01
    assert "precision" not in evaluate.beside(again, ar, real[:3].repeat(100, 1))
    assert not {"precision", "frechet_real"} & set(evaluate.beside(again, ar, None))


@pytest.mark.skipif(not (BUNDLED / "config.json").exists(), reason="the bundled scorer is not there")
def test_the_bundled_scorer_sees_pictures_and_features_alike():
    torch.manual_seed(0)
    scorer, references = Scorer.load(), evaluate.References.load()
    features, embedded = scorer.look(torch.rand(5, 3, 128, 128) * 2 - 1)
    assert torch.allclose(scorer.embed_features(features), embedded, atol=1e-4)
    prompts = default_prompts(60, 0)
    rows = references.rows(prompts)
    right, wrong = (evaluate.see(scorer, references.decoded[r], prompts).alignment() for r in (rows, rows.roll(1)))
    assert right["top1"] > 0.8 > 0.1 > wrong["top1"]
