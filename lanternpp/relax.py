"""Which codes may stand in for one another, and how much probability a drafted code may borrow from them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

Rule = Literal["exact", "lantern", "lanternpp", "annealed", "coupled", "coupled-relaxed", "eagle2"]
Order = Literal["sequential", "strict-first"]
MAX_NEIGHBOURS = 1000


@dataclass(frozen=True)
class Relaxation:
    """rule `exact`: the strict rule. `lantern`: bound is δ, pooled mass at most δ (arXiv 2410.03355).

    `lanternpp`: bound is λ, pooled mass at most (λ−1)·r(x) (arXiv 2502.06352). `annealed`: λ−1 is multiplied by
    gamma^(depth−1) for a token drafted at that depth. order says which child is taken first (see verify.py).
    k = 0, δ = 0 and λ = 1 are exact. `coupled` and `eagle2` are strict and judged by the target's own draws (see
    coupled.py); `coupled-relaxed` is coupled with the bound λ.
    """

    rule: Rule = "lanternpp"
    k: int = 10
    bound: float = 2.0
    gamma: float = 0.8
    order: Order = "strict-first"

    @property
    def strict(self) -> bool:
        return (self.rule in ("exact", "coupled", "eagle2") or self.k == 0
                or self.bound <= (0 if self.rule == "lantern" else 1))

    @property
    def coupled(self) -> bool:
        """Whether drafts are judged by the target's own draws (coupled.py) and not by ratios (verify.py)."""
        return self.rule in ("coupled", "coupled-relaxed", "eagle2")

    def limit(self, residual: Tensor, depth: Tensor) -> Tensor:
        """The most mass that a token may borrow: residual r(x) (n,) at depths (n,), counted from 1 -> (n,)."""
        if self.rule == "lantern":
            return torch.full_like(residual, self.bound)
        excess = (self.bound - 1) * residual
        return excess * self.gamma ** (depth - 1).to(residual.dtype) if self.rule == "annealed" else excess


def relaxed_mass(residual: Tensor, near: Tensor, limit: Tensor) -> Tensor:
    """m(x) = r(x) + the longest prefix of the neighbours' r whose sum stays within the limit.

    residual (n,), near (n, k) in order of distance, limit (n,). If the first neighbour alone exceeds the limit nothing
    is pooled, though later ones would fit: that is the papers' prefix rule.
    """
    total = near.cumsum(-1)
    pooled = torch.where(total <= limit.unsqueeze(-1), total, 0).amax(-1)
    return residual + pooled


def neighbours_of(codebook: Tensor, codes: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k nearest others of some codes (n,), among rows (V, C) that the decoder uses: codes (n, k) int64 and their
    Euclidean distances (n, k) float64.

    The code itself is left out; equal distances are taken in order of code number.
    """
    rows = codebook.double()
    # Not by matrix product: its rounding would order equal distances at random.
    distance = torch.cdist(rows[codes], rows, compute_mode="donot_use_mm_for_euclid_dist")
    distance[torch.arange(len(codes)), codes] = float("inf")
    near, order = distance.sort(dim=-1, stable=True)
    k = min(k, len(rows) - 1)
    return order[:, :k], near[:, :k]


def nearest_codes(codebook: Tensor, k: int, block: int = 1024) -> Tensor:
    """Each code's k nearest others, as `neighbours_of` orders them: (V, C) rows -> (V, k) int64."""
    return torch.cat([neighbours_of(codebook, codes, k)[0] for codes in torch.arange(len(codebook)).split(block)])


def cached_nearest_codes(codebook: Tensor, folder: str | Path | None, k: int = MAX_NEIGHBOURS) -> Tensor:
    """The table of nearest_codes, read from or written to `folder`; a folder that cannot be written is no error."""
    key = hashlib.sha256(codebook.float().contiguous().cpu().numpy().tobytes()).hexdigest()[:16]
    path = Path(folder) / f"neighbours-{key}-{k}.safetensors" if folder is not None else None
    if path is not None and path.exists():
        try:
            table = load_file(path)["neighbours"].long()
            if table.shape == (len(codebook), min(k, len(codebook) - 1)):
                return table
        except (OSError, KeyError, SafetensorError):  # a half-written cache is made again
            pass
    table = nearest_codes(codebook.cpu(), k)
    if path is not None:
        try:
            save_file({"neighbours": table.to(torch.int32)}, path)
        except (OSError, SafetensorError):
            pass
    return table
