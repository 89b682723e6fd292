"""The figures of the model card: they run with what the modules have today, and tell a good drafter from a bad one."""

import importlib
from pathlib import Path

import numpy as np
import pytest
import torch
import toy

from lanternpp.pipeline import LanternPipeline
from lanternpp.training import card, data

ROOT = Path(__file__).resolve().parent.parent
MODULES = sorted(".".join(path.relative_to(ROOT).with_suffix("").parts) for folder in ("lanternpp", "app")
                 for path in (ROOT / folder).rglob("*.py") if path.stem != "__main__")


@pytest.mark.parametrize("name", MODULES)
def test_every_module_can_be_imported(name):
    importlib.import_module(name.removesuffix(".__init__"))


def test_figures_of_target_and_drafter(monkeypatch):
    pipe = LanternPipeline(toy.bundle())
    torch.manual_seed(0)
    side = 4 * pipe.bundle.tokenizer.config.pixels_per_code
    images, texts = torch.rand(6, 3, side, side) * 2 - 1, ["red apple", "blue fox"] * 3
    figure = torch.zeros(6, 16, dtype=torch.bool)
    figure[:, 5:11] = True
    found = card.target_and_drafter(pipe, images, texts, figure)
    assert 1 < found["loss"]["all"] < 20 and len(found["drafter"]["top1 agreement by row"]) == 4
    assert found["cfg 1"]["figure"]["tokens"] == 36 and found["cfg 1"]["background"]["tokens"] == 60
    assert 0 < found["drafter"]["sum min(p, q)"]["mean"] <= 1
    states, forced = [], card.teacher_forced
    monkeypatch.setattr(card, "teacher_forced", lambda *given: states.append(forced(*given)) or states[-1])
    pipe.bundle.drafter = lambda tokens, hidden, positions: states[-1].flatten(0, 1)[:, 1:]  # foresees all
    foreseen = card.target_and_drafter(pipe, images, texts, figure)["drafter"]
    assert foreseen["sum min(p, q)"]["mean"] > 0.999 > 0.9 > found["drafter"]["sum min(p, q)"]["mean"]
    assert foreseen["top1 agreement by row"] == [1.0] * 4


def test_the_figures_tokens_are_those_that_something_covers():
    rgba = np.zeros((2, 128, 128, 4), np.uint8)
    rgba[:, 40:88, 40:88] = 255
    records = [{"label": "red apple", "tags": [], "style": "fluent", "concept": str(i)} for i in range(2)]
    images, texts, covered = card.views(data.Pictures(rgba, records), np.arange(2), seed=0)
    assert images.shape == (2, 3, 128, 128) and len(texts) == 2
    assert covered.view(2, 16, 16)[:, 7:9, 7:9].all() and not covered.view(2, 16, 16)[:, :2].any()
