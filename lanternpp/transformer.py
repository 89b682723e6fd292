"""The decoder network of every model here, with its key-value cache.

RMSNorm, SwiGLU, rotary positions over a 2-D grid, and a prefix of caption or class rows (LlamaGen, arXiv 2406.06525);
with flags, Chameleon's (arXiv 2405.09818): rotary positions along a line, a norm of queries and keys, text as prefix.
Shapes: B rows of the batch (CFG rows included), T queries, M cache slots, H heads, d width, V codes, P prefix rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .prefix import PREFIXES


@dataclass(frozen=True)
class TransformerConfig:
    """Shape of a network. `condition` is the size of the prefix's table: words, classes, tokens, or the feature width.

    For Chameleon: `null_prompt` are the ids of the prompt that guidance leaves from; `row_end` is the id of a token
    that ends each row of the picture (Lumina-mGPT), which is then the last of the codes.
    pooled (words only, no published model has it): the summed caption is also added to every token's embedding, which
    lets a small model follow its caption after hours of training instead of days.
    """

    codes: int
    width: int
    layers: int
    heads: int
    hidden: int
    grid: int
    prefix: int
    prefix_kind: Literal["words", "features", "class", "tokens"]
    condition: int
    prefix_rotation: Literal["identity", "zero"] = "zero"
    pooled: bool = False
    norm_eps: float = 1e-5
    rope_base: float = 10000.0
    rotary: Literal["grid", "line"] = "grid"
    qk_norm: bool = False
    null_prompt: tuple[int, ...] = ()
    row_end: int | None = None

    def __post_init__(self):
        object.__setattr__(self, "null_prompt", tuple(self.null_prompt))  # a list where it was JSON

    @property
    def image_tokens(self) -> int:
        """L: tokens of a picture, row ends included."""
        return self.grid * (self.grid + (self.row_end is not None))

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


class Rotary(nn.Module):
    """Unit complex numbers (positions, head_dim/2), indexed by sequence position; float32 whatever the model's dtype.

    Pair m of a head turns by row·θ_m for the first half of the pairs and by column·θ for the second,
    θ_k = base^(−4k/head_dim). Prefix rows are zero in LlamaGen's published weights (their queries and keys vanish) and
    the identity in the bundled model, whose caption words must stay distinguishable. Rows past the picture are zero.
    On a line (Chameleon) pair m turns by position·base^(−2m/head_dim), prefix included; scores depend on distances
    alone, so rows of a batch that are padded to another length need no positions of their own.
    """

    def __init__(self, config: TransformerConfig, tail: int = 160):
        super().__init__()
        self.config, self.tail = config, tail
        self.register_buffer("table", self._build(torch.get_default_device()), persistent=False)

    def _build(self, device: torch.device) -> Tensor:
        with torch.device("cpu"):  # the same numbers everywhere, and real ones where modules are built on meta
            return self._turns().to(device)

    def _turns(self) -> Tensor:
        c = self.config
        if c.rotary == "line":
            place = torch.arange(c.prefix + c.image_tokens + self.tail, dtype=torch.float32)
            pair = torch.arange(0, c.head_dim, 2, dtype=torch.float32) / c.head_dim
            angle = place[:, None] * c.rope_base ** -pair
            return torch.polar(torch.ones_like(angle), angle)
        quarter = c.head_dim // 4
        theta = c.rope_base ** (-4 * torch.arange(quarter, dtype=torch.float32) / c.head_dim)
        cell = torch.arange(c.image_tokens)
        row, column = cell // c.grid, cell % c.grid
        angle = torch.cat([row[:, None] * theta, column[:, None] * theta], dim=1)
        picture = torch.polar(torch.ones_like(angle), angle)
        prefix = torch.full((c.prefix, 2 * quarter), 1.0 if c.prefix_rotation == "identity" else 0.0).to(picture.dtype)
        return torch.cat([prefix, picture, torch.zeros(self.tail, 2 * quarter).to(picture.dtype)])

    def rebuild(self, device: torch.device) -> None:
        """Make the table again, where the module was built on the meta device."""
        self.table = self._build(device)

    def _apply(self, fn, recurse=True):
        # A cast of the model must not reach the table (it would drop the imaginary part): only the device follows.
        device = fn(torch.empty(0, device=self.table.device)).device
        if device != self.table.device:
            self.table = self.table.to(device) if self.table.device.type != "meta" else self._build(device)
        return self

    def forward(self, positions: Tensor) -> Tensor:
        """Positions (T,) or (B, T) -> turns (T, 1, head_dim/2) or (B, T, 1, head_dim/2)."""
        return self.table[positions].unsqueeze(-2)


def rotate(x: Tensor, turns: Tensor) -> Tensor:
    """Turn the interleaved pairs of x (B, T, heads, head_dim) in float32; returns x's dtype."""
    pairs = x.float().unflatten(-1, (-1, 2))
    if torch.compiler.is_compiling():  # Inductor fuses real numbers alone
        (a, b), (cos, sin) = pairs.unbind(-1), torch.view_as_real(turns).unbind(-1)
        return torch.stack([a * cos - b * sin, a * sin + b * cos], dim=-1).flatten(-2).to(x.dtype)
    pairs = torch.view_as_complex(pairs)
    return torch.view_as_real(pairs * turns).flatten(-2).to(x.dtype)


