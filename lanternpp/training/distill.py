"""A drafter for any target, on its own samples or on pictures: codes are kept, features are computed on the fly.

    python -m lanternpp train drafter --model NAME_OR_FOLDER --images DIR|--self-distill --out DIR

Several GPUs: `accelerate launch -m lanternpp train drafter …`; each process draws batches of its own.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file
from torch import Tensor

from .. import hub, published
from ..bench import PROMPTS
from ..checkpoints import ModelError
from ..decode import Decoder
from ..drafter import Drafter, DrafterConfig
from ..pipeline import LanternPipeline
from ..relax import Relaxation
from ..sampling import Sampling
from ..settings import Settings
from ..step import Step
from ..text import class_names
from ..tree import PRESETS
from . import drafter as drafting

PICTURES = (".png", ".jpg", ".jpeg", ".webp")


def conditions(pipe: LanternPipeline, prompts: Sequence[str]) -> tuple[Tensor, Tensor | None]:
    """What the prefix reads, (n, …), and which of its rows are not padding, (2n, P), unguided rows last; None if all.

    The same as in decoding, the null prompt's own padding included.
    """
    read = [pipe.encode_prompt(prompt) for prompt in prompts]
    condition = torch.cat([each for each, _ in read])
    if read[0][1] is None:
        return condition, None
    return condition, torch.cat([valid[:1] for _, valid in read] + [valid[-1:] for _, valid in read])


def shown(pipe: LanternPipeline, prompts: Sequence[str], codes: Tensor) -> drafting.Shown:
    """Pictures (n, L) with the target's states over them, as the drafter will read them."""
    target = pipe.bundle.target
    condition, valid = conditions(pipe, prompts)
    codes = codes.to(target.device)
    hidden = drafting.teacher_forced(target, condition, codes, valid)
    return drafting.Shown(codes, hidden, target.prefix_codes(condition, guided=True), valid)


