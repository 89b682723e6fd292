"""The clock disturbs nothing and blames the right phase; floors and predictions equal what is worked out by hand."""

import json
import time

import pytest
import torch

from lanternpp import bench, breakdown
from lanternpp.__main__ import main
from lanternpp.breakdown import Clock, Machine, Timed, floor, matrices, predicted_seconds, timed
from lanternpp.decode import Decoder
from lanternpp.quantize import int8_drafter

DELAY = 0.04  # seconds: more than a busy machine adds to a phase by chance
KNOBS = {"prompt": "a red apple", "tree": "3,2,1", "seed": 3}


def settings(pipe, method="exact", **knobs):
    return pipe.check(method=method, **{**KNOBS, **knobs})


def test_the_clock_changes_nothing_and_leaves_nothing(pipe):
    chosen = settings(pipe)
    step, condition, _ = pipe.prepare(chosen)
    plain = Decoder(step).generate(condition, 3)
    attributes, hooks = set(vars(step)), (len(step.drafter._forward_hooks), len(step.drafter._forward_pre_hooks))
    with Clock(step):
        clocked = Decoder(step).generate(condition, 3)
    assert [(e.tokens, e.q, e.verdicts) for e in plain] == [(e.tokens, e.q, e.verdicts) for e in clocked]
    assert set(vars(step)) == attributes
    assert (len(step.drafter._forward_hooks), len(step.drafter._forward_pre_hooks)) == hooks == (0, 0)


@pytest.mark.parametrize(("method", "phases"), [
    ("ar", ["score", "verify", "commit"]),
    ("exact", ["catch-up", "expand 1", "expand 2", "expand 3", "score", "verify", "commit"])])
def test_phases_and_host_add_up_to_the_step(pipe, method, phases):
    costs = timed(pipe, settings(pipe, method))
    assert set(costs) == {*breakdown.ONCE, *phases, "host", "step"}
    assert all(value > 0 for value in costs.values())
    assert sum(costs[p] for p in (*phases, "host")) == pytest.approx(costs["step"])


@pytest.mark.parametrize("slow", ["catch-up", "expand 2", "score", "verify", "commit", "host"])
def test_a_delay_is_found_in_its_phase_alone(pipe, slow):
    """Eight milliseconds of sleep in one place, which the toy's other phases do not reach."""
    step = pipe.step(settings(pipe))
    calls = []

    def late(call, when=lambda: True):
        def wrapped(*given):
            if when():
                time.sleep(DELAY)
            return call(*given)
        return wrapped

    drafts = {"catch-up": 0, "expand 2": 1}
    if slow in drafts:
        draft, layer = step._draft, step.drafter.fuse
        step._draft = lambda *given: (calls.clear(), draft(*given))[1]
        hook = layer.register_forward_pre_hook(
            lambda *_: (time.sleep(DELAY * (len(calls) == drafts[slow])), calls.append(1))[1])
    else:
        name = {"host": "_trace_rows"}.get(slow, f"_{slow}")
        setattr(step, name, late(getattr(step, name)))
    with Clock(step) as clock:
        events = Decoder(step).generate(pipe.encode_prompt("a fox")[0], 1)
    if slow in drafts:
        hook.remove()
    found = clock.milliseconds()
    found["host"] = 1000 * (events[-1].seconds - events[0].seconds) / (len(events) - 1) - sum(found.values())
    assert found[slow] >= 1000 * DELAY and max(found, key=found.get) == slow


def test_floor_by_hand(pipe):
    """Toy: width 32, hidden 48, 2 layers, 64 codes, float32, two CFG rows; tree 3, 2, 1 has 15 nodes."""
    block = 32 * 96 + 32 * 32 + 32 * 96 + 48 * 32
    head, target, body = 32 * 64, 2 * block + 32 * 64, block + 64 * 32
    machine = Machine(bandwidth=4e6, rate=2e9)
    ar = floor(pipe.step(settings(pipe, "ar")), machine)
    assert ar == pytest.approx({"memory": target / 1000, "matrix": 2 * target / 1e6, "floor": target / 1000})
    step = pipe.step(settings(pipe))
    step.drafter, step.tree = pipe.bundle.drafter, step.tree
    calls = [(target, 16), (body, 4), (body, 3), (body, 6), (head, 1), (head, 3), (head, 6)]
    found = floor(step, machine)
    assert found["memory"] == pytest.approx(sum(size for size, _ in calls) / 1000)
    assert found["matrix"] == pytest.approx(sum(2 * size * tokens for size, tokens in calls) / 1e6)
    both = floor(step, Machine(bandwidth=4e6, rate=2e7))
    assert both["floor"] == pytest.approx(sum(size * max(1, 2 * t / 10) for size, t in calls[:]) / 1000)
    assert max(both["memory"], both["matrix"]) < both["floor"]  # some calls are bound by memory, some by arithmetic


