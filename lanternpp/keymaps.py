"""Names and layouts of published checkpoints: for each tensor here, the published tensors that it is made of.

Each function returns a recipe (see checkpoints.py) for a module of this project, which may stand on the meta device.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence

import torch.nn.functional as F
from torch import Tensor

from .checkpoints import Piece
from .drafter import Drafter
from .transformer import Transformer
from .vq import CODEBOOK, Tokenizer

# Parts of a block: here -> FoundationVision's names, or transformers', in the order in which their rows are stacked
OFFICIAL = {"qkv": ["attention.wqkv"], "out": ["attention.wo"], "gate_up": ["feed_forward.w1", "feed_forward.w3"],
            "down": ["feed_forward.w2"], "attention_norm": ["attention_norm"], "mlp_norm": ["ffn_norm"]}
HUGGING = {"qkv": ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], "out": ["self_attn.o_proj"],
           "gate_up": ["mlp.gate_proj", "mlp.up_proj"], "down": ["mlp.down_proj"],
           "attention_norm": ["input_layernorm"], "mlp_norm": ["post_attention_layernorm"],
           "qk_norm": ["self_attn.q_norm", "self_attn.k_norm"]}
FIRST_IMAGE_ID = 4  # Chameleon's vocabulary holds the codes from here on, in the order of its tokenizer's codebook


def _stack(shape: Sequence[int], keys: Sequence[str], **how) -> list[Piece]:
    """A tensor of this shape is these published tensors, equally many rows of each."""
    return [Piece(key, (shape[0] // len(keys), *shape[1:]), **how) for key in keys]


def _block(key: str, names: dict[str, list[str]], prefix: str = "") -> list[str]:
    """blocks.3.qkv.weight -> the published keys."""
    _, number, part, kind = key.split(".")
    return [f"{prefix}layers.{number}.{name}.{kind}" for name in names[part]]


def interleaved(heads: int) -> Callable[[Tensor], Tensor]:
    """Rows of each head from (first halves, second halves), which transformers turns together, to neighbouring pairs.

    Attention does not see the order of a head's numbers, so queries, keys and their norms, all reordered alike, give
    the same scores; and the rotation here is the same for every model. (heads·D, …) or (heads, D) are kept as shapes.
    """
    def convert(value: Tensor) -> Tensor:
        inner = value.shape[1:] if len(value) > heads else ()
        return value.reshape(heads, 2, -1, *inner).transpose(1, 2).reshape(value.shape)
    return convert


def llamagen(target: Transformer, keys: Collection[str]) -> dict[str, list[Piece]]:
    """LlamaGen's network; whether in FoundationVision's or in transformers' style (jadohu/LANTERN) is seen from keys.

    Query, key and value rows are stacked as they are: both styles keep neighbouring rotary pairs.
    """
    hugging = "model.embed_tokens.weight" in keys
    prefix = "model." if hugging else ""
    outer = {"token_embedding.weight": "model.embed_tokens.weight" if hugging else "tok_embeddings.weight",
             "norm.weight": f"{prefix}norm.weight", "head.weight": "lm_head.weight" if hugging else "output.weight",
             "prefix.null": f"{prefix}cls_embedding.uncond_embedding",
             "prefix.fc1.weight": f"{prefix}cls_embedding.cap_proj.fc1.weight",
             "prefix.fc2.weight": f"{prefix}cls_embedding.cap_proj.fc2.weight",
             "prefix.embedding.weight": f"{prefix}cls_embedding.embedding_table.weight"}
    names = HUGGING if hugging else OFFICIAL
    return {key: _stack(value.shape, [outer[key]] if key in outer else _block(key, names, prefix))
            for key, value in target.state_dict().items()}


def llamagen_ignored(key: str) -> bool:
    """A rotary table that LlamaGen's files may carry; it is computed here."""
    return key == "freqs_cis"


def drafter(module: Drafter) -> dict[str, list[Piece]]:
    """An EAGLE drafter of jadohu/LANTERN, with its own token embedding; no head, which is the target's."""
    outer = {"fuse.weight": "fc.weight", "fuse.bias": "fc.bias", "token_embedding.weight": "embed_tokens.weight"}
    return {key: _stack(value.shape, [outer[key]] if key in outer else _block(key, HUGGING))
            for key, value in module.state_dict().items()}


def _line(recipe: dict[str, list[Piece]], heads: int) -> dict[str, list[Piece]]:
    """With queries, keys and their norms interleaved."""
    def turned(piece: Piece) -> Piece:
        turns = re.search(r"self_attn\.[qk]_(proj|norm)", piece.key)
        return Piece(piece.key, piece.shape, piece.rows, interleaved(heads)) if turns else piece
    return {key: [turned(piece) for piece in pieces] for key, pieces in recipe.items()}


