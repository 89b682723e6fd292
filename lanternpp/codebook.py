"""What the codebook looks like, and what a picture becomes when its codes are exchanged: why pooling can work.

Shapes: V codes, C numbers a code, L tokens of a picture.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from .relax import neighbours_of


def principal_plane(codebook: Tensor) -> tuple[Tensor, float]:
    """Every code's first two principal components (V, 2), and the share of the variance that they hold, 0 to 1.

    The components of the covariance (C, C) in float64; of the two signs of each the one whose largest entry is
    positive, so that the map is always the same.
    """
    rows = codebook.double()
    centred = rows - rows.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred)  # ascending
    axes = vectors[:, -2:].flip(1)
    axes = axes * axes.gather(0, axes.abs().argmax(0, keepdim=True)).sign()
    return centred @ axes, float(values[-2:].sum() / values.sum())


def swapped(codebook: Tensor, tokens: Tensor, ranks: list[int]) -> Tensor:
    """Every token exchanged for its j-th nearest code, for each j of `ranks`: tokens (L,) -> (len(ranks), L) int64.

    j = 0 leaves the tokens as they are; a j above V − 1 counts as V − 1.
    """
    kinds, places = tokens.unique(return_inverse=True)
    near, _ = neighbours_of(codebook, kinds, max(1, *ranks))
    table = torch.cat([kinds.unsqueeze(1), near], dim=1)
    return torch.stack([table[:, min(j, table.shape[1] - 1)][places] for j in ranks])


def psnr(picture: Image.Image, other: Image.Image) -> float:
    """Peak signal-to-noise ratio of two 8-bit RGB pictures of one size, in decibels; infinite where they are equal."""
    first, second = (np.asarray(each, dtype=np.float64) for each in (picture, other))
    error = float(((first - second) ** 2).mean())
    return 10 * math.log10(255**2 / error) if error else math.inf
