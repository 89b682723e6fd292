"""From a prompt to what a target's prefix reads: one class for each kind of condition.

Each is called with a prompt and gives (condition, valid): the condition of one picture, first dimension 1, and which of
the P prefix rows are not padding, (1, P) or, where guidance leaves from a shorter prompt, (2, P); None if all are.
SettingsError for a prompt that the model cannot read.
"""

from __future__ import annotations

import warnings
from functools import lru_cache
from pathlib import Path

import torch
from tokenizers import Tokenizer as WordTokenizer
from torch import Tensor

from .checkpoints import ModelError
from .prefix import PAD_ID
from .settings import SettingsError
from .transformer import TransformerConfig
from .tree import shortened

CLASSES = Path(__file__).resolve().parent.parent / "assets" / "imagenet.txt"
BEGIN_ID = 0  # of Chameleon's vocabulary


class WordPrompt:
    """The bundled model's: word ids (1, P), left-padded with 0, which the model reads; words past P are not read."""

    def __init__(self, words: WordTokenizer, prefix: int):
        self.words, self.prefix = words, prefix

    def __call__(self, prompt: str) -> tuple[Tensor, None]:
        ids = self.words.encode(prompt).ids[: self.prefix]
        return torch.tensor([[0] * (self.prefix - len(ids)) + ids]), None


class ClassPrompt:
    """An ImageNet class by name, part of a name that no other class has, or number (1,)."""

    example = "golden retriever"

    def __init__(self, count: int = 1000):
        self.count = count

    def __call__(self, prompt: str) -> tuple[Tensor, None]:
        return torch.tensor([class_number(prompt, self.count)]), None


@lru_cache
def class_names() -> tuple[str, ...]:
    """The 1,000 ImageNet classes in order."""
    return tuple(CLASSES.read_text().splitlines())


def class_number(prompt: str, count: int = 1000) -> int:
    """0 … count−1 from a class's number or name; SettingsError if there is no such class or more than one."""
    words = prompt.strip().casefold()
    if words.isascii() and words.isdigit():
        if len(words) < 9 and int(words) < count:
            return int(words)
        raise SettingsError("prompt", f"This model has the classes 0 to {count - 1}, not {shortened(words)}: enter "
                                      "such a number or a class's name.")
    names = [name.casefold() for name in class_names()[:count]]
    found = [i for i, name in enumerate(names) if name == words] or [i for i, name in enumerate(names) if words in name]
    if len(found) == 1:
        return found[0]
    if found:
        some = ", ".join(class_names()[i] for i in found[:5])
        raise SettingsError("prompt", f"{len(found)} ImageNet classes fit {shortened(prompt)}, such as {some}: enter "
                                      "one name in full.")
    raise SettingsError("prompt", f"This model paints ImageNet classes, and {shortened(prompt)} is none of them: "
                                  f"enter a name such as golden retriever, or a number from 0 to {count - 1}.")


class TokenPrompt:
    """Ids (1, P) of Chameleon's vocabulary: begin, the text in a template, then the ids that open a picture.

    Guidance leaves from the `null_prompt`, so the second row of `valid` is its.
    """

    def __init__(self, words: WordTokenizer, config: TransformerConfig, template: str, suffix: tuple[int, ...]):
        self.words, self.config, self.template, self.suffix = words, config, template, suffix

    def __call__(self, prompt: str) -> tuple[Tensor, Tensor]:
        text = self.words.encode(self.template.format(prompt), add_special_tokens=False).ids
        ids = [BEGIN_ID, *text, *self.suffix]
        prefix, null = self.config.prefix, len(self.config.null_prompt)
        if len(ids) > prefix:
            raise SettingsError("prompt", f"The prompt has {len(text)} tokens and at most "
                                          f"{prefix - len(ids) + len(text)} are read: shorten it.")
        if max(ids) >= self.config.condition:
            raise SettingsError("prompt", f"The tokenizer gave the token {max(ids)}, which the model does not have: "
                                          "fetch its tokenizer.json again.")
        places = torch.arange(prefix)
        valid = torch.stack([places >= prefix - len(ids), places >= prefix - null])
        return torch.tensor([[PAD_ID] * (prefix - len(ids)) + ids]), valid


class CaptionPrompt:
    """T5 features (1, P, C) of a cleaned caption: valid rows rolled to the right end, zeros before (LlamaGen).

    The encoder keeps its own device, so that it may stay in main memory.
    """

    def __init__(self, encoder, tokenizer, prefix: int):
        self.encoder, self.tokenizer, self.prefix = encoder, tokenizer, prefix

    @torch.inference_mode()
    def __call__(self, prompt: str) -> tuple[Tensor, Tensor]:
        read = self.tokenizer(clean_caption(prompt), max_length=self.prefix, padding="max_length", truncation=True,
                              return_attention_mask=True, add_special_tokens=True, return_tensors="pt")
        ids, mask = (read[name].to(self.encoder.device) for name in ("input_ids", "attention_mask"))
        rows = self.encoder(input_ids=ids, attention_mask=mask).last_hidden_state
        count = int(mask.sum())
        features = torch.zeros_like(rows)
        features[:, self.prefix - count:] = rows[:, :count]
        return features, mask.bool().flip(-1)

    @classmethod
    def load(cls, folder: Path, config: TransformerConfig, dtype: torch.dtype, device: torch.device,
             remedy: str) -> CaptionPrompt:
        """T5's encoder alone from a folder that may hold the whole T5; ModelError, one sentence, if it does not fit."""
        from transformers import AutoTokenizer, T5EncoderModel

        try:
            encoder, report = T5EncoderModel.from_pretrained(folder, dtype=dtype, output_loading_info=True)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:  # a missing file, a cut one, another model's: transformers raises many kinds
            raise ModelError(f"The text encoder in {folder} cannot be read ({type(error).__name__}): {remedy}."
                             ) from error
        if bad := sorted(map(str, report["missing_keys"])) or sorted(map(str, report["mismatched_keys"])):
            raise ModelError(f"The text encoder's tensor {bad[0]} is missing or of another shape: {remedy}.")
        if encoder.config.d_model != config.condition:
            raise ModelError(f"The text encoder gives {encoder.config.d_model} numbers a token where the target reads "
                             f"{config.condition}: {remedy}.")
        return cls(encoder.to(device).eval().requires_grad_(False), tokenizer, config.prefix)


def clean_caption(caption: str) -> str:
    """As LlamaGen's captions were cleaned for training: DeepFloyd's rules, twice, in diffusers' wording of them.

    They need ftfy and beautifulsoup4; without these the caption is only lower-cased, and a warning says so.
    """
    from diffusers.pipelines.pixart_alpha.pipeline_pixart_alpha import PixArtAlphaPipeline as Cleaner
    from diffusers.utils import is_bs4_available, is_ftfy_available

    if not (is_bs4_available() and is_ftfy_available()):
        warnings.warn("LlamaGen's captions are cleaned with ftfy and beautifulsoup4, which are not installed, so this "
                      "one is only lower-cased: `pip install ftfy beautifulsoup4`.", stacklevel=2)
        return caption.strip().lower()
    return Cleaner._clean_caption(Cleaner, Cleaner._clean_caption(Cleaner, caption))
