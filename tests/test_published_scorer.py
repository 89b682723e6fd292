"""The published networks' scorer on stand-ins: pinned inputs, ranks, the whole command, and what is said when they are
missing."""

import builtins
import json
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lanternpp import LanternPipeline, __main__, published_scorer
from lanternpp.checkpoints import ModelError
from lanternpp.published_scorer import PublishedScorer, candidates, clip_input

COLOURS = {"red": (1.0, 0, 0), "green": (0, 1.0, 0), "blue": (0, 0, 1.0)}


class Clip(nn.Module):
    """Sees the mean colour; reads colours' names."""

    def get_image_features(self, pixel_values):
        assert pixel_values.shape[1:] == (3, 224, 224)
        mean, deviation = (torch.tensor(x).view(3, 1, 1) for x in (published_scorer.CLIP_MEAN,
                                                                   published_scorer.CLIP_DEVIATION))
        return SimpleNamespace(pooler_output=(pixel_values * deviation + mean).mean((2, 3)))

    def get_text_features(self, input_ids):
        return SimpleNamespace(pooler_output=input_ids.float())


def words(texts, padding, truncation, max_length, return_tensors):
    assert (padding, truncation, max_length, return_tensors) == (True, True, 77, "pt")
    return {"input_ids": torch.tensor([next((c for n, c in COLOURS.items() if n in t), (1.0, 1, 1)) for t in texts])}


class Inception(nn.Module):
    def forward(self, pictures):
        assert pictures.dtype == torch.uint8
        return pictures.float().mean(3).flatten(1)[:, :24]


@pytest.fixture
def scorer():
    return PublishedScorer(Clip(), words, Inception())


def painted(*colours: str) -> torch.Tensor:
    return torch.stack([torch.tensor(COLOURS[c]).view(3, 1, 1).expand(3, 32, 32) * 2 - 1 for c in colours])


def test_pictures_find_their_prompts(scorer):
    features, embeddings = scorer.look(painted("red", "blue", "green", "red") * 1.5, batch=3)  # clamped
    assert features.shape == (4, 24) and features[0].max() == 255
    assert torch.allclose(embeddings[0], torch.tensor([1.0, 0, 0]), atol=1e-5)
    prompts = ["red", "a blue thing", "green", "a blue thing"]
    similarity, rank = scorer.alignment(embeddings, prompts)
    assert torch.allclose(similarity, torch.tensor([1.0, 1, 1, 0]), atol=1e-5)
    assert rank.tolist() == [0, 0, 0, 2]  # the last shows another prompt; a tie counts against it
    with pytest.raises(ValueError, match=r"\(n, 3, H, W\)"):
        scorer.look(torch.zeros(2, 32, 32, 3))


def test_clip_input_is_pinned():
    grey = clip_input(torch.full((1, 3, 64, 64), 0.5))
    expected = [(0.5 - m) / d for m, d in zip(published_scorer.CLIP_MEAN, published_scorer.CLIP_DEVIATION, strict=True)]
    assert grey.shape == (1, 3, 224, 224) and torch.allclose(grey[0, :, 100, 100], torch.tensor(expected), atol=1e-5)
    edges = clip_input(torch.eye(256).expand(1, 3, 256, 256))[0, 0] * published_scorer.CLIP_DEVIATION[0]
    assert (edges + published_scorer.CLIP_MEAN[0]).min() >= -1e-6  # bicubic overshoot is cut


def test_clip_input_is_that_of_its_own_preprocessing():
    from transformers import CLIPImageProcessorPil

    pictures = torch.randint(0, 256, (2, 3, 96, 96), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    theirs = CLIPImageProcessorPil()(list(pictures), return_tensors="pt")["pixel_values"]
    assert (clip_input(pictures / 255) - theirs).abs().mean() < 0.02  # theirs rounds to 8 bits in between


def test_candidates_are_the_same_for_all_methods():
    texts = [f"thing {i}" for i in range(140)]
    rows = candidates(texts)
    assert rows.shape == (140, 100) and rows[:, 0].tolist() == list(range(140))
    assert all(len(set(row)) == 100 for row in rows.tolist())
    assert torch.equal(rows, candidates(texts)) and not torch.equal(rows, candidates(texts, seed=1))
    assert candidates(["one", "two"]).tolist() == [[0, 1], [1, 0]] and candidates(["one"]).tolist() == [[0]]


@pytest.fixture
def published(toy_folder, monkeypatch):
    """The toy model, as one whose prompts the bundled scorer does not know."""
    true = LanternPipeline.from_pretrained

    def load(path, *rest, **how):
        pipe = true(path, *rest, **how)
        pipe.bundle.words = None
        return pipe

    monkeypatch.setattr(LanternPipeline, "from_pretrained", load)
    return toy_folder


def command(folder, tmp_path, *more) -> int:
    return __main__.main(["evaluate", "--model", str(folder), "--methods", "exact", "--tree", "2", "--images", "8",
                          "--batch", "4", "--out", str(tmp_path / "out"), *more])


def test_evaluate(published, scorer, tmp_path, monkeypatch, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("red apple\nblue fox\n\ngreen fox\n")
    monkeypatch.setattr(PublishedScorer, "load", classmethod(lambda cls, device: scorer))
    assert command(published, tmp_path, "--prompts", str(file)) == 0
    document = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert document["scorer"]["clip"] == "openai/clip-vit-base-patch32" and document["images"] == 8
    rows = document["rows"]
    assert list(rows) == ["ar", "ar, other seeds", "Exact tree 2"]
    assert {"top1", "similarity", "frechet_ar", "frechet_floor", "equivalent"} <= set(rows["Exact tree 2"])
    assert "frechet_real" not in rows["ar"]
    assert command(published, tmp_path) == 2
    assert "--prompts" in capsys.readouterr().err


def test_a_missing_package_is_said_before_painting(published, tmp_path, monkeypatch, capsys):
    file = tmp_path / "prompts.txt"
    file.write_text("red apple\n")
    monkeypatch.setattr(published_scorer, "_clip", lambda: (Clip(), words))
    true = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("torchmetrics"):
            raise ModuleNotFoundError("No module named 'torchmetrics'", name="torchmetrics")
        return true(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert command(published, tmp_path, "--prompts", str(file)) == 2
    said = capsys.readouterr().err
    assert "pip install torchmetrics torch-fidelity" in said and "Traceback" not in said
    assert not (tmp_path / "out").exists()


def test_missing_weights_are_said(monkeypatch):
    from transformers import CLIPModel

    def offline(*given, **more):
        raise OSError("We couldn't connect")

    monkeypatch.setattr(CLIPModel, "from_pretrained", offline)
    with pytest.raises(ModelError, match="hf download openai/clip-vit-base-patch32"):
        published_scorer._clip()


def test_missing_inception_weights_are_said(monkeypatch):
    import sys

    def offline(name, layers):
        raise OSError("no network")

    monkeypatch.setitem(sys.modules, "torchmetrics.image.fid", SimpleNamespace(NoTrainInceptionV3=offline))
    for package in ("torchmetrics", "torchmetrics.image"):
        monkeypatch.setitem(sys.modules, package, SimpleNamespace())
    with pytest.raises(ModelError, match="Inception's weights"):
        published_scorer._inception()
