"""What the commands share: knobs as options, the model, progress."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from . import settings as schema
from .settings import SettingsError


def add_knobs(parser: argparse.ArgumentParser, names: Sequence[str] | None = None) -> None:
    """Every knob, or those named, as an option taken as text: limits and messages live in the schema alone."""
    for name, knob in schema.KNOBS.items():
        if name not in ("prompt", "method") and (names is None or name in names):
            what = f" Choices: {', '.join(knob.choices)}." if knob.choices else ""
            what += f" From {knob.low:g} to {knob.high:g}." if knob.low is not None else ""
            parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper(), default=None,
                                help=f"{knob.help}{what}".replace("%", "%%"))
    parser.add_argument("--model", type=Path, default=None, help="name or folder of a model; else the bundled one")


def chosen(args: argparse.Namespace) -> dict[str, object]:
    return {n: v for n in schema.KNOBS if (v := getattr(args, n, None)) is not None}


def load(args: argparse.Namespace):
    from .pipeline import LanternPipeline

    pipe = LanternPipeline.from_pretrained(args.model, progress=lambda done, total: bar(
        done >> 20, total >> 20, f"MiB of {args.model}"))
    pipe.tell = say
    return pipe


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bar(done: int, total: int, text: str) -> None:
    """A progress bar on standard error, drawn only where a person watches."""
    if sys.stderr.isatty():
        filled = round(30 * done / max(1, total))
        print(f"\r{'█' * filled}{'·' * (30 - filled)} {done}/{total} {text:<40}", end="", file=sys.stderr, flush=True)
        if done >= total:
            say("")


def check_counts(args: argparse.Namespace, *names: str, low: int = 1, high: int = 1000) -> None:
    for name in names:
        if not low <= (count := getattr(args, name)) <= high:
            raise SettingsError(name, f"--{name} must be from {low} to {high}, not {count}.")
