"""Measure again what the bundled model's card says of tokenizer, target and drafter.

    python -m lanternpp.training.card --data DIR --pictures 64

Prints one JSON document. Figure tokens are those whose patch is covered by the thing drawn, the rest is background.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..acceptance import acceptance_table
from ..bench import PROMPTS
from ..hub import BUNDLED
from ..pipeline import LanternPipeline, run
from ..sampling import Sampling, distribution, guide
from . import data
from .drafter import teacher_forced
from .prior import caption_ids
from .vq import as_images, psnr

COVERED = 0.05  # mean opacity of a patch from which on it is the figure's


def views(pictures: data.Pictures, index: np.ndarray, seed: int) -> tuple[Tensor, list[str], Tensor]:
    """Augmented pictures (n, 3, H, W), captions, and which tokens are the figure's (n, L).

    The opacity is told by compositing the picture twice, on black and on white, with the same random numbers.
    """
    shown, texts, covered = [], [], []
    backgrounds = np.random.default_rng(seed).choice(list(data.BACKGROUNDS), len(index))
    for number, (i, background) in enumerate(zip(index, backgrounds, strict=True)):
        rgba = np.array(pictures.rgba[i])

        def drawn(rgba: np.ndarray, number: int = number, background: str = background) -> np.ndarray:
            return data.composite(rgba, np.random.default_rng([seed, number]), background)

        shown.append(drawn(rgba))
        dark, light = rgba.copy(), rgba.copy()
        dark[..., :3], light[..., :3] = 0, 255
        opacity = (drawn(light).astype(float) - drawn(dark)).mean(-1) / 255
        covered.append(torch.from_numpy(opacity).view(16, 8, 16, 8).mean((1, 3)).flatten() > COVERED)
        texts.append(data.caption(pictures.records[i], background, np.random.default_rng([seed, number, 1])))
    return as_images(shown), texts, torch.stack(covered)


def spread(values: Tensor) -> dict[str, float]:
    """Mean and quantiles."""
    low, middle, high = values.quantile(torch.tensor([0.1, 0.5, 0.9])).tolist()
    found = {"mean": float(values.mean()), "p10": low, "median": middle, "p90": high}
    return {name: round(value, 3) for name, value in found.items()}


def ambiguity(probabilities: Tensor, figure: Tensor) -> dict[str, dict]:
    """Entropy in nats and top-1 probability of (n, L, V), of the figure's tokens (n, L) and of the background's."""
    entropy = -(probabilities * probabilities.clamp_min(1e-30).log()).sum(-1)
    top = probabilities.amax(-1)
    return {name: {"entropy": spread(entropy[where]), "top1": spread(top[where]), "tokens": int(where.sum())}
            for name, where in (("figure", figure), ("background", ~figure))}


@torch.inference_mode()
def target_and_drafter(pipe: LanternPipeline, images: Tensor, texts: list[str], figure: Tensor) -> dict[str, object]:
    """Loss and ambiguity of the target, and the drafter's agreement with it, teacher-forced on given pictures."""
    target, drafter = pipe.bundle.target, pipe.bundle.drafter
    prefix, scale = target.config.prefix, float(pipe.bundle.defaults.get("cfg_scale", 3.0))
    sampling = Sampling(cfg_scale=scale, top_k=int(pipe.bundle.defaults.get("top_k", 1000)))
    found: dict[str, list[Tensor]] = {"loss": [], "plain": [], "guided": [], "shared": [], "agree": []}
    for some in torch.arange(len(texts)).split(8):
        codes = pipe.bundle.tokenizer.encode(images[some])
        words = caption_ids(pipe.bundle.words, [texts[i] for i in some], prefix)
        hidden = teacher_forced(target, words, codes)  # (2, n, P+L−1, d)
        logits = target.head(hidden[:, :, prefix - 1:]).float()
        found["loss"].append(F.cross_entropy(logits[0].flatten(0, 1), codes.flatten(), reduction="none").view_as(codes))
        p = distribution(guide(logits.flatten(0, 1), scale, len(some)), sampling)
        found["plain"].append(logits[0].softmax(-1))
        found["guided"].append(p)
        states = hidden.flatten(0, 1)
        predicted = drafter(F.pad(codes[:, :-1], (prefix - 1, 0)).repeat(2, 1), states[:, :-1],
                            torch.arange(1, states.shape[1]))[:, prefix - 1:]
        q = distribution(guide(target.head(predicted), scale, len(some)), sampling)
        found["shared"].append(torch.minimum(p[:, 1:], q).sum(-1))
        found["agree"].append((p[:, 1:].argmax(-1) == q.argmax(-1)).float())
    joined = {name: torch.cat(parts) for name, parts in found.items()}
    rows = F.pad(joined["agree"], (1, 0), value=float("nan")).unflatten(1, (target.config.grid, -1))
    loss = joined["loss"]
    return {"loss": {"all": round(float(loss.mean()), 3), "figure": round(float(loss[figure].mean()), 3)},
            "cfg 1": ambiguity(joined["plain"], figure), f"cfg {scale:g}": ambiguity(joined["guided"], figure),
            "drafter": {"sum min(p, q)": spread(joined["shared"].flatten()),
                        "figure": spread(joined["shared"][figure[:, 1:]]),
                        "top1 agreement by row": [round(float(x), 3) for x in rows.nanmean((0, 2))]}}


