"""How a step is run: eagerly, with its networks compiled, or replayed from recordings (CUDA graphs).

Every mode runs the same Step with the same noise, plain autoregression included. Recordings give what the eager step
gives, bit by bit; compiled networks round otherwise, so that near-ties may fall to the other side.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from types import MappingProxyType

import torch
from torch import Tensor

from .quantize import Int8Linear
from .step import Step
from .transformer import KVCache

MODES: Mapping[str, str] = MappingProxyType({"eager": "Eager", "compile": "Compiled", "graph": "CUDA graph"})
STATE = ("position", "committed", "pending_tokens", "pending_hidden")  # what a step changes beside its caches
BUCKET = 256  # slots: a recording costs memory, attention over unfilled slots costs time

Rows = tuple[Tensor, Tensor]
Run = Callable[[int], Rows]  # reach -> a step's trace rows
Record = Callable[[Callable[[], Rows]], tuple[Callable[[], object], Rows]]


def refusal(mode: str, device: torch.device) -> str | None:
    """One sentence that says why a mode cannot run on a device; None where it can."""
    if mode == "graph" and device.type != "cuda":
        return f"The mode graph records CUDA graphs, and this model runs on {device.type}: use the mode eager."
    if mode == "compile":
        named = os.environ.get("CXX")
        if not any(shutil.which(name) for name in ([named] if named else ["g++", "clang++", "c++"])):
            return "The mode compile needs a C++ compiler, and none is found: install g++, or use the mode eager."
    return None


def runner(step: Step, mode: str, record: Record | None = None, backend: str = "inductor") -> Run:
    """What runs a step in a mode. It may be kept for other pictures of the same step; nothing is compiled or recorded
    before its first call. record and backend stand in for CUDA graphs and for Inductor where those cannot run."""
    if mode == "graph":
        return Replay(step, record or record_graph)
    if mode == "compile":
        compile_networks(step, backend)
        return lambda reach: step()  # over all slots: one shape, compiled once
    return step


class _Layers:
    """A cache's layers as tensors of their own. A compiler has no writes in place: of a write into the one tensor of
    all layers it would make a copy of that tensor, layer after layer."""

    flat, write = KVCache.flat, KVCache.write

    def __init__(self, cache: KVCache):
        self.keys, self.values, self.first = cache.keys.unbind(0), cache.values.unbind(0), cache.first


def compile_networks(step: Step, backend: str = "inductor") -> None:
    """Compile the step's calls of its networks, each for the shapes that it sees; int8 matrices stay as they are."""
    def compiled(call: Callable) -> Callable:
        return torch.compile(call, dynamic=False, backend=backend)

    # A cache of shapes that is too small would fall back to eager calls without a word: a tree takes one entry for the
    # target and one a level for the drafter.
    torch._dynamo.config.recompile_limit = max(128, torch._dynamo.config.recompile_limit)
    target, drafter, layers = step.target, step.drafter, _Layers(step.cache)

    def score(x: Tensor, positions: Tensor, slots: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        hidden = target(x, positions, layers, slots, bias)
        return hidden, target.head(hidden)

    step._target = compiled(score)
    if step.drafter_cache is not None and not any(isinstance(m, Int8Linear) for m in drafter.modules()):
        own = _Layers(step.drafter_cache)

        def read(tokens: Tensor, hidden: Tensor, positions: Tensor, slots: Tensor, bias: Tensor) -> Tensor:
            return drafter(tokens, hidden, positions, own, slots, bias)

        step._read = compiled(read)


class Replay:
    """Runs a step from recordings, one for each size of what attention looks at, made when it is first needed.

    The step's buffers never move and its outputs are always the same tensors, overwritten by the next call.
    """

    def __init__(self, step: Step, record: Record):
        self.step, self.record = step, record
        self.recordings: dict[tuple[int, bool], tuple[Callable[[], object], Rows]] = {}

    def __call__(self, reach: int) -> Rows:
        size = min(self.step.cache.slots, -(-reach // BUCKET) * BUCKET)
        key = size, self.step.padded
        if key not in self.recordings:
            # What recording runs, it runs on the step's live state. Caches need no restoring: from the same state, the
            # same slots are written again before any query sees them.
            kept = {name: getattr(self.step, name).clone() for name in STATE}
            self.recordings[key] = self.record(lambda: self.step(size))
            for name, value in kept.items():
                getattr(self.step, name).copy_(value)
        replay, rows = self.recordings[key]
        replay()
        return rows


def record_graph(call: Callable[[], Rows]) -> tuple[Callable[[], object], Rows]:
    """Record a call as a CUDA graph; returns what replays it, and the outputs that a replay overwrites."""
    aside = torch.cuda.Stream()
    aside.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(aside):
        for _ in range(2):  # libraries set themselves up in their first calls, which must not be recorded
            call()
    torch.cuda.current_stream().wait_stream(aside)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        rows = call()
    return graph.replay, rows


@torch.inference_mode()
def warm_up(step: Step, run: Run, condition: Tensor, valid: Tensor | None) -> None:
    """Compile or record everything that a picture needs; the step's next prefill begins afresh."""
    step.prefill(condition, [0] * step.pictures, valid)
    for reach in sorted({step.reach(position) for position in range(1, step.length + 1)}):
        step.position.fill_(1)
        step.committed.fill_(1)
        run(reach)
