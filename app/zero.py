"""ZeroGPU: where the optional `spaces` package is there, all that needs the GPU runs in one function that it decorates.

That function runs in a forked process which has the GPU for a while. It is given plain values and yields such; models
are those that were loaded before the fork. Imported before torch, as the package asks. Elsewhere nothing changes.
"""

from collections.abc import Generator, Iterator
from typing import Any

try:
    import spaces
except ImportError:
    spaces = None

_pipes: list[Any] = []


def task(number: int, call: str, *args: Any) -> Iterator[Any]:
    """Call a method of a loaded pipeline; a stream's events come one by one, its value last."""
    result = getattr(_pipes[number], call)(*args)
    if isinstance(result, Generator):
        result = yield from result
    yield result


def seconds(number: int, call: str, *args: Any) -> int:
    """How long a call may need the GPU: shorter ones are served sooner."""
    return 15 + (round(0.04 * _pipes[number].bundle.target.config.image_tokens) if call == "stream" else 0)


entry = spaces.GPU(duration=seconds)(task) if spaces else None


class Remote:
    """A pipeline whose GPU work goes through `entry`; what needs no GPU is the pipeline's own."""

    def __init__(self, pipe: Any):
        self._pipe, self._number = pipe, len(_pipes)
        _pipes.append(pipe)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def _run(self, call: str, *args: Any) -> Any:
        *_, value = entry(self._number, call, *args)
        return value

    def atlas(self) -> Any:
        """The pipeline's, made on the GPU."""
        return self._run("atlas")

    def decode_pixels(self, tokens: list[int]) -> Any:
        """The pipeline's, made on the GPU."""
        return self._run("decode_pixels", tokens)

    def stream(self, settings: Any) -> Iterator[Any]:
        """The pipeline's stream, decoded on the GPU; closing it gives the GPU back."""
        from lanternpp.trace import StepEvent

        items, value = entry(self._number, "stream", settings), None
        try:
            for value in items:
                if isinstance(value, StepEvent):
                    yield value
        finally:
            items.close()
        return value


def remote(pipe: Any) -> Any:
    """The pipeline as it is run here."""
    return Remote(pipe) if entry else pipe
