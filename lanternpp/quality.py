"""Measures of quality on arrays of features and embeddings: distances of sets, retrieval, paired intervals."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def frechet(a: Tensor, b: Tensor) -> float:
    """Fréchet distance of the Gaussians that fit features a (n, F) and b (m, F), in float64 (FID, arXiv 1706.08500).

    |μa − μb|² + tr(Σa + Σb − 2 (Σa^½ Σb Σa^½)^½), in squared units of the features. It is biased upwards by about 1/n:
    compare only values at equal counts. ValueError where a set has fewer than two rows or the widths differ.
    """
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[1] or min(len(a), len(b)) < 2:
        raise ValueError(f"Fréchet distance needs two sets (n, F) with n at least 2 and the same F, "
                         f"not {tuple(a.shape)} and {tuple(b.shape)}.")
    a, b = a.double(), b.double()
    # With A = QR the centred rows over √(n−1), Σa^½ is R up to a rotation, and the last trace is the sum of the
    # singular values of Ra Rbᵀ: no square root of a covariance, whose small eigenvalues are mostly rounding.
    left, right = (torch.linalg.qr((x - x.mean(0)) / (len(x) - 1) ** 0.5, mode="r").R for x in (a, b))
    common = torch.linalg.svdvals(left @ right.T).sum()
    return float((a.mean(0) - b.mean(0)).square().sum() + left.square().sum() + right.square().sum() - 2 * common)


def precision_recall(real: Tensor, made: Tensor, k: int = 3) -> tuple[float, float]:
    """Improved precision and recall of features real (n, F) and made (m, F) (arXiv 1904.06991).

    A set's manifold is the union of balls around its points, each reaching its k-th nearest other point. Precision is
    the share of made points in the real manifold, recall that of real points in the made one. ValueError where a set
    has no more than k points.
    """
    if min(len(real), len(made)) <= k:
        raise ValueError(f"Precision and recall with k = {k} need more than {k} pictures a set, "
                         f"not {len(real)} and {len(made)}.")

    def inside(points: Tensor, manifold: Tensor) -> float:
        radius = _distances(manifold, manifold).kthvalue(k + 1, dim=1).values  # the nearest of all is the point itself
        return float((_distances(points, manifold) <= radius).any(1).double().mean())

    return inside(made, real), inside(real, made)


def _distances(a: Tensor, b: Tensor) -> Tensor:
    """Euclidean distances (n, m) in float64, not by the matrix-product form, which is not exactly 0 at equal points."""
    return torch.cdist(a.double(), b.double(), compute_mode="donot_use_mm_for_euclid_dist")


def bootstrap_interval(differences: Tensor | np.ndarray, seed: int, share: float = 0.95,
                       resamples: int = 4000) -> tuple[float, float]:
    """Percentile bootstrap interval (low, high) of the mean of paired differences (n,)."""
    values = np.asarray(differences, dtype=np.float64)
    if values.ndim != 1 or not len(values):
        raise ValueError(f"The bootstrap needs differences of shape (n,), n at least 1, not {values.shape}.")
    rng = np.random.default_rng(seed)
    means = [values[rng.integers(0, len(values), len(values))].mean() for _ in range(resamples)]
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def retrieval(images: Tensor, candidates: Tensor, own: Tensor) -> Tensor:
    """Rank (n,) of each picture's own text among its candidates, 0 for the best; a tie counts against it.

    images (n, d) and candidates (n, C, d) are unit vectors, own (n,) the own text's place among the C. Top-5 retrieval
    is the mean of rank < 5.
    """
    similarity = torch.einsum("nd,ncd->nc", images, candidates)
    mine = similarity.gather(1, own.unsqueeze(1))
    return (similarity >= mine).sum(1) - 1
