"""The Tree lab view: edit the draft tree by hand and see at once what it would bring, from measured acceptance."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import gradio as gr
from gradio.components.api_component import Api

from app import html, params, widgets
from app.session import Worker
from app.stage import describe, hardware
from lanternpp.acceptance import AcceptanceTable, acceptance_table, expected_accepted_length, reach
from lanternpp.cost import CostCurve
from lanternpp.presets import offered, preset_path
from lanternpp.search import candidate
from lanternpp.settings import METHODS
from lanternpp.trace import Trace
from lanternpp.tree import MAX_DEPTH, MAX_NODES, Tree, TreeError, parse_tree
from lanternpp.tune import predicted_speedup

SHARED = ("model", "method", "temperature", "top_k", "top_p", "cfg_scale")  # with the rule's own knobs: one acceptance


@dataclass(frozen=True)
class Group:
    """Runs of one model, rule and sampling, and how often their drafts were accepted."""

    traces: list[Trace]
    table: AcceptanceTable

    @property
    def header(self) -> dict[str, Any]:
        return self.traces[0].header

    @property
    def steps(self) -> int:
        return sum(trace.steps for trace in self.traces)

    def facts(self) -> dict[str, Any]:
        """The counts (depth, rank), and how many runs and steps they come from."""
        return {
            "label": describe(self.header),
            "runs": len(self.traces),
            "recorded": sum(bool(trace.header.get("recorded")) for trace in self.traces),
            "steps": self.steps,
            "tested": self.table.tested.tolist(),
            "accepted": self.table.accepted.tolist(),
        }

    def measured(self) -> dict[str, dict[str, float]]:
        """Accepted length, runs and steps of each tree that was run, by its text."""
        by_tree: dict[str, list[Trace]] = {}
        for trace in self.traces:
            by_tree.setdefault(Tree(tuple(trace.header["tree"]["parents"])).text, []).append(trace)
        return {text: _length(own) for text, own in by_tree.items()}

    def json(self) -> dict[str, Any]:
        """What the page is given; `rates` has one row and one column more, for what was never drafted."""
        depths, ranks = self.table.tested.shape
        return self.facts() | {
            "key": _key(self.header),
            "method": self.header["method"],
            "rates": [[round(self.table.rate(d, i), 5) for i in range(ranks + 1)] for d in range(1, depths + 2)],
            "measured": self.measured(),
        }


def groups(worker: Worker) -> list[Group]:
    """Kept and recorded runs by rule and sampling, those with most steps first."""
    kept: dict[str, list[Trace]] = {}
    for output in [*worker.recorded.values(), *list(worker.runs.values())]:
        if output.trace.header["method"] != "ar" and output.trace.steps:
            kept.setdefault(_key(output.trace.header), []).append(output.trace)
    found = []
    for traces in kept.values():
        try:
            found.append(Group(traces, acceptance_table(traces)))
        except ValueError:  # no draft was judged in any of them
            continue
    return sorted(found, key=lambda group: -group.steps)


def _key(header: dict[str, Any]) -> str:
    used = params.uses(header["method"])
    own = [name for name in ("k", "bound", "gamma", "order") if name in used or (name == "bound" and used)]
    return json.dumps([header.get(name) for name in (*SHARED, *own)])


def _length(traces: list[Trace]) -> dict[str, float]:
    steps = sum(trace.steps for trace in traces)
    tokens = sum(len(trace.tokens) - 1 for trace in traces)  # the prefill's is no step's
    return {"length": round(tokens / steps, 4), "runs": len(traces), "steps": steps}


@dataclass(frozen=True)
class Cost:
    """What a step of the loaded model costs on this machine; once: seconds of a picture that are no step's."""

    curve: CostCurve
    once: float
    tokens: int

    def speedup(self, tree: Tree, table: AcceptanceTable) -> float:
        """Predicted, of a whole picture over plain AR."""
        return predicted_speedup(candidate(tree, table, self.curve), self.curve, self.once, self.tokens)


def cost(worker: Worker) -> Cost | None:
    """As `python -m lanternpp tune` measured it for this model, device and dtype; None where it did not."""
    if not worker.about:
        return None
    try:
        found = json.loads(preset_path(worker.about).read_text())["found"]
        curve = CostCurve(**{name: tuple(v) if isinstance(v, list) else v for name, v in found["cost"].items()})
        return Cost(curve, float(found["once"]), int(worker.about["grid"]) ** 2)
    except (OSError, ValueError, TypeError, KeyError):
        return None


