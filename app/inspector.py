"""The Step inspector: what its component is given of a run, of a step and of a node, and the wish to look inside a run.

A trace tells the tree, the probabilities and the verdicts. What the verdicts compared (lanternpp.detail) is there for
recorded runs; for others the worker decodes the run once more, untimed, when the view asks for it.
"""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
import numpy as np
from PIL import Image

from app import html, record, stage
from app.jobs import Busy, Job
from app.session import Worker, events
from lanternpp.tree import Tree

PAINTS = 4  # values a second that a browser is sent at most

_TEMPLATE = """<div class="runbar"><div><label class="lab" for="inspect-run">Run</label>
<select class="drop" id="inspect-run" data-part="run"></select></div><p class="help" data-part="facts"></p></div>
<p class="note" data-part="note" role="status" hidden></p>
<canvas class="strip" data-part="strip" role="slider" tabindex="0" aria-label="Step" aria-valuemin="1"></canvas>
<div class="transport">
  <button type="button" class="btn sm" data-part="back" aria-label="Step back"></button>
  <button type="button" class="btn sm play" data-part="play"></button>
  <button type="button" class="btn sm" data-part="on" aria-label="Step on"></button>
  <span data-part="where"></span><span class="legend" data-part="lengths"></span>
</div>
<div class="insp">
  <div class="left">
    <figure class="pic"><h3>Picture so far</h3><div class="well"><canvas data-part="picture" role="img"></canvas></div>
      <p class="help" data-part="caption"></p></figure>
    <figure class="msk"><h3>Tree attention mask</h3><p class="help" data-part="mask-caption"></p>
      <canvas data-part="mask" role="img"></canvas></figure>
  </div>
  <div class="mid">
    <figure><div class="band-head"><h3>Drafted tree</h3><span class="legend" data-part="marks"></span></div>
      <div class="treewrap" data-part="wrap"><canvas data-part="patches" aria-hidden="true"></canvas>
      <svg data-part="tree" role="tree" aria-label="Drafted tree"></svg></div>
      <p class="help" data-part="tree-caption"></p></figure>
    <figure class="sibs"><h3>In the order they were tested</h3><p class="help" data-part="siblings-caption"></p>
      <table data-part="siblings"></table></figure>
  </div>
  <aside class="card" aria-label="Chosen draft">
    <div class="nodehead"><canvas data-part="place" role="img" aria-label="The draft in its place"></canvas>
      <div><p class="help" data-part="name"></p><p class="verdict" data-part="verdict"></p>
      <p class="help" data-part="why"></p></div></div>
    <div class="fig" data-part="line"></div>
    <dl class="facts" data-part="numbers"></dl>
    <div data-part="inside">
      <h3>Neighbours pooled</h3><p class="help" data-part="pool-caption"></p>
      <div class="fig pool"><canvas data-part="near" aria-hidden="true"></canvas><div data-part="pool"></div></div>
      <div class="maths" data-part="maths"></div>
      <h3 class="rule">What if</h3><p class="help" data-part="if-caption" aria-live="polite"></p>
      <div class="fig" data-part="if"></div><div data-part="knobs"></div>
    </div>
  </aside>
</div>
<div class="foot"><span class="lab">Keep this step</span>
<button type="button" class="btn sm" data-save="svg">Tree, SVG</button>
<button type="button" class="btn sm" data-save="json">Step, JSON</button>
<button type="button" class="btn sm" data-save="csv">All drafts, CSV</button>
<button type="button" class="btn sm" data-save="link">Copy link to this step</button>
<span class="help" data-part="said" role="status"></span></div>"""


def inspector_view(worker: Worker, recordings: list[record.Recorded]) -> None:
    """The Step inspector tab; call it inside a gr.Tab."""
    script = "Lantern.inspector(element, props, watch, () => trigger('wish'), server)"
    view = html.component(
        _TEMPLATE, script, "inspector", {"runs": titles(recordings)}, server_functions=server_functions(worker)
    )
    wish(view, worker)


