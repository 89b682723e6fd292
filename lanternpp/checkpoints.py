"""Weights from disk into a module, strictly and one tensor at a time.

A recipe says for each tensor of a module which published tensors it is made of. Names and shapes of the whole file are
compared with it before any memory is taken; then each tensor is read, brought into its final dtype on its final device
and assigned to the module, which was built on the meta device. Peak memory is the module plus one published tensor.
"""

from __future__ import annotations

import argparse
import json
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import torch
from safetensors import safe_open
from torch import Tensor, nn

NESTED = ("model", "module", "state_dict")  # where LlamaGen's trainers and Lightning keep the weights in a .pt file


class ModelError(RuntimeError):
    """A model cannot be loaded; the message is one sentence that says why and what to do."""


@dataclass(frozen=True)
class Piece:
    """A published tensor, and what of it is used: all of it, or the numbered `rows`; `convert` comes last."""

    key: str
    shape: tuple[int, ...]
    rows: Sequence[int] | None = None
    convert: Callable[[Tensor], Tensor] | None = None

    def taken(self, value: Tensor) -> Tensor:
        if self.rows is not None:
            value = value[torch.as_tensor(self.rows)]
        return self.convert(value) if self.convert else value


Recipe = Mapping[str, Sequence[Piece]]


@dataclass(frozen=True)
class Weights:
    """Published tensors by name: their shapes, and how to read one. `what` names them in messages."""

    what: str
    shapes: Mapping[str, tuple[int, ...]]
    read: Callable[[str], Tensor]
    remedy: str = "fetch the file again"

    @classmethod
    def of(cls, state: Mapping[str, Tensor], what: str, remedy: str = "fetch the file again") -> Weights:
        """Weights that are already in memory (or mapped into it)."""
        return cls(what, {k: tuple(v.shape) for k, v in state.items()}, state.__getitem__, remedy)


def same_names(module: nn.Module) -> dict[str, list[Piece]]:
    """The recipe of a file that holds the module's own names."""
    return {key: [Piece(key, tuple(value.shape))] for key, value in module.state_dict().items()}


def check(recipe: Recipe, weights: Weights, ignored: Callable[[str], bool] = lambda key: False) -> None:
    """ModelError names the first published tensor that is missing, wrongly shaped or unknown. Reads no weights.

    A known tensor that this project has no use for is `ignored` by its name.
    """
    pieces = {piece.key: piece for parts in recipe.values() for piece in parts}
    for key, piece in pieces.items():
        if key not in weights.shapes:
            raise ModelError(f"The {weights.what} weights lack the tensor {key!r}: they are damaged or another "
                             f"model's, so {weights.remedy}.")
        if weights.shapes[key] != piece.shape:
            raise ModelError(f"The {weights.what} weights' tensor {key!r} has shape {weights.shapes[key]} where "
                             f"{piece.shape} is needed: they are another model's, so {weights.remedy}.")
    if unknown := sorted(key for key in weights.shapes if key not in pieces and not ignored(key)):
        raise ModelError(f"The {weights.what} weights hold an unknown tensor {unknown[0]!r}: they are another model's, "
                         f"so {weights.remedy}.")


def fill(module: nn.Module, recipe: Recipe, weights: Weights, dtype: torch.dtype | Callable[[str], torch.dtype],
         device: torch.device | str = "cpu", ignored: Callable[[str], bool] = lambda key: False,
         told: Callable[[int], None] = lambda count: None) -> nn.Module:
    """Load weights into a module, best one built on the meta device, and switch it to evaluation mode.

    dtype is that of all tensors, or of the tensor of each name; told(bytes) after each tensor. ModelError as `check`.
    """
    own = module.state_dict()
    if own.keys() != recipe.keys():
        raise ValueError(f"The recipe does not fit the module: {sorted(own.keys() ^ recipe.keys())[0]}.")
    check(recipe, weights, ignored)
    state = {}
    for key, pieces in recipe.items():
        kind = dtype(key) if callable(dtype) else dtype
        state[key] = torch.empty(own[key].shape, dtype=kind, device=device)
        places = state[key].chunk(len(pieces)) if len(pieces) > 1 else [state[key]]
        for piece, place in zip(pieces, places, strict=True):
            place.copy_(piece.taken(_read(weights, piece.key)).reshape(place.shape))
        told(state[key].nbytes)
    module.load_state_dict(state, assign=True)
    for part in module.modules():
        if hasattr(part, "rebuild"):  # tables that are computed, not stored
            part.rebuild(torch.device(device))
    return module.eval()


def _read(weights: Weights, key: str) -> Tensor:
    try:
        return weights.read(key)
    except Exception as error:  # safetensors and torch raise many kinds for a file that changed or was cut
        raise ModelError(f"The {weights.what} weights' tensor {key!r} cannot be read ({type(error).__name__}): "
                         f"{weights.remedy}.") from error


