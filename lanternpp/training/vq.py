"""Training of the bundled tokenizer: `python -m lanternpp train tokenizer --pictures DIR --out DIR`.

Vector quantisation from scratch learns slowly, because codes and encoder chase each other. So the first quarter of the
steps trains a plain autoencoder whose latents lie on the unit sphere and carry a little noise, like that of quantising
later; k-means of its latents makes the codebook; then all is trained through the codes (straight-through, VQ-VAE,
arXiv 1711.00937; unit codes, arXiv 2110.04627). Batches, noise and k-means are functions of (seed, step) alone, so a
run that was interrupted and resumed ends with the same weights as one that was not.

`--decoder-only` improves the pictures that existing codes decode to and leaves every code's meaning as it is: a prior
trained on them stays valid.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from lanternpp.training.data import Pictures, composite, load_pictures, split
from lanternpp.vq import BUNDLED, Tokenizer, VQConfig

NOISE = 0.08  # standard deviation of the noise on each number of a unit latent: about what quantising does later
COMMITMENT = 0.25
EDGES = 0.5
WARMUP = 100  # steps over which the learning rate rises
PATIENCE = 100  # steps without use after which a code is dead
LATENTS_PER_CODE = 40  # how many latents k-means sees
LLOYD_STEPS = 12
VALIDATION = 48  # held-out pictures


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data", dest="pictures", type=Path, required=True,
                        help="folder made by lanternpp.training.data")
    parser.add_argument("--out", type=Path, required=True,
                        help="folder for tokenizer.safetensors, the loss curve and the checkpoint; "
                             "a run continues from the checkpoint that it finds there")
    parser.add_argument("--init", type=Path, help="start from this saved tokenizer instead of from noise")
    parser.add_argument("--decoder-only", action="store_true", help="freeze encoder and codebook; needs --init")
    parser.add_argument("--steps", type=int, default=6000, help="length of the whole run (default: %(default)s)")
    parser.add_argument("--batch", type=int, help="crops a step (default: 24, with --decoder-only 8)")
    parser.add_argument("--crop", type=int, help="side of the crops in pixels (default: 64, with --decoder-only 128)")
    parser.add_argument("--lr", type=float, default=4e-4, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="default: %(default)s")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--log-every", type=int, default=25, help="steps between progress lines")
    parser.add_argument("--save-every", type=int, default=250, help="steps between validations and checkpoints")


def main(args: argparse.Namespace) -> None:
    """The command: train, with mistakes told in one sentence; Ctrl-C keeps what was learnt."""
    try:
        train(args)
    except (FileNotFoundError, ValueError) as error:
        raise SystemExit(str(error)) from error


def batch(pictures: Pictures, index: np.ndarray, count: int, crop: int, rng: np.random.Generator) -> Tensor:
    """`count` random crops of random pictures on random backgrounds, (count, 3, crop, crop) in [-1, 1]."""
    crops = []
    for i in rng.choice(index, count):
        picture = composite(pictures.rgba[i], rng, place="any")
        top, left = rng.integers(0, picture.shape[0] - crop + 1, 2)
        crops.append(picture[top:top + crop, left:left + crop])
    return as_images(crops)


def as_images(pictures: list[np.ndarray]) -> Tensor:
    return torch.from_numpy(np.stack(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def psnr(images: Tensor, targets: Tensor) -> float:
    """Mean over pictures of the peak signal-to-noise ratio in dB, after clamping to the displayable range."""
    error = (images.clamp(-1, 1) - targets).div(2).square().mean((1, 2, 3))
    return float(-10 * error.clamp_min(1e-10).log10().mean())


def reconstruction_loss(images: Tensor, targets: Tensor) -> Tensor:
    """L1 + L2, and L1 on differences of neighbours, which punishes blurred edges and grain more than wrong flats."""
    error = images - targets
    edges = error.diff(dim=-1).abs().mean() + error.diff(dim=-2).abs().mean()
    return error.abs().mean() + error.square().mean() + EDGES * edges


def kmeans(points: Tensor, count: int, generator: torch.Generator, steps: int = LLOYD_STEPS) -> Tensor:
    """Spherical k-means: unit points (n, C) -> `count` unit centres. A centre without points moves to a random one."""
    def some(n: int) -> Tensor:
        return points[torch.randint(len(points), (n,), generator=generator).to(points.device)]

    first = torch.randperm(len(points), generator=generator)[:count].to(points.device)
    centres = torch.cat([points[first], some(count - len(first))])
    for _ in range(steps):
        nearest = torch.cat([(part @ centres.T).argmax(1) for part in points.split(4096)])
        sums = torch.zeros_like(centres).index_add_(0, nearest, points)
        empty = torch.bincount(nearest, minlength=count) == 0
        sums[empty] = some(int(empty.sum()))
        centres = F.normalize(sums, dim=1)
    return centres


class Trainer:
    """The tokenizer, its optimizer and how long each code has been idle: all that a checkpoint keeps."""

    def __init__(self, args: argparse.Namespace, config: VQConfig):
        if args.decoder_only and not args.init:
            raise ValueError("--decoder-only improves an existing tokenizer: name it with --init.")
        torch.manual_seed(args.seed)
        self.args, self.step = args, 0
        self.batch = args.batch or (8 if args.decoder_only else 24)
        self.crop = args.crop or (128 if args.decoder_only else 64)
        self.device = torch.device(args.device)
        self.tokenizer = (Tokenizer.load(args.init) if args.init else Tokenizer(config)).to(self.device)
        self.plain_steps = 0 if args.init else args.steps // 4
        vq = self.tokenizer.vq
        for part in (vq.encoder, vq.quant_conv, vq.quantize):
            part.requires_grad_(not args.decoder_only)
        self.optimizer = torch.optim.Adam([p for p in vq.parameters() if p.requires_grad], args.lr, betas=(0.9, 0.99))
        self.idle = torch.zeros(self.tokenizer.config.codes, dtype=torch.int64, device=self.device)
        self.half = self.device.type == "cuda" or torch.cpu._is_avx512_bf16_supported()

    def generator(self, purpose: int) -> torch.Generator:
        """Random numbers of this step for one purpose."""
        return torch.Generator().manual_seed((self.args.seed * 1_000_003 + self.step) * 8 + purpose)

    def rng(self) -> np.random.Generator:
        return np.random.default_rng((self.args.seed, self.step))

    def autocast(self):
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.half)

    def unit_latents(self, images: Tensor) -> Tensor:
        with self.autocast():
            latents = self.tokenizer.latents(images)
        return F.normalize(latents, dim=1)

    def decode(self, latents: Tensor) -> Tensor:
        with self.autocast():
            return self.tokenizer.decode_latents(latents)

    def make_codebook(self, pictures: Pictures, index: np.ndarray) -> None:
        """Codes from k-means of the latents that the encoder gives now."""
        rows = self.tokenizer.vq.quantize.embedding.weight
        rng, found, wanted = self.rng(), [], LATENTS_PER_CODE * len(rows)
        with torch.no_grad():
            while sum(map(len, found)) < wanted:
                images = batch(pictures, index, self.batch, self.crop, rng).to(self.device)
                found.append(self.unit_latents(images).permute(0, 2, 3, 1).flatten(0, 2))
            rows.copy_(kmeans(torch.cat(found), len(rows), self.generator(0)))

    def train_step(self, images: Tensor) -> tuple[float, float]:
        """One update; returns loss and PSNR of the batch, before the update."""
        progress = self.step / self.args.steps
        rate = min(1.0, (self.step + 1) / WARMUP) * (0.02 + 0.98 * (1 + math.cos(math.pi * progress)) / 2)
        for group in self.optimizer.param_groups:
            group["lr"] = self.args.lr * rate
        with torch.set_grad_enabled(not self.args.decoder_only):
            z = self.unit_latents(images)
        codes, extra = None, 0.0
        if self.step < self.plain_steps:
            noise = torch.randn(z.shape, generator=self.generator(1)).to(z)
            through = F.normalize(z + NOISE * noise, dim=1)
        else:
            codes = self.tokenizer.nearest(z.detach())
            rows = self.tokenizer.lookup(codes, z.shape[2:])
            through = z + (rows - z).detach()
            if not self.args.decoder_only:
                extra = (F.mse_loss(rows, z.detach()) + COMMITMENT * F.mse_loss(z, rows.detach())) * z.shape[1]
        output = self.decode(through)
        loss = reconstruction_loss(output, images) + extra
        self.optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.tokenizer.parameters(), 1.0)
        self.optimizer.step()
        if codes is not None and not self.args.decoder_only:
            self.revive(codes, z.detach())
        self.step += 1
        return loss.item(), psnr(output.detach(), images)

    @torch.no_grad()
    def revive(self, codes: Tensor, z: Tensor) -> None:
        """Move codes that nothing uses onto latents of this batch; after the update, whose momentum would undo it."""
        table = self.tokenizer.vq.quantize.embedding.weight
        table.copy_(self.tokenizer.codebook)
        self.idle += 1
        self.idle[codes.flatten()] = 0
        dead = (self.idle > PATIENCE).nonzero().flatten()
        points = z.permute(0, 2, 3, 1).flatten(0, 2)
        chosen = torch.randperm(len(points), generator=self.generator(2))[:len(dead)].to(self.device)
        dead = dead[:len(chosen)]
        table[dead] = points[chosen]
        self.optimizer.state[table]["exp_avg"][dead] = 0
        self.idle[dead] = 0

    @torch.no_grad()
    def validate(self, images: Tensor) -> dict:
        """PSNR in dB of whole held-out pictures through the codes, and how many codes they use."""
        if self.step <= self.plain_steps > 0:  # at the last plain step there is no codebook yet
            output, used = self.decode(self.unit_latents(images)), None
        else:
            with self.autocast():
                latents = self.tokenizer.latents(images)
            codes = self.tokenizer.nearest(latents)
            output = self.decode(self.tokenizer.lookup(codes, latents.shape[2:]))
            used = codes.unique().numel()
        return {"held_out_psnr": round(psnr(output, images), 3), "held_out_codes": used}

    def save(self, path: Path) -> None:
        """Write a checkpoint whole or not at all."""
        mode = {"config": asdict(self.tokenizer.config), "decoder_only": self.args.decoder_only, "seed": self.args.seed}
        torch.save({"mode": mode, "step": self.step, "plain_steps": self.plain_steps, "idle": self.idle,
                    "optimizer": self.optimizer.state_dict(), "vq": self.tokenizer.vq.state_dict()},
                   path.with_suffix(".part"))
        path.with_suffix(".part").replace(path)

    def resume(self, path: Path) -> None:
        """Continue from a checkpoint; ValueError where it is of another kind of run."""
        state = torch.load(path, map_location=self.device, weights_only=True)
        mode = state["mode"]
        config = VQConfig(**mode["config"])
        if (config, mode["decoder_only"], mode["seed"]) != (
                self.tokenizer.config, self.args.decoder_only, self.args.seed):
            raise ValueError(f"{path} is of a run with other settings: move it away or choose another --out.")
        self.tokenizer.vq.load_state_dict(state["vq"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step, self.plain_steps, self.idle = state["step"], state["plain_steps"], state["idle"]


def train(args: argparse.Namespace, config: VQConfig = BUNDLED) -> Tokenizer:
    """Train to `args.steps` or until Ctrl-C, writing checkpoint, curve and tokenizer to `args.out`."""
    pictures = load_pictures(args.pictures)
    index, held_out = split(pictures)
    trainer = Trainer(args, config)
    args.out.mkdir(parents=True, exist_ok=True)
    checkpoint, curve = args.out / "tokenizer.ckpt", args.out / "tokenizer.jsonl"
    lines = []
    if checkpoint.exists():
        trainer.resume(checkpoint)
        lines = [line for line in curve.read_text().splitlines() if json.loads(line)["step"] <= trainer.step]
        print(f"resumed at step {trainer.step}")
    curve.write_text("".join(f"{line}\n" for line in lines))  # what an interrupted run wrote past its checkpoint goes
    chosen = np.random.default_rng(1).permutation(held_out)[:VALIDATION]
    images = as_images([composite(pictures.rgba[i], np.random.default_rng(int(i)), place="centre") for i in chosen])
    images = images.to(trainer.device)
    print(f"{len(index)} pictures to learn from, {len(held_out)} held out by concept, "
          f"{sum(p.numel() for p in trainer.tokenizer.parameters() if p.requires_grad) / 1e6:.1f} M parameters learn")

    def note(**record) -> None:
        with curve.open("a") as file:
            file.write(json.dumps({"step": trainer.step, **record}) + "\n")
        print(f"step {trainer.step}/{args.steps}  " + "  ".join(f"{k} {v}" for k, v in record.items()), flush=True)

    def keep() -> None:
        trainer.save(checkpoint)
        trainer.tokenizer.save(args.out / "tokenizer.safetensors")
        note(**trainer.validate(images))

    if args.init and trainer.step == 0:
        note(**trainer.validate(images))  # what the rest is to be compared with
    recent, started = [], time.perf_counter()
    try:
        while trainer.step < args.steps:
            if trainer.step == trainer.plain_steps > 0:
                trainer.make_codebook(pictures, index)
            recent.append(trainer.train_step(
                batch(pictures, index, trainer.batch, trainer.crop, trainer.rng()).to(trainer.device)))
            if trainer.step % args.log_every == 0:
                loss, quality = np.mean(recent, axis=0)
                seconds = (time.perf_counter() - started) / len(recent)
                note(phase="plain" if trainer.step <= trainer.plain_steps else "codes", loss=round(float(loss), 5),
                     psnr=round(float(quality), 3), seconds_a_step=round(seconds, 3))
                recent, started = [], time.perf_counter()
            if trainer.step % args.save_every == 0 and trainer.step < args.steps:
                keep()
    except KeyboardInterrupt:
        print("interrupted: keeping what was learnt")
    keep()
    return trainer.tokenizer.eval()
