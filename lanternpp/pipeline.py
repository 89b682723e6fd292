"""From a prompt to pictures and a trace, in diffusers' manner.

    pipe = LanternPipeline.from_pretrained("assets/emoji")
    output = pipe("a red apple, 3d", method="lanternpp", tree="cpu4", k=100, bound=2.0, seed=7)
    output.images[0].save("apple.png"); output.trace.save("apple.json")
"""

from __future__ import annotations

import platform
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch
from huggingface_hub import cached_assets_path
from PIL import Image
from torch import Tensor

from . import hub, modes, vq
from .decode import Decoder, Step
from .drafter import Drafter
from .quantize import int8_drafter
from .relax import cached_nearest_codes
from .settings import Settings, SettingsError
from .trace import StepEvent, Trace

KEPT = 8  # compiled or recorded decoders of one model


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


def _table_folder() -> Path | None:
    """Where tables of a model without a folder of its own live: in the hub's cache; None if that cannot be written."""
    try:
        return cached_assets_path("lanternpp", namespace="neighbours")
    except OSError:
        return None


class LanternPipeline:
    """A loaded model. Not thread-safe: one thread at a time may run it."""

    def __init__(self, bundle: hub.Bundle, folder: str | Path | None = None):
        self.bundle = bundle
        self._folder = folder
        self._neighbours: Tensor | None = None
        self._decoders: OrderedDict[tuple, Decoder] = OrderedDict()
        self.tell: Callable[[str], None] = lambda text: None  # hears what takes long before a run begins

    @classmethod
    def from_pretrained(cls, path: str | Path | None = None, device: str | torch.device | None = None,
                        dtype: torch.dtype | None = None, **how: object) -> LanternPipeline:
        """Load a published model by name, or a folder (see hub.load_bundle); the bundled model if no path is given.

        The device is a GPU where there is one. how: text_device, drafter, progress, as in hub.load_bundle. Raises
        hub.ModelError, one sentence, if a file is missing or unreadable or memory is short.
        """
        device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        where = path if path is not None else hub.BUNDLED
        bundle = hub.load_bundle(where, dtype or best_dtype(device), device, **how)
        return cls(bundle, where if Path(where).is_dir() else _table_folder())

    def save_pretrained(self, path: str | Path) -> None:
        """Write the model in shards under 10 MB."""
        hub.save_bundle(self.bundle, path, self.bundle.target.dtype)

    def describe(self) -> dict[str, object]:
        """Model and hardware facts that stand beside every measurement."""
        target = self.bundle.target
        return {
            "model": self.bundle.name, "grid": target.config.grid, "codes": target.config.codes,
            "row_tokens": target.config.image_tokens // target.config.grid,
            "image_size": target.config.grid * self.bundle.tokenizer.config.pixels_per_code,
            "device": device_name(target.device), "dtype": str(target.dtype).removeprefix("torch."),
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
            table = torch.cat([table, table[: self.bundle.target.config.codes - len(table)]])  # a row end: never judged
            self._neighbours = table.to(self.bundle.target.device)
        return self._neighbours

    def check(self, settings: Settings | None = None, **raw: object) -> Settings:
        """Checked settings with this model's own defaults and limits; SettingsError also where this device cannot run
        the mode."""
        settings = settings or Settings.checked(self.bundle.defaults, self.describe(), **raw)
        if refused := modes.refusal(settings.mode, self.bundle.target.device):
            raise SettingsError("mode", refused)
        return replace(settings, top_k=min(settings.top_k, self.bundle.target.config.codes))

    def encode_prompt(self, prompt: str) -> tuple[Tensor, Tensor | None]:
        """What the target's prefix reads, and which prefix rows are not padding (see text.py)."""
        condition, valid = self.bundle.text(prompt)
        device = self.bundle.target.device
        return condition.to(device), None if valid is None else valid.to(device)

    def encode_prompts(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
        """The same for S prompts that are decoded side by side."""
        conditions, valid = zip(*(self.encode_prompt(p) for p in prompts), strict=True)
        if valid[0] is not None:  # a prompt's rows, conditional first, to the batch's
            valid = torch.cat([torch.cat(rows) for rows in zip(*(v.split(1) for v in valid), strict=True)])
        return torch.cat(conditions), None if valid[0] is None else valid

    @torch.inference_mode()
    def pixels(self, codes: Tensor) -> Tensor:
        """Token grids (n, L) -> pictures (n, 3, H, W) in [-1, 1]."""
        grid = self.bundle.target.config.grid
        codes = codes.to(self.bundle.target.device).view(len(codes), grid, -1)[..., :grid].flatten(1)  # no row ends
        return self.bundle.tokenizer.decode(codes, (grid, grid))

    def decode_pixels(self, tokens: list[int]) -> Image.Image:
        """Picture of a full or partial list of tokens; what is missing is painted with code 0."""
        codes = torch.zeros(1, self.bundle.target.config.image_tokens, dtype=torch.int64)
        codes[0, : len(tokens)] = torch.tensor(tokens)
        return vq.to_pil(self.pixels(codes))[0]

    @cached_property
    def drafter(self) -> Drafter | None:
        """The drafter that decodes: on a CPU that works in float32 an int8 copy of the model's."""
        drafter, target = self.bundle.drafter, self.bundle.target
        if drafter is None or target.device.type != "cpu" or target.dtype != torch.float32:
            return drafter
        return int8_drafter(drafter, target.head) or drafter

    def step(self, settings: Settings, pictures: int = 1, kind: type[Step] = Step) -> Step:
        """The decoding step that these settings ask for, with fresh state."""
        drafts = settings.tree.nodes > 0
        if drafts and self.bundle.drafter is None:
            raise SettingsError("method", f"The model {self.bundle.name} has no drafter, so it cannot draft a tree: "
                                          "use the method ar, or `python -m lanternpp train drafter`.")
        relaxed = drafts and not settings.relaxation.strict
        return kind(self.bundle.target, self.drafter if drafts else None, settings.tree, settings.relaxation,
                    settings.sampling, self.neighbours if relaxed else None, guided=settings.cfg_scale != 1,
                    pictures=pictures)

    def read_prompt(self, settings: Settings) -> tuple[Tensor, Tensor | None]:
        """What the prefill of a step for one picture reads: the condition and which rows are not padding."""
        condition, valid = self.encode_prompt(settings.prompt)
        return condition, None if valid is None else valid[: 2 if settings.cfg_scale != 1 else 1]

    def prepare(self, settings: Settings, kind: type[Step] = Step) -> tuple[Step, Tensor, Tensor | None]:
        """An eager step for one picture, and what its prefill reads."""
        return self.step(settings, kind=kind), *self.read_prompt(settings)

    @contextmanager
    def lend(self, settings: Settings, pictures: int = 1) -> Iterator[Decoder]:
        """A Decoder in the settings' mode. A compiled or recorded one is kept and lent again; what a first one costs is
        told and spent here, before it is lent."""
        if settings.mode == "eager":
            yield Decoder(self.step(settings, pictures))
            return
        key = replace(settings, prompt="", seed=0), pictures
        decoder = self._decoders.pop(key, None) or self._make(settings, pictures)
        try:
            yield decoder
        finally:
            self._decoders[key] = decoder
            while len(self._decoders) > KEPT:
                self._decoders.popitem(last=False)

    def _make(self, settings: Settings, pictures: int) -> Decoder:
        what = "plain AR" if not settings.tree.nodes else f"the tree {settings.tree.name}"
        self.tell(f"Compiling for {what}: a minute or more, kept on disk for later runs …" if settings.mode == "compile"
                  else f"Recording {what} …")
        with torch.inference_mode(False):  # buffers of one kind, whoever asks: a compiled call tells them apart
            step = self.step(settings, pictures)
            run = modes.runner(step, settings.mode)
        condition, valid = self.read_prompt(settings)
        if pictures > 1:
            condition = condition.expand(pictures, *condition.shape[1:])
            valid = None if valid is None else valid.repeat_interleave(pictures, 0)
        began = time.perf_counter()
        modes.warm_up(step, run, condition, valid)
        self.tell(f"{modes.MODES[settings.mode]} in {time.perf_counter() - began:.1f} s.")
        return Decoder(step, run)

    def stream(self, settings: Settings) -> Iterator[StepEvent]:
        """Decode one picture, yielding each step's event; the generator's return value is the Output.

        Closing the generator stops the run within a step.
        """
        settings = self.check(settings)
        if settings.tree.nodes and not settings.relaxation.strict:
            _ = self.neighbours  # what is made once is no part of a run's time
        if settings.mode != "eager":
            with self.lend(settings):
                pass
        header = {**self.describe(), **settings.to_dict(), "settings": settings.to_dict(), "recorded": False,
                  "versions": {"python": platform.python_version(), "torch": torch.__version__}}
        began = time.perf_counter()
        with self.lend(settings) as decoder:
            condition, valid = self.read_prompt(settings)
            prompt_seconds = time.perf_counter() - began
            trace = Trace(header)
            for event in decoder.stream(condition, settings.seed, valid):
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
