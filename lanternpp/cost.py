"""What a decoding step costs on this machine, as a function of its tree: measured on random trees, then fitted.

seconds(tree) = nodes(N) + level · D + row · R + rank · K: N nodes, interpolated between the sizes that were measured; D
levels, one drafter call each; R nodes that the drafter reads below the root; K the most children of a node, each of
which is one round of verification. Random trees vary the four apart from each other.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from .decode import read_row
from .pipeline import LanternPipeline
from .settings import Settings
from .tree import MAX_DEPTH, PRESETS, Tree

SIZES = (1, 2, 4, 8, 16, 32, 64, 127)


def features(tree: Tree) -> tuple[int, int, int]:
    """D, R and K of a tree."""
    return tree.depth, max(0, len(tree.inner) - 1), max(len(c) for c in tree.children)


@dataclass(frozen=True)
class CostCurve:
    """seconds[i] is what nodes[i] nodes cost apart from level, row and rank; nodes[0] is 0, plain AR. misfit: median
    relative error on the trees that were measured."""

    nodes: tuple[int, ...]
    seconds: tuple[float, ...]
    level: float
    row: float
    rank: float
    misfit: float = 0.0

    def step(self, tree: Tree) -> float:
        """Predicted seconds of a step with this tree, halfway through a picture."""
        if not tree.nodes:
            return self.seconds[0]
        own = np.interp(tree.nodes, self.nodes[1:], self.seconds[1:])
        return float(own + np.dot((self.level, self.row, self.rank), features(tree)))


def random_tree(nodes: int, rng: np.random.Generator) -> Tree:
    """A tree whose depth and width are random too: each node's parent is drawn from those that still have room."""
    depth, width = int(rng.integers(3 if nodes > 8 else 1, MAX_DEPTH + 1)), int(rng.integers(1, 11))
    depths, children = [0], [0]
    parents = [-1]
    for node in range(1, nodes + 1):
        room = [n for n in range(node) if depths[n] < depth and children[n] < width]
        parent = int(rng.choice(room or [n for n in range(node) if depths[n] < depth]))
        parents.append(parent)
        children[parent] += 1
        depths.append(depths[parent] + 1)
        children.append(0)
    paths: list[tuple[int, ...]] = [()]
    seen = [0] * (nodes + 1)
    for parent in parents[1:]:
        paths.append((*paths[parent], seen[parent]))
        seen[parent] += 1
    return Tree.from_paths(paths[1:])


@torch.inference_mode()
def step_seconds(pipe: LanternPipeline, settings: Settings, steps: int) -> list[float]:
    """Seconds of each of `steps` steps halfway through a picture, after two that are not counted.

    On a GPU, which works ahead of the host, a measurement is the mean of eight steps in a row.
    """
    found = []
    with pipe.lend(settings) as decoder:
        step, run = decoder.step, decoder.run or decoder.step
        condition, valid = pipe.read_prompt(settings)
        step.prefill(condition, [settings.seed], valid)
        middle, late = step.length // 2, step.target.device.type == "cuda"
        for _ in range(steps + 2):
            step.position.fill_(middle)
            step.committed.fill_(1)
            if late:
                torch.cuda.synchronize()
            began = time.perf_counter()
            for _ in range(8 if late else 1):
                rows = [part.to("cpu", non_blocking=True) for part in run(step.reach(middle))]
            if late:
                torch.cuda.synchronize()
            else:
                read_row(step, 1, *(part[0].tolist() for part in rows), 0.0)
            found.append((time.perf_counter() - began) / (8 if late else 1))
    return found[2:]


def measure(pipe: LanternPipeline, settings: Settings, sizes: Sequence[int] = SIZES, trees: int = 4, rounds: int = 3,
            steps: int = 5) -> Iterator[tuple[int, int]]:
    """Time AR and `trees` random trees of each size, all of them in each round; yields (done, total), returns the
    CostCurve of the medians."""
    rng = np.random.default_rng(0)
    drawn = [PRESETS["root"], *(random_tree(size, rng) for size in sizes for _ in range(trees))]
    found: list[list[float]] = [[] for _ in drawn]
    for turn in range(rounds):
        for which, tree in enumerate(drawn):
            own = replace(settings, tree=tree) if tree.nodes else settings.baseline()
            found[which] += step_seconds(pipe, own, steps)
            yield turn * len(drawn) + which + 1, rounds * len(drawn)
    return fit(drawn, [float(np.median(seconds)) for seconds in found])


def fit(trees: Sequence[Tree], seconds: Sequence[float]) -> CostCurve:
    """Least squares of relative errors. trees[0] is the root. A part that would come out negative is left at 0."""
    sizes = sorted({t.nodes for t in trees[1:]})
    own = np.array([[float(t.nodes == size) for size in sizes] for t in trees[1:]])
    parts = np.array([features(t) for t in trees[1:]], dtype=float)
    measured = np.array(seconds[1:])
    used = [0, 1, 2]
    while True:
        design = np.hstack([own, parts[:, used]]) / measured[:, None]
        solved = np.linalg.lstsq(design, np.ones(len(measured)), rcond=None)[0]
        extra = solved[len(sizes):]
        if not used or extra.min() >= 0:
            break
        used.pop(int(extra.argmin()))
    level, row, rank = (float(extra[used.index(i)]) if i in used else 0.0 for i in range(3))
    curve = np.maximum.accumulate(solved[:len(sizes)])
    result = CostCurve((0, *sizes), (float(seconds[0]), *map(float, curve)), level, row, rank)
    errors = [abs(result.step(t) / s - 1) for t, s in zip(trees, seconds, strict=True)]
    return replace(result, misfit=float(np.median(errors)))
