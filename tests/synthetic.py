"""Tiny random checkpoints in the layouts in which each family is published, for tests from folder to picture."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

from lanternpp.models import MODELS
from lanternpp.published import modules, read_spec, recipe

CODES, WIDTH, HEADS, HIDDEN, LAYERS, GRID, FEATURES = 32, 32, 2, 48, 2, 4, 24
VQ = {"codes": CODES, "code_dim": 8, "latent_channels": 16, "block_out_channels": [16, 16], "layers_per_block": 1,
      "norm_num_groups": 8}
WORDS = "red blue apple fox golden retriever generate an image of according to the following prompt".split()
VOCABULARY = 9000  # Chameleon's special ids are below

FAMILIES = {  # name of a test model -> model it is made like, the target's file names
    "t2i": ("llamagen-t2i-256", "sharded"), "t2i official": ("llamagen-t2i-512", "t2i_XL_stage2_512.pt"),
    "c2i": ("llamagen-c2i-B-256", "c2i_B_256.pt"), "anole": ("anole-7b", "sharded"),
    "lumina": ("lumina-mgpt-7b-768", "sharded"),
}


def random_state(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, Tensor]:
    """Weights of a size that keeps a network lively: norms near one, heads that are neither flat nor certain."""
    generator = torch.Generator().manual_seed(seed)

    def value(key: str, shape: tuple[int, ...]) -> Tensor:
        noise = torch.randn(shape, generator=generator)
        if key.endswith("bias") or len(shape) == 1 or "_norm.weight" in key:
            return 0.05 * noise + (0 if key.endswith("bias") else 1)
        if "embed" in key:
            return noise
        fan = noise[0].numel()
        return noise * (4 if key in ("lm_head.weight", "output.weight") else 1) / fan**0.5

    return {key: value(key, shape) for key, shape in shapes.items()}


def write_sharded(folder: Path, state: dict[str, Tensor], dtype: torch.dtype = torch.float32) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    keys, index = list(state), {}
    for number in range(3):
        name = f"model-{number + 1:05d}-of-00003.safetensors"
        part = {key: state[key].to(dtype).contiguous() for key in keys[number::3]}
        save_file(part, folder / name, metadata={"format": "pt"})
        index |= dict.fromkeys(part, name)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))


def write_text_tokenizer(path: Path) -> None:
    words = {"</s>": 0, "<pad>": 1, "<unk>": 2} | {word: 20 + number for number, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizers.Lowercase(), pre_tokenizers.Whitespace()
    path.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path))


def write_t5(folder: Path) -> None:
    """A whole T5, encoder and decoder, sharded, and a tokenizer that ends captions and pads as T5's does."""
    from tokenizers.processors import TemplateProcessing
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    torch.manual_seed(5)
    T5ForConditionalGeneration(T5Config(vocab_size=60, d_model=FEATURES, d_kv=8, d_ff=32, num_layers=2, num_heads=3,
                                        feed_forward_proj="gated-gelu")).save_pretrained(folder)
    write_text_tokenizer(folder / "raw.json")
    words = Tokenizer.from_file(str(folder / "raw.json"))
    (folder / "raw.json").unlink()
    words.post_processor = TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 0)])
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="</s>", pad_token="<pad>", unk_token="<unk>",
                            padding_side="right").save_pretrained(folder)


def write(root: Path, family: str, seed: int = 0) -> Path:
    """A folder that LanternPipeline.from_pretrained reads."""
    name, form = FAMILIES[family]
    tokens = MODELS[name].prompt == "tokens"
    official = form != "sharded"
    sizes = {"width": WIDTH, "heads": HEADS, "layers": LAYERS, "hidden": HIDDEN}
    condition = {"caption": FEATURES, "class": 1000, "tokens": VOCABULARY}[MODELS[name].prompt]
    codes = CODES + (MODELS[name].target.row_end is not None)
    target = sizes | {"codes": codes, "condition": condition}
    # What config.json beside published weights says need not be said again; a .pt file has none.
    said = {"grid": GRID} | (target if official else {"codes": codes} if tokens else {})
    spec = read_spec(MODELS[name], {"target": target | said, "tokenizer": VQ})
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps({"format": "lanternpp/published", "model": name, "target": said,
                                                  "tokenizer": VQ, "defaults": {"cfg_scale": 2.0, "tree": "3,2"}}))
    made = {}
    parts = modules(spec, spec.target, spec.drafter)
    for number, part in enumerate(parts):
        keys = () if official or part != "target" else ("model.embed_tokens.weight",)
        shapes = {p.key: p.shape for pieces in recipe(spec, part, parts, keys)[0].values() for p in pieces}
        made[part] = random_state(shapes, seed + number)
    if official:
        (root / "target").mkdir()
        torch.save({"model": made["target"] | {"freqs_cis": torch.zeros(2)}}, root / "target" / form)
    else:
        config = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
                  "num_key_value_heads": HEADS, "intermediate_size": HIDDEN, "rms_norm_eps": 1e-5,
                  "vocab_size": VOCABULARY if tokens else CODES}
        config |= {"rope_theta": 10000.0, "swin_norm": False} if tokens else {"block_size": GRID**2,
                                                                              "caption_dim": FEATURES}
        more = {f"model.vqmodel.{key}": value for key, value in made["tokenizer"].items()
                if not key.startswith("decoder.")} if tokens else {}
        write_sharded(root / "target", made["target"] | more)
        (root / "target" / "config.json").write_text(json.dumps(config))
        write_text_tokenizer(root / "target" / "tokenizer.json")
    (root / "tokenizer").mkdir()
    if tokens:
        torch.save({"state_dict": made["tokenizer"] | {"loss.weight": torch.zeros(1)}}, root / "tokenizer/vqgan.ckpt")
    else:
        torch.save({"model": made["tokenizer"] | {"quantize.codebook_used": torch.zeros(4)}},
                   root / "tokenizer" / Path(spec.tokenizer.file).name)
    if spec.prompt == "caption":
        write_t5(root / "text")
    if "drafter" in made:
        # It passes the target's own state on, so that it is often, not always, right.
        embedding = 0.3 * made["drafter"]["fc.weight"][:, :WIDTH]
        made["drafter"]["fc.weight"] = torch.cat([embedding, torch.eye(WIDTH)], dim=1)
        (root / "drafter").mkdir()
        torch.save(made["drafter"], root / "drafter/pytorch_model.bin")
        (root / "drafter/config.json").write_text(json.dumps(
            {"num_hidden_layers": 1, "rms_norm_eps": spec.drafter.norm_eps, "hidden_size": WIDTH}
            | ({"input_type": spec.drafter_input} if spec.drafter_input else {})))
    return root
