"""The models that the page can choose from: what each is, what it needs, and whether this machine has it."""

import json
import logging
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from app import params
from lanternpp.checkpoints import ModelError
from lanternpp.hub import BUNDLED
from lanternpp.models import MODELS, ModelSpec
from lanternpp.modes import MODES
from lanternpp.settings import Settings

Progress = Callable[[int, int], None]
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """A model by its name in MODELS, its target's name on the hub, or its folder."""

    where: str
    title: str
    about: dict[str, Any]  # what the page reads before the model is there: grid, codes, defaults
    spec: ModelSpec | None = None  # of a model that comes from the hub
    styled: bool = False  # reads the captions of the bundled model, with style words
    examples: tuple[str, ...] = ()
    pipeline: Callable[[], Any] | None = field(default=None, compare=False)  # in place of loading `where`

    def load(self, progress: Progress | None = None) -> Any:
        """The pipeline; its heavy imports belong to the thread that loads it."""
        from lanternpp.pipeline import LanternPipeline

        return self.pipeline() if self.pipeline else LanternPipeline.from_pretrained(self.where, progress=progress)

    @property
    def name(self) -> str:
        """What links call it: no path of this machine."""
        return self.spec.name if self.spec else re.sub(r"[^a-z0-9]+", "-", self.title.lower()).strip("-")

    @cached_property
    def needs(self) -> int:
        """Bytes of memory, counted without the files; 0 where nothing is known of it."""
        from lanternpp import published

        return sum(published.memory(self.spec, self._kind[0]).values()) if self.spec else 0

    def lacks(self) -> list[str]:
        """The commands that fetch what is not on this machine."""
        from lanternpp import published

        return published.missing(self.spec) if self.spec else []

    def check(self, freed: int = 0) -> None:
        """ModelError, one sentence, if files are missing or memory is short even after `freed` bytes are given back."""
        from lanternpp.checkpoints import need_memory

        if commands := self.lacks():
            raise ModelError(f"{self.title} is not on this machine: run `{' && '.join(commands)}`.")
        need_memory(self.title, self.needs, self._kind[1], freed)

    def line(self, freed: int = 0) -> str:
        """Title, need, and what stands in the way, for a list of models."""
        if not self.spec:
            return self.title
        from lanternpp.checkpoints import free_memory

        fits = self.needs <= free_memory(self._kind[1]) + freed
        state = "needs its files" if self.lacks() else "ready" if fits else ""
        return ", ".join(filter(None, (self.title, f"{self.needs / 1e9:.1f} GB", state, "" if fits else "too large")))

    @property
    def _kind(self) -> tuple:
        import torch

        from lanternpp.pipeline import best_dtype

        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        return best_dtype(device), device


def choices_for(start: str, pipeline: Callable[[], Any] | None = None) -> dict[str, Choice]:
    """All choices by name; first the one that the app starts with, whose `pipeline` may stand in for loading it."""
    found = [] if start in MODELS else [of_folder(Path(start), pipeline)]
    if Path(start).resolve() != BUNDLED:
        found.append(of_folder(BUNDLED))
    for spec in MODELS.values():
        about = facts(spec.title, spec.target.grid, spec.target.codes, spec.defaults)
        found.append(Choice(spec.name, spec.title, about, spec, examples=examples(spec),
                            pipeline=pipeline if spec.name == start else None))  # fmt: skip
    return {choice.where: choice for choice in sorted(found, key=lambda choice: choice.where != start)}


def of_folder(folder: Path, pipeline: Callable[[], Any] | None = None) -> Choice:
    """A folder of either layout; what its config file does not tell is left out, and loading it says what is wrong."""
    about, config = model_facts(folder), read(folder)
    spec = MODELS.get(str(config.get("model"))) if about.get("model") else None
    title = about.get("model") or str(folder)
    return Choice(str(folder), title, about, None, spec is None, examples(spec), pipeline)


def examples(spec: ModelSpec | None) -> tuple[str, ...]:
    """Prompts that a model surely reads, where not every text is one."""
    from lanternpp.text import ClassPrompt

    return (ClassPrompt.example,) if spec and spec.prompt == "class" else ()


def read(folder: Path) -> dict[str, Any]:
    """A folder's config file; empty where it cannot be read."""
    try:
        return dict(json.loads((folder / "config.json").read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def model_facts(folder: Path) -> dict[str, Any]:
    """Name, grid, codes and defaults from the model's small config file; the weights are not touched."""
    try:
        config = json.loads((folder / "config.json").read_text())
        if config.get("model") in MODELS:
            from lanternpp.published import read_spec

            spec = read_spec(MODELS[config["model"]], config)
            defaults = {**spec.defaults, **config.get("defaults", {})}
            return facts(config.get("name", spec.title), spec.target.grid, spec.target.codes, defaults)
        target = config["target"]
        return facts(config["name"], target["grid"], target["codes"], config["defaults"] or {})
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the model's config could not be read: %s", error)
        return {"defaults": {}}


def facts(name: object, grid: object, codes: object, defaults: Mapping[str, object]) -> dict[str, Any]:
    """What the page reads of a model before it is there; a default that no knob can hold is an error."""
    Settings.checked(defaults, prompt="a")
    params.opening(defaults)
    return {"model": str(name), "grid": int(grid), "codes": int(codes), "defaults": dict(defaults)}


def weights(folder: Path) -> str:
    """The size of an own model's weights in words, nothing where there are none."""
    size = sum(file.stat().st_size for file in folder.glob("[!n]*.safetensors"))  # not the table of neighbours
    return f", {size / 1e6:.0f} MB" if size else ""


def command_line(arguments: list[str]) -> dict[str, str | None]:
    """What `python app.py --model NAME_OR_FOLDER --mode MODE` chooses, as build_demo takes it."""
    import argparse

    parser = argparse.ArgumentParser(prog="app.py", description="Serve the web app.")
    parser.add_argument("--model", help=f"folder of a model, or one of {shlex.join(MODELS)}")
    parser.add_argument("--mode", choices=list(MODES), default="eager", help="how steps run: %(choices)s")
    return vars(parser.parse_args(arguments))
