"""The page's own components: gr.HTML with a fixed template, drawn by assets/*.js from plain JSON.

Templates hold no value, so that a new value never replaces the canvases; text reaches the page as textContent only.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gradio as gr

ASSETS = Path(__file__).resolve().parent.parent / "assets"
STOPS = (0, 1, 2, 3, 5, 10, 20, 50, 100, 300, 1000)  # of k: more neighbours matter less and less
SCRIPTS = ("draw.js", "links.js", "steps.js", "score.js", "race.js", "knobs.js", "maps.js", "runs.js", "inspector.js",
           "node.js", "ambiguity.js", "lab.js", "codebook.js", "trees.js", "treelab.js", "scatter.js", "sweep.js",
           "learn.js")

_LANE = """<figure class="lane">
  <div class="name"><span class="slot"></span><strong></strong><em></em></div>
  <div class="well"><canvas role="img"></canvas><div class="over" hidden></div></div>
  <p class="cap same" hidden></p>
  <canvas class="steps" role="slider" tabindex="0" aria-valuemin="1"></canvas><div class="tip" hidden></div>
</figure>"""

_STAGE = f"""<div class="race">
  {_LANE * 3}
  <div class="score">
    <div><p class="cap" data-part="hero-cap"></p><p class="hero" data-part="hero"></p></div>
    <p class="hero-facts" data-part="facts"></p>
    <div class="wide"><table><thead><tr data-part="methods"></tr></thead><tbody data-part="stats"></tbody></table></div>
    <p class="cap wide price" data-part="price"></p>
    <button type="button" class="btn sm wide" data-part="measure"></button>
  </div>
</div>
<div class="picked"><span data-part="picked"></span>
  <a class="btn sm" data-part="inspect" href="#">Inspect this step</a>
  <button type="button" class="btn sm" data-part="marks" aria-pressed="true" hidden>Marks</button></div>
<div class="fig tracks"><canvas data-part="tracks" role="slider" tabindex="0" aria-label="Replay position"
  aria-valuemin="0"></canvas></div>
<div class="transport">
  <button type="button" class="btn sm play" data-part="play"></button>
  <span data-part="speed"></span><span class="clock" data-part="clock"></span>
  <span class="legend" data-part="legend"></span>
</div>
<p class="cap run" data-part="run"></p>
<p class="sr" role="status" aria-live="polite" data-part="announce"></p>"""

_MAPS = """<div class="band-head"><div><h2>Where a step brought several tokens</h2>
<p class="lead">Each cell is one token, coloured by how many tokens its step committed.</p></div>
<div data-part="overlay"></div></div>
<div class="maps">
  <div class="pair">
    <figure><h3><span data-part="left-mark"></span>
      <select class="drop sm" data-part="left-run" aria-label="Run on the left"></select></h3>
      <div class="well"><canvas data-part="left" role="slider" tabindex="0" aria-valuemin="0"></canvas></div></figure>
    <figure><h3><span data-part="right-mark"></span>
      <select class="drop sm" data-part="right-run" aria-label="Run on the right"></select></h3>
      <div class="well"><canvas data-part="right" role="slider" tabindex="0" aria-valuemin="0"></canvas></div></figure>
    <div class="legend" data-part="legend"></div>
    <div class="tip" data-part="tip" hidden></div>
  </div>
  <figure class="wide"><h3>Difference</h3>
    <div class="well small"><canvas data-part="difference" role="img"></canvas></div>
    <div class="ramp small" data-part="difference-legend"></div></figure>
  <figure class="wide"><h3>How many tokens a step brings</h3>
    <div class="fig histogram" data-part="histogram"></div>
    <p class="legend lines" data-part="histogram-legend"></p></figure>
