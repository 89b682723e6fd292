"""`python -m lanternpp evaluate | frontier | sweep`: quality of many pictures, and speed against quality."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from .console import add_knobs, bar, check_counts, chosen, load, say
from .hub import BUNDLED, ModelError
from .settings import METHODS, Settings, SettingsError


def add_parsers(commands: argparse._SubParsersAction) -> None:
    judged = commands.add_parser("evaluate", help="measure the quality of many pictures of several methods")
    judged.add_argument("--methods", default="exact,lantern,lanternpp,annealed", help="comma-separated; ar is added")
    judged.add_argument("--images", type=int, default=100, help="pictures of each method")
    judged.add_argument("--prompts", type=Path, default=None, help="text file, one a line; else the bundled looks")
    judged.add_argument("--batch", type=int, default=16, help="pictures decoded side by side")
    judged.add_argument("--out", type=Path, default=Path("evaluation"),
                        help="folder of what is painted; a run that was stopped goes on from it, and processes of "
                             "`accelerate launch` share it")
    add_knobs(judged)
    judged.set_defaults(call=run_evaluate)

    front = commands.add_parser("frontier", help="speed against quality over a grid of settings")
    front.add_argument("--images", type=int, default=100, help="pictures of each point")
    front.add_argument("--final", type=int, default=1000, help="pictures of each point on the Pareto front; 0 for none")
    front.add_argument("--pairs", type=int, default=4, help="pictures on which each point's speed is measured")
    front.add_argument("--trees", default="cpu4,cpu8,cpu14", help="comma-separated")
    front.add_argument("--batch", type=int, default=16, help="pictures decoded side by side")
    front.add_argument("--out", type=Path, default=Path("frontier"), help="folder; a run that was stopped goes on")
    add_knobs(front)
    front.set_defaults(call=run_frontier)

    swept = commands.add_parser("sweep", help="speed and quality of a grid of settings on a few prompts, as in the app")
    for name, words in {"methods": "", "trees": "presets or branching such as 3/2/1", "k": "for relaxed methods",
                        "lam": "λ, for lanternpp, annealed and coupled-relaxed", "delta": "δ, for lantern",
                        "gamma": "γ, for annealed", "orders": "strict-first, sequential"}.items():
        swept.add_argument(f"--{name}", default=None, help=f"comma-separated{', ' if words else ''}{words}")
    swept.add_argument("--prompt", action="append", default=None, help="may be given several times")
    swept.add_argument("--prompts", type=Path, default=None, help="text file, one a line")
    swept.add_argument("--repeats", default=None, help="pictures of each prompt, with the next seeds")
    swept.add_argument("--out", type=Path, default=Path("sweep"),
                       help="folder of sweep.csv, .json and .png; a run that was stopped goes on from it")
    add_knobs(swept, ("seed", "cfg_scale", "temperature", "top_k", "top_p", "mode"))
    swept.set_defaults(call=run_sweep)


def run_evaluate(args: argparse.Namespace) -> int:
    names = list(dict.fromkeys(m.strip() for m in args.methods.split(",") if m.strip()))
    knobs = chosen(args)
    checked = [Settings.checked(**{"prompt": "check", **knobs, "method": name}) for name in names]
    check_counts(args, "images", low=8, high=100_000)
    check_counts(args, "batch", high=256)
    import torch
    from accelerate import PartialState

    from . import evaluate
    from .pipeline import LanternPipeline
    from .published_scorer import PublishedScorer
    from .scorer import Scorer

    state = PartialState(cpu=not torch.cuda.is_available())
    pipe = LanternPipeline.from_pretrained(args.model, state.device)
    bundled = pipe.bundle.words is not None
    prompts = (read_prompts(args.prompts, args.images) if args.prompts else
               evaluate.default_prompts(args.images, checked[0].seed if checked else 0))
    if bundled:
        scorer = Scorer.load()
        try:
            evaluate.References.load().rows(prompts)
        except ValueError as error:
            raise SettingsError("prompts", str(error)) from None
    elif args.prompts:
        scorer = PublishedScorer.load(state.device)  # what is missing is said before anything is painted
    else:
        raise SettingsError("prompts", f"{pipe.bundle.name} has no prompts of its own to be judged by: "
                                       "name a file of them, one a line, with --prompts.")
    methods = [pipe.check(**{**knobs, "prompt": "check", "method": name}) for name in names]
    if not methods:
        raise SettingsError("methods", f"--methods is empty: name some of {', '.join(METHODS)}, with commas.")
    seeds = [(methods[0].seed + i) % 2**31 for i in range(args.images)]
    ar = methods[0].baseline()
    runs = [("ar", ar, seeds), ("ar, other seeds", ar, [s + evaluate.OTHER_SEEDS for s in seeds]),
            *((m.label, m, seeds) for m in methods if m.method != "ar")]
    for name, settings, own in runs:
        for done in evaluate.paint(pipe, settings, prompts, own, args.out, args.batch, state.process_index,
                                  state.num_processes):
            bar(done, -(-args.images // state.num_processes), name)
    state.wait_for_everyone()
    if state.is_main_process:
        table = evaluate.report(pipe, methods, prompts, seeds, args.out, args.batch, scorer)
        about = pipe.describe()
        print(evaluate.render(table))
        print(json.dumps({"images": args.images, "seed": methods[0].seed, **{k: about[k] for k in
                          ("model", "device", "dtype", "torch")}, "sampling": vars(ar.sampling),
                          "scorer": "bundled" if bundled else scorer.about, "rows": table}, ensure_ascii=False))
    return 0


def read_prompts(path: Path, count: int) -> list[str]:
    """`count` prompts from a file, one a line, again from the start if need be; SettingsError for a bad one."""
    lines = [line.strip() for line in path.read_text().splitlines() if line.strip()]
    if not lines:
        raise SettingsError("prompts", f"The file {path} has no prompts: write one a line.")
    for text in lines:
        Settings.checked(prompt=text)
    return [lines[i % len(lines)] for i in range(count)]


def run_frontier(args: argparse.Namespace) -> int:
    """Every point with --images pictures, then those on the front with --final."""
    check_counts(args, "images", low=8, high=100_000)
    check_counts(args, "final", low=0, high=100_000)
    check_counts(args, "batch", "pairs", high=256)
    from . import evaluate, frontier

    pipe = load(args)
    only_bundled(pipe)
    common = {n: v for n, v in chosen(args).items() if n in ("seed", "cfg_scale", "temperature", "top_k", "top_p")}
    trees = [t.strip() for t in args.trees.split(",") if t.strip()]
    points = [pipe.check(**{"prompt": "check", **common, **point}) for point in frontier.grid(trees)]
    args.out.mkdir(parents=True, exist_ok=True)
    for done, label in enumerate(frontier.speeds(pipe, points, args.pairs, args.out / "speeds.jsonl"), 1):
        bar(done, len(points), f"speed of {label}")
    for name, count in (("frontier", args.images), ("front", args.final)):
        if not count:
            break
        prompts = evaluate.default_prompts(count, points[0].seed)
        seeds = [(points[0].seed + i) % 2**31 for i in range(count)]
        ar = points[0].baseline()
        runs = [(ar, seeds), (ar, [s + evaluate.OTHER_SEEDS for s in seeds]), *((p, seeds) for p in points)]
        for number, (settings, own) in enumerate(runs):
            for _ in evaluate.paint(pipe, settings, prompts, own, args.out, args.batch):
                bar(number, len(runs), f"{count} pictures of {settings.label}")
        rows, scores = frontier.table(pipe, points, prompts, seeds, args.out, args.batch,
                                      weights=frontier.weights_mark(args.model or BUNDLED))
        frontier.write_csv(rows, args.out / f"{name}.csv")
        frontier.figure(rows, scores["ar"], scores["ar, other seeds"], args.out / f"{name}.png")
        say(f"{len(rows)} points in {args.out / name}.csv and .png")
        best = {r["label"] for r in rows if r["pareto"]}
        points = [p for p in points if p.label in best]
    print(evaluate.render(scores))
    return 0


def run_sweep(args: argparse.Namespace) -> int:
    from . import grid as grids
    from .sweep import Log, Sweep, figure, render

    names = (n for n in (*grids.DEFAULTS, *grids.SAMPLING, "mode") if n != "prompts")
    given = {n: v for n in names if (v := getattr(args, n)) is not None}
    if args.prompts:
        given["prompts"] = args.prompts.read_text()
    if args.prompt:
        given["prompts"] = args.prompt + str(given.get("prompts", "")).splitlines()
    grids.Grid.checked(limits=grids.CONSOLE, scored=False, **given)  # a bad value is said before the model is loaded
    pipe = load(args)
    grid = grids.Grid.checked(pipe.bundle.defaults, pipe.describe(), grids.CONSOLE, pipe.bundle.words is not None,
                              **given)
    log = Log(args.out / "rounds.jsonl", pipe, grid)
    sweep, stopped = Sweep(grid, log.read()), False
    kept = len(sweep.rounds)
    if kept:
        say(f"{sweep.done} of {grid.runs} runs were measured before.")
    try:
        for step in sweep.run(pipe):
            if step.complete:
                log.add(*list(sweep.rounds.items())[-1])
            left = "" if step.left is None else f", {step.left / 60:.0f} min left"
            bar(step.done, step.total, f"{step.now}{left}")
    except KeyboardInterrupt:
        stopped = True
        say(f"\nStopped: the files hold {sweep.done} of {grid.runs} runs; the same command goes on.")
    rows = sweep.rows()
    if rows:
        (args.out / "sweep.csv").write_text(sweep.csv(), newline="")
        (args.out / "sweep.json").write_text(json.dumps(sweep.document(), ensure_ascii=False))
        figure(rows, sweep.about, args.out / "sweep.png")
        print(render(rows))
    print(json.dumps({k: v for k, v in sweep.document().items() if k not in ("rounds", "grid")}, ensure_ascii=False))
    return 130 if stopped else 0


def only_bundled(pipe) -> None:
    """ModelError for a model that the frontier's prompts are not made for."""
    if pipe.bundle.words is None:
        raise ModelError(f"The frontier's prompts are the bundled model's, not those of {pipe.bundle.name}: for that "
                         "model use evaluate --prompts FILE and bench.")