def test_int8_weights_count_one_byte(pipe):
    drafter = pipe.bundle.drafter
    small = int8_drafter(drafter, pipe.bundle.target.head)
    elements, size = matrices(drafter.fuse, drafter.blocks)
    assert size == 4 * elements and matrices(small.fuse, small.blocks) == (elements, elements)


def test_machine_divides_work_by_its_shortest_time(monkeypatch):
    found = breakdown.measure_machine(torch.device("cpu"), torch.float32, small=True)
    assert found.bandwidth > 0 and found.rate > 0
    monkeypatch.setattr(breakdown, "best_seconds", lambda *_: 2.0)
    assert breakdown.measure_machine(torch.device("cpu"), torch.float32, small=True) == Machine(2**22 / 2, 256**3)


def synthetic(pipe, ar_step, tree_step):
    """An AR run of 1 + 15·0.01 s and a tree run of 1 + 5·0.02 s, with parts that say the same or something else."""
    methods = []
    for method, ms, steps, seconds in (("ar", ar_step, 15, 1.15), ("exact", tree_step, 5, 1.10)):
        runs = Timed(settings(pipe, method))
        runs.summaries.append({"total_seconds": seconds, "tokens_per_second": 1.0, "steps": steps,
                               "accepted_length": 15 / steps, "step_compression": 1.0})
        runs.costs.append({"prompt": 100.0, "prefill": 300.0, "pixels": 600.0, "score": ms, "verify": 0.0,
                           "commit": 0.0, "host": 0.0, "step": ms})
        methods.append(runs)
    return methods


def test_prediction_from_parts(pipe):
    machine = Machine(1e9, 1e9)
    right = breakdown.breakdown(pipe, synthetic(pipe, 10.0, 20.0), machine)
    assert right["exact"]["predicted"] == right["exact"]["measured"] == pytest.approx(1.15 / 1.10, abs=1e-4)
    assert right["exact"]["agrees"] and "within 10 %" in breakdown.render(right, machine)
    wrong = breakdown.breakdown(pipe, synthetic(pipe, 10.0, 60.0), machine)
    assert wrong["exact"]["predicted"] == pytest.approx(1.15 / 1.30, abs=1e-4) and not wrong["exact"]["agrees"]
    assert "Warning: for exact" in breakdown.render(wrong, machine)
    assert predicted_seconds({"prompt": 1000, "prefill": 0, "pixels": 0, "step": 10}, 101, 2.0) == 1.5


def test_bench_breakdown_ends_in_one_json_line(toy_folder, capsys, monkeypatch):
    real = breakdown.measure_machine
    monkeypatch.setattr(breakdown, "measure_machine", lambda *given: real(*given, small=True))
    assert main(["bench", "--breakdown", "--methods", "ar,exact", "--prompts", "2", "--tree", "3,2", "--model",
                 str(toy_folder)]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    document = json.loads(lines[-1])
    assert set(document["machine"]) == {"bandwidth", "rate"}
    assert document["breakdown"]["ar"]["predicted"] == document["breakdown"]["ar"]["measured"] == 1.0
    for name in ("ar", "exact"):
        assert document["breakdown"][name]["measured"] == document["methods"][name]["speedup"]["median"]
    assert any(line.split()[:2] == ["expand", "2"] for line in lines)
    assert "expand 3" not in "\n".join(lines[:-1])


def test_every_run_is_followed_by_one_under_the_clock(pipe):
    pairs = [[settings(pipe, m, seed=s) for m in ("ar", "exact")] for s in range(3)]
    methods = [Timed(s) for s in pairs[0]]
    assert len(list(breakdown.interleave(pipe, pairs, methods))) == 6
    assert [len(m.costs) for m in methods] == [len(m.summaries) for m in methods] == [3, 3]
    assert "catch-up" not in methods[0].costs[-1] and "catch-up" in methods[1].costs[-1]
    assert set(bench.table(methods)) == {"ar", "exact"}


def test_each_setting_of_one_method_has_its_own_row(pipe):
    """Two bounds of one rule on one tree are two rows of the table, not one that was written twice."""
    chosen = [settings(pipe, "ar"), *(settings(pipe, "lantern", bound=bound) for bound in (0.1, 0.2, 0.3))]
    seconds = (1.0, 0.5, 0.25, 0.2)
    facts = {"tokens_per_second": 1, "steps": 1, "accepted_length": 1, "step_compression": 1}
    methods = [bench.Runs(s, [{"total_seconds": t, **facts}]) for s, t in zip(chosen, seconds, strict=True)]
    rows = bench.table(methods)
    assert [row["speedup"]["median"] for row in rows.values()] == [1, 2, 4, 5]
    assert list(rows)[:2] == ["ar", "lantern"] and len(set(rows)) == 4
