"""Train the scorer on the pictures and captions of the bundled model. Resumable.

    python -m lanternpp train scorer --data DIR --out DIR --minutes 20

Each picture must find its caption among those of the batch and as many again that describe the same things in another
style on another background, and each caption its picture (InfoNCE both ways, CLIP, arXiv 2103.00020). Captions that
leave things out can be true of several pictures: such pairs count neither for nor against. A share of the pictures has
been through the tokenizer, so that the decoder's softness says nothing about what is shown.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as WordTokenizer
from torch import Tensor

from .. import hub
from ..quality import retrieval
from ..scorer import NAMES, Scorer, ScorerConfig, parts, prompt
from . import data, loop
from .vq import as_images

CORE_SHARE = 0.7  # of a batch; the rest are other emoji, as further things to tell apart
DECODED_SHARE = 0.4  # of a batch
SHIFT = 3  # pixels
Reconstruct = Callable[[Tensor], Tensor]
Fact = tuple[str, str | None, str | None]  # name, style, background


class DecodedPool:
    """Composites that have been through the tokenizer, (n, views, 128, 128, 3) uint8; a few are renewed at a time."""

    def __init__(self, pictures: data.Pictures, reconstruct: Reconstruct, views: int, rng: np.random.Generator):
        self.pictures, self.reconstruct, self.rng = pictures, reconstruct, rng
        self.images = np.zeros((len(pictures.records), views, data.SIZE, data.SIZE, 3), np.uint8)
        self.backgrounds = np.empty(self.images.shape[:2], dtype=object)
        for view in range(views):
            for index in np.array_split(np.arange(len(pictures.records)), -(-len(pictures.records) // 32)):
                self.renew(index, view)

    def renew(self, index: np.ndarray, view: int) -> None:
        names = self.rng.choice(list(data.BACKGROUNDS), len(index))
        shown = [data.composite(self.pictures.rgba[i], self.rng, b, "any") for i, b in zip(index, names, strict=True)]
        self.images[index, view] = as_bytes(self.reconstruct(as_images(shown)))
        self.backgrounds[index, view] = names


def as_bytes(images: Tensor) -> np.ndarray:
    return (images.clamp(-1, 1) + 1).mul(127.5).round().byte().permute(0, 2, 3, 1).numpy()


def reconstructor(bundle: hub.Bundle) -> Reconstruct:
    """Pictures (n, 3, H, W) through the model's tokenizer and back."""

    @torch.inference_mode()
    def reconstruct(images: Tensor) -> Tensor:
        grid = bundle.target.config.grid
        return bundle.tokenizer.decode(bundle.tokenizer.encode(images), (grid, grid))

    return reconstruct


