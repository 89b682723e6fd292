"""Models by name or folder: this project's own (sharded safetensors and one config.json), and the published ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as WordTokenizer
from torch import Tensor, nn

from . import published
from .checkpoints import ModelError, fill, open_weights, same_names
from .drafter import Drafter, DrafterConfig
from .models import MODELS, ModelSpec
from .text import WordPrompt
from .transformer import Transformer, TransformerConfig
from .vq import CODEBOOK, Tokenizer, VQConfig

FORMAT = "lanternpp/1"
BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "emoji"
SHARD_BYTES = 9_500_000  # hosts such as Spaces refuse plain files over 10 MB


@dataclass
class Bundle:
    """Everything a pipeline needs."""

    name: str
    target: Transformer
    drafter: Drafter | None
    tokenizer: Tokenizer
    words: WordTokenizer | None  # of an own model
    defaults: dict = field(default_factory=dict)
    text: Callable[[str], tuple[Tensor, Tensor | None]] | None = None  # see text.py

    def __post_init__(self):
        if self.text is None:
            self.text = WordPrompt(self.words, self.target.config.prefix)


def cast(module: nn.Module, dtype: torch.dtype, device: torch.device | str = "cpu") -> nn.Module:
    """Move to a device with floating parameters in dtype; frozen and in evaluation mode."""
    return module.to(device=device, dtype=dtype).eval().requires_grad_(False)


def save_sharded(state: Mapping[str, Tensor], folder: Path, stem: str) -> None:
    """Write stem-00001.safetensors, … each under SHARD_BYTES unless one tensor alone is larger."""
    shards: list[dict[str, Tensor]] = [{}]
    size = 0
    for key, value in state.items():
        length = value.numel() * value.element_size()
        if shards[-1] and size + length > SHARD_BYTES:
            shards.append({})
            size = 0
        shards[-1][key] = value.contiguous()
        size += length
    names = [folder / f"{stem}-{number:05d}.safetensors" for number in range(1, len(shards) + 1)]
    for name, shard in zip(names, shards, strict=True):
        save_file(shard, name.with_suffix(".new"))
    for old in folder.glob(f"{stem}-*.safetensors"):
        old.unlink()
    for name in names:
        name.with_suffix(".new").replace(name)


def save_bundle(bundle: Bundle, folder: str | Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a folder that load_bundle reads, every file under 10 MB for the bundled model; ModelError if not an own."""
    if bundle.words is None:
        raise ModelError(f"{bundle.name} is a published model, which is kept as it was published: use its own files.")
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)

    def stored(module: nn.Module, kind: torch.dtype) -> dict[str, Tensor]:
        return {k: v.to(torch.float32 if k.endswith(CODEBOOK) else kind) if v.is_floating_point() else v
                for k, v in module.state_dict().items()}

    config = {"format": FORMAT, "name": bundle.name, "target": asdict(bundle.target.config),
              "drafter": asdict(bundle.drafter.config) if bundle.drafter else None,
              "tokenizer": asdict(bundle.tokenizer.config), "defaults": bundle.defaults}
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    save_sharded(stored(bundle.target, dtype), folder, "target")
    if bundle.drafter:
        save_sharded(stored(bundle.drafter, dtype), folder, "drafter")
    save_sharded(stored(bundle.tokenizer, torch.float16), folder, "tokenizer")
    bundle.words.save(str(folder / "captions.json"), pretty=False)


def published_spec(where: str | Path) -> tuple[ModelSpec, Path | None, dict] | None:
    """Spec, folder and config of a published model's name, hub id or folder; None for other folders.

    ModelError if the folder's config names no model or does not fit one.
    """
    for spec in MODELS.values():
        chosen = [source for source in spec.targets if source.file is None and source.repo == str(where)]
        if chosen or spec.name == str(where):
            return replace(spec, targets=tuple(chosen) or spec.targets), None, {}
    folder = Path(where)
    if not (folder / "config.json").exists():
        return None
    try:
        config = dict(json.loads((folder / "config.json").read_text()))
    except Exception as error:
        raise ModelError(_unreadable(folder, error)) from error
    if config.get("format") != published.FORMAT:
        return None
    if config.get("model") not in MODELS:
        raise ModelError(f"The config.json in {folder} names the model {config.get('model')!r}: use one of "
                         f"{', '.join(MODELS)}.")
    try:
        return published.read_spec(MODELS[config["model"]], config), folder, config
    except (TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"The config.json in {folder} cannot be used: {error}.") from error


