"""Drafters for any target: codes, features as in decoding, training from the command line, loading what it wrote."""

import json
import shutil

import numpy as np
import pytest
import synthetic
import torch
from PIL import Image

from lanternpp import LanternPipeline
from lanternpp.__main__ import main
from lanternpp.decode import Decoder, Step
from lanternpp.drafter import Drafter
from lanternpp.hub import load_bundle
from lanternpp.relax import Relaxation
from lanternpp.settings import SettingsError
from lanternpp.training import distill, drafter

PROMPTS = {"c2i": ["goldfish", "7"]}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("targets")
    return {family: synthetic.write(root / family, family) for family in ("t2i", "c2i", "anole", "lumina")}


@pytest.fixture(scope="module")
def pipes(folders):
    return {family: LanternPipeline.from_pretrained(folder, "cpu", torch.float32) for family, folder in folders.items()}


@pytest.mark.parametrize("family", ["t2i", "c2i", "anole", "lumina"])
def test_features_are_those_of_decoding(pipes, family):
    """What the drafter is trained on is what a decoder's step hands to it, padding and the null prompt included."""
    pipe = pipes[family]
    made = pipe.bundle.drafter or Drafter(drafter.DrafterConfig(), pipe.bundle.target.config).eval()
    seen = []

    class Watched(Drafter):
        def forward(self, tokens, hidden, positions, *rest, **more):
            out = super().forward(tokens, hidden, positions, *rest, **more)
            seen.append((tokens.expand(len(hidden), -1).clone(), hidden.clone(), out))  # its inputs are buffers
            return out

    made.__class__ = Watched
    try:
        for prompt in PROMPTS.get(family, ["a red fox", "blue"]):
            settings = pipe.check(prompt=prompt, method="exact", tree="1", seed=3)
            condition, valid = pipe.encode_prompt(prompt)
            seen.clear()
            step = Step(pipe.bundle.target, made, settings.tree, Relaxation("exact"), settings.sampling)
            events = Decoder(step).generate(condition, 3, valid)
            shown = distill.shown(pipe, [prompt], torch.tensor([[t for e in events for t in e.tokens]]))
            prefix = pipe.bundle.target.config.prefix
            places = slice(prefix - 1, prefix)  # the row of the first code: its state saw the whole prompt
            first_code = seen[1 if prefix > 1 else 0]
            assert torch.equal(first_code[0][:, 0], shown.codes[:, :1].repeat(2, 1)[:, 0])
            assert torch.allclose(first_code[1][:, :1], shown.hidden.flatten(0, 1)[:, places], atol=1e-5)
            if prefix > 1:
                assert torch.allclose(seen[0][1], shown.hidden.flatten(0, 1)[:, :prefix - 1], atol=1e-5)
                words = shown.words.expand(2, -1)[:, 1:]
                assert torch.equal(seen[0][0], words)
            # the drafter's own output there, through its padding, is that of the training's pass
            _, _, predicted = drafter.batch_loss(made, pipe.bundle.target, shown, settings.sampling, None, 1.0)
            assert torch.allclose(first_code[2][:, :1], predicted[:, places], atol=1e-4)
    finally:
        made.__class__ = Drafter


def test_samples_are_plain_decodings(pipes, tmp_path):
    from accelerate import Accelerator
    pipe, prompts = pipes["lumina"], ["a red fox", "fox", "blue apple"]
    settings = pipe.check(prompt="a")
    codes = distill.sample(pipe, prompts, settings.sampling, tmp_path, 7, 2, Accelerator(cpu=True))
    for row, (prompt, seed) in enumerate(zip(prompts, (7, 8, 9), strict=True)):
        assert pipe(prompt, method="ar", seed=seed).trace.tokens == codes[row].tolist()
    again = distill.sample(pipe, prompts, settings.sampling, tmp_path, 7, 2, Accelerator(cpu=True))
    assert torch.equal(codes, again) and len(list(tmp_path.iterdir())) == 2


def test_row_ends_are_never_compared(pipes):
    """The loss does not look at what the drafter expects where a row ends."""
    pipe = pipes["lumina"]
    shown = distill.shown(pipe, ["fox"], torch.tensor([pipe("fox", method="ar").trace.tokens]))
    sampling, config = pipe.check(prompt="a").sampling, pipe.bundle.target.config
    only = torch.arange(config.image_tokens - 1)
    ends = (only + 1) % (config.grid + 1) == config.grid
    whole = drafter.batch_loss(pipe.bundle.drafter, pipe.bundle.target, shown, sampling, None, 1.0)
    without = drafter.batch_loss(pipe.bundle.drafter, pipe.bundle.target, shown, sampling, None, 1.0, only[~ends])
    assert ends.sum() == config.grid and torch.equal(whole[1], without[1]) and 0 < whole[1] < 1


