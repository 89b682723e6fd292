"""The verification rules once more, one node, one child and one code at a time, in float64 and plain Python.

Written from the design and not from lanternpp/verify.py. `verify` judges one drafted tree for given noise; `node_law`,
`step_law` and `joint_law` enumerate every outcome of the same rules with its probability.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from lanternpp.relax import Relaxation
from lanternpp.tree import Tree

Row = Sequence[float]
EXACT = Relaxation("exact")


class Child(NamedTuple):
    """One drafted child as the rules see it, before any uniform is compared."""

    exists: bool
    q: float  # qᵢ(x)
    r: float  # rᵢ(x)
    mass: float  # mᵢ(x)


class Margin:
    """The smallest relative distance from any threshold: below it, another rounding may decide otherwise."""

    def __init__(self) -> None:
        self.least = 1.0

    def compare(self, a: float, b: float) -> None:
        if a != b or a != 0:
            self.least = min(self.least, abs(a - b) / max(abs(a), abs(b)))


def pooled(r: Row, x: int, nearest: Sequence[int], relaxation: Relaxation, depth: int, margin: Margin) -> float:
    """What code x may borrow: the longest prefix of its k nearest codes whose sum stays within the bound."""
    if relaxation.rule == "exact":
        return 0.0
    if relaxation.rule == "lantern":
        limit = relaxation.bound
    else:
        limit = max(0.0, relaxation.bound - 1) * r[x]
        if relaxation.rule == "annealed":
            limit *= relaxation.gamma ** (depth - 1)
    total = 0.0
    for code in nearest[:relaxation.k]:
        if r[code] > 0:
            margin.compare(total + r[code], limit)
        if total + r[code] > limit:
            break
        total += r[code]
    return total


def chain(p: Row, q: Row, codes: Sequence[int], nearest: Sequence[Sequence[int]], relaxation: Relaxation,
          depth: int = 1, margin: Margin | None = None) -> tuple[list[Child], list[float]]:
    """All children of one node in draw order, and the residual that is left when every one is rejected."""
    margin = margin or Margin()
    r, q, children = list(p), list(q), []
    for x in codes:
        if q[x] == 0:
            children.append(Child(False, 0.0, r[x], r[x] + pooled(r, x, nearest[x], relaxation, depth, margin)))
            continue
        children.append(Child(True, q[x], r[x], r[x] + pooled(r, x, nearest[x], relaxation, depth, margin)))
        left = [max(0.0, a - b) for a, b in zip(r, q, strict=True)]
        total = sum(left)
        if total > 0:
            margin.least = min(margin.least, total)
            r = [a / total for a in left]
        q[x] = 0.0
        total = sum(q)
        if total > 0:
            q = [a / total for a in q]
    return children, r


def choose(strict: Sequence[bool], relaxed: Sequence[bool], order: str) -> int | None:
    """The place of the accepted child, None where all are rejected."""
    if order == "strict-first" and any(strict):
        return list(strict).index(True)
    return list(relaxed).index(True) if any(relaxed) else None


@dataclass
class Outcome:
    path: list[int]
    tokens: list[int]
    children: dict[int, Child]  # by node
    strict: dict[int, bool]
    relaxed: dict[int, bool]
    margin: float


def best(weights: Row, margin: Margin) -> int:
    """The first of the greatest weights."""
    top = max(range(len(weights)), key=lambda i: (weights[i], -i))
    if len(weights) > 1:
        margin.compare(weights[top], max(w for i, w in enumerate(weights) if i != top))
    return top


def verify(p: Sequence[Row], q: dict[int, Row], tokens: Sequence[int], tree: Tree, relaxation: Relaxation,
           nearest: Sequence[Sequence[int]], uniform: Sequence[Row], noise: Sequence[Row],
           greedy: bool = False) -> Outcome:
    """Judge one drafted tree. p by node, q by parent node; row d of uniform and noise is for children of depth d."""
    margin = Margin()
    children, strict, relaxed, residuals = {}, {}, {}, {}
    for node, kids in enumerate(tree.children):
        residuals[node] = list(p[node])
        if not kids:
            continue
        depth = tree.depths[node]
        codes = [tokens[kid] for kid in kids]
        if greedy:
            top = best(p[node], margin)
            for kid, x in zip(kids, codes, strict=True):
                own = p[node][x]
                extra = pooled(p[node], x, nearest[x], relaxation, depth + 1, margin)
                other = max(value for code, value in enumerate(p[node]) if code != x)
                exists = q[node][x] > 0
                if extra > 0:
                    margin.compare(own + extra, other)
                children[kid] = Child(exists, q[node][x], own, own + extra)
                strict[kid] = exists and x == top
                relaxed[kid] = exists and (x == top or (extra > 0 and own + extra >= other))
            continue
        found, residuals[node] = chain(p[node], q[node], codes, nearest, relaxation, depth + 1, margin)
        for rank, (kid, child) in enumerate(zip(kids, found, strict=True)):
            threshold = uniform[depth][rank] * child.q
            children[kid] = child
            if child.exists:
                margin.compare(threshold, child.r)
                margin.compare(threshold, child.mass)
            strict[kid] = child.exists and threshold <= child.r
            relaxed[kid] = child.exists and threshold <= child.mass
    path, drafted = [0], []
    while True:
        kids = tree.children[path[-1]]
        rank = choose([strict[k] for k in kids], [relaxed[k] for k in kids], relaxation.order)
        if rank is None:
            break
        path.append(kids[rank])
        drafted.append(tokens[kids[rank]])
    end, row = residuals[path[-1]], noise[tree.depths[path[-1]]]
    final = best(end if greedy else [w / e for w, e in zip(end, row, strict=True)], margin)
    return Outcome(path, [*drafted, final], children, strict, relaxed, margin.least)


def draws(q: Row, count: int) -> list[tuple[tuple[int, ...], float]]:
    """Every ordered draw of up to `count` codes from q without replacement, with its probability."""
    total = sum(q)
    if count == 0 or total == 0:
        return [((), 1.0)]
    out = []
    for x, weight in enumerate(q):
        if weight > 0:
            rest = [0.0 if code == x else w for code, w in enumerate(q)]
            out += [((x, *more), weight / total * chance) for more, chance in draws(rest, count - 1)]
    return out


@dataclass
class NodeLaw:
    """What becomes of one node, in exact probabilities."""

    accepted: list[list[float]]  # [rank][code]
    ended: list[float]  # [code]: every child rejected, and this token drawn
    relaxed_only: float  # P(the accepted child did not pass the strict rule)
    surplus: float  # E Σ (fᵢ − fᵢ strict) over the children that the sequential order tests

    @property
    def out(self) -> list[float]:
        """The law of the token at this position."""
        return [sum(column) for column in zip(*self.accepted, self.ended, strict=True)]

    @property
    def acceptance(self) -> float:
        return sum(map(sum, self.accepted))


def node_law(p: Row, q: Row, count: int, nearest: Sequence[Sequence[int]], relaxation: Relaxation, depth: int = 1,
             drafts: list[tuple[tuple[int, ...], float]] | None = None) -> NodeLaw:
    """Enumerate draws and, for each child, whether u falls below r/q, between r/q and m/q, or above."""
    codes_in_all = len(p)
    law = NodeLaw([[0.0] * codes_in_all for _ in range(count)], [0.0] * codes_in_all, 0.0, 0.0)
    for codes, chance in draws(q, count) if drafts is None else drafts:
        children, last = chain(p, q, codes, nearest, relaxation, depth)
        cells, untested = [], 1.0
        for child in children:
            strict, full = min(1.0, child.r / child.q), min(1.0, child.mass / child.q)
            cells.append(((True, True, strict), (False, True, full - strict), (False, False, 1 - full)))
            law.surplus += chance * untested * (full - strict)
            untested *= 1 - full
        for cell in product(*cells):
            weight = chance
            for _, _, part in cell:
                weight *= part
            if weight == 0:
                continue
            rank = choose([c[0] for c in cell], [c[1] for c in cell], relaxation.order)
            if rank is None:
                for code, value in enumerate(last):
                    law.ended[code] += weight * value
            else:
                law.accepted[rank][codes[rank]] += weight
                law.relaxed_only += weight * (not cell[rank][0])
    return law


class Toy(NamedTuple):
    """A target and a drafter that look at the last two tokens: p(context) and q(context) are rows."""

    p: Callable[[tuple[int, ...]], Row]
    q: Callable[[tuple[int, ...]], Row]
    nearest: Sequence[Sequence[int]]


Law = dict[tuple[int, ...], float]


def step_law(toy: Toy, tree: Tree, relaxation: Relaxation, context: tuple[int, ...], node: int = 0,
             memory: dict | None = None) -> Law:
    """The tokens that one step commits below `node`, accepted drafts and the last token, with their probability."""
    memory = {} if memory is None else memory
    kids, law = tree.children[node], defaultdict(float)
    if not kids:
        return {(code,): value for code, value in enumerate(toy.p(context)) if value > 0}
    key = (context[-2:], len(kids), tree.depths[node])
    if key not in memory:
        memory[key] = node_law(toy.p(context), toy.q(context), len(kids), toy.nearest, relaxation,
                               tree.depths[node] + 1)
    here = memory[key]
    for code, value in enumerate(here.ended):
        if value > 0:
            law[(code,)] += value
    for kid, row in zip(kids, here.accepted, strict=True):
        for code, value in enumerate(row):
            if value > 0:
                for more, weight in step_law(toy, tree, relaxation, (*context, code), kid, memory).items():
                    law[(code, *more)] += value * weight
    return law


def joint_law(toy: Toy, tree: Tree, relaxation: Relaxation, length: int, context: tuple[int, ...] = (0, 0),
              memory: dict | None = None) -> Law:
    """The first `length` tokens, whatever number of steps it takes."""
    memory, law = {} if memory is None else memory, defaultdict(float)
    for tokens, value in step_law(toy, tree, relaxation, context, memory=memory).items():
        if len(tokens) >= length:
            law[tokens[:length]] += value
            continue
        rest = joint_law(toy, tree, relaxation, length - len(tokens), (*context, *tokens), memory)
        for more, weight in rest.items():
            law[(*tokens, *more)] += value * weight
    return law


def total_variation(a: Law | Row, b: Law | Row) -> float:
    if isinstance(a, dict):
        return sum(abs(a.get(key, 0.0) - b.get(key, 0.0)) for key in a.keys() | b.keys()) / 2
    return sum(abs(x - y) for x, y in zip(a, b, strict=True)) / 2
