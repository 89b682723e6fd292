"""Train the bundled model's target: captions to picture tokens. Resumable; depth grows by inserting copied layers.

    python -m lanternpp train prior --data DIR --out DIR --minutes 60 --layers 16
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..hub import ModelError
from ..transformer import Transformer, TransformerConfig
from . import data, loop

Encode = Callable[[Tensor], Tensor]
SMALL = TransformerConfig(codes=4096, width=320, layers=8, heads=5, hidden=896, grid=16, prefix=16, prefix_kind="words",
                          condition=2048, prefix_rotation="identity", pooled=True)


def caption_ids(tokenizer, captions: list[str], prefix: int) -> Tensor:
    """Captions to word ids (B, P), cut to P and left-padded with 0."""
    rows = [t.ids[:prefix] for t in tokenizer.encode_batch(captions)]
    return torch.tensor([[0] * (prefix - len(ids)) + ids for ids in rows])


class CodePool:
    """Token grids of several augmented views of each picture, a few of them renewed at every step."""

    def __init__(self, pictures: data.Pictures, encode: Encode, views: int, rng: np.random.Generator):
        self.pictures, self.encode, self.rng = pictures, encode, rng
        self.codes: Tensor | None = None
        self.backgrounds = np.empty((len(pictures.records), views), dtype=object)
        for view in range(views):
            for first in range(0, len(pictures.records), 32):
                self.renew(np.arange(first, min(first + 32, len(pictures.records))), view)

    def renew(self, index: np.ndarray, view: int) -> None:
        names = self.rng.choice(list(data.BACKGROUNDS), len(index))
        rgb = np.stack([data.composite(self.pictures.rgba[i], self.rng, n) for i, n in zip(index, names, strict=True)])
        codes = self.encode(torch.from_numpy(rgb).permute(0, 3, 1, 2).float() / 127.5 - 1)
        if self.codes is None:
            self.codes = torch.zeros((*self.backgrounds.shape, codes.shape[1]), dtype=torch.int16)
        self.codes[index, view] = codes.to(torch.int16)
        self.backgrounds[index, view] = names

    def batch(self, size: int, words) -> tuple[list[str], Tensor]:
        """Captions and codes (B, L) int64 of random pictures and views."""
        index = self.rng.integers(0, len(self.pictures.records), size)
        view = self.rng.integers(0, self.backgrounds.shape[1], size)
        captions = [data.caption(self.pictures.records[i], self.backgrounds[i, v], self.rng)
                    for i, v in zip(index, view, strict=True)]
        return captions, self.codes[index, view].long()


def logits_of(model: Transformer, words: Tensor, codes: Tensor, drop: Tensor | None = None,
              keep: Tensor | None = None) -> Tensor:
    """Logits (B, L, V) after the codes (B, L) that a row is shown.

    Captions of rows where drop (B,) is true are replaced by the null caption; tokens where keep (B, L−1) is false are
    hidden from the tokens after them.
    """
    rows = model.prefix(words)
    if drop is not None:
        rows = torch.where(drop[:, None, None], model.prefix.unconditional(len(words)).to(rows.dtype), rows)
    tokens = model.embed(codes[:, :-1], None)
    if keep is not None:
        tokens = tokens * keep.unsqueeze(-1)
    shift = model.caption_shift(rows)
    x = torch.cat([rows, (tokens if shift is None else tokens + shift).to(rows.dtype)], dim=1)
    hidden = model(x, torch.arange(x.shape[1], device=x.device))
    return model.head(hidden[:, model.config.prefix - 1:])


def hidden_tokens(rows: int, count: int) -> Tensor:
    """Which tokens stay visible (rows, count): nearly all in most rows, few in some.

    Neighbouring tokens tell so much that a model learns late to look at the caption; where they are hidden it must.
    """
    share = torch.where(torch.rand(rows) < 0.15, torch.rand(rows), 0.97)
    return torch.rand(rows, count) < share.unsqueeze(1)


def astray(codes: Tensor) -> Tensor:
    """Codes (B, L) as one sees them who has erred: some are another picture's, singly or in patches of 4 × 4.

    A model that was only ever shown true codes knows the picture by them, and goes on with a wrong one once a draw was
    wrong. Here only the caption tells which picture is meant.
    """
    rows, count = codes.shape
    grid = math.isqrt(count)
    share = 0.6 * torch.rand(rows, 1, 1).square()
    patches = torch.rand(rows, -(-grid // 4), -(-grid // 4)).repeat_interleave(4, 1).repeat_interleave(4, 2)
    chance = torch.where(torch.rand(rows, 1, 1) < 0.5, torch.rand(rows, grid, grid), patches[:, :grid, :grid])
    return torch.where((chance < share).flatten(1), codes.roll(1, 0), codes)


def grow(state: dict[str, Tensor], layers: int) -> dict[str, Tensor]:
    """Insert copies of layers so that the function is unchanged: a copy's two output matrices start at zero."""
    old = 1 + max(int(re.match(r"blocks\.(\d+)", k)[1]) for k in state if k.startswith("blocks."))
    grown = {k: v for k, v in state.items() if not k.startswith("blocks.")}
    seen: set[int] = set()
    for new in range(layers):
        source = new * old // layers
        for key, value in state.items():
            if key.startswith(f"blocks.{source}."):
                name = key.split(".", 2)[2]
                copied = source in seen and name in ("out.weight", "down.weight")
                grown[f"blocks.{new}.{name}"] = torch.zeros_like(value) if copied else value.clone()
        seen.add(source)
    return grown


