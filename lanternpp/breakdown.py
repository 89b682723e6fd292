"""Where a step's time goes, how far it is from what this machine allows, and whether the parts explain the speedup.

The parts are timed in runs of their own, so that the measured speedup comes from runs that nobody looks into; a
prediction made of the parts can therefore miss it, and is printed beside it. The floor is the roofline (Williams,
Waterman and Patterson, 2009): each network call reads its matrices once and multiplies by them, and takes at least the
longer of the two at the rates that this run measured. Weights that stay in a processor's cache may beat it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import bench as speed
from .pipeline import LanternPipeline
from .quantize import Int8Linear
from .settings import METHODS, Settings
from .step import Step

ONCE = ("prompt", "prefill", "pixels")  # once a picture; everything else is once a step
AGREEMENT = 0.10  # how far a prediction may be off before it is called wrong


class Clock:
    """Times the phases of a Step that is not recorded from outside, in a `with` block: the step itself runs unchanged.

    A level of expand begins with its drafter call (the first follows the catch-up, which is one), so a level's mask
    counts for the level before. On CUDA the marks are events in the stream, read at the end, and nothing waits.
    """

    def __init__(self, step: Step):
        self.step, self.cuda = step, step.target.device.type == "cuda"
        self.spans: list[tuple[str, object, object]] = []
        self.calls: list[object] = []  # entry and exit of each drafter call, in turn

    def __enter__(self) -> Clock:
        for name in ("score", "verify", "commit"):
            setattr(self.step, f"_{name}", self._timed(name, getattr(self.step, f"_{name}")))
        self.step._draft = self._timed_draft(self.step._draft)
        drafter = self.step.drafter
        self.hooks = [] if drafter is None else [drafter.register_forward_pre_hook(self._mark),
                                                 drafter.register_forward_hook(self._mark)]
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()
        for name in ("score", "verify", "commit", "draft"):
            delattr(self.step, f"_{name}")

    def _now(self) -> object:
        if not self.cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _mark(self, *_: object) -> None:
        self.calls.append(self._now())

    def _timed(self, phase: str, call: Callable) -> Callable:
        def timed(*given: object) -> object:
            began = self._now()
            result = call(*given)
            self.spans.append((phase, began, self._now()))
            return result
        return timed

    def _timed_draft(self, call: Callable) -> Callable:
        def timed(*given: object) -> object:
            began = self._now()
            self.calls.clear()  # the prefill's
            result = call(*given)
            if self.calls:
                caught_up, later = self.calls[1], self.calls[2::2]
                cuts = [caught_up, *later, self._now()]
                self.spans.append(("catch-up", began, caught_up))
                self.spans += [(f"expand {i + 1}", *cut) for i, cut in enumerate(zip(cuts, cuts[1:], strict=False))]
            return result
        return timed

    def milliseconds(self) -> dict[str, float]:
        """Mean of each phase over the steps that were run."""
        if self.cuda:
            torch.cuda.synchronize()
        total: dict[str, float] = {}
        for phase, began, ended in self.spans:
            spent = began.elapsed_time(ended) if self.cuda else 1000 * (ended - began)
            total[phase] = total.get(phase, 0.0) + spent
        steps = max(1, sum(phase == "score" for phase, _, _ in self.spans))
        return {phase: spent / steps for phase, spent in total.items()}


def timed(pipe: LanternPipeline, settings: Settings) -> dict[str, float]:
    """Decode one picture under the clock: milliseconds of each phase, of the whole `step`, and of ONCE's parts."""
    began = time.perf_counter()
    with pipe.lend(settings) as decoder:
        condition, valid = pipe.read_prompt(settings)
        prompt = time.perf_counter() - began
        with Clock(decoder.step) as clock:
            events = decoder.generate(condition, settings.seed, valid)
    began = time.perf_counter()
    pipe.decode_pixels([token for event in events for token in event.tokens])
    pixels = time.perf_counter() - began
    whole = 1000 * (events[-1].seconds - events[0].seconds) / max(1, len(events) - 1)
    phases = clock.milliseconds()
    return {"prompt": 1000 * prompt, "prefill": 1000 * events[0].seconds, "pixels": 1000 * pixels, **phases,
            "host": whole - sum(phases.values()), "step": whole}


