"""Models on disk: this project's own folders (sharded safetensors and one config.json), and LlamaGen's key names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as WordTokenizer
from torch import Tensor, nn

from .drafter import Drafter, DrafterConfig
from .transformer import Transformer, TransformerConfig
from .vq import CODEBOOK, Tokenizer, VQConfig

FORMAT = "lanternpp/1"
BUNDLED = Path(__file__).resolve().parent.parent / "assets" / "emoji"
SHARD_BYTES = 9_500_000  # hosts such as Spaces refuse plain files over 10 MB


class ModelError(RuntimeError):
    """A model cannot be loaded; the message is one sentence that says why and what to do."""


@dataclass
class Bundle:
    """Everything a pipeline needs."""

    name: str
    target: Transformer
    drafter: Drafter | None
    tokenizer: Tokenizer
    words: WordTokenizer
    defaults: dict = field(default_factory=dict)


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


def load_sharded(folder: Path, stem: str) -> dict[str, Tensor]:
    paths = sorted(folder.glob(f"{stem}-*.safetensors"))
    if not paths:
        raise ModelError(f"The folder {folder.name} has no {stem} weights: restore the files "
                         f"{stem}-*.safetensors, for example with `git checkout -- assets`.")
    state: dict[str, Tensor] = {}
    for path in paths:
        try:
            state |= load_file(path)
        except Exception as error:  # truncated download, LFS pointer, not readable: safetensors raises several kinds
            raise ModelError(f"The weights {path.name} cannot be read ({type(error).__name__}): fetch the file again, "
                             "for example with `git checkout -- assets`.") from error
    return state


def save_bundle(bundle: Bundle, folder: str | Path, dtype: torch.dtype = torch.bfloat16) -> None:
    """Write a folder that load_bundle reads, every file under 10 MB for the bundled model."""
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


def load_bundle(folder: str | Path, dtype: torch.dtype, device: torch.device | str = "cpu") -> Bundle:
    """Read a folder of save_bundle. ModelError names the first thing that is missing or unreadable."""
    folder = Path(folder)
    if not (folder / "config.json").exists():
        raise ModelError(f"There is no model in {folder}: it needs a config.json made by save_pretrained.")
    try:
        config = json.loads((folder / "config.json").read_text())
        if config["format"] != FORMAT:
            raise ModelError(f"The model in {folder.name} has format {config['format']!r}; {FORMAT!r} is read here.")
        shape = TransformerConfig(**config["target"])
        drafter_shape = DrafterConfig(**config["drafter"]) if config["drafter"] else None
        vq_shape = VQConfig(**config["tokenizer"])
        words = WordTokenizer.from_file(str(folder / "captions.json"))
    except ModelError:
        raise
    except Exception as error:
        raise ModelError(f"The model's description in {folder.name} cannot be read ({type(error).__name__}): restore "
                         "config.json and captions.json, for example with `git checkout -- assets`.") from error
    parts: dict[str, nn.Module | None] = {"target": Transformer(shape), "tokenizer": Tokenizer(vq_shape),
                                          "drafter": Drafter(drafter_shape, shape) if drafter_shape else None}
    for stem, module in parts.items():
        if module is not None:
            load_strictly(module, load_sharded(folder, stem), stem)
            cast(module, torch.float32 if stem == "tokenizer" else dtype, device)
    return Bundle(config["name"], parts["target"], parts["drafter"], parts["tokenizer"], words, config["defaults"])


def load_tokenizer(folder: str | Path) -> Tokenizer:
    """The tokenizer alone of a folder of save_bundle, float32 on the CPU: all that the codebook's view needs.

    ModelError as in load_bundle.
    """
    folder = Path(folder)
    try:
        tokenizer = Tokenizer(VQConfig(**json.loads((folder / "config.json").read_text())["tokenizer"]))
    except Exception as error:
        raise ModelError(f"The model's description in {folder.name} cannot be read ({type(error).__name__}): restore "
                         "config.json, for example with `git checkout -- assets`.") from error
    load_strictly(tokenizer, load_sharded(folder, "tokenizer"), "tokenizer")
    return tokenizer.eval().requires_grad_(False)


def load_strictly(module: nn.Module, state: Mapping[str, Tensor], what: str) -> None:
    """load_state_dict with an error that names the first missing, unknown or wrongly shaped key."""
    own = module.state_dict()
    if missing := own.keys() - state.keys():
        raise ModelError(f"The {what} weights lack {sorted(missing)[0]!r}: they are damaged or another model's.")
    if unknown := state.keys() - own.keys():
        raise ModelError(f"The {what} weights hold {sorted(unknown)[0]!r}, which this model has no place for.")
    for key, value in state.items():
        if value.shape != own[key].shape:
            raise ModelError(f"The {what} weight {key!r} has shape {tuple(value.shape)}, not {tuple(own[key].shape)}.")
    module.load_state_dict(state)


# LlamaGen's names, without `.weight`: of FoundationVision's files, and of jadohu/LANTERN's in transformers' style.
_OUTER = {
    "tok_embeddings": "token_embedding", "model.embed_tokens": "token_embedding", "norm": "norm", "model.norm": "norm",
    "output": "head", "lm_head": "head", "cls_embedding.embedding_table": "prefix.embedding",
    "cls_embedding.cap_proj.fc1": "prefix.fc1", "cls_embedding.cap_proj.fc2": "prefix.fc2",
}
_INNER = {
    "attention.wqkv": ("qkv", 0), "attention.wo": ("out", 0), "feed_forward.w1": ("gate_up", 0),
    "feed_forward.w3": ("gate_up", 1), "feed_forward.w2": ("down", 0), "attention_norm": ("attention_norm", 0),
    "ffn_norm": ("mlp_norm", 0), "self_attn.q_proj": ("qkv", 0), "self_attn.k_proj": ("qkv", 1),
    "self_attn.v_proj": ("qkv", 2), "self_attn.o_proj": ("out", 0), "mlp.gate_proj": ("gate_up", 0),
    "mlp.up_proj": ("gate_up", 1), "mlp.down_proj": ("down", 0), "input_layernorm": ("attention_norm", 0),
    "post_attention_layernorm": ("mlp_norm", 0),
}
IGNORED = ("freqs_cis",)  # a table that LlamaGen's files may carry; it is computed here


def llamagen_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """LlamaGen target weights with official or transformers-style keys -> this project's keys.

    Query, key and value rows are stacked as they are (both keep interleaved rotary pairs). ModelError names a key that
    is not known.
    """
    result: dict[str, Tensor] = {}
    pieces: dict[str, dict[int, Tensor]] = {}
    for key, value in state.items():
        if key in IGNORED:
            continue
        name = key.removeprefix("model.") if key.startswith("model.cls_embedding") else key
        if name == "cls_embedding.uncond_embedding":
            result["prefix.null"] = value
            continue
        stem = name.removesuffix(".weight")
        parts = stem.removeprefix("model.").split(".", 2)
        if stem in _OUTER:
            result[f"{_OUTER[stem]}.weight"] = value
        elif parts[0] == "layers" and len(parts) == 3 and parts[1].isdigit() and parts[2] in _INNER:
            own, place = _INNER[parts[2]]
            pieces.setdefault(f"blocks.{parts[1]}.{own}.weight", {})[place] = value
        else:
            raise ModelError(f"The LlamaGen weights hold {key!r}, which is not a key of that model.")
    return result | {k: torch.cat([v[i] for i in sorted(v)]) for k, v in pieces.items()}


def llamagen_drafter_state(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """EAGLE drafter weights of jadohu/LANTERN for LlamaGen -> this project's keys. Its own token embedding is kept."""
    renamed = {k: v for k, v in state.items() if not k.startswith(("fc.", "embed_tokens."))}
    own = llamagen_state(renamed)
    names = {"fc.weight": "fuse.weight", "fc.bias": "fuse.bias", "embed_tokens.weight": "token_embedding.weight"}
    return own | {names[k]: v for k, v in state.items() if k in names}