def jittered(picture: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A little more than `composite` does: a shift by whole pixels, which blurs nothing, and a slight change of light.

    Stronger changes of colour would make one background of another.
    """
    padded = np.pad(picture, ((SHIFT, SHIFT), (SHIFT, SHIFT), (0, 0)), mode="edge")
    top, left = rng.integers(0, 2 * SHIFT + 1, 2)
    moved = padded[top:top + data.SIZE, left:left + data.SIZE].astype(np.float32)
    light = rng.uniform(0.96, 1.04) * rng.uniform(0.985, 1.015, 3)
    return np.clip((moved - 128) * rng.uniform(0.95, 1.05) + 128 * light + 0.5, 0, 255).astype(np.uint8)


class Batches:
    """Draws pictures with their true captions and captions of other looks, and says which captions fit which."""

    def __init__(self, pictures: data.Pictures, reconstruct: Reconstruct, rng: np.random.Generator, views: int = 2):
        self.rng, self.core, self.views = rng, pictures.select(data.core(pictures)), views
        self.others = pictures.select(np.array([i for i, r in enumerate(pictures.records)
                                                if data.short_name(r["label"]) not in NAMES]))
        self.pool = DecodedPool(self.core, reconstruct, views, rng)

    def renew(self, count: int) -> None:
        self.pool.renew(self.rng.integers(0, len(self.core.records), count), int(self.rng.integers(self.views)))

    def draw(self, count: int) -> tuple[Tensor, list[str], Tensor]:
        """Images (n, 3, H, W), captions (2n; the first n are true) and which are true of which, (n, 2n)."""
        rng, shown, true, false, facts = self.rng, [], [], [], []
        for _ in range(count):
            if rng.random() < DECODED_SHARE:
                i, view = rng.integers(len(self.core.records)), rng.integers(self.views)
                record, background = self.core.records[i], self.pool.backgrounds[i, view]
                picture = self.pool.images[i, view]
            else:
                known = rng.random() < (CORE_SHARE - DECODED_SHARE) / (1 - DECODED_SHARE)
                source = self.core if known else self.others
                i, background = rng.integers(len(source.records)), str(rng.choice(list(data.BACKGROUNDS)))
                record, picture = source.records[i], data.composite(source.rgba[i], rng, background, "any")
            other = {**record, "style": str(rng.choice(list(data.STYLES)))}
            shown.append(jittered(picture, rng))
            true.append(data.caption(record, background, rng))
            false.append(data.caption(other, str(rng.choice(list(data.BACKGROUNDS))), rng))
            facts.append((data.short_name(record["label"]), record["style"], background))
        return as_images(shown), true + false, fitting(facts, true + false)


def fitting(facts: list[Fact], captions: list[str]) -> Tensor:
    """Which captions (2n) are true of which pictures (n, 2n): same thing, no other style or background said."""
    said = [(facts[i % len(facts)][0], *parts(text)[1:]) for i, text in enumerate(captions)]
    return torch.tensor([[all(b in (None, a) for a, b in zip(fact, each, strict=True)) for each in said]
                         for fact in facts])


def contrastive_loss(model: Scorer, images: Tensor, ids: Tensor, fits: Tensor) -> Tensor:
    """Mean of both directions' cross-entropies; ids (2n, P) and fits (n, 2n) as `Batches.draw` orders captions."""
    count = len(images)
    pictures, texts = model.embed_images(model.image(images)), model.embed_words(ids)
    own = torch.eye(count, len(ids), dtype=torch.bool)
    logits = (pictures @ texts.T * model.log_scale.clamp(max=4.0).exp()).masked_fill(fits & ~own, float("-inf"))
    target = torch.arange(count)
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits[:, :count].T, target)) / 2


class HeldOut:
    """New augmentations of known things, their reconstructions, and things that no style was trained on."""

    def __init__(self, known: data.Pictures, unknown: data.Pictures, reconstruct: Reconstruct):
        self.images, self.prompts, _ = composites(known, np.arange(0, len(known.records), 2), seed=1)
        self.decoded = torch.cat([reconstruct(part) for part in self.images.split(32)])
        self.unknown, _, self.facts = composites(unknown, np.arange(len(unknown.records)), seed=2)

    def measure(self, model: Scorer) -> dict[str, float]:
        """Share of pictures whose prompt is the best of 100; of unknown things, of all of them in the same look."""
        model.eval()
        facts: dict[str, float] = {}
        for name, images in (("known", self.images), ("decoded", self.decoded)):
            similarity, rank = model.alignment(model.image_embeddings(images), self.prompts)
            facts |= {f"{name}_top1": share(rank < 1), f"{name}_top5": share(rank < 5),
                      f"{name}_similarity": float(similarity.mean())}
        names = sorted({name for name, _, _ in self.facts})
        texts = [model.text_embeddings([prompt(n, style, background) for n in names])
                 for _, style, background in self.facts]
        own = torch.tensor([names.index(name) for name, _, _ in self.facts])
        rank = retrieval(model.image_embeddings(self.unknown), torch.stack(texts), own)
        model.train()
        return facts | {"unknown_top1": share(rank < 1), "unknown_top5": share(rank < 5)}


def share(true: Tensor) -> float:
    return float(true.double().mean())


