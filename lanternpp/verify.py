"""Judge every drafted node at once, walk the accepted path, and draw the token that ends the step.

p and q are the target's and the drafter's distributions after the same CFG, temperature, top-k and top-p. Children
x₁, x₂, … of a node were drawn from q without replacement: qᵢ is q without x₁ … xᵢ₋₁, renormalised, and r₁ = p. Child i
passes the strict rule when uᵢ ≤ rᵢ(x)/qᵢ(x) and the relaxed rule when uᵢ ≤ mᵢ(x)/qᵢ(x), mᵢ from relax.py. After a
rejection rᵢ₊₁ = norm([rᵢ − qᵢ]₊). (Multi-candidate rejection sampling as in SpecInfer and EAGLE; LANTERN, eq. 4 to 6,
for m.)

Order "sequential", as published, takes the first child that passes the relaxed rule. Order "strict-first" takes the
first that passes the strict rule and, only if there is none, the first that passes the relaxed one: the acceptance
probability is the same, and the output departs from p only by relaxed acceptances that were really needed.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .relax import Relaxation, relaxed_mass
from .tree import Tree


class TreeBuffers(nn.Module):
    """A tree's index tensors. Parents (nodes with children) stand in order of falling number of children, so that the
    parents that have an i-th child are always a leading slice."""

    def __init__(self, tree: Tree, device: torch.device | None = None):
        super().__init__()
        self.tree = tree
        parents = sorted(tree.inner, key=lambda n: (-len(tree.children[n]), n))
        self.max_children = max((len(c) for c in tree.children), default=0)
        self.counts = [sum(len(tree.children[n]) > i for n in parents) for i in range(self.max_children)]
        table = [[*tree.children[n], *[0] * (self.max_children - len(tree.children[n]))] for n in parents]

        def put(name: str, value: Tensor) -> None:
            self.register_buffer(name, value.to(device), persistent=False)

        put("depths", torch.tensor(tree.depths))
        put("parents", torch.tensor(parents, dtype=torch.int64))
        put("child_nodes", torch.tensor(table, dtype=torch.int64).view(len(parents), self.max_children))
        # Each parent's row in q, whose rows are in breadth-first order.
        put("node_row", torch.tensor([tree.inner.index(n) for n in parents], dtype=torch.int64))
        flat = [(row, i) for row, n in enumerate(parents) for i in range(len(tree.children[n]))]
        by_node = sorted(flat, key=lambda f: table[f[0]][f[1]])
        put("flat", torch.tensor([row * max(1, self.max_children) + i for row, i in by_node], dtype=torch.int64))


class Verdict(NamedTuple):
    """What a step decided. `path` repeats its last node after the accepted ones; entries of `tokens` from `committed`
    on mean nothing. The per-node rows are (N,), node 1 first."""

    path: Tensor  # (D+1,) int64, node 0 first
    committed: Tensor  # () int64: accepted drafts and the final token
    tokens: Tensor  # (D+1,) int64: accepted drafts, then the bonus, recovered or AR token
    strict: Tensor  # (N,) bool
    relaxed: Tensor  # (N,) bool, true wherever strict is
    exists: Tensor  # (N,) bool: q gave the child positive probability
    draft: Tensor  # (N,) float32 qᵢ(x)
    residual: Tensor  # (N,) float32 rᵢ(x)
    mass: Tensor  # (N,) float32 mᵢ(x)
    target: Tensor  # (N,) float32 p(x)


def verify(p: Tensor, q: Tensor, tokens: Tensor, buffers: TreeBuffers, relaxation: Relaxation,
           neighbours: Tensor | None, uniform: Tensor, noise: Tensor, greedy: bool = False) -> Verdict:
    """Judge one picture's drafted tree; torch.vmap judges several.

    p (N+1, V): target at every node, root first. q (I, V): drafter at the nodes with children, breadth-first.
    tokens (N+1,): the nodes' codes. neighbours (V, ≥k) int64, or None where the rule is strict.
    uniform (D+1, K) in (0, 1] and noise (D+1, V) exponential: row d belongs to the children of depth-d nodes.
    Greedy: a child passes strictly when it is the target's argmax and by relaxation when m(x) is at least the largest
    other probability; children that fail are replaced by the argmax.
    """
    tree = buffers.tree
    if tree.nodes == 0:
        return Verdict(*(x.squeeze(0) for x in undrafted(p.unsqueeze(0), noise.unsqueeze(0), greedy)))
    residual, left = p.index_select(0, buffers.parents), q.index_select(0, buffers.node_row)
    depth = buffers.depths.index_select(0, buffers.parents)
    judges = uniform.index_select(0, depth)
    codes = tokens[buffers.child_nodes]  # (I, K); absent children repeat the root and are never read
    columns = []
    for i, count in enumerate(buffers.counts):
        r, rest, x = residual[:count], left[:count], codes[:count, i:i + 1]
        draft, own = rest.gather(1, x).squeeze(1), r.gather(1, x).squeeze(1)
        exists = draft > 0
        mass = own
        if not relaxation.strict:
            near = r.gather(1, neighbours.index_select(0, x.squeeze(1))[:, :relaxation.k])
            mass = relaxed_mass(own, near, relaxation.limit(own, depth[:count] + 1))
        if greedy:
            strict = r.argmax(-1) == x.squeeze(1)
            other = r.scatter(1, x, -1.0).amax(-1)
            relaxed = strict | ((mass > own) & (mass >= other))
            strict, relaxed = exists & strict, exists & relaxed
        else:
            # u ≤ m/q without a division by a vanishing q. A product that underflows to 0 accepts nothing of mass 0.
            threshold = judges[:count, i] * draft
            strict, relaxed = exists & (threshold <= own) & (own > 0), exists & (threshold <= mass) & (mass > 0)
            reduced = (r - rest).clamp(min=0)
            total = reduced.sum(-1, keepdim=True)
            # A sum of 0 means r = q: only rounding rejected the child, so r stays; a child that does not exist
            # was never tested, so r stays as well.
            usable = exists.unsqueeze(1) & (total > 0)
            reduced = torch.where(usable, reduced / total, r)
            residual = torch.cat([reduced, residual[count:]])
            rest = rest.scatter(1, x, 0.0)
            total = rest.sum(-1, keepdim=True)  # may be as small as a float32 can be, and is still renormalised
            left = torch.cat([torch.where(total > 0, rest / total, rest), left[count:]])
        columns.append((strict, relaxed, exists, draft, own, mass))
    strict, relaxed, exists, draft, own, mass = (
        torch.stack([torch.cat([c, c.new_zeros(len(buffers.parents) - len(c))]) for c in column], dim=1)
        for column in zip(*columns, strict=True))
    chosen = _choose(strict, relaxed, relaxation.order)
    taken = buffers.child_nodes.gather(1, chosen.clamp(min=0).unsqueeze(1)).squeeze(1)
    below = torch.full((tree.nodes + 1,), -1, dtype=torch.int64, device=p.device).index_copy(
        0, buffers.parents, torch.where(chosen >= 0, taken, -1))
    path, accepted = _walk(below, tree.depth)
    last = path[-1:]
    ends = p.index_copy(0, buffers.parents, residual) if not greedy else p
    final = _draw(ends.index_select(0, last), noise.index_select(0, buffers.depths.index_select(0, last)), greedy)
    place = torch.arange(tree.depth + 1, device=p.device)
    following = torch.cat([tokens.index_select(0, path[1:]), final])
    out = torch.where(place < accepted, following, final)

    def by_node(x: Tensor) -> Tensor:
        return x.flatten().index_select(0, buffers.flat)

    target = by_node(p.index_select(0, buffers.parents).gather(1, codes))
    return Verdict(path, accepted + 1, out, by_node(strict), by_node(relaxed), by_node(exists), by_node(draft),
                   by_node(own), by_node(mass), target)


def _choose(strict: Tensor, relaxed: Tensor, order: str) -> Tensor:
    """The accepted child's rank for each parent (I, K) -> (I,), −1 where every child is rejected."""

    def first(passes: Tensor) -> Tensor:
        return torch.where(passes.any(1), passes.int().argmax(1), -1)

    if order == "sequential":
        return first(relaxed)
    return torch.where(strict.any(1), first(strict), first(relaxed))