</div>"""

_FOOT = """<div class="foot"><span class="lab">Keep this run</span>
<button type="button" class="btn sm" data-action="pictures">Pictures, PNG</button>
<button type="button" class="btn sm" data-action="traces">Traces, JSON</button>
<button type="button" class="btn sm" data-action="figure">Maps, PNG</button>
<button type="button" class="btn sm" data-action="gif">Race, GIF</button>
<button type="button" class="btn sm" data-action="report">One-page report</button>
<span class="help" data-part="said" role="status"></span></div>
<p class="help timed">How it is timed: each lane runs alone, one after the other, on the same worker, dtype and mode.
Warm-up is left out; reading the prompt and decoding the pixels are counted. The replay shows both from their true
timestamps, side by side.</p>"""

_SLIDER = """<div class="slider"><div class="head"><label class="lab" for="k-range"></label>
<input type="number" min="0" max="1000" step="1" inputmode="numeric"></div>
<div class="ends"><span>0</span><input type="range" id="k-range" min="0" step="1"><span class="high"></span></div>
<p class="help"></p></div>"""


_BOUND = """<p class="help"></p>
<div class="half" role="img"><i class="strict"></i><i class="pooled"></i></div>
<p class="legend"><span><i class="sw strict"></i>strict rule</span>
<span><i class="sw pooled"></i>added by pooling</span></p>"""

_HEADER = """<header class="top"><h1>LANTERN++ demo</h1>
<span class="help">Draft a tree of picture tokens, check them all in one pass.</span>
<span class="model"></span>
<button type="button" class="btn sm" aria-label="Copy link to these settings">
<svg viewBox="0 0 14 14" aria-hidden="true"><path fill="none" stroke="currentColor" stroke-width="1.3"
  stroke-linecap="round" d="M5.8 8.2 8.2 5.8M6.4 4l1.8-1.8a2.5 2.5 0 0 1 3.6 3.6L10 7.6
  M7.6 10l-1.8 1.8a2.5 2.5 0 0 1-3.6-3.6L4 6.4"/>
</svg><span>Copy link</span></button></header>"""

# Functions, not subclasses: for each subclass gradio would write a .pyi file into this folder.


def component(template: str, script: str, name: str, value: Any = None, **more: Any) -> gr.HTML:
    """A gr.HTML whose template is fixed and whose script is one call into assets/*.js."""
    return gr.HTML(value, html_template=template, js_on_load=script, elem_id=name, apply_default_css=False, **more)


def race_stage(value: dict[str, Any], server_functions: list[Callable]) -> gr.HTML:
    """Both lanes, the score, the time tracks and the replay; its value is what app/stage.py folds."""
    script = "Lantern.stage(element, props, watch, () => trigger('measure'), server)"
    return component(_STAGE, script, "stage", value, server_functions=server_functions)


def accepted_length_maps() -> gr.HTML:
    """Accepted length by token of two finished runs, their difference and a histogram."""
    return component(_MAPS, "Lantern.maps(element)", "maps", elem_classes="band")


def downloads(server_functions: list[Callable]) -> gr.HTML:
    """Pictures, traces and the figure as files that the browser makes."""
    script = "Lantern.downloads(element, server)"
    return component(_FOOT, script, "foot", elem_classes="band", server_functions=server_functions)


def stop_slider(value: int, label: str, info: str, high: int) -> gr.HTML:
    """k: a slider over stops that grow, with a field for the exact number; its value is the number."""
    words = {"label": label, "help": info, "stops": [stop for stop in STOPS if stop < high] + [high]}
    return component(_SLIDER, f"Lantern.stopSlider(element, props, watch, {json.dumps(words)})", "knob-k", value)


def tree_preview(presets: dict[str, list[int]], limits: dict[str, int], knobs: dict[str, Any]) -> gr.HTML:
    """The draft tree that the knobs name, drawn at once in the browser; knobs are the page's values as it opens."""
    opening = f"Lantern.page({json.dumps(list(knobs))}, {json.dumps(list(knobs.values()))})"
    script = f"{opening}; Lantern.treePreview(element, {json.dumps(presets)}, {json.dumps(limits)})"
    return component('<div class="drawing"></div><p class="help"></p>', script, "tree-preview")


def bound_preview() -> gr.HTML:
    """What the bound means for the drafts of the run on view; `settle` fires when the knobs come to rest."""
    return component(_BOUND, "Lantern.boundPreview(element, () => trigger('settle'))", "bound-preview")


def words(name: str) -> gr.HTML:
    """A line of help whose value is {"text": …}, and "model" where the header is to name another one."""
    line = '<p class="help" role="status" aria-live="polite"></p>'
    return component(line, "Lantern.words(element, props, watch)", name)


def chips(examples: list[tuple[str, str]], visible: bool = True) -> gr.HTML:
    """Example prompts with their pictures; `pick` fires with the chosen one as the value."""
    script = f"Lantern.chips(element, props, () => trigger('pick'), {json.dumps(examples)})"
    return component('<div class="chips"><span class="help">Try</span></div>', script, "chips", "", visible=visible)


def header(model: str) -> gr.HTML:
    """Title, one line, the model, and the link that brings every knob back."""
    return component(_HEADER, f"Lantern.header(element, {json.dumps(model)})", "header")


def head() -> str:
    """All scripts as one inline element: nothing is fetched, and one scope holds them."""
    source = "\n".join((ASSETS / name).read_text() for name in SCRIPTS)
    return f"<script>(() => {{\n{source}\nwindow.Lantern = Lantern;\n}})();</script>"
