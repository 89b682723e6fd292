"""Modes: recordings and compiled networks against the eager step, what is refused, and memory over many pictures."""

import gc
import shutil
from itertools import islice

import psutil
import pytest
import torch
from test_decode import RELAXED, WORDS, toy_step
from toy import SHAPE

from lanternpp import modes
from lanternpp.__main__ import main
from lanternpp.decode import Decoder
from lanternpp.relax import Relaxation
from lanternpp.sampling import Sampling
from lanternpp.settings import SettingsError
from lanternpp.tree import PRESETS, Tree

TREE = Tree.from_branching([3, 2])
TABLE = torch.stack([torch.arange(SHAPE.codes).roll(-1 - i) for i in range(8)], 1)
cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


def stand_in(call):
    """What recording a CUDA graph is, without one: the call runs twice, and its outputs stay where they are."""
    call()
    rows = call()

    def replay():
        for kept, new in zip(rows, call(), strict=True):
            kept.copy_(new)

    return replay, rows


def step_of(tree=TREE, rule="lanternpp", **how):
    relaxation = RELAXED if rule == "lanternpp" else Relaxation(rule, 8, 3.0)
    return toy_step(tree, relaxation, neighbours=TABLE, **how)


def told(events):
    return [(e.position, e.tokens, e.path, e.drafted, e.verdicts, e.q, e.mass, e.ending) for e in events]


@pytest.mark.parametrize("tree, rule", [(PRESETS["root"], "exact"), (TREE, "lanternpp"), (TREE, "coupled"),
                                        (TREE, "eagle2")])
def test_recordings_give_the_eager_events(tree, rule, monkeypatch):
    monkeypatch.setattr(modes, "BUCKET", 8)  # several recordings a picture
    monkeypatch.setattr("lanternpp.step.BLOCK", 8)
    step = step_of(tree, rule)
    run = modes.runner(step, "graph", stand_in)
    for seed in range(3):
        eager = Decoder(step_of(tree, rule)).generate(WORDS, seed)
        assert told(Decoder(step, run).generate(WORDS, seed)) == told(eager)
    assert len(run.recordings) > 1


def test_recording_in_the_middle_of_a_picture_leaves_its_state():
    """A recording runs the step several times; without putting the state back tokens would be lost (the control)."""
    eager = told(islice(Decoder(step_of()).stream(WORDS, 1), 3))

    def with_state(names):
        step = step_of()
        run = modes.Replay(step, stand_in)
        saved, modes.STATE = modes.STATE, names
        try:
            return told(islice(Decoder(step, run).stream(WORDS, 1), 3))
        finally:
            modes.STATE = saved

    assert with_state(modes.STATE) == eager != with_state(("pending_hidden",))


@pytest.mark.parametrize("rule", ["exact", "lanternpp", "coupled", "eagle2"])
def test_buffers_and_outputs_never_move(rule):
    """What a recording points to stays where it is, through steps and prefills."""
    step = step_of(rule=rule)
    run = modes.runner(step, "graph", stand_in)

    def places():
        return {name: b.data_ptr() for name, b in step.named_buffers()}

    before, outputs = places(), set()
    for seed in range(2):
        step.prefill(WORDS, [seed])
        for _ in range(3):
            outputs.add(tuple(row.data_ptr() for row in run(step.reach(1))))
    assert places() == before and len(outputs) == 1


@pytest.mark.parametrize("tree", [PRESETS["root"], TREE], ids=lambda t: t.name)
def test_compiled_networks_are_compiled_once(tree):
    """Three pictures without a compilation after the first step, and greedy pictures equal the eager ones.

    aot_eager traces and guards as Inductor does, without its minute of C++.
    """
    greedy = Sampling(2.0, 0.0)
    step = step_of(tree, sampling=greedy)
    run = modes.runner(step, "compile", backend="aot_eager")
    modes.warm_up(step, run, WORDS, None)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for seed in range(3):
            eager = Decoder(step_of(tree, sampling=greedy)).generate(WORDS, seed)
            compiled = Decoder(step, run).generate(WORDS, seed)
            assert [(e.tokens, e.verdicts) for e in compiled] == [(e.tokens, e.verdicts) for e in eager]
            for a, b in zip(compiled, eager, strict=True):
                assert a.mass == pytest.approx(b.mass, abs=1e-6)  # float64; attention over all slots sums otherwise


def test_control_another_shape_is_a_recompilation():
    step = step_of()
    run = modes.runner(step, "compile", backend="aot_eager")
    modes.warm_up(step, run, WORDS, None)
    with torch._dynamo.config.patch(error_on_recompile=True), pytest.raises(Exception, match="(?i)recompil"):
        step.prefill(WORDS, [0])
        step(step.reach(1) - 1)


