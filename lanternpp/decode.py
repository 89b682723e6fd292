"""The loop around the step: whole pictures, one or several side by side, as events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .step import Step
from .trace import StepEvent, verdict_letters
from .tree import Tree


@dataclass(frozen=True)
class Decoder:
    """Runs a Step over whole pictures. run: how its forward is called (modes.runner); as it is if None."""

    step: Step
    run: Callable[[int], tuple[Tensor, Tensor]] | None = None

    def stream(self, condition: Tensor, seed: int, valid: Tensor | None = None) -> Iterator[StepEvent]:
        """Yield one picture's events as they happen: the prefill's, then one a step, until the picture is full."""
        for _, event in self.stream_many(condition, [seed], valid):
            yield event

    def stream_many(self, condition: Tensor, seeds: Sequence[int],
                    valid: Tensor | None = None) -> Iterator[tuple[int, StepEvent]]:
        """Yield (picture, event) of S pictures decoded side by side; a picture's events come in order.

        On the CPU a step is read when it ends. Elsewhere the host reads one step late, so that the device never waits;
        the one step that this decodes too many lands in scratch slots and is not reported.
        """
        step, run, began = self.step, self.run or self.step, time.perf_counter()
        tokens = step.prefill(condition, seeds, valid).tolist()
        spent = time.perf_counter() - began
        for picture, token in enumerate(tokens):
            yield picture, StepEvent(0, 0, (token,), spent)
        positions, indices = [1] * step.pictures, [1] * step.pictures
        late = step.target.device.type != "cpu"
        waiting: list[tuple] = []
        while min(positions) < step.length:
            ahead = (len(waiting) + 1) * (step.depth + 1) if late else 0
            with torch.inference_mode():
                rows = tuple(part.to("cpu", non_blocking=True) for part in run(step.reach(max(positions) + ahead)))
            mark = None
            if late:
                mark = torch.cuda.Event()
                mark.record()
            waiting.append((rows, mark))
            if late and len(waiting) < 2:
                continue
            (whole, fractions), mark = waiting.pop(0)
            if mark is not None:
                mark.synchronize()
            spent = time.perf_counter() - began
            for picture, row in enumerate(zip(whole.tolist(), fractions.tolist(), strict=True)):
                if positions[picture] < step.length:
                    event = read_row(step, indices[picture], *row, spent)
                    positions[picture] += event.accepted
                    indices[picture] += 1
                    yield picture, event

    def generate(self, condition: Tensor, seed: int, valid: Tensor | None = None) -> list[StepEvent]:
        """All events of a picture."""
        return list(self.stream(condition, seed, valid))

    def generate_many(self, condition: Tensor, seeds: Sequence[int],
                      valid: Tensor | None = None) -> list[list[StepEvent]]:
        """All events of S pictures."""
        events: list[list[StepEvent]] = [[] for _ in seeds]
        for picture, event in self.stream_many(condition, seeds, valid):
            events[picture].append(event)
        return events


def read_row(step: Step, index: int, whole: list[int], fractions: list[float], seconds: float) -> StepEvent:
    """A StepEvent from a trace row; tokens past the picture's end are cut off."""
    n, d = step.tree.nodes, step.depth + 1
    position, committed = whole[:2]
    cuts = [2, d, d, n, n, n, n]
    starts = [sum(cuts[: i + 1]) for i in range(len(cuts))]
    path, tokens, drafted, strict, relaxed, exists = (whole[a:a + size] for a, size in
                                                      zip(starts, cuts[1:], strict=False))
    tree = Tree(tuple(whole[-n - 1:])) if step.dynamic else step.tree
    q, residual, mass, target = (fractions[i * n:(i + 1) * n] for i in range(4))
    room = [position + tree.depths[node] <= step.length for node in range(1, n + 1)]
    tokens = tokens[:committed][: step.length - position]
    path = path[:committed]
    kept = path[1:][: len(tokens)]
    order = "coupled" if step.relaxation.coupled else step.relaxation.order
    letters = verdict_letters(tree.parents, tree.ranks, path, [bool(x) for x in strict], [bool(x) for x in relaxed],
                              [bool(x) for x in exists], order, room)
    if len(tokens) < committed:
        ending = "end"
    elif not n:
        ending = "sampled"
    else:
        ending = "recovered" if tree.children[path[-1]] else "bonus"
    return StepEvent(index, position, tuple(tokens), seconds, ending, tuple(kept), tuple(drafted), tuple(q),
                     tuple(residual), tuple(mass), letters, sum(target[node - 1] == 0 for node in kept),
                     tree.parents if step.dynamic else ())
