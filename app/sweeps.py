"""Sweeps that visitors run: what is kept of each, its job for the worker, and what the page is given of it.

What is measured is kept by its grid, so that a sweep that was stopped, or whose page was closed, goes on.
"""

import csv
import io
import itertools
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app import params, race, stage
from app.catalogue import Choice
from app.jobs import Bounded, Busy, Job
from app.session import Worker, events
from lanternpp import frontier
from lanternpp.grid import Grid
from lanternpp.settings import METHODS, Settings, SettingsError
from lanternpp.sweep import Sweep, key_of
from lanternpp.tree import PRESETS

KEPT, KEPT_BYTES = 16, 64_000_000  # sweeps, and bytes of all their pictures together
_serial = itertools.count(1)


@dataclass
class Desk:
    """What the view's handlers share: the worker, the models that a visitor may have chosen, and the kept sweeps."""

    worker: Worker
    choices: Mapping[str, Choice]
    start: str
    kept: Bounded = field(default_factory=lambda: Bounded(KEPT, KEPT_BYTES, weight))

    def grid(self, asked: object, model: str | None = None) -> tuple[Grid, str]:
        """The checked grid of what a page or a program asked for, and the key of its sweep."""
        if not isinstance(asked, dict):
            raise SettingsError("grid", "A sweep is asked for as names and values, such as {\"methods\": \"exact\"}.")
        name = (self.worker.loaded if model is None else model) or self.start
        choice = self.choices.get(name) or self.choices[self.start]
        there = self.worker.pipe if self.worker.loaded == ("" if name == self.start else name) else None
        scored = there.bundle.words is not None if there is not None else choice.styled
        grid = Grid.checked(choice.about["defaults"], there and self.worker.about or None, scored=scored,
                            **{**asked, "mode": self.worker.mode})  # the host's choice
        return grid, key_of(grid, name)


def weight(sweep: Sweep) -> int:
    """Bytes of a sweep's pictures."""
    return sum(map(len, list(sweep.pictures.values())))


def measure(desk: Desk, visitor: str, asked: Any) -> Iterator[dict[str, Any]]:
    """Measure what is missing of the grid that a page asked for: {"grid": …, "again": from the start}."""
    asked = asked if isinstance(asked, dict) else {}
    try:
        sweep, key, job = begin(desk, visitor, asked.get("grid"), bool(asked.get("again")))
        desk.worker.submit(job)
    except (SettingsError, Busy) as error:
        yield {"serial": next(_serial), "state": "refused", "error": fault(error)}
        return
    value = shown(sweep, key, "running") | {"serial": next(_serial)}
    began, sent = time.monotonic(), 0.0
    for event in events(desk.worker, job):
        match event:
            case ("progress", step):
                value |= {"state": "running", "note": "", "done": step.done, "left": step.left, "now": step.now}
                if step.complete:
                    value |= {"rows": rounded(sweep.rows()), "facts": hardware(sweep)}
            case ("stopped", _):
                value |= shown(sweep, key, "stopped")
                value["note"] = "Another run of yours took its turn." if job.replaced else ""
            case ("error", text):
                value |= shown(sweep, key, "failed") | {"error": {"field": "", "text": text}}
            case ("tick",):
                waiting(desk.worker, job, value, began)
        if event[0] == "tick" or time.monotonic() - sent >= 1 / race.PAINTS:
            sent = time.monotonic()
            yield value
    if value["state"] == "running":
        value |= shown(sweep, key, "done")
    yield value


def begin(desk: Desk, visitor: str, asked: object, again: bool) -> tuple[Sweep, str, Job]:
    """A sweep, gone on from what is kept of it unless it is to begin again, its key and the job that measures it."""
    grid, key = desk.grid(asked, desk.worker.chosen.get(visitor, ""))
    found = None if again else desk.kept.get(key)
    sweep = found.copy() if found else Sweep(grid, keep=len(grid.prompts))

    def measured(pipe: Any) -> Iterator[Any]:
        for step in sweep.run(pipe):
            if step.complete:
                desk.kept[key] = sweep
            yield step

    return sweep, key, Job(visitor, [], sweep=measured)


