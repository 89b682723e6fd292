"""Loading published models: find each part's files, read its configuration, check memory, fill the modules.

The parts are target, text, tokenizer and drafter. Each comes from the folder of that name in the model's own folder,
where there is one, else from the hub, whose cache also serves without a network.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from tokenizers import Tokenizer as WordTokenizer
from torch import nn

from . import keymaps
from .checkpoints import (
    ModelError,
    Recipe,
    Weights,
    check,
    fill,
    need_memory,
    open_weights,
    same_names,
    size,
    weight_files,
)
from .drafter import Drafter, DrafterConfig
from .models import T5_PARAMETERS, ModelSpec, Source
from .text import CaptionPrompt, ClassPrompt, TokenPrompt
from .transformer import Transformer, TransformerConfig
from .vq import Tokenizer

FORMAT = "lanternpp/published"


@dataclass(frozen=True)
class Part:
    """Where a part's files are, and the command that fetches them."""

    folder: Path
    source: Source
    remedy: str

    @property
    def file(self) -> Path | None:
        """The one file that this part is; None for a folder in transformers' layout."""
        name = self.source.file
        if name is None:
            return None
        beside = self.folder / Path(name).name  # a file that somebody put there without the repository's folders
        return beside if beside.is_file() else self.folder / name

    def config(self, what: str) -> dict:
        """config.json of transformers' layout; empty where the part is a single file or the folder has none."""
        path = self.folder / "config.json"
        if self.file is not None or not path.is_file():
            return {}
        try:
            return dict(json.loads(path.read_text()))
        except (ValueError, TypeError) as error:
            raise ModelError(f"The {what}'s config.json cannot be read ({type(error).__name__}): {self.remedy}."
                             ) from error


def snapshot(source: Source, local: bool = False) -> Path:
    """The hub's folder of a source, downloaded if need be; local: from the cache alone. ModelError says what to run."""
    from huggingface_hub import errors, snapshot_download

    run = f"run `{source.command()}`"
    try:
        return Path(snapshot_download(source.repo, allow_patterns=list(source.files), local_files_only=local))
    except errors.GatedRepoError as error:
        raise ModelError(f"{source.repo} is gated: accept its licence on its page, log in with `hf auth login`, then "
                         f"{run}.") from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(f"{source.repo} is not on the hub, or is private: log in with `hf auth login`, then {run}."
                         ) from error
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled) as error:
        raise ModelError(f"{source.repo} is not on this machine and the hub cannot be reached: {run} where there is a "
                         "network.") from error
    except Exception as error:  # HTTP, disk, proxy: many kinds
        raise ModelError(f"The download of {source.repo} was interrupted ({type(error).__name__}): {run}, which "
                         "goes on where it stopped.") from error


def cached(source: Source) -> Part | None:
    """The part where the hub's cache has all of its files."""
    try:
        part = Part(snapshot(source, local=True), source, f"fetch it with `{source.command()}`")
        files = [part.file] if part.file is not None else weight_files(part.folder, source.repo, part.remedy)
    except ModelError:
        return None
    return part if all(path.is_file() for path in files) else None


def missing(spec: ModelSpec) -> list[str]:
    """The commands that fetch what the hub's cache lacks of a model; none where it is all there."""
    groups = (spec.targets, (spec.tokenizer,), (spec.text,), (spec.drafters,))
    return [group[0].command() for group in groups if group[0] and not any(map(cached, group))]


def locate(name: str, sources: tuple[Source, ...], root: Path | None) -> Part:
    """Part `name`: root/name, else the first source that the hub's cache has, else a download of the first."""
    folder = root / name if root is not None else None
    if folder is not None and folder.is_dir():
        parts = [Part(folder, source, f"fetch it with `{source.command(folder)}`") for source in sources]
        return next((part for part in parts if part.file is not None and part.file.is_file()),
                    next((part for part in parts if part.file is None), parts[0]))
    for source in sources:
        if part := cached(source):
            return part
    return Part(snapshot(sources[0]), sources[0], f"fetch it with `{sources[0].command()}`")


def target_config(spec: ModelSpec, part: Part) -> TransformerConfig:
    """The spec's shape with what the checkpoint's config.json says, which must not contradict the spec's grid."""
    shape, said = spec.target, part.config("target")
    renamed = {"hidden_size": "width", "num_hidden_layers": "layers", "num_attention_heads": "heads",
               "intermediate_size": "hidden", "rms_norm_eps": "norm_eps", "rope_theta": "rope_base",
               "rope_base": "rope_base", "caption_dim": "condition",
               "vocab_size": "condition" if shape.prefix_kind == "tokens" else "codes"}
    said |= said.get("rope_parameters") or {}
    shape = replace(shape, **{ours: said[theirs] for theirs, ours in renamed.items() if said.get(theirs) is not None})
    tokens = said.get("block_size", shape.grid**2)
    if tokens != shape.grid**2:
        raise ModelError(f"The target's config.json says {tokens} tokens a picture, and {spec.name} paints "
                         f"{shape.grid}×{shape.grid}: its pictures would look enlarged, so load the model that it "
                         "belongs to.")
    for name, only in (("num_key_value_heads", shape.heads), ("swin_norm", False), ("attention_bias", False)):
        if said.get(name, only) not in (only, None):
            raise ModelError(f"The target's config.json has {name} = {said[name]}, and only {only} is read here: "
                             f"{part.remedy}.")
    return shape


