"""The worker: one thread that owns the model. Handlers hand it jobs and read what happens from the job's queue."""

import gc
import itertools
import logging
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from app import zero
from app.jobs import Bounded, Busy, Job, Stoppable, Stopped, follow, numbers, one_line, until_cancelled
from app.params import baseline_key
from app.stage import data_url
from lanternpp.checkpoints import ModelError, size
from lanternpp.settings import Settings, SettingsError

log = logging.getLogger(__name__)

WAITING = 16  # jobs that may wait; above, a visitor is told to come back
KEPT_RUNS = 96  # finished runs, for downloads and figures
KEPT_EVENTS = 12_000  # of all finished runs together: those of a wide tree hold some 20 kB each
KEPT_BASELINES = 32
KEPT_DETAILS = 12  # of finished runs; those of a wide tree hold some 10 MB each
VISITORS = 4096  # whose chosen models are remembered


class Worker:
    """Loads the model, then runs jobs in turn: first those of the visitor who was served longest ago.

    One model is in memory at a time. `models` are the others that a visitor may choose, as app.catalogue describes
    them; a job that needs another than the loaded one unloads that first.
    """

    def __init__(self, load: Callable[[], Any], size: str = "", models: Mapping[str, Any] | None = None,
                 mode: str = "eager"):
        self.size = size  # of the weights, to be told while they load
        self.mode = mode  # of every run: the host's choice
        self._load, self.models = load, models or {}
        self.chosen: Bounded = Bounded(VISITORS)  # model by visitor
        self.loaded = ""  # which of the models `pipe` is
        self._lock = threading.Condition()
        self._jobs: deque[Job] = deque()
        self._served: dict[str, int] = {}
        self.running: Job | None = None
        self.pipe: Any = None
        self.about: dict[str, Any] = {}
        self.failure: str | None = None
        self.runs = Bounded(KEPT_RUNS, KEPT_EVENTS, lambda output: len(output.trace.events))
        self.recorded: dict[str, Any] = {}
        self.details = Bounded(KEPT_DETAILS)
        self.looks = Bounded(KEPT_DETAILS)  # what the views were told of runs (app/inspector.py)
        self.atlas: str | None = None  # every code decoded alone, as a data URL
        self._warm: set[tuple] = set()
        self.baselines = Bounded(KEPT_BASELINES)
        self.measured = Bounded(KEPT_RUNS)  # speedups of several pairs, by model and stage.key
        self._thread = threading.Thread(target=self._work, name="decoder", daemon=True)

    def start(self) -> "Worker":
        """Begin to load the model, without waiting for it."""
        self._thread.start()
        return self

    def submit(self, job: Job, replace: bool = True) -> None:
        """Queue a job; by default it replaces what the same visitor still has waiting or running."""
        job.model = self.chosen.get(job.visitor, "")
        job.settings = self._in_mode(job.settings)
        with self._lock:
            if sum(not (replace and other.visitor == job.visitor) for other in self._jobs) >= WAITING:
                raise Busy("Too many runs are waiting already; try again in a minute.")
            if replace:
                self._cancel(job.visitor, replaced=True)
            # A new visitor stands behind all who were served before it came, so that no stream of new ones passes them.
            self._served.setdefault(job.visitor, max(self._served.values(), default=0))
            self._jobs.append(job)
            self._lock.notify_all()

    def _in_mode(self, settings: list[Settings]) -> list[Settings]:
        return [replace(each, mode=self.mode) for each in settings]

    def cancel(self, visitor: str) -> None:
        """Stop all that a visitor has running or waiting, within a step."""
        with self._lock:
            self._cancel(visitor)

    def drop(self, job: Job) -> None:
        """Stop one job, when nobody reads its events any more."""
        with self._lock:
            self._end(job)

    def adopt(self, visitor: str, lanes: list[Settings]) -> bool:
        """Give the visitor's job new settings for all lanes but the first while that is still being decoded."""
        lanes = self._in_mode(lanes)
        with self._lock:
            mine = [job for job in (self.running, *self._jobs) if job and job.visitor == visitor and not job.pairs]
            for job in mine:
                same = len(job.settings) == len(lanes) and baseline_key(job.settings[0]) == baseline_key(lanes[0])
                if same and job.lane < 1 and not job.cancelled.is_set():
                    job.settings[1:] = lanes[1:]
                    return True
        return False

    def ahead(self, job: Job) -> int:
        """How many jobs come before this one, as the turns are now."""
        with self._lock:
            return list(self._turns()).index(job) + (self.running is not None) if job in self._jobs else 0

    def baseline(self, visitor: str, settings: Settings) -> Any:
        """The baseline kept from an earlier run of the visitor's model; None where there is none."""
        [settings] = self._in_mode([settings])
        return self.baselines.get((self.chosen.get(visitor, ""), baseline_key(settings)))

    def quiet(self, seconds: float) -> bool:
        """Whether nothing is decoded, now or within so many seconds: a run's time must not pay for other work."""
        with self._lock:
            return self._lock.wait_for(lambda: self.running is None, seconds)

    def output(self, run: str) -> Any:
        """A finished or recorded run by its id; None where it is not kept."""
        return self.runs.get(run) or self.recorded.get(run)

    def detail(self, run: str) -> Any:
        """What the verdicts of a run compared, from its file where it is a recorded one; None where it is not known."""
        path = getattr(self.recorded.get(run), "detail", None)
        if run not in self.details and path:
            from lanternpp.detail import Detail, DetailError

            try:
                self.details[run] = Detail.load(path)
            except DetailError as error:
                log.warning("%s", error)
        return self.details.get(run)

    def _cancel(self, visitor: str, replaced: bool = False) -> None:
        for job in (self.running, *list(self._jobs)):
            if job and job.visitor == visitor:
                job.replaced |= replaced
                self._end(job)

    def _end(self, job: Job) -> None:
        job.cancelled.set()
        if job in self._jobs:
            self._jobs.remove(job)
            job.events.put(("stopped", 0))
            job.events.put(("end",))

    def _turns(self) -> Iterator[Job]:
        """The waiting jobs in the order in which they will run; the lock is held."""
        jobs, served = list(self._jobs), dict(self._served)
        while jobs:
            job = min(jobs, key=lambda job: served.get(job.visitor, 0))
            jobs.remove(job)
            served[job.visitor] = job.number
            yield job

    def _next(self) -> Job:
        with self._lock:
            self._lock.wait_for(lambda: self._jobs)
            job = next(self._turns())
            self._jobs.remove(job)
            self._served[job.visitor] = job.number
            if len(self._served) > 4 * WAITING:  # only the order of those who wait matters
                self._served = {other.visitor: self._served.get(other.visitor, 0) for other in self._jobs}
            self.running = job
            return job

    def _work(self) -> None:
        self._ensure()
        while True:
            job = self._next()
            try:
                if not self._ensure(job.model):
                    job.events.put(("error", self.failure))
                    continue
                job.events.put(("model", self.about))
                if job.pairs:
                    self._measure(job)
                elif job.inspect:
                    self._inspect(job)
                elif job.sweep:
                    self._sweep(job)
                else:
                    self._race(job)
            except Stopped:
                job.events.put(("stopped", max(0, job.lane)))
            except (SettingsError, ModelError) as error:  # a sentence already
                job.events.put(("error", str(error)))
            except Exception as error:  # a visitor's run must never end the worker
                log.exception("run %d failed", job.number)
                job.events.put(("error", f"The run failed: {one_line(error)}"))
            finally:
                with self._lock:
                    self.running = None
                    self._lock.notify_all()
                    goes_on = job in self._jobs
                if not goes_on:
                    job.events.put(("end",))

    def _ensure(self, model: str = "") -> bool:
        """Load the model where it is not there yet; what was unreadable once is tried again by the next job.

        Another one is unloaded first, but not for a model whose files or memory are known to be missing.
        """
        if self.pipe is not None and self.loaded == model:
            return True
        try:
            if model:
                self.models[model].check(held(self.pipe))
            self._unload()
            pipe = zero.remote(self.models[model].load(self._told) if model else self._load())
            self.atlas = data_url(pipe.atlas())
            self._prepare(pipe)
            self.about = pipe.describe()
            self.pipe, self.loaded, self.failure = pipe, model, None
        except ModelError as error:
            log.warning("the model could not be loaded: %s", error)
            self.failure = str(error)
        except Exception as error:
            log.exception("the model could not be loaded")
            self.failure = f"The model could not be loaded: {one_line(error)}"
        return self.pipe is not None and self.loaded == model

    def _unload(self) -> None:
        """Give the loaded model's memory back."""
        if self.pipe is None:
            return
        self.pipe, self.atlas, self.about, self.size, self.failure = None, None, {}, "", None
        gc.collect()
        torch = sys.modules.get("torch")
        if torch and torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    def _told(self, done: int, total: int) -> None:
        self.size = f", {done / 1e9:.1f} of {total / 1e9:.1f} GB"

    def _prepare(self, pipe: Any) -> None:
        """What only a first run pays is no part of a measurement: pixels, the neighbours' table, both lanes' steps."""
        self._warm.clear()
        if isinstance(pipe, zero.Remote):  # its costs are paid in another process, from a visitor's quota
            return
        pipe.decode_pixels([0])
        settings = pipe.check(prompt=warm_up_prompt(pipe))
        self._warm_up(pipe, settings.baseline())
        if pipe.bundle.drafter is not None:  # without one only the baseline can be decoded
            _ = pipe.neighbours
            self._warm_up(pipe, settings)

    def _warm_up(self, pipe: Any, settings: Settings) -> None:
        """A few untimed steps where the tree or the number of CFG rows is new."""
        kind = (settings.tree.parents, settings.cfg_scale != 1)
        if kind in self._warm:
            return
        stream = pipe.stream(replace(settings, prompt=warm_up_prompt(pipe)))
        for _ in itertools.islice(stream, 3):
            pass
        stream.close()
        self._warm.add(kind)

    def _race(self, job: Job) -> None:
        for lane in range(len(job.settings)):
            with self._lock:
                job.lane, settings = lane, job.settings[lane]
            key = job.model, baseline_key(settings)
            kept = self.baselines.get(key) if job.keep and settings.method == "ar" else None
            job.events.put(("lane", lane, settings, kept is not None))
            output = kept or self._decode(job, lane, settings)
            self.runs[output.trace.run_id] = output
            if settings.method == "ar":
                self.baselines[key] = output
            job.events.put(("done", lane, output))

    def _decode(self, job: Job, lane: int, settings: Settings) -> Any:
        """Decode one picture, step by step into the job's queue."""
        pipe = Stoppable(self.pipe, job)
        if not isinstance(self.pipe, zero.Remote):
            self._warm_up(pipe, settings)
        return follow(job, pipe.stream(settings), "step", lane)

    def _measure(self, job: Job) -> None:
        # imported by the worker: the page must not wait for it
        from lanternpp.bench import compare

        result = follow(job, compare(Stoppable(self.pipe, job), job.settings, job.pairs), "progress")
        job.events.put(("pairs", result))

    def _sweep(self, job: Job) -> None:
        """Go on with a sweep until it is done or somebody else waits: between two runs it takes its turn again."""
        if job.stream is None:
            pipe = Stoppable(self.pipe, job)
            job.stream = pipe, job.sweep(pipe)
        pipe, stream = job.stream
        pipe.pipe = self.pipe  # another job may have loaded another model meanwhile
        try:
            for step in stream:
                job.events.put(("progress", step))
                with self._lock:
                    if self._jobs and not job.cancelled.is_set():
                        job.number = self._served[job.visitor] = next(numbers)
                        self._jobs.append(job)
                        return
        finally:
            pipe.pipe = None
        if job.cancelled.is_set():
            raise Stopped

    def _inspect(self, job: Job) -> None:
        from lanternpp.detail import DetailError, inspect

        output = self.output(job.inspect)
        if output is None or self.detail(job.inspect):
            return
        try:
            stream = until_cancelled(job, inspect(self.pipe, output.trace))
            self.details[job.inspect] = follow(job, stream, "step", 0)
        except DetailError as error:
            job.events.put(("error", str(error)))


def warm_up_prompt(pipe: Any) -> str:
    """A prompt that the model reads, where not every text is one."""
    return getattr(pipe.bundle.text, "example", "warm up")


def held(pipe: Any) -> int:
    """Bytes of a loaded model's weights."""
    if pipe is None:
        return 0
    bundle = pipe.bundle
    parts = (bundle.target, bundle.drafter, bundle.tokenizer, getattr(bundle.text, "encoder", None))
    return sum(size(part, next(part.parameters()).dtype) for part in parts if part is not None)


def events(worker: Worker, job: Job, tick: float = 0.5) -> Iterator[tuple]:
    """What happens in a job, ("tick",) where nothing did for a while; the job ends when its reader does."""
    try:
        while True:
            try:
                event = job.events.get(timeout=tick)
            except queue.Empty:
                event = ("tick",)
            if event[0] == "end":
                return
            yield event
    finally:
        worker.drop(job)
