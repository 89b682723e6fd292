"""A static draft tree: which nodes are drafted below the last committed token, and the tensors that follow from it.

Node 0 is the root (the last committed token); N counts the nodes below it. Nodes stand in breadth-first order, a node's
children in the order in which they are drawn. Every method uses such a tree: plain autoregression is the root alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

MAX_NODES = 127
MAX_DEPTH = 16


class TreeError(ValueError):
    """The tree breaks a limit or is malformed; the message is one sentence for the person who typed it."""


def shortened(value: object) -> str:
    """At most 60 characters of a value that somebody typed."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list nested a thousand times
        text = f"a huge {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


@dataclass(frozen=True)
class Tree:
    """parents[i] is the parent of node i; parents[0] is -1. Raises TreeError unless breadth-first and within limits."""

    parents: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.parents or self.parents[0] != -1:
            raise TreeError("A draft tree's list of parents must begin with -1, the root.")
        if self.nodes > MAX_NODES:
            raise TreeError(f"The draft tree has {self.nodes} nodes; it may have at most {MAX_NODES} below the root: "
                            "make it narrower or shallower.")
        previous = 0
        for node, parent in enumerate(self.parents[1:], start=1):
            if not 0 <= parent < node or parent < previous:
                raise TreeError(f"Node {node} of the draft tree has parent {shortened(parent)}: nodes must stand in "
                                "breadth-first order, each after its parent.")
            previous = parent
        if self.depth > MAX_DEPTH:
            raise TreeError(f"The draft tree is {self.depth} levels deep; at most {MAX_DEPTH} are allowed: "
                            "remove levels.")

    @classmethod
    def from_branching(cls, branching: Sequence[int]) -> Tree:
        """Every node of level l has branching[l] children. `[4, 2, 1]` makes 4, 8 and 8 nodes."""
        if len(branching) > MAX_DEPTH:
            raise TreeError(f"The branching has {len(branching)} levels; at most {MAX_DEPTH} are allowed: "
                            "remove levels.")
        total, width = 0, 1
        for count in branching:
            if isinstance(count, bool) or not isinstance(count, int) or count < 1:
                raise TreeError(f"The branching {shortened(list(branching))} must hold whole numbers of at least 1, "
                                "such as 3,2,1.")
            width *= count
            total += width
            if total > MAX_NODES:
                raise TreeError(f"The branching {shortened(list(branching))} makes more than {MAX_NODES} nodes: "
                                "use smaller numbers or fewer levels.")
        parents, level = [-1], [0]
        for count in branching:
            below = []
            for parent in level:
                below += range(len(parents), len(parents) + count)
                parents += [parent] * count
            level = below
        return cls(tuple(parents))

    @classmethod
    def from_widths(cls, widths: Sequence[int]) -> Tree:
        """widths[l] nodes in level l + 1, handed out to the most promising parents: first-ranked children get most."""
        parents, level = [-1], [0]
        for width in widths:
            share = [0] * len(level)
            weights = [1 / (2 + rank) for rank in range(len(level))]
            for _ in range(width):
                best = max(range(len(level)), key=lambda i: weights[i] / (1 + share[i]))
                share[best] += 1
            below = []
            for parent, count in zip(level, share, strict=True):
                below += range(len(parents), len(parents) + count)
                parents += [parent] * count
            level = below
        return cls(tuple(parents))

    @classmethod
    def from_paths(cls, paths: Iterable[Sequence[int]]) -> Tree:
        """EAGLE's and Medusa's notation: each node as its path of child ranks, as in [[0], [1], [0, 0]]."""
        ordered = sorted({tuple(p) for p in paths if len(p)}, key=lambda p: (len(p), p))
        index = {(): 0}
        parents = [-1]
        for path in ordered:
            if path[:-1] not in index:
                raise TreeError(f"The path {shortened(list(path))} has no parent in the list: "
                                f"add {shortened(list(path[:-1]))}.")
            if path[-1] > 0 and (*path[:-1], path[-1] - 1) not in index or path[-1] < 0:
                raise TreeError(f"The path {shortened(list(path))} skips a sibling: child ranks count up from 0.")
            index[path] = len(parents)
            parents.append(index[path[:-1]])
        return cls(tuple(parents))

    @classmethod
    def from_counts(cls, levels: Sequence[Sequence[int]]) -> Tree:
        """levels[l] holds how many children each node of level l has; one number counts for every node of its level."""
        if len(levels) > MAX_DEPTH:
            raise TreeError(f"The tree's text has {len(levels)} levels; at most {MAX_DEPTH} are allowed: remove "
                            "levels.")
        parents, level = [-1], [0]
        for number, counts in enumerate(levels):
            if len(counts) not in (1, len(level)):
                raise TreeError(f"Level {number + 1} of the tree's text has {len(counts)} numbers: give one for all, "
                                f"or one for each of the {len(level)} tokens above.")
            each = counts if len(counts) > 1 else list(counts) * len(level)
            if len(parents) + sum(each) > MAX_NODES + 1:
                raise TreeError(f"The tree's text makes more than {MAX_NODES} nodes: use smaller numbers or fewer "
                                "levels.")
            below = []
            for parent, count in zip(level, each, strict=True):
                below += range(len(parents), len(parents) + count)
                parents += [parent] * count
            if not below:
                raise TreeError(f"Level {number + 1} of the tree's text has no tokens: leave it out.")
            level = below
        return cls(tuple(parents))

    @property
    def text(self) -> str:
        """The tree as a person may type it and a link may hold it, such as `3/2.1.0`: see from_counts."""
        levels = []
        for depth in range(self.depth):
            counts = [len(c) for c, d in zip(self.children, self.depths, strict=True) if d == depth]
            levels.append(str(counts[0]) if len(set(counts)) == 1 else ".".join(map(str, counts)))
        return "/".join(levels)

    @property
    def nodes(self) -> int:
        """N: drafted nodes, the root not counted."""
        return len(self.parents) - 1

    @cached_property
    def depths(self) -> tuple[int, ...]:
        depths = [0]
        for parent in self.parents[1:]:
            depths.append(depths[parent] + 1)
        return tuple(depths)

    @property
    def depth(self) -> int:
        """D: levels below the root."""
        return max(self.depths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        children: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents[1:], start=1):
            children[parent].append(node)
        return tuple(tuple(c) for c in children)

    @cached_property
    def ranks(self) -> tuple[int, ...]:
        """Each node's place among its siblings, in draw order; 0 for the root."""
        return (0, *(self.children[p].index(n) for n, p in enumerate(self.parents[1:], start=1)))

    @property
    def widths(self) -> tuple[int, ...]:
        """Nodes in each level below the root."""
        return tuple(self.depths.count(d) for d in range(1, self.depth + 1))

    @cached_property
    def inner(self) -> tuple[int, ...]:
        """Nodes with children, in breadth-first order: those that the drafter must read."""
        return tuple(n for n, c in enumerate(self.children) if c)

    @property
    def name(self) -> str:
        """The preset's name where it is one, else the level widths."""
        return next((n for n, t in PRESETS.items() if t == self), "/".join(map(str, self.widths)) or "root")

    def ancestors(self) -> Tensor:
        """(N+1, N+1) bool: entry (i, j) says that node i sees node j, its ancestor or itself (the tree mask)."""
        mask = torch.eye(len(self.parents), dtype=torch.bool)
        for node, parent in enumerate(self.parents[1:], start=1):
            mask[node] |= mask[parent]
        return mask


