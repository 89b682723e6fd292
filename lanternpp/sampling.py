"""From logits to distributions, and the noise that turns a distribution into tokens without a host sync."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
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


def guide(logits: Tensor, scale: float, pictures: int = 1) -> Tensor:
    """Classifier-free guidance: logits (2S, T, V), conditional rows first, to float32 u + s(c − u) (S, T, V).

    A batch of S rows has no guidance and is returned as it is, in float32.
    """
    logits = logits.float()
    if logits.shape[0] == pictures:
        return logits
    conditional, unconditional = logits.chunk(2)
    return torch.lerp(unconditional, conditional, scale)


def distribution(logits: Tensor, sampling: Sampling, banned: Tensor | None = None) -> Tensor:
    """Guided float32 logits (…, V) to probabilities (…, V): temperature, then top-k, then top-p.

    banned (V,) bool marks codes that never occur; the logits themselves must be finite. Greedy decoding reads the
    untruncated softmax at temperature 1.
    """
    if banned is not None:
        logits = logits.masked_fill(banned, float("-inf"))
    if sampling.greedy:
        return logits.softmax(-1)
    if sampling.temperature != 1:
        logits = logits / sampling.temperature
    if 0 < sampling.top_k < logits.shape[-1]:
        least = kth_largest(logits, sampling.top_k)
        if banned is None:
            # A softmax does not see the shift, and on a CPU this takes a tenth of a masked fill's time.
            logits = F.threshold(logits - least, -torch.finfo(logits.dtype).tiny, float("-inf"))
        else:  # where fewer than k codes are allowed, least is -inf
            logits = logits.masked_fill(logits < least, float("-inf"))
    p = logits.softmax(-1)
    if sampling.top_p < 1:
        ordered, order = p.sort(dim=-1, descending=True, stable=True)
        # A code stays while the mass before it is below top_p, so the most probable one always does.
        kept = ordered * ((ordered.cumsum(-1) - ordered) < sampling.top_p)
        p = torch.zeros_like(p).scatter_(-1, order, kept)
        p = p / p.sum(-1, keepdim=True)
    return p


def kth_largest(x: Tensor, k: int) -> Tensor:
    """The k-th largest of each row of x (…, V), (…, 1)."""
    place = x.shape[-1] - k
    # numpy's vectorised selection takes a seventh of torch's time. Tensors without values, as in an export, are others.
    if type(x) is Tensor and x.device.type == "cpu" and not torch.compiler.is_compiling():
        return torch.from_numpy(np.partition(x.detach().numpy(), place, axis=-1)[..., place:place + 1])
    return x.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)


def draw_ranked(weights: Tensor, noise: Tensor, count: int) -> Tensor:
    """Draw `count` codes without replacement, in draw order: (…, V) weights and exponential noise -> (…, count).

    The exponential race: the code with the greatest weight/noise is a draw from the weights, the next one a draw from
    what remains, and so on. Codes of weight 0 come last.
    """
    return (weights / noise).topk(count, dim=-1).indices


class Noise(nn.Module):
    """All randomness of a run of S pictures, in three independent streams, each a function of (seed, position[, rank])
    alone.

    draft (S, L, V) and target (S, L, V): exponential noise for drafted tokens, and for AR, bonus and recovered tokens.
    uniform (S, L, K): numbers in (0, 1] that judge the child of each rank. Sharing one stream between drafts and
    recovered tokens would bias the output. Filled on the CPU, so that every device draws the same. children = 0: a run
    that drafts nothing has the target's stream alone.
    """

    def __init__(self, pictures: int, positions: int, codes: int, children: int, device: torch.device | None = None):
        super().__init__()
        sizes = {"target": codes, **({"draft": codes, "uniform": children} if children else {})}
        for name in ("draft", "target", "uniform"):
            shape = (pictures, positions, sizes.get(name, 1))
            self.register_buffer(name, torch.ones(shape, device=device) if name in sizes else None, persistent=False)

    def refill(self, seeds: Sequence[int]) -> None:
        """Refill all streams in place, one seed in 0 … 2^63−1 a picture."""
        for picture, seed in enumerate(seeds):
            for stream, buffer in enumerate((self.draft, self.target, self.uniform)):
                if buffer is None:
                    continue
                state = np.random.SeedSequence(seed, spawn_key=(stream,)).generate_state(1, np.uint64)[0]
                generator = torch.Generator().manual_seed(int(state >> np.uint64(1)))
                rows = buffer[picture]
                if stream == 2:  # 127 numbers a position whatever the tree, so that they do not depend on its width
                    width = max(128, rows.shape[1])
                    rows.copy_(1 - torch.rand(len(rows), width, generator=generator)[:, : rows.shape[1]])
                else:  # float64, because ties of the smallest numbers would decide races
                    uniform = torch.rand(rows.shape, generator=generator, dtype=torch.float64)
                    rows.copy_(uniform.neg_().log1p_().neg_().clamp_(min=1e-30))
