"""The published models: where each part comes from, its shape, and the picture's grid, which belongs to the weights.

Shapes of LlamaGen's two text models are equal, so nothing in their files says that one paints 16×16 codes and the other
32×32; read with the other's grid they give pictures that look enlarged. Hence the grid is part of a ModelSpec.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from .drafter import DrafterConfig
from .transformer import TransformerConfig
from .vq import CHAMELEON_VQ, LLAMAGEN_VQ16, VQConfig


@dataclass(frozen=True)
class Source:
    """Files of a repository on the Hugging Face hub: names, or patterns such as *.json."""

    repo: str
    files: tuple[str, ...] = ("*.json", "*.safetensors", "*.bin")

    @property
    def file(self) -> str | None:
        """The one file that this source is; None for a folder in transformers' layout."""
        return self.files[0] if len(self.files) == 1 else None

    def command(self, folder: Path | None = None) -> str:
        """What fetches it, into the hub's cache or into a folder."""
        words = ["hf", "download", self.repo]
        whole = any("*" in name for name in self.files)
        words += [word for name in self.files for word in (["--include", name] if whole else [name])]
        return shlex.join(words + (["--local-dir", str(folder)] if folder else []))


@dataclass(frozen=True)
class ModelSpec:
    """One published model. `targets` are alternatives, the first is preferred; `text` is None where none is needed.

    prompt: a caption read by T5, an ImageNet class, or a text in Chameleon's vocabulary, put into `template` and
    followed by the ids `suffix`.
    """

    name: str
    title: str
    licence: str
    target: TransformerConfig
    targets: tuple[Source, ...]
    vq: VQConfig
    tokenizer: Source
    prompt: Literal["caption", "class", "tokens"]
    text: Source | None = None
    drafter: DrafterConfig | None = None
    drafters: Source | None = None
    drafter_input: str | None = None  # the drafter's config must name this input_type where it names one
    template: str = "{}"
    suffix: tuple[int, ...] = ()
    defaults: Mapping[str, object] = field(default_factory=dict)


LLAMAGEN = "FoundationVision/LlamaGen"
LLAMAGEN_TEXT = "peizesun/llamagen_t2i"
T5_PARAMETERS = 1_223_527_424  # of its encoder
T5 = Source("google/flan-t5-xl", ("*.json", "*.safetensors", "spiece.model"))
# The decoder of Chameleon's tokenizer is in no transformers-style checkpoint; this is Meta's file as Lumina's authors
# point to it. text_tokenizer.json stands beside it.
CHAMELEON_TOKENIZER = Source("Alpha-VLLM/Chameleon_7B_mGPT", ("original_tokenizers/vqgan.ckpt",))
MIT = "MIT (LlamaGen)"
CHAMELEON = "Chameleon Research License (Meta)"


def _text(name: str, grid: int, stage: str, repo: str, file: str, drafter: str, kind: str) -> ModelSpec:
    shape = TransformerConfig(codes=16384, width=1280, layers=36, heads=20, hidden=3584, grid=grid, prefix=120,
                              prefix_kind="features", condition=2048)
    return ModelSpec(
        name, f"LlamaGen-XL text to image, {stage} ({16 * grid} px)",
        f"{MIT}; converted weights and drafter: {CHAMELEON}", shape,
        (Source(repo), Source(LLAMAGEN_TEXT, (file,))), LLAMAGEN_VQ16,
        Source(LLAMAGEN_TEXT, ("vq_ds16_t2i.pt",)), "caption", T5, DrafterConfig(), Source(drafter), kind,
        defaults={"cfg_scale": 7.5, "top_k": 1000, "tree": "lantern57", "k": 1000})


def _class(size: str, layers: int, heads: int, width: int, hidden: int, grid: int) -> ModelSpec:
    pixels = 16 * grid
    shape = TransformerConfig(codes=16384, width=width, layers=layers, heads=heads, hidden=hidden, grid=grid, prefix=1,
                              prefix_kind="class", condition=1000)
    return ModelSpec(
        f"llamagen-c2i-{size}" + ("" if grid == 24 else f"-{pixels}"),
        f"LlamaGen-{size} of ImageNet classes ({pixels} px)", MIT, shape,
        (Source(LLAMAGEN, (f"c2i_{size}_{pixels}.pt",)),), LLAMAGEN_VQ16,
        Source(LLAMAGEN, ("vq_ds16_c2i.pt",)), "class",
        defaults={"cfg_scale": 4.0, "top_k": 2000, "method": "ar"})  # no drafter is published


_CHAMELEON_7B = TransformerConfig(
    codes=8192, width=4096, layers=32, heads=32, hidden=11008, grid=32, prefix=320, prefix_kind="tokens",
    condition=65536, rotary="line", qk_norm=True, null_prompt=(0, 8197))
_CHAMELEON_DRAFTER = DrafterConfig(attention_norm=True, norm_eps=1e-5, qk_norm=True, masks_padding=True)
_LUMINA_SIDE = 8804 + 24  # height and width, in units of two codes; then rows, each ended by token 8803

_SPECS = (
    _text("llamagen-t2i-256", 16, "stage I", "jadohu/LlamaGen-T2I", "t2i_XL_stage1_256.pt", "jadohu/llamagen_drafter",
          "t2i"),
    _text("llamagen-t2i-512", 32, "stage II", "jadohu/LlamaGen-T2I-2", "t2i_XL_stage2_512.pt",
          "jadohu/llamagen2_drafter", "t2i2"),
    _class("B", 12, 12, 768, 2048, 24), _class("B", 12, 12, 768, 2048, 16),
    _class("L", 24, 16, 1024, 2816, 24), _class("L", 24, 16, 1024, 2816, 16),
    _class("XL", 36, 20, 1280, 3584, 24), _class("XXL", 48, 24, 1536, 4096, 24), _class("3B", 24, 32, 3200, 8704, 24),
    ModelSpec("anole-7b", "Anole 7B (512 px)", CHAMELEON, _CHAMELEON_7B,
              (Source("leloy/Anole-7b-v0.1-hf", ("*.json", "*.safetensors")),), CHAMELEON_VQ, CHAMELEON_TOKENIZER,
              "tokens", None, _CHAMELEON_DRAFTER, Source("jadohu/anole_drafter"), suffix=(8710, 8197),
              defaults={"cfg_scale": 3.0, "temperature": 0.7, "top_p": 0.9, "top_k": 0, "tree": "lantern57",
                        "k": 1000}),
    ModelSpec("lumina-mgpt-7b-768", "Lumina-mGPT 7B (768 px)", CHAMELEON,
              replace(_CHAMELEON_7B, codes=8193, grid=48, row_end=8803, null_prompt=(8197, _LUMINA_SIDE, _LUMINA_SIDE)),
              (Source("Alpha-VLLM/Lumina-mGPT-7B-768", ("*.json", "*.safetensors")),), CHAMELEON_VQ,
              CHAMELEON_TOKENIZER, "tokens", None, _CHAMELEON_DRAFTER, Source("sihwanpark/LANTERN-Lumina-mGPT-7B-768"),
              template="Generate an image of 768x768 according to the following prompt:\n{}",
              suffix=(8710, 8197, _LUMINA_SIDE, _LUMINA_SIDE),
              defaults={"cfg_scale": 4.0, "top_k": 2000, "tree": "lantern57", "k": 10}),
)
MODELS: dict[str, ModelSpec] = {spec.name: spec for spec in _SPECS}
