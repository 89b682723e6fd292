"""Train the EAGLE drafter on the target's own samples, with CFG, as decoding uses it. Resumable.

    python -m lanternpp train drafter --out DIR --samples 1500 --minutes 20

Two passes a batch: one on the target's hidden states, one on a mixture of these and the drafter's own predictions, for
below the first level of a tree it reads its own predictions. Loss: smooth L1 to the target's next hidden state, and
cross-entropy to the target's guided distribution (EAGLE, arXiv 2401.15077; own context as in HASS, arXiv 2408.15766).
"""

from __future__ import annotations

import argparse
import hashlib
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from accelerate import Accelerator
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..drafter import Drafter, DrafterConfig
from ..hub import fingerprint
from ..pipeline import best_dtype
from ..sampling import Sampling, distribution
from ..transformer import Transformer, prefix_mask
from . import loop


@torch.inference_mode()
def sample(target: Transformer, words: Tensor, sampling: Sampling, generator: torch.Generator,
           progress=None) -> tuple[Tensor, Tensor]:
    """Plain AR of many prompts at once: word ids (n, P) -> codes (n, L) and hidden states (2, n, P+L−1, d).

    Hidden row i is the target's state after the final norm at sequence position i; [0] with the caption, [1] without.
    """
    config, count = target.config, len(words)
    length = config.prefix + config.image_tokens
    cache = target.new_cache(2 * count, length)
    x, positions = target.prefix_rows(words, guided=True), torch.arange(config.prefix)
    shift = target.caption_shift(x)
    states, codes = [], []
    for index in range(config.image_tokens):
        mask = positions[:, None] >= torch.arange(config.prefix + index)  # attention pays for the filled slots alone
        hidden = target(x.to(target.dtype), positions, cache, positions, mask)
        states.append(hidden)
        conditional, unconditional = target.head(hidden[:, -1]).float().chunk(2)
        p = distribution(unconditional + sampling.cfg_scale * (conditional - unconditional), sampling)
        noise = torch.empty_like(p).exponential_(generator=generator)
        codes.append((p / noise).argmax(-1))
        x = target.embed(codes[-1].repeat(2).unsqueeze(1), shift)
        positions = torch.tensor([config.prefix + index])
        if progress:
            progress(index)
    return torch.stack(codes, 1), torch.cat(states, 1).unflatten(0, (2, count))


class Shown(NamedTuple):
    """Pictures as the drafter sees them: codes (n, L) and the target's states (2, n, P+L−1, d), unguided rows last.

    words (1 or 2n, P): what the drafter reads over the prefix; code 0 if None. valid (2n, P): prefix rows that are not
    padding; all if None.
    """

    codes: Tensor
    hidden: Tensor
    words: Tensor | None = None
    valid: Tensor | None = None


