"""ZeroGPU with a stand-in for the `spaces` package: one decorated generator, plain values, the visitor's context."""

import contextvars
import importlib
import pickle
import sys
from types import ModuleType

import pytest
from serving import toy_pipeline

from app import zero
from app.jobs import Job
from app.session import Worker, events
from lanternpp.settings import Settings

who = contextvars.ContextVar("who", default="nobody")


@pytest.fixture
def spaces(monkeypatch):
    """Runs what it decorates in place, but lets nothing through that another process could not be sent."""
    module = ModuleType("spaces")
    module.decorated, module.calls = [], []

    def GPU(duration):
        def decorate(task):
            module.decorated.append(task)

            def run(*args):
                module.calls.append((args[1], who.get(), duration(*args)))
                for item in task(*pickle.loads(pickle.dumps(args))):
                    yield pickle.loads(pickle.dumps(item))

            return run

        return decorate

    module.GPU = GPU
    monkeypatch.setitem(sys.modules, "spaces", module)
    importlib.reload(zero)
    yield module
    monkeypatch.undo()
    importlib.reload(zero)


def decoded(worker, settings):
    job = Job("v", settings)
    worker.submit(job)
    return [event for event in events(worker, job)]


SETTINGS = Settings.checked(prompt="fox", tree="3,2", k=5, seed=4)


def test_without_the_package_nothing_changes():
    pipe = toy_pipeline()
    assert zero.entry is None and zero.remote(pipe) is pipe


def test_one_entry_point_decodes_for_its_visitor(spaces):
    plain = toy_pipeline()
    worker = Worker(toy_pipeline).start()
    token = who.set("visitor")
    try:
        seen = decoded(worker, [SETTINGS.baseline(), SETTINGS])
    finally:
        who.reset(token)
    assert isinstance(worker.pipe, zero.Remote) and len(spaces.decorated) == 1
    assert [call[:2] for call in spaces.calls] == [("atlas", "nobody"), ("stream", "visitor"), ("stream", "visitor")]
    assert spaces.calls[0][2] == 15 < spaces.calls[1][2] + 1
    outputs = [event[2] for event in seen if event[0] == "done"]
    for output, settings in zip(outputs, (SETTINGS.baseline(), SETTINGS), strict=True):
        steps = run(plain, settings)
        assert output.trace.tokens == steps.trace.tokens
        assert output.images[0].tobytes() == steps.images[0].tobytes()


def run(pipe, settings):
    from lanternpp.pipeline import run as exhaust
    return exhaust(pipe.stream(settings))


def test_a_stopped_run_gives_the_gpu_back(spaces):
    closed = []
    pipe = zero.remote(toy_pipeline())
    inner = zero.entry

    def watched(*args):
        try:
            yield from inner(*args)
        finally:
            closed.append(True)

    zero.entry = watched
    stream = pipe.stream(SETTINGS)
    next(stream)
    stream.close()
    assert closed == [True]


def test_what_cannot_be_sent_is_found(spaces):
    """The control: a value that holds code does not pass the stand-in."""
    pipe = zero.remote(toy_pipeline())
    pipe._pipe.atlas = lambda: lambda: None
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pipe.atlas()