def drafter_config(spec: ModelSpec, part: Part) -> DrafterConfig:
    """The spec's drafter with what its config.json says: layers, heads, epsilon, bias; never the grid."""
    said = part.config("drafter")
    if spec.drafter_input and said.get("input_type", spec.drafter_input) != spec.drafter_input:
        raise ModelError(f"The drafter's config.json says input_type {said['input_type']!r}, and {spec.name} needs "
                         f"{spec.drafter_input!r}: it was trained for another grid, so {part.remedy}.")
    renamed = {"num_hidden_layers": "layers", "num_attention_heads": "heads", "intermediate_size": "hidden",
               "rms_norm_eps": "norm_eps", "bias": "bias"}
    return replace(spec.drafter or DrafterConfig(),
                   **{ours: said[name] for name, ours in renamed.items() if said.get(name) is not None})


def read_spec(spec: ModelSpec, changes: Mapping[str, Mapping]) -> ModelSpec:
    """The spec with parts of another shape, for a model made like a published one.

    changes: {"target": {…}, "drafter": {…}, "tokenizer": {…}}, fields of TransformerConfig, DrafterConfig and VQConfig.
    """
    return replace(spec, target=replace(spec.target, **changes.get("target", {})),
                   drafter=spec.drafter and replace(spec.drafter, **changes.get("drafter", {})),
                   vq=replace(spec.vq, **changes.get("tokenizer", {})))


@dataclass(frozen=True)
class Job:
    """A module on the meta device and all that fills it."""

    module: nn.Module
    recipe: Recipe
    weights: Weights
    dtype: torch.dtype
    ignored: Callable[[str], bool]


def modules(spec: ModelSpec, target: TransformerConfig, drafter: DrafterConfig | None) -> dict[str, nn.Module]:
    """The parts that hold weights of this project's networks, without memory for them (on the meta device)."""
    with torch.device("meta"):
        parts: dict[str, nn.Module] = {"target": Transformer(target), "tokenizer": Tokenizer(spec.vq)}
        return parts | ({"drafter": Drafter(drafter, target)} if drafter else {})


def recipe(spec: ModelSpec, name: str, parts: Mapping[str, nn.Module], keys: Collection[str]
           ) -> tuple[Recipe, Callable[[str], bool]]:
    """How part `name` is made of published tensors called `keys`, and which of those are ignored."""
    tokens = spec.target.prefix_kind == "tokens"
    book = (keymaps.chameleon_vq if tokens else keymaps.llamagen_vq)(parts["tokenizer"])
    if name == "tokenizer":
        return book, keymaps.vq_ignored
    if name == "drafter":
        if "fuse.weight" in keys:  # trained with this project's command, in its own names
            return same_names(parts[name]), lambda key: False
        made = keymaps.chameleon_drafter(parts[name], parts["target"]) if tokens else keymaps.drafter(parts[name])
        return made, lambda key: False
    if tokens:
        return keymaps.chameleon(parts[name]), keymaps.chameleon_ignored(p.key for made in book.values() for p in made)
    return keymaps.llamagen(parts[name], keys), keymaps.llamagen_ignored


def plan(spec: ModelSpec, found: Mapping[str, Part], dtype: torch.dtype) -> dict[str, Job]:
    """Open the files of target, tokenizer and drafter and check every name and shape in them; reads no weights."""
    drafter = drafter_config(spec, found["drafter"]) if "drafter" in found else None
    shape = target_config(spec, found["target"])
    if spec.vq.codes != shape.codes - (shape.row_end is not None):
        raise ModelError(f"The target's config.json says {shape.codes} codes where the tokenizer has {spec.vq.codes}: "
                         f"they do not belong together, so {found['target'].remedy}.")
    parts = modules(spec, shape, drafter)
    jobs = {}
    for name, module in parts.items():
        weights = _open(spec, name, found[name])
        made, ignored = recipe(spec, name, parts, weights.shapes)
        check(made, weights, ignored)
        jobs[name] = Job(module, made, weights, torch.float32 if name == "tokenizer" else dtype, ignored)
    return jobs


def _open(spec: ModelSpec, name: str, part: Part) -> Weights:
    what = f"{spec.name} {name}"
    if part.file is not None and part.file.is_file():
        return open_weights([part.file], what, part.remedy)
    others = sorted(path.name for path in part.folder.glob("*.pt"))
    if others:
        raise ModelError(f"The folder {part.folder} holds {others[0]}, which is not the {name} of {spec.name}, whose "
                         f"picture of {spec.target.grid}×{spec.target.grid} codes belongs to its own file: "
                         f"{part.remedy}.")
    if part.file is not None:
        raise ModelError(f"The {what} weights lack the file {part.file.name}, perhaps after an interrupted download: "
                         f"{part.remedy}.")
    return open_weights(weight_files(part.folder, what, part.remedy), what, part.remedy)


