"""From logits to distributions, and the noise that turns a distribution into tokens without a host sync."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Sampling:
    """cfg_scale 1 is no guidance; temperature 0 is greedy; top_k 0 and top_p 1 switch those filters off."""

    cfg_scale: float = 3.0
    temperature: float = 1.0
    top_k: int = 1000
    top_p: float = 1.0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0


def guide(logits: Tensor, scale: float) -> Tensor:
    """Classifier-free guidance: logits (2, T, V) of [conditional; unconditional] rows to float32 u + s(c − u) (T, V).

    A batch of one row (no guidance) is returned as it is, in float32.
    """
    logits = logits.float()
    if logits.shape[0] == 1:
        return logits[0]
    conditional, unconditional = logits[0], logits[1]
    return unconditional + scale * (conditional - unconditional)


def distribution(logits: Tensor, sampling: Sampling, banned: Tensor | None = None) -> Tensor:
    """Guided float32 logits (T, V) to probabilities (T, V): temperature, then top-k, then top-p.

    banned (V,) bool marks codes that never occur. Greedy decoding reads the untruncated softmax at temperature 1.
    """
    if banned is not None:
        logits = logits.masked_fill(banned, float("-inf"))
    if sampling.greedy:
        return logits.softmax(-1)
    logits = logits / sampling.temperature
    codes = logits.shape[-1]
    if 0 < sampling.top_k < codes:
        least = logits.topk(sampling.top_k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        logits = logits.masked_fill(logits < least, float("-inf"))
    p = logits.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        # A code stays while the mass before it is below top_p, so the most probable one always does.
        kept = ordered * ((ordered.cumsum(-1) - ordered) < sampling.top_p)
        p = torch.zeros_like(p).scatter_(-1, order, kept)
        p = p / p.sum(-1, keepdim=True)
    return p


def draw_ranked(weights: Tensor, noise: Tensor, count: int) -> Tensor:
    """Draw `count` codes without replacement, in draw order: (…, V) weights and exponential noise -> (…, count).

    The exponential race: the code with the greatest weight/noise is a draw from the weights, the next one a draw from
    what remains, and so on. Codes of weight 0 come last.
    """
    return (weights / noise).topk(count, dim=-1).indices


class Noise(nn.Module):
    """All randomness of a run, in three independent streams, each a function of (seed, position[, rank]) alone.

    draft (L, V) and target (L, V): exponential noise for drafted tokens, and for AR, bonus and recovered tokens.
    uniform (L, K): numbers in (0, 1] that judge the child of each rank. Sharing one stream between drafts and
    recovered tokens would bias the output. Filled on the CPU, so that every device draws the same.
    """

    def __init__(self, positions: int, codes: int, children: int, device: torch.device | None = None):
        super().__init__()
        children = max(1, children)
        for name, shape in (("draft", (positions, codes)), ("target", (positions, codes)),
                            ("uniform", (positions, children))):
            self.register_buffer(name, torch.ones(shape, device=device), persistent=False)

    def refill(self, seed: int) -> None:
        """Refill all streams in place for a seed in 0 … 2^63−1."""
        for stream, buffer in enumerate((self.draft, self.target, self.uniform)):
            state = np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1, np.uint64)[0]
            generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
            if stream == 2:  # 127 numbers a position whatever the tree, so that they do not depend on its width
                width = max(128, buffer.shape[1])
                open_ended = torch.rand(buffer.shape[0], width, generator=generator)[:, : buffer.shape[1]]
                buffer.copy_(1 - open_ended)
            else:  # float64, because ties of the smallest numbers would decide races
                uniform = torch.rand(buffer.shape, generator=generator, dtype=torch.float64)
                buffer.copy_(torch.log1p(-uniform).neg_().clamp_(min=1e-30))