def composites(pictures: data.Pictures, index: np.ndarray, seed: int,
               place: str = "any") -> tuple[Tensor, list[str], list[Fact]]:
    """Augmented pictures (n, 3, H, W) on backgrounds by chance, their prompts in plain form, and what they show."""
    rng = np.random.default_rng(seed)
    backgrounds = [str(b) for b in rng.choice(list(data.BACKGROUNDS), len(index))]
    shown = [data.composite(pictures.rgba[i], rng, b, place) for i, b in zip(index, backgrounds, strict=True)]
    images = as_images(shown)
    facts = [(data.short_name(pictures.records[i]["label"]), pictures.records[i]["style"], b)
             for i, b in zip(index, backgrounds, strict=True)]
    return images, [prompt(*fact) for fact in facts], facts


def divided(pictures: data.Pictures) -> tuple[data.Pictures, data.Pictures]:
    """What is trained on, and the held-out concepts: none of the core's, for the scorer must know all of these."""
    _, held = data.split(pictures)
    held = np.array([i for i in held if data.short_name(pictures.records[i]["label"]) not in NAMES])
    return pictures.select(np.setdiff1d(np.arange(len(pictures.records)), held)), pictures.select(held)


def train(words: WordTokenizer, reconstruct: Reconstruct, pictures: data.Pictures, out: Path, minutes: float,
          batch: int = 192, lr: float = 1.5e-3, decay: float = 0.6, renewed: int = 4, seed: int = 0,
          save_every: float = 2.0) -> Scorer:
    """Train for `minutes` in all (resumed time included) and leave out/scorer.pt and the curve out/scorer.jsonl."""
    torch.manual_seed(seed)
    model = Scorer(ScorerConfig(vocabulary=words.get_vocab_size()), words).train()
    optimizers = loop.Optimizers(model, 0.0, lr, weight_decay=0.05)  # no Muon: it is slow without bfloat16 arithmetic
    checkpoint, step, before = loop.resume(out / "scorer.pt"), 0, 0.0
    if checkpoint:
        if checkpoint["config"] != asdict(model.config):
            raise hub.ModelError(f"{out / 'scorer.pt'} is of another shape of scorer: choose another --out.")
        model.load_state_dict(checkpoint["model"])
        optimizers.load_state_dict(checkpoint["optimizers"])
        step, before = checkpoint["step"], checkpoint["minutes"]
    known, unknown = divided(pictures)
    batches = Batches(known, reconstruct, np.random.default_rng([seed, step]))
    held = HeldOut(batches.core, unknown, reconstruct)
    clock, losses = loop.Clock(minutes, before), []  # what precedes is preparation and not counted
    last_save = clock.spent

    def checkpoint_now() -> None:
        loop.save(out / "scorer.pt", model=model.state_dict(), optimizers=optimizers.state_dict(), step=step,
                  minutes=clock.spent, config=asdict(model.config))

    try:
        while not clock.done:
            images, captions, fits = batches.draw(batch)
            loss = contrastive_loss(model, images, model.word_ids(captions), fits)
            loss.backward()
            loop.clip(model)
            optimizers.step(clock.scale(step, decay))
            losses.append(loss.item())
            batches.renew(renewed)
            step += 1
            if step % 25 == 0:
                loop.log(out / "scorer.jsonl", step=step, minutes=clock.spent, loss=sum(losses[-25:]) / 25,
                         scale=model.log_scale.exp().item(), **(held.measure(model) if step % 100 == 0 else {}))
            if clock.spent - last_save > save_every:
                last_save = clock.spent
                checkpoint_now()
        loop.log(out / "scorer.jsonl", step=step, minutes=clock.spent, **held.measure(model))
        model.eval().calibrate(as_images(list(batches.pool.images.reshape(-1, data.SIZE, data.SIZE, 3))))
    finally:
        checkpoint_now()
    return hub.cast(model, torch.float32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="folder made by lanternpp.training.data")
    parser.add_argument("--model", type=Path, default=hub.BUNDLED, help="folder of the tokenizer and word pieces")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint, the curve and the scorer")
    parser.add_argument("--minutes", type=float, default=20.0, help="training time in all, resumed time included")
    parser.add_argument("--seed", type=int, default=0)
