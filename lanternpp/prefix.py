"""What stands before the picture in the target's sequence: one module for each kind of condition.

Shapes: B rows of the batch, P prefix rows, d width. `unconditional` gives the rows that guidance leaves from.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from .transformer import TransformerConfig

PAD_ID = 1  # of Chameleon's vocabulary


class WordPrefix(nn.Module):
    """Caption word ids (B, P), left-padded with 0, to prefix rows (B, P, d): the bundled model's stand-in for T5."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.condition, config.width)
        self.fc1 = nn.Linear(config.width, config.width)
        self.fc2 = nn.Linear(config.width, config.width)
        self.positions = nn.Parameter(torch.zeros(config.prefix, config.width))
        self.null = nn.Parameter(torch.zeros(config.prefix, config.width))
        if config.pooled:
            self.pool = nn.Linear(config.width, config.width, bias=False)
            nn.init.normal_(self.pool.weight, std=0.002)

    def forward(self, words: Tensor) -> Tensor:
        rows = self.fc2(F.gelu(self.fc1(self.embedding(words))))
        return rows * (words != 0).unsqueeze(-1) + self.positions

    def unconditional(self, rows: int) -> Tensor:
        return (self.null + self.positions).expand(rows, -1, -1)

    def pooled(self, rows: Tensor) -> Tensor:
        """Prefix rows (B, P, d) -> what is added to each token's embedding, (B, 1, d)."""
        total = (rows - self.positions).sum(1, keepdim=True)
        return self.pool(F.rms_norm(total, total.shape[-1:]))


class FeaturePrefix(nn.Module):
    """T5 features (B, P, condition), valid rows rolled to the right end, to prefix rows (B, P, d).

    The null caption is a stored constant that was never trained: it must come from the checkpoint.
    """

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.fc1 = nn.Linear(config.condition, config.width, bias=False)
        self.fc2 = nn.Linear(config.width, config.width, bias=False)
        self.register_buffer("null", torch.zeros(config.prefix, config.condition))

    def forward(self, features: Tensor) -> Tensor:
        return self.fc2(F.gelu(self.fc1(features.to(self.fc1.weight.dtype)), approximate="tanh"))

    def unconditional(self, rows: int) -> Tensor:
        return self(self.null.expand(rows, -1, -1))


class ClassPrefix(nn.Module):
    """Class numbers (B,) to one prefix row (B, 1, d); the table's last row is the null class."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.condition + 1, config.width)

    def forward(self, labels: Tensor) -> Tensor:
        return self.embedding(labels).unsqueeze(1)

    def unconditional(self, rows: int) -> Tensor:
        return self.embedding.weight[-1].expand(rows, 1, -1)


class TokenPrefix(nn.Module):
    """Ids (B, P) of Chameleon's vocabulary, left-padded with 1, to prefix rows (B, P, d)."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.condition, config.width)
        self.null = (PAD_ID,) * (config.prefix - len(config.null_prompt)) + config.null_prompt

    def forward(self, ids: Tensor) -> Tensor:
        return self.embedding(ids)

    def null_ids(self, rows: int) -> Tensor:
        return torch.tensor(self.null, device=self.embedding.weight.device).expand(rows, -1)

    def unconditional(self, rows: int) -> Tensor:
        return self(self.null_ids(rows))


PREFIXES = {"words": WordPrefix, "features": FeaturePrefix, "class": ClassPrefix, "tokens": TokenPrefix}