def state(worker: Worker) -> dict[str, Any]:
    """What is measured now, as the page is given it."""
    known = cost(worker)
    own = known and asdict(known.curve) | {"once": known.once, "tokens": known.tokens, "facts": hardware(worker.about)}
    ready = worker.pipe is not None or worker.failure is not None
    return {"groups": [each.json() for each in groups(worker)], "cost": own, "ready": ready}


def view(worker: Worker, knobs: dict[str, gr.Component]) -> None:
    """The Tree lab tab; `knobs` are the Race's, whose draft tree it sets."""
    presets = [
        {"name": name, "label": widgets.tree_name(name, tree), "parents": list(tree.parents)}
        for name, tree in offered().items()
        if tree.nodes
    ]
    limits = {"nodes": MAX_NODES, "depth": MAX_DEPTH}
    value = {"presets": presets, "limits": limits, **state(worker)}
    script = "Lantern.treeLab(element, props, () => trigger('race'), server)"
    lab = html.component(_TEMPLATE, script, "treelab", value, server_functions=server_functions(worker))
    client = {"fn": None, "show_progress": "hidden", "api_visibility": "private", "queue": False}
    chosen = lab.race(
        **client,
        inputs=lab,
        outputs=[knobs["tree"], knobs["branching"]],
        js=f"value => [value.preset || '{params.CUSTOM}', value.text]",
    )
    chosen.then(**client, js="() => { Lantern.openTab('Race'); document.getElementById('generate').click(); }")


def server_functions(worker: Worker) -> list[Callable]:
    """What the view's script asks for."""

    def measured(_: Any) -> dict[str, Any]:
        """How often drafts were accepted in the runs that are kept, by rule, and what a step costs here."""
        return state(worker)

    def parse(text: Any) -> dict[str, Any]:
        """{"parents": [...]} of a tree in any notation, or {"error": one sentence}."""
        try:
            return {"parents": list(parse_tree(text if isinstance(text, str) else str(text)).parents)}
        except TreeError as error:
            return {"error": str(error)}

    return [measured, parse]


def endpoint(worker: Worker) -> None:
    """/tree: call it inside a gr.Blocks."""

    def tree(tree="cpu4", method="lanternpp"):
        """What a static draft tree would bring: its expected accepted length from acceptance measured in runs.

        Returns the tree as parents, text and paths, its number of drafted tokens and depth, its expected accepted
        length (tokens a step, bonus or recovered token included), each node's probability to lie on the accepted path,
        the counts behind it, and the accepted length that was measured with this very tree, where it was run. With a
        cost curve of this machine (`python -m lanternpp tune`) also the predicted speedup and seconds of a step.

        Args:
            tree: a preset's name, branching per level such as "3,2,1", children of each token such as "3/2.1.0",
                EAGLE paths such as [[0], [1], [0, 0]], or {"parents": [-1, 0, 0, ...]}
            method: exact, lantern, lanternpp or annealed: whose runs the acceptance is taken from
        """
        if method not in params.METHODS:
            names = ", ".join(params.METHODS)
            raise gr.Error(f"The method {str(method)[:40]!r} drafts no tree: use {names}.", print_exception=False)
        try:
            parsed = parse_tree(tree)
        except TreeError as error:
            raise gr.Error(str(error), print_exception=False) from None
        about = {
            "parents": list(parsed.parents),
            "text": parsed.text,
            "paths": paths(parsed),
            "nodes": parsed.nodes,
            "depth": parsed.depth,
            "expected_accepted_length": None,
        }
        found = next((group for group in groups(worker) if group.header["method"] == method), None)
        if found is None:
            return about | {"note": f"No run of {METHODS[method]} is kept yet: decode one with /generate."}
        known = cost(worker)
        return about | {
            "predicted_speedup": known and round(known.speedup(parsed, found.table), 4),
            "predicted_step_seconds": known and round(known.curve.step(parsed), 6),
            "expected_accepted_length": round(expected_accepted_length(parsed, found.table), 4),
            "reach": [round(x, 5) for x in reach(parsed, found.table)],
            "measured": found.measured().get(parsed.text),
            "acceptance": found.facts(),
        }

    inputs = [Api("cpu4", {}, label="tree"), Api("lanternpp", {"type": "string"}, label="method")]
    answer = gr.JSON(visible=False, label="tree")
    gr.on([], tree, inputs=inputs, outputs=answer, api_name="tree", show_progress="hidden")


