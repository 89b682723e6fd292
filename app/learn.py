"""The Learn view: a tour of six steps through the other views, over one recorded run, with the maths and references.

All words are in assets/strings/LANGUAGE.json; all numbers in them are read from the run's trace and its detail. A
sentence that names a number which this run cannot tell is left out.
"""

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

import gradio as gr
import numpy as np

from app import html, inspector, params, stage
from app.session import Worker
from lanternpp.detail import whatif
from lanternpp.relax import Relaxation
from lanternpp.trace import StepEvent, Trace
from lanternpp.tree import Tree

STRINGS = html.ASSETS / "strings"
LANGUAGE = "LANTERNPP_LANGUAGE"  # the environment variable that names another file of strings

_PANEL = """<section class="tour" data-part="panel" hidden>
  <div class="tour-words"><p class="cap"><span data-part="count"></span><span class="keys" data-part="keys"></span></p>
    <h2 data-part="title" tabindex="-1"></h2><p data-part="text"></p>
    <p class="look"><span data-part="look"></span></p></div>
  <div class="tour-buttons"><button type="button" class="btn sm" data-part="back"></button>
    <button type="button" class="btn sm primary" data-part="next"></button>
    <button type="button" class="btn sm" data-part="leave"></button></div>
</section>"""


def words(language: str | None = None, folder: Path = STRINGS) -> dict[str, Any]:
    """The view's strings in a language; what its file lacks, or a file that is not there, is English."""
    english = json.loads((folder / "en.json").read_text(encoding="utf-8"))
    path = folder / f"{Path(language or os.environ.get(LANGUAGE) or 'en').name}.json"
    return english | (json.loads(path.read_text(encoding="utf-8")) if path.exists() else {})


@dataclass(frozen=True)
class Material:
    """What the tour is about: a LANTERN++ run, plain AR of the same prompt, seed and sampling, and the exact tree."""

    run: Trace
    plain: Trace
    exact: Trace | None
    detail: Any = None

    @property
    def tree(self) -> Tree:
        return Tree(tuple(self.run.header["tree"]["parents"]))

    @property
    def relaxation(self) -> Relaxation:
        header = self.run.header
        return Relaxation(*(header[name] for name in ("method", "k", "bound", "gamma", "order")))


def material(worker: Worker) -> Material | None:
    """The most telling run that is kept, recorded ones first: looked into, with a draft saved by pooling, on a tree
    that is more than one level deep. None where there is no run with a tree and its baseline."""
    outputs = [*worker.recorded.values(), *list(worker.runs.values())]

    def like(trace: Trace, method: str) -> Trace | None:
        same = (*params.SAMPLING, "model") if method == "ar" else (*params.SAMPLING, "model", "tree")
        wanted = [method, *(trace.header.get(name) for name in same)]
        traces = (other.trace for other in outputs)
        return next((t for t in traces if [t.header.get(name) for name in ("method", *same)] == wanted), None)

    best, most = None, -1
    for output in outputs:
        trace = output.trace
        plain = like(trace, "ar")
        if trace.header["method"] != "lanternpp" or trace.header["temperature"] == 0 or plain is None:
            continue
        known = bool(getattr(output, "detail", None)) or trace.run_id in worker.details
        score = 4 * known + 2 * bool(trace.summary()["relaxed_only"]) + (len(set(trace.header["tree"]["parents"])) > 2)
        if score > most:
            best, most = Material(trace, plain, like(trace, "exact"), None), score
    return best and Material(best.run, best.plain, best.exact, worker.detail(best.run.run_id))


def step_ms(trace: Trace) -> float:
    """Mean milliseconds of a decoding step, the prefill left out."""
    return 1000 * (trace.events[-1].seconds - trace.events[0].seconds) / max(1, trace.steps)


def middle(trace: Trace, good: Callable[[StepEvent], bool]) -> StepEvent:
    """The step nearest the middle of the picture of which `good` is true; the nearest of all where it is of none."""
    steps = trace.events[1:]
    return min([each for each in steps if good(each)] or steps,
               key=lambda each: abs(each.position - trace.header["grid"] ** 2 / 2))  # fmt: skip


