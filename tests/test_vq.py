import argparse
import dataclasses
import json

import golden
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from lanternpp import keymaps
from lanternpp.checkpoints import ModelError, Weights, fill
from lanternpp.training.vq import Trainer, add_arguments, kmeans, train
from lanternpp.vq import CODEBOOK, Tokenizer, VQConfig, atlas, to_pil

TINY = VQConfig(codes=20, code_dim=4, latent_channels=16, block_out_channels=(16, 16), layers_per_block=1,
                norm_num_groups=4, mid_block_add_attention=False, lowest_attention=False, shuffle=4)
GRID = (8, 8)


@pytest.fixture
def tiny() -> Tokenizer:
    torch.manual_seed(0)
    tokenizer = Tokenizer(TINY).eval()
    tokenizer.vq.quantize.embedding.weight.data.normal_()
    return tokenizer


@pytest.fixture(scope="module")
def llamagen():
    """The golden file's tensors, its weights under LlamaGen's names, and the configuration they have."""
    config, tensors = golden.load("llamagen_vq")
    codes, code_dim = config["codebook"]
    shape = VQConfig(codes, code_dim, config["z_channels"], [config["ch"] * m for m in config["ch_mult"]],
                     config["num_res_blocks"], normalize=config["l2_norm"])
    return tensors, golden.weights(tensors), shape


def loaded(weights, config) -> Tokenizer:
    return loaded_by(keymaps.llamagen_vq, weights, config)


def loaded_by(keymap, weights, config) -> Tokenizer:
    with torch.device("meta"):
        tokenizer = Tokenizer(config)
    return fill(tokenizer, keymap(tokenizer), Weights.of(weights, "tokenizer"), torch.float32, "cpu",
                keymaps.vq_ignored)


@pytest.mark.golden
def test_llamagen_decodes_as_the_reference(llamagen):
    tensors, weights, config = llamagen
    with torch.no_grad():
        images = loaded(weights, config).decode(tensors["decode/indices"].long(), GRID)
    assert (images - tensors["decode/image"]).abs().max() <= 2e-5


@pytest.mark.golden
def test_llamagen_encodes_as_the_reference(llamagen):
    tensors, weights, config = llamagen
    tokenizer = loaded(weights, config)
    with torch.no_grad():
        latents = tokenizer.latents(tensors["encode/image"])
    indices = tokenizer.encode(tensors["encode/image"])
    assert (latents - tensors["encode/latents"]).abs().max() <= 2e-5
    assert indices.dtype == torch.int64 and torch.equal(indices, tensors["encode/indices"].long())
    with torch.no_grad():
        assert (tokenizer.decode(indices, GRID) - tensors["encode/recon"]).abs().max() <= 2e-5


@pytest.mark.golden
def test_stock_diffusers_reads_the_converted_weights(llamagen):
    tensors, weights, config = llamagen
    vq = loaded(weights, config).vq
    with torch.no_grad():
        z = vq.encode(tensors["encode/image"]).latents
        assert torch.equal(vq.quantize(z)[2][2].view(2, -1), tensors["encode/indices"].long())
        assert (vq.decode(z).sample - tensors["encode/recon"]).abs().max() <= 2e-5


@pytest.mark.golden
def test_control_without_normalisation_the_picture_is_another(llamagen):
    tensors, weights, config = llamagen
    raw = loaded(weights, dataclasses.replace(config, normalize=False))
    with torch.no_grad():
        images = raw.decode(tensors["decode/indices"].long(), GRID)
    assert (images - tensors["decode/image"]).abs().max() > 0.1


@pytest.mark.golden
def test_codebook_is_unit_rows_of_the_stored_one(llamagen):
    _, weights, config = llamagen
    rows, stored = loaded(weights, config).codebook, weights[CODEBOOK]
    assert (stored.norm(dim=1) - 1).abs().max() > 0.01
    assert torch.allclose(rows, F.normalize(stored, dim=1), atol=1e-6)


