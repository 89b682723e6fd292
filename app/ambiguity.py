"""The Ambiguity view: where the target is unsure, where many codes would do, and where pooling helped."""

from app import html, inspector, record
from app.session import Worker

_TEMPLATE = """<div class="runbar"><div><label class="lab" for="ambiguity-run">Run</label>
<select class="drop" id="ambiguity-run" data-part="run"></select></div><div data-part="overlay"></div></div>
<p class="note" data-part="note" role="status" hidden></p>
<div class="amb">
  <figure><h2 data-part="title"></h2><p class="lead" data-part="about"></p>
    <div class="well"><canvas data-part="big" role="slider" tabindex="0" aria-valuemin="1"></canvas></div>
    <div data-part="scale"></div></figure>
  <div class="several"><div class="minis" data-part="minis"></div>
    <figure><h3 data-part="histogram-title"></h3><div class="fig" data-part="histogram"></div>
    <div class="legend" data-part="histogram-legend"></div></figure></div>
  <aside class="card" aria-label="Chosen token">
    <div><p class="help" data-part="place"></p><p class="verdict" data-part="origin"></p></div>
    <dl class="facts" data-part="numbers"></dl>
    <div data-part="likeliest"><h3>What the target could paint here</h3><p class="help">Its six likeliest codes.</p>
      <div class="likeliest" data-part="codes"></div></div>
    <button type="button" class="btn sm" data-part="open">Open the step in the inspector</button>
  </aside>
</div>
<div class="band three">
  <figure><h3>Passing by depth and rank</h3>
    <p class="help">Share of tested drafts that passed. Depth: how far ahead. Rank: which sibling.</p>
    <div class="fig" data-part="depth"></div><p class="cap" data-part="depth-note"></p></figure>
  <figure><h3>Passing against entropy</h3>
    <p class="help">How likely a tested draft was to pass, by the target’s entropy at its place. Shaded: what pooling
    adds.</p><div class="fig" data-part="curve"></div><div class="legend" data-part="curve-legend"></div></figure>
  <figure><h3>Against another run</h3><div class="against">
    <div><div class="well"><canvas data-part="difference" role="img"></canvas></div>
      <div class="ramp" data-part="difference-scale"></div></div>
    <div><label class="lab" for="ambiguity-other">Compare with</label>
      <select class="drop" id="ambiguity-other" data-part="other"></select>
      <p class="help" data-part="difference-words"></p></div></div></figure>
</div>
<div class="foot"><span class="lab">Keep this view</span>
<button type="button" class="btn sm" data-save="png">Map, PNG</button>
<button type="button" class="btn sm" data-save="svg">Histogram, SVG</button>
<button type="button" class="btn sm" data-save="csv">All tokens, CSV</button>
<button type="button" class="btn sm" data-save="link">Copy link to this run</button>
<span class="help" data-part="said" role="status"></span></div>"""


def ambiguity_view(worker: Worker, recordings: list[record.Recorded]) -> None:
    """The Ambiguity tab; call it inside a gr.Tab."""
    script = "Lantern.ambiguity(element, props, watch, () => trigger('wish'), server)"
    runs = {"runs": inspector.titles(recordings)}
    view = html.component(
        _TEMPLATE, script, "ambiguity", runs, server_functions=inspector.server_functions(worker)
    )
    inspector.wish(view, worker)
