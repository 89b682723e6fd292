"""Quality of many pictures: prompt alignment and Fréchet distance of each method, paired with plain AR.

All methods paint the same prompts with the same seeds, so that what differs between them can be told from noise: the
difference to AR is paired, and AR's pictures of other seeds are the common yardstick of distances.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from . import quality
from .hub import fingerprint
from .pipeline import LanternPipeline
from .published_scorer import PublishedScorer
from .scorer import BUNDLED, NAMES, Scorer, parts, prompt
from .settings import Settings
from .training.data import BACKGROUNDS, STYLES

OTHER_SEEDS = 1_000_000  # added to AR's seeds for the noise floor
MARGIN = 0.02  # of top-1 alignment, within which a method is called equivalent
LOOKS = list(product(NAMES, STYLES, BACKGROUNDS))  # what a prompt can name, in the order of the reference features


@dataclass(frozen=True)
class Painted:
    """Token grids codes (n, L) and decoding steps (n,) of n pictures, the prefill not counted."""

    codes: Tensor
    steps: Tensor

    @property
    def accepted_length(self) -> float:
        """Mean over pictures of (L − 1) / steps."""
        return float(((self.codes.shape[1] - 1) / self.steps.double()).mean())


def default_prompts(count: int, seed: int) -> list[str]:
    """`count` prompts (thing, style, background): all looks in a random order, again from the start if need be."""
    order = np.random.default_rng(seed).permutation(len(LOOKS))
    return [prompt(*LOOKS[order[i % len(order)]]) for i in range(count)]


def mark(pipe: LanternPipeline, settings: Settings, prompts: Sequence[str], seeds: Sequence[int]) -> str:
    """A name for what these would paint: other weights, knobs, prompts or seeds have another."""
    knobs = replace(settings, prompt="", seed=0).to_dict()
    networks = [pipe.bundle.target] + [pipe.bundle.drafter] * (settings.method != "ar")
    facts = [[fingerprint(network) for network in networks], knobs, list(prompts), list(seeds)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:16]


def paint(pipe: LanternPipeline, settings: Settings, prompts: Sequence[str], seeds: Sequence[int], folder: Path,
          batch: int = 16, worker: int = 0, workers: int = 1) -> Iterator[int]:
    """Paint every prompt with its seed, `batch` side by side; yields how many are done of this worker's share.

    Each batch is a file in `folder`; those that are there already are not painted again, so that a run that was
    stopped goes on. Worker w of W takes every W-th batch.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name, done = mark(pipe, settings, prompts, seeds), 0
    for number, first in enumerate(range(0, len(prompts), batch)):
        if number % workers != worker:
            continue
        path, some = _part(folder, name, first), slice(first, min(first + batch, len(prompts)))
        if not path.exists():
            condition, valid = pipe.encode_prompts(prompts[some])
            with pipe.lend(settings, len(condition)) as decoder:
                valid = None if valid is None else valid[:decoder.step.rows]
                events = decoder.generate_many(condition, seeds[some], valid)
            codes = torch.tensor([[t for e in each for t in e.tokens] for each in events], dtype=torch.int32)
            steps = torch.tensor([len(each) - 1 for each in events], dtype=torch.int32)
            save_file({"codes": codes, "steps": steps}, path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        done += some.stop - some.start
        yield done


def painted(pipe: LanternPipeline, settings: Settings, prompts: Sequence[str], seeds: Sequence[int], folder: Path,
            batch: int = 16) -> Painted:
    """What `paint` has left in `folder`, by all workers."""
    name = mark(pipe, settings, prompts, seeds)
    found = [load_file(_part(folder, name, first)) for first in range(0, len(prompts), batch)]
    return Painted(torch.cat([f["codes"] for f in found]).long(), torch.cat([f["steps"] for f in found]))


def _part(folder: Path, name: str, first: int) -> Path:
    return folder / f"{name}-{first:06d}.safetensors"


@dataclass(frozen=True)
class Seen:
    """What the scorer sees in n pictures: features (n, F), similarity to the own prompt (n,) and its rank (n,)."""

    features: Tensor
    similarity: Tensor
    rank: Tensor

    @property
    def right(self) -> Tensor:
        """(n,) 1 where the own prompt is the best of 100, else 0; float64."""
        return (self.rank == 0).double()

    def alignment(self) -> dict[str, float]:
        return {"top1": float(self.right.mean()), "top5": float((self.rank < 5).double().mean()),
                "similarity": float(self.similarity.double().mean())}


def see(scorer: Scorer, features: Tensor, prompts: Sequence[str]) -> Seen:
    """Features (n, F) of pictures, by the bundled scorer, and their prompts."""
    with torch.inference_mode():
        return Seen(features.float(), *scorer.alignment(scorer.embed_features(features.float()), list(prompts)))


def look(pipe: LanternPipeline, scorer: Scorer | PublishedScorer, codes: Tensor, prompts: Sequence[str],
         batch: int = 64) -> Seen:
    """Token grids (n, L), decoded and seen."""
    looked = [scorer.look(pipe.pixels(part).cpu()) for part in codes.split(batch)]
    features, embeddings = (torch.cat(parts) for parts in zip(*looked, strict=True))
    return Seen(features, *scorer.alignment(embeddings, list(prompts)))


@dataclass(frozen=True)
class References:
    """Features of a real picture of every look, as drawn and as the tokenizer brings it back, (looks, F) each."""

    real: Tensor
    decoded: Tensor

    @classmethod
    def load(cls, folder: Path = BUNDLED) -> References:
        tables = load_file(folder / "references.safetensors")
        return cls(tables["real"].float(), tables["decoded"].float())

    def rows(self, prompts: Sequence[str], seed: int = 0) -> Tensor:
        """For each prompt the number of a look that it fits; what it does not say is drawn. ValueError for a prompt
        that names none of the things."""
        rng, numbers = np.random.default_rng(seed), {look: i for i, look in enumerate(LOOKS)}
        found = []
        for text in prompts:
            name, style, background = parts(text)
            if name is None:
                raise ValueError(f"The prompt {text[:80]!r} names none of the {len(NAMES)} things that the scorer "
                                 "knows: leave it out.")
            found.append(numbers[name, style or str(rng.choice(list(STYLES))),
                                 background or str(rng.choice(list(BACKGROUNDS)))])
        return torch.tensor(found)


def beside(method: Seen, ar: Seen, real: Tensor | None, seed: int = 0) -> dict[str, object]:
    """A method's alignment and, paired with AR at the same prompts, its differences with 95 % bootstrap intervals;
    with features of as many real pictures (n, F) also the Fréchet distance to them, precision and recall.

    The interval of the top-1 difference is that of n pairs and two more, one for either side: a few pictures of which
    none changed would else prove that none ever does. Pictures of one prompt count as independent, which makes
    intervals too wide, never too narrow, for a given list of prompts. ValueError where the sets differ in size: a
    Fréchet distance of fewer pictures is larger.
    """
    if len({len(x) for x in (method.features, ar.features, *([] if real is None else [real]))}) > 1:
        raise ValueError("Sets of pictures are compared at equal size only: Fréchet distances depend on it.")
    change = method.right - ar.right
    row: dict[str, object] = {
        **method.alignment(), "top1_change": float(change.mean()),
        "top1_interval": list(quality.bootstrap_interval(np.append(change.numpy(), (1, -1)), seed)),
        "similarity_interval": list(quality.bootstrap_interval((method.similarity - ar.similarity).numpy(), seed))}
    if real is not None:
        row["frechet_real"] = quality.frechet(method.features, real)
        distinct = real.unique(dim=0)  # prompts may share a picture, and a manifold of copies has no width
        if min(len(distinct), len(method.features)) > 3:
            row["precision"], row["recall"] = quality.precision_recall(distinct, method.features)
    return row


def compare(method: Seen, ar: Seen, again: Seen, real: Tensor | None, seed: int = 0) -> dict[str, object]:
    """`beside`, and the Fréchet distance to AR's pictures of other seeds (again) with what it may be at most.

    equivalent: the interval of the top-1 difference lies within ±2 points, and the distance is one that AR itself
    would have (`floor_quantile`).
    """
    row = beside(method, ar, real, seed)
    (low, high), distance = row["top1_interval"], quality.frechet(method.features, again.features)
    most = floor_quantile(method, ar, again, seed)
    return {**row, "frechet_ar": distance, "frechet_floor": most,
            "equivalent": bool(-MARGIN <= low and high <= MARGIN and distance <= most)}


def floor_quantile(method: Seen, ar: Seen, again: Seen, seed: int = 0, share: float = 0.975, draws: int = 100) -> float:
    """The Fréchet distance to `again`, AR's pictures of other seeds, that a method which paints as AR does stays below
    `share` of the time: if it does, its picture of a prompt and AR's of the same seed could change places.

    The two are not compared with each other: they share noise, some methods nearly all of it, and whatever a method did
    would hide behind that.
    """
    rng = np.random.default_rng(seed)
    distances = []
    for _ in range(draws):
        swap = torch.from_numpy(rng.random(len(ar.features)) < 0.5).unsqueeze(1)
        distances.append(quality.frechet(torch.where(swap, method.features, ar.features), again.features))
    # Numpy's default would be passed by one such method in 29 instead of one in 40 at 100 draws.
    return float(np.quantile(distances, share, method="weibull"))


def report(pipe: LanternPipeline, methods: Sequence[Settings], prompts: Sequence[str], seeds: Sequence[int],
           folder: Path, batch: int = 16, scorer: Scorer | PublishedScorer | None = None) -> dict[str, dict]:
    """Everything that `paint` left, scored: a row for AR, AR again and each method.

    With the bundled scorer also distances to a real picture of each prompt's look, and a row for these pictures after
    the tokenizer, whose distance is that to themselves before it.
    """
    scorer, table, real = scorer or Scorer.load(), {}, None
    if isinstance(scorer, Scorer):
        references = References.load()
        rows = references.rows(prompts)
        real, tokenized = references.real[rows], see(scorer, references.decoded[rows], prompts)
        table["real pictures, tokenized"] = {**tokenized.alignment(),
                                             "frechet_real": quality.frechet(tokenized.features, real)}

    def seen(settings: Settings, seeds: Sequence[int]) -> tuple[Painted, Seen]:
        made = painted(pipe, settings, prompts, seeds, folder, batch)
        return made, look(pipe, scorer, made.codes, prompts)

    ar = methods[0].baseline()
    (_, first), (_, again) = seen(ar, seeds), seen(ar, [s + OTHER_SEEDS for s in seeds])
    table["ar"] = {**first.alignment(), "accepted_length": 1.0}
    if real is not None:
        table["ar"]["frechet_real"] = quality.frechet(first.features, real)
    table["ar, other seeds"] = {**beside(again, first, real), "accepted_length": 1.0,
                                "frechet_ar": quality.frechet(again.features, first.features)}
    for settings in methods:
        if settings.method != "ar":
            made, one = seen(settings, seeds)
            table[settings.label] = compare(one, first, again, real) | {"accepted_length": made.accepted_length}
    return table


def render(table: dict[str, dict]) -> str:
    """A plain-text table for the terminal. Changes are in points of top-1 alignment."""
    head = (f"{'':<34}{'top-1':>7}{'top-5':>7}{'simil.':>8}{'change to AR':>20}{'FD real':>9}{'FD AR':>8}{'floor':>8}"
            f"{'prec.':>7}{'recall':>7}{'accepted':>10}  equivalent")
    lines = [head, "-" * len(head)]
    for name, row in table.items():
        change = ""
        if "top1_interval" in row:
            low, high = row["top1_interval"]
            change = f"{100 * row['top1_change']:+.1f} ({100 * low:+.1f}…{100 * high:+.1f})"

        def number(key: str, digits: int = 2, row: dict = row) -> str:
            return f"{row[key]:.{digits}f}" if key in row else ""

        lines.append(f"{name:<34}{100 * row['top1']:>6.1f}%{100 * row['top5']:>6.1f}%{row['similarity']:>8.3f}"
                     f"{change:>20}{number('frechet_real'):>9}{number('frechet_ar'):>8}{number('frechet_floor'):>8}"
                     f"{number('precision'):>7}{number('recall'):>7}{number('accepted_length'):>10}"
                     f"  {'' if 'equivalent' not in row else 'yes' if row['equivalent'] else 'no'}")
    return "\n".join(lines)