def acceptance(pipe: LanternPipeline, count: int, tree: str = "cpu14") -> dict[str, dict]:
    """Acceptance by depth and child rank, exact and relaxed: shares of the tested drafts, with their number."""
    result = {}
    for method in ("exact", "lanternpp", "lantern"):
        traces = [run(pipe.stream(pipe.check(prompt=PROMPTS[i % len(PROMPTS)], method=method, tree=tree, seed=i))).trace
                  for i in range(count)]
        table = acceptance_table(traces)
        result[method] = {f"depth {d + 1}": {f"rank {r}": [round(float(yes / max(1, n)), 3), int(n)] for r, (n, yes)
                                             in enumerate(zip(tested, accepted, strict=True)) if n}
                          for d, (tested, accepted) in enumerate(zip(table.tested, table.accepted, strict=True))}
    return result


def measure(pipe: LanternPipeline, pictures: data.Pictures, count: int, runs: int) -> dict[str, object]:
    """All figures of the card; pictures: those of lanternpp.training.data."""
    core = pictures.select(data.core(pictures))
    known, unknown = data.split(core)
    rng = np.random.default_rng(5)
    sets = {"known concepts, new augmentations": rng.choice(known, count),
            "held-out concepts": rng.choice(unknown, min(count, 4 * len(unknown)))}
    document: dict[str, object] = {"model": pipe.describe()}
    for name, index in sets.items():
        images, texts, figure = views(core, index, seed=11)
        with torch.inference_mode():
            codes = pipe.bundle.tokenizer.encode(images)
            quality = psnr(pipe.pixels(codes), images)
        document[name] = {"pictures": len(texts), "psnr": round(quality, 2), "codes": int(codes.unique().numel()),
                          **target_and_drafter(pipe, images, texts, figure)}
    document["acceptance, cpu14"] = acceptance(pipe, runs) if runs else {}
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder made by lanternpp.training.data")
    parser.add_argument("--model", type=Path, default=BUNDLED)
    parser.add_argument("--pictures", type=int, default=64, help="pictures of each set")
    parser.add_argument("--runs", type=int, default=8, help="pictures decoded for acceptance, each method; 0 for none")
    args = parser.parse_args()
    pipe = LanternPipeline.from_pretrained(args.model, dtype=torch.float32)
    print(json.dumps(measure(pipe, data.load_pictures(args.data), args.pictures, args.runs), indent=1))


if __name__ == "__main__":
    main()
