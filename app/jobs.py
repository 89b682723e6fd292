"""A visitor's request and how its streams are followed and stopped, apart from the worker that runs it."""

import contextvars
import itertools
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from lanternpp.settings import Settings

numbers = itertools.count(1)


class Busy(RuntimeError):
    """Too many jobs wait already."""


@dataclass(eq=False)
class Job:
    """One visitor's request: settings decoded one after the other, each alone, `pairs` measured pairs of them, or a
    `sweep`. Without any of them it only loads the visitor's model.
    """

    visitor: str
    settings: list[Settings]
    pairs: int = 0
    keep: bool = False  # take the baseline from an earlier run
    inspect: str = ""  # decode this finished run once more and keep what its verdicts compared
    sweep: Any = None  # what measures a grid: given a pipeline, yields after each run
    number: int = field(default_factory=numbers.__next__)
    events: queue.Queue = field(default_factory=queue.Queue)
    cancelled: threading.Event = field(default_factory=threading.Event)
    replaced: bool = False  # by the same visitor's next job
    lane: int = -1  # the one being decoded
    context: contextvars.Context = field(default_factory=contextvars.copy_context)  # ZeroGPU asks it who the visitor is
    model: str = ""  # the visitor's; "" is the one that the app starts with
    stream: Any = None  # of a sweep that has begun, with the pipeline that it is given


class Bounded(OrderedDict):
    """A dict that forgets what was not used for longest, above a size or a total weight; the newest always stays."""

    def __init__(self, size: int, most: float = 0, weigh: Callable[[Any], float] = lambda value: 0):
        super().__init__()
        self.size, self.most, self.weigh = size, most, weigh

    def __setitem__(self, key, value):
        super().__setitem__(key, value)
        self.move_to_end(key)
        while len(self) > self.size or (len(self) > 1 and sum(map(self.weigh, self.values())) > self.most):
            self.popitem(last=False)


def follow(job: Job, stream: Iterator[Any], *kind: Any) -> Any:
    """Put all that a stream yields into the job's queue as events of a kind; returns the stream's value."""
    while True:
        try:
            job.events.put((*kind, next(stream)))
        except StopIteration as end:
            return end.value


class Stopped(Exception):
    """The job was cancelled while it ran."""


@dataclass
class Stoppable:
    """A pipeline whose runs end within a step after their job was cancelled."""

    pipe: Any
    job: Job

    @property
    def bundle(self) -> Any:
        """The pipeline's own."""
        return self.pipe.bundle

    def describe(self) -> dict[str, Any]:
        """The pipeline's own."""
        return self.pipe.describe()

    def decode_pixels(self, tokens: list[int]) -> Any:
        """The pipeline's own."""
        return self.job.context.run(self.pipe.decode_pixels, tokens)

    def stream(self, settings: Settings) -> Iterator[Any]:
        """The pipeline's stream; raises Stopped between two steps."""
        return until_cancelled(self.job, self.pipe.stream(settings))


def until_cancelled(job: Job, stream: Iterator[Any]) -> Iterator[Any]:
    """A stream that raises Stopped between two steps once its job was cancelled."""
    try:
        while True:
            if job.cancelled.is_set():
                raise Stopped
            try:
                event = job.context.run(next, stream)
            except StopIteration as end:
                return end.value
            yield event
    finally:
        stream.close()


def one_line(error: BaseException) -> str:
    """An exception as one sentence for a visitor."""
    text = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return text if text.endswith((".", "!", "?")) else text + "."