def batch_loss(drafter: Drafter, target: Transformer, shown: Shown, sampling: Sampling, own: Tensor | None,
               weight: float, places: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, mean acceptance Σ min(p, q) and predictions (2n, T, d).

    own (2n, T, d): the drafter's predictions in a former pass, read in place of some of the target's states.
    places: the picture tokens, numbers in 0 … L−2, at which distributions are compared; all if None.
    """
    config, (codes, hidden, words, valid) = target.config, shown
    prefix, count = config.prefix, len(codes)
    codes = codes.repeat(2, 1)
    # Row r stands for sequence position r + 1: the prefix's words from the second on, then the codes.
    first = torch.zeros_like(codes[:, :1]).expand(-1, prefix) if words is None else words.expand(2 * count, -1)
    tokens = torch.cat([first[:, 1:], codes[:, :-1]], dim=1)
    states = hidden.flatten(0, 1)
    inputs, wanted = states[:, :-1], states[:, 1:]
    if own is not None:
        shifted = torch.cat([inputs[:, :1], own[:, :-1].to(inputs.dtype)], dim=1)
        chosen = torch.rand(inputs.shape[:2], device=inputs.device) < 0.5
        chosen[:, :prefix] = False
        inputs = torch.where(chosen.unsqueeze(-1), shifted, inputs)
    positions = torch.arange(1, inputs.shape[1] + 1, device=inputs.device)
    mask = None
    if valid is not None and drafter.config.masks_padding:
        mask = prefix_mask(F.pad(valid[:, :-1], (0, inputs.shape[1] - prefix + 1), value=True), "causal")
    predicted = drafter(tokens, inputs, positions, mask=mask)
    # Only rows whose output predicts a picture token count.
    made, true = predicted[:, prefix - 1:], wanted[:, prefix - 1:]
    regression = F.smooth_l1_loss(made.float(), true.float())
    if places is None:
        places = torch.arange(made.shape[1], device=made.device)
    if config.row_end is not None:  # nothing is drawn where a row ends: row r predicts the picture's token r + 1
        places = places[(places + 1) % (config.grid + 1) != config.grid]
    made, true = made[:, places], true[:, places]

    def guided(x: Tensor) -> Tensor:
        logits = target.head(x).float()[..., : config.codes - (config.row_end is not None)]
        conditional, unconditional = logits.unflatten(0, (2, count)).unbind(0)
        return (unconditional + sampling.cfg_scale * (conditional - unconditional)) / (sampling.temperature or 1)

    log_q = guided(made).log_softmax(-1)
    with torch.no_grad():  # the whole distribution: what top-k cuts off weighs little, and finding it costs much
        p = guided(true.to(target.dtype)).softmax(-1)
    acceptance = torch.minimum(p, log_q.exp()).sum(-1).mean()
    cross = -(p * log_q).sum(-1).mean()
    # Cross-entropy brings q near p wherever p is; what decodes fast is the acceptance itself.
    return regression + weight * (cross - acceptance), acceptance.detach(), predicted.detach()


@torch.no_grad()
def teacher_forced(target: Transformer, condition: Tensor, codes: Tensor, valid: Tensor | None = None) -> Tensor:
    """Hidden states (2, n, P+L−1, d) of given pictures, with and without their prompts: what `sample` also returns.

    valid (2n, P): prefix rows that are not padding; masked as in a prefill that a drafter reads.
    """
    rows = target.prefix_rows(condition, guided=True)
    tokens = target.embed(codes[:, :-1].repeat(2, 1), target.caption_shift(rows))
    x = torch.cat([rows, tokens], dim=1).to(target.dtype)
    mask = None if valid is None else prefix_mask(F.pad(valid, (0, tokens.shape[1]), value=True), "causal")
    return target(x, torch.arange(x.shape[1], device=x.device), mask=mask).unflatten(0, (2, len(codes)))


def collect(target: Transformer, encode, prompts: list[str], sampling: Sampling, folder: Path, seed: int,
            batch: int = 32) -> tuple[Tensor, Tensor]:
    """Sample a picture for each prompt, in resumable parts kept in `folder`; codes (n, L), hidden (2, n, P+L−1, d)."""
    folder.mkdir(parents=True, exist_ok=True)
    # Samples of another target or of other prompts are not these: the name tells.
    mark = hashlib.sha256(repr([fingerprint(target), sampling, seed, prompts]).encode()).hexdigest()[:8]
    parts = []
    for first in range(0, len(prompts), batch):
        path = folder / f"samples-{mark}-{first:06d}.safetensors"
        if not path.exists():
            generator = torch.Generator().manual_seed(seed + first)
            codes, hidden = sample(target, encode(prompts[first:first + batch]), sampling, generator)
            save_file({"codes": codes.to(torch.int16), "hidden": hidden.to(torch.bfloat16).contiguous()},
                      path.with_suffix(".new"))
            path.with_suffix(".new").replace(path)
            print(f"{min(first + batch, len(prompts))}/{len(prompts)} samples", flush=True)
        parts.append(load_file(path))
    return (torch.cat([p["codes"] for p in parts]).long(), torch.cat([p["hidden"] for p in parts], dim=1))


def new_drafter(target: Transformer, config: DrafterConfig) -> Drafter:
    """An untrained drafter with the target's embeddings, which stay as they are."""
    drafter = Drafter(config, target.config).to(target.device)
    table = drafter.token_embedding.weight
    table.data[: target.config.codes] = target.token_embedding.weight.data.float()
    if len(table) > target.config.codes:
        table.data[target.config.codes:] = target.prefix.embedding.weight.data.float()
    return drafter.requires_grad_(True).train()


def train(target: Transformer, batches: Callable[[int], Shown], held: Shown, sampling: Sampling, out: Path,
          minutes: float, config: DrafterConfig, batch: int = 8, weight: float = 1.0, muon_lr: float = 2e-3,
          adam_lr: float = 1e-3, seed: int = 0, accelerator: Accelerator | None = None,
          init: dict[str, Tensor] | None = None) -> Drafter:
    """Train for `minutes` in all on batches(n) of n pictures; leaves out/drafter.pt, and the score on `held` in a log.

    init: weights to begin with, random ones if None.

    Under accelerate each process draws its own batches and gradients are averaged.
    """
    accelerator = accelerator or Accelerator(cpu=target.device.type == "cpu")
    torch.manual_seed(seed)
    drafter = new_drafter(target, config)
    drafter.token_embedding.weight.requires_grad_(False)
    fast = best_dtype(target.device) == torch.bfloat16
    checkpoint = loop.resume(out / "drafter.pt")
    if checkpoint or init:
        drafter.load_state_dict(checkpoint["model"] if checkpoint else init)
    optimizers = loop.Optimizers(drafter, muon_lr, adam_lr)
    step, clock = 0, loop.Clock(minutes)
    if checkpoint:
        optimizers.load_state_dict(checkpoint["optimizers"])
        step, clock = checkpoint["step"], loop.Clock(minutes, checkpoint["minutes"])
    torch.manual_seed(seed + 1 + accelerator.process_index)
    accepted: list[float] = []

    def score(shown, own=None, places=None):
        shown = shown._replace(hidden=shown.hidden.to(torch.bfloat16 if fast else torch.float32))
        with loop.autocast(target.device):
            return batch_loss(drafter, target, shown, sampling, own, weight, places)

    def keep() -> None:
        if accelerator.is_main_process:
            loop.save(out / "drafter.pt", model=drafter.state_dict(), optimizers=optimizers.state_dict(), step=step,
                      minutes=clock.spent, config=asdict(drafter.config))

    def report() -> None:
        with torch.no_grad():
            _, held_acceptance, own = score(held)
            _, own_acceptance, _ = score(held, own)
        if accelerator.is_main_process:
            trained = {"acceptance": sum(accepted[-50:]) / len(accepted[-50:])} if accepted else {}
            loop.log(out / "drafter.jsonl", step=step, minutes=clock.spent, **trained,
                     held_out=held_acceptance.item(), held_out_own=own_acceptance.item())

    def over() -> bool:  # all processes stop at the same step
        spent = torch.tensor(float(clock.done), device=target.device)
        return bool(accelerator.reduce(spent, "sum") > 0)

    if not step:
        report()  # before any training
    try:
        while not over():
            taken = batches(batch)
            # A quarter of the places in each pass: the head and the softmax cost more than the drafter.
            length = target.config.image_tokens - 1
            first, second = torch.randperm(length, device=target.device)[: (length + 1) // 2].chunk(2)
            loss, acceptance, own = score(taken, places=first)
            loss.backward()
            loss_own, _, _ = score(taken, own, second)
            loss_own.backward()
            for parameter in drafter.parameters():
                if parameter.grad is not None:
                    parameter.grad = accelerator.reduce(parameter.grad, "mean")
            loop.clip(drafter)
            optimizers.step(clock.scale(step, decay=0.5))
            accepted.append(acceptance.item())
            step += 1
            if step % 50 == 0:
                report()
            if step % 200 == 0:
                keep()
        if step % 50:
            report()
    finally:
        keep()
    return drafter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=Path("assets/emoji"), help="name or folder of the target")
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--data", type=Path, help="bundled model: folder made by lanternpp.training.data, for captions")
    source.add_argument("--images", type=Path, help="any target: folder of pictures, with NAME.txt, or named by prompt")
    source.add_argument("--self-distill", action="store_true", help="any target: train on its own samples")
    parser.add_argument("--prompts", type=Path, help="with --self-distill: a file with a prompt a line")
    parser.add_argument("--cfg", type=float, help="guidance, the model's own if left out")
    parser.add_argument("--batch", type=int, default=8, help="pictures a step and process")
    parser.add_argument("--held-out", type=int, default=16, help="pictures that only score the drafter")
    parser.add_argument("--out", type=Path, required=True, help="folder for samples, checkpoint and log")
    parser.add_argument("--samples", type=int, default=1500, help="pictures to sample from the target")
    parser.add_argument("--minutes", type=float, default=20.0, help="training time in all, resumed time included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scratch", action="store_true", help="with --data: start from random weights, not --model's")
