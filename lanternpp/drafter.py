"""The EAGLE drafter (arXiv 2401.15077): one decoder layer that predicts the target's next hidden state.

Its row for a token reads fc[embedding of the token; the hidden state that predicted it] and is turned to the token's
own place in the picture. The target's head, shared, makes logits of what comes out. Rows are kept in a cache slot one
before the target's, for the first prefix row has no predecessor.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .transformer import Block, KVCache, Rotary, TransformerConfig, run_blocks


@dataclass(frozen=True)
class DrafterConfig:
    """Published LlamaGen drafters have no norm before the attention, and an epsilon of their own.

    masks_padding: padded prefix rows are not seen (Chameleon's drafters; LlamaGen's were trained seeing them).
    """

    layers: int = 1
    heads: int | None = None
    hidden: int | None = None
    attention_norm: bool = False
    bias: bool = True
    norm_eps: float = 1e-6
    qk_norm: bool = False
    masks_padding: bool = False


class Drafter(nn.Module):
    """Own token embedding (published ones differ from the target's), one or more blocks, no final norm.

    head: what turns its hidden states into logits; the target's where it is None.
    """

    def __init__(self, config: DrafterConfig, target: TransformerConfig):
        super().__init__()
        self.config, self.target = config, target
        self.heads = config.heads or target.heads
        self.register_module("head", None)
        prompt = target.condition if target.prefix_kind == "tokens" else 0
        self.token_embedding = nn.Embedding(target.codes + prompt, target.width)
        self.fuse = nn.Linear(2 * target.width, target.width, bias=config.bias)
        self.rotary = Rotary(target)
        self.blocks = nn.ModuleList(
            Block(target.width, self.heads, config.hidden or target.hidden, config.norm_eps,
                  config.attention_norm or layer > 0, config.qk_norm) for layer in range(config.layers))

    def new_cache(self, rows: int, slots: int) -> KVCache:
        weight = self.token_embedding.weight
        return KVCache(self.config.layers, rows, self.heads, slots, self.target.width // self.heads,
                       weight.device, weight.dtype)

    def forward(self, tokens: Tensor, hidden: Tensor, positions: Tensor, cache: KVCache | None = None,
                slots: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        """Predicted hidden states (B, T, d).

        tokens (B, T) or, where all rows read the same, (1, T) codes; hidden (B, T, d) the state that predicted each;
        positions (T,) or (B, T) of the tokens in the target's sequence. Cache, slots and mask as in
        Transformer.forward.
        """
        embedded = self.token_embedding(tokens).expand(hidden.shape[0], -1, -1)
        x = self.fuse(torch.cat([embedded.to(hidden.dtype), hidden], dim=-1))
        return run_blocks(self.blocks, x, self.rotary(positions), cache, slots, mask)
