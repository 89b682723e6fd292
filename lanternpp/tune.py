"""`python -m lanternpp tune`: the static draft tree that is fastest for a model on this machine, found and measured.

Acceptance is counted in traces, the cost of a step is timed on random trees, search.py predicts the best tree of each
size, and what was predicted is then measured beside the hand-made presets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from . import cost as costs
from .acceptance import acceptance_table
from .bench import PROMPTS, Runs, interleave, quartiles
from .cost import CostCurve
from .pipeline import LanternPipeline, run
from .search import Candidate, candidate, search
from .settings import METHODS, Settings
from .trace import Trace
from .tree import MAX_DEPTH, MAX_NODES, PRESETS, Tree

# Trees whose traces show wide, ordinary and deep places; together they reach every depth that may be searched.
PROBES = (Tree.from_widths((12, 24, 24, 16, 12, 9, 7, 6, 5, 4, 3, 2, 1, 1, 1)), PRESETS["cpu8"],
          Tree.from_widths((3,) * MAX_DEPTH))


def probe(pipe: LanternPipeline, settings: Settings, pictures: int) -> Iterator[tuple[int, int]]:
    """Decode pictures with the trees of PROBES in turn; yields (done, total), returns their traces.

    In sequential order, whatever the settings say: there a child's acceptance does not depend on how many siblings come
    after it, and in both orders one of them is accepted equally often.
    """
    traces = []
    for number in range(pictures):
        own = replace(settings, tree=PROBES[number % len(PROBES)], order="sequential",
                      prompt=PROMPTS[number % len(PROMPTS)], seed=(settings.seed + number) % 2**31)
        traces.append(run(pipe.stream(own)).trace)
        yield number + 1, pictures
    return traces


def once(trace: Trace) -> float:
    """Seconds of a picture that are no step's: prompt, prefill and pixels."""
    return trace.seconds["total"] - (trace.events[-1].seconds - trace.events[0].seconds)


def predicted_speedup(one: Candidate, cost: CostCurve, apart: float, length: int) -> float:
    """Over AR, of a whole picture of `length` tokens: `apart` seconds that every method spends, and its steps."""
    return (apart + (length - 1) * cost.seconds[0]) / (apart + (length - 1) * one.seconds)


@dataclass(frozen=True)
class Measured:
    """Interleaved runs of AR, the first of `runs`, and of trees."""

    trees: tuple[Tree, ...]
    runs: tuple[Runs, ...]

    def of(self, tree: Tree) -> Runs:
        return self.runs[1 + self.trees.index(tree)]

    def gain(self, tree: Tree, over: Tree | None = None) -> dict[str, float]:
        """Quartiles of how many times faster `tree` is than `over` or, without it, than AR, picture by picture."""
        other = self.runs[0] if over is None else self.of(over)
        return quartiles(other.column("total_seconds") / self.of(tree).column("total_seconds"))

    def fastest(self, trees: Iterable[Tree]) -> Tree:
        return min(trees, key=lambda tree: np.median(self.of(tree).column("total_seconds")))


def measure(pipe: LanternPipeline, settings: Settings, trees: Iterable[Tree], first: int,
            count: int) -> Iterator[tuple[int, int]]:
    """Run AR and the trees interleaved on pictures `first` to `first + count`; yields (done, total), returns
    Measured."""
    trees = tuple(dict.fromkeys(trees))
    bases = [replace(settings, prompt=PROMPTS[n % len(PROMPTS)], seed=(settings.seed + 10_000 + n) % 2**31)
             for n in range(first, first + count)]
    pairs = [[base.baseline(), *(replace(base, tree=tree) for tree in trees)] for base in bases]
    runs = tuple(Runs(each) for each in pairs[0])
    for progress in interleave(pipe, pairs, runs):
        yield progress.done, progress.total
    return Measured(trees, runs)


def tune(pipe: LanternPipeline, settings: Settings, traces: int = 6, pictures: int = 5, rounds: int = 3,
         budget: int = MAX_NODES) -> Iterator[tuple[str, int, int]]:
    """Yields (what, done, total) as it goes; returns (the tuned tree, the JSON document of all that was found).

    The searched tree of each size and all presets are measured on the same pictures. The fastest of either kind then
    meet on pictures of their own, so that the gain is not that of a lucky choice; the tuned tree is the winner.
    """
    decoded = yield from _named("pictures for acceptance", probe(pipe, settings, traces))
    table, apart = acceptance_table(decoded), float(np.median([once(trace) for trace in decoded]))
    sizes = [size for size in costs.SIZES if size <= budget]
    cost = yield from _named("trees for the cost of a step", costs.measure(pipe, settings, sizes, rounds=rounds))
    found = search(table, cost, budget)
    best = min(found.values(), key=lambda c: c.seconds)
    searched = {found[size].tree: found[size] for size in sizes if size in found} | {best.tree: best}
    presets = {tree: candidate(tree, table, cost) for tree in PRESETS.values() if tree.nodes}
    measured = yield from _named("pictures, every tree", measure(pipe, settings, [*searched, *presets], 0, pictures))
    own, hand = measured.fastest(searched), measured.fastest(presets)
    winner, duel = own, None
    if own != hand:
        final = yield from _named("pictures, the two best", measure(pipe, settings, [own, hand], pictures, pictures))
        duel = {"searched": list(own.parents), "preset": hand.name, "pictures": pictures,
                "gain": final.gain(own, hand), "speedup": {"searched": final.gain(own), "preset": final.gain(hand)}}
        winner = own if duel["gain"]["median"] >= 1 else hand
    length = pipe.bundle.target.config.image_tokens
    rows = {kind: [_row(c, cost, apart, length, measured) for c in sorted(of.values(), key=lambda c: c.tree.nodes)]
            for kind, of in (("searched", searched), ("presets", presets))}
    document = {**{k: pipe.describe()[k] for k in ("model", "device", "dtype", "threads", "torch")},
                "mode": settings.mode,
                "method": settings.method, "sampling": vars(settings.sampling),
                "acceptance": {"tested": table.tested.tolist(), "accepted": table.accepted.tolist()},
                "cost": asdict(cost), "once": round(apart, 4), **rows, "predicted_best": list(best.tree.parents),
                "duel": duel, "tuned": {"name": winner.name, "parents": list(winner.parents)}}
    return winner, document


