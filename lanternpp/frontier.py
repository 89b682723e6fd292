"""The speed–quality frontier: one grid of methods, knobs and trees, each point with its speedup and its quality.

Quality is measured on pictures painted in batches (evaluate.py), speed on single pictures, interleaved with AR in one
process (bench.py). Both go on where they were stopped.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from . import bench, evaluate
from .pipeline import LanternPipeline
from .scorer import Scorer
from .settings import METHODS, Settings

COLUMNS = ("label", "method", "tree", "nodes", "k", "bound", "gamma", "order", "images", "speedup", "speedup_low",
           "speedup_high", "pairs", "accepted_length", "top1", "top1_change", "top1_low", "top1_high", "similarity",
           "frechet_real", "frechet_ar", "frechet_floor", "precision", "recall", "equivalent", "pareto", "device",
           "weights")

SERIES = {"exact": ("#1d68b3", "o"), "lantern": ("#16776f", "^"), "lanternpp": ("#e0801f", "D"),
          "annealed": ("#2b2e35", "s"), "coupled": ("#7a4fb5", "P"), "coupled-relaxed": ("#b0468c", "X"),
          "eagle2": ("#5d6d1e", "v")}  # colour and mark of a method in figures


def grid(trees: Sequence[str] = ("cpu4", "cpu8", "cpu14")) -> list[dict[str, object]]:
    """The knobs of every point: rules × order × (k, bound, γ) × tree."""
    points: list[dict[str, object]] = []
    for tree in trees:
        points += [{"method": m, "tree": tree} for m in ("exact", "coupled", "eagle2")]
        for order in ("strict-first", "sequential"):
            points += [{"method": "lanternpp", "tree": tree, "k": k, "bound": bound, "order": order}
                       for k, bound in ((100, 2.0), (1000, 3.0), (1000, 5.0))]
            points += [{"method": "lantern", "tree": tree, "k": k, "bound": bound, "order": order}
                       for k, bound in ((100, 0.2), (1000, 0.4))]
        points += [{"method": "lanternpp", "tree": tree, "k": 10, "bound": 2.0},
                   {"method": "lantern", "tree": tree, "k": 100, "bound": 0.05}]
        points += [{"method": "annealed", "tree": tree, "k": 1000, "bound": 5.0, "gamma": g} for g in (0.5, 0.8)]
        points += [{"method": "coupled-relaxed", "tree": tree, "k": 1000, "bound": bound} for bound in (3.0, 10.0)]
    return points


def weights_mark(folder: Path) -> str:
    """A short text that another byte in the weights of a folder changes: whether a table still speaks of them."""
    digest = hashlib.sha256()
    for path in sorted(folder.glob("*.safetensors")):
        if not path.name.startswith("neighbours-"):  # a cache
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def speeds(pipe: LanternPipeline, points: Sequence[Settings], pairs: int, file: Path) -> Iterator[str]:
    """Measure each point's speedup over AR on `pairs` prompts, interleaved, and keep it in `file` (JSON lines); yields
    the label of each point as it is done. Points that the file holds are not measured again."""
    known = read_speeds(pipe, file)
    for settings in points:
        if settings.label not in known:
            runs = [bench.Runs(settings.baseline()), bench.Runs(settings)]
            prompts = [bench.PROMPTS[i % len(bench.PROMPTS)] for i in range(pairs)]
            together = [[replace(s.settings, prompt=p, seed=i) for s in runs] for i, p in enumerate(prompts)]
            for _ in bench.interleave(pipe, together, runs):
                pass
            rows = bench.table(runs)
            row = next(r for name, r in rows.items() if name != "ar")
            with file.open("a") as out:
                out.write(json.dumps({"label": settings.label, "device": pipe.describe()["device"], "pairs": pairs,
                                      **{k: row["speedup"][k] for k in ("median", "low", "high")}}) + "\n")
        yield settings.label


def read_speeds(pipe: LanternPipeline, file: Path) -> dict[str, dict]:
    """What `speeds` measured on this device, by label."""
    rows = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    return {r["label"]: r for r in rows if r["device"] == pipe.describe()["device"]}


def table(pipe: LanternPipeline, points: Sequence[Settings], prompts: Sequence[str], seeds: Sequence[int],
          folder: Path, batch: int, scorer: Scorer | None = None,
          weights: str = "") -> tuple[list[dict[str, object]], dict[str, dict]]:
    """A row of COLUMNS for each point, all painted and timed; and the scores they are made of (evaluate.report).

    weights: the mark of the model's folder.
    """
    speed = read_speeds(pipe, folder / "speeds.jsonl")
    quality = evaluate.report(pipe, points, prompts, seeds, folder, batch, scorer)
    rows: list[dict[str, object]] = []
    for s in points:
        q, v = quality[s.label], speed[s.label]
        rows.append({
            "label": s.label, "method": s.method, "tree": s.tree.name, "nodes": s.tree.nodes, "k": s.k,
            "bound": s.bound, "gamma": s.gamma, "order": s.order, "images": len(prompts), "speedup": v["median"],
            "speedup_low": v["low"], "speedup_high": v["high"], "pairs": v["pairs"],
            "device": v["device"], "weights": weights,
            "top1_low": q["top1_interval"][0], "top1_high": q["top1_interval"][1],
            **{k: q[k] for k in COLUMNS if k in q}})
    plain = {"speedup": 1.0, **quality["ar"]}  # which is a point of the plane as well
    for row in rows:
        row["pareto"] = not any(dominates(other, row) for other in (plain, *rows))
    return rows, quality


def dominates(a: dict[str, object], b: dict[str, object], quality: str = "frechet_real", worse: int = 1) -> bool:
    """Whether a is as fast as b and as good, and better in one of the two. Quality is, by default, the distance to the
    real pictures; worse = -1 where less of it is worse."""
    faster, better = a["speedup"] - b["speedup"], worse * (b[quality] - a[quality])
    return faster >= 0 and better >= 0 and (faster > 0 or better > 0)


def csv_text(rows: Sequence[dict[str, object]], columns: Sequence[str] = COLUMNS) -> str:
    """Rows as CSV, numbers to four digits."""
    file = io.StringIO(newline="")
    writer = csv.DictWriter(file, columns, extrasaction="ignore")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()})
    return file.getvalue()


def write_csv(rows: Sequence[dict[str, object]], path: Path) -> None:
    """Write rows of COLUMNS."""
    path.write_text(csv_text(rows), newline="")


def figure(rows: Sequence[dict[str, object]], ar: dict[str, float], floor: dict[str, float], path: Path) -> None:
    """Speedup against Fréchet distance and against alignment; a series a method, Pareto points ringed, AR and its
    noise floor as a line and a band."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(11, 4.6), layout="constrained")
    for axes, key, title in zip(page.subplots(1, 2), ("frechet_real", "top1"),
                                ("Fréchet distance to real pictures (lower is better)",
                                 "Prompt found among 100 (higher is better)"), strict=True):
        band = sorted((ar[key], floor[key]))
        axes.axhspan(*band, color="#98a1af", alpha=0.35, lw=0)
        axes.axhline(ar[key], color="#6a7280", lw=1)
        axes.plot([1], [ar[key]], marker="o", mfc="white", color="#6a7280", ls="", label="Plain AR")
        for method, (colour, mark) in SERIES.items():
            chosen = [r for r in rows if r["method"] == method]
            axes.plot([r["speedup"] for r in chosen], [r[key] for r in chosen], mark, color=colour, ls="",
                      alpha=0.85, label=METHODS[method] if chosen else None)
        best = [r for r in rows if r["pareto"]]
        axes.plot([r["speedup"] for r in best], [r[key] for r in best], "o", mfc="none", mec="black", ms=12, ls="",
                  label="Pareto front")
        axes.set(xlabel="Speedup over plain AR, median", title=title)
        axes.grid(alpha=0.3)
    axes.legend(fontsize=8, loc="best")
    page.savefig(path, dpi=110)
