import argparse
import json

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from lanternpp import checkpoints
from lanternpp.checkpoints import ModelError, Piece, Weights, check, fill, open_weights, same_names, weight_files


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


def empty() -> nn.Sequential:
    with torch.device("meta"):
        return small()


def write(folder, state, form):
    """The files of a state in each form in which weights are published."""
    if form == "safetensors":
        save_file(state, folder / "model.safetensors")
    elif form == "sharded":
        first = dict(list(state.items())[:2])
        rest = {k: v for k, v in state.items() if k not in first}
        names = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
        for name, part in zip(names, (first, rest), strict=True):
            save_file(part, folder / name)
        index = {"weight_map": {key: names[key not in first] for key in state}}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=form == "bin")
    return weight_files(folder, "toy", "fetch it")


@pytest.mark.parametrize("form", ["safetensors", "sharded", "bin", "old bin"])
def test_every_form_is_read(tmp_path, form):
    state = small().state_dict()
    weights = open_weights(write(tmp_path, state, form), "toy")
    loaded = fill(empty(), same_names(empty()), weights, torch.float32)
    assert {k: v.tolist() for k, v in loaded.state_dict().items()} == {k: v.tolist() for k, v in state.items()}


@pytest.mark.parametrize("nest", ["model", "module", "state_dict"])
def test_trainers_files_are_unwrapped_and_their_options_are_harmless(tmp_path, nest):
    path = tmp_path / "c2i.pt"
    torch.save({nest: small().state_dict(), "args": argparse.Namespace(lr=1.0), "steps": 3}, path)
    assert open_weights([path], "toy").shapes == {k: tuple(v.shape) for k, v in small().state_dict().items()}


class Harmful:
    def __reduce__(self):
        return print, ("this ran",)


def test_code_in_a_file_is_not_run(tmp_path, capsys):
    torch.save({"weight": Harmful()}, tmp_path / "bad.pt")
    with pytest.raises(ModelError, match="Python objects"):
        open_weights([tmp_path / "bad.pt"], "toy")
    assert "this ran" not in capsys.readouterr().out


@pytest.mark.parametrize("form", ["safetensors", "sharded", "bin"])
@pytest.mark.parametrize("spoil", ["cut", "missing", "pointer", "empty"])
def test_broken_files_say_one_sentence_with_the_remedy(tmp_path, form, spoil):
    paths = write(tmp_path, small().state_dict(), form)
    if spoil == "missing":
        paths[-1].unlink()
    else:
        bytes_ = {"cut": paths[-1].read_bytes()[:-20], "pointer": b"version https://git-lfs.github.com/spec/v1\n",
                  "empty": b""}[spoil]
        paths[-1].write_bytes(bytes_)
    with pytest.raises(ModelError, match="run `this`") as error:
        open_weights(paths, "toy", "run `this`")
    said = str(error.value)
    assert said.endswith(".") and "\n" not in said and paths[-1].name in said and "objects" not in said


def test_folders_without_weights_and_bad_indexes(tmp_path):
    with pytest.raises(ModelError, match="no toy weights"):
        weight_files(tmp_path, "toy", "fetch it")
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(ModelError, match="index.json cannot be read"):
        weight_files(tmp_path, "toy", "fetch it")


def test_a_tensor_in_two_files(tmp_path):
    for name in ("a.safetensors", "b.safetensors"):
        save_file({"w": torch.zeros(1)}, tmp_path / name)
    with pytest.raises(ModelError, match="'w' in two files"):
        open_weights([tmp_path / "a.safetensors", tmp_path / "b.safetensors"], "toy")


def test_missing_unknown_and_misshapen_tensors_are_named_before_any_is_read():
    def read(key):
        raise AssertionError("a tensor was read")

    recipe, shapes = same_names(empty()), {k: tuple(v.shape) for k, v in small().state_dict().items()}
    check(recipe, Weights("toy", shapes, read))
    for key in shapes:
        for spoilt, words in (({k: v for k, v in shapes.items() if k != key}, f"lack the tensor '{key}'"),
                              (shapes | {key: (9, 9)}, f"'{key}' has shape"),
                              (shapes | {f"{key}.new": (1,)}, f"unknown tensor '{key}.new'")):
            with pytest.raises(ModelError, match=words):
                fill(empty(), recipe, Weights("toy", spoilt, read), torch.float32)
    check(recipe, Weights("toy", shapes | {"table": (1,)}, read), ignored=lambda key: key == "table")


def test_pieces_rows_and_conversions():
    module = nn.Linear(2, 4, bias=False)
    recipe = {"weight": [Piece("a", (5, 2), rows=[4, 0]), Piece("b", (2, 2, 1, 1), convert=torch.neg)]}
    a, b = torch.arange(10.0).view(5, 2), torch.arange(4.0).view(2, 2, 1, 1)
    fill(module, recipe, Weights.of({"a": a, "b": b}, "toy"), torch.bfloat16)
    assert module.weight.tolist() == [[8, 9], [0, 1], [0, -1], [-2, -3]] and module.weight.dtype == torch.bfloat16


def test_a_file_cut_while_it_is_read(tmp_path):
    def read(key):
        raise OSError("gone")

    shapes = {k: tuple(v.shape) for k, v in small().state_dict().items()}
    with pytest.raises(ModelError, match="cannot be read"):
        fill(empty(), same_names(empty()), Weights("toy", shapes, read), torch.float32)


def test_memory_is_asked_for_before_loading(monkeypatch):
    monkeypatch.setattr(checkpoints, "free_memory", lambda device: 2_000_000_000)
    checkpoints.need_memory("LlamaGen", 2_000_000_000, torch.device("cpu"))
    with pytest.raises(ModelError, match=r"LlamaGen needs 3.5 GB and this machine has 2.0 GB free"):
        checkpoints.need_memory("LlamaGen", 3_500_000_000, torch.device("cpu"))
    monkeypatch.undo()
    assert checkpoints.free_memory(torch.device("cpu")) > 0
    assert checkpoints.size(small(), torch.bfloat16) == 2 * (12 + 4 + 8 + 2)
