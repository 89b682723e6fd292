"""Judge drafts by the target's own draws: the coupled (drafter-invariant) form (arXiv 2408.07978; lists 2506.05632).

At every node the target draws its token as it would without drafts, y = argmax p/E (which is the argmax of log p +
Gumbel noise), with the exponential noise E of that image position. A child is accepted when it equals y. The walk ends
at the first node none of whose children does, and that node's y is the last token: there is no residual. Each token is
the one that plain autoregression draws with the same noise, whatever was drafted, so any drafting is lossless:

* `coupled` drafts with the same noise, to be right more often: the children of a node at depth d are
  `draw_ranked(q, E of image position + d, count)`. One child is right with probability at least (1−TV)/(1+TV).
* `eagle2` drafts the most probable tokens (dynamic.py). Drawing y once and looking for it among the children has the
  law of testing child after child with q = 1 and taking each rejected one out of p.

Relaxed (`coupled-relaxed`): where no child equals y, the nearest child in whose pooled set y lies is taken instead. The
pooled set of x is x and the longest prefix of its k nearest codes whose sum of p stays within relax.py's limit; m(x) is
its mass. x comes out only when y lies in that set, so out(x) ≤ m(x); the output differs from y only by a swap, so the
total variation is at most the probability of one. Both hold given the tokens before, as long as the drafts for an image
position do not depend on the noise of later ones (a dynamic tree grown on scores with noise would).

Letters: S pictures, N nodes below the root, D levels, V codes, W width of the neighbour table.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .relax import Relaxation, relaxed_mass


class Coupled(NamedTuple):
    """What a step decided. `path` repeats its last node after the accepted ones; entries of `tokens` from `committed`
    on mean nothing. The per-node rows hold node 1 first; of a node's children at most one is matched or swapped."""

    path: Tensor  # (S, D+1) int64, node 0 first
    committed: Tensor  # (S,) int64: accepted drafts and the final token
    tokens: Tensor  # (S, D+1) int64: accepted drafts, then the target's draw at the last node
    matched: Tensor  # (S, N) bool: equals its parent's draw
    swapped: Tensor  # (S, N) bool: stands in for its parent's draw, which no sibling equals
    target: Tensor  # (S, N) float32 p(x)
    mass: Tensor  # (S, N) float32 m(x)
    draws: Tensor  # (S, N+1) int64: y at every node, root first


def verify_coupled(p: Tensor, tokens: Tensor, parents: Tensor, depths: Tensor, noise: Tensor,
                   neighbours: Tensor | None = None, relaxation: Relaxation | None = None,
                   greedy: bool = False) -> Coupled:
    """Judge drafted trees of N+1 nodes, root first.

    p (S, N+1, V): the target at every node. tokens (S, N+1). parents and depths (S, N+1), or (N+1,) where all pictures
    share a static tree; the root's parent is −1. noise (S, D+1, V): row d is the exponential noise of the image
    position that the children of depth-d nodes are candidates for. neighbours (V, W) int64 by distance, W at least k.
    relaxation None is the lossless form; its order does not matter. Greedy: y is the argmax of p.
    """
    pictures, nodes = tokens.shape
    parents, depths = parents.expand(pictures, -1), depths.expand(pictures, -1)
    picture = torch.arange(pictures, device=p.device).unsqueeze(1)
    draws = (p if greedy else p / noise[picture, depths]).argmax(-1)
    above = parents.clamp(min=0)
    wanted = draws.gather(1, above)
    drafted = parents >= 0
    own = p[picture, above, tokens]
    mass, never = own, torch.iinfo(torch.int64).max
    # The smallest key among siblings wins: 0 for an exact match, then by distance.
    key = torch.where(drafted & (tokens == wanted), 0, never)
    if neighbours is not None and relaxation is not None and not relaxation.strict:
        pool = neighbours[tokens][..., :relaxation.k]
        near = p[picture.unsqueeze(1), above.unsqueeze(-1), pool]
        limit = relaxation.limit(own.flatten(), depths.flatten())
        mass = relaxed_mass(own.flatten(), near.flatten(0, 1), limit).view_as(own)
        within = near.cumsum(-1) <= limit.view_as(own).unsqueeze(-1)
        # A code that the target cannot draw is never swapped in.
        pooled = drafted & (own > 0) & ((pool == wanted.unsqueeze(-1)) & within).any(-1)
        # By distance to the draw, told by the draw's own list; children beyond it, by the draw's place in theirs.
        distance = (_place(neighbours[wanted], tokens) * (pool.shape[-1] + 1) + _place(pool, wanted) + 1) * nodes
        index = torch.arange(nodes, device=p.device)  # and then in draft order
        key = torch.where(pooled & (key > 0), distance + index, key)
    siblings = parents.unsqueeze(2) == parents.unsqueeze(1)
    best = torch.where(siblings, key.unsqueeze(1), never).amin(-1)
    taken = drafted & (key < never) & (key == best)
    path, accepted = _walk(taken, parents, noise.shape[1] - 1)
    final = draws.gather(1, path[:, -1:])
    following = torch.cat([tokens.gather(1, path[:, 1:]), final], dim=1)
    place = torch.arange(path.shape[1], device=p.device)
    out = torch.where(place < accepted, following, final)
    matched = taken & (key == 0)
    return Coupled(path, accepted.squeeze(1) + 1, out, matched[:, 1:], (taken & ~matched)[:, 1:], own[:, 1:],
                   mass[:, 1:], draws)


def _place(lists: Tensor, codes: Tensor) -> Tensor:
    """Where codes (S, n) stand in their lists (S, n, w): 0 to w−1, or w where they do not."""
    found = lists == codes.unsqueeze(-1)
    return torch.where(found.any(-1), found.int().argmax(-1), lists.shape[-1])


def _walk(taken: Tensor, parents: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Follow taken nodes (S, N+1) from the root -> path (S, D+1) and the number of accepted drafts (S, 1)."""
    node = parents.new_zeros(len(parents), 1)
    path, accepted = [node], torch.zeros_like(node)
    for _ in range(depth):
        below = taken & (parents == node)
        found = below.any(1, keepdim=True)
        node = torch.where(found, below.int().argmax(1, keepdim=True), node)
        accepted = accepted + found
        path.append(node)
    return torch.cat(path, dim=1), accepted
