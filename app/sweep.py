"""The Sweep view: a grid of settings measured beside plain AR; speed against quality, pictures, files."""

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.components.api_component import Api

from app import api, html, params, stage, views, widgets
from app.jobs import Busy
from app.session import Worker, events
from app.sweeps import Desk, begin, fault, hardware, measure, recorded, rounded, shown
from lanternpp.frontier import weights_mark
from lanternpp.grid import DEFAULTS, SAMPLING
from lanternpp.hub import BUNDLED
from lanternpp.presets import offered
from lanternpp.settings import KNOBS, METHODS, SettingsError
from lanternpp.sweep import figure

FRONTIER = html.ASSETS / "frontier.csv"


def server_functions(desk: Desk) -> list[Callable]:
    """What the view's script asks for; each checks what it is sent."""

    def plan(asked: Any) -> dict[str, Any]:
        """How many settings and runs a grid has, how long it may take, and what is kept of it; or what is wrong."""
        try:
            grid, key = desk.grid(asked)
        except SettingsError as error:
            return {"error": fault(error)}
        sweep = desk.kept.get(key)
        runs = len(grid.pictures), len(grid.blocks), len(grid.points)
        return {"settings": len(grid.points), "pictures": runs[0], "runs": grid.runs, "key": key,
                "seconds": expected(desk.worker, runs[0] * runs[1], runs[0] * runs[2]),
                "kept": sweep and shown(sweep, key, "done" if sweep.complete else "stopped")}  # fmt: skip

    def pictures(asked: Any) -> list[dict[str, Any]]:
        """A setting's pictures of the first repeat beside AR's; [] where they are not kept."""
        key, setting = (asked.get("key"), asked.get("setting")) if isinstance(asked, dict) else (None, None)
        sweep = desk.kept.get(key) if isinstance(key, str) else None
        if sweep is None or type(setting) is not int:
            return []
        found = []
        for place, (prompt, seed) in enumerate(sweep.grid.pictures[: sweep.keep]):
            own, ar = sweep.pictures.get((setting, place)), sweep.pictures.get((0, place))
            if own and ar:
                found.append({"prompt": prompt, "seed": seed, "image": stage.as_url(own), "ar": stage.as_url(ar)})
        return found

    def file(asked: Any) -> dict[str, str]:
        """{"text": …} of a kept sweep's CSV or JSON, {"url": …} of its figure, or {"error": one sentence}."""
        key, kind = (asked.get("key"), asked.get("kind")) if isinstance(asked, dict) else (None, None)
        if key == "" and kind in ("csv", "png"):
            return shipped(FRONTIER.with_suffix(f".{kind}"))
        sweep = desk.kept.get(key) if isinstance(key, str) else None
        if sweep is None or not sweep.rounds:
            return {"error": "That sweep is no longer kept; run it again."}
        if kind in ("csv", "json"):
            return {"text": sweep.csv() if kind == "csv" else json.dumps(sweep.document(), ensure_ascii=False)}
        if not desk.worker.quiet(api.PATIENCE):
            return {"error": "A run is being measured; the figure can be drawn when none is."}
        buffer = io.BytesIO()
        with api.drawing:
            figure(sweep.rows(), sweep.about, buffer)
        return {"url": stage.as_url(buffer.getvalue())}

    return [plan, pictures, file]


def shipped(path: Path) -> dict[str, str]:
    """A file of the recorded frontier."""
    try:
        return {"text": path.read_text()} if path.suffix == ".csv" else {"url": stage.as_url(path.read_bytes())}
    except OSError:
        return {"error": f"There is no {path.name} among the recorded files."}


def expected(worker: Worker, baselines: int, others: int) -> float | None:
    """Seconds that runs may take, from those of the loaded model that are kept; None where there are none."""
    traces = [output.trace for output in list(worker.runs.values())]
    own = [trace for trace in traces if trace.header["model"] == worker.about.get("model")]
    times = [[t.seconds["total"] for t in own if (t.header["method"] == "ar") == ar] for ar in (True, False)]
    if not all(times):
        return None
    ar, other = (sum(each) / len(each) for each in times)
    return round(baselines * ar + others * other, 1)


