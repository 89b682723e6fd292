"""From a prompt to pictures and a trace, in diffusers' manner.

    pipe = LanternPipeline.from_pretrained("assets/emoji")
    output = pipe("a red apple, 3d", method="lanternpp", tree="cpu4", k=100, bound=2.0, seed=7)
    output.images[0].save("apple.png"); output.trace.save("apple.json")
"""

from __future__ import annotations

import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from . import hub, vq
from .decode import Decoder, Step
from .drafter import Drafter
from .quantize import int8_drafter
from .relax import cached_nearest_codes
from .settings import Settings, SettingsError
from .trace import StepEvent, Trace


@dataclass(frozen=True)
class Output:
    """Pictures and the trace of how they were decoded."""

    images: list[Image.Image]
    trace: Trace


def best_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 on GPUs and on CPUs with bfloat16 instructions, where it is two to four times faster; else float32."""
    if device.type == "cuda":
        return torch.bfloat16
    checks = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    native = any(getattr(torch.cpu, check, lambda: False)() for check in checks)
    return torch.bfloat16 if native else torch.float32


def device_name(device: torch.device) -> str:
    """The hardware as a person would name it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    name = platform.processor() or platform.machine()
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    except OSError:
        pass
    threads = torch.get_num_threads()
    return f"{name} CPU, {threads} thread{'s' if threads > 1 else ''}"


class LanternPipeline:
    """A loaded model. Not thread-safe: one thread at a time may run it."""

    def __init__(self, bundle: hub.Bundle, folder: str | Path | None = None):
        self.bundle = bundle
        self._folder = folder
        self._neighbours: Tensor | None = None

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None, device: str | torch.device | None = None,
                        dtype: torch.dtype | None = None) -> LanternPipeline:
        """Load a folder made by save_pretrained; the bundled model if no path is given.

        The device is a GPU where there is one. Raises hub.ModelError, one sentence, if a file is missing or unreadable.
        """
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        folder = Path(path) if path is not None else hub.BUNDLED
        return cls(hub.load_bundle(folder, dtype or best_dtype(device), device), folder)

    def save_pretrained(self, path: str | Path) -> None:
        """Write the model in shards under 10 MB."""
        hub.save_bundle(self.bundle, path, self.bundle.target.dtype)

    def describe(self) -> dict[str, object]:
        """Model and hardware facts that stand beside every measurement."""
        target = self.bundle.target
        return {
            "model": self.bundle.name, "grid": target.config.grid, "codes": target.config.codes,
            "image_size": target.config.grid * self.bundle.tokenizer.config.pixels_per_code,
            "device": device_name(target.device), "dtype": str(target.dtype).removeprefix("torch."), "mode": "eager",
            "threads": torch.get_num_threads(), "torch": torch.__version__,
        }

    def atlas(self) -> Image.Image:
        """Every code decoded alone, 8×8 pixels a code, ⌈√V⌉ codes a row: to paint tokens before pixels are decoded."""
        return vq.atlas(self.bundle.tokenizer)

    @property
    def neighbours(self) -> Tensor:
        """Nearest codes (V, 1000) int64, on the rows that the tokenizer's decoder uses; computed once and kept."""
        if self._neighbours is None:
            table = cached_nearest_codes(self.bundle.tokenizer.codebook.cpu(), self._folder)
            self._neighbours = table.to(self.bundle.target.device)
        return self._neighbours

    def check(self, settings: Settings | None = None, **raw: object) -> Settings:
        """Checked settings with this model's own defaults and limits."""
        settings = settings or Settings.checked(self.bundle.defaults, self.describe(), **raw)
        return replace(settings, top_k=min(settings.top_k, self.bundle.target.config.codes))

    def encode_prompt(self, prompt: str) -> Tensor:
        """Word ids (1, P), left-padded with 0; words past P are not read."""
        prefix = self.bundle.target.config.prefix
        ids = self.bundle.words.encode(prompt).ids[:prefix]
        return torch.tensor([[0] * (prefix - len(ids)) + ids], device=self.bundle.target.device)

    @torch.inference_mode()
    def decode_pixels(self, tokens: list[int]) -> Image.Image:
        """Picture of a full or partial list of tokens; what is missing is painted with code 0."""
        config = self.bundle.target.config
        codes = torch.zeros(1, config.image_tokens, dtype=torch.int64, device=self.bundle.target.device)
        codes[0, : len(tokens)] = torch.tensor(tokens, device=codes.device)
        return vq.to_pil(self.bundle.tokenizer.decode(codes, (config.grid, config.grid)))[0]

    @cached_property
    def drafter(self) -> Drafter | None:
        """The drafter that decodes: on a CPU that works in float32 an int8 copy of the model's."""
        drafter, target = self.bundle.drafter, self.bundle.target
        if drafter is None or target.device.type != "cpu" or target.dtype != torch.float32:
            return drafter
        return int8_drafter(drafter, target.head) or drafter

    def step(self, settings: Settings, pictures: int = 1) -> Step:
        """The decoding step that these settings ask for, with fresh state."""
        drafts = settings.tree.nodes > 0
        if drafts and self.bundle.drafter is None:
            raise SettingsError("method", f"The model {self.bundle.name} has no drafter, so it cannot draft a tree: "
                                          "use the method ar.")
        relaxed = drafts and not settings.relaxation.strict
        return Step(self.bundle.target, self.drafter if drafts else None, settings.tree, settings.relaxation,
                    settings.sampling, self.neighbours if relaxed else None, guided=settings.cfg_scale != 1,
                    pictures=pictures)

    def stream(self, settings: Settings) -> Iterator[StepEvent]:
        """Decode one picture, yielding each step's event; the generator's return value is the Output.

        Closing the generator stops the run within a step.
        """
        settings = self.check(settings)
        if settings.tree.nodes and not settings.relaxation.strict:
            _ = self.neighbours  # the one-time table is no part of a run's time
        header = {**self.describe(), **settings.to_dict(), "settings": settings.to_dict(), "recorded": False,
                  "versions": {"python": platform.python_version(), "torch": torch.__version__}}
        began = time.perf_counter()
        condition = self.encode_prompt(settings.prompt)
        step = self.step(settings)
        prompt_seconds = time.perf_counter() - began
        trace = Trace(header)
        for event in Decoder(step).stream(condition, settings.seed):
            trace.events.append(event)
            yield event
        decode_seconds = time.perf_counter() - began - prompt_seconds
        image = self.decode_pixels(trace.tokens)
        total = time.perf_counter() - began
        trace.seconds = {"prompt": prompt_seconds, "decode": decode_seconds,
                         "pixels": total - prompt_seconds - decode_seconds, "total": total}
        return Output([image], trace)

    def __call__(self, prompt: str, **knobs: object) -> Output:
        """Decode one picture. Knobs as in settings.KNOBS; raises SettingsError, one sentence, for a bad one."""
        return run(self.stream(self.check(prompt=prompt, **knobs)))


def run(stream: Iterator[StepEvent]) -> Output:
    """Exhaust a stream and return its Output."""
    while True:
        try:
            next(stream)
        except StopIteration as end:
            return end.value
