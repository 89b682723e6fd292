"""A small image–text dual encoder that tells how well a picture shows its prompt, and gives features for distances.

Two encoders meet in one space and are trained to pick the right partner (CLIP, arXiv 2103.00020), on the pictures that
the bundled model learnt from and for its vocabulary alone: it says nothing about other pictures or words.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer as WordTokenizer
from torch import Tensor, nn

from . import hub
from .quality import retrieval
from .training import data

FORMAT = "lanternpp-scorer/1"
BUNDLED = hub.BUNDLED.parent / "scorer"
CANDIDATES = 100
NAMES = tuple(sorted(map(data.short_name, data.CORE_LABELS)))


@dataclass(frozen=True)
class ScorerConfig:
    """`widths`: channels at 1/4, 1/8, 1/16 and 1/32 of the picture's side; `words`: word pieces a caption, at most;
    `penultimate`: numbers from which a picture's embedding is made."""

    vocabulary: int = 2048
    words: int = 16
    text_width: int = 128
    widths: tuple[int, ...] = (32, 64, 128, 192)
    penultimate: int = 128
    width: int = 128

    def __post_init__(self):
        object.__setattr__(self, "widths", tuple(self.widths))  # a list where it was JSON

    @property
    def features(self) -> int:
        return self.penultimate + 2 * self.widths[0] + self.widths[1]