@pytest.mark.golden
@pytest.mark.parametrize("key", ["decoder.conv_blocks.0.attn.1.proj_out.weight", "encoder.mid.1.norm.bias",
                                 "encoder.conv_blocks.0.downsample.conv.bias", "quantize.embedding.weight"])
def test_missing_renamed_and_misshapen_keys_are_named(llamagen, key):
    _, weights, config = llamagen
    rest = {k: v for k, v in weights.items() if k != key}
    with pytest.raises(ModelError, match=f"lack the tensor '{key}'"):
        loaded(rest, config)
    with pytest.raises(ModelError, match=f"unknown tensor '{key}x'"):
        loaded({**weights, f"{key}x": weights[key]}, config)
    with pytest.raises(ModelError, match=f"'{key}' has shape"):
        loaded({**rest, key: weights[key][:-1]}, config)


@pytest.mark.golden
def test_usage_record_and_losses_are_ignored(llamagen):
    _, weights, config = llamagen
    codes = torch.arange(64).view(1, 64)
    more = {**weights, "quantize.codebook_used": torch.zeros(9), "loss.discriminator.main.0.weight": torch.zeros(2)}
    with torch.no_grad():
        assert torch.equal(loaded(more, config).decode(codes, GRID), loaded(weights, config).decode(codes, GRID))


@pytest.fixture(scope="module")
def chameleon():
    config, tensors = golden.load("chameleon_vq")
    codes, code_dim = config["codebook"]
    shape = VQConfig(codes, code_dim, config["z_channels"], [config["ch"] * m for m in config["ch_mult"]],
                     config["num_res_blocks"], lowest_attention=False, normalize=False)
    return tensors, golden.weights(tensors), shape


@pytest.mark.golden
def test_chameleon_decodes_and_encodes_as_the_reference(chameleon):
    tensors, weights, config = chameleon
    tokenizer = loaded_by(keymaps.chameleon_vq, weights, config)
    with torch.no_grad():
        assert (tokenizer.decode(tensors["decode/indices"].long(), GRID) - tensors["decode/image"]).abs().max() <= 2e-5
        assert (tokenizer.latents(tensors["encode/image"]) - tensors["encode/latents"]).abs().max() <= 2e-5
        indices = tokenizer.encode(tensors["encode/image"])
        assert torch.equal(indices, tensors["encode/indices"].long())
        assert (tokenizer.decode(indices, GRID) - tensors["encode/recon"]).abs().max() <= 2e-5


@pytest.mark.golden
def test_control_chameleon_codes_are_not_normalised(chameleon):
    tensors, weights, config = chameleon
    other = loaded_by(keymaps.chameleon_vq, weights, dataclasses.replace(config, normalize=True))
    with torch.no_grad():
        assert (other.decode(tensors["decode/indices"].long(), GRID) - tensors["decode/image"]).abs().max() > 0.1


def test_shapes_and_ranges(tiny):
    images = torch.rand(2, 3, 40, 24) * 2 - 1
    codes = tiny.encode(images)
    assert TINY.pixels_per_code == 8
    assert codes.shape == (2, 15) and codes.dtype == torch.int64 and 0 <= codes.min() and codes.max() < 20
    assert tiny.latents(images).shape == (2, 4, 5, 3)
    assert tiny.decode(codes, (5, 3)).shape == (2, 3, 40, 24)


def test_codes_are_in_row_major_order(tiny):
    codes = torch.randint(0, 20, (1, 8 * 8))
    with torch.no_grad():
        before = tiny.decode(codes, GRID)
        codes[0, 2 * 8 + 5] = (codes[0, 2 * 8 + 5] + 1) % 20
        change = (tiny.decode(codes, GRID) - before).abs()
    assert divmod(int(F.avg_pool2d(change.sum(1), 8).argmax()), 8) == (2, 5)


