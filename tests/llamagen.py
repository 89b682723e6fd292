"""Tiny LlamaGen networks from the golden files, in this project's modules."""

from __future__ import annotations

from golden import load, weights
from torch import Tensor

from lanternpp.drafter import Drafter, DrafterConfig
from lanternpp.hub import llamagen_drafter_state, llamagen_state, load_strictly
from lanternpp.transformer import Transformer, TransformerConfig

T2I = TransformerConfig(codes=96, width=64, layers=3, heads=4, hidden=112, grid=16, prefix=120, prefix_kind="features",
                        condition=24)
C2I = TransformerConfig(codes=96, width=64, layers=2, heads=4, hidden=112, grid=8, prefix=1, prefix_kind="class",
                        condition=10)


def network(name: str, config: TransformerConfig) -> tuple[Transformer, dict[str, Tensor]]:
    """The golden network `name` and the file's tensors."""
    _, tensors = load(name)
    model = Transformer(config)
    load_strictly(model, llamagen_state(weights(tensors)), name)
    return model.eval().requires_grad_(False), tensors


def drafter() -> tuple[Drafter, Tensor, dict[str, Tensor]]:
    """The golden drafter, the base head's weight (V, d), and the tensors."""
    _, tensors = load("llamagen_eagle_drafter")
    state = weights(tensors)
    head = state.pop("lm_head.weight")
    model = Drafter(DrafterConfig(), T2I)
    load_strictly(model, llamagen_drafter_state(state), "drafter")
    return model.eval().requires_grad_(False), head, tensors
