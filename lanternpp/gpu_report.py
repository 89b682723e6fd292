"""Latencies of the published models' true shapes on this machine's GPU, in every mode, without their weights.

A step's time does not depend on what the weights are, so LlamaGen-XL and Anole-7B are built with random ones, directly
on the device. The bundled model is then measured for real: speedups of each method in each mode, and whether recorded
graphs paint the eager pictures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from . import bench, modes
from .checkpoints import need_memory, size
from .drafter import Drafter
from .models import MODELS
from .pipeline import LanternPipeline, device_name
from .relax import Relaxation
from .sampling import Sampling
from .settings import Settings
from .step import Step
from .transformer import Rotary, Transformer
from .tree import PRESETS, Tree

SHAPES = ("llamagen-t2i-256", "llamagen-t2i-512", "anole-7b")
TREES = ("root", "cpu4", "cpu14", "eagle25", "lantern57")
METHODS = ("ar", "exact", "lanternpp")


@dataclass(frozen=True)
class Latency:
    """Milliseconds of a step halfway through a picture (median, quartiles), and what the mode's start took."""

    model: str
    tree: str
    mode: str
    median: float
    low: float
    high: float
    start_seconds: float


def random_weights(module: nn.Module, dtype: torch.dtype, device: torch.device) -> nn.Module:
    """Fill a module that stands on the meta device with small random numbers, where it will run."""
    module.to(dtype).to_empty(device=device)
    for tensor in (*module.parameters(), *module.buffers()):
        if tensor.is_floating_point():
            tensor.data.normal_(std=0.02)
    for part in module.modules():
        if isinstance(part, Rotary):
            part.rebuild(device)
    return module.eval().requires_grad_(False)


def random_model(name: str, dtype: torch.dtype, device: torch.device) -> tuple[Transformer, Drafter]:
    """A published model's networks at their true shapes. ModelError where the device has too little memory."""
    spec = MODELS[name]
    with torch.device("meta"):
        target, drafter = Transformer(spec.target), Drafter(spec.drafter, spec.target)
    need_memory(f"The shape of {name}", int(1.3 * (size(target, dtype) + size(drafter, dtype))), device)
    return random_weights(target, dtype, device), random_weights(drafter, dtype, device)


def any_prompt(target: Transformer) -> tuple[Tensor, Tensor]:
    """A condition for one picture, and its rows' validity: half of the prefix is padding."""
    c, device = target.config, target.device
    shape = (1, c.prefix, c.condition) if c.prefix_kind == "features" else (1, c.prefix)
    condition = (torch.randn(shape, device=device) if c.prefix_kind == "features"
                 else torch.ones(shape, dtype=torch.int64, device=device))
    return condition, (torch.arange(c.prefix, device=device) >= c.prefix // 2).expand(2, -1)


def latency(name: str, target: Transformer, drafter: Drafter, tree: Tree, mode: str, steps: int = 100,
            **how: object) -> Latency:
    """Time a mode's steps with CFG and strict verification. how: record and backend as in modes.runner."""
    device = target.device
    sampling = Sampling(3.0, 1.0, min(1000, target.config.codes), 1.0)
    step = Step(target, drafter if tree.nodes else None, tree, Relaxation("exact"), sampling)
    condition, valid = any_prompt(target)
    began = time.perf_counter()
    run = modes.runner(step, mode, **how)
    modes.warm_up(step, run, condition, valid)
    wait(device)
    start = time.perf_counter() - began
    step.prefill(condition, [0], valid)
    middle, found = step.length // 2, []
    with torch.inference_mode():
        for _ in range(steps + 5):
            step.position.fill_(middle)
            step.committed.fill_(1)
            wait(device)
            began = time.perf_counter()
            for _ in range(4):  # as in decoding, where the device is never waited for within a step
                run(step.reach(middle + 4 * (step.depth + 1)))
            wait(device)
            found.append(250 * (time.perf_counter() - began))
    low, median, high = np.percentile(found[5:], [25, 50, 75])
    return Latency(name, tree.name, mode, float(median), float(low), float(high), start)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def shapes(names: Sequence[str], trees: Sequence[Tree], ways: Sequence[str], device: torch.device,
           tell: Callable[[str], None], steps: int = 100, build: Callable = random_model) -> list[Latency]:
    """Latencies of every model, tree and mode."""
    found = []
    for name in names:
        target, drafter = build(name, torch.bfloat16 if device.type == "cuda" else torch.float32, device)
        for tree in trees:
            for mode in ways:
                found.append(latency(name, target, drafter, tree, mode, steps))
                tell(line(found[-1], found))
        del target, drafter
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return found


def line(one: Latency, among: Sequence[Latency]) -> str:
    """A row of the table; the last column is the step's cost in steps of plain AR in the same mode."""
    plain = next((x.median for x in among if (x.model, x.mode) == (one.model, one.mode) and x.tree == "root"), None)
    cost = f"{one.median / plain:8.2f}" if plain else "       –"
    return (f"{one.model:<18}{one.tree:<11}{one.mode:<9}{one.median:9.2f} ({one.low:.2f}–{one.high:.2f}) ms{cost} × AR"
            f"{one.start_seconds:9.1f} s to start")


def bundled(pipe: LanternPipeline, ways: Sequence[str], prompts: int, tell: Callable[[str], None],
            tree: str | None = None) -> dict[str, dict]:
    """Per mode, bench's table of the bundled model and the share of its runs that paint the eager tokens."""
    report, eager = {}, {}
    for mode in ways:
        knobs = {"mode": mode} | ({"tree": tree} if tree else {})
        pairs = [[pipe.check(prompt=bench.PROMPTS[i % len(bench.PROMPTS)], method=method, seed=i, **knobs)
                  for method in METHODS] for i in range(prompts)]
        methods = [bench.Runs(settings) for settings in pairs[0]]
        for _ in bench.interleave(pipe, pairs, methods):
            pass
        tokens = {(s.method, s.seed): _tokens(pipe, s) for s in (s for pair in pairs for s in pair)}
        eager = eager or tokens
        same = sum(tokens[key] == eager[key] for key in tokens)
        report[mode] = {"methods": bench.table(methods), "same_as_eager": [same, len(tokens)]}
        tell(f"\n{pipe.bundle.name}, {mode}: {same} of {len(tokens)} runs paint the tokens of {ways[0]}\n"
             f"{bench.render(report[mode]['methods'])}")
    return report


def _tokens(pipe: LanternPipeline, settings: Settings) -> list[int]:
    with pipe.lend(settings) as decoder:
        condition, valid = pipe.read_prompt(settings)
        return [t for event in decoder.generate(condition, settings.seed, valid) for t in event.tokens]


def report(pipe: LanternPipeline, ways: Sequence[str], tell: Callable[[str], None], names: Sequence[str] = SHAPES,
           trees: Sequence[str] = TREES, steps: int = 100, prompts: int = 5, build: Callable = random_model,
           tree: str | None = None) -> dict:
    """All of it, as a JSON document; `tell` hears the tables as they are measured."""
    device = pipe.bundle.target.device
    tell(f"{device_name(device)}, torch {torch.__version__}; modes {', '.join(ways)}")
    found = shapes(names, [PRESETS[name] for name in trees], ways, device, tell, steps, build)
    return {"device": device_name(device), "torch": torch.__version__, "latencies": [vars(x) for x in found],
            "bundled": bundled(pipe, ways, prompts, tell, tree)}