def test_every_code_is_nearest_to_itself(tiny):
    z = tiny.codebook.T[None, :, :, None] * 3.7  # length does not count where the tokenizer normalises
    assert torch.equal(tiny.nearest(z)[0], torch.arange(20))
    plain = Tokenizer(dataclasses.replace(TINY, normalize=False))
    plain.vq.quantize.embedding.weight.data = tiny.codebook.detach() * torch.arange(1.0, 21.0)[:, None]
    assert torch.equal(plain.nearest(plain.codebook.T[None, :, :, None])[0], torch.arange(20))


def test_saved_tokenizer_comes_back(tiny, tmp_path):
    codes = torch.randint(0, 20, (2, 16))
    tiny.save(tmp_path / "vq.safetensors", torch.float32)
    again = Tokenizer.load(tmp_path / "vq.safetensors")
    assert again.config == TINY and not again.training
    with torch.no_grad():
        assert torch.allclose(again.decode(codes, (4, 4)), tiny.decode(codes, (4, 4)), atol=1e-5)
    tiny.save(tmp_path / "half.safetensors")
    half = Tokenizer.load(tmp_path / "half.safetensors")
    assert half.vq.dtype == torch.float32 and torch.equal(half.codebook, tiny.codebook)
    assert half.codebook.norm(dim=1).sub(1).abs().max() < 1e-6


def test_weights_of_another_model_are_refused(tiny):
    state = tiny.vq.state_dict()
    with pytest.raises(ModelError, match="unknown tensor 'extra'"):
        tiny.load_weights({**state, "extra": torch.zeros(1)})
    with pytest.raises(ModelError, match="lack the tensor 'quant_conv.bias'"):
        tiny.load_weights({k: v for k, v in state.items() if k != "quant_conv.bias"})


@pytest.mark.parametrize("codes, grid, message", [
    (torch.zeros(1, 15, dtype=torch.int64), (4, 4), "4×4 grid"), (torch.zeros(16, dtype=torch.int64), (4, 4), "shape"),
    (torch.full((1, 16), 20), (4, 4), "from 0 to 19"), (torch.full((1, 16), -1), (4, 4), "from 0 to 19")])
def test_bad_codes_are_refused(tiny, codes, grid, message):
    with pytest.raises(ValueError, match=message):
        tiny.decode(codes, grid)


def test_bad_pictures_are_refused(tiny):
    with pytest.raises(ValueError, match="multiples of 8"):
        tiny.encode(torch.zeros(1, 3, 20, 24))


def test_pictures_are_rounded_and_clamped():
    levels = torch.tensor([-9.0, -1.0, 0.999 / 127.5 - 1, 0.0, 1.0, 9.0])
    picture = to_pil(levels.expand(1, 3, 2, 6))[0]
    assert picture.mode == "RGB" and picture.size == (6, 2)
    assert np.asarray(picture)[0, :, 0].tolist() == [0, 0, 1, 128, 255, 255]
    every = torch.arange(256) / 127.5 - 1
    assert np.asarray(to_pil(every.expand(1, 3, 1, 256))[0])[0, :, 1].tolist() == list(range(256))


def test_atlas_shows_each_code_in_its_place(tiny):
    sheet = atlas(tiny, batch=6)
    assert isinstance(sheet, Image.Image) and sheet.size == (5 * 8, 4 * 8)
    with torch.no_grad():
        field = tiny.decode(torch.full((1, 9), 13), (3, 3))
    expected = np.asarray(to_pil(field)[0])[8:16, 8:16].astype(int)
    shown = np.asarray(sheet)[16:24, 24:32].astype(int)
    assert abs(shown - expected).max() <= 1


def test_kmeans_finds_separate_directions():
    generator = torch.Generator().manual_seed(0)
    centres = F.normalize(torch.randn(6, 8, generator=generator), dim=1)
    points = F.normalize(centres.repeat(50, 1) + 0.05 * torch.randn(300, 8, generator=generator), dim=1)
    found = kmeans(points, 12, generator)
    assert torch.allclose(found.norm(dim=1), torch.ones(12))
    assert (centres @ found.T).amax(1).min() > 0.99


