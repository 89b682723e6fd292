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

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..drafter import Drafter, DrafterConfig
from ..sampling import Sampling, distribution
from ..transformer import Transformer
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
    slots = torch.arange(length)
    x, positions = target.prefix_rows(words, guided=True), torch.arange(config.prefix)
    shift = target.caption_shift(x)
    states, codes = [], []
    for index in range(config.image_tokens):
        mask = positions[:, None] >= slots
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


def draft_inputs(codes: Tensor, prefix: int) -> Tensor:
    """Codes (n, L) -> the tokens that the drafter's rows read, (n, P−1+L): fillers for the prefix, then the codes."""
    return F.pad(codes, (prefix - 1, 0))


def batch_loss(drafter: Drafter, target: Transformer, codes: Tensor, hidden: Tensor, sampling: Sampling,
               own: Tensor | None, weight: float, places: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, mean acceptance Σ min(p, q) and predictions (2n, T, d) for codes (n, L), hidden (2, n, P+L−1, d).

    own (2n, T, d): the drafter's predictions in a former pass, read in place of some of the target's states.
    places: the picture tokens, numbers in 0 … L−2, at which distributions are compared; all if None.
    """
    prefix, count = target.config.prefix, len(codes)
    tokens = draft_inputs(codes[:, :-1], prefix).repeat(2, 1)  # row r stands for sequence position r+1
    states = hidden.flatten(0, 1)
    inputs, wanted = states[:, :-1], states[:, 1:]
    if own is not None:
        shifted = torch.cat([inputs[:, :1], own[:, :-1].to(inputs.dtype)], dim=1)
        chosen = torch.rand(inputs.shape[:2]) < 0.5
        chosen[:, :prefix] = False
        inputs = torch.where(chosen.unsqueeze(-1), shifted, inputs)
    positions = torch.arange(1, inputs.shape[1] + 1)
    predicted = drafter(tokens, inputs, positions)
    # Only rows whose output predicts a picture token count.
    made, true = predicted[:, prefix - 1:], wanted[:, prefix - 1:]
    regression = F.smooth_l1_loss(made.float(), true.float())
    if places is not None:
        made, true = made[:, places], true[:, places]

    def guided(x: Tensor) -> Tensor:
        conditional, unconditional = target.head(x).float().unflatten(0, (2, count)).unbind(0)
        return unconditional + sampling.cfg_scale * (conditional - unconditional)

    log_q = guided(made).log_softmax(-1)
    with torch.no_grad():  # the whole distribution: what top-k cuts off weighs little, and finding it costs much
        p = guided(true.to(target.dtype)).softmax(-1)
        acceptance = torch.minimum(p, log_q.exp()).sum(-1).mean()
    cross = -(p * log_q).sum(-1).mean()
    return regression + weight * cross, acceptance, predicted.detach()


@torch.inference_mode()
def teacher_forced(target: Transformer, words: Tensor, codes: Tensor) -> Tensor:
    """Hidden states (2, n, P+L−1, d) of given pictures, with and without their captions: what `sample` also returns."""
    rows = target.prefix_rows(words, guided=True)
    tokens = target.embed(codes[:, :-1].repeat(2, 1), target.caption_shift(rows))
    x = torch.cat([rows, tokens], dim=1).to(target.dtype)
    return target(x, torch.arange(x.shape[1])).unflatten(0, (2, len(codes)))


def collect(target: Transformer, encode, prompts: list[str], sampling: Sampling, folder: Path, seed: int,
            batch: int = 32) -> tuple[Tensor, Tensor]:
    """Sample a picture for each prompt, in resumable parts kept in `folder`; codes (n, L), hidden (2, n, P+L−1, d)."""
    folder.mkdir(parents=True, exist_ok=True)
    # Samples of another target or of other prompts are not these: the name tells.
    weights = [target.head.weight.float().sum().item(), target.norm.weight.float().sum().item()]
    mark = hashlib.sha256(repr([weights, sampling, seed, prompts]).encode()).hexdigest()[:8]
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


def train(target: Transformer, codes: Tensor, hidden: Tensor, sampling: Sampling, out: Path, minutes: float,
          batch: int = 8, weight: float = 1.0, muon_lr: float = 2e-3, adam_lr: float = 1e-3, seed: int = 0,
          held_out: int = 32, real: Callable[[int], tuple[Tensor, Tensor]] | None = None) -> Drafter:
    """Train for `minutes` in all; leaves out/drafter.pt. `target` must be float32 (autocast does the rest).

    real(n) gives codes (n, L) and hidden (2, n, P+L−1, d) of n real pictures: half of each batch, because samples cost
    ten times as much and a few hundred of them are soon learnt by heart.
    """
    torch.manual_seed(seed)
    drafter = Drafter(DrafterConfig(attention_norm=True, norm_eps=1e-5), target.config)
    drafter.token_embedding.weight.data.copy_(target.token_embedding.weight.data)
    drafter.token_embedding.weight.requires_grad_(False)
    checkpoint = loop.resume(out / "drafter.pt")
    if checkpoint:
        drafter.load_state_dict(checkpoint["model"])
    optimizers = loop.Optimizers(drafter, muon_lr, adam_lr)
    step, clock = 0, loop.Clock(minutes)
    if checkpoint:
        optimizers.load_state_dict(checkpoint["optimizers"])
        step, clock = checkpoint["step"], loop.Clock(minutes, checkpoint["minutes"])
    held = slice(len(codes) - held_out, len(codes))
    accepted: list[float] = []

    def score(batch_codes, batch_hidden, own=None, places=None):
        with torch.autocast("cpu", torch.bfloat16):
            return batch_loss(drafter, target, batch_codes, batch_hidden, sampling, own, weight, places)

    def keep() -> None:
        loop.save(out / "drafter.pt", model=drafter.state_dict(), optimizers=optimizers.state_dict(), step=step,
                  minutes=clock.spent, config=asdict(drafter.config))

    try:
        while not clock.done:
            index = torch.randint(0, len(codes) - held_out, (batch // 2 if real else batch,))
            taken = codes[index], hidden[:, index]
            if real:
                more = real(batch - len(index))
                taken = torch.cat([taken[0], more[0]]), torch.cat([taken[1], more[1].to(taken[1])], dim=1)
            # A quarter of the places in each pass: the head and the softmax cost more than the drafter.
            first, second = torch.randperm(codes.shape[1] - 1)[: codes.shape[1] // 2].chunk(2)
            loss, acceptance, own = score(*taken, places=first)
            loss.backward()
            loss_own, _, _ = score(*taken, own, second)
            loss_own.backward()
            loop.clip(drafter)
            optimizers.step(clock.scale(step, decay=0.5))
            accepted.append(acceptance.item())
            step += 1
            if step % 50 == 0:
                with torch.no_grad():
                    _, held_acceptance, own = score(codes[held], hidden[:, held])
                    _, own_acceptance, _ = score(codes[held], hidden[:, held], own)
                loop.log(out / "drafter.jsonl", step=step, minutes=clock.spent, loss=loss.item(),
                         acceptance=sum(accepted[-50:]) / len(accepted[-50:]), held_out=held_acceptance.item(),
                         held_out_own=own_acceptance.item())
            if step % 200 == 0:
                keep()
    finally:
        keep()
    return drafter


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, default=Path("assets/emoji"), help="folder of the target")
    parser.add_argument("--data", type=Path, required=True, help="folder made by lanternpp.training.data, for captions")
    parser.add_argument("--out", type=Path, required=True, help="folder for samples, checkpoint and log")
    parser.add_argument("--samples", type=int, default=1500, help="pictures to sample from the target")
    parser.add_argument("--minutes", type=float, default=20.0, help="training time in all, resumed time included")
    parser.add_argument("--seed", type=int, default=0)
