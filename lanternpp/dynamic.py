"""EAGLE-2's dynamic draft tree (arXiv 2406.16858, section 4): the drafter's confidence decides where the tree grows.

Expand: every level drafts the `top_k` most probable successors of each beam node, and the `top_k` of those with the
greatest product of probabilities along their path are the next beam: one drafter call a level. Rerank: of the
candidates of all levels the best `total` are kept. A path's product never grows, and ties go to the earlier candidate,
so a kept node's parent is kept.

The candidates are no draws from the drafter's distribution, so they must be judged as if they were certain (q = 1):
coupled.py does that.

Letters: S pictures, K = top_k, N = total nodes below the root, D levels, V codes, R = 1 + (D−1)·K drafter rows (the
root's first, then K a level), T tree rows, M cache slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from .tree import MAX_DEPTH, MAX_NODES, TreeError, shortened


@dataclass(frozen=True)
class DynamicTree:
    """A tree's limits: total = N drafted nodes, the root not counted; depth = D levels below the root.

    The published code counts otherwise: its total_tokens includes the root (total + 1), its depth leaves out the first
    level (depth − 1). Raises TreeError.
    """

    top_k: int
    depth: int
    total: int

    def __post_init__(self) -> None:
        limits = {"top_k": MAX_NODES, "depth": MAX_DEPTH, "total": MAX_NODES}
        for name, most in limits.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
                raise TreeError(f"The dynamic tree's {name} is {shortened(value)}; it must be a whole number from 1 to "
                                f"{most}.")
        if self.total > self.candidates:
            raise TreeError(f"The dynamic tree cannot keep {self.total} nodes: {self.depth} levels of top {self.top_k} "
                            f"make {self.candidates} candidates, so lower total or raise top_k or depth.")

    @property
    def candidates(self) -> int:
        """Nodes drafted before reranking."""
        return self.top_k + (self.depth - 1) * self.top_k**2

    @property
    def rows(self) -> int:
        """R: rows that the drafter's cache needs behind the committed ones, the root's included."""
        return 1 + (self.depth - 1) * self.top_k


class Level(NamedTuple):
    """What a drafter call reads: K nodes of each picture, all of the same depth."""

    depth: int  # below the root, 1 to D−1
    tokens: Tensor  # (S, K) int64
    parents: Tensor  # (S, K) int64: each node's row in the previous call's output (0 where that is the root alone)
    slots: Tensor  # (K,) int64: where to write, counted from the root's slot
    view: Tensor  # (S, K, R) bool: which of the rows behind the root's slot a node sees; it sees all before


class Grown(NamedTuple):
    """A drafted tree in breadth-first order, siblings by falling probability: what `Tree` allows. Root first."""

    tokens: Tensor  # (S, N+1) int64
    parents: Tensor  # (S, N+1) int64, −1 for the root
    depths: Tensor  # (S, N+1) int64
    ancestors: Tensor  # (S, N+1, N+1) bool: node i sees node j, its ancestor or itself
    draft: Tensor  # (S, N+1) float32: the drafter's probability of the node after its parent
    scores: Tensor  # (S, N+1) float32: log of their product along the path


def grow(root: Tensor, first: Tensor, call: Callable[[Level], Tensor], tree: DynamicTree) -> Grown:
    """Draft a tree below the last committed tokens root (S,).

    first (S, V): the drafter's float32 log-probabilities after the root, CFG applied: log_softmax of the guided logits
    as published, or the log of the sampling distribution. call reads a Level, D−1 times, and returns the same for its
    nodes, (S, K, V). V must be at least top_k.
    """
    k, pictures = tree.top_k, len(root)
    rows = torch.arange(tree.rows, device=root.device)
    beam = root.new_zeros(pictures, 1)  # among candidates, of which the root is number 0
    total = first.new_zeros(pictures, 1)
    view = (rows == 0).expand(pictures, 1, -1)
    tokens, parents, scores, draft = [root.unsqueeze(1)], [beam], [total], [total]
    logp, count = first.unsqueeze(1), 1
    for depth in range(1, tree.depth + 1):
        own, codes = logp.topk(k, dim=-1)
        own = own.clamp(max=0)  # rounding must not let a child outscore its parent
        level, codes = (total.unsqueeze(-1) + own).flatten(1), codes.flatten(1)
        tokens.append(codes)
        parents.append(beam.unsqueeze(-1).expand(-1, -1, k).flatten(1))
        scores.append(level)
        draft.append(own.flatten(1))
        if depth == tree.depth:
            break
        chosen = _best(level, k)
        beam, total, above = count + chosen, level.gather(1, chosen), chosen // k
        count += level.shape[1]
        slots = rows[1 + (depth - 1) * k: 1 + depth * k]
        view = _rows(view, above) | (rows == slots.unsqueeze(1))
        logp = call(Level(depth, codes.gather(1, chosen), above, slots, view))

    parents, scores = torch.cat(parents, 1), torch.cat(scores, 1)
    kept = _best(scores, tree.total + 1)  # the root's score is 0, and ties go to it
    place = torch.zeros_like(parents).scatter(1, kept, torch.arange(tree.total + 1, device=root.device).expand_as(kept))
    above = place.gather(1, parents.gather(1, kept))
    # Levels hold 1, K, K², K², … candidates.
    depths = (kept > 0).long() + (kept > k) * (1 + (kept - 1 - k) // k**2)
    return Grown(torch.cat(tokens, 1).gather(1, kept), torch.where(kept > 0, above, -1), depths,
                 ancestors(above, tree.depth), torch.cat(draft, 1).gather(1, kept).exp(), scores.gather(1, kept))


def ancestors(parents: Tensor, depth: int) -> Tensor:
    """Parents (S, N+1), the root's own any number below 1, at most `depth` levels -> the tree mask (S, N+1, N+1)."""
    parents = parents.clamp(min=0)
    mask = torch.eye(parents.shape[1], dtype=torch.bool, device=parents.device).expand(len(parents), -1, -1)
    seen = parents
    for _ in range(depth):
        mask = mask.scatter(2, seen.unsqueeze(-1), True)
        seen = parents.gather(1, seen)
    return mask


def slot_mask(view: Tensor, relative: Tensor) -> Tensor:
    """Attention mask (S, T, M): tree rows see by view (S, T, R) the slots from the root's on, and all before them.

    relative (S, M): each slot's number counted from the root's slot. R = T = N+1 with the tree mask for the target.
    """
    side = torch.ones_like(view[..., :1])
    table = torch.cat([side, view, ~side], dim=-1)
    column = relative.clamp(-1, view.shape[-1]) + 1
    return table.gather(2, column.unsqueeze(1).expand(-1, view.shape[1], -1))


def _best(scores: Tensor, count: int) -> Tensor:
    """The places of the `count` greatest scores, in order of place; of equal scores the first."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count].sort(dim=1).values


def _rows(x: Tensor, index: Tensor) -> Tensor:
    """Rows index (S, K) of x (S, T, R) -> (S, K, R)."""
    return x.gather(1, index.unsqueeze(-1).expand(-1, -1, x.shape[-1]))
