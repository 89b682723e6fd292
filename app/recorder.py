"""Make recorded runs: `python -m app.recorder "red apple" owl --seed 7 --pairs 5`."""

import argparse
import re
from dataclasses import replace
from pathlib import Path

from app import params, stage
from app.record import FOLDER, save
from lanternpp.bench import compare, warm_up
from lanternpp.detail import inspect
from lanternpp.pipeline import LanternPipeline, run


def main() -> None:
    """Decode prompts with the baseline, a method and the exact tree, and keep each as a recorded run."""
    parser = argparse.ArgumentParser(prog="python -m app.recorder", description=main.__doc__)
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    parser.add_argument("--style", default="3D", choices=list(params.STYLES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--method", default="lanternpp", choices=list(params.METHODS))
    parser.add_argument(
        "--pairs", type=int, default=0, help="also measure this many interleaved pairs of the first prompt"
    )
    parser.add_argument("--tree", default=None, help="draft tree, by default the model's own")
    parser.add_argument("--model", type=Path, default=None, help="folder of the model")
    parser.add_argument("--out", type=Path, default=FOLDER)
    args = parser.parse_args()

    pipe = LanternPipeline.from_pretrained(args.model)
    tree = {"tree": args.tree} if args.tree else {}
    args.out.mkdir(parents=True, exist_ok=True)
    pipe.atlas().save(args.out / "atlas.png", optimize=True)
    for number, prompt in enumerate(args.prompts):
        method = pipe.check(prompt=params.caption(prompt, args.style), seed=args.seed, method=args.method, **tree)
        settings = [method.baseline(), method]
        exact = [] if args.method == "exact" else [replace(method, method="exact")]
        warm_up(pipe, settings)
        outputs = [run(pipe.stream(each)) for each in settings + exact]
        pairs = None
        if args.pairs and not number:
            pairs = stage.pairs(run(compare(pipe, settings, args.pairs)), method, pipe.describe())
        name = re.sub(r"[^a-z0-9]+", "-", prompt.lower()).strip("-") + f"-{args.seed}"
        details = [run(inspect(pipe, output.trace)) for output in outputs]  # after all that is timed
        print(save(args.out, name, prompt, args.style, outputs, pairs, details))


if __name__ == "__main__":
    main()