def wish(view: gr.HTML, worker: Worker) -> None:
    """Let a component ask the worker to look inside a run; what comes back goes to its value."""

    def handler(value: Any, request: gr.Request) -> Iterator[dict]:
        run = value.get("run") if isinstance(value, dict) else None
        yield from look_inside(worker, f"look-{getattr(request, 'session_hash', None) or id(request)}", run)

    view.wish(handler, inputs=view, outputs=view, show_progress="hidden", trigger_mode="multiple",
              concurrency_limit=None, api_visibility="private")


def look_inside(worker: Worker, visitor: str, run: Any) -> Iterator[dict]:
    """Decode a run once more: {run, done, of} while it lasts, then {run, ready} or {run, error: one sentence}."""
    output = worker.output(run) if isinstance(run, str) else None
    if output is None:
        yield {"run": run, "error": "This run is no longer kept; run it again."}
        return
    job = Job(visitor, [], inspect=run)
    try:
        worker.submit(job)
    except Busy as error:
        yield {"run": run, "error": str(error)}
        return
    shown, error, tokens = 0.0, "", len(output.trace.tokens)
    yield {"run": run, "done": 0, "of": tokens}
    for event in events(worker, job):
        if event[0] == "error":
            error = event[1]
        elif event[0] == "stopped":
            error = "Stopped before the whole run was decoded again."
        elif event[0] == "step" and time.monotonic() - shown > 1 / PAINTS:
            shown = time.monotonic()
            yield {"run": run, "done": event[2].position + len(event[2].tokens), "of": tokens}
    if not job.replaced:
        yield {"run": run, "error": error} if error else {"run": run, "ready": True}


def endpoint(worker: Worker) -> None:
    """/inspect: what is known of a finished or recorded run; call it inside a gr.Blocks."""

    def inspect(run_id: str, step: int = 0, node: int = 0) -> dict:
        """Every step of a run, or what the verdict of one drafted node compared.

        For a node of a run that was not looked into yet, the run is decoded once more, untimed.

        Args:
            run_id: as in the trace that /generate returned, or that of a recorded run
            step: from 1; 0 gives the whole run
            node: the drafted node, from 1, in the numbering of the tree's list of parents
        """
        known = not (step or node) or worker.detail(run_id) is not None or worker.output(run_id) is None
        for value in () if known else look_inside(worker, f"look-{uuid.uuid4().hex}", run_id):
            if "error" in value:
                raise gr.Error(value["error"], print_exception=False)
        found = inside(worker, run_id, step, node) if step or node else whole(worker, run_id)
        if found is None:
            text = "Nothing is known of that: the run is no longer kept, or has no such step and node."
            raise gr.Error(text, print_exception=False)
        return found

    gr.api(inspect, api_name="inspect", queue=False)


def titles(recordings: list[record.Recorded]) -> list[dict[str, str]]:
    """The recorded runs that can be chosen: those with a tree first, each prompt's method before its baseline."""
    found = [(each.prompt, trace) for each in recordings for trace in each.traces]
    found.sort(key=lambda pair: pair[1].header["method"] == "ar")
    return [{"id": trace.run_id, "title": title(prompt, trace), "method": trace.header["method"]} for prompt, trace in
            found]


def title(prompt: str, trace: Any) -> str:
    """A recorded run in a line."""
    tree = "" if trace.header["method"] == "ar" else f", tree {trace.header['tree']['name']}"
    return f"{stage.describe(trace.header)}{tree}, recorded · {prompt}, seed {trace.header['seed']}"


def server_functions(worker: Worker) -> list[Callable]:
    """What the component's script may ask for: cheap, checked, and never the decoder."""

    def look(run: Any) -> dict | None:
        """All steps of a run; nothing where it is not kept."""
        return whole(worker, run)

    def node(which: Any) -> dict | None:
        """What a node's verdict compared, [run, step, node]; nothing where it is not known."""
        return inside(worker, *which) if isinstance(which, list) and len(which) == 3 else None

    def atlas(_: Any) -> str | None:
        """Every code decoded alone, as a data URL; nothing before the model is there."""
        return worker.atlas

    return [look, node, atlas]


