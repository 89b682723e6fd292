"""`python -m lanternpp train tokenizer | prior | drafter | scorer`: how assets/ was made, each part resumable."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

from .. import hub
from ..drafter import DrafterConfig
from ..pipeline import best_dtype
from ..sampling import Sampling
from ..transformer import Transformer
from ..vq import Tokenizer
from . import data, distill, drafter, loop, prior, scorer, vq


def add_parsers(commands: argparse._SubParsersAction) -> None:
    parts = commands.add_parser("train", help="train a part of the bundled model").add_subparsers(
        required=True, metavar="tokenizer | prior | drafter | scorer")
    for name, module, run, text in (("tokenizer", vq, train_tokenizer, "pictures to codes and back"),
                                    ("prior", prior, train_prior, "captions to codes: the target"),
                                    ("drafter", drafter, train_drafter, "the EAGLE drafter, on the target's samples"),
                                    ("scorer", scorer, train_scorer, "pictures and captions into one space")):
        parser = parts.add_parser(name, help=text)
        module.add_arguments(parser)
        if module is vq:
            parser.add_argument("--model", type=Path, help="with --decoder-only: the model whose decoder is improved")
        parser.set_defaults(call=_call, run=run)


def _call(args: argparse.Namespace) -> int:
    loop.stop_cleanly()
    args.run(args)
    return 0


def train_tokenizer(args: argparse.Namespace) -> None:
    """Train a tokenizer into --out. With --decoder-only and --model the codes keep their meaning, so the improved
    decoder is put into the model's folder; a tokenizer with new codes needs a new target."""
    bundle = hub.load_bundle(args.model, torch.float32) if args.decoder_only and args.model else None
    if bundle and not args.init:
        args.out.mkdir(parents=True, exist_ok=True)
        args.init = args.out / "before.safetensors"
        bundle.tokenizer.save(args.init, torch.float32)
    vq.main(args)
    if bundle:
        bundle.tokenizer = Tokenizer.load(args.out / "tokenizer.safetensors")
        hub.save_bundle(bundle, args.model)


def _encoder(bundle: hub.Bundle) -> prior.Encode:
    """Pictures to codes, in bfloat16 where that is fast."""

    @torch.no_grad()
    def encode(images: torch.Tensor) -> torch.Tensor:
        with loop.autocast(images.device):
            return bundle.tokenizer.encode(images)

    return encode


def train_prior(args: argparse.Namespace) -> None:
    """Train the target and put it into the model's folder; its drafter must then be trained again."""
    bundle = hub.load_bundle(args.model, torch.float32)
    init = None if args.scratch else bundle.target.state_dict()
    bundle.target = prior.train(_encoder(bundle), bundle.words, data.load_pictures(args.data), args.out, args.minutes,
                                args.layers, args.decay, init=init, rate=args.rate, seed=args.seed)
    hub.save_bundle(bundle, args.model)


def train_drafter(args: argparse.Namespace) -> None:
    """Sample the target with CFG, train a drafter on that, and put it into the model's folder.

    With --data, for the bundled model: half of each batch are real pictures, because samples cost ten times as much and
    a few hundred of them are soon learnt by heart. Other targets: see distill.
    """
    if args.data is None:
        distill.run(args)
        return
    bundle = hub.load_bundle(args.model, torch.float32)
    fast = Transformer(bundle.target.config)
    fast.load_state_dict(bundle.target.state_dict())
    hub.cast(fast, best_dtype(torch.device("cpu")))
    sampling = Sampling(cfg_scale=bundle.defaults.get("cfg_scale", 3.0), top_k=bundle.defaults.get("top_k", 1000))
    pictures, rng = data.load_pictures(args.data), np.random.default_rng(args.seed)
    chosen = [pictures.records[i] for i in rng.choice(data.core(pictures), args.samples)]
    prompts = [data.caption(record, str(rng.choice(list(data.BACKGROUNDS))), rng) for record in chosen]
    codes, hidden = drafter.collect(
        fast, lambda texts: prior.caption_ids(bundle.words, texts, bundle.target.config.prefix), prompts, sampling,
        args.out, args.seed)
    shown = pictures.select(data.core(pictures))
    pool = prior.CodePool(shown.select(data.split(shown)[0]), _encoder(bundle), 4, rng)

    def real(count: int) -> tuple[torch.Tensor, torch.Tensor]:
        texts, grids = pool.batch(count, bundle.words)
        pool.renew(rng.integers(0, len(pool.pictures.records), count), int(rng.integers(4)))
        words = prior.caption_ids(bundle.words, texts, bundle.target.config.prefix)
        return grids, drafter.teacher_forced(fast, words, grids)

    held = slice(len(codes) - args.held_out, len(codes))

    def batches(count: int) -> drafter.Shown:
        index = torch.randint(0, len(codes) - args.held_out, (count // 2,))
        more = real(count - len(index))
        return drafter.Shown(torch.cat([codes[index], more[0]]),
                             torch.cat([hidden[:, index], more[1].to(hidden)], dim=1))

    trained = drafter.train(bundle.target, batches, drafter.Shown(codes[held], hidden[:, held]), sampling, args.out,
                            args.minutes, DrafterConfig(attention_norm=True, norm_eps=1e-5), args.batch, seed=args.seed,
                            init=None if args.scratch or not bundle.drafter else bundle.drafter.state_dict())
    bundle.drafter = hub.cast(trained, torch.float32)
    hub.save_bundle(bundle, args.model)


def train_scorer(args: argparse.Namespace) -> None:
    """Train the scorer and write it to --out, beside its checkpoint; it is looked for in assets/scorer."""
    bundle = hub.load_bundle(args.model, torch.float32)
    scorer.train(bundle.words, scorer.reconstructor(bundle), data.load_pictures(args.data), args.out, args.minutes,
                 seed=args.seed).save(args.out)
