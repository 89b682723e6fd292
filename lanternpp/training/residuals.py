"""Does the residual that follows a rejection matter? Each kind's total variation at the real nodes of some pictures.

    python -m lanternpp.training.residuals --prompts 4

One child x, drawn from q and accepted with probability a(x) = min(1, m(x) / q(x)), is followed by a draw from

    strict  norm([p − q]₊), as in strict speculative sampling; used here
    freed   norm([p − q′]₊), q′ being q without the neighbours that x pooled: the papers' published code
    anew    p itself, as if nothing had been drafted

so the law of the token is out(y) = q(y) a(y) + Σ_x q(x) (1 − a(x)) residual_x(y), worked out here over all codes. The
acceptance is the same for all three. "strict" is also norm([p − q a]₊), what the accepted drafts leave of p: where
p ≥ q, m ≥ p gives a = 1, and elsewhere q a ≥ p leaves nothing. So no other residual comes nearer to p.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from ..decode import Decoder
from ..detail import Recorder
from ..evaluate import default_prompts
from ..pipeline import LanternPipeline
from ..relax import Relaxation, relaxed_mass
from ..settings import Settings

KINDS = ("strict", "freed", "anew")


def laws(p: Tensor, q: Tensor, nearest: Tensor, relaxation: Relaxation) -> tuple[float, dict[str, Tensor]]:
    """Acceptance Σ q a, and the law of the token (V,) by each kind of residual; p, q (V,), nearest (V, k or more)."""
    near = p[nearest[:, : relaxation.k]]
    limit = relaxation.limit(p, torch.ones(len(p), dtype=torch.long))
    mass = p if relaxation.strict else relaxed_mass(p, near, limit)
    kept = torch.minimum(q, mass)  # q a
    rejected = (q - kept).clamp(min=0)
    found = {"strict": kept + rejected.sum() * norm((p - q).clamp(min=0), p), "anew": kept + rejected.sum() * p}
    freed = kept.clone()
    pooled = torch.zeros_like(near, dtype=torch.bool) if relaxation.strict else near.cumsum(-1) <= limit.unsqueeze(-1)
    for x in rejected.nonzero().flatten():
        without = q.index_fill(0, nearest[x, : relaxation.k][pooled[x]], 0.0)
        freed += rejected[x] * norm((p - without).clamp(min=0), p)
    return float(kept.sum()), found | {"freed": freed}


def norm(mass: Tensor, otherwise: Tensor) -> Tensor:
    """mass / Σ mass, or another law where there is none."""
    total = mass.sum()
    return mass / total if total > 0 else otherwise


def nodes(pipe: LanternPipeline, settings: Settings) -> Iterator[tuple[Tensor, Tensor]]:
    """p and q (V,) at the root of each step of a picture's decoding."""
    step, condition, valid = pipe.prepare(settings, kind=Recorder)
    for event in Decoder(step).stream(condition, settings.seed, valid):
        if event.index:
            yield step.p[0, 0].clone(), step.q[0, 0].clone()


def measure(pipe: LanternPipeline, choices: Sequence[Settings], every: int = 1) -> dict[str, dict[str, float]]:
    """At every so-many-th step of each choice's own decoding: mean acceptance and mean total variation of each kind of
    residual, by label; choices that differ in prompt and seed alone share one."""
    sums: dict[str, dict[str, float]] = {}
    for settings in choices:
        row = sums.setdefault(settings.label, dict.fromkeys(("nodes", "acceptance", *KINDS), 0.0))
        for p, q in islice(nodes(pipe, settings), 0, None, every):
            acceptance, found = laws(p, q, pipe.neighbours, settings.relaxation)
            row["nodes"] += 1
            row["acceptance"] += acceptance
            for kind in KINDS:
                row[kind] += float((found[kind] - p).abs().sum()) / 2
    return {label: {k: v if k == "nodes" else v / row["nodes"] for k, v in row.items()} for label, row in sums.items()}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m lanternpp.training.residuals",
                                     description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=None, help="name or folder of a model; else the bundled one")
    parser.add_argument("--prompts", type=int, default=4, help="how many of evaluate's prompts")
    parser.add_argument("--every", type=int, default=4, help="look at every so-many-th step")
    args = parser.parse_args(argv)
    pipe = LanternPipeline.from_pretrained(args.model)
    rules = ({"method": "lanternpp", "k": 100, "bound": 2.0}, {"method": "lanternpp", "k": 1000, "bound": 5.0},
             {"method": "lantern", "k": 100, "bound": 0.2})
    prompts = default_prompts(args.prompts, 0)
    choices = [pipe.check(prompt=prompt, seed=seed, **rule) for rule in rules for seed, prompt in enumerate(prompts)]
    table = measure(pipe, choices, args.every)
    print(f"{'one child':<44}{'nodes':>7}{'accepted':>10}" + "".join(f"{'TV, ' + kind:>12}" for kind in KINDS))
    for label, row in table.items():
        print(f"{label:<44}{row['nodes']:>7.0f}{row['acceptance']:>10.3f}"
              + "".join(f"{row[kind]:>12.4f}" for kind in KINDS))
    print(json.dumps(table))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