class KVCache(nn.Module):
    """Preallocated keys and values (layers, B, M, H, head_dim), written and compacted in place.

    A slot's heads lie side by side, so that a write is one copy of whole rows and a picture's filled slots are a
    leading slice: attention pays for `reach` slots, not for all.
    """

    def __init__(self, layers: int, rows: int, heads: int, slots: int, head_dim: int, device=None, dtype=None):
        super().__init__()
        shape = (layers, rows, slots, heads, head_dim)
        self.register_buffer("keys", torch.zeros(shape, device=device, dtype=dtype), persistent=False)
        self.register_buffer("values", torch.zeros(shape, device=device, dtype=dtype), persistent=False)
        self.register_buffer("first", (torch.arange(rows, device=device) * slots).unsqueeze(1), persistent=False)

    @property
    def slots(self) -> int:
        return self.keys.shape[2]

    def flat(self, slots: Tensor) -> Tensor:
        """Slots (T,), the same for all rows, or (B, T) -> their numbers in a layer counted over all rows, (B·T,)."""
        return (self.first + slots).flatten()

    def write(self, layer: int, keys: Tensor, values: Tensor, at: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        """Write keys and values (B, T, H, head_dim) at flat numbers `at` (B·T,); returns the layer's first `reach`
        slots, (B, H, reach, head_dim) each."""
        found = []
        for store, new in ((self.keys[layer], keys), (self.values[layer], values)):
            store.flatten(0, 1).index_copy_(0, at, new.flatten(0, 1))
            found.append(store[:, :reach].transpose(1, 2))
        return found[0], found[1]

    def move(self, source: Tensor, target: Tensor) -> None:
        """Copy slots `source` to slots `target`, (T,) or (B, T), in every layer; the two may overlap."""
        source, target = self.flat(source), self.flat(target)
        for store in (self.keys.flatten(1, 2), self.values.flatten(1, 2)):
            store.index_copy_(1, target, store.index_select(1, source))


class HeadNorm(nn.Module):
    """Layer norm of each head's numbers (…, heads, head_dim), with a gain and a shift for every one of them."""

    def __init__(self, heads: int, head_dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads, head_dim))
        self.bias = nn.Parameter(torch.zeros(heads, head_dim))

    def forward(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, x.shape[-1:]) * self.weight + self.bias


