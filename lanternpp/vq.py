"""Image codes to pixels and back, on `diffusers.VQModel`, with the codebook that the relaxation measures.

Shapes: B pictures, H×W pixels, h×w codes, L = h·w codes in row-major order, V codes in the book, C numbers a code.
Pictures are float tensors (B, 3, H, W) in [-1, 1]. The architecture is LlamaGen's (arXiv 2406.06525); the bundled
model works on 4×4 blocks of pixels, which makes it several times cheaper than convolutions at full resolution.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from diffusers import VQModel
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from .checkpoints import Weights, fill, same_names


@dataclass(frozen=True)
class VQConfig:
    """Shape of a tokenizer; the grid is not part of it, any size that is a multiple of `pixels_per_code` works.

    `lowest_attention`: attention after each residual block at the lowest resolution (LlamaGen). `shuffle`: side of the
    pixel blocks that are folded into channels (1: none). `normalize`: codes and latents are compared and decoded as
    unit vectors.
    """

    codes: int
    code_dim: int
    latent_channels: int
    block_out_channels: tuple[int, ...]
    layers_per_block: int = 2
    norm_num_groups: int = 32
    mid_block_add_attention: bool = True
    lowest_attention: bool = True
    shuffle: int = 1
    normalize: bool = True

    def __post_init__(self):
        object.__setattr__(self, "block_out_channels", tuple(self.block_out_channels))  # a list where it was JSON

    @property
    def channels(self) -> int:
        return 3 * self.shuffle**2

    @property
    def pixels_per_code(self) -> int:
        """Side in pixels of the square that one code stands for."""
        return self.shuffle * 2 ** (len(self.block_out_channels) - 1)


LLAMAGEN_VQ16 = VQConfig(16384, 8, 256, (128, 128, 256, 256, 512))
LLAMAGEN_VQ8 = VQConfig(16384, 8, 256, (128, 256, 256, 512))
CHAMELEON_VQ = VQConfig(8192, 256, 256, (128, 128, 256, 256, 512), lowest_attention=False, normalize=False)
BUNDLED = VQConfig(4096, 8, 192, (128, 192), layers_per_block=1, norm_num_groups=16, mid_block_add_attention=False,
                   lowest_attention=False, shuffle=4)

CODEBOOK = "quantize.embedding.weight"


class Tokenizer(nn.Module):
    """Encoder, codebook and decoder. `vq` is a plain `diffusers.VQModel`, and weight files hold its keys."""

    def __init__(self, config: VQConfig):
        super().__init__()
        self.config = config
        plain = len(config.block_out_channels) - 1
        attention = "Attn" if config.lowest_attention else ""
        self.vq = VQModel(
            in_channels=config.channels, out_channels=config.channels,
            down_block_types=("DownEncoderBlock2D",) * plain + (f"{attention}DownEncoderBlock2D",),
            up_block_types=(f"{attention}UpDecoderBlock2D",) + ("UpDecoderBlock2D",) * plain,
            block_out_channels=config.block_out_channels, layers_per_block=config.layers_per_block,
            latent_channels=config.latent_channels, num_vq_embeddings=config.codes, vq_embed_dim=config.code_dim,
            norm_num_groups=config.norm_num_groups, mid_block_add_attention=config.mid_block_add_attention)

    @classmethod
    def load(cls, path: str | Path, config: VQConfig | None = None) -> Tokenizer:
        """Read a safetensors file of VQModel keys, in any float type, as float32 in evaluation mode.

        The configuration is the one that `save` put in the file's header, unless given. Raises ValueError where there
        is none, and ModelError where a tensor is missing, unknown or of another shape.
        """
        with safe_open(path, "pt") as file:
            header = (file.metadata() or {}).get("config")
            state = {key: file.get_tensor(key) for key in file.keys()}
        if config is None and header is None:
            raise ValueError(f"{path} does not carry a tokenizer configuration, so one must be given.")
        return cls(config or VQConfig(**json.loads(header))).load_weights(state)

    def load_weights(self, state: Mapping[str, Tensor]) -> Tokenizer:
        """Copy in a state of VQModel keys, strictly, as float32 in evaluation mode; ModelError as `load`."""
        fill(self.vq, same_names(self.vq), Weights.of(state, "tokenizer"), torch.float32)
        return self.eval()

    def save(self, path: str | Path, dtype: torch.dtype = torch.float16) -> None:
        """Write weights and configuration; the codebook in float32 always, so that no code's neighbours change."""
        state = {key: value.to("cpu", torch.float32 if key == CODEBOOK else dtype).contiguous()
                 for key, value in self.vq.state_dict().items()}
        save_file(state, path, metadata={"config": json.dumps(asdict(self.config))})

    @property
    def codebook(self) -> Tensor:
        """The rows (V, C) that the decoder reads, float32; unit vectors where the tokenizer normalises."""
        rows = self.vq.quantize.embedding.weight.float()
        return F.normalize(rows, dim=-1) if self.config.normalize else rows

    def latents(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) in [-1, 1] -> latents (B, C, h, w), float32, neither normalised nor quantised.

        Raises ValueError where H or W is not a multiple of `config.pixels_per_code`.
        """
        side = self.config.pixels_per_code
        if images.ndim != 4 or images.shape[1] != 3 or images.shape[2] % side or images.shape[3] % side:
            raise ValueError(f"Pictures must be (B, 3, H, W) with sides that are multiples of {side}, "
                             f"not {tuple(images.shape)}.")
        blocks = F.pixel_unshuffle(images.to(self.vq.dtype), self.config.shuffle)
        return self.vq.encode(blocks).latents.float()

    def nearest(self, latents: Tensor) -> Tensor:
        """Latents (B, C, h, w) -> the nearest codes (B, L), int64: by angle where the tokenizer normalises."""
        rows = self.codebook
        flat = latents.flatten(2).transpose(1, 2)
        if self.config.normalize:
            flat = F.normalize(flat, dim=-1)
        return (flat @ rows.T - rows.square().sum(1) / 2).argmax(-1)  # |z − c|² without the part that all codes share

    @torch.no_grad()
    def encode(self, images: Tensor) -> Tensor:
        """Pictures (B, 3, H, W) in [-1, 1] -> codes (B, L), int64; ValueError as in `latents`."""
        return self.nearest(self.latents(images))

    def lookup(self, indices: Tensor, grid: tuple[int, int]) -> Tensor:
        """Codes (B, L) of a picture of grid = (h, w) codes -> their rows of the codebook, (B, C, h, w), float32."""
        return F.embedding(indices, self.codebook).unflatten(1, grid).permute(0, 3, 1, 2)

    def decode_latents(self, latents: Tensor) -> Tensor:
        """Latents (B, C, h, w), already quantised -> pictures (B, 3, H, W), float32, about [-1, 1], not clamped."""
        blocks = self.vq.decode(latents.to(self.vq.dtype), force_not_quantize=True).sample
        return F.pixel_shuffle(blocks, self.config.shuffle).float()

    def decode(self, indices: Tensor, grid: tuple[int, int]) -> Tensor:
        """Codes (B, L), int64, of a picture of grid = (h, w) codes -> pictures (B, 3, H, W) as `decode_latents` gives.

        Raises ValueError where L is not h·w or a code is not in 0 … V−1.
        """
        if indices.ndim != 2 or indices.shape[1] != grid[0] * grid[1]:
            raise ValueError(f"A {grid[0]}×{grid[1]} grid needs codes of shape (B, {grid[0] * grid[1]}), "
                             f"not {tuple(indices.shape)}.")
        if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < self.config.codes:
            raise ValueError(f"Codes must be from 0 to {self.config.codes - 1}, "
                             f"not {int(indices.min())} to {int(indices.max())}.")
        return self.decode_latents(self.lookup(indices, grid))


def to_pil(images: Tensor) -> list[Image.Image]:
    """Pictures (B, 3, H, W), clamped to [-1, 1] -> 8-bit RGB, rounded to the nearest level."""
    levels = (images.detach().float().clamp(-1, 1) + 1).mul(127.5).round().byte()
    return [Image.fromarray(picture.numpy()) for picture in levels.permute(0, 2, 3, 1).contiguous().cpu()]


@torch.inference_mode()
def atlas(tokenizer: Tokenizer, patch: int = 8, field: int = 3, batch: int = 128) -> Image.Image:
    """Every code drawn alone: the middle patch×patch pixels of a field×field picture of that code.

    Codes run row by row, ⌈√V⌉ a row (64 for 4,096), so code i is at pixel column patch·(i % row) and pixel row
    patch·(i // row). Beside the picture it makes, this takes the memory of decoding `batch` fields.
    """
    device, count = tokenizer.vq.device, tokenizer.config.codes
    row = math.isqrt(count - 1) + 1
    edge = (field * tokenizer.config.pixels_per_code - patch) // 2
    sheet = Image.new("RGB", (row * patch, -(-count // row) * patch))
    for codes in torch.arange(count, device=device).split(batch):
        fields = tokenizer.decode(codes[:, None].expand(-1, field * field), (field, field))
        for code, tile in zip(codes.tolist(), to_pil(fields[..., edge:edge + patch, edge:edge + patch]), strict=True):
            sheet.paste(tile, (code % row * patch, code // row * patch))
    return sheet
