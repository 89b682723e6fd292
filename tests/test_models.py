"""The registry; every published list of names and shapes (tests/golden/keys.json) is consumed, on the meta device."""

import json
from functools import cache

import golden
import pytest
import torch

from lanternpp import keymaps
from lanternpp.checkpoints import ModelError, Weights, check, size
from lanternpp.models import MODELS, T5_PARAMETERS, Source
from lanternpp.published import memory, modules, recipe

PUBLISHED = [  # list in keys.json, part, the models that read it
    *((f"official/c2i_{size}", "target", [name for name in MODELS if name.startswith(f"llamagen-c2i-{size}")])
      for size in ("B", "L", "XL", "XXL", "3B")),
    ("official/t2i_XL_stage1_256", "target", ["llamagen-t2i-256"]),
    ("official/t2i_XL_stage2_512", "target", ["llamagen-t2i-512"]),
    ("hf/LlamaGen-T2I", "target", ["llamagen-t2i-256"]), ("hf/LlamaGen-T2I-2", "target", ["llamagen-t2i-512"]),
    ("drafter_or_anole/llamagen_drafter", "drafter", ["llamagen-t2i-256"]),
    ("drafter_or_anole/llamagen2_drafter", "drafter", ["llamagen-t2i-512"]),
    ("drafter_or_anole/anole_lm", "target", ["anole-7b", "lumina-mgpt-7b-768"]),
    ("drafter_or_anole/anole_drafter", "drafter", ["anole-7b", "lumina-mgpt-7b-768"]),
]
CASES = [(key, part, name) for key, part, names in PUBLISHED for name in names]


@cache
def parts(name):
    return modules(MODELS[name], MODELS[name].target, MODELS[name].drafter)


@cache
def published(key, layers):
    """Every name and shape of one published list, its layers counted out."""
    document = json.loads((golden.FOLDER / "keys.json").read_text())
    found, count = document[key], None
    if "keys" in found:
        count, found = found["n_tensors"], found["keys"]
    if key.endswith("anole_lm"):  # the file carries the tokenizer's encoder as well
        found, count = found | document["drafter_or_anole/anole_vq"], 548
    shapes = {name.replace("layers.N.", f"layers.{layer}."): tuple(shape) for name, shape in found.items()
              for layer in (range(layers) if "layers.N." in name else [0])}
    assert count is None or len(shapes) == count
    return shapes


def case(key, part, name):
    shapes = published(key, MODELS[name].target.layers)
    made, ignored = recipe(MODELS[name], part, parts(name), shapes)
    return shapes, made, ignored, parts(name)[part]


def weights(shapes):
    return Weights("published", shapes, read=None)


@pytest.mark.golden
@pytest.mark.parametrize("key, part, name", CASES)
def test_every_tensor_of_every_published_checkpoint_is_consumed(key, part, name):
    shapes, made, ignored, module = case(key, part, name)
    check(made, weights(shapes), ignored)
    assert made.keys() == module.state_dict().keys()
    used = {piece.key for pieces in made.values() for piece in pieces}
    assert {key for key in shapes if key not in used} == {key for key in shapes if ignored(key)}
    assert all(key.startswith("model.vqmodel.") for key in shapes.keys() - used)
    for own, value in module.state_dict().items():  # the pieces make up the whole tensor
        rows = [len(piece.rows) if piece.rows is not None else piece.shape[0] for piece in made[own]]
        assert sum(rows) == value.shape[0] and len(set(rows)) == 1


