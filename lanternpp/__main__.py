"""Command line: python -m lanternpp generate | bench | tune | gpu-report | evaluate | frontier | sweep | train."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from . import quality_commands
from .console import add_knobs, bar, check_counts, chosen, load, say
from .hub import ModelError
from .settings import METHODS, Settings, SettingsError
from .tree import MAX_NODES, TreeError


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
    check_counts(args, "prompts", "repeats")
    from . import bench as speed
    from . import breakdown as parts

    if args.breakdown and checked[0].mode == "graph":
        raise SettingsError("mode", "A recorded graph has no phases that could be timed: leave out --breakdown, or use "
                                    "the mode eager or compile.")
    pipe = load(args)
    prompts = [speed.PROMPTS[i % len(speed.PROMPTS)] for i in range(args.prompts)]
    first_seed = checked[0].seed
    pairs = [[pipe.check(**{**knobs, "prompt": prompt, "method": name,
                            "seed": (first_seed + number + 1000 * repeat) % 2**31})
              for name in names] for repeat in range(args.repeats) for number, prompt in enumerate(prompts)]
    about = pipe.describe()
    say(f"{about['model']} on {about['device']}, {about['dtype']}, {checked[0].mode}, torch {about['torch']}; "
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


def tune(args: argparse.Namespace) -> int:
    if args.tree is not None:
        raise SettingsError("tree", "tune searches the tree itself: leave out --tree.")
    knobs = {"prompt": "check", "tree": "cpu4", **chosen(args)}
    if Settings.checked(**knobs).method == "ar":
        raise SettingsError("method", "Plain AR drafts no tree that could be tuned: choose another method.")
    if knobs.get("mode") == "compile":
        raise SettingsError("mode", "tune measures dozens of trees, and each would be compiled for a minute: use the "
                                    "mode eager or graph.")
    check_counts(args, "traces", "pictures", "rounds")
    check_counts(args, "budget", high=MAX_NODES)
    from . import presets
    from . import tune as tuning
    from .bench import to_line

    pipe = load(args)
    settings, about = pipe.check(**knobs), pipe.describe()
    say(f"{about['model']} on {about['device']}, {about['dtype']}, {settings.mode}: {METHODS[settings.method]}")
    work = tuning.tune(pipe, settings, args.traces, args.pictures, args.rounds, args.budget)
    while True:
        try:
            what, done, total = next(work)
        except StopIteration as end:
            tree, document = end.value
            break
        bar(done, total, what)
    kept = presets.keep(tree, about, {"found": document})
    picture = args.figure or kept.with_suffix(".png")
    tuning.figure(picture, document)
    print(tuning.render(document))
    print(f"Kept in {kept}, drawn in {picture}. Use it with --tree tuned.")
    print(to_line(document))
    return 0


def gpu_report(args: argparse.Namespace) -> int:
    ways = [m.strip() for m in args.modes.split(",") if m.strip()]
    for mode in ways:
        Settings.checked(prompt="check", mode=mode)
    check_counts(args, "steps", "prompts")
    import torch

    from . import gpu_report as reporting
    from .bench import to_line
    from .models import MODELS

    names = [name.strip() for name in args.shapes.split(",") if name.strip()]
    for name in names:
        if name not in MODELS or MODELS[name].drafter is None:
            usable = ", ".join(n for n, spec in MODELS.items() if spec.drafter)
            raise SettingsError("shapes", f"--shapes names {name[:40]!r}: use some of {usable}, with commas.")
    if not torch.cuda.is_available():
        raise SettingsError("device", "gpu-report measures a CUDA GPU, and torch finds none here: run it on a machine "
                                      "that has one.")
    document = reporting.report(load(args), ways, lambda text: print(text, flush=True), names, steps=args.steps,
                                prompts=args.prompts)
    print(to_line(document))
    return 0


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m lanternpp", description="Tree speculative decoding of pictures.")
    names = "generate | bench | tune | gpu-report | evaluate | frontier | sweep | train"
    commands = parser.add_subparsers(required=True, metavar=names)

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

    best = commands.add_parser("tune", help="find the fastest draft tree for a model on this machine")
    best.add_argument("--method", default=None, help="the method to tune for; lanternpp if left out")
    best.add_argument("--traces", type=int, default=6, help="pictures in which acceptance is counted")
    best.add_argument("--pictures", type=int, default=5, help="pictures on which every tree is measured")
    best.add_argument("--rounds", type=int, default=3, help="how often the cost of every random tree is timed")
    best.add_argument("--budget", type=int, default=MAX_NODES, help=f"most nodes of a tree, up to {MAX_NODES}")
    best.add_argument("--figure", type=Path, default=None, help="PNG to write; beside the tuned tree if left out")
    add_knobs(best)
    best.set_defaults(call=tune)

    gpu = commands.add_parser("gpu-report", help="latencies of published models' shapes on this machine's GPU")
    gpu.add_argument("--modes", default="eager,compile,graph", help="comma-separated")
    gpu.add_argument("--shapes", default="llamagen-t2i-256,llamagen-t2i-512,anole-7b", help="comma-separated models")
    gpu.add_argument("--steps", type=int, default=100, help="how often each step is timed")
    gpu.add_argument("--prompts", type=int, default=5, help="pictures of the bundled model, each by every method")
    gpu.add_argument("--model", type=Path, default=None, help="the model that is run for real; the bundled one")
    gpu.set_defaults(call=gpu_report)

    quality_commands.add_parsers(commands)

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
