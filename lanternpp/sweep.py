"""A sweep: a grid of settings, each measured beside plain AR on the same prompts and seeds. It stops and goes on.

Settings run in blocks of a few. In a round, AR and a block's settings paint one prompt with one seed, one after the
other in one process (bench.py); a round that was cut short is not counted. Quality is the scorer's view of the
pictures, as a change to AR's own of the same prompts and seeds.
"""

from __future__ import annotations

import hashlib
import io
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from . import bench, evaluate, quality
from .frontier import SERIES, csv_text, dominates
from .grid import BLOCK, Grid
from .pipeline import LanternPipeline, Output
from .scorer import Scorer, parts
from .settings import BOUNDS, METHODS, Settings, SettingsError
from .tree import PRESETS

MEASURED = ("seconds", "seconds_ar", "speedup", "speedup_low", "speedup_high", "pareto", "device")  # differ by run
COLUMNS = ("label", "method", "tree", "nodes", "k", "bound", "gamma", "order", "images", "tokens", "steps",
           "accepted_length", "step_compression", "relaxed_only", "similarity", "similarity_change", "similarity_low",
           "similarity_high", "top1", "top1_change", "top1_low", "top1_high", *MEASURED)


@dataclass(frozen=True)
class Progress:
    """After each run: runs done of how many, seconds left as far as known, what ran, whether its round is complete."""

    done: int
    total: int
    left: float | None
    now: str
    complete: bool