def _named(what: str, work: Iterator[tuple[int, int]]) -> Iterator[tuple[str, int, int]]:
    while True:
        try:
            done, total = next(work)
        except StopIteration as end:
            return end.value
        yield what, done, total


def _row(one: Candidate, cost: CostCurve, apart: float, length: int, measured: Measured) -> dict[str, Any]:
    tree = one.tree
    accepted = float(np.mean(measured.of(tree).column("accepted_length")))
    return {"name": tree.name, "nodes": tree.nodes, "depth": tree.depth, "parents": list(tree.parents),
            "predicted": {"accepted_length": round(one.accepted_length, 4), "step": round(one.step, 6),
                          "speedup": round(predicted_speedup(one, cost, apart, length), 4)},
            "measured": {"accepted_length": round(accepted, 4), "speedup": measured.gain(tree)}}


def render(document: dict) -> str:
    """The document as text for the terminal; what is predicted is called so."""
    cost = document["cost"]
    head = (f"{'tree':<26}{'nodes':>6}{'levels':>7}{'predicted: accepted':>20}{'step':>11}{'speedup':>9}"
            f"{'measured: accepted':>20}{'speedup':>20}")
    lines = [f"Plain AR takes {1000 * cost['seconds'][0]:.2f} ms a step. The cost curve misses the random trees it was "
             f"fitted to by {100 * cost['misfit']:.1f} % (median).", head, "-" * len(head)]
    for kind in ("searched", "presets"):
        for row in document[kind]:
            p, m = row["predicted"], row["measured"]
            name = row["name"] if len(row["name"]) <= 25 else row["name"][:22] + "..."
            speed = f"{m['speedup']['median']:.2f}× ({m['speedup']['low']:.2f}–{m['speedup']['high']:.2f})"
            lines.append(f"{name:<26}{row['nodes']:>6}{row['depth']:>7}{p['accepted_length']:>20.2f}"
                         f"{1000 * p['step']:>8.2f} ms{p['speedup']:>8.2f}×{m['accepted_length']:>20.2f}{speed:>20}")
        lines.append("-" * len(head))
    return "\n".join([*lines, verdict(document)])


def verdict(document: dict) -> str:
    """What was found, in a few sentences, with its spread."""
    duel, name = document["duel"], document["tuned"]["name"]
    if duel is None:
        return f"The search found the hand-made preset {name} itself; it is kept as the tuned tree."
    median, low, high = (100 * (duel["gain"][key] - 1) for key in ("median", "low", "high"))
    spread = f"({low:+.1f} to {high:+.1f} %, quartiles of {duel['pictures']} fresh pictures)"
    if median < 0:
        said = (f"No searched tree is faster than the hand-made preset {name}, which is kept as the tuned tree: the "
                f"best makes {-median:.1f} % fewer pictures a second {spread}.")
    else:
        said = (f"The tuned tree {name} makes {median:.1f} % more pictures a second {spread} than the best hand-made "
                f"preset, {duel['preset']}.")
    if low < 0 < high:
        said += " The spread holds 0: more pictures on a quiet machine would tell them apart."
    speedup = duel["speedup"]["preset" if median < 0 else "searched"]["median"]
    if speedup < 1:
        said += f" Plain AR is faster than either: the tuned tree's speedup is {speedup:.2f}×."
    return said


def figure(path: Path, document: dict) -> None:
    """PNG of speedup against nodes: the searched trees predicted and measured, the presets measured; bars are
    quartiles."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chart = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(chart)
    axes = chart.add_subplot()

    def measured(rows: Sequence[dict], **style: Any) -> None:
        found = [row["measured"]["speedup"] for row in rows]
        bars = [[f["median"] - f["low"] for f in found], [f["high"] - f["median"] for f in found]]
        axes.errorbar([row["nodes"] for row in rows], [f["median"] for f in found], bars, capsize=3, **style)

    searched, presets = document["searched"], document["presets"]
    axes.plot([row["nodes"] for row in searched], [row["predicted"]["speedup"] for row in searched], "--",
              label="searched trees, predicted")
    measured(searched, fmt="o-", label="searched trees, measured")
    measured(presets, fmt="s", color="grey", label="hand-made presets, measured")
    for row in presets:
        axes.annotate(row["name"], (row["nodes"], row["measured"]["speedup"]["median"]), (4, 4),
                      textcoords="offset points", fontsize=8)
    axes.axhline(1, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sizes := [row["nodes"] for row in searched], map(str, sizes))
    axes.set(xlabel="budget: drafted nodes a step", ylabel="speedup over plain AR",
             title=f"{document['model']}, {METHODS[document['method']]}\n{document['device']}, {document['dtype']}")
    axes.legend()
    path.parent.mkdir(parents=True, exist_ok=True)
    chart.savefig(path, dpi=120, format="png")