class Block(nn.Module):
    """Pre-norm attention and SwiGLU. The published LlamaGen drafter has no norm before its attention."""

    def __init__(self, width: int, heads: int, hidden: int, norm_eps: float, attention_norm: bool = True,
                 qk_norm: bool = False):
        super().__init__()
        self.heads = heads
        self.attention_norm = nn.RMSNorm(width, eps=norm_eps) if attention_norm else nn.Identity()
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.qk_norm = HeadNorm(2 * heads, width // heads) if qk_norm else nn.Identity()
        self.out = nn.Linear(width, width, bias=False)
        self.mlp_norm = nn.RMSNorm(width, eps=norm_eps)
        self.gate_up = nn.Linear(width, 2 * hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, turns: Tensor, mask: Tensor | None = None, cache: KVCache | None = None,
                layer: int = 0, at: Tensor | None = None, reach: int = 0) -> Tensor:
        batch, count, width = x.shape
        qkv = self.qkv(self.attention_norm(x)).view(batch, count, 3 * self.heads, width // self.heads)
        qk, v = qkv.split([2 * self.heads, self.heads], dim=2)
        q, k = rotate(self.qk_norm(qk), turns).chunk(2, dim=2)
        if cache is None:
            k, v = k.transpose(1, 2), v.transpose(1, 2)
        else:
            k, v = cache.write(layer, k, v, at, reach)
        mixed = F.scaled_dot_product_attention(q.transpose(1, 2), k, v, attn_mask=mask, is_causal=mask is None)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, count, width))
        gate, up = self.gate_up(self.mlp_norm(x)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def run_blocks(blocks: nn.ModuleList, x: Tensor, turns: Tensor, cache: KVCache | None, slots: Tensor | None,
               mask: Tensor | None) -> Tensor:
    """x (B, T, d) through all blocks; cache, slots and mask as in Transformer.forward."""
    if cache is None:
        for block in blocks:
            x = block(x, turns, mask)
        return x
    at, reach = cache.flat(slots), mask.shape[-1]
    for layer, block in enumerate(blocks):
        x = block(x, turns, mask, cache, layer, at, reach)
    return x


class Transformer(nn.Module):
    """The target network: prefix rows, then image tokens. Hidden states are those after the final norm."""

    def __init__(self, config: TransformerConfig):
        super().__init__()
        self.config = config
        self.prefix = PREFIXES[config.prefix_kind](config)
        self.token_embedding = nn.Embedding(config.codes, config.width)
        self.rotary = Rotary(config)
        self.blocks = nn.ModuleList(
            Block(config.width, config.heads, config.hidden, config.norm_eps, qk_norm=config.qk_norm)
            for _ in range(config.layers))
        self.norm = nn.RMSNorm(config.width, eps=config.norm_eps)
        self.head = nn.Linear(config.width, config.codes, bias=False)

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    def new_cache(self, rows: int, slots: int) -> KVCache:
        c = self.config
        return KVCache(c.layers, rows, c.heads, slots, c.head_dim, self.device, self.dtype)

    def prefix_rows(self, condition: Tensor, guided: bool) -> Tensor:
        """Prefix rows (B, P, d); with CFG the batch is [conditional; unconditional] and B doubles."""
        rows = self.prefix(condition)
        return torch.cat([rows, self.prefix.unconditional(rows.shape[0]).to(rows)]) if guided else rows

    def prefix_codes(self, condition: Tensor, guided: bool) -> Tensor:
        """What the drafter reads over the prefix in place of picture codes, (1 or B, P).

        Ids of a prompt stand behind the codes in its table; a prefix that is not made of tokens counts as code 0.
        """
        if self.config.prefix_kind != "tokens":
            return torch.zeros(1, self.config.prefix, dtype=torch.int64, device=self.device)
        ids = torch.cat([condition, self.prefix.null_ids(len(condition))]) if guided else condition
        return self.config.codes + ids

    def caption_shift(self, rows: Tensor) -> Tensor | None:
        """What is added to every picture token's embedding, (B, 1, d); None where the model has no such thing."""
        return self.prefix.pooled(rows) if self.config.pooled else None

    def embed(self, tokens: Tensor, shift: Tensor | None) -> Tensor:
        """Codes (B, T) and caption_shift's result (B, 1, d) -> (B, T, d)."""
        x = self.token_embedding(tokens)
        return x if shift is None else x + shift

    def forward(self, x: Tensor, positions: Tensor, cache: KVCache | None = None, slots: Tensor | None = None,
                mask: Tensor | None = None) -> Tensor:
        """Embedded rows x (B, T, d) at sequence positions (T,) or (B, T) -> hidden (B, T, d) after the final norm.

        Without a cache attention is causal over x itself, unless mask (broadcastable to (B, 1, T, T)) is given. With a
        cache the rows are written at slots (T,) or (B, T), and mask (…, T, M′) says what each query may see of the
        first M′ slots. A mask is bool, True = attend, or what is added to the scores.
        """
        return self.norm(run_blocks(self.blocks, x, self.rotary(positions), cache, slots, mask))


def prefix_mask(valid: Tensor, padded_rows: Literal["self", "causal"] = "self") -> Tensor:
    """Prefill mask (B, 1, P, P) for a left-padded prefix with valid rows `valid` (B, P), True = attend.

    Valid queries see valid keys before them. A padded query's own output is used by nothing but a published drafter,
    which was trained on features where padded queries saw all padded keys before them ("causal"); LlamaGen's own code
    lets them see themselves alone ("self").
    """
    count = valid.shape[1]
    past = torch.ones(count, count, dtype=torch.bool, device=valid.device).tril()
    mask = past & valid[:, None, :]
    if padded_rows == "causal":
        mask = torch.where(valid[:, :, None], mask, past)
    return (mask | torch.eye(count, dtype=torch.bool, device=valid.device)).unsqueeze(1)
