"""A tiny random model with every part of the bundled one, for tests that need no trained weights."""

from __future__ import annotations

import torch
from tokenizers import Tokenizer as WordTokenizer
from tokenizers import models, normalizers, pre_tokenizers

from lanternpp.drafter import Drafter, DrafterConfig
from lanternpp.hub import Bundle
from lanternpp.transformer import Transformer, TransformerConfig
from lanternpp.vq import Tokenizer, VQConfig

SHAPE = TransformerConfig(codes=64, width=32, layers=2, heads=2, hidden=48, grid=4, prefix=5, prefix_kind="words",
                          condition=40, prefix_rotation="identity", pooled=True)
VQ = VQConfig(64, 4, 32, (32, 32), layers_per_block=1, norm_num_groups=8, mid_block_add_attention=False,
              lowest_attention=False, shuffle=4)


def target(seed: int = 0, shape: TransformerConfig = SHAPE, spread: float = 3.0) -> Transformer:
    torch.manual_seed(seed)
    model = Transformer(shape)
    model.head.weight.data *= spread  # distributions that are neither flat nor certain
    return model.eval().requires_grad_(False)


def drafter(model: Transformer, seed: int = 1) -> Drafter:
    """A drafter that passes the target's own hidden state on, so that it is often, not always, right."""
    torch.manual_seed(seed)
    small = Drafter(DrafterConfig(attention_norm=True), model.config)
    small.token_embedding.weight.data.copy_(model.token_embedding.weight)
    return small.eval().requires_grad_(False)


def bundle(seed: int = 0) -> Bundle:
    words = {"[pad]": 0, "[unk]": 1} | {w: i + 2 for i, w in enumerate("red blue apple fox 3d flat a on".split())}
    tokenizer = WordTokenizer(models.WordLevel(words, unk_token="[unk]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    model = target(seed)
    torch.manual_seed(seed + 2)
    pixels = Tokenizer(VQ).eval().requires_grad_(False)
    return Bundle("Toy", model, drafter(model), pixels, tokenizer, {"cfg_scale": 2.0, "top_k": 40})
