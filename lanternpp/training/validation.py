"""Does the scorer see what it should? It is tried on damage of known strength before it is trusted.

    python -m lanternpp.training.validation --data DIR --out assets/scorer

Reconstructions of real pictures are blurred, made noisy, lose tokens to random ones or to each other's places, or get
captions that are wrong in one to three parts. Similarity and retrieval must fall and the Fréchet distance to other
reconstructions of the same looks must rise with each step of strength, and 5 % of random tokens must be told from none,
as evaluate tells a method from plain AR. Writes
validation.json and validation.png; the exit status is 1 where something is out of order. What the scorer saw of each
damage is kept in a folder, so that a run that was stopped goes on.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from .. import hub
from ..evaluate import References, Seen, floor_quantile
from ..quality import bootstrap_interval, frechet, precision_recall
from ..scorer import BUNDLED, NAMES, Scorer, prompt
from . import data
from .scorer import Fact, composites

STRENGTHS = {  # damage -> its strengths, each stronger than the one before
    "blur": (1.0, 2.0, 4.0),  # standard deviation in pixels
    "noise": (16.0, 32.0, 64.0),  # standard deviation in levels of 255
    "random tokens": (0.05, 0.15, 0.4),  # share of the tokens
    "shuffled tokens": (0.05, 0.15, 0.4),  # share of the tokens
    "wrong captions": (1, 2, 3),  # parts of three that are wrong: name, style, background
}
FEW = 0.05  # random tokens that must be told from none
Looked = tuple[Tensor, Tensor]  # features (n, F) and embeddings (n, d)


@dataclass(frozen=True)
class Damage:
    """`pictures` makes the damaged ones (n, 3, H, W); `prompts` are what they are held against."""

    name: str
    strength: float
    prompts: list[str]
    pictures: Callable[[], Tensor]


def blur(images: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of (n, 3, H, W), `sigma` in pixels, cut off at three of them."""
    reach = int(np.ceil(3 * sigma))
    kernel = torch.exp(-torch.arange(-reach, reach + 1.0).square() / (2 * sigma**2))
    kernel = (kernel / kernel.sum()).expand(images.shape[1], 1, 1, -1)
    padded = F.pad(images, (reach,) * 4, mode="reflect")
    return F.conv2d(F.conv2d(padded, kernel, groups=3), kernel.transpose(2, 3), groups=3)


def noise(images: Tensor, levels: float, generator: torch.Generator) -> Tensor:
    """Gaussian noise on pictures in [-1, 1], its standard deviation in levels of 255; clamped as pictures are."""
    return (images + levels / 127.5 * torch.randn(images.shape, generator=generator)).clamp(-1, 1)