def open_weights(paths: Iterable[Path], what: str, remedy: str = "fetch the file again") -> Weights:
    """The weights in one or more files, .safetensors, or .pt, .bin, .ckpt and .pth read without running code in them.

    Nothing is read but names and shapes; .pt files are mapped into memory. ModelError for a file that is missing, cut
    off or no such file, and for a tensor that stands in two files.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    readers: dict[str, Callable[[str], Tensor]] = {}
    for path in paths:
        if not path.is_file():
            raise ModelError(f"The {what} weights lack the file {path.name}, perhaps after an interrupted download: "
                             f"{remedy}.")
        try:
            found, read = (_safetensors if path.suffix == ".safetensors" else _pickled)(path)
        except ModelError:
            raise
        except Exception as error:
            if isinstance(error, pickle.UnpicklingError) and "GLOBAL" in str(error):
                raise ModelError(f"The {what} weights {path.name} hold Python objects besides tensors, which are not "
                                 f"read for safety: {remedy}.") from error
            raise ModelError(f"The {what} weights {path.name} cannot be read ({type(error).__name__}), perhaps after "
                             f"an interrupted download: {remedy}.") from error
        if twice := found.keys() & shapes.keys():
            raise ModelError(f"The {what} weights hold the tensor {sorted(twice)[0]!r} in two files: {remedy}.")
        shapes |= found
        readers |= dict.fromkeys(found, read)
    return Weights(what, shapes, lambda key: readers[key](key), remedy)


def _safetensors(path: Path) -> tuple[dict[str, tuple[int, ...]], Callable[[str], Tensor]]:
    file = safe_open(path, "pt").__enter__()  # stays open, as a mapping, while the weights are in use
    return {key: tuple(file.get_slice(key).get_shape()) for key in file.keys()}, file.get_tensor


def _pickled(path: Path) -> tuple[dict[str, tuple[int, ...]], Callable[[str], Tensor]]:
    with torch.serialization.safe_globals([argparse.Namespace]):  # LlamaGen's trainer keeps its options beside
        try:
            state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        except RuntimeError as error:
            if "mmap can only be used" not in str(error):
                raise
            state = torch.load(path, map_location="cpu", weights_only=True)  # torch's format before 1.6
    state = next((state[name] for name in NESTED if isinstance(state.get(name), Mapping)), state)
    for key, value in state.items():
        if not isinstance(value, Tensor):
            raise ModelError(f"The weights {path.name} hold {key!r}, which is no tensor: they are another model's.")
    return {key: tuple(value.shape) for key, value in state.items()}, state.__getitem__


def weight_files(folder: Path, what: str, remedy: str) -> list[Path]:
    """The files of a folder in transformers' layout: one file, or an index and its shards. ModelError if there is none.

    safetensors come before .bin. Shards may be missing: open_weights says so.
    """
    for single in ("model.safetensors", "pytorch_model.bin"):
        index = folder / f"{single}.index.json"
        if index.is_file():
            try:
                names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
                return [folder / Path(name).name for name in names]
            except (ValueError, KeyError, AttributeError, TypeError) as error:
                raise ModelError(f"The {what} weights' {index.name} cannot be read ({type(error).__name__}): "
                                 f"{remedy}.") from error
        if (folder / single).is_file():
            return [folder / single]
    raise ModelError(f"There are no {what} weights in {folder}: {remedy}.")


def size(module: nn.Module, dtype: torch.dtype) -> int:
    """Bytes of a module's stored tensors in dtype; a tensor with two names counts once."""
    tensors = {id(value): value for value in module.state_dict(keep_vars=True).values()}
    return sum(value.numel() for value in tensors.values()) * dtype.itemsize


def free_memory(device: torch.device) -> int:
    """Bytes that are free: on a GPU, or in this machine's memory, a container's limit taken into account."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    free, group = psutil.virtual_memory().available, Path("/sys/fs/cgroup")
    try:
        used = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())["anon"]
        return min(free, int((group / "memory.max").read_text()) - int(used))
    except (OSError, ValueError, KeyError):  # no container, or one without a limit
        return free


def need_memory(what: str, needed: int, device: torch.device, freed: int = 0) -> None:
    """ModelError unless `needed` bytes are free on the device, or will be when `freed` bytes are given back."""
    free = free_memory(device) + freed
    if needed > free:
        where = "the GPU" if device.type == "cuda" else "this machine"
        raise ModelError(f"{what} needs {needed / 1e9:.1f} GB and {where} has {free / 1e9:.1f} GB free: unload other "
                         "models, take a smaller one, or run on a larger machine.")
