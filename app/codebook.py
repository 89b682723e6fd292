"""The Codebook view: a map of all codes, the nearest of any one, and pictures with every token exchanged.

It needs the tokenizer alone, which is read from the model's folder before the whole model is there.
"""

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr
import torch
from gradio.components.api_component import Api

from app import html
from app.api import find
from app.jobs import Bounded
from app.record import Recorded
from app.session import Worker
from app.stage import data_url, describe
from lanternpp import codebook, vq
from lanternpp.hub import ModelError, load_tokenizer
from lanternpp.relax import MAX_NEIGHBOURS, neighbours_of

RANKS = (1, 2, 3, 5, 10, 20, 50, 100, 300, 1000)  # of the neighbours that the slider offers
SEED = 0  # of the random codes
PATIENCE = 30.0  # seconds that a call waits for a run to end
KEPT = 16  # pictures whose exchanged ones are kept


class Book:
    """A tokenizer and what the view asks of it. Safe to call from several threads."""

    def __init__(self, worker: Worker, folder: Path | None):
        self._worker, self._folder = worker, folder
        self._lock = threading.RLock()
        self._own: vq.Tokenizer | None = None
        self._pictures = Bounded(KEPT)

    @property
    def tokenizer(self) -> vq.Tokenizer | None:
        """The loaded model's, or the folder's own before that; None where neither is there (yet)."""
        if self._worker.pipe is not None:
            return self._worker.pipe.bundle.tokenizer
        with self._lock:
            if self._own is None and self._folder is not None:
                try:
                    self._own = load_tokenizer(self._folder)
                except ModelError:  # the worker says what is wrong with the model
                    self._folder = None
            return self._own

    @property
    def rows(self) -> torch.Tensor:
        """The codebook (V, C) float32 on the CPU."""
        return self.tokenizer.codebook.detach().cpu()

    def plane(self) -> dict[str, Any]:
        """Every code's place on the map, from −1 to 1, and the share of the variance that the map holds."""
        return _plane(self.tokenizer)

    def near(self, code: int, k: int = MAX_NEIGHBOURS) -> dict[str, Any]:
        """A code's k nearest others with their distances, and the mean distance of all others."""
        codes, distances = neighbours_of(self.rows, torch.tensor([code]), k)
        every = neighbours_of(self.rows, torch.tensor([code]), len(self.rows))[1]
        return {
            "code": code,
            "neighbours": codes[0].tolist(),
            "distances": [round(x, 4) for x in distances[0].tolist()],
            "random": round(float(every.mean()), 4),
        }

    @torch.inference_mode()
    def pictures(self, tokens: list[int], grid: int, ranks: list[int]) -> list[dict[str, Any]]:
        """The tokens' own picture, then one for each j of `ranks` with every token exchanged, then random codes.

        Each has image and psnr, in decibels against the first; infinite is None, as JSON has no such number.
        """
        tokenizer, own = self.tokenizer, torch.tensor(tokens)
        noise = torch.randint(len(self.rows), own.shape, generator=torch.Generator().manual_seed(SEED))
        codes = torch.cat([own[None], codebook.swapped(self.rows, own, ranks), noise[None]])
        made = [vq.to_pil(tokenizer.decode(each.to(tokenizer.vq.device), (grid, grid)))[0] for each in codes.split(1)]
        distances = [codebook.psnr(made[0], image) for image in made]
        return [
            {"image": image, "psnr": round(far, 3) if far != float("inf") else None}
            for image, far in zip(made, distances, strict=True)
        ]

    def swaps(self, run: str) -> dict[str, Any] | None:
        """All pictures of a finished or recorded run for the view's slider; None where the run is not kept."""
        output = self._worker.output(run)
        if output is None or self.tokenizer is None:
            return None
        with self._lock:
            if run not in self._pictures:
                tokens, grid = output.trace.tokens, output.trace.header["grid"]
                ranks = [j for j in RANKS if j < len(self.rows)]
                made = self.pictures(tokens, grid, ranks)
                first, *others, last = [{"image": data_url(x["image"]), "psnr": x["psnr"]} for x in made]
                self._pictures[run] = {
                    "run": run,
                    "own": first,
                    "ranks": ranks,
                    "swapped": others,
                    "random": last,
                    "tokens": len(tokens),
                }
            return self._pictures[run]


@functools.lru_cache(maxsize=2)
def _plane(tokenizer: vq.Tokenizer) -> dict[str, Any]:
    points, share = codebook.principal_plane(tokenizer.codebook.detach().cpu())
    points = points / points.abs().max()
    return {
        "x": [round(x, 4) for x in points[:, 0].tolist()],
        "y": [round(y, 4) for y in points[:, 1].tolist()],
        "share": round(share, 4),
    }


