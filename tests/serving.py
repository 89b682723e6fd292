"""The page served on a toy model, for tests: real decoder, real app, no trained weights, a run in under a second."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import toy

from app import build_demo, launch_options
from lanternpp.pipeline import LanternPipeline


class SlowPipeline(LanternPipeline):
    """Waits `pause` seconds after each step, so that a test can act while a run is under way."""

    pause = 0.0

    def stream(self, settings: Any) -> Iterator[Any]:
        stream = super().stream(settings)
        while True:
            try:
                event = next(stream)
            except StopIteration as end:
                return end.value
            time.sleep(self.pause)
            yield event


def toy_pipeline(pause: float = 0.0) -> LanternPipeline:
    """A pipeline over the toy bundle: 16 tokens a picture."""
    pipe = SlowPipeline(toy.bundle())
    pipe.pause = pause
    return pipe


OPEN: list[Any] = []  # pages that tests have open


def leave(pages: list[Any]) -> None:
    """Close pages, each with its browser context."""
    for page in pages:
        page.context.close()
        OPEN.remove(page)


@contextmanager
def serve(load: Callable[[], Any], recordings: Path = Path("/nonexistent")) -> Iterator[tuple[str, Any]]:
    """The page's address and its demo while it is served; at the end those who look at it leave before it stops."""
    demo = build_demo(load, recordings)
    _, url, _ = demo.launch(prevent_thread_lock=True, quiet=True, **launch_options())
    try:
        yield url, demo
    finally:  # a page whose server is gone reports errors, and rightly so
        leave([page for page in OPEN if page.url.startswith(url)])
        demo.close()
