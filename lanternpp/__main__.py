"""Command line: python -m lanternpp generate | bench | train."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import settings as schema
from .hub import ModelError
from .settings import METHODS, Settings, SettingsError
from .tree import TreeError


def add_knobs(parser: argparse.ArgumentParser) -> None:
    """Every knob as an option taken as text: limits and messages live in the schema alone."""
    for name, knob in schema.KNOBS.items():
        if name not in ("prompt", "method"):
            what = f" Choices: {', '.join(knob.choices)}." if knob.choices else ""
            what += f" From {knob.low:g} to {knob.high:g}." if knob.low is not None else ""
            parser.add_argument(f"--{name.replace('_', '-')}", metavar=name.upper(), default=None,
                                help=f"{knob.help}{what}".replace("%", "%%"))
    parser.add_argument("--model", type=Path, default=None, help="folder of a model; the bundled one if left out")


def chosen(args: argparse.Namespace) -> dict[str, object]:
    return {n: v for n in schema.KNOBS if (v := getattr(args, n, None)) is not None}


def load(args: argparse.Namespace):
    from .pipeline import LanternPipeline

    return LanternPipeline.from_pretrained(args.model)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def bar(done: int, total: int, text: str) -> None:
    """A progress bar on standard error, drawn only where a person watches."""
    if sys.stderr.isatty():
        filled = round(30 * done / max(1, total))
        print(f"\r{'█' * filled}{'·' * (30 - filled)} {done}/{total} {text:<40}", end="", file=sys.stderr, flush=True)
        if done >= total:
            say("")


def generate(args: argparse.Namespace) -> int:
    Settings.checked(**chosen(args))  # a bad knob is said before the model is loaded
    pipe = load(args)
    settings = pipe.check(**chosen(args))
    stream = pipe.stream(settings)
    length, done = pipe.bundle.target.config.image_tokens, 0
    while True:
        try:
            event = next(stream)
        except StopIteration as end:
            output = end.value
            break
        done += event.accepted
        bar(done, length, f"tokens, {event.seconds:.1f} s")
    output.images[0].save(args.out, "PNG")
    if args.trace:
        output.trace.save(args.trace)
    facts = output.trace.summary()
    print(f"{args.out}: {METHODS[settings.method]}, {facts['total_seconds']:.2f} s, {facts['steps']} steps, "
          f"accepted length {facts['accepted_length']:.2f}, step compression {facts['step_compression']:.2f}, "
          f"{output.trace.header['device']}, {output.trace.header['dtype']}")
    return 0


def bench(args: argparse.Namespace) -> int:
    names = list(dict.fromkeys(m.strip() for m in args.methods.split(",") if m.strip()))
    knobs = chosen(args)
    if not names:
        raise SettingsError("methods", f"--methods is empty: name some of {', '.join(METHODS)}, with commas.")
    checked = [Settings.checked(**{"prompt": "check", **knobs, "method": name}) for name in names]
    for what, count in (("prompts", args.prompts), ("repeats", args.repeats)):
        if not 1 <= count <= 1000:
            raise SettingsError(what, f"--{what} must be from 1 to 1000, not {count}.")
    from . import bench as speed
    from . import breakdown as parts

    pipe = load(args)
    prompts = [speed.PROMPTS[i % len(speed.PROMPTS)] for i in range(args.prompts)]
    first_seed = checked[0].seed
    pairs = [[pipe.check(**{**knobs, "prompt": prompt, "method": name,
                            "seed": (first_seed + number + 1000 * repeat) % 2**31})
              for name in names] for repeat in range(args.repeats) for number, prompt in enumerate(prompts)]
    about = pipe.describe()
    say(f"{about['model']} on {about['device']}, {about['dtype']}, {about['mode']}, torch {about['torch']}; "
        f"{len(pairs)} pairs of {', '.join(names)} interleaved")
    kind, interleave = (parts.Timed, parts.interleave) if args.breakdown else (speed.Runs, speed.interleave)
    methods = [kind(s) for s in pairs[0]]
    stopped = False
    try:
        for step in interleave(pipe, pairs, methods):
            bar(step.done, step.total, f"{step.settings.method} {step.summary['total_seconds']:.2f} s")
    except KeyboardInterrupt:
        stopped = True
        say("\nStopped: the table holds the complete pairs only.")
    document = speed.document(pipe, methods) | ({"stopped": True} if stopped else {})
    print(speed.render(document["methods"]))
    if args.breakdown and methods[0].summaries:
        machine = parts.measure_machine(pipe.bundle.target.device, pipe.bundle.target.dtype)
        document |= {"machine": vars(machine), "breakdown": parts.breakdown(pipe, methods, machine)}
        print(f"\n{parts.render(document['breakdown'], machine)}")
    print(speed.to_line(document))
    return 130 if stopped else 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lanternpp", description="Tree speculative decoding of pictures.")
    commands = parser.add_subparsers(required=True, metavar="generate | bench | train")

    one = commands.add_parser("generate", help="paint one picture")
    one.add_argument("prompt", help="a thing, a style and a background colour, such as 'a red apple, 3d'")
    one.add_argument("--method", default=None, help=f"one of {', '.join(METHODS)}")
    one.add_argument("--out", type=Path, default=Path("picture.png"), help="PNG to write")
    one.add_argument("--trace", type=Path, default=None, help="JSON trace to write")
    add_knobs(one)
    one.set_defaults(call=generate)

    many = commands.add_parser("bench", help="measure the speed of several methods, interleaved")
    many.add_argument("--methods", default="ar,exact,lantern,lanternpp,annealed", help="comma-separated")
    many.add_argument("--prompts", type=int, default=5, help="how many of the fixed prompts")
    many.add_argument("--repeats", type=int, default=1, help="how often each prompt, with other seeds")
    many.add_argument("--breakdown", action="store_true",
                      help="also time each phase of a step and compare it with this machine's limits")
    add_knobs(many)
    many.set_defaults(call=bench)

    from .training import commands as training

    training.add_parsers(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    try:
        return args.call(args)
    except (SettingsError, TreeError, ModelError) as error:
        say(f"lanternpp: {error}")
        return 2
    except OSError as error:
        reason = f"cannot read or write {error.filename}: {error.strerror}." if error.filename else str(error)
        say(f"lanternpp: {reason}")
        return 2
    except KeyboardInterrupt:
        say("Stopped.")
        return 130


if __name__ == "__main__":
    sys.exit(main())