def view(desk: Desk, knobs: dict[str, gr.Component], recordings: bool) -> None:
    """The Sweep tab; `knobs` are the Race's, at which a point is opened. `recordings`: show the shipped frontier."""
    defaults = desk.choices[desk.start].about["defaults"]
    trees = [[name, widgets.tree_name(name, tree)] for name, tree in offered().items() if tree.nodes]
    sampling = {name: defaults.get(name, KNOBS[name].default) for name in SAMPLING}
    form = {
        "defaults": DEFAULTS | sampling,
        "methods": {name: METHODS[name] for name in params.METHODS},
        "uses": {name: [u.replace("order", "orders") for u in params.uses(name)] for name in params.METHODS},
        "trees": trees,
        "orders": dict(KNOBS["order"].choices),
        "labels": {name: KNOBS[name].label for name in SAMPLING},
        "page": list(params.PAGE),
    }
    first = recorded(FRONTIER, defaults, weights_mark(BUNDLED)) if recordings else None
    script = f"Lantern.sweep(element, props, watch, name => trigger(name), server, {json.dumps(form)})"
    board = html.component(_TEMPLATE, script + '; void ("run", "stop", "race")', "sweep", first or {"state": "empty"},
                           server_functions=server_functions(desk))  # fmt: skip

    def start(request: gr.Request, asked: Any) -> Iterator[dict[str, Any]]:
        yield from measure(desk, views.visitor(request), asked)

    def stop(request: gr.Request) -> None:
        desk.worker.cancel(views.visitor(request))

    shared = {"show_progress": "hidden", "api_visibility": "private"}
    board.run(start, board, board, trigger_mode="multiple", concurrency_limit=None, **shared)
    board.stop(stop, queue=False, **shared)
    opened = board.race(fn=None, inputs=board, outputs=list(knobs.values()), queue=False, **shared,
                        js=f"value => Lantern.sweepPage({list(params.PAGE)}, value)")  # fmt: skip
    opened.then(fn=None, queue=False, js="() => Lantern.openTab('Race')", **shared)


def endpoint(desk: Desk) -> None:
    """/sweep: call it inside a gr.Blocks."""
    names = (*DEFAULTS, *SAMPLING)

    def sweep(
        methods="exact, lantern, lanternpp",
        trees="cpu4, cpu8",
        k="100",
        lam="1.5, 2, 3, 5",
        delta="0.05, 0.2",
        gamma="0.8",
        orders="strict-first",
        prompts="",
        repeats=1,
        seed=0,
        cfg_scale=3.0,
        temperature=1.0,
        top_k=1000,
        top_p=1.0,
        request: gr.Request = None,
    ):
        """Measure a grid of settings, each beside plain AR on the same prompts and seeds, interleaved in one process.

        Streams (progress, rows): runs done and in all, seconds left, then a row of each setting with its speedup
        (median and quartiles of the pairs), accepted length, the scorer's similarity of picture and prompt, how often
        the prompt was found among 100, both as changes from AR with 95 % intervals, the number of pictures, and whether
        it is on the Pareto front. At most 64 settings, 8 prompts and 5 repeats. `python -m lanternpp sweep` makes the
        same rows.

        Args:
            methods: a list, or text with commas: exact, lantern, lanternpp, annealed, coupled, coupled-relaxed, eagle2
            trees: presets or other trees: a list, or text with commas between trees, such as "cpu4, 3/2/1"
            k: how many of the nearest codes may be pooled, for the relaxed methods
            lam: λ from 1 to 10, for lanternpp, annealed and coupled-relaxed
            delta: δ from 0 to 1, for lantern
            gamma: γ from 0 to 1, for annealed
            orders: strict-first or sequential or both
            prompts: a list, or text with one a line; four fixed ones where it is empty
            repeats: how often each prompt is painted, with the next seeds
            seed: of the first repeat
            cfg_scale: guidance; 1 is none
            temperature: 0 is greedy
            top_k: only that many most probable tokens may occur; 0 allows all
            top_p: only the most probable tokens that make up this share may occur
        """
        given = (methods, trees, k, lam, delta, gamma, orders, prompts or DEFAULTS["prompts"], repeats, seed,
                 cfg_scale, temperature, top_k, top_p)  # fmt: skip
        visitor = api.caller(request)
        try:
            measured, _, job = begin(desk, visitor, dict(zip(names, given, strict=True)), True)
            desk.worker.submit(job, replace=False)
        except (SettingsError, Busy) as error:
            raise gr.Error(str(error), print_exception=False) from None
        progress, rows = {"state": "waiting", "done": 0, "total": measured.grid.runs, "seconds_left": None}, []
        for event in events(desk.worker, job, api.TICK):
            match event:
                case ("progress", step):
                    progress |= {"state": "running", "done": step.done, "seconds_left": step.left, "now": step.now}
                    rows = rounded(measured.rows()) if step.complete else rows
                case ("error", text):
                    raise gr.Error(text, print_exception=False)
                case ("stopped", _):
                    raise gr.Error("The sweep was stopped.", print_exception=False)
            yield progress, rows
        facts = dict(zip(("device", "settings"), hardware(measured), strict=False))
        yield progress | {"state": "done", "seconds_left": 0, **facts}, rounded(measured.rows())

    defaults = DEFAULTS | {n: k.default for n, k in KNOBS.items()} | desk.choices[desk.start].about["defaults"]
    kinds = {"repeats": {"type": "integer"}, "seed": {"type": "integer"}, "top_k": {"type": "integer"}}
    lists = set(DEFAULTS) - {"repeats"}
    defaults |= {"prompts": ""}
    inputs = [Api(defaults[n], {} if n in lists else kinds.get(n, api.NUMBER), label=n) for n in names]
    outputs = [gr.JSON(visible=False, label=label) for label in ("progress", "rows")]
    gr.on([], sweep, inputs=inputs, outputs=outputs, api_name="sweep", concurrency_limit=None, show_progress="hidden")