class Residual(nn.Module):
    """Two 3×3 convolutions beside a shortcut (arXiv 1512.03385); halves the side where `stride` is 2."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
                                  nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(before, after, 1)) if stride == 2 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.shortcut(x) + self.body(x))


class ImageEncoder(nn.Module):
    """Pictures (B, 3, H, W) in [-1, 1] -> what the network says of them at three depths, (B, F), not yet standardised.

    First the numbers that embeddings are made from, which see what is shown and nearly nothing else; then the means
    and maxima over the picture at 1/4 of its side, which see spots and softness, and the means at 1/8, which see grain.
    """

    def __init__(self, config: ScorerConfig):
        super().__init__()
        widths = config.widths
        self.stem = nn.Sequential(nn.Conv2d(3, widths[0], 7, 4, 3, bias=False), nn.BatchNorm2d(widths[0]), nn.ReLU())
        self.stages = nn.Sequential(Residual(widths[0], widths[0], 1),
                                    *(Residual(a, b, 2) for a, b in zip(widths, widths[1:], strict=False)))
        self.project = nn.Linear(widths[-1], config.penultimate, bias=False)
        self.standardise = nn.BatchNorm1d(config.penultimate, affine=False)

    def forward(self, images: Tensor) -> Tensor:
        quarter = self.stages[0](self.stem(images))
        eighth = self.stages[1](quarter)
        last = self.standardise(self.project(self.stages[2:](eighth).mean((2, 3))))
        return torch.cat([last, quarter.mean((2, 3)), quarter.amax((2, 3)), eighth.mean((2, 3))], dim=1)


class TextEncoder(nn.Module):
    """Word ids (B, P), 0 where there is none -> the mean of one attention layer's outputs over the words (B, d)."""

    def __init__(self, config: ScorerConfig):
        super().__init__()
        self.embedding = nn.Embedding(config.vocabulary, config.text_width)
        self.places = nn.Parameter(0.02 * torch.randn(config.words, config.text_width))
        layer = nn.TransformerEncoderLayer(config.text_width, 4, 2 * config.text_width, dropout=0.0,
                                           batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 1, nn.LayerNorm(config.text_width), enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        shown = ids > 0
        x = self.layers(self.embedding(ids) + self.places, src_key_padding_mask=~shown)
        return (x * shown.unsqueeze(-1)).sum(1) / shown.sum(1, keepdim=True).clamp_min(1)


class Scorer(nn.Module):
    """Both encoders and the heads into the common space, where the cosine of two unit vectors is the similarity."""

    def __init__(self, config: ScorerConfig, words: WordTokenizer):
        super().__init__()
        self.config, self.words = config, words
        self.image, self.text = ImageEncoder(config), TextEncoder(config)
        self.image_head = nn.Linear(config.penultimate, config.width)
        self.text_head = nn.Linear(config.text_width, config.width)
        self.log_scale = nn.Parameter(torch.tensor(2.7))  # of the logits in training, exp(2.7) = 15
        self.register_buffer("centre", torch.zeros(config.features))
        self.register_buffer("spread", torch.ones(config.features))

    @classmethod
    def load(cls, folder: str | Path = BUNDLED) -> Scorer:
        """Read a folder of `save`, in float32 on the CPU, frozen. ModelError names what is missing or damaged."""
        folder = Path(folder)
        try:
            config = json.loads((folder / "config.json").read_text())
            if config.pop("format") != FORMAT:
                raise ValueError("another format")
            model = cls(ScorerConfig(**config), WordTokenizer.from_file(str(folder / "captions.json")))
        except Exception as error:  # no file, no JSON, other keys: json, pathlib and tokenizers raise several kinds
            raise hub.ModelError(f"The scorer in {folder} cannot be read ({type(error).__name__}): restore config.json "
                                 "and captions.json, for example with `git checkout -- assets`.") from error
        kinds = {k: v.dtype for k, v in model.state_dict().items()}  # batch norm counts its batches in whole numbers
        return hub.fill_own(model, folder, "scorer", kinds.__getitem__)

    def save(self, folder: Path) -> None:
        """Write weights in float16, configuration and word pieces."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "config.json").write_text(json.dumps({"format": FORMAT, **asdict(self.config)}, indent=2) + "\n")
        self.words.save(str(folder / "captions.json"), pretty=False)
        state = {k: v.half() if v.is_floating_point() else v for k, v in self.state_dict().items()}
        hub.save_sharded(state, folder, "scorer")

    def word_ids(self, captions: list[str]) -> Tensor:
        """Captions -> word ids (B, P), cut to P and padded with 0."""
        rows = [t.ids[:self.config.words] for t in self.words.encode_batch(captions)]
        return torch.tensor([ids + [0] * (self.config.words - len(ids)) for ids in rows])

    def embed_images(self, seen: Tensor) -> Tensor:
        """What the image encoder gives (B, F) -> unit vectors (B, d)."""
        return F.normalize(self.image_head(F.gelu(seen[:, :self.config.penultimate])), dim=-1)

    def embed_words(self, ids: Tensor) -> Tensor:
        return F.normalize(self.text_head(self.text(ids)), dim=-1)

    @torch.inference_mode()
    def look(self, pictures: Tensor, batch: int = 64) -> tuple[Tensor, Tensor]:
        """Pictures (n, 3, H, W), clamped to [-1, 1] -> features (n, F) and embeddings (n, d), float32, in one pass.

        Features are for distances between sets of pictures: each has unit variance over reconstructions of the
        training pictures. Embeddings are unit vectors. Raises ValueError where the shape is another; H and W are 128
        in training.
        """
        if pictures.ndim != 4 or pictures.shape[1] != 3:
            raise ValueError(f"Pictures must be a tensor (n, 3, H, W), not of shape {tuple(pictures.shape)}.")
        seen = torch.cat([self.image(part.float().clamp(-1, 1)) for part in pictures.split(batch)])
        return (seen - self.centre) / self.spread, self.embed_images(seen)

    def features(self, pictures: Tensor) -> Tensor:
        """Pictures (n, 3, H, W) in [-1, 1] -> features (n, F), as in `look`."""
        return self.look(pictures)[0]

    def image_embeddings(self, pictures: Tensor) -> Tensor:
        """Pictures (n, 3, H, W) in [-1, 1] -> unit vectors (n, d), as in `look`."""
        return self.look(pictures)[1]

    @torch.inference_mode()
    def embed_features(self, features: Tensor) -> Tensor:
        """Features (n, F) of `look` -> the unit vectors (n, d) of the same pictures."""
        return self.embed_images(features * self.spread + self.centre)

    def calibrate(self, pictures: Tensor) -> None:
        """Let features have mean 0 and variance 1 over these pictures (n, 3, H, W), n at least 2."""
        features = self.features(pictures) * self.spread + self.centre
        self.centre.copy_(features.mean(0))
        self.spread.copy_(features.std(0).clamp_min(1e-3))

    @torch.inference_mode()
    def text_embeddings(self, captions: list[str], batch: int = 256) -> Tensor:
        """Captions -> unit vectors (n, d), float32."""
        return torch.cat([self.embed_words(ids) for ids in self.word_ids(captions).split(batch)])

    def alignment(self, embeddings: Tensor, prompts: list[str], seed: int = 0) -> tuple[Tensor, Tensor]:
        """Image embeddings (n, d) and their prompts -> cosine similarity (n,) and rank (n,) of the own prompt.

        The rank is that among `candidates`: 0 is the best of 100. ValueError as there.
        """
        texts = {p: candidates(p, seed) for p in dict.fromkeys(prompts)}
        place = {t: i for i, t in enumerate(dict.fromkeys(t for row in texts.values() for t in row))}
        table = self.text_embeddings(list(place))
        rows = torch.tensor([[place[t] for t in texts[p]] for p in prompts])
        similarity = (embeddings * table[rows[:, 0]]).sum(-1)
        return similarity, retrieval(embeddings, table[rows], torch.zeros(len(prompts), dtype=torch.int64))


def parts(text: str) -> tuple[str | None, str | None, str | None]:
    """What a caption says of (name, style, background): a value of `NAMES`, a key of `STYLES`, one of `BACKGROUNDS`."""
    text = text.lower().replace("-", " ")

    def says(words: str) -> bool:
        return re.search(rf"\b{words}\b", text) is not None

    name = max((n for n in NAMES if n in text and says(n)), key=len, default=None)
    style = next((s for s, words in data.STYLES.items() if any(map(says, words))), None)
    return name, style, next((b for b in data.BACKGROUNDS if says(f"{b} background")), None)


def prompt(name: str, style: str | None, background: str | None) -> str:
    """The plain form of a prompt: "fox, 3d, blue background", without what is None."""
    said = [name, style and data.STYLES[style][0], background and f"{background} background"]
    return ", ".join(s for s in said if s)


def candidates(text: str, seed: int = 0) -> list[str]:
    """The own prompt, first, and 99 others that a picture is to be told from, all in plain form.

    Of the others, up to 23 differ in style or background alone (every such pair), half of the rest in the name alone,
    and the rest in the name and, by chance, in all else. Only what the prompt says is varied: one without a background
    has candidates without. They depend on prompt and seed alone, so that all methods face the same. ValueError where
    the prompt names nothing that the bundled model knows.
    """
    name, style, background = parts(text)
    if name is None:
        raise ValueError(f"The prompt {text[:80]!r} names none of the {len(NAMES)} things that the scorer knows: "
                         "take one of lanternpp.training.data.CORE.")
    rng = np.random.default_rng([seed, zlib.crc32(prompt(name, style, background).encode())])
    styles = list(data.STYLES) if style else [None]
    backgrounds = list(data.BACKGROUNDS) if background else [None]
    looks = [(s, b) for s in styles for b in backgrounds]
    chosen = [(name, style, background), *((name, *look) for look in looks if look != (style, background))]
    others = rng.permutation([n for n in NAMES if n != name])[:CANDIDATES - len(chosen)]
    for number, other in enumerate(others):
        chosen.append((str(other), *(looks[rng.integers(len(looks))] if number % 2 else (style, background))))
    return [prompt(*each) for each in chosen]
