"""Scoring pictures of published models: CLIP for the prompt's match, Inception for distances, with pinned settings.

CLIP's network and tokenizer come through transformers, Inception's (the original FID weights) through torchmetrics and
torch-fidelity, which are not among the requirements: `pip install torchmetrics torch-fidelity`. Both fetch their
weights when first used. Same interface as scorer.Scorer, as far as evaluate needs it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .checkpoints import ModelError
from .quality import retrieval

CLIP = "openai/clip-vit-base-patch32"  # the one whose scores the papers' tables hold, about 0.32
CLIP_SIDE, CLIP_WORDS = 224, 77
CLIP_MEAN, CLIP_DEVIATION = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
INCEPTION, INCEPTION_LAYER = "inception-v3-compat", "2048"  # as torchmetrics' FrechetInceptionDistance: last pooling
PACKAGES = "pip install torchmetrics torch-fidelity"
CANDIDATES = 100
ABOUT = {"clip": CLIP, "clip_pixels": CLIP_SIDE, "clip_resize": "bicubic, antialiased", "clip_words": CLIP_WORDS,
         "inception": INCEPTION, "inception_layer": INCEPTION_LAYER, "inception_pixels": 299,
         "inception_resize": "bilinear, antialiased", "inception_input": "8 bits a channel"}


class PublishedScorer:
    """clip has get_image_features and get_text_features, as transformers.CLIPModel; words makes its input of texts;
    inception turns pictures (n, 3, H, W) uint8 into features (n, F)."""

    about = ABOUT

    def __init__(self, clip: nn.Module, words: Callable[..., dict[str, Tensor]], inception: nn.Module,
                 device: torch.device | str = "cpu"):
        self.clip, self.inception = (m.to(device).eval().requires_grad_(False) for m in (clip, inception))
        self.words, self.device = words, torch.device(device)

    @classmethod
    def load(cls, device: torch.device | str = "cpu") -> PublishedScorer:
        """Both networks in float32. ModelError, one sentence, where a package is missing or weights cannot be had."""
        inception = _inception()
        return cls(*_clip(), inception, device)

    @torch.inference_mode()
    def look(self, pictures: Tensor, batch: int = 32) -> tuple[Tensor, Tensor]:
        """Pictures (n, 3, H, W), clamped to [-1, 1] -> Inception's features (n, F) and CLIP's unit vectors (n, d),
        float32 on the CPU. ValueError where the shape is another."""
        if pictures.ndim != 4 or pictures.shape[1] != 3:
            raise ValueError(f"Pictures must be a tensor (n, 3, H, W), not of shape {tuple(pictures.shape)}.")
        features, embeddings = [], []
        for part in pictures.split(batch):
            levels = (part.to(self.device).float().clamp(-1, 1) + 1).mul(127.5).round()
            features.append(self.inception(levels.byte()).float().cpu())
            shown = self.clip.get_image_features(pixel_values=clip_input(levels / 255)).pooler_output
            embeddings.append(F.normalize(shown.float(), dim=-1).cpu())
        return torch.cat(features), torch.cat(embeddings)

    @torch.inference_mode()
    def text_embeddings(self, captions: Sequence[str], batch: int = 256) -> Tensor:
        """Captions, cut to 77 word pieces -> unit vectors (n, d), float32 on the CPU."""
        found = []
        for first in range(0, len(captions), batch):
            read = self.words(list(captions[first:first + batch]), padding=True, truncation=True, max_length=CLIP_WORDS,
                              return_tensors="pt")
            said = self.clip.get_text_features(**{k: v.to(self.device) for k, v in read.items()}).pooler_output
            found.append(F.normalize(said.float(), dim=-1).cpu())
        return torch.cat(found)

    def alignment(self, embeddings: Tensor, prompts: list[str], seed: int = 0) -> tuple[Tensor, Tensor]:
        """Image embeddings (n, d) and their prompts -> cosine similarity (n,) and rank (n,) of the own prompt among
        `candidates`: 0 is the best."""
        texts = list(dict.fromkeys(prompts))
        table, rows = self.text_embeddings(texts), candidates(texts, seed)
        own = torch.tensor([texts.index(p) for p in prompts])
        similarity = (embeddings * table[own]).sum(-1)
        return similarity, retrieval(embeddings, table[rows[own]], torch.zeros(len(prompts), dtype=torch.int64))


def clip_input(pictures: Tensor) -> Tensor:
    """Square pictures (n, 3, H, W) in [0, 1] -> CLIP's input (n, 3, 224, 224), as its own preprocessing makes it."""
    resized = F.interpolate(pictures, (CLIP_SIDE, CLIP_SIDE), mode="bicubic", antialias=True).clamp(0, 1)
    mean, deviation = (pictures.new_tensor(x).view(3, 1, 1) for x in (CLIP_MEAN, CLIP_DEVIATION))
    return (resized - mean) / deviation


def candidates(texts: Sequence[str], seed: int = 0) -> Tensor:
    """For each of the distinct texts its own number, first, and those of up to 99 others, drawn by seed and text alone:
    (n, at most 100)."""
    rows = []
    for number, text in enumerate(texts):
        order = np.random.default_rng([seed, zlib.crc32(text.encode())]).permutation(len(texts))
        rows.append([number, *order[order != number][:CANDIDATES - 1].tolist()])
    return torch.tensor(rows)


def _clip() -> tuple[nn.Module, Callable]:
    from transformers import CLIPModel, CLIPTokenizer

    try:
        return CLIPModel.from_pretrained(CLIP, dtype=torch.float32), CLIPTokenizer.from_pretrained(CLIP)
    except (OSError, ValueError) as error:
        raise ModelError(f"CLIP's weights are neither in the hub's cache nor can they be downloaded "
                         f"({type(error).__name__}): run `hf download {CLIP}` where there is a network.") from error


def _inception() -> nn.Module:
    try:
        from torchmetrics.image.fid import NoTrainInceptionV3

        return NoTrainInceptionV3(INCEPTION, [INCEPTION_LAYER])
    except ImportError as error:
        raise ModelError("Scoring a published model's pictures needs the packages torchmetrics and torch-fidelity, and "
                         f"{error.name or 'one of them'} is missing: run `{PACKAGES}`.") from error
    except (OSError, RuntimeError) as error:
        raise ModelError(f"Inception's weights are neither in torch's cache nor can they be downloaded "
                         f"({type(error).__name__}): run the command once where there is a network.") from error