def held_out(out):
    rows = [json.loads(line) for line in (out / "drafter.jsonl").read_text().splitlines()]
    return rows[0]["held_out"], rows[-1]["held_out"], rows[-1]["step"]


def test_self_distillation_raises_the_acceptance_of_held_out_pictures(folders, tmp_path, capsys):
    """A class model, for which no drafter is published, gets one from the command line, and decodes with it."""
    root = shutil.copytree(folders["c2i"], tmp_path / "model")
    with pytest.raises(SettingsError, match="train drafter"):
        LanternPipeline.from_pretrained(root, "cpu", torch.float32)("goldfish", method="exact")
    assert main(["train", "drafter", "--model", str(root), "--self-distill", "--samples", "64", "--minutes", "0.09",
                 "--batch", "16", "--out", str(tmp_path / "out")]) == 0
    before, after, steps = held_out(tmp_path / "out")
    assert steps and after > before + 0.03
    pipe = LanternPipeline.from_pretrained(root, "cpu", torch.float32)
    trained = [pipe(str(label), method="exact", tree="1,1", seed=1) for label in range(8)]
    untrained = drafter.new_drafter(pipe.bundle.target, pipe.bundle.drafter.config).eval().requires_grad_(False)
    pipe.bundle.drafter, pipe.__dict__["drafter"] = untrained, untrained
    control = [pipe(str(label), method="exact", tree="1,1", seed=1) for label in range(8)]
    steps = [sum(output.trace.steps for output in outputs) for outputs in (trained, control)]
    assert steps[0] < steps[1]
    assert str(root) in capsys.readouterr().out


def test_pictures_and_their_prompts_train_a_drafter(folders, tmp_path):
    root, images = shutil.copytree(folders["t2i"], tmp_path / "model"), tmp_path / "images"
    (images / "blue_apple").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for number in range(8):
        path = images / ("blue_apple" if number % 2 else "") / f"red-fox-{number}.png"
        Image.fromarray(rng.integers(0, 255, (9, 12, 3), dtype=np.uint8)).save(path)
    (images / "red-fox-0.txt").write_text("a red fox\n")
    texts = dict(distill.pictures(images))
    assert texts[images / "red-fox-0.png"] == "a red fox" and texts[images / "red-fox-2.png"] == "red fox 2"
    assert texts[images / "blue_apple/red-fox-1.png"] == "blue apple"
    old = (root / "drafter/pytorch_model.bin").read_bytes()
    assert main(["train", "drafter", "--model", str(root), "--images", str(images), "--minutes", "0.01",
                 "--out", str(tmp_path / "out")]) == 0
    assert old and not (root / "drafter/pytorch_model.bin").exists()
    pipe = LanternPipeline.from_pretrained(root, "cpu", torch.float32)
    assert len(pipe("a red fox", method="lanternpp", k=5).trace.tokens) == 16


@pytest.mark.parametrize("family", ["anole", "lumina"])
def test_a_drafter_is_read_as_it_was_written(pipes, folders, tmp_path, family):
    root = shutil.copytree(folders[family], tmp_path / "model")
    made = drafter.new_drafter(pipes[family].bundle.target, pipes[family].bundle.drafter.config)
    distill.save(made, pipes[family], root, distill.hub.published_spec(root))
    again = load_bundle(root, torch.float32).drafter
    assert again.config.masks_padding and again.config.norm_eps == made.config.norm_eps
    for key, value in made.state_dict().items():
        assert torch.equal(value, again.state_dict()[key])


@pytest.mark.parametrize("options, words", [
    (["--images", "nowhere"], "no pictures"), (["--self-distill", "--samples", "2"], "too few"),
    (["--self-distill", "--prompts", "nowhere.txt"], "nowhere.txt"),
])
def test_bad_input_is_one_sentence(folders, tmp_path, capsys, options, words):
    assert main(["train", "drafter", "--model", str(folders["c2i"]), "--out", str(tmp_path), *options]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and words in said[0]


def test_row_ends_are_put_behind_the_codes_of_pictures(pipes, tmp_path):
    Image.new("RGB", (9, 9), "red").save(tmp_path / "fox.png")
    codes = distill.encode(pipes["lumina"], [tmp_path / "fox.png"])
    rows = codes.unflatten(1, (synthetic.GRID, -1))
    assert rows.shape == (1, 4, 5) and (rows[..., -1] == synthetic.CODES).all()
    assert (rows[..., :-1] < synthetic.CODES).all()