@pytest.mark.golden
@pytest.mark.parametrize("key, part, name", CASES)
def test_dropping_renaming_or_reshaping_a_tensor_names_it(key, part, name):
    shapes, made, ignored, _ = case(key, part, name)
    last = f"layers.{MODELS[name].target.layers - 1}."
    for tensor, shape in shapes.items():
        if "layers." in tensor and "layers.0." not in tensor and last not in tensor:
            continue  # the first layer and the last stand for all
        renamed = {k: v for k, v in shapes.items() if k != tensor} | {f"{tensor}x": shape}
        spoilt = [(renamed, f"{tensor}x" if ignored(tensor) else tensor)]
        if not ignored(tensor):
            spoilt += [({k: v for k, v in shapes.items() if k != tensor}, tensor),
                       (shapes | {tensor: (*shape[:-1], shape[-1] + 1)}, tensor),
                       (shapes | {tensor: shape[:-1]}, tensor)]
        for wrong, named in spoilt:
            with pytest.raises(ModelError) as error:
                check(made, weights(wrong), ignored)
            assert f"{named!r}" in str(error.value)


@pytest.mark.golden
def test_chameleon_tokenizer_has_the_published_encoder():
    document = json.loads((golden.FOLDER / "keys.json").read_text())["drafter_or_anole/anole_vq"]
    made = keymaps.chameleon_vq(parts("anole-7b")["tokenizer"])
    ours = {f"model.vqmodel.{piece.key}": list(piece.shape) for pieces in made.values() for piece in pieces}
    assert {k: v for k, v in ours.items() if ".decoder." not in k} == document


def test_grid_belongs_to_the_checkpoint():
    assert {name: spec.target.grid for name, spec in MODELS.items()} == {
        "llamagen-t2i-256": 16, "llamagen-t2i-512": 32, "llamagen-c2i-B": 24, "llamagen-c2i-B-256": 16,
        "llamagen-c2i-L": 24, "llamagen-c2i-L-256": 16, "llamagen-c2i-XL": 24, "llamagen-c2i-XXL": 24,
        "llamagen-c2i-3B": 24, "anole-7b": 32, "lumina-mgpt-7b-768": 48}
    for name, spec in MODELS.items():
        pixels = spec.target.grid * spec.vq.pixels_per_code
        assert f"({pixels} px)" in spec.title
        for source in spec.targets:
            if source.file is not None:
                assert str(pixels) in source.file, name


def test_lumina_says_its_size_and_ends_its_rows():
    shape = MODELS["lumina-mgpt-7b-768"].target
    side = 8804 + shape.grid // 2  # sizes are told in units of 32 pixels
    assert shape.image_tokens == 48 * 49 and shape.codes == 8192 + 1
    assert MODELS["lumina-mgpt-7b-768"].suffix == (8710, 8197, side, side) and shape.null_prompt == (8197, side, side)
    assert keymaps.code_ids(parts("lumina-mgpt-7b-768")["target"]) == [*range(4, 8196), 8803]
    assert keymaps.code_ids(parts("anole-7b")["target"]) == list(range(4, 8196))


def test_commands_fetch_what_is_read(tmp_path):
    assert Source("a/b", ("c.pt",)).command() == "hf download a/b c.pt"
    assert Source("a/b", ("*.json", "x.bin")).command(tmp_path) == (
        f"hf download a/b --include '*.json' --include x.bin --local-dir {tmp_path}")


def test_memory_of_full_size_models_needs_no_memory():
    whole = {name: memory(spec) for name, spec in MODELS.items()}
    assert 1.5e9 < whole["llamagen-t2i-256"]["target"] < 1.6e9 and 6.1e9 < whole["llamagen-c2i-3B"]["target"] < 6.3e9
    assert 13e9 < whole["anole-7b"]["target"] < 14e9 and "text" not in whole["anole-7b"]
    assert 4e9 < whole["lumina-mgpt-7b-768"]["working"] < 6e9
    assert sum(memory(MODELS["anole-7b"], torch.float32).values()) > 1.9 * sum(whole["anole-7b"].values())


def test_parameters_of_the_text_encoder():
    from transformers import T5Config, T5EncoderModel
    with torch.device("meta"):
        encoder = T5EncoderModel(T5Config(vocab_size=32128, d_model=2048, d_kv=64, d_ff=5120, num_layers=24,
                                          num_heads=32, feed_forward_proj="gated-gelu"))
    assert size(encoder, torch.int8) == T5_PARAMETERS