@torch.no_grad()
def held_out_loss(model: Transformer, pool: CodePool, words, batches: int = 4) -> float:
    pool.rng = np.random.default_rng(1)
    total = 0.0
    for _ in range(batches):
        captions, codes = pool.batch(16, words)
        with loop.autocast(codes.device):
            logits = logits_of(model, caption_ids(words, captions, model.config.prefix), codes)
        total += F.cross_entropy(logits.float().flatten(0, 1), codes.flatten()).item()
    return total / batches


def train(encode: Encode, words, pictures: data.Pictures, out: Path, minutes: float, layers: int, decay: float,
          batch: int = 16, views: int = 8, init: dict[str, Tensor] | None = None, rate: float = 1.0, seed: int = 0,
          save_every: float = 4.0) -> Transformer:
    """Train for `minutes` in all (resumed time included) and leave out/prior.pt; a deeper `layers` grows the model."""
    torch.manual_seed(seed)
    checkpoint = loop.resume(out / "prior.pt")
    state = checkpoint["model"] if checkpoint else init
    config = replace(SMALL, layers=layers)
    model = Transformer(config)
    if state is None:
        torch.nn.init.normal_(model.token_embedding.weight, std=0.02)
        torch.nn.init.normal_(model.prefix.embedding.weight, std=0.5)
        torch.nn.init.normal_(model.prefix.null, std=0.02)
    else:
        had = 1 + max(int(k.split(".")[1]) for k in state if k.startswith("blocks."))
        if had > layers:
            raise ModelError(f"The weights have {had} layers and --layers {layers} would cut them: ask for {had}.")
        found = model.load_state_dict(grow(state, layers) if had < layers else state, strict=False)
        if found.unexpected_keys or any(not k.startswith("prefix.pool") for k in found.missing_keys):
            raise ModelError(f"The weights do not fit this model: {(found.unexpected_keys + found.missing_keys)[0]!r}.")
    optimizers = loop.Optimizers(model, 1.5e-3 * rate, 7e-4 * rate)
    step, clock = 0, loop.Clock(minutes)
    if checkpoint:
        step, clock = checkpoint["step"], loop.Clock(minutes, checkpoint["minutes"])
        if checkpoint["config"] == asdict(config):
            optimizers.load_state_dict(checkpoint["optimizers"])
    began, last_save, losses = step, clock.spent, []
    # Only the caption can tell the first token, the background's; all later ones could also be copied from before.
    emphasis = torch.ones(config.image_tokens)
    emphasis[0] = 4.0
    chosen = pictures.select(data.core(pictures))
    train_index, held_index = data.split(chosen)
    pool = CodePool(chosen.select(train_index), encode, views, np.random.default_rng(seed + step))
    held = CodePool(chosen.select(held_index), encode, 4, np.random.default_rng(seed + 1))

    def checkpoint_now() -> None:
        loop.save(out / "prior.pt", model=model.state_dict(), optimizers=optimizers.state_dict(), step=step,
                  minutes=clock.spent, config=asdict(config))

    try:
        while not clock.done:
            captions, codes = pool.batch(batch, words)
            drop = torch.rand(batch) < 0.1
            with loop.autocast(codes.device):
                logits = logits_of(model, caption_ids(words, captions, config.prefix), astray(codes), drop,
                                   hidden_tokens(batch, config.image_tokens - 1))
            each = F.cross_entropy(logits.float().flatten(0, 1), codes.flatten(), reduction="none").view(codes.shape)
            (each * emphasis).mean().backward()
            loss = each.detach().mean()
            loop.clip(model)
            optimizers.step(clock.scale(step - began, decay))
            losses.append(loss.item())
            pool.renew(pool.rng.integers(0, len(train_index), 6), int(pool.rng.integers(views)))
            step += 1
            if step % 50 == 0:
                loop.log(out / "prior.jsonl", step=step, layers=layers, minutes=clock.spent,
                         loss=sum(losses[-50:]) / len(losses[-50:]),
                         **({"held_out": held_out_loss(model, held, words)} if step % 200 == 0 else {}))
            if clock.spent - last_save > save_every:
                last_save = clock.spent
                checkpoint_now()
    finally:
        checkpoint_now()
    return model


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", type=Path, required=True, help="folder made by lanternpp.training.data")
    parser.add_argument("--model", type=Path, default=Path("assets/emoji"), help="folder of the tokenizer and captions")
    parser.add_argument("--out", type=Path, required=True, help="folder for the checkpoint and the loss log")
    parser.add_argument("--minutes", type=float, default=120.0, help="training time in all, resumed time included")
    parser.add_argument("--layers", type=int, default=8, help="depth; more than the checkpoint's grows it")
    parser.add_argument("--decay", type=float, default=0.25, help="last share of the time over which the rate falls")
    parser.add_argument("--rate", type=float, default=1.0, help="factor on the learning rates; below 1 to polish")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", action="store_true", help="start from random weights, not from --model's")