def code_ids(target: Transformer) -> list[int]:
    """Ids in Chameleon's vocabulary of the codes of a target: the picture's, then its row end's where it has one."""
    config = target.config
    ends = [] if config.row_end is None else [config.row_end]
    return [*range(FIRST_IMAGE_ID, FIRST_IMAGE_ID + config.codes - len(ends)), *ends]


def chameleon(target: Transformer) -> dict[str, list[Piece]]:
    """Chameleon's language model in transformers' style (Anole, Lumina-mGPT).

    Only the rows of picture codes are kept of the head, so no other token can be drawn; the whole vocabulary is kept
    as embedding of the prompt.
    """
    config, ids = target.config, code_ids(target)
    vocabulary = (config.condition, config.width)
    outer = {"token_embedding.weight": [Piece("model.embed_tokens.weight", vocabulary, ids)],
             "prefix.embedding.weight": [Piece("model.embed_tokens.weight", vocabulary)],
             "head.weight": [Piece("lm_head.weight", vocabulary, ids)],
             "norm.weight": [Piece("model.norm.weight", (config.width,))]}
    return _line({key: outer[key] if key in outer else _stack(value.shape, _block(key, HUGGING, "model."))
                  for key, value in target.state_dict().items()}, config.heads)


def chameleon_drafter(module: Drafter, target: Transformer) -> dict[str, list[Piece]]:
    """An EAGLE drafter of Chameleon's: its table holds the codes, then the whole vocabulary for the prompt."""
    count = target.config.condition
    rows = [*code_ids(target), *range(count)]
    recipe = drafter(module)
    recipe["token_embedding.weight"] = [Piece("embed_tokens.weight", (count, target.config.width), rows)]
    return _line(recipe, module.heads)


def llamagen_vq(tokenizer: Tokenizer) -> dict[str, list[Piece]]:
    """LlamaGen's tokenizer (vq_ds16_c2i.pt and its kin). Where it normalises, the codebook is stored as unit rows:
    stock diffusers then decodes the same and its plain nearest row is the nearest by angle."""
    parts = {"mid_block.resnets.0": "mid.0", "mid_block.attentions.0": "mid.1", "mid_block.resnets.1": "mid.2",
             "down_blocks": "conv_blocks", "up_blocks": "conv_blocks", "resnets": "res", "attentions": "attn",
             "downsamplers.0": "downsample", "upsamplers.0": "upsample"}
    return _vq(tokenizer, lambda key: _replaced(key, parts))


def chameleon_vq(tokenizer: Tokenizer) -> dict[str, list[Piece]]:
    """Chameleon's tokenizer (vqgan.ckpt), in the names of taming transformers, which counts the way up from its end."""
    last = len(tokenizer.config.block_out_channels) - 1
    parts = {"mid_block.resnets.0": "mid.block_1", "mid_block.attentions.0": "mid.attn_1",
             "mid_block.resnets.1": "mid.block_2", "down_blocks": "down", "resnets": "block",
             "downsamplers.0": "downsample", "upsamplers.0": "upsample"}
    return _vq(tokenizer, lambda key: _replaced(
        re.sub(r"up_blocks\.(\d+)", lambda found: f"up.{last - int(found[1])}", key), parts))


def _vq(tokenizer: Tokenizer, name: Callable[[str], str]) -> dict[str, list[Piece]]:
    """The recipe of diffusers' VQModel; `name` renames its blocks. Attention is stored as 1×1 convolutions."""
    within = {"conv_norm_out": "norm_out", "conv_shortcut": "nin_shortcut", "group_norm": "norm",
              "to_out.0": "proj_out", ".to_q.": ".q.", ".to_k.": ".k.", ".to_v.": ".v."}
    recipe = {}
    for key, value in tokenizer.vq.state_dict().items():
        linear = ".attentions." in key and value.ndim == 2
        convert = _unit_rows if key == CODEBOOK and tokenizer.config.normalize else None
        shape = (*value.shape, 1, 1) if linear else tuple(value.shape)
        recipe[f"vq.{key}"] = [Piece(_replaced(name(key), within), shape, convert=convert)]
    return recipe


def _unit_rows(rows: Tensor) -> Tensor:
    return F.normalize(rows.float(), dim=-1)


def _replaced(key: str, parts: dict[str, str]) -> str:
    for ours, theirs in parts.items():
        key = key.replace(ours, theirs)
    return key


def vq_ignored(key: str) -> bool:
    """LlamaGen's record of the last codes seen in training; the discriminator and the perceptual loss of vqgan.ckpt."""
    return key == "quantize.codebook_used" or key.startswith("loss.")


def chameleon_ignored(tokenizer_keys: Iterable[str]) -> Callable[[str], bool]:
    """Chameleon's files carry the tokenizer's encoder and codebook as well; here it is read from vqgan.ckpt, whole."""
    known = {f"model.vqmodel.{key}" for key in tokenizer_keys if not key.startswith("decoder.")}
    return known.__contains__