def paths(tree: Tree) -> list[list[int]]:
    """EAGLE's notation: each drafted token as its path of child ranks."""
    found: list[list[int]] = [[]]
    for node in range(1, len(tree.parents)):
        found.append([*found[tree.parents[node]], tree.ranks[node]])
    return found[1:]


_FACTS = "".join(
    f"""<div class="{name}"><p class="cap">{words}</p><p class="big"><b data-part="{name}">–</b>
    <span data-part="{name}-more"></span></p></div>"""
    for name, words in {
        "predicted": "Predicted speedup",
        "expected": "Expected accepted length",
        "measured": "Measured",
        "step": "Predicted step",
        "nodes": "Drafted",
        "depth": "Depth",
        "speedup": "Last measured speedup",
    }.items()
)
_TEMPLATE = f"""<div class="treelab">
  <div class="treelab-stage">
    <div class="facts">
      {_FACTS}
    </div>
    <p class="cap" data-part="source"></p>
    <div class="band-head tree-head"><h3>Draft tree</h3>
      <div class="legend"><span>Share of steps in which the token is on the accepted path</span>
        <div class="ramp" data-part="legend"></div></div></div>
    <div class="tree fig" data-part="tree" role="tree" tabindex="0" aria-label="Draft tree"></div>
    <p class="help node-line" data-part="node" role="status"></p>
    <div class="foot edit">
      <button type="button" class="btn sm" data-action="add">Add child</button>
      <button type="button" class="btn sm" data-action="remove">Remove</button>
      <button type="button" class="btn sm" data-action="best">Add the best next token</button>
      <button type="button" class="btn sm" data-action="undo">Undo</button>
      <button type="button" class="btn sm" data-action="redo">Redo</button>
      <span class="help keys"><kbd>↑</kbd><kbd>↓</kbd><kbd>←</kbd><kbd>→</kbd> move, <kbd>+</kbd><kbd>−</kbd> edit,
        <kbd>Z</kbd> undo</span></div>
  </div>
  <div class="treelab-rail">
    <div><label class="lab" for="lab-start">Start from</label>
      <select class="drop" id="lab-start" data-part="start"></select></div>
    <div><p class="lab">Children per token, by depth</p><div class="levels" data-part="levels"></div></div>
    <div><label class="lab" for="lab-paths">Path list</label>
      <textarea id="lab-paths" class="field" rows="6" spellcheck="false" data-part="paths"></textarea>
      <p class="help">Paste one from EAGLE or Medusa, or children per level such as 4, 2, 1.</p>
      <p class="note err" role="alert" data-part="error" hidden></p></div>
    <div><label class="lab" for="lab-rule">Acceptance measured with</label>
      <select class="drop" id="lab-rule" data-part="rule"></select></div>
    <div class="foot"><button type="button" class="btn primary" data-action="race">Run in Race</button>
      <button type="button" class="btn" data-action="save">Save preset</button>
      <button type="button" class="btn" data-action="link">Copy link</button></div>
  </div>
</div>
<div class="lab-figures">
  <figure><h3 data-part="growth-title"></h3>
    <p class="help">Line: grown by the best next token, from the acceptance beside it.</p>
    <div class="fig" data-part="growth"></div></figure>
  <figure><h3>How often a draft is accepted</h3>
    <p class="help">Given that its parent was reached and no earlier sibling accepted; n tested.</p>
    <div class="scroll"><table class="rates" data-part="rates"></table></div></figure>
  <figure><h3>Trees at hand</h3><p class="help">Accepted length, expected and, where it was run, measured.</p>
    <table class="trees"><thead><tr><th>Tree</th><th class="num">tokens</th><th class="num">expected</th>
      <th class="num costed">speedup</th><th class="num">measured</th></tr></thead>
      <tbody data-part="trees"></tbody></table></figure>
</div>
<div class="foot"><span class="lab">Keep</span>
  <button type="button" class="btn sm" data-action="json">Tree, JSON</button>
  <button type="button" class="btn sm" data-action="svg">Drawing, SVG</button>
  <button type="button" class="btn sm" data-action="csv">Acceptance, CSV</button></div>"""