def whole(worker: Worker, run: Any) -> dict[str, Any] | None:
    """A run as both views read it; `places` and `patches` where its detail is known. Made once, until that is."""
    output = worker.output(run) if isinstance(run, str) else None
    if output is None:
        return None
    detail = worker.detail(run)
    key = (run, detail is not None)
    if key not in worker.looks:
        worker.looks[key] = _whole(output, detail)
    return worker.looks[key]


def _whole(output: Any, detail: Any) -> dict[str, Any]:
    trace = output.trace
    header, ends = trace.header, [event.seconds for event in trace.events]
    steps = [
        {
            "at": event.position,
            "tokens": event.tokens,
            "ms": round(1000 * (end - before), 2),
            "ending": event.ending,
            "path": event.path,
            "drafted": event.drafted,
            "q": event.q,
            "r": event.p,
            "m": event.mass,
            "verdicts": event.verdicts,
        }
        for event, end, before in zip(trace.events, ends, [0.0, *ends], strict=False)
    ]
    out = {name: header[name] for name in ("method", "k", "bound", "gamma", "order", "temperature", "grid", "codes")}
    image = stage.data_url(output.images[0], fast=True)
    out |= {"id": trace.run_id, "steps": steps, "image": image, "summary": stage.figures(trace),
            "parents": header["tree"]["parents"], "facts": stage.hardware(header), "name": stage.describe(header),
            "recorded": bool(header.get("recorded")), "places": None, "patches": None}
    if detail is not None:
        for row, step in enumerate(steps):
            step |= {"u": rounded(detail.uniform[row]), "p": rounded(detail.target[row])}
        out |= {"places": places(detail), "patches": sheet(detail)}
    return out


def places(detail: Any) -> dict[str, list]:
    """What is known of each token's place; null where nothing was drafted for it."""
    names = ("entropy", "plain_entropy", "top1", "interchangeable", "agreement")
    out = {name: rounded(getattr(detail, name)) for name in names}
    return out | {"likeliest": detail.likeliest.tolist(), "likeliest_p": [rounded(row) for row in detail.likeliest_p]}


def rounded(values: np.ndarray) -> list:
    """Six significant digits, as traces hold them; null for what is not a number."""
    return [None if np.isnan(x) else float(f"{x:.6g}") for x in values.tolist()]


def sheet(detail: Any) -> str | None:
    """Every node's patch in one picture: a row a step, a column a node."""
    events, nodes, size = detail.patches.shape[:3]
    if not nodes:
        return None
    pixels = detail.patches.transpose(0, 2, 1, 3, 4).reshape(events * size, nodes * size, 3)
    return stage.data_url(Image.fromarray(pixels), fast=True)


def inside(worker: Worker, run: Any, step: Any, node: Any) -> dict[str, Any] | None:
    """What a node's verdict compared: exact float32 numbers, the neighbours' ids, and where their sum grows to what."""
    detail = worker.detail(run) if isinstance(run, str) else None
    whole_number = all(isinstance(x, int) and not isinstance(x, bool) for x in (step, node))
    if detail is None or not whole_number:
        return None
    if not (1 <= step < len(detail.uniform) and 1 <= node <= detail.uniform.shape[1]):
        return None
    trace = worker.output(run).trace
    code = trace.events[step].drafted[node - 1]
    place, total = detail.sums(step, node)
    names = {"u": "uniform", "q": "draft", "r": "residual", "p": "target", "other": "other"}
    out = {short: exact(getattr(detail, name)[step, node - 1]) for short, name in names.items()}
    near = detail.nearest[np.searchsorted(detail.codes, code)]
    return out | {"node": node, "code": code, "depth": Tree(tuple(trace.header["tree"]["parents"])).depths[node],
                  "near": near.tolist(), "place": place.tolist(), "total": [exact(x) for x in total]}


def exact(x: Any) -> float:
    """Nine digits bring a float32 back bit for bit."""
    return float(f"{float(x):.9g}")

