"""Tiny LlamaGen networks from the golden files, in this project's modules."""

from __future__ import annotations

import torch
from golden import load, weights
from torch import Tensor

from lanternpp import keymaps
from lanternpp.checkpoints import Weights, fill
from lanternpp.drafter import Drafter, DrafterConfig
from lanternpp.transformer import Transformer, TransformerConfig

T2I = TransformerConfig(codes=96, width=64, layers=3, heads=4, hidden=112, grid=16, prefix=120, prefix_kind="features",
                        condition=24)
C2I = TransformerConfig(codes=96, width=64, layers=2, heads=4, hidden=112, grid=8, prefix=1, prefix_kind="class",
                        condition=10)


def network(name: str, config: TransformerConfig) -> tuple[Transformer, dict[str, Tensor]]:
    """The golden network `name` and the file's tensors."""
    _, tensors = load(name)
    return read(config, weights(tensors)), tensors


def read(config: TransformerConfig, state: dict[str, Tensor]) -> Transformer:
    with torch.device("meta"):
        model = Transformer(config)
    recipe = keymaps.llamagen(model, state)
    return fill(model, recipe, Weights.of(state, "target"), torch.float32, "cpu",
                keymaps.llamagen_ignored).requires_grad_(False)


def drafter() -> tuple[Drafter, Tensor, dict[str, Tensor]]:
    """The golden drafter, the base head's weight (V, d), and the tensors."""
    _, tensors = load("llamagen_eagle_drafter")
    state = weights(tensors)
    head = state.pop("lm_head.weight")
    with torch.device("meta"):
        model = Drafter(DrafterConfig(), T2I)
    fill(model, keymaps.drafter(model), Weights.of(state, "drafter"), torch.float32)
    return model.requires_grad_(False), head, tensors