def view(book: Book, worker: Worker, recordings: list[Recorded]) -> None:
    """The Codebook tab."""
    runs = [
        {"run": each.traces[1].run_id, "title": f"{each.prompt}, {describe(each.traces[1].header)}, recorded"}
        for each in recordings
        if len(each.traces) > 1
    ]
    start = 0
    if runs:  # the middle of the first picture
        trace = recordings[0].traces[1]
        start = trace.tokens[len(trace.tokens) // 2 + trace.header["grid"] // 2]
    html.component(
        _TEMPLATE,
        "Lantern.codebook(element, props, server)",
        "codebook",
        {"runs": runs, "start": start},
        server_functions=server_functions(book, worker),
    )


def server_functions(book: Book, worker: Worker) -> list[Callable]:
    """What the view's script asks for; each checks what it is sent."""

    def plane(_: Any) -> dict[str, Any] | None:
        """The map of the codebook; nothing before there is a tokenizer."""
        return book.plane() if book.tokenizer is not None else None

    def atlas(_: Any) -> str | None:
        """Every code decoded alone, as a data URL; nothing before the worker has made it."""
        return worker.atlas

    def near(code: Any) -> dict[str, Any] | None:
        """The nearest of a code."""
        if book.tokenizer is None or type(code) is not int or not 0 <= code < len(book.rows):
            return None
        return book.near(code)

    def swaps(run: Any) -> dict[str, Any] | None:
        """A run's pictures with exchanged tokens; {"wait": true} while a run is decoded, whose time must not pay."""
        if worker.running is not None or book.tokenizer is None:
            return {"wait": True}
        return book.swaps(run) if isinstance(run, str) else None

    return [plane, atlas, near, swaps]


def endpoint(book: Book, worker: Worker) -> None:
    """/codebook: call it inside a gr.Blocks."""

    def codes(code=0, k=10, run="", j=10):
        """The nearest codes of a code, and a finished picture with every token exchanged for its j-th neighbour.

        Returns the neighbours with their distances (Euclidean, on the rows that the tokenizer's decoder uses) and the
        PSNR of the exchanged picture and of random codes in decibels, then the exchanged picture.

        Args:
            code: a code of the codebook, counted from 0
            k: how many neighbours to list, 1 to 1000
            run: the run_id of a finished or recorded run, as /generate returns it; empty for neighbours alone
            j: which neighbour takes each token's place, 0 to 1000; 0 is the picture itself
        """
        if book.tokenizer is None:
            raise gr.Error("The model is still being loaded; try again in a few seconds.", print_exception=False)
        top = len(book.rows) - 1
        for name, value, low, high in (("code", code, 0, top), ("k", k, 1, 1000), ("j", j, 0, 1000)):
            if type(value) is not int or not low <= value <= high:
                shown = str(value)[:40]
                raise gr.Error(
                    f"{name} must be a whole number from {low} to {high:,}, not {shown}: choose one in that range.",
                    print_exception=False,
                )
        facts = book.near(code, k)
        if not run:
            return facts, None
        output = find(worker, run)
        if output is None:
            raise gr.Error(
                f"The run {str(run)[:40]!r} is not kept: decode it again with /generate.", print_exception=False
            )
        if not worker.quiet(PATIENCE):
            raise gr.Error("A run is being decoded; try again when it is done.", print_exception=False)
        _, picture, noise = book.pictures(output.trace.tokens, output.trace.header["grid"], [min(j, top)])
        return facts | {"run": run, "j": j, "psnr": picture["psnr"], "psnr_random": noise["psnr"]}, picture["image"]

    whole = {"type": "integer"}
    inputs = [
        Api(0, whole, label="code"),
        Api(10, whole, label="k"),
        Api("", {"type": "string"}, label="run"),
        Api(10, whole, label="j"),
    ]
    outputs = [
        gr.JSON(visible=False, label="neighbours"),
        gr.Image(format="png", visible=False, label="exchanged picture"),
    ]
    gr.on([], codes, inputs=inputs, outputs=outputs, api_name="codebook", show_progress="hidden")


_TEMPLATE = """<div class="codebook">
  <section class="map"><h2 data-part="title">The codebook</h2>
    <p class="lead" data-part="lead">Every code drawn as what it paints, placed by its first two principal components.
      Pick one.</p>
    <div class="well"><canvas data-part="map" role="application" tabindex="0"></canvas>
      <div class="tip" data-part="tip" hidden></div></div>
    <p class="cap" data-part="said" role="status"></p></section>
  <section><div class="chosen"><canvas data-part="chosen" role="img"></canvas>
      <div><p class="cap">Code <b data-part="code"></b></p><p data-part="within"></p><p class="cap" data-part="far"></p>
    </div></div>
    <h3>Its nearest neighbours</h3><div class="patches" data-part="patches" role="list"></div></section>
  <section class="side"><label class="lab" for="codebook-code">Code</label>
    <input id="codebook-code" class="field" type="number" min="0" step="1" inputmode="numeric" data-part="field">
    <div class="slider" data-part="k"></div>
    <h3>Distance of the <i>j</i>-th neighbour</h3><div class="fig" data-part="distances"></div></section>
</div>
<div class="exchange"><div class="band-head"><div><h2>Swap every token for its neighbour</h2>
  <p class="lead">All <span data-part="tokens">256</span> tokens of a finished picture are replaced at once. Near
    neighbours change it little; random codes destroy it. This is what pooling rests on.</p></div>
  <select class="drop sm" data-part="run" aria-label="Picture"></select></div>
  <div class="swap">
    <figure><h3>As decoded</h3><div class="well"><img data-part="own" alt=""></div></figure>
    <figure><h3 data-part="swapped-title">Neighbour 10</h3><div class="well"><img data-part="swapped" alt=""></div>
      <p class="cap" data-part="swapped-facts"></p></figure>
    <figure><h3>Random codes</h3><div class="well"><img data-part="random" alt=""></div>
      <p class="cap" data-part="random-facts"></p></figure>
    <div class="curve"><div class="slider" data-part="j"></div><div class="fig" data-part="curve"></div></div>
  </div>
  <div class="foot"><span class="lab">Keep</span>
    <button type="button" class="btn sm" data-action="picture">Swapped picture, PNG</button>
    <button type="button" class="btn sm" data-action="map">Map, PNG</button>
    <button type="button" class="btn sm" data-action="near">Neighbours, CSV</button>
    <button type="button" class="btn sm" data-action="curve">Curve, CSV</button></div>
</div>"""
