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

        def put(name: str, value: Tensor) -> None:
            self.register_buffer(name, value.to(device), persistent=False)

        put("depths", torch.tensor(tree.depths))
        put("parents", torch.tensor(parents, dtype=torch.int64))
        # Each parent's row in q, whose rows are in breadth-first order.
        put("node_row", torch.tensor([tree.inner.index(n) for n in parents], dtype=torch.int64))
        # Children are judged rank by rank, those of one rank in the order of their parents.
        ranked = [tree.children[n][i] for i, count in enumerate(self.counts) for n in parents[:count]]
        put("ranked", torch.tensor(ranked, dtype=torch.int64))
        put("by_node", torch.tensor([ranked.index(n) for n in range(1, len(tree.parents))], dtype=torch.int64))
        # Of each drafted node: its parent, its parent's place above, and its number's place in the flat uniforms.
        put("above", torch.tensor(tree.parents[1:], dtype=torch.int64))
        put("row_above", torch.tensor([parents.index(n) for n in tree.parents[1:]], dtype=torch.int64))
        put("uniform_at", torch.tensor([tree.depths[parent] * self.max_children + rank for parent, rank in
                                        zip(tree.parents[1:], tree.ranks[1:], strict=True)], dtype=torch.int64))
        nodes = range(len(tree.parents))
        put("row", torch.tensor([parents.index(n) if n in parents else -1 for n in nodes]))
        put("nodes", torch.tensor(nodes))
        put("none", torch.full((len(nodes),), 2 * len(nodes)))
        put("place", torch.arange(tree.depth + 1))


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
    # Along the ranks: what each child is compared with, and what its rejection leaves. Nothing is decided here.
    r, rest = p.index_select(0, buffers.parents), q.index_select(0, buffers.node_row)
    codes = looked_at = tokens.index_select(0, buffers.ranked).unsqueeze(1)
    if not relaxation.strict:
        looked_at = torch.cat([codes, neighbours.index_select(0, codes.squeeze(1))[:, :relaxation.k]], dim=1)
    drafts, residuals, ended = [], [], []
    for x, seen in zip(codes.split(buffers.counts), looked_at.split(buffers.counts), strict=True):
        if len(x) < len(r):  # parents without a child of this rank
            ended.insert(0, r[len(x):])
            r, rest = r[:len(x)], rest[:len(x)]
        drafts.append(rest.gather(1, x))
        residuals.append(r.gather(1, seen))
        if greedy:
            continue
        reduced = (r - rest).clamp(min=0)
        total = reduced.sum(-1, keepdim=True)
        # A sum of 0 means r = q: only rounding rejected the child, so r stays; a child that does not exist
        # was never tested, so r stays as well.
        usable = (drafts[-1] > 0) & (total > 0)
        r = torch.where(usable, reduced / total, r)
        if len(drafts) < len(buffers.counts):
            rest = rest.scatter(1, x, 0.0)
            total = rest.sum(-1, keepdim=True)  # may be as small as a float32 can be, and is still renormalised
            rest = rest / (total + (total == 0))
    residual = torch.cat([r, *ended]) if ended else r
    draft = torch.cat(drafts).squeeze(1).index_select(0, buffers.by_node)
    own, near = torch.cat(residuals).index_select(0, buffers.by_node).tensor_split([1], dim=1)
    own, exists = own.squeeze(1), draft > 0
    mass = own if relaxation.strict else relaxed_mass(own, near, relaxation.limit(own, buffers.depths[1:]))
    if greedy:
        most = residual.topk(2, dim=-1).values.index_select(0, buffers.row_above)
        other = torch.where(own < most[:, 0], most[:, 0], most[:, 1])  # the greatest r of all codes but x
        strict = residual.argmax(-1).index_select(0, buffers.row_above) == tokens[1:]
        relaxed = strict | ((mass > own) & (mass >= other))
        strict, relaxed = exists & strict, exists & relaxed
    else:
        # u ≤ m/q without a division by a vanishing q. A product that underflows to 0 accepts nothing of mass 0.
        threshold = uniform.flatten().index_select(0, buffers.uniform_at) * draft
        strict, relaxed = exists & (threshold <= own) & (own > 0), exists & (threshold <= mass) & (mass > 0)
    path, accepted = _walk(_accepted_child(strict, relaxed, buffers, relaxation.order), tree.depth)
    last = path[-1:]
    row = buffers.row.index_select(0, last)
    end = p.index_select(0, last)
    if not greedy:  # where children were rejected, from what they left
        end = torch.where((row >= 0).unsqueeze(1), residual.index_select(0, row.clamp(min=0)), end)
    final = _draw(end, noise.index_select(0, buffers.depths.index_select(0, last)), greedy)
    following = torch.cat([tokens.index_select(0, path[1:]), final])
    out = torch.where(buffers.place < accepted, following, final)
    return Verdict(path, accepted + 1, out, strict, relaxed, exists, draft, own, mass, p[buffers.above, tokens[1:]])


def _accepted_child(strict: Tensor, relaxed: Tensor, buffers: TreeBuffers, order: str) -> Tensor:
    """Of each node (N+1,) the child that is accepted, or the node itself: strict and relaxed are (N,)."""
    # Siblings stand in draft order, so the first that passes has the smallest number.
    nodes, none = buffers.nodes, buffers.none
    key = nodes[1:] if order == "sequential" else nodes[1:] + len(nodes) * ~strict
    best = none.scatter_reduce(0, buffers.above, torch.where(relaxed, key, none[1:]), "amin")
    return torch.where(best < none, best % len(nodes), nodes)


def _walk(below: Tensor, depth: int) -> tuple[Tensor, Tensor]:
    """Follow accepted children from the root: (N+1,) child or itself -> path (D+1,) and how many were accepted."""
    path = [torch.zeros_like(below[:1])]
    for _ in range(depth):
        path.append(below.index_select(0, path[-1]))
    path = torch.cat(path)
    return path, (path[1:] > path[:-1]).sum()


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