def tested(trace: Trace) -> Iterator[tuple[StepEvent, int]]:
    """Every draft that was judged: its step and node."""
    for event in trace.events:
        for node, verdict in enumerate(event.verdicts, 1):
            if verdict in stage.TESTED and event.q[node - 1] > 0:
                yield event, node


def places(found: Material) -> dict[str, tuple[StepEvent, int]]:
    """Where the lessons look: the longest step, a place that the target filled, a draft that pooling saved or tried."""
    run = found.run
    most = max(len(each.path) for each in run.events[1:] if each.ending != "end")
    long = middle(run, lambda each: len(each.path) == most and each.ending != "end")
    drawn = middle(run, lambda each: each.ending == "recovered")
    lifted = [(event, node) for event, node in tested(run) if event.verdicts[node - 1] == "x"]
    # Where pooling decided nothing: a draft that it lifted, though not far enough.
    lifted = lifted or [(event, node) for event, node in tested(run) if event.verdicts[node - 1] == "r"]
    lift = [event.mass[node - 1] - event.p[node - 1] for event, node in lifted]
    telling = [each for each, own in zip(lifted, lift, strict=True) if own >= max(lift) / 2]
    saved = middle(run, lambda event: any(event is each for each, _ in telling))
    node = next(node for event, node in telling if event is saved)
    return {
        "long": (long, long.path[-1] if long.path else 1),
        "drawn": (drawn, drawn.position + len(drawn.path)),
        "saved": (saved, node),
    }


def facts(found: Material) -> dict[str, str | None]:
    """Every number that the lessons may name, as text; None where this run cannot tell."""
    run, plain, exact, tree = found.run, found.plain, found.exact, found.tree
    summary, at = run.summary(), places(found)
    long, (saved, node) = at["long"][0], at["saved"]
    shares = [min(1.0, event.p[i - 1] / event.q[i - 1]) for event, i in tested(run)]
    cost = step_ms(run) / step_ms(plain)
    told = {
        "tokens": len(plain.tokens),
        "codes": f"{run.header['codes']:,}",
        "device": run.header["device"],
        "ar_passes": len(plain.events),
        "ar_ms": f"{step_ms(plain):.1f}",
        "ar_seconds": f"{plain.seconds['total']:.2f}",
        "nodes": tree.nodes,
        "places": tree.nodes + 1,
        "deep": tree.depth if tree.depth > 1 else None,
        "flat": tree.nodes if tree.depth == 1 else None,
        "tree_ms": f"{step_ms(run):.1f}",
        "cost": f"{cost:.2f}",
        "kept": len(long.path),
        "brought": len(long.tokens),
        "passes": len(run.events),
        "length": f"{summary['accepted_length']:.2f}",
        "seconds": f"{run.seconds['total']:.2f}",
        "exact_passes": exact and len(exact.events),
        "exact_length": exact and f"{exact.summary()['accepted_length']:.2f}",
        "tested": len(shares),
        "strict": f"{100 * np.mean(shares):.0f} %",
        "relaxed": summary["relaxed_only"],
        "k": run.header["k"],
        "bound": f"{run.header['bound']:g}",
        "tv": f"{1 - 1 / run.header['bound']:.2f}",
        "q": number(saved.q[node - 1]),
        "r": number(saved.p[node - 1]),
        "m": number(saved.mass[node - 1]),
        "strict_at": number(min(1.0, saved.p[node - 1] / saved.q[node - 1])),
        "limit": number((run.header["bound"] - 1) * saved.p[node - 1]),
    }
    return {name: None if value is None else str(value) for name, value in (told | inner(found, saved, node)).items()}


