"""Does `coupled` paint the very picture of plain AR? Count it, token by token.

    python -m lanternpp.identity --prompts 50 --trees cpu4,cpu8,cpu14,chain5 --dtypes float64,float32

Both decode each prompt with the same seed, and so with the same noise; in exact arithmetic all tokens are equal. The
two compute the same logits in passes of other shapes, so where two codes are nearly tied in the target's draw, rounding
may turn it. A first difference is such a near-tie when the lead of AR's token over the other one, the difference of
log p − log E in AR's own pass, lies within the dtype's tolerance; else something is wrong and the exit status is 1.
What follows a difference is another picture and is not counted. Prints a table, then one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from . import evaluate
from .console import bar, say
from .decode import Decoder
from .pipeline import LanternPipeline
from .settings import Settings, SettingsError

TOLERANCE = {"float64": 1e-6, "float32": 1e-4, "bfloat16": 0.5}  # of a lead, in nats; p is float32 whatever the model


@dataclass(frozen=True)
class Difference:
    """Where a picture first departs from AR's: its number, the token's position, both codes, and AR's lead in nats."""

    picture: int
    position: int
    ar: int
    other: int
    lead: float


def paint(pipe: LanternPipeline, settings: Settings, prompts: Sequence[str], seeds: Sequence[int], batch: int = 16,
          tokens: int | None = None) -> evaluate.Painted:
    """All pictures, `batch` side by side, or the first `tokens` codes of each. Nothing of an earlier run is used."""
    count, codes, steps = tokens or pipe.bundle.target.config.image_tokens, [], []
    for first in range(0, len(prompts), batch):
        some = slice(first, first + batch)
        condition, valid = pipe.encode_prompts(prompts[some])
        step = pipe.step(settings, pictures=len(condition))
        drawn: list[list[int]] = [[] for _ in seeds[some]]
        taken = [-1] * len(drawn)  # the prefill is not counted
        for picture, event in Decoder(step).stream_many(condition, seeds[some],
                                                        None if valid is None else valid[:step.rows]):
            taken[picture] += len(drawn[picture]) < count
            drawn[picture] += event.tokens
            if min(map(len, drawn)) >= count:
                break
        codes += [each[:count] for each in drawn]
        steps += taken
        bar(min(first + batch, len(prompts)), len(prompts), f"{settings.label}, {pipe.describe()['dtype']}")
    return evaluate.Painted(torch.tensor(codes), torch.tensor(steps))


@torch.inference_mode()
def race(pipe: LanternPipeline, settings: Settings, prompt: str, seed: int, tokens: Sequence[int]) -> Tensor:
    """log p − log E (V,), float64, of the token that AR draws after `tokens`: the greatest wins."""
    condition, valid = pipe.encode_prompts([prompt])
    step = pipe.step(settings.baseline())
    step.prefill(condition, [seed], None if valid is None else valid[:step.rows])
    p = step._distribution(step.target.head(step.pending_hidden[:, :1]))
    for token in tokens:
        step.pending_tokens.fill_(token)
        p = step._score(step._draft(step.cache.slots), step.cache.slots)[1]
        step.position.add_(1)
    return p[0, 0].double().log() - step.noise.target[0, len(tokens)].double().log()


def differences(pipe: LanternPipeline, settings: Settings, prompts: Sequence[str], seeds: Sequence[int], ar: Tensor,
                other: Tensor) -> list[Difference]:
    """The first difference of each picture that has one; ar and other (n, L) are its tokens by both."""
    found = []
    for picture in (ar != other).any(1).nonzero().flatten().tolist():
        position = int((ar[picture] != other[picture]).int().argmax())
        one, two = int(ar[picture, position]), int(other[picture, position])
        scores = race(pipe, settings, prompts[picture], seeds[picture], ar[picture, :position].tolist())
        found.append(Difference(picture, position, one, two, float(scores[one] - scores[two])))
    return found