_BOXES = "".join(
    f"""<div class="{name}" data-used="{used}"><label class="lab" for="sweep-{name}">{label}</label>
    <input class="field" id="sweep-{name}" autocomplete="off" spellcheck="false" inputmode="decimal"></div>"""
    for name, used, label in (
        ("k", "k", "<i>k</i>"),
        ("lam", "lam", "<i>λ</i>"),
        ("delta", "delta", "<i>δ</i>"),
        ("gamma", "gamma", "<i>γ</i>"),
    )
)
_TEMPLATE = f"""<div class="sweep">
  <div class="sweep-stage">
    <div class="band-head"><h2 data-part="head">Sweep</h2><p class="help" data-part="facts" role="status"></p></div>
    <div class="bar" role="progressbar" aria-label="Runs measured" aria-valuemin="0" data-part="bar"><i></i></div>
    <div class="band-head scatter-head"><h3>Speed against quality</h3><div data-part="quality"></div></div>
    <p class="legend" data-part="legend"></p>
    <div class="fig scatter" data-part="scatter" role="listbox" tabindex="0" aria-label="Settings by speedup"></div>
    <p class="help" data-part="said"></p>
  </div>
  <div class="sweep-card" data-part="card">
    <div class="well"><img data-part="picture" alt="" hidden></div>
    <div class="thumbs" data-part="thumbs"></div>
    <div data-part="which"></div>
    <div class="words"><p class="lane-name" data-part="name"></p><p class="help" data-part="setting"></p></div>
    <table><tbody data-part="numbers"></tbody></table>
    <a class="btn" data-part="race" href="#">Open in Race</a>
  </div>
  <form class="sweep-rail" data-part="form">
    <fieldset><legend class="lab">Methods</legend><div class="checks" data-part="methods"></div></fieldset>
    <div class="boxes">{_BOXES}</div>
    <fieldset><legend class="lab">Draft trees</legend><div class="checks" data-part="trees"></div></fieldset>
    <div><label class="lab" for="sweep-more">More trees</label>
      <input class="field" id="sweep-more" autocomplete="off" spellcheck="false" placeholder="3/2/1, 2/1.1"></div>
    <div><label class="lab" for="sweep-prompts">Prompts, one a line</label>
      <textarea class="field" id="sweep-prompts" rows="5" spellcheck="false"></textarea></div>
    <details><summary>Repeats, order, sampling</summary><div class="boxes" data-part="sampling">
      <div><label class="lab" for="sweep-repeats">Repeats</label>
        <input class="field" id="sweep-repeats" inputmode="numeric" autocomplete="off"></div>
      <fieldset class="wide" data-used="orders"><legend class="lab">Order</legend>
        <div class="checks" data-part="orders"></div></fieldset>
    </div></details>
    <p class="help" data-part="plan" role="status"></p>
    <p class="note err" role="alert" data-part="error" hidden></p>
    <div class="foot"><button type="submit" class="btn primary" data-part="run">Run sweep</button>
      <button type="button" class="btn" data-part="stop" disabled>Stop</button></div>
  </form>
</div>
<div class="every">
  <div class="band-head"><div><h2>Every setting</h2>
    <p class="lead" data-part="lead"></p></div>
    <div class="foot"><button type="button" class="btn sm" data-action="csv">CSV</button>
      <button type="button" class="btn sm" data-action="json">JSON</button>
      <button type="button" class="btn sm" data-action="png">Figure, PNG</button>
      <button type="button" class="btn sm" data-action="command">Copy as command</button>
      <button type="button" class="btn sm" data-action="link">Copy link</button></div></div>
  <table class="settings"><thead data-part="heads"></thead><tbody data-part="rows"></tbody></table>
</div>"""
