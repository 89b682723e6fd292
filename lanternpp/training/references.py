"""Features of real pictures for `evaluate`: one of every look a prompt can name, as drawn and through the tokenizer.

    python -m lanternpp.training.references --data DIR

So that quality can be measured where the training pictures are not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file

from .. import hub
from ..evaluate import LOOKS
from ..scorer import BUNDLED, Scorer
from . import data
from .scorer import reconstructor
from .vq import as_images


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder made by lanternpp.training.data")
    parser.add_argument("--scorer", type=Path, default=BUNDLED, help="folder of the scorer: the table goes there")
    parser.add_argument("--model", type=Path, default=hub.BUNDLED)
    args = parser.parse_args()
    pictures, scorer = data.load_pictures(args.data), Scorer.load(args.scorer)
    reconstruct = reconstructor(hub.load_bundle(args.model, torch.float32))
    index = {(data.short_name(r["label"]), r["style"]): i for i, r in enumerate(pictures.records)
             if r["label"] in data.CORE_LABELS}
    tables: dict[str, list[torch.Tensor]] = {"real": [], "decoded": []}
    for first in range(0, len(LOOKS), 32):
        shown = [data.composite(pictures.rgba[index[name, style]], np.random.default_rng(first + i), background)
                 for i, (name, style, background) in enumerate(LOOKS[first:first + 32])]
        images = as_images(shown)
        tables["real"].append(scorer.features(images))
        tables["decoded"].append(scorer.features(reconstruct(images)))
        print(f"{min(first + 32, len(LOOKS))}/{len(LOOKS)}", flush=True)
    save_file({k: torch.cat(v).half() for k, v in tables.items()}, args.scorer / "references.safetensors")


if __name__ == "__main__":
    main()
