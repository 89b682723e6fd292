import random

import numpy as np
import pytest
import torch
import toy

from lanternpp import detail as module
from lanternpp.detail import Detail, DetailError, inspect, whatif
from lanternpp.pipeline import LanternPipeline, run
from lanternpp.relax import Relaxation
from lanternpp.verify import verify

TREE = "3,2,1"


@pytest.fixture(scope="module")
def pipe():
    return LanternPipeline(toy.bundle())


def seen_run(pipe, monkeypatch, **knobs):
    """A run, its detail, and what each of its steps gave to `verify`."""
    seen, look = [], module._look

    def spy(pipe, step, settings, event):
        if event.index:
            uniform = step.noise.uniform[0, step.at + step.places]
            seen.append((step.p[0].clone(), step.q[0].clone(), step.tokens[0].clone(), step.buffers_of_tree, uniform))
        return look(pipe, step, settings, event)

    monkeypatch.setattr(module, "_look", spy)
    trace = pipe("red apple", seed=3, tree=TREE, **knobs).trace
    return trace, run(inspect(pipe, trace)), seen


def relaxations(rng: random.Random) -> Relaxation:
    rule = rng.choice(["lantern", "lanternpp", "annealed"])
    bound = rng.choice([0, 0.05, 0.3, 1]) if rule == "lantern" else rng.choice([1, 1.3, 2, 3.7, 10])
    return Relaxation(rule, rng.choice([0, 1, 2, 5, 20, 63]), bound, rng.choice([0.0, 0.5, 0.8, 1.0]))


@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_what_if_equals_a_fresh_verification(pipe, monkeypatch, temperature):
    rng, trials, letters = random.Random(0), 0, set()
    runs = [seen_run(pipe, monkeypatch, temperature=temperature, k=8)]
    while trials < 1000:
        trace, detail, seen = rng.choice(runs)
        event = rng.randrange(1, len(trace.events))
        p, q, tokens, buffers, uniform = seen[event - 1]
        relaxation = relaxations(rng)
        verdict = verify(p, q, tokens, buffers, relaxation, pipe.neighbours[:, : relaxation.k], uniform,
                         torch.ones(4, p.shape[1]), greedy=temperature == 0)
        node = rng.randrange(1, buffers.tree.nodes + 1)
        i = node - 1
        expected = ("-" if not verdict.exists[i] else "a" if verdict.strict[i] else "x" if verdict.relaxed[i] else "r")
        letter, mass, _ = whatif(detail, event, node, relaxation, buffers.tree.depths[node], temperature == 0)
        assert letter == expected and mass == verdict.mass[i].item(), (event, node, relaxation)
        letters.add(letter)
        trials += 1
    assert letters >= {"a", "x", "r"}


def test_the_numbers_are_those_of_the_trace(pipe, tmp_path):
    trace = pipe("fox", seed=5, tree=TREE, k=8).trace
    full = run(inspect(pipe, trace))
    relaxation = Relaxation(k=8)
    depths = (0, 1, 1, 1, *[2] * 6, *[3] * 6)
    thin = full.thinned(relaxation, depths, share=0.05)
    thin.save(tmp_path / "detail.npz")
    assert len(thin.place) < len(full.place)
    for detail in (full, Detail.load(tmp_path / "detail.npz")):
        for event in trace.events[1:]:
            np.testing.assert_array_equal(detail.draft[event.index], np.float32(event.q))
            np.testing.assert_array_equal(detail.residual[event.index], np.float32(event.p))
            for node, (mass, letter) in enumerate(zip(event.mass, event.verdicts, strict=True), start=1):
                judged, m, _ = whatif(detail, event.index, node, relaxation, depths[node])
                assert m == np.float32(mass)
                if letter in "ax":
                    assert judged == letter
    assert len(full.entropy) == len(trace.tokens) == 16
    assert np.all(full.interchangeable >= 1 - 1e-5) and np.all(full.entropy <= np.log2(40) + 1e-4)
    drafted = full.patches[1, 0].astype(int)
    assert drafted.std() > 0


def test_pooled_neighbours_are_counted(pipe):
    trace = pipe("fox", seed=5, tree=TREE, k=8, bound=3.0).trace
    detail = run(inspect(pipe, trace))
    for event in trace.events[1:]:
        for node in range(1, 4):
            r = detail.residual[event.index, node - 1]
            _, mass, pooled = whatif(detail, event.index, node, Relaxation(k=8, bound=3.0), 1)
            place, total = detail.sums(event.index, node)
            sums = np.zeros(64, np.float32)
            for at, value in zip(place, total, strict=True):
                sums[at:] = value
            fitting = [j for j in range(1, 9) if sums[j] <= np.float32(2) * r]
            assert pooled == max(fitting, default=0)


def test_another_outcome_is_refused(pipe):
    trace = pipe("fox", seed=5, tree=TREE).trace
    trace.header["settings"]["seed"] = 6
    with pytest.raises(DetailError, match="other tokens from step"):
        run(inspect(pipe, trace))


def test_plain_autoregression_has_places_but_no_nodes(pipe):
    trace = pipe("fox", seed=5, method="ar").trace
    detail = run(inspect(pipe, trace))
    assert detail.uniform.shape == (16, 0) and len(detail.top1) == 16 and np.isnan(detail.agreement).all()


def test_what_is_judged_otherwise_is_not_shown_as_ratios(pipe):
    trace = pipe("red apple", seed=3, tree=TREE, method="coupled").trace
    with pytest.raises(DetailError, match="own draw"):
        run(inspect(pipe, trace))
