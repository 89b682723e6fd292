"""How often a draft at a depth and rank is accepted, measured from traces, and what any tree would gain from it.

Depths count from 1, the children of the root; ranks from 0, in draw order. h(d, i) is the probability that the child of
rank i at depth d is the accepted one, given that its parent was reached and that none of its earlier siblings is. That
it depends on nothing else is the positional acceptance assumption of Sequoia (arXiv 2402.12374), here by depth as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .trace import Trace
from .tree import Tree

PRIOR = 8.0  # trials that a coarser rate counts for where a depth and rank were tested rarely


@dataclass(frozen=True, eq=False)
class AcceptanceTable:
    """Counts (D, K) int64: row d − 1 holds depth d, column i rank i. accepted is nowhere above tested."""

    tested: np.ndarray
    accepted: np.ndarray

    def rate(self, depth: int, rank: int) -> float:
        """h(depth, rank), smoothed: PRIOR trials at the rank's rate over all depths, which leans on the rank before.

        So depths that were never drafted take their rank's rate, and ranks that were never drafted the last one's.
        """
        prior = self._by_rank[min(rank, len(self._by_rank) - 1)]
        if depth > self.tested.shape[0] or rank >= self.tested.shape[1]:
            return prior
        n, yes = self.tested[depth - 1, rank], self.accepted[depth - 1, rank]
        return float((yes + PRIOR * prior) / (n + PRIOR))

    @cached_property
    def _by_rank(self) -> tuple[float, ...]:
        rates = [self.overall]
        for n, yes in zip(self.tested.sum(0), self.accepted.sum(0), strict=True):
            rates.append(float((yes + PRIOR * rates[-1]) / (n + PRIOR)))
        return tuple(rates[1:])

    @property
    def overall(self) -> float:
        """Accepted drafts of all that were tested."""
        return float(self.accepted.sum() / self.tested.sum())


def acceptance_table(traces: Iterable[Trace]) -> AcceptanceTable:
    """Count the verdicts of traces that were decoded with the same method, knobs and sampling; their trees may differ.

    A child counts as tested where its parent was reached, the picture had room for it and no earlier sibling was
    accepted. Raises ValueError where nothing was drafted at all.
    """
    counts: dict[tuple[int, int], list[int]] = {}
    for trace in traces:
        tree = Tree(tuple(trace.header["tree"]["parents"]))
        for event in trace.events:
            for node in (0, *event.path) if event.verdicts else ():
                for rank, child in enumerate(tree.children[node]):
                    letter = event.verdicts[child - 1]
                    if letter == "z":
                        break
                    cell = counts.setdefault((tree.depths[child] - 1, rank), [0, 0])
                    cell[0] += 1
                    if letter in "ax":
                        cell[1] += 1
                        break
    if not counts:
        raise ValueError("These traces hold no drafted token, so no acceptance can be measured: decode with a tree.")
    shape = tuple(max(place[axis] for place in counts) + 1 for axis in (0, 1))
    tested, accepted = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    for place, (n, yes) in counts.items():
        tested[place], accepted[place] = n, yes
    return AcceptanceTable(tested, accepted)


def reach(tree: Tree, table: AcceptanceTable) -> list[float]:
    """Each node's probability to lie on the accepted path, node 0, the root, first: 1 for it."""
    reached = [1.0] * len(tree.parents)
    for parent, children in enumerate(tree.children):
        left = reached[parent]  # of which no child has taken its part yet
        for rank, child in enumerate(children):
            reached[child] = left * table.rate(tree.depths[child], rank)
            left -= reached[child]
    return reached


def expected_accepted_length(tree: Tree, table: AcceptanceTable) -> float:
    """Mean tokens that a step commits with this tree, its bonus or recovered token included: 1 and more."""
    return sum(reach(tree, table))