@pytest.fixture
def training(tmp_path, monkeypatch):
    """A function that trains a tiny tokenizer on a dozen random pictures, in tmp_path/name."""
    monkeypatch.setattr("lanternpp.training.vq.PATIENCE", 1)  # so that codes die within a few steps
    rng = np.random.default_rng(0)
    np.save(tmp_path / "pictures.npy", rng.integers(0, 256, (12, 128, 128, 4), dtype=np.uint8))
    records = [{"label": f"thing {i // 3}", "tags": [], "group": 0, "style": "noto", "concept": str(i // 3)}
               for i in range(12)]
    (tmp_path / "pictures.json").write_text(json.dumps(records))

    def run(name: str, *options: str) -> Tokenizer:
        parser = argparse.ArgumentParser()
        add_arguments(parser)
        words = ["--data", tmp_path, "--out", tmp_path / name, "--steps", 12, "--batch", 2, "--save-every", 3,
                 "--device", "cpu", *options]
        return train(parser.parse_args([str(word) for word in words]), TINY)

    return run


def test_interrupted_training_ends_as_one_that_was_not(training, tmp_path, monkeypatch):
    whole = training("whole").state_dict()
    step = Trainer.train_step
    for stop in (3, 7):  # the first is where the codebook is about to be made

        def interrupted(self, images, stop=stop):
            if self.step == stop:
                raise KeyboardInterrupt
            return step(self, images)

        monkeypatch.setattr(Trainer, "train_step", interrupted)
        assert any(not torch.equal(v, whole[k]) for k, v in training(f"at{stop}").state_dict().items())
        monkeypatch.setattr(Trainer, "train_step", step)
        assert all(torch.equal(v, whole[k]) for k, v in training(f"at{stop}").state_dict().items())
    curve = [json.loads(line) for line in (tmp_path / "at7/tokenizer.jsonl").read_text().splitlines()]
    assert curve[-1]["step"] == 12 and curve[-1]["held_out_psnr"] > 0
    assert Tokenizer.load(tmp_path / "whole/tokenizer.safetensors").config == TINY
    with pytest.raises(ValueError, match="other settings"):
        training("whole", "--seed", "1")


def test_dead_codes_move_to_latents_of_the_batch(training, monkeypatch):
    moved = []
    revive = Trainer.revive

    def watched(self, codes, z):
        table = self.tokenizer.vq.quantize.embedding.weight
        points = z.permute(0, 2, 3, 1).flatten(0, 2)
        dead = [i for i in range(20) if self.idle[i] >= 1 and i not in codes][:len(points)]
        revive(self, codes, z)
        assert all((points == table[i]).all(1).any() and self.idle[i] == 0 for i in dead)
        moved.extend(dead)

    monkeypatch.setattr(Trainer, "revive", watched)
    training("run", "--crop", "16", "--batch", "1")
    assert moved


def test_decoder_only_training_keeps_every_code(training, tmp_path):
    training("first")
    start = Tokenizer.load(tmp_path / "first/tokenizer.safetensors")
    after = training("second", "--decoder-only", "--init", tmp_path / "first/tokenizer.safetensors")
    saved = Tokenizer.load(tmp_path / "second/tokenizer.safetensors")
    images = torch.rand(2, 3, 64, 64) * 2 - 1
    for tokenizer in (after, saved):
        assert torch.equal(start.codebook, tokenizer.codebook)
        assert torch.equal(start.encode(images), tokenizer.encode(images))
    kept = {k for k, v in after.state_dict().items() if torch.equal(v, start.state_dict()[k])}
    assert kept == {k for k in start.state_dict() if k.startswith(("vq.encoder", "vq.quant"))}
    with pytest.raises(ValueError, match="--init"):
        training("third", "--decoder-only")