@dataclass
class Sweep:
    """What has been measured of a grid: rounds[block, picture] holds a run of AR and one of each of the block's
    settings. Settings are numbered from 1 as in the grid; 0 is AR. Of the first `keep` pictures of each the PNG files
    are kept, by setting and picture."""

    grid: Grid
    rounds: dict[tuple[int, int], list[dict]] = field(default_factory=dict)
    keep: int = 0
    pictures: dict[tuple[int, int], bytes] = field(default_factory=dict)
    about: dict[str, object] = field(default_factory=dict)
    _rows: dict[tuple, dict] = field(default_factory=dict)

    @property
    def done(self) -> int:
        return sum(map(len, list(self.rounds.values())))  # which the measuring thread fills

    @property
    def complete(self) -> bool:
        return self.done == self.grid.runs

    def copy(self) -> Sweep:
        """One that goes on by itself."""
        return replace(self, rounds=dict(self.rounds), pictures=dict(self.pictures), _rows={})

    def run(self, pipe: LanternPipeline) -> Iterator[Progress]:
        """Measure what is missing; yields after each run. Closing the generator keeps every complete round."""
        known = pipe.bundle.words is not None and all(parts(prompt)[0] for prompt in self.grid.prompts)
        scorer = Scorer.load() if known else None
        self.about = {**pipe.describe(), "mode": self.grid.points[0].mode}
        spent, ran, began = 0.0, 0.0, time.perf_counter()
        for number, block in enumerate(self.grid.blocks):
            missing = [i for i in range(len(self.grid.pictures)) if (number, i) not in self.rounds]
            together = [self.grid.round(number, i) for i in missing]
            some: dict[int, dict] = {}
            for step in bench.interleave(pipe, together, [bench.Runs(s) for s in block]) if together else ():
                picture = missing[(step.done - 1) // (len(block) + 1)]
                place = self.grid.round(number, picture).index(step.settings)
                some[place] = self._judge(step, scorer)
                if picture < self.keep:
                    file = io.BytesIO()
                    step.output.images[0].save(file, "PNG")
                    self.pictures[place and number * BLOCK + place, picture] = file.getvalue()
                if complete := len(some) == len(block) + 1:
                    self.rounds[number, picture] = [run for _, run in sorted(some.items())]
                    some = {}
                spent, ran = spent + time.perf_counter() - began, ran + step.summary["total_seconds"]
                left = self._left(len(some)) * spent / ran if self.rounds else None
                yield Progress(self.done + len(some), self.grid.runs, left, step.settings.label, complete)
                began = time.perf_counter()

    @staticmethod
    def _judge(step: bench.Progress, scorer: Scorer | None) -> dict[str, object]:
        """What is kept of a run."""
        names = ("tokens", "steps", "accepted_length", "step_compression", "relaxed_only", "total_seconds")
        run = {name: step.summary[name] for name in names}
        if scorer:
            run |= judge(scorer, step.output, step.settings.prompt)
        return run

    def _left(self, some: int) -> float:
        """Seconds of decoding that are left: what was not measured yet takes as long as the others did on average."""
        ar = np.mean([runs[0]["total_seconds"] for runs in self.rounds.values()])
        other = np.mean([run["total_seconds"] for runs in self.rounds.values() for run in runs[1:]])
        rounds = len(self.grid.pictures) * len(self.grid.blocks) - len(self.rounds)
        missing = self.grid.runs - self.done - some
        return float(rounds * ar + max(0, missing - rounds) * other)

    def rows(self) -> list[dict[str, object]]:
        """A row of COLUMNS for AR and each setting of which a round is complete, and its number ("setting"); None
        where nothing is known."""
        baseline: dict[int, dict] = {}
        for (_, picture), runs in sorted(self.rounds.items()):
            baseline.setdefault(picture, runs[0])
        if not baseline:
            return []
        runs = list(baseline.values())
        rows = [self._row(0, runs, runs)]
        for number, block in enumerate(self.grid.blocks):
            measured = [self.rounds[n, i] for n, i in sorted(self.rounds) if n == number]
            for place in range(1, len(block) + 1) if measured else ():
                rows.append(self._row(number * BLOCK + place, [r[place] for r in measured], [r[0] for r in measured]))
        for row in rows:
            judged = row["similarity"] is not None
            row["pareto"] = judged and not any(dominates(other, row, "similarity_change", -1) for other in rows)
        return rows

    def _row(self, number: int, runs: list[dict], base: list[dict]) -> dict[str, object]:
        if (key := (number, len(runs))) not in self._rows:
            self._rows[key] = {"setting": number, **row_of(self.grid.setting(number), runs, base)}
        return {**self._rows[key], "device": self.about.get("device", "")}

    def document(self) -> dict[str, object]:
        """All that was measured, where, and of what grid; JSON-ready."""
        keys = ("model", "device", "dtype", "mode", "threads", "torch")
        return {**{k: self.about.get(k) for k in keys}, "sampling": vars(self.grid.points[0].sampling),
                "complete": self.complete, "rows": self.rows(), "grid": self.grid.to_dict(),
                "rounds": [{"block": b, "picture": i, "runs": runs} for (b, i), runs in sorted(self.rounds.items())]}

    def csv(self) -> str:
        """The rows as CSV text."""
        return csv_text(self.rows(), COLUMNS)


def judge(scorer: Scorer, output: Output, prompt: str) -> dict[str, float]:
    """Cosine similarity of a picture and its prompt, and the prompt's rank among 100, 0 for the best."""
    pixels = torch.from_numpy(np.array(output.images[0].convert("RGB"))).permute(2, 0, 1)[None] / 127.5 - 1
    similarity, rank = scorer.alignment(scorer.image_embeddings(pixels), [prompt])
    return {"similarity": float(similarity), "rank": int(rank)}


def row_of(point: Settings, runs: Sequence[dict], base: Sequence[dict]) -> dict[str, object]:
    """A setting's row from its runs and those of AR of the same pictures. Knobs that it does not read are empty."""
    def column(name: str, of: Sequence[dict] = runs) -> np.ndarray:
        return np.array([run[name] for run in of], dtype=float)

    def change(name: str, values: np.ndarray) -> dict[str, float | None]:
        drawn = np.append(values, (1, -1)) if name == "top1" else values  # see evaluate.beside: few prove little
        low, high = quality.bootstrap_interval(drawn, 0, resamples=1000) if len(values) > 1 else (None, None)
        return {f"{name}_change": float(values.mean()), f"{name}_low": low, f"{name}_high": high}

    ratios = bench.quartiles(column("total_seconds", base) / column("total_seconds"))
    means = {n: float(column(n).mean()) for n in ("tokens", "steps", "accepted_length", "step_compression",
                                                  "relaxed_only")}
    row: dict[str, object] = {
        **dict.fromkeys(COLUMNS), "label": point.label, "method": point.method, "nodes": point.tree.nodes,
        "tree": point.tree.name if point.tree in PRESETS.values() else point.tree.text, "images": len(runs), **means,
        "speedup": ratios["median"], "speedup_low": ratios["low"], "speedup_high": ratios["high"],
        "seconds": float(np.median(column("total_seconds"))),
        "seconds_ar": float(np.median(column("total_seconds", base)))}
    if point.method in BOUNDS:
        row |= {"k": point.k, "bound": point.bound}
        row |= {} if point.relaxation.coupled else {"order": point.order}
    if point.method == "annealed":
        row["gamma"] = point.gamma
    if "similarity" in runs[0]:
        right = [(column("rank", of) == 0).astype(float) for of in (runs, base)]
        row |= {"similarity": float(column("similarity").mean()), "top1": float(right[0].mean()),
                **change("similarity", column("similarity") - column("similarity", base)),
                **change("top1", right[0] - right[1])}
    return row


def key_of(grid: Grid, model: str) -> str:
    """A short name for a model's sweep of a grid."""
    return hashlib.sha256(json.dumps([model, grid.to_dict()]).encode()).hexdigest()[:16]


class Log:
    """A sweep's rounds as a file of JSON lines, for a run that may be stopped; the first line says what was swept."""

    def __init__(self, path: Path, pipe: LanternPipeline, grid: Grid):
        self.path = path
        own = evaluate.mark(pipe, grid.points[0], grid.prompts, [grid.points[0].seed])
        self.head = {"sweep": key_of(grid, own), "device": pipe.describe()["device"]}

    def read(self) -> dict[tuple[int, int], list[dict]]:
        """Rounds that were measured before. SettingsError where the file holds another sweep, or another device's."""
        if not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.path.write_text(json.dumps(self.head) + "\n")
        first, *lines = self.path.read_text().splitlines() or [""]
        if first != json.dumps(self.head):
            raise SettingsError("out", f"{self.path} holds another sweep, or one of other hardware or weights: name "
                                       "another folder with --out.")
        whole = (json.loads(line) for line in lines if line.endswith("]}"))  # the last may have been cut off
        return {(each["block"], each["picture"]): each["runs"] for each in whole}

    def add(self, place: tuple[int, int], runs: list[dict]) -> None:
        """Keep a complete round."""
        block, picture = place
        with self.path.open("a") as file:
            file.write(json.dumps({"block": block, "picture": picture, "runs": runs}) + "\n")


def figure(rows: Sequence[dict], about: dict[str, object], file: Path | io.BytesIO) -> None:
    """Speedup against the change of similarity to the prompt as a PNG: quartiles and 95 % intervals as bars, the Pareto
    front ringed; without a scorer, against the accepted length."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(7.2, 4.8), layout="constrained")
    axes, judged = page.subplots(), rows[0]["similarity"] is not None
    key = "similarity_change" if judged else "accepted_length"
    for method, (colour, mark) in {"ar": ("#6a7280", "o"), **SERIES}.items():
        for row in [r for r in rows if r["method"] == method]:
            x, y = row["speedup"], row[key]
            low, high = (row["similarity_low"], row["similarity_high"]) if judged else (y, y)
            axes.plot([row["speedup_low"], row["speedup_high"]], [y, y], color=colour, lw=1, alpha=0.6)
            axes.plot([x, x], [y if low is None else low, y if high is None else high], color=colour, lw=1, alpha=0.35)
            axes.plot([x], [y], mark, color=colour, ls="", mfc="white" if method == "ar" else colour,
                      label=METHODS[method] if METHODS[method] not in axes.get_legend_handles_labels()[1] else None)
    best = sorted((r["speedup"], r[key]) for r in rows if r["pareto"])
    axes.plot(*zip(*best, strict=True) if best else ([], []), "o-", color="#1a1c20", lw=0.8, mfc="none", ms=11,
              label="Pareto front" if best else None)
    images = [r["images"] for r in rows]
    count = f"{min(images)}" if min(images) == max(images) else f"{min(images)} to {max(images)}"
    axes.set(xlabel="Measured speedup over plain AR, median and quartiles",
             ylabel="Similarity to the prompt, change from AR" if judged else "Accepted length")
    axes.set_title("; ".join(map(str, (about.get("model", ""), about.get("device", ""), about.get("dtype", ""),
                                       f"{count} pictures a setting"))), fontsize=8, loc="left")
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="best")
    page.savefig(file, dpi=140, format="png")


def render(rows: Sequence[dict]) -> str:
    """A plain-text table for the terminal."""
    head = (f"{'':<44}{'speedup':>22}{'accepted':>10}{'similarity':>12}{'change':>9}{'found':>8}{'pictures':>10}"
            "  Pareto front")
    lines = [head, "-" * len(head)]
    for row in rows:
        fast = f"{row['speedup']:.2f}× ({row['speedup_low']:.2f}–{row['speedup_high']:.2f})"
        seen = [""] * 3 if row["similarity"] is None else [
            f"{row['similarity']:.3f}", f"{row['similarity_change']:+.3f}", f"{100 * row['top1']:.0f} %"]
        lines.append(f"{row['label']:<44}{fast:>22}{row['accepted_length']:>10.2f}{seen[0]:>12}{seen[1]:>9}{seen[2]:>8}"
                     f"{row['images']:>10}  {'yes' if row['pareto'] else ''}")
    return "\n".join(lines)
