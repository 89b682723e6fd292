"""The static tree that is predicted to be fastest, for every number of nodes.

A tree commits, in expectation, the sum over its nodes of the probability that they lie on the accepted path, which is a
product of acceptance probabilities by depth and rank. A dynamic program finds the tree with the greatest sum for every
number of nodes and depth limit (the idea of Sequoia, arXiv 2402.12374, §4.1); the measured cost of a step then says
which of them makes the most tokens a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from .acceptance import AcceptanceTable, expected_accepted_length
from .cost import CostCurve
from .tree import MAX_DEPTH, MAX_NODES, Tree


def shares(table: AcceptanceTable, depth: int, ranks: int) -> np.ndarray:
    """(depth, ranks) float64: the probability that the child of each rank is the accepted one, its parent reached."""
    rates = np.array([[table.rate(d + 1, r) for r in range(ranks)] for d in range(depth)]).reshape(depth, ranks)
    before = np.cumprod(np.hstack([np.ones((depth, 1)), 1 - rates[:, :-1]]), axis=1)
    return rates * before


def best_trees(table: AcceptanceTable, budget: int, depth: int, ranks: int = 10) -> dict[int, Tree]:
    """For each number of nodes 1 … budget the tree with the longest expected accepted length, none of whose nodes is
    deeper than `depth` nor has more than `ranks` children. Numbers that no such tree has are left out."""
    share = shares(table, depth, ranks)
    count = np.arange(budget + 1)
    rest = count[:, None] - count  # rest[m, s]: what is left of m nodes after s
    # below[m]: most expected tokens under a reached node of this level with exactly m nodes; leaves at the depth limit.
    below = np.where(count == 0, 0.0, -np.inf)
    taken = np.zeros((depth, ranks, budget + 1), dtype=int)  # how many nodes the child of each rank heads, itself too
    for level in reversed(range(depth)):
        child = np.concatenate([[-np.inf], 1 + below[:-1]])  # per size of the child's subtree
        later = np.where(count == 0, 0.0, -np.inf)  # per size of the subtrees of this rank and the ones after it
        for rank in reversed(range(ranks)):
            own = np.where(np.isfinite(child), share[level, rank] * np.where(np.isfinite(child), child, 0), -np.inf)
            value = np.where(rest >= 0, own + later[rest], -np.inf)
            taken[level, rank] = value.argmax(1)
            later = np.where(count == 0, 0.0, value.max(1))
        below = later

    def paths(level: int, nodes: int, path: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        rank = 0
        while nodes:
            size = int(taken[level, rank, nodes])
            yield (*path, rank)
            yield from paths(level + 1, size - 1, (*path, rank))
            nodes, rank = nodes - size, rank + 1

    return {m: Tree.from_paths(paths(0, m, ())) for m in range(1, budget + 1) if np.isfinite(below[m])}


@dataclass(frozen=True)
class Candidate:
    """A tree with its predicted accepted length and seconds a step."""

    tree: Tree
    accepted_length: float
    step: float

    @property
    def seconds(self) -> float:
        """Predicted seconds a token."""
        return self.step / self.accepted_length


def candidate(tree: Tree, table: AcceptanceTable, cost: CostCurve) -> Candidate:
    return Candidate(tree, expected_accepted_length(tree, table), cost.step(tree))


def search(table: AcceptanceTable, cost: CostCurve, budget: int = MAX_NODES,
           depth: int = MAX_DEPTH) -> dict[int, Candidate]:
    """For each number of nodes the depth limit's tree with the fewest predicted seconds a token."""
    found: dict[int, Candidate] = {}
    for limit in range(1, depth + 1):
        for nodes, tree in best_trees(table, budget, limit).items():
            new = candidate(tree, table, cost)
            if nodes not in found or new.seconds < found[nodes].seconds:
                found[nodes] = new
    return found
