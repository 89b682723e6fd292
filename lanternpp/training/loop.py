"""What every training shares: two optimizers, a learning-rate schedule in minutes, checkpoints, a loss log."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from ..pipeline import best_dtype


class Muon(torch.optim.Optimizer):
    """Momentum made orthogonal (Muon; Jordan et al. 2024), steps sized as AdamW's (arXiv 2502.16982, section 2.2).

    torch's own works in bfloat16, which machines without such instructions emulate at a hundredth of the speed.
    """

    def __init__(self, params, lr: float, weight_decay: float = 0.0, momentum: float = 0.95):
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                average = self.state[p].setdefault("momentum_buffer", torch.zeros_like(p))
                average.lerp_(p.grad, 1 - group["momentum"])
                update = orthogonal(p.grad.lerp(average, group["momentum"]))
                p.mul_(1 - group["lr"] * group["weight_decay"])
                p.add_(update, alpha=-0.2 * group["lr"] * max(p.shape) ** 0.5)


def orthogonal(matrix: Tensor, steps: int = 5) -> Tensor:
    """About U Vᵀ of a matrix U S Vᵀ, all singular values brought near 1: a quintic Newton–Schulz iteration."""
    tall = matrix.shape[0] > matrix.shape[1]
    x = matrix.T if tall else matrix
    x = x / (x.norm() + 1e-7)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
    return x.T if tall else x


class Optimizers:
    """Muon for the blocks' matrices, AdamW for embeddings, heads, norms and biases."""

    def __init__(self, model: nn.Module, muon_lr: float, adam_lr: float, weight_decay: float = 0.01):
        named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
        matrices = [p for n, p in named if p.ndim == 2 and ("blocks." in n or n == "fuse.weight")]
        known = {id(p) for p in matrices}
        others = [p for _, p in named if id(p) not in known]
        self.all = [torch.optim.AdamW(others, lr=adam_lr, betas=(0.9, 0.95), weight_decay=weight_decay)]
        if matrices:
            self.all.append(Muon(matrices, muon_lr, weight_decay))
        self.base = [[g["lr"] for g in o.param_groups] for o in self.all]

    def step(self, scale: float) -> None:
        for optimizer, base in zip(self.all, self.base, strict=True):
            for group, lr in zip(optimizer.param_groups, base, strict=True):
                group["lr"] = lr * scale
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def state_dict(self) -> list[dict]:
        return [o.state_dict() for o in self.all]

    def load_state_dict(self, states: list[dict]) -> None:
        for optimizer, state in zip(self.all, states, strict=True):
            optimizer.load_state_dict(state)


class Clock:
    """Time spent in training over all resumed runs, against a budget in minutes."""

    def __init__(self, minutes: float, spent: float = 0.0):
        self.minutes, self.before, self.start = minutes, spent, time.monotonic()

    @property
    def spent(self) -> float:
        return self.before + (time.monotonic() - self.start) / 60

    @property
    def done(self) -> bool:
        return self.spent >= self.minutes

    def scale(self, step: int, decay: float, warmup: int = 40) -> float:
        """Learning-rate factor: linear warm-up in steps, flat, linear decay to 2 % over the last share `decay`."""
        left = max(0.0, 1 - self.spent / self.minutes)
        return min(1.0, (step + 1) / warmup) * (max(0.02, left / decay) if decay > 0 and left < decay else 1.0)


def autocast(device: torch.device) -> torch.autocast:
    """Networks in bfloat16 where the device multiplies it fast, else as they are."""
    return torch.autocast(device.type, torch.bfloat16, enabled=best_dtype(device) == torch.bfloat16)


def stop_cleanly() -> None:
    """Let SIGTERM end a training as Ctrl-C does, through the code that saves. A shell's background jobs ignore SIGINT
    unless told otherwise, so it is set too."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)


def save(path: Path, **state) -> None:
    """Write a checkpoint so that an interrupted write never replaces a good one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(state, temporary)
    temporary.replace(path)


def resume(path: Path) -> dict | None:
    return torch.load(path, weights_only=True, map_location="cpu") if path.exists() else None


def log(path: Path, **row: float) -> None:
    """Append one row to a JSON-lines log and print it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    row = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print("  ".join(f"{k} {v}" for k, v in row.items()), flush=True)


def clip(model: nn.Module, norm: float = 1.0) -> Tensor:
    return nn.utils.clip_grad_norm_([p for p in model.parameters() if p.grad is not None], norm)