def places(codes: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Which tokens of (n, L) are damaged, in random order: (n, round(share·L))."""
    return torch.rand(codes.shape, generator=generator).argsort(1)[:, :round(share * codes.shape[1])]


def random_tokens(codes: Tensor, share: float, vocabulary: int, generator: torch.Generator) -> Tensor:
    """A share of each picture's codes (n, L) replaced by uniform ones."""
    chosen = places(codes, share, generator)
    return codes.scatter(1, chosen, torch.randint(vocabulary, chosen.shape, generator=generator))


def shuffled_tokens(codes: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """A share of each picture's codes (n, L) moved round in one cycle through random places."""
    chosen = places(codes, share, generator)
    return codes.scatter(1, chosen, codes.gather(1, chosen).roll(1, 1))


def wrong_prompts(facts: list[Fact], count: int, seed: int) -> list[str]:
    """Prompts in which `count` of what they say (name, style, background) is wrong, or all where they say less.

    What is wrong at a smaller count is wrong at a larger one too.
    """
    rng, choices = np.random.default_rng(seed), (NAMES, tuple(data.STYLES), tuple(data.BACKGROUNDS))
    texts = []
    for fact in facts:
        order = [i for i in rng.permutation(3) if fact[i]]
        others = [str(rng.choice([c for c in each if c != part])) for part, each in zip(fact, choices, strict=True)]
        texts.append(prompt(*(others[i] if i in order[:count] else fact[i] for i in range(3))))
    return texts


@torch.inference_mode()
def decoded(bundle: hub.Bundle, codes: Tensor, batch: int = 32) -> Tensor:
    grid = bundle.target.config.grid
    return torch.cat([bundle.tokenizer.decode(part, (grid, grid)).clamp(-1, 1) for part in codes.split(batch)])


def damaged(bundle: hub.Bundle, codes: Tensor, facts: list[Fact], seed: int = 0,
            damages: Mapping[str, tuple[float, ...]] = STRENGTHS) -> Iterator[Damage]:
    """Every damage at every strength, weakest first. The first is "none"."""

    def generator() -> torch.Generator:
        return torch.Generator().manual_seed(seed)  # the same places and noise at each strength

    vocabulary, prompts = bundle.tokenizer.config.codes, [prompt(*fact) for fact in facts]
    clean = cache(lambda: decoded(bundle, codes))
    make = {"blur": lambda strength: blur(clean(), strength),
            "noise": lambda strength: noise(clean(), strength, generator()),
            "random tokens": lambda strength: decoded(bundle, random_tokens(codes, strength, vocabulary, generator())),
            "shuffled tokens": lambda strength: decoded(bundle, shuffled_tokens(codes, strength, generator()))}
    yield Damage("none", 0.0, prompts, clean)
    for name, strengths in damages.items():
        for strength in strengths:
            if name == "wrong captions":
                yield Damage(name, strength, wrong_prompts(facts, int(strength), seed), clean)
            else:
                yield Damage(name, strength, prompts, partial(make[name], strength))


def measure(scorer: Scorer, features: Tensor, embeddings: Tensor, prompts: list[str],
            reference: Tensor) -> tuple[dict[str, float], Tensor]:
    """Figures of what the scorer saw beside reference features (m, F), and the similarity (n,) of each picture."""
    similarity, rank = scorer.alignment(embeddings, prompts)
    precision, recall = precision_recall(reference, features)
    return {"similarity": similarity.double().mean().item(), "top1": (rank < 1).double().mean().item(),
            "top5": (rank < 5).double().mean().item(), "frechet": frechet(features, reference),
            "precision": precision, "recall": recall}, similarity


def disorders(rows: list[dict], slack: float = 0.0) -> list[str]:
    """What is out of order, a sentence each; none where the scorer ranks every damage rightly.

    Similarity must fall and the Fréchet distance rise at each step; top-1 may stay, and rise by `slack` at most.
    """
    clean, found = rows[0], []
    for name in dict.fromkeys(row["damage"] for row in rows[1:]):
        steps = [clean, *(row for row in rows if row["damage"] == name)]
        for weak, strong in zip(steps, steps[1:], strict=False):
            pictures_differ = name != "wrong captions"
            for what, right in (("similarity", strong["similarity"] < weak["similarity"]),
                                ("top1", strong["top1"] <= weak["top1"] + slack),
                                ("frechet", strong["frechet"] > weak["frechet"] or not pictures_differ)):
                if not right:
                    found.append(f"{what} of {name}: {weak[what]:.4f} at {weak['strength']:g}, "
                                 f"{strong[what]:.4f} at {strong['strength']:g}.")
        if steps[-1]["top1"] >= clean["top1"]:
            found.append(f"top1 of {name} is no lower at {steps[-1]['strength']:g} than without damage.")
    return found


def told(scorer: Scorer, clean: Looked, harmed: Looked, reference: Tensor, prompts: list[str], seed: int = 0) -> dict:
    """Whether harmed pictures are told from the same ones unharmed, by the two things that evaluate judges a method by:
    the paired similarity, and the Fréchet distance to as many others by evaluate's own rule, which must refuse the
    harmed ones and pass the clean ones. clean and harmed: (features, embeddings)."""
    one, two = (Seen(features, *scorer.alignment(embeddings, prompts)) for features, embeddings in (clean, harmed))
    others = Seen(reference, one.similarity, one.rank)
    low, high = bootstrap_interval((two.similarity - one.similarity).numpy(), seed)
    distance, most = frechet(two.features, reference), floor_quantile(two, one, others, seed)
    return {"similarity_change": (low, high), "frechet_clean": frechet(one.features, reference),
            "frechet_floor": most, "frechet": distance, "told": high < 0 and distance > most}


def validate(scorer: Scorer, bundle: hub.Bundle, pictures: data.Pictures, references: References, count: int,
             keep: Path, seed: int = 0) -> dict:
    """All figures as one JSON-able document: `count` pictures damaged, held against other reconstructions of the same
    looks. What the scorer saw is kept in the folder `keep`."""
    core = pictures.select(data.core(pictures))
    index = np.random.default_rng(seed).integers(0, len(core.records), count)
    images, prompts, facts = composites(core, index, seed + 1, "grid")
    reference = references.decoded[references.rows(prompts)]
    keep.mkdir(parents=True, exist_ok=True)
    weights = [float(x.double().square().sum()) for m in (scorer, bundle.tokenizer) for x in m.state_dict().values()]
    mark = hashlib.sha256(json.dumps([weights, count, seed]).encode()).hexdigest()[:12]

    def kept(name: str, make: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        path = keep / f"{mark}-{name.replace(' ', '-')}.safetensors"
        if not path.exists():
            save_file(make(), path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
        return load_file(path)

    def seen(name: str, make: Callable[[], Tensor]) -> Looked:
        found = kept(name, lambda: dict(zip(("features", "embeddings"), scorer.look(make()), strict=True)))
        return found["features"], found["embeddings"]

    def encode() -> dict[str, Tensor]:
        with torch.inference_mode():
            return {"codes": torch.cat([bundle.tokenizer.encode(part) for part in images.split(32)])}

    def note(damage: Damage, features: Tensor, embeddings: Tensor) -> tuple[dict, Tensor]:
        row, similarity = measure(scorer, features, embeddings, damage.prompts, reference)
        print(damage.name, f"{damage.strength:g}", "  ".join(f"{k} {v:.4f}" for k, v in row.items()), flush=True)
        return {"damage": damage.name, "strength": damage.strength, **row}, similarity

    drawn = Damage("real pictures", 0.0, prompts, lambda: images)
    real, _ = note(drawn, *seen("real", drawn.pictures))
    rows, before, clean, few = [], None, None, None
    for damage in damaged(bundle, kept("codes", encode)["codes"], facts, seed):
        wrong = damage.name == "wrong captions"
        features, embeddings = seen("none-0" if wrong else f"{damage.name}-{damage.strength:g}", damage.pictures)
        row, similarity = note(damage, features, embeddings)
        if before is None:
            before, clean = similarity, (features, embeddings)
        rows.append(row | {"similarity_change": bootstrap_interval(similarity - before, seed)})
        if (damage.name, damage.strength) == ("random tokens", FEW):
            few = told(scorer, clean, (features, embeddings), reference, prompts, seed)
    return {"images": count, "seed": seed, "real": real, "rows": rows, "five_percent": few,
            "disorders": disorders(rows)}


def figure(document: dict, path: Path) -> None:
    """Three panels over the steps of strength: similarity, top-1 and Fréchet distance, a line a damage."""
    from matplotlib.figure import Figure

    page = Figure(figsize=(10, 3.6), dpi=90, layout="constrained")
    panels = page.subplots(1, 3)
    titles = {"similarity": "mean similarity to the prompt", "top1": "own prompt best of 100",
              "frechet": "Fréchet distance to others of the same looks"}
    for name, strengths in STRENGTHS.items():
        rows = [document["rows"][0], *(r for r in document["rows"] if r["damage"] == name)]
        label = f"{name}: {', '.join(f'{s:g}' for s in strengths)}"
        for panel, what in zip(panels, titles, strict=True):
            if what != "frechet" or name != "wrong captions":
                panel.plot(range(len(rows)), [row[what] for row in rows], marker="o", markersize=3, label=label)
    for panel, (what, title) in zip(panels, titles.items(), strict=True):
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("step of strength (0: none)", fontsize=8)
        panel.set_xticks(range(4))
        panel.tick_params(labelsize=8)
        panel.spines[["top", "right"]].set_visible(False)
        if what == "frechet":
            panel.set_yscale("log")
    handles, labels = panels[0].get_legend_handles_labels()
    page.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=7, frameon=False)
    page.savefig(path)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder made by lanternpp.training.data")
    parser.add_argument("--model", type=Path, default=hub.BUNDLED, help="folder of the model whose tokenizer is used")
    parser.add_argument("--scorer", type=Path, default=BUNDLED, help="folder of the scorer")
    parser.add_argument("--out", type=Path, default=BUNDLED, help="folder for validation.json and validation.png")
    parser.add_argument("--keep", type=Path, default=Path("runs/validation"), help="folder of what the scorer saw")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    document = validate(Scorer.load(args.scorer), hub.load_bundle(args.model, torch.float32),
                        data.load_pictures(args.data), References.load(args.scorer), args.images, args.keep,
                        args.seed)
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "validation.json").write_text(json.dumps(document, indent=1) + "\n")
    figure(document, args.out / "validation.png")
    told = document["five_percent"]
    print(f"5 % random tokens: {told}")
    print("\n".join(document["disorders"]) or "Every damage is ranked rightly.")
    return 0 if told["told"] and not document["disorders"] else 1


if __name__ == "__main__":
    sys.exit(main())
