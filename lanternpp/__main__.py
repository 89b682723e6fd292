"""Command line: python -m lanternpp generate | bench | evaluate | frontier | train."""

from __future__ import annotations

import argparse
import json
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

    pipe = load(args)
    prompts = [speed.PROMPTS[i % len(speed.PROMPTS)] for i in range(args.prompts)]
    first_seed = checked[0].seed
    pairs = [[pipe.check(**{**knobs, "prompt": prompt, "method": name,
                            "seed": (first_seed + number + 1000 * repeat) % 2**31})
              for name in names] for repeat in range(args.repeats) for number, prompt in enumerate(prompts)]
    about = pipe.describe()
    say(f"{about['model']} on {about['device']}, {about['dtype']}, {about['mode']}, torch {about['torch']}; "
        f"{len(pairs)} pairs of {', '.join(names)} interleaved")
    methods = [speed.Runs(s) for s in pairs[0]]
    stopped = False
    try:
        for step in speed.interleave(pipe, pairs, methods):
            bar(step.done, step.total, f"{step.settings.method} {step.summary['total_seconds']:.2f} s")
    except KeyboardInterrupt:
        stopped = True
        say("\nStopped: the table holds the complete pairs only.")
    document = speed.document(pipe, methods) | ({"stopped": True} if stopped else {})
    print(speed.render(document["methods"]))
    print(speed.to_line(document))
    return 130 if stopped else 0


def evaluate(args: argparse.Namespace) -> int:
    names = list(dict.fromkeys(m.strip() for m in args.methods.split(",") if m.strip()))
    knobs = chosen(args)
    checked = [Settings.checked(**{"prompt": "check", **knobs, "method": name}) for name in names]
    if not 8 <= args.images <= 100_000:
        raise SettingsError("images", f"--images must be from 8 to 100000, not {args.images}.")
    if not 1 <= args.batch <= 256:
        raise SettingsError("batch", f"--batch must be from 1 to 256, not {args.batch}.")
    from accelerate import PartialState

    from . import evaluate as quality

    state = PartialState(cpu=not torch_has_gpu())
    pipe = load(args, state.device)
    prompts = quality.default_prompts(args.images, checked[0].seed if checked else 0)
    if args.prompts:
        lines = [line.strip() for line in args.prompts.read_text().splitlines() if line.strip()]
        prompts = [lines[i % len(lines)] for i in range(args.images)] if lines else []
        for text in lines:
            Settings.checked(prompt=text)
        if not lines:
            raise SettingsError("prompts", f"The file {args.prompts} has no prompts: write one a line.")
    methods = [pipe.check(**{**knobs, "prompt": "check", "method": name}) for name in names]
    if not methods:
        raise SettingsError("methods", f"--methods is empty: name some of {', '.join(METHODS)}, with commas.")
    seeds = [(methods[0].seed + i) % 2**31 for i in range(args.images)]
    ar = methods[0].baseline()
    runs = [("ar", ar, seeds), ("ar, other seeds", ar, [s + quality.OTHER_SEEDS for s in seeds]),
            *((m.label, m, seeds) for m in methods if m.method != "ar")]
    for name, settings, own in runs:
        for done in quality.paint(pipe, settings, prompts, own, args.out, args.batch, state.process_index,
                                  state.num_processes):
            bar(done, -(-args.images // state.num_processes), name)
    state.wait_for_everyone()
    if state.is_main_process:
        table = quality.report(pipe, methods, prompts, seeds, args.out, args.batch)
        about = pipe.describe()
        print(quality.render(table))
        print(json.dumps({"images": args.images, "seed": methods[0].seed, **{k: about[k] for k in
                          ("model", "device", "dtype", "torch")}, "sampling": vars(ar.sampling), "rows": table},
                         ensure_ascii=False))
    return 0


def frontier(args: argparse.Namespace) -> int:
    """Every point with --images pictures, then those on the front with --final."""
    for name, low in (("images", 8), ("pairs", 1), ("batch", 1), ("final", 0)):
        if not low <= getattr(args, name) <= 100_000:
            raise SettingsError(name, f"--{name} must be from {low} to 100000, not {getattr(args, name)}.")
    from . import evaluate as quality
    from . import frontier as sweep

    pipe = load(args)
    common = {n: v for n, v in chosen(args).items() if n in ("seed", "cfg_scale", "temperature", "top_k", "top_p")}
    trees = [t.strip() for t in args.trees.split(",") if t.strip()]
    points = [pipe.check(**{"prompt": "check", **common, **point}) for point in sweep.grid(trees)]
    args.out.mkdir(parents=True, exist_ok=True)
    for done, label in enumerate(sweep.speeds(pipe, points, args.pairs, args.out / "speeds.jsonl"), 1):
        bar(done, len(points), f"speed of {label}")
    for name, count in (("frontier", args.images), ("front", args.final)):
        if not count:
            break
        prompts = quality.default_prompts(count, points[0].seed)
        seeds = [(points[0].seed + i) % 2**31 for i in range(count)]
        ar = points[0].baseline()
        runs = [(ar, seeds), (ar, [s + quality.OTHER_SEEDS for s in seeds]), *((p, seeds) for p in points)]
        for number, (settings, own) in enumerate(runs):
            for _ in quality.paint(pipe, settings, prompts, own, args.out, args.batch):
                bar(number, len(runs), f"{count} pictures of {settings.label}")
        rows, scores = sweep.table(pipe, points, prompts, seeds, args.out, args.batch)
        sweep.write_csv(rows, args.out / f"{name}.csv")
        sweep.figure(rows, scores["ar"], scores["ar, other seeds"], args.out / f"{name}.png")
        say(f"{len(rows)} points in {args.out / name}.csv and .png")
        best = {r["label"] for r in rows if r["pareto"]}
        points = [p for p in points if p.label in best]
    print(quality.render(scores))
    return 0


def torch_has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lanternpp", description="Tree speculative decoding of pictures.")
    commands = parser.add_subparsers(required=True, metavar="generate | bench | evaluate | frontier | train")

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
    add_knobs(many)
    many.set_defaults(call=bench)

    judged = commands.add_parser("evaluate", help="measure the quality of many pictures of several methods")
    judged.add_argument("--methods", default="exact,lantern,lanternpp,annealed", help="comma-separated; ar is added")
    judged.add_argument("--images", type=int, default=100, help="pictures of each method")
    judged.add_argument("--prompts", type=Path, default=None, help="text file, one a line; else all looks")
    judged.add_argument("--batch", type=int, default=16, help="pictures decoded side by side")
    judged.add_argument("--out", type=Path, default=Path("evaluation"),
                        help="folder of what is painted; a run that was stopped goes on from it, and processes of "
                             "`accelerate launch` share it")
    add_knobs(judged)
    judged.set_defaults(call=evaluate)

    swept = commands.add_parser("frontier", help="speed against quality over a grid of settings")
    swept.add_argument("--images", type=int, default=100, help="pictures of each point")
    swept.add_argument("--final", type=int, default=1000, help="pictures of each point on the Pareto front; 0 for none")
    swept.add_argument("--pairs", type=int, default=4, help="pictures on which each point's speed is measured")
    swept.add_argument("--trees", default="cpu4,cpu8,cpu14", help="comma-separated")
    swept.add_argument("--batch", type=int, default=16, help="pictures decoded side by side")
    swept.add_argument("--out", type=Path, default=Path("frontier"), help="folder; a run that was stopped goes on")
    add_knobs(swept)
    swept.set_defaults(call=frontier)

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