def row(settings: Settings, dtype: str, plain: evaluate.Painted, made: evaluate.Painted,
        found: Sequence[Difference]) -> dict[str, object]:
    """A line of the table: pictures and tokens compared, and what differs."""
    pictures, length = plain.codes.shape
    ties = sum(abs(d.lead) <= TOLERANCE[dtype] for d in found)
    return {"tree": settings.tree.name, "dtype": dtype, "pictures": pictures, "identical": pictures - len(found),
            "tokens": pictures * length - sum(length - d.position - 1 for d in found), "near_ties": ties,
            "faults": len(found) - ties, "accepted_length": round(made.accepted_length, 3),
            "differences": [vars(d) for d in found]}


def measure(pipe: LanternPipeline, trees: Sequence[str], prompts: Sequence[str], seeds: Sequence[int],
            batch: int = 16, tokens: int | None = None, **knobs: object) -> Iterator[dict[str, object]]:
    """`coupled` beside AR on each tree: the rows of the table, each when it is known."""
    methods = [pipe.check(**{"prompt": "check", **knobs, "method": "coupled", "tree": tree}) for tree in trees]
    dtype = str(pipe.describe()["dtype"])
    plain = paint(pipe, methods[0].baseline(), prompts, seeds, batch, tokens)
    for settings in methods:
        made = paint(pipe, settings, prompts, seeds, batch, tokens)
        found = differences(pipe, settings, prompts, seeds, plain.codes, made.codes)
        yield row(settings, dtype, plain, made, found)


COLUMNS = ("dtype", "tree", "pictures", "identical", "tokens", "near_ties", "faults", "accepted_length")


def render(row: dict[str, object]) -> str:
    """A line of the table, and one for each difference."""
    return "\n".join(["".join(f"{row[c]:>{len(c) + 3}}" for c in COLUMNS),
                      *(f"    picture {d['picture']}, token {d['position']}: AR's {d['ar']} leads {d['other']} by "
                        f"{d['lead']:.2g} nats" for d in row["differences"])])


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lanternpp.identity", description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=None, help="name or folder of a model; else the bundled one")
    parser.add_argument("--prompts", type=int, default=50, help="how many of evaluate's prompts")
    parser.add_argument("--trees", default="cpu4,cpu8,cpu14,chain5", help="comma-separated")
    parser.add_argument("--dtypes", default="float64,float32", help=f"comma-separated, of {', '.join(TOLERANCE)}")
    parser.add_argument("--batch", type=int, default=16, help="pictures decoded side by side")
    parser.add_argument("--seed", type=int, default=0, help="of the first picture; the others count on")
    args = parser.parse_args(argv)
    dtypes, trees = ([x.strip() for x in text.split(",") if x.strip()] for text in (args.dtypes, args.trees))
    if wrong := [d for d in dtypes if d not in TOLERANCE]:
        parser.error(f"--dtypes names {wrong[0]!r}: use {', '.join(TOLERANCE)}.")
    if min(args.prompts, args.batch) < 1 or not trees:
        parser.error("--prompts and --batch must be at least 1, and --trees must name one.")
    prompts = evaluate.default_prompts(args.prompts, args.seed)
    seeds, rows = [args.seed + i for i in range(args.prompts)], []
    print("".join(f"{c:>{len(c) + 3}}" for c in COLUMNS).replace("_", " "))
    for dtype in dtypes:
        pipe = LanternPipeline.from_pretrained(args.model, dtype=getattr(torch, dtype))
        try:
            for found in measure(pipe, trees, prompts, seeds, args.batch):
                print(render(found), flush=True)
                rows.append(found)
        except SettingsError as error:
            say(f"lanternpp: {error}")
            return 2
    about = pipe.describe()
    print(json.dumps({"seed": args.seed, "batch": args.batch, **{k: about[k] for k in ("model", "device", "torch")},
                      "rows": rows}))
    return 1 if any(r["faults"] for r in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
