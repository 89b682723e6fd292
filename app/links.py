"""What a link asks of the page: knobs, the model, a view and a place in it. What cannot be had is told in one sentence.

The page's script opens the view (assets/links.js); here every value is checked once, against what this server has.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from app import learn, params, picker
from app.catalogue import Choice
from app.session import Worker
from lanternpp.settings import BOUNDS, KNOBS, Knob
from lanternpp.tree import shortened

FEW = 3  # values of which it is also said what they may be
GRADIO_VIEWS = ("api", "settings")  # gradio's own pages, under the name that views of this one may have as well


@dataclass
class Asked:
    """What a link asks for and can have; `refused` has a name, a value and what would be possible for the rest."""

    model: str = ""
    knobs: dict[str, object] = field(default_factory=dict)
    refused: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def sentence(self) -> str:
        """Nothing where all of it can be had."""
        if not self.refused:
            return ""
        few = len(self.refused) <= FEW
        parts = [f"{name} {shortened(value)}" + f" ({rule})" * few for name, value, rule in self.refused]
        said = " and ".join(filter(None, [", ".join(parts[:-1]), parts[-1]]))
        end = "the default stands" if len(parts) == 1 else "their defaults stand"
        return f"This link asks for {said}, which cannot be had here: {end}."


def read(query: Mapping[str, str], worker: Worker, choices: Mapping[str, Choice], start: str, tabs: Iterable[str],
         lessons: int) -> Asked:
    """Check a link's values. `tabs` are the titles of the views; names that the page does not know are left alone."""
    asked = Asked()
    names = {choice.name: where for where, choice in choices.items()}
    if model := query.get("model"):
        asked.model = names.get(model, "")
        if not asked.model:
            asked.refused.append(("model", model, "may be any in the list of models"))
    about = choices[asked.model or start].about
    knobs = {name: text for name, text in query.items() if name in params.PAGE}
    asked.knobs = params.from_query(knobs, about.get("codes"))
    asked.refused += [(name, text, allowed(name)) for name, text in knobs.items() if name not in asked.knobs]
    asked.refused += places(query, worker, about, list(tabs), lessons)
    return asked


def places(query: Mapping[str, str], worker: Worker, about: Mapping[str, Any], tabs: list[str],
           lessons: int) -> list[tuple[str, str, str]]:
    """What of a link's view and place is not there."""
    view = query.get("view", "")
    tab = query.get("tab") or (view if view not in GRADIO_VIEWS else "")
    refused = []
    if tab and slug(tab) not in map(slug, tabs):
        refused.append(("tab", tab, f"may be {', '.join(map(slug, tabs))}"))
    tops = {"lesson": (1, lessons)}
    if codes := about.get("codes"):
        tops["code"] = (0, codes - 1)
    if run := query.get("run"):
        output = worker.output(run)
        if output is None:
            refused.append(("run", run, "must be a run that is still kept"))
        else:
            nodes = len(output.trace.header["tree"]["parents"]) - 1
            tops |= {"step": (1, max(1, output.trace.steps)), "node": (0, nodes)}
    for name, (low, high) in tops.items():
        text = query.get(name, "")
        if text and not (re.fullmatch(r"\d{1,6}", text) and low <= int(text) <= high):
            refused.append((name, text, f"must be a whole number from {low} to {high:,}"))
    return refused


def slug(title: str) -> str:
    """A view's title as links spell it; as Lantern.slug."""
    return re.sub(r"[\s_]+", "-", title.strip().lower())


def allowed(name: str) -> str:
    """What a knob of the page may be, in a few words."""
    knob: Knob | None = {"lam": BOUNDS["lanternpp"], "delta": BOUNDS["lantern"]}.get(name) or KNOBS.get(name)
    if knob is not None and knob.low is not None:
        kind = "a whole number" if knob.whole else "a number"
        low, high = (f"{end:,}" if knob.whole else f"{end:g}" for end in (knob.low, knob.high))
        return f"must be {kind} from {low} to {high}"
    choices = {"style": params.STYLES, "method": params.METHODS, "order": KNOBS["order"].choices}.get(name)
    if choices:
        return f"may be {', '.join(choices)}"
    words = {"prompt": "must be a few words", "branching": "must be children per level, such as 3, 2, 1"}
    return words.get(name, "may be any that the page offers")


def wire(
    demo: gr.Blocks,
    worker: Worker,
    choices: dict[str, Choice],
    models: gr.Dropdown,
    note: gr.HTML,
    line: gr.HTML,
    knobs: dict[str, gr.Component],
    chips: gr.HTML,
    visitor: Callable[[gr.Request | None], str],
) -> None:
    """When the page opens, its knobs and its model become those of the link; the page's script knows both from then on.

    line: where the page says what was refused. note: the line of the model that is being loaded.
    """
    start, style = models.value, picker.own_style(knobs)
    lessons = len(learn.words()["lessons"])

    def opened(request: gr.Request) -> list:
        tabs = [block.label for block in demo.blocks.values() if isinstance(block, gr.Tab)]
        query = dict(request.query_params) if request else {}
        asked = read(query, worker, choices, start, tabs, lessons)
        choice = choices[asked.model or start]
        changed: dict[str, Any] = picker.opening(choice, style) if choice.where != start else {}
        for name, value in asked.knobs.items():
            if name == "top_k" and name in changed:
                value = gr.Slider(value=value, maximum=changed[name].maximum)
            if name != "style" or choice.styled:
                changed[name] = value
        said = {"text": asked.sentence} if asked.refused else gr.skip()
        model = choice.where if choice.where != start else gr.skip()
        return [said, model, gr.HTML(visible=choice.styled), *(changed.get(name, gr.skip()) for name in knobs)]

    def load(name: str, request: gr.Request) -> Iterator[Any]:
        if name == start or name not in choices:
            yield gr.skip()
        else:
            yield from picker.choose(worker, visitor(request), choices[name], start)

    names = json.dumps({where: choice.name for where, choice in choices.items()})
    follow = {
        "fn": None,
        "inputs": [models, *knobs.values()],
        "js": f"(model, ...values) => {{ Lantern.linked.model = {names}[model]; "
        f"Lantern.page({list(knobs)}, values); return []; }}",
    }
    hidden: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
    loaded = demo.load(opened, None, [line, models, chips, *knobs.values()], queue=False, **hidden)
    loaded.then(**follow, queue=False, **hidden)
    loaded.then(load, models, note, concurrency_limit=None, **hidden)
    changes = [models.change, *(knob.change for name, knob in knobs.items() if name != "k")]
    gr.on(changes, **follow, queue=False, **hidden)