def _walk(below: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Follow accepted children from the root: (N+1,) child or −1 -> path (D+1,) and the number of accepted drafts."""
    node = torch.zeros(1, dtype=torch.int64, device=below.device)
    path, accepted = [node], torch.zeros(1, dtype=torch.int64, device=below.device)
    for _ in range(depth):
        child = below.index_select(0, node)
        accepted = accepted + (child >= 0)
        node = torch.where(child >= 0, child, node)
        path.append(node)
    return torch.cat(path), accepted.squeeze(0)


def _draw(weights: Tensor, noise: Tensor, greedy: bool) -> Tensor:
    """One code a row: (…, V) -> (…,)."""
    return (weights if greedy else weights / noise).argmax(-1)


def undrafted(p: Tensor, noise: Tensor, greedy: bool) -> Verdict:
    """Plain autoregression of S pictures, the tree that is only a root: p (S, 1, V) and noise (S, 1, V). The Verdict's
    tensors have a leading S."""
    token = _draw(p, noise, greedy)
    nothing, flags = p.new_zeros(len(p), 0), torch.zeros(len(p), 0, dtype=torch.bool, device=p.device)
    return Verdict(torch.zeros_like(token), torch.ones_like(token[:, 0]), token, flags, flags, flags, nothing, nothing,
                   nothing, nothing)