def load_bundle(where: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu",
                text_device: torch.device | str | None = None, drafter: bool = True,
                progress: Callable[[int, int], None] | None = None) -> Bundle:
    """A model by its name in MODELS, by its target's name on the hub, or from a folder; ModelError, one sentence.

    A folder is one of save_bundle's, or holds a config.json such as {"format": "lanternpp/published", "model":
    "llamagen-t2i-256"} and any of the folders target, text, tokenizer and drafter. text_device keeps a published text
    encoder elsewhere than the rest, such as in main memory; drafter=False leaves the drafter out; progress(done, total)
    is told the bytes of a published model's weights as they are read.
    """
    device, text_device = torch.device(device), torch.device(text_device or device)
    if found := published_spec(where):
        spec, root, config = found
        parts = published.load(spec, dtype, device, root, text_device, drafter, progress)
        return Bundle(config.get("name", spec.title), words=None, **parts,
                      defaults={**spec.defaults, **config.get("defaults", {})})
    folder = Path(where)
    if not (folder / "config.json").exists():
        raise ModelError(f"There is no model in {folder}: give a folder with a config.json made by save_pretrained, or "
                         f"one of the {len(MODELS)} published models' names, such as {next(iter(MODELS))}.")
    try:
        config = dict(json.loads((folder / "config.json").read_text()))
    except Exception as error:
        raise ModelError(_unreadable(folder, error)) from error
    return _load_own(folder, config, dtype, device)


def _unreadable(folder: Path, error: Exception) -> str:
    return (f"The model's description in {folder.name} cannot be read ({type(error).__name__}): restore config.json "
            "and captions.json, for example with `git checkout -- assets`.")


def _load_own(folder: Path, config: dict, dtype: torch.dtype, device: torch.device) -> Bundle:
    if config.get("format") != FORMAT:
        raise ModelError(f"The model in {folder.name} has format {config.get('format')!r}; {FORMAT!r} and "
                         f"{published.FORMAT!r} are read here.")
    try:
        shape = TransformerConfig(**config["target"])
        drafter_shape = DrafterConfig(**config["drafter"]) if config["drafter"] else None
        vq_shape = VQConfig(**config["tokenizer"])
        words = WordTokenizer.from_file(str(folder / "captions.json"))
    except Exception as error:
        raise ModelError(_unreadable(folder, error)) from error
    with torch.device("meta"):
        parts: dict[str, nn.Module | None] = {"target": Transformer(shape), "tokenizer": Tokenizer(vq_shape),
                                              "drafter": Drafter(drafter_shape, shape) if drafter_shape else None}
    for stem, module in parts.items():
        if module is not None:
            fill_own(module, folder, stem, torch.float32 if stem == "tokenizer" else dtype, device)
    return Bundle(config["name"], parts["target"], parts["drafter"], parts["tokenizer"], words, config["defaults"])


def fill_own(module: nn.Module, folder: Path, stem: str,
             dtype: torch.dtype | Callable[[str], torch.dtype] = torch.float32,
             device: torch.device | str = "cpu") -> nn.Module:
    """Fill a module from a folder's {stem}-*.safetensors, strictly, and freeze it. dtype as in checkpoints.fill."""
    remedy = "restore the files, for example with `git checkout -- assets`"
    paths = sorted(folder.glob(f"{stem}-*.safetensors"))
    if not paths:
        raise ModelError(f"The folder {folder.name} has no {stem} weights, {stem}-*.safetensors: {remedy}.")
    return fill(module, same_names(module), open_weights(paths, stem, remedy), dtype, device).requires_grad_(False)


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer alone of a folder of save_bundle, float32 on the CPU: all that the codebook's view needs.

    ModelError as in load_bundle.
    """
    folder = Path(folder)
    try:
        shape = VQConfig(**json.loads((folder / "config.json").read_text())["tokenizer"])
    except Exception as error:
        raise ModelError(_unreadable(folder, error)) from error
    with torch.device("meta"):
        tokenizer = Tokenizer(shape)
    return fill_own(tokenizer, folder, "tokenizer")


def fingerprint(network: Transformer | Drafter) -> str:
    """A short text that other weights or another dtype change, and another number of threads does not."""
    parts = [weight for name, weight in network.named_parameters() if name.startswith(("head.", "norm.", "fuse."))
             or "mlp_norm" in name]
    sums = [f"{total.item():.9g}" for part in parts for total in (part.double().sum(), part.double().square().sum())]
    return " ".join([*sums, str(parts[0].dtype)])