def waiting(worker: Worker, job: Job, value: dict, began: float) -> None:
    """Say what a sweep waits for."""
    note = ""
    if worker.pipe is None and worker.failure is None:
        note = f"Loading the model{worker.size}, {time.monotonic() - began:.0f} s. First time only."
    elif ahead := worker.ahead(job):
        note = f"Another visitor's run comes between: {ahead} ahead."
    value["note"] = note


def shown(sweep: Sweep, key: str, state: str) -> dict[str, Any]:
    """A sweep as the page draws it."""
    grid = sweep.grid
    settings = [grid.setting(number) for number in range(len(grid.points) + 1)]
    return {
        "state": state, "key": key, "error": None, "note": "", "recorded": False, "now": "", "left": None,
        "done": sweep.done, "total": grid.runs, "complete": sweep.complete, "rows": rounded(sweep.rows()),
        "settings": [described(each) for each in settings], "pictures": len(grid.pictures),
        "prompts": list(grid.prompts), "repeats": grid.repeats, "facts": hardware(sweep),
    }  # fmt: skip


def described(settings: Settings) -> dict[str, Any]:
    """One setting: its words, and the values of the Race's knobs at which it is made."""
    own = settings.to_dict()
    used, tree = params.uses(settings.method), settings.tree
    words = stage.describe(own).split(", ")[1:] if used else []
    if "order" in used and settings.order != "strict-first":
        words.append(settings.order)
    return {
        "label": settings.label, "method": settings.method, "name": METHODS[settings.method],
        "words": ", ".join(words).replace(" = ", " ") or ("baseline" if settings.method == "ar" else "strict"),
        "tree": tree.name if tree in PRESETS.values() else tree.text, "nodes": tree.nodes,
        "page": params.of_run(own) | {"style": params.AS_TYPED},
    }  # fmt: skip


def rounded(rows: list[dict]) -> list[dict]:
    """Rows with numbers as short as the page shows them."""
    return [{k: round(v, 5) if isinstance(v, float) else v for k, v in row.items()} for row in rows]


def hardware(sweep: Sweep) -> list[str]:
    """Where a sweep was measured; empty before its first run."""
    return stage.hardware(sweep.about) if sweep.about else []


def fault(error: Exception) -> dict[str, str]:
    """A refusal as the page shows it: beside a field, in one sentence."""
    return {"field": getattr(error, "field", ""), "text": str(error)}


def recorded(path: Path, defaults: Mapping[str, object], weights: str = "") -> dict[str, Any] | None:
    """The shipped frontier as the view shows it before a sweep was run; None where there is no such file.

    weights: the mark of the model's; that the file speaks of other ones is said.
    """
    try:
        table = list(csv.DictReader(io.StringIO(path.read_text())))
    except (OSError, ValueError):
        return None
    rows, settings = [], [described(Settings.checked(defaults, prompt="a").baseline())]
    for line in table:
        try:
            knobs = {name: line[name] for name in ("method", "tree", "k", "bound", "gamma", "order") if line.get(name)}
            one = described(Settings.checked(defaults, prompt="a", **knobs))
            texts = (*knobs, "label", "device", "weights")
            row = {name: number(line.get(name)) for name in frontier.COLUMNS if name not in texts}
            if row["speedup"] is None or row["accepted_length"] is None:
                continue
        except SettingsError:
            continue
        rows.append(row | {"setting": len(settings), "method": one["method"], "pareto": line.get("pareto") == "True"})
        settings.append(one)
    if not rows:
        return None
    former = bool(weights) and any(line.get("weights") != weights for line in table)
    device = next((line["device"] for line in table if line.get("device")), "")
    return {
        "state": "recorded", "serial": 0, "key": "", "error": None, "note": "", "recorded": True, "rows": rows,
        "settings": settings, "done": 0, "total": 0, "left": None, "now": "", "complete": True, "prompts": [],
        "pictures": max(row["images"] or 0 for row in rows), "repeats": 1,
        "facts": [device or "hardware not named in the file", *["the model’s former weights"] * former],
    }  # fmt: skip


def number(text: str | None) -> float | None:
    """A cell of a CSV file as a finite number."""
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if abs(value) < float("inf") else None