# The static trees of EAGLE-1 (25 nodes) and of LANTERN++ (57 nodes), as paths of child ranks.
_EAGLE_25 = (
    "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
)
_LANTERN_57 = (
    "0 1 2 3 4 00 01 02 03 10 11 12 20 21 22 30 31 40 000 001 002 003 010 011 012 020 021 022 030 031 100 "
    "101 110 200 0000 0001 0002 0003 0010 0011 0012 0020 0021 0030 0100 0101 0110 0200 00000 00001 00002 "
    "00010 00011 00100 00101 00110 00200"
)


def _from_digits(text: str) -> Tree:
    return Tree.from_paths([int(digit) for digit in word] for word in text.split())


PRESETS: dict[str, Tree] = {
    "root": Tree((-1,)),
    "chain5": Tree.from_branching([1] * 5),
    "cpu4": Tree.from_branching([4]),
    "cpu8": Tree.from_widths([3, 3, 1, 1]),
    "cpu14": Tree.from_widths([3, 4, 4, 2, 1]),
    "eagle25": _from_digits(_EAGLE_25),
    "lantern57": _from_digits(_LANTERN_57),
}


def parse_tree(value: object) -> Tree:
    """A Tree from a preset's name, branching (`"3,2,1"` or a list), the text of a tree (`"3/2.1.0"`: three tokens, of
    which the first has two children and the second one), EAGLE paths (a list or its text), or `{"parents": [...]}`.

    Raises TreeError for all else.
    """
    if isinstance(value, Tree):
        return value
    if isinstance(value, str):
        text = value.strip()
        if text in PRESETS:
            return PRESETS[text]
        if text.startswith("[") and len(text) <= 20_000:
            try:
                return parse_tree(json.loads(text))
            except (ValueError, RecursionError) as error:
                if isinstance(error, TreeError):
                    raise
                raise TreeError(f"The path list {shortened(text)} cannot be read: write it as in [[0], [1], [0, 0]].") \
                    from None
        levels = [p.split(".") for p in text.replace("/", ",").replace(" ", ",").split(",") if p]
        if not levels or not all(p.isascii() and p.isdigit() and len(p) <= 4 for level in levels for p in level):
            raise TreeError(f"The draft tree {shortened(text)} is unknown: use one of {', '.join(PRESETS)}, or "
                            "branching such as 3,2,1.")
        if all(len(level) == 1 for level in levels):
            return Tree.from_branching([int(level[0]) for level in levels])
        return Tree.from_counts([[int(p) for p in level] for level in levels])
    if isinstance(value, dict):
        value = value.get("parents")
        if isinstance(value, list | tuple) and len(value) <= 100_000 and all(type(p) is int for p in value):
            return Tree(tuple(value))
        raise TreeError("The draft tree must be given as {\"parents\": [-1, 0, 0, ...]} with whole numbers.")
    if isinstance(value, list | tuple) and len(value) <= 100_000:
        if value and all(isinstance(p, list | tuple) and all(type(r) is int for r in p) for p in value):
            return Tree.from_paths(value)
        return Tree.from_branching(value)
    raise TreeError(f"The draft tree {shortened(value)} is not understood: use one of {', '.join(PRESETS)}, or "
                    "branching such as 3,2,1.")
