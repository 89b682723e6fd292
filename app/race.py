"""What the Race view does: a run, a run again after a knob moved, measured pairs. Each yields values of the stage."""

import functools
import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any

from app import params, stage
from app.jobs import Busy, Job
from app.session import Worker, events
from lanternpp.settings import Settings, SettingsError

PAINTS = 12  # values a second that a browser is sent at most
PAIRS = 5
_serial = itertools.count(1)  # of what runs
_refused = itertools.count(1)  # of what does not


def checked(action: Callable) -> Callable:
    """Give an action the lanes' settings that the page's values make; what is refused becomes one value of the stage.

    The action yields (stage value, settings of the page's method).
    """

    @functools.wraps(action)
    def run(worker: Worker, visitor: str, values: tuple) -> Iterator[tuple[dict, Any]]:
        lanes = [None, None]
        try:
            lanes = params.lanes(*values)
            for value in action(worker, visitor, values, lanes):
                yield value, lanes[1]
        except (SettingsError, Busy) as error:
            yield aside({"field": getattr(error, "field", ""), "text": str(error)}), lanes[1]

    return run


@checked
def generate(worker: Worker, visitor: str, values: tuple, lanes: list[Settings]) -> Iterator[dict]:
    """Decode the baseline, then the other lanes, each alone."""
    yield from _play(worker, Job(visitor, lanes), values)


@checked
def again(worker: Worker, visitor: str, values: tuple, lanes: list[Settings]) -> Iterator[dict]:
    """Decode again after a knob moved, beside the kept baseline; where none is kept, say what to press."""
    if worker.adopt(visitor, lanes):
        return
    if worker.baseline(visitor, lanes[0]) is None:
        yield aside(hint="Press Generate to paint with these settings.")
        return
    yield from _play(worker, Job(visitor, lanes, keep=True), values)


@checked
def measure(worker: Worker, visitor: str, values: tuple, lanes: list[Settings]) -> Iterator[dict]:
    """Measure every lane PAIRS times in one interleaved run; the lanes stay as they are."""
    job = Job(visitor, lanes, pairs=PAIRS)
    worker.submit(job)
    value = {"serial": next(_serial), "typed": list(values[:2]), "measuring": {"done": 0, "total": len(lanes) * PAIRS}}
    yield value
    for event in events(worker, job):
        match event:
            case ("progress", progress):
                value["measuring"] = {"done": progress.done, "total": progress.total}
            case ("model", described):
                about = described
            case ("pairs", result):
                measured = [stage.pairs(result, each, about) for each in lanes[1:]]
                for pairs in measured:
                    worker.measured[about["model"], pairs["key"]] = pairs
                value |= {"measuring": None, "pairs": measured}
            case ("stopped", _):
                value |= {"measuring": None, "note": "Stopped, so nothing was measured"}
            case ("error", text):
                value |= {"measuring": None, "error": {"field": "", "text": text}}
        if event[0] != "tick" and not job.replaced:
            yield value


def aside(error: dict[str, str] | None = None, hint: str = "") -> dict[str, Any]:
    """A stage value beside the run on view: it says what is wrong, or what to do, and ends or hides nothing."""
    return {"refused": next(_refused), "error": error, "hint": hint}


def _play(worker: Worker, job: Job, values: tuple) -> Iterator[dict]:
    """Submit a race and fold its events, at most PAINTS values a second and always the last."""
    worker.submit(job)
    lanes = [stage.new_lane(each.method, "waiting") for each in job.settings]
    value = stage.stage("running", lanes, serial=next(_serial), typed=list(values[:2]), seed=job.settings[0].seed)
    began, shown = time.monotonic(), 0.0
    _wait_note(worker, job, value, began)
    yield value
    traces: list[Any] = [None] * len(lanes)
    for event in events(worker, job):
        fold(value, traces, event)
        if event[0] == "tick" and job.lane < 0:
            _wait_note(worker, job, value, began)
        now = time.monotonic()
        if event[0] in ("step", "tick") and now - shown < 1 / PAINTS:
            continue
        shown = now
        if not job.replaced:
            yield value
    if not job.replaced:
        yield value


def fold(value: dict, traces: list, event: tuple) -> None:
    """Fold one event of a job into the stage's value, in place."""
    lanes = value["lanes"]
    match event:
        case ("model", about):
            value |= {name: about[name] for name in ("grid", "row_tokens")} | {"model": stage.model_line(about)}
        case ("lane", index, settings, kept):
            value |= {"state": "running", "note": ""}
            lanes[index] = stage.new_lane(settings.method, "running")
            lanes[index]["kept"] = kept
        case ("step", index, step):
            stage.add_step(lanes[index], step, value)
        case ("done", index, output):
            kept = lanes[index].get("kept", False)
            traces[index] = output.trace
            lanes[index] = stage.lane_of(output.trace, output.images[0], traces[0] if index else None)
            lanes[index]["kept"] = kept
            if all(traces):
                value["state"] = "done"
        case ("stopped", index):
            value["state"] = "stopped"
            for lane in lanes[index:]:
                lane["state"] = "stopped"
        case ("error", text):
            value |= {"state": "failed", "error": {"field": "", "text": text}}
            for lane in lanes:
                if lane["state"] != "done":
                    lane |= {"state": "failed", "note": text, "tokens": [], "counts": [], "painted": [], "ends": []}


def _wait_note(worker: Worker, job: Job, value: dict, began: float) -> None:
    """Say what a run waits for, with a number."""
    ahead, state, note = worker.ahead(job), "running", ""
    if worker.pipe is None and worker.failure is None:
        state = "loading"
        note = f"Loading the model{worker.size}, {time.monotonic() - began:.0f} s. First time only."
    elif ahead:
        note = f"Waiting for the worker: {ahead} {'run' if ahead == 1 else 'runs'} ahead of this one."
    value |= {"state": state, "note": note}