def sample(pipe: LanternPipeline, prompts: Sequence[str], sampling: Sampling, folder: Path, seed: int, batch: int,
           accelerator: Accelerator) -> Tensor:
    """A picture of each prompt by plain decoding, codes (n, L), in resumable parts kept in `folder`."""
    target, mark = pipe.bundle.target, _mark(pipe, prompts, sampling, seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = {first: folder / f"codes-{mark}-{first:06d}.safetensors" for first in range(0, len(prompts), batch)}
    for number, (first, path) in enumerate(paths.items()):
        if path.exists() or number % accelerator.num_processes != accelerator.process_index:
            continue
        some = prompts[first:first + batch]
        condition, valid = conditions(pipe, some)
        step = Step(target, None, PRESETS["root"], Relaxation("exact"), sampling, guided=sampling.cfg_scale != 1,
                    pictures=len(some))
        valid = None if valid is None else valid[: step.rows]
        seeds = range(seed + first, seed + first + len(some))
        events = Decoder(step).generate_many(condition, list(seeds), valid)
        codes = torch.tensor([[token for event in run for token in event.tokens] for run in events])
        save_file({"codes": codes.to(torch.int32)}, path.with_suffix(".new"))
        path.with_suffix(".new").replace(path)
        print(f"{first + len(some)}/{len(prompts)} samples", flush=True)
    accelerator.wait_for_everyone()
    return torch.cat([load_file(path)["codes"] for path in paths.values()]).long()


def _mark(pipe: LanternPipeline, prompts: Sequence[str], sampling: Sampling, seed: int) -> str:
    """Samples of another target or of other prompts are not these: the name tells."""
    weights = hub.fingerprint(pipe.bundle.target)
    return hashlib.sha256(repr([weights, sampling, seed, list(prompts)]).encode()).hexdigest()[:8]


def pictures(folder: Path) -> list[tuple[Path, str]]:
    """Pictures below a folder and their prompts: NAME.txt beside NAME.png, else the subfolder's name, else NAME."""
    found = sorted(path for path in folder.rglob("*") if path.suffix.lower() in PICTURES)
    if not found:
        raise ModelError(f"There are no pictures ({', '.join(PICTURES)}) in {folder}: name a folder with some in "
                         "--images, or use --self-distill.")

    def prompt(path: Path) -> str:
        if path.with_suffix(".txt").is_file():
            return path.with_suffix(".txt").read_text().strip()
        name = path.stem if path.parent == folder else path.parent.name
        return name.replace("_", " ").replace("-", " ")

    return [(path, prompt(path)) for path in found]


@torch.inference_mode()
def encode(pipe: LanternPipeline, paths: Sequence[Path], batch: int = 8) -> Tensor:
    """Pictures, cropped to a square and resized, as codes (n, L), row ends included."""
    config, tokenizer = pipe.bundle.target.config, pipe.bundle.tokenizer
    side, parts = config.grid * tokenizer.config.pixels_per_code, []
    for first in range(0, len(paths), batch):
        pixels = []
        for path in paths[first:first + batch]:
            try:
                with Image.open(path) as image:
                    square = ImageOps.fit(image.convert("RGB"), (side, side), Image.Resampling.LANCZOS)
            except OSError as error:
                raise ModelError(f"The picture {path} cannot be read ({type(error).__name__}): remove it.") from error
            pixels.append(torch.from_numpy(np.asarray(square).copy()).permute(2, 0, 1) / 127.5 - 1)
        codes = tokenizer.encode(torch.stack(pixels).to(pipe.bundle.target.device)).cpu()
        if config.row_end is not None:
            codes = F.pad(codes.unflatten(1, (config.grid, -1)), (0, 1), value=config.codes - 1).flatten(1)
        parts.append(codes)
    return torch.cat(parts)


def prompts_of(pipe: LanternPipeline, file: Path | None, count: int, seed: int) -> list[str]:
    """`count` prompts from a file, one a line; without one ImageNet's classes or the bench's."""
    if file is not None:
        lines = [line.strip() for line in file.read_text().splitlines() if line.strip()]
    else:
        classes = pipe.bundle.target.config.prefix_kind == "class"
        lines = list(map(str, range(len(class_names())))) if classes else list(PROMPTS)
    if not lines:
        raise ModelError(f"There are no prompts in {file}: write one a line.")
    chosen = np.random.default_rng(seed).permutation(max(count, len(lines)))[:count] % len(lines)
    return [lines[i] for i in chosen]


def run(args: argparse.Namespace) -> Path:
    """Train a drafter for args.model; returns the folder that from_pretrained then reads."""
    accelerator = Accelerator()
    pipe = LanternPipeline.from_pretrained(args.model, accelerator.device, drafter=False)
    settings: Settings = pipe.check(prompt="a", **({"cfg_scale": args.cfg} if args.cfg is not None else {}))
    if args.images:
        found = pictures(args.images)
        texts, codes = [text for _, text in found], encode(pipe, [path for path, _ in found])
    else:
        texts = prompts_of(pipe, args.prompts, args.samples, args.seed)
        codes = sample(pipe, texts, settings.sampling, args.out, args.seed, args.batch, accelerator)
    order = np.random.default_rng(args.seed).permutation(len(texts))
    texts, codes = [texts[i] for i in order], codes[torch.from_numpy(order)]
    held_out = min(args.held_out, len(texts) // 4)
    if not held_out:
        raise ModelError(f"{len(texts)} pictures are too few to train on: give at least 4.")
    held = shown(pipe, texts[:held_out], codes[:held_out])
    draw = np.random.default_rng([args.seed, accelerator.process_index])
    pipe.encode_prompt = lru_cache(4096)(pipe.encode_prompt)  # a text encoder is dear, prompts come again

    def batch(count: int) -> drafting.Shown:
        rows = draw.integers(held_out, len(texts), count)
        return shown(pipe, [texts[i] for i in rows], codes[torch.from_numpy(rows)])

    found_spec = hub.published_spec(args.model)
    config = (found_spec[0].drafter if found_spec else None) or DrafterConfig()
    if not found_spec:
        config = DrafterConfig(attention_norm=True, norm_eps=1e-5)
    trained = drafting.train(pipe.bundle.target, batch, held, settings.sampling, args.out, args.minutes, config,
                             args.batch, seed=args.seed, accelerator=accelerator)
    folder = Path(args.model) if Path(args.model).is_dir() else args.out / "model"
    if accelerator.is_main_process:
        save(trained, pipe, folder, found_spec)
        print(f"{folder}: read it with --model {folder}", flush=True)
    accelerator.wait_for_everyone()
    return folder


def save(drafter: Drafter, pipe: LanternPipeline, folder: Path, found: tuple | None) -> None:
    """Put a drafter where the loader finds it: into a model's folder, or into a new one that names its model."""
    if found is None:
        pipe.bundle.drafter = hub.cast(drafter, torch.float32)
        hub.save_bundle(pipe.bundle, folder)
        return
    place = folder / "drafter"
    place.mkdir(parents=True, exist_ok=True)
    if not (folder / "config.json").exists():
        (folder / "config.json").write_text(json.dumps({"format": published.FORMAT, "model": found[0].name}) + "\n")
    config = drafter.config
    said = {"num_hidden_layers": config.layers, "num_attention_heads": drafter.heads, "bias": config.bias,
            "intermediate_size": config.hidden or drafter.target.hidden, "rms_norm_eps": config.norm_eps}
    for old in (*place.glob("*.bin"), *place.glob("*.safetensors*")):
        old.unlink()
    (place / "config.json").write_text(json.dumps(said) + "\n")
    dtype = pipe.bundle.target.dtype
    state = {key: value.to("cpu", dtype).contiguous() for key, value in drafter.state_dict().items()}
    save_file(state, place / "model.safetensors", metadata={"format": "pt"})
