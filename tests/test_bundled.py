"""The model in assets/: it loads, is small enough to host, decodes losslessly in float32, and is what its card says."""

import json

import pytest
import torch

from lanternpp import PRESETS, LanternPipeline
from lanternpp.bench import PROMPTS
from lanternpp.hub import BUNDLED

TREES = ["chain5", "cpu8", "cpu14", "eagle25"]
COMMON = {"prompt": PROMPTS[0], "seed": 3, "tree": "cpu8"}


@pytest.fixture(scope="module")
def bundled():
    return LanternPipeline.from_pretrained(device="cpu", dtype=torch.float32)


def test_files_are_small_and_licensed():
    files = [f for f in BUNDLED.parent.rglob("*") if f.is_file() and not f.name.startswith("neighbours-")]
    assert all(f.stat().st_size < 10_000_000 for f in files)
    card = (BUNDLED / "README.md").read_text()
    for word in ("Fluent", "MIT", "Twemoji", "CC-BY 4.0", "Noto", "OFL", "emojibase"):
        assert word in card
    config = json.loads((BUNDLED / "config.json").read_text())
    assert config["target"]["grid"] == 16 and config["target"]["codes"] == 4096 == config["tokenizer"]["codes"]


@pytest.fixture(scope="module")
def exact(bundled):
    return bundled(**COMMON, method="exact").trace


@pytest.mark.parametrize("number", range(4))
def test_greedy_trees_paint_what_greedy_ar_paints(bundled, number):
    knobs = {"prompt": PROMPTS[number], "seed": number, "temperature": 0}
    plain = bundled(**knobs, method="ar").trace.tokens
    for tree in (TREES[number], TREES[number - 1]):  # each tree on two pictures
        trace = bundled(**knobs, method="exact", tree=tree).trace
        assert trace.tokens == plain, tree
        assert trace.steps < 255


@pytest.mark.parametrize("knobs", [{"method": "lanternpp", "k": 0}, {"method": "lantern", "bound": 0},
                                   {"method": "lanternpp", "bound": 1}, {"method": "annealed", "bound": 1}], ids=str)
def test_no_relaxation_paints_the_exact_picture(bundled, exact, knobs):
    assert bundled(**COMMON, **knobs).trace.tokens == exact.tokens


def test_the_distributions_are_ambiguous(exact):
    """Tokens of pictures are not certain: this is what relaxation is about. The model's card has the figures."""
    first = [e.p[0] for e in exact.events[1:]]
    assert sum(p > 0.95 for p in first) < len(first) * 0.8
    assert exact.summary()["accepted_length"] > 1.3


def test_every_preset_decodes(bundled):
    for name in PRESETS:
        if name != "root":
            stream = bundled.stream(bundled.check(prompt="fox, flat", tree=name, method="lanternpp"))
            assert [next(stream).index for _ in range(3)] == [0, 1, 2]
            stream.close()