def inner(found: Material, saved: StepEvent, node: int) -> dict[str, Any]:
    """The numbers that only a run's detail holds."""
    names = ("u", "pooled", "pooled_at", "missed_at", "top1")
    if found.detail is None:
        return dict.fromkeys(names)
    event = found.run.events.index(saved)
    pooled = whatif(found.detail, event, node, found.relaxation, found.tree.depths[node])[2]
    threshold = number(min(1.0, saved.mass[node - 1] / saved.q[node - 1]))
    passed = saved.verdicts[node - 1] == "x"
    # One that pooling would have saved is rejected, too, where a later sibling passed the strict rule.
    uniform = float(found.detail.uniform[event, node - 1])
    missed = not passed and uniform * saved.q[node - 1] > saved.mass[node - 1]
    return {
        "u": number(uniform),
        "pooled": min(pooled, found.run.header["codes"] - 1),
        "pooled_at": threshold if passed else None,
        "missed_at": threshold if missed else None,
        "top1": f"{float(np.median(found.detail.top1)):.2f}",
    }


def number(x: float) -> str:
    """A probability in three digits."""
    return f"{x:.3f}" if x >= 0.0005 or x == 0 else f"{x:.1e}"


def told(sentences: list[str], known: dict[str, str | None]) -> str:
    """The sentences with their numbers filled in; one that names an unknown number is left out."""
    names = [[name for _, name, _, _ in Formatter().parse(each) if name] for each in sentences]
    return " ".join(each.format_map(known) for each, own in zip(sentences, names, strict=True)
                    if all(known.get(name) is not None for name in own))  # fmt: skip


def tour(worker: Worker, strings: dict[str, Any]) -> dict[str, Any] | None:
    """The six lessons and the answers: title, text, where to look; None where no run can be told of."""
    found = material(worker)
    if found is None:
        return None
    known, at = facts(found), places(found)
    number_of = {id(event): i for i, event in enumerate(found.run.events)}
    inspector = {"tab": "Step inspector", "run": found.run.run_id}
    long, saved = ({"step": number_of[id(event)], "node": node} for event, node in (at["long"], at["saved"]))
    half = middle(found.plain, lambda each: True)
    ambiguity = {"tab": "Ambiguity", "run": found.run.run_id}
    pooled = at["saved"][0].position + found.tree.depths[at["saved"][1]] - 1
    where = [
        inspector | {"run": found.plain.run_id, "step": found.plain.events.index(half), "focus": "strip"},
        inspector | long | {"focus": "wrap"},
        inspector | long | {"focus": "mask"},
        ambiguity | {"map": "entropy", "cell": at["drawn"][1], "focus": "big"},
        inspector | saved | {"focus": "card"},
        ambiguity | {"map": "origin", "cell": pooled, "focus": "big"},
    ]
    lessons = [
        {"title": each["title"], "look": each["look"], "text": told(each["text"], known), "place": place}
        for each, place in zip(strings["lessons"], where, strict=True)
    ]
    answers = [told(each["answer"], known) for each in strings["questions"]]
    header = found.run.header
    about = strings["about"].format(run=stage.describe(header), tree=header["tree"]["name"], seed=header["seed"],
                                    prompt=header["prompt"], device=header["device"])  # fmt: skip
    return {"lessons": lessons, "answers": answers, "about": about}


def panel(worker: Worker) -> gr.HTML:
    """The tour's panel, above the tabs: hidden until the tour begins."""
    strings = words()

    def lessons(_: Any) -> dict[str, Any] | None:
        """The tour over the best run that is kept by now; nothing where there is none."""
        return tour(worker, strings)

    value = {"words": strings, "tour": tour(worker, strings)}
    functions = inspector.server_functions(worker)  # the panel is there from the start: it fetches ahead for the views
    script = "Lantern.tour(element, props, server)"
    return html.component(_PANEL, script, "tour", value, server_functions=[lessons, *functions])


def view() -> gr.HTML:
    """The Learn tab, filled in the browser from the panel's value; call it inside a gr.Tab."""
    return html.component('<div class="learn" data-part="learn"></div>', "Lantern.learn(element)", "learn")


