"""Speed of several methods in one interleaved run: same process, engine, dtype, sampling and prompts for all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from .pipeline import LanternPipeline, Output, run
from .settings import METHODS, Settings

# Words of the bundled model's vocabulary, fixed so that figures can be compared.
PROMPTS = (
    "red apple, 3d, white background", "penguin, flat, blue background", "fox, classic, green background",
    "hamburger, 3d, yellow background", "sailboat, flat, pink background", "owl, 3d, purple background",
    "cactus, classic, orange background", "rocket, 3d, gray background", "panda, flat, green background",
    "strawberry, classic, white background",
)


@dataclass
class Runs:
    """Summaries of one method's runs, in the order of the pairs."""

    settings: Settings
    summaries: list[dict] = field(default_factory=list)

    def column(self, name: str) -> np.ndarray:
        return np.array([s[name] for s in self.summaries], dtype=float)


@dataclass(frozen=True)
class Progress:
    """After each run: how many are done of how many, and the run's settings, summary and output."""

    done: int
    total: int
    settings: Settings
    summary: dict
    output: Output


def quartiles(values: np.ndarray) -> dict[str, float]:
    """Median, low and high quartile, rounded to four digits."""
    low, median, high = (round(float(x), 4) for x in np.percentile(values, [25, 50, 75]))
    return {"median": median, "low": low, "high": high}


def warm_up(pipe: LanternPipeline, settings: Sequence[Settings], steps: int = 8) -> None:
    """A few steps of each method and one picture's pixels, so that first-run costs fall on none of them."""
    pipe.decode_pixels([0])
    for each in settings:
        stream = pipe.stream(each)
        for _ in range(steps):
            next(stream, None)
        stream.close()


def interleave(pipe: LanternPipeline, pairs: Sequence[Sequence[Settings]],
               methods: Sequence[Runs]) -> Iterator[Progress]:
    """Run every setting of every pair, pair by pair, after a warm-up, and add each complete pair to `methods`.

    Each pair begins one method later than the one before, so that no method always runs first.
    """
    warm_up(pipe, pairs[0])
    done, total = 0, sum(len(p) for p in pairs)
    for number, pair in enumerate(pairs):
        row: dict[int, dict] = {}
        for place in range(len(pair)):
            which = (place + number) % len(pair)
            output = run(pipe.stream(pair[which]))
            row[which] = output.trace.summary()
            done += 1
            yield Progress(done, total, pair[which], row[which], output)
        for which, runs in enumerate(methods):
            runs.summaries.append(row[which])


def baseline(methods: Sequence[Runs]) -> Runs:
    """What speedups are measured against: ar, or the first method where ar is not among them."""
    return next((m for m in methods if m.settings.method == "ar"), methods[0])


def table(methods: Sequence[Runs]) -> dict[str, dict]:
    """Per method: seconds, tokens_per_second, steps, accepted_length, step_compression and speedup.

    A speedup is the ratio of the baseline's total seconds to the method's, pair by pair.
    """
    base = baseline(methods)
    result = {}
    for runs in methods:
        if not runs.summaries:
            continue
        ratios = base.column("total_seconds") / runs.column("total_seconds")
        name = runs.settings.method
        others = (f"{name} {runs.settings.tree.name}", *(f"{name} {n}" for n in range(2, len(methods) + 1)))
        result[next(each for each in (name, *others) if each not in result)] = {
            "seconds": quartiles(runs.column("total_seconds")),
            "tokens_per_second": round(float(np.median(runs.column("tokens_per_second"))), 2),
            "steps": round(float(np.mean(runs.column("steps"))), 2),
            "accepted_length": round(float(np.mean(runs.column("accepted_length"))), 4),
            "step_compression": round(float(np.mean(runs.column("step_compression"))), 4),
            "speedup": quartiles(ratios), "n": len(runs.summaries),
        }
    return result


def compare(pipe: LanternPipeline, settings: Sequence[Settings], repeats: int) -> Iterator[Progress]:
    """The same settings `repeats` times, seeds counting up, interleaved; yields Progress, returns the table."""
    pairs = [[replace(s, seed=(s.seed + r) % 2**31) for s in settings] for r in range(repeats)]
    methods = [Runs(s) for s in settings]
    yield from interleave(pipe, pairs, methods)
    return table(methods)


def document(pipe: LanternPipeline, methods: Sequence[Runs]) -> dict:
    """The JSON document that `bench` prints last."""
    about = pipe.describe()
    first = next((m.settings for m in methods if m.settings.tree.nodes), methods[0].settings)
    keys = ("model", "device", "dtype", "threads", "torch")
    return {**{k: about[k] for k in keys}, "mode": first.mode, "baseline": baseline(methods).settings.method,
            "sampling": vars(first.sampling), "tree": first.tree.name,
            "relaxation": {"k": first.k, "order": first.order}, "methods": table(methods)}


def render(results: dict[str, dict]) -> str:
    """A plain-text table for the terminal."""
    head = (f"{'method':<12}{'seconds':>18}{'tokens/s':>10}{'steps':>8}{'accepted':>10}{'compression':>13}"
            f"{'speedup':>22}")
    lines = [head, "-" * len(head)]
    for name, row in results.items():
        seconds, speed = row["seconds"], row["speedup"]
        label = METHODS.get(name, name)
        took = f"{seconds['median']:.2f} ({seconds['low']:.2f}–{seconds['high']:.2f})"
        gain = f"{speed['median']:.2f}× ({speed['low']:.2f}–{speed['high']:.2f})"
        lines.append(f"{label:<12}{took:>18}{row['tokens_per_second']:>10.1f}{row['steps']:>8.1f}"
                     f"{row['accepted_length']:>10.2f}{row['step_compression']:>13.2f}{gain:>22}")
    return "\n".join(lines)


def to_line(value: dict) -> str:
    return json.dumps(value, ensure_ascii=False)
