"""The GPU report on tiny shapes and the CPU: what it builds, times and compares."""

import json
from dataclasses import replace

import pytest
import torch
from test_modes import stand_in
from toy import SHAPE, target

from lanternpp import gpu_report, modes
from lanternpp.__main__ import main
from lanternpp.drafter import Drafter
from lanternpp.models import MODELS
from lanternpp.transformer import Transformer

CPU = torch.device("cpu")


def tiny(name, dtype, device):
    """The published model's kind of network, hundreds of times narrower."""
    spec = MODELS[name]
    shape = replace(spec.target, codes=64, width=32, layers=1, heads=2, hidden=48, grid=4, prefix=6,
                    condition=70 if spec.target.prefix_kind == "tokens" else 8,
                    null_prompt=(0, 65) if spec.target.null_prompt else ())
    with torch.device("meta"):
        parts = Transformer(shape), Drafter(spec.drafter, shape)
    return tuple(gpu_report.random_weights(part, dtype, device) for part in parts)


def test_report_on_tiny_shapes(pipe, monkeypatch):
    monkeypatch.setattr(modes, "refusal", lambda *_: None)
    monkeypatch.setattr(modes, "record_graph", stand_in)
    said = []
    found = gpu_report.report(pipe, ["eager", "graph"], said.append, ["llamagen-t2i-256", "anole-7b"],
                              ["root", "cpu4"], 2, 1, tiny, "2")
    pipe._decoders.clear()
    assert [(x["model"], x["tree"], x["mode"]) for x in found["latencies"]] == [
        (model, tree, mode) for model in ("llamagen-t2i-256", "anole-7b") for tree in ("root", "cpu4")
        for mode in ("eager", "graph")]
    assert all(0 < x["low"] <= x["median"] <= x["high"] for x in found["latencies"])
    for mode in ("eager", "graph"):
        assert found["bundled"][mode]["same_as_eager"] == [3, 3]
        assert found["bundled"][mode]["methods"]["ar"]["speedup"]["median"] == 1
    json.dumps(found)
    assert any("× AR" in text for text in said)


def test_control_other_tokens_are_counted(pipe, monkeypatch):
    monkeypatch.setattr(modes, "refusal", lambda *_: None)
    monkeypatch.setattr(modes, "record_graph", stand_in)
    real = gpu_report._tokens
    monkeypatch.setattr(gpu_report, "_tokens", lambda p, s: real(p, replace(s, seed=s.seed + (s.mode == "graph"))))
    found = gpu_report.bundled(pipe, ["eager", "graph"], 1, lambda text: None, "2")
    pipe._decoders.clear()
    assert found["graph"]["same_as_eager"][0] < 3


def test_random_weights_keep_what_is_no_weight():
    with torch.device("meta"):
        made = Transformer(SHAPE)
    gpu_report.random_weights(made, torch.float32, CPU)
    assert torch.equal(made.rotary.table, target().rotary.table)
    assert made.head.weight.std() == pytest.approx(0.02, rel=0.2)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_one_sentence(capsys):
    assert main(["gpu-report"]) == 2
    assert "finds none here" in capsys.readouterr().err
    assert main(["gpu-report", "--shapes", "oak"]) == 2
    assert "use some of llamagen" in capsys.readouterr().err
    assert main(["gpu-report", "--modes", "fast"]) == 2