def working_memory(spec: ModelSpec, shape: TransformerConfig, dtype: torch.dtype, pictures: int = 1) -> int:
    """Bytes, about, of caches and noise while decoding with guidance and a tree of 127 nodes, then of pixels."""
    slots = shape.prefix + shape.image_tokens + 160
    cache = 2 * (shape.layers + 1) * 2 * slots * shape.width * dtype.itemsize
    side = shape.grid * spec.vq.pixels_per_code
    pixels = 5 * 4 * side**2 * spec.vq.block_out_channels[0]  # five float32 maps at full size in the widest block
    return pictures * (cache + 8 * shape.image_tokens * shape.codes) + pixels


def memory(spec: ModelSpec, dtype: torch.dtype = torch.bfloat16) -> dict[str, int]:
    """Bytes that a model needs, by part: target, drafter, tokenizer, text, working. Needs no files."""
    sizes = {name: size(part, torch.float32 if name == "tokenizer" else dtype)
             for name, part in modules(spec, spec.target, spec.drafter).items()}
    text = {"text": T5_PARAMETERS * dtype.itemsize} if spec.text else {}
    return sizes | text | {"working": working_memory(spec, spec.target, dtype)}


def text_size(folder: Path, dtype: torch.dtype, remedy: str) -> int:
    """Bytes of a T5 encoder, from its configuration."""
    from transformers import AutoConfig, T5EncoderModel

    try:
        config = AutoConfig.from_pretrained(folder)
        with torch.device("meta"):
            return size(T5EncoderModel(config), dtype)
    except Exception as error:  # no such file, not JSON, not a T5
        raise ModelError(f"The text encoder's config.json in {folder} cannot be read ({type(error).__name__}): "
                         f"{remedy}.") from error


def load(spec: ModelSpec, dtype: torch.dtype, device: torch.device, root: Path | None = None,
         text_device: torch.device | None = None, drafter: bool = True,
         progress: Callable[[int, int], None] | None = None) -> dict[str, object]:
    """target, drafter (None if there is none), tokenizer and text of a published model.

    Weights go to the device one by one, the text encoder to text_device. Every part is found and checked, and so is
    free memory, before any is read. progress(done, total): bytes of weights. ModelError, one sentence.
    """
    found = {"target": locate("target", spec.targets, root), "tokenizer": locate("tokenizer", (spec.tokenizer,), root)}
    if spec.text:
        found["text"] = locate("text", (spec.text,), root)
    if drafter and spec.drafters:
        found["drafter"] = locate("drafter", (spec.drafters,), root)
    elif drafter and root is not None and (root / "drafter").is_dir():
        found["drafter"] = Part(root / "drafter", Source(spec.name),
                                "train it again with `python -m lanternpp train drafter`")
    jobs = plan(spec, found, dtype)
    shape = jobs["target"].module.config
    text_device = text_device or device
    needed = {device: sum(size(job.module, job.dtype) for job in jobs.values()) + working_memory(spec, shape, dtype)}
    if spec.text:
        needed[text_device] = needed.get(text_device, 0) + text_size(found["text"].folder, dtype, found["text"].remedy)
    for place, count in needed.items():
        need_memory(spec.title, count, place)
    loaded: dict[str, object] = {"drafter": None, "text": _prompt(spec, found, shape, dtype, text_device)}
    total, done = sum(size(job.module, job.dtype) for job in jobs.values()), 0

    def told(count: int) -> None:
        nonlocal done
        done += count
        if progress:
            progress(done, total)

    for name, job in jobs.items():
        loaded[name] = fill(job.module, job.recipe, job.weights, job.dtype, device, job.ignored, told
                            ).requires_grad_(False)
    return loaded


def _prompt(spec: ModelSpec, found: Mapping[str, Part], shape: TransformerConfig, dtype: torch.dtype,
            device: torch.device) -> CaptionPrompt | ClassPrompt | TokenPrompt:
    if spec.prompt == "class":
        return ClassPrompt(shape.condition)
    if spec.prompt == "caption":
        return CaptionPrompt.load(found["text"].folder, shape, dtype, device, found["text"].remedy)
    places = [found["target"].folder / "tokenizer.json", found["tokenizer"].folder / "text_tokenizer.json"]
    path = next((place for place in places if place.is_file()), places[0])
    try:
        words = WordTokenizer.from_file(str(path))
    except Exception as error:  # the tokenizers library raises plain Exception
        raise ModelError(f"The text tokenizer {path} cannot be read: {found['target'].remedy}.") from error
    return TokenPrompt(words, shape, spec.template, spec.suffix)