@pytest.mark.skipif(modes.refusal("compile", torch.device("cpu")) is not None, reason="needs a C++ compiler")
def test_inductor_paints_the_eager_picture():
    """The real compiler, on the smallest step: float32 logits within 1e-4, greedy tokens the same."""
    step = toy_step(PRESETS["root"], sampling=Sampling(2.0, 0.0), dtype=torch.float32)
    eager = Decoder(toy_step(PRESETS["root"], sampling=Sampling(2.0, 0.0), dtype=torch.float32)).generate(WORDS, 0)
    plain = step._target
    run = modes.runner(step, "compile")
    assert [e.tokens for e in Decoder(step, run).generate(WORDS, 0)] == [e.tokens for e in eager]
    x, place = torch.randn(2, 1, SHAPE.width), torch.tensor([[7]])
    bias = torch.zeros(1, 1, 1, step.cache.slots)
    with torch.inference_mode():
        for a, b in zip(step._target(x, place, place, bias), plain(x, place, place, bias), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)


def test_modes_that_cannot_run_are_refused_in_a_sentence(pipe, toy_folder, monkeypatch, capsys):
    with pytest.raises(SettingsError, match="graph records CUDA graphs.*use the mode eager") as error:
        pipe.check(prompt="fox", mode="graph")
    assert error.value.field == "mode"
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(SettingsError, match="needs a C.. compiler"):
        pipe.check(prompt="fox", mode="compile")
    with pytest.raises(SettingsError, match="unknown"):
        pipe.check(prompt="fox", mode="fast")
    for command in (["bench", "--breakdown"], ["tune"], ["generate", "a fox"]):
        assert main([*command, "--mode", "graph" if command[0] != "tune" else "compile", "--model",
                     str(toy_folder)]) == 2
        assert capsys.readouterr().err.startswith("lanternpp: ")


def test_a_kept_decoder_is_lent_again_and_told(pipe, monkeypatch):
    """The baseline keeps the mode, a second picture of the same settings needs no second start, two at a time do."""
    monkeypatch.setattr(modes, "refusal", lambda *_: None)
    monkeypatch.setattr(modes, "record_graph", stand_in)
    said = []
    monkeypatch.setattr(pipe, "tell", said.append)
    pipe._decoders.clear()
    chosen = pipe.check(prompt="a fox", tree="2", mode="graph")
    assert chosen.baseline().mode == "graph"
    for prompt in ("a fox", "red apple"):
        output = pipe(prompt, tree="2", mode="graph", seed=4)
        assert output.trace.header["mode"] == "graph"
        assert output.trace.tokens == pipe(prompt, tree="2", seed=4).trace.tokens
    assert len(said) == 2 and "Recording" in said[0]
    with pipe.lend(chosen) as one, pipe.lend(chosen) as two:
        assert one.step is not two.step
    pipe._decoders.clear()


def tensors():
    """How many are alive."""
    gc.collect()
    return sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())


def test_memory_of_a_run_is_constant(pipe):
    """Fifty pictures leave no tensors behind, and no more than a few megabytes of the allocator's own."""
    process = psutil.Process()

    def paint(count):
        for seed in range(count):
            pipe("a red fox", tree="2", seed=seed)
        return tensors(), process.memory_info().rss

    paint(5)
    alive, resident = paint(2)
    after, later = paint(50)
    assert after == alive
    assert later - resident < 16 * 2**20


def test_control_a_leak_is_seen():
    before = tensors()
    kept = [torch.zeros(3)]
    assert tensors() == before + len(kept)


@cuda
@pytest.mark.parametrize("mode", ["eager", "graph"])
def test_no_wait_in_the_loop(mode):
    step = step_of(device="cuda", dtype=torch.bfloat16)
    run = modes.runner(step, mode)
    modes.warm_up(step, run, WORDS.cuda(), None)
    step.prefill(WORDS.cuda(), [0])
    torch.cuda.set_sync_debug_mode("error")
    try:
        with torch.inference_mode():
            for _ in range(4):
                [part.to("cpu", non_blocking=True) for part in run(step.reach(1))]
    finally:
        torch.cuda.set_sync_debug_mode("default")


@cuda
@pytest.mark.parametrize("rule", ["exact", "lanternpp", "coupled", "eagle2"])
def test_cuda_graphs_equal_the_eager_step(rule):
    for seed in range(3):
        step = step_of(rule=rule, device="cuda", dtype=torch.float32)
        eager = Decoder(step_of(rule=rule, device="cuda", dtype=torch.float32)).generate(WORDS.cuda(), seed)
        assert [e.tokens for e in Decoder(step, modes.runner(step, "graph")).generate(WORDS.cuda(), seed)] == \
            [e.tokens for e in eager]