@dataclass(frozen=True)
class Machine:
    """What this machine reached in this run: bytes read and floating-point operations done, a second."""

    bandwidth: float
    rate: float


def best_seconds(work: Callable[[], object], device: torch.device, repeats: int) -> float:
    """The shortest of several runs, after one that is not counted: a limit is what the machine can do undisturbed."""
    found = []
    for _ in range(repeats + 1):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        found.append(time.perf_counter() - began)
    return min(found[1:])


@torch.inference_mode()
def measure_machine(device: torch.device, dtype: torch.dtype, small: bool = False) -> Machine:
    """Bandwidth from one row times matrices that no cache holds together, matrix rate from one large product.

    small: sizes for a quick functional check, whose figures mean nothing.
    """
    cuda = device.type == "cuda"
    width = 256 if small else 8192 if cuda else 2048
    amount = 2**22 if small else 2**32 if cuda else 2**28
    count = max(1, amount // (width * width * dtype.itemsize))
    weights = [torch.ones(width, width, device=device, dtype=dtype) for _ in range(count)]
    row = torch.ones(1, width, device=device, dtype=dtype)
    reading = best_seconds(lambda: [F.linear(row, weight) for weight in weights], device, 5)
    wide = weights[0]
    multiplying = best_seconds(lambda: torch.mm(wide, wide), device, 5)
    return Machine(count * wide.numel() * dtype.itemsize / reading, 2 * width**3 / multiplying)


def matrices(*modules: nn.Module | None) -> tuple[int, int]:
    """Elements and bytes of the matrices that one call of these modules multiplies by."""
    found: list[Tensor] = []
    for part in modules:
        for module in part.modules() if part is not None else ():
            if isinstance(module, nn.Linear):
                found.append(module.weight)
            elif isinstance(module, Int8Linear):
                found.append(torch.ops.quantized.linear_unpack(module.packed)[0])
    return sum(w.numel() for w in found), sum(w.numel() * w.element_size() for w in found)


def floor(step: Step, machine: Machine) -> dict[str, float]:
    """What a step must take at the machine's rates, in milliseconds: `memory` reads every matrix once a call, `matrix`
    multiplies, `floor` sums the longer of the two over the calls. Attention, caches and embeddings are left out."""
    target, tree = step.target, step.tree
    calls = [(matrices(target.blocks, target.head), tree.nodes + 1)]
    if tree.nodes:
        body = matrices(step.drafter.fuse, step.drafter.blocks)
        head = matrices(step.drafter.head or target.head)
        widths = [sum(tree.depths[n] == d for n in tree.inner) for d in range(tree.depth)]
        calls += [(body, tree.depth + 1), *((body, width) for width in widths[1:]), *((head, w) for w in widths)]
    memory = [1000 * size / machine.bandwidth for (_, size), _ in calls]
    matrix = [1000 * 2 * elements * step.rows * tokens / machine.rate for (elements, _), tokens in calls]
    return {"memory": sum(memory), "matrix": sum(matrix), "floor": sum(map(max, memory, matrix))}


@dataclass
class Timed(speed.Runs):
    """A method's undisturbed runs, and what its runs under the clock cost."""

    costs: list[dict[str, float]] = field(default_factory=list)


def interleave(pipe: LanternPipeline, pairs: Sequence[Sequence[Settings]],
               methods: Sequence[Timed]) -> Iterator[speed.Progress]:
    """As bench.interleave, each run followed by one of the same settings under the clock."""
    for progress in speed.interleave(pipe, pairs, methods):
        pair = pairs[(progress.done - 1) // len(methods)]
        which = next(i for i, settings in enumerate(pair) if settings is progress.settings)
        methods[which].costs.append(timed(pipe, progress.settings))
        yield progress


def predicted_seconds(costs: dict[str, float], tokens: int, accepted_length: float) -> float:
    """A picture's seconds from its parts: once a picture, and (L − 1) / accepted length steps."""
    return (sum(costs[part] for part in ONCE) + (tokens - 1) / accepted_length * costs["step"]) / 1000


def breakdown(pipe: LanternPipeline, methods: Sequence[Timed], machine: Machine) -> dict[str, dict]:
    """Per method: `milliseconds` (medians over pictures), `floor`, `ratio` of the step to it, and the speedup,
    `predicted` beside `measured`; `agrees` within AGREEMENT. Names as in bench.table."""
    measured = speed.table(methods)
    runs = dict(zip(measured, (m for m in methods if m.summaries), strict=True))
    length = pipe.bundle.target.config.image_tokens
    parts = {name: {part: float(np.median([c[part] for c in each.costs])) for part in each.costs[0]}
             for name, each in runs.items()}
    seconds = {name: predicted_seconds(parts[name], length, row["accepted_length"]) for name, row in measured.items()}
    base = next(seconds[name] for name, each in runs.items() if each is speed.baseline(methods))
    result = {}
    for name, row in measured.items():
        limit = floor(pipe.step(runs[name].settings), machine)
        predicted, real = base / seconds[name], row["speedup"]["median"]
        result[name] = {
            "milliseconds": {part: round(ms, 4) for part, ms in parts[name].items()},
            "floor": {part: round(ms, 4) for part, ms in limit.items()},
            "ratio": round(parts[name]["step"] / limit["floor"], 3), "accepted_length": row["accepted_length"],
            "predicted": round(predicted, 4), "measured": real, "agrees": abs(predicted / real - 1) <= AGREEMENT}
    return result


def render(results: dict[str, dict], machine: Machine) -> str:
    """A plain-text table: a column a method, a row a phase, then floor and speedups, then what disagrees."""
    names = list(results)
    each = [row["milliseconds"] for row in results.values()]
    levels = sorted({p for ms in each for p in ms if p.startswith("expand")}, key=lambda p: int(p.split()[1]))

    def line(label: str, cells: Sequence[str]) -> str:
        return f"{label:<26}" + "".join(f"{cell:>14}" for cell in cells)

    def times(parts: Sequence[str]) -> list[str]:
        return [line(f"  {part}", [f"{ms[part]:.3f}" if part in ms else "–" for ms in each]) for part in parts]

    def rows(label: str, key: Callable[[dict], str]) -> str:
        return line(label, [key(row) for row in results.values()])

    head = line("milliseconds", [METHODS.get(name, name)[:13] for name in names])
    lines = [head, "-" * len(head), "once a picture", *times(ONCE), "a step",
             *times(("catch-up", *levels, "score", "verify", "commit", "host", "step")),
             rows("  floor: bytes read", lambda r: f"{r['floor']['memory']:.3f}"),
             rows("  floor: multiplications", lambda r: f"{r['floor']['matrix']:.3f}"),
             rows("  floor", lambda r: f"{r['floor']['floor']:.3f}"),
             rows("step / floor", lambda r: f"{r['ratio']:.2f}×"),
             rows("accepted length", lambda r: f"{r['accepted_length']:.2f}"),
             rows("speedup, predicted", lambda r: f"{r['predicted']:.2f}×"),
             rows("speedup, measured", lambda r: f"{r['measured']:.2f}×"),
             rows("predicted / measured", lambda r: f"{100 * (r['predicted'] / r['measured'] - 1):+.1f} %"),
             f"This machine, in this run: {machine.bandwidth / 1e9:.1f} GB/s read by matrix-vector products, "
             f"{machine.rate / 1e9:.0f} GFLOP/s by a large matrix product."]
    off = [name for name, row in results.items() if not row["agrees"]]
    lines.append(f"Warning: for {', '.join(off)} the parts predict the measured speedup no better than "
                 f"{100 * AGREEMENT:.0f} %: repeat it on a quiet machine, with more prompts." if off else
                 f"The parts predict every measured speedup within {100 * AGREEMENT:.0f} %.")
    return "\n".join(lines)
