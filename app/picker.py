"""The choice of the model: a list with what each needs, and a line that says how loading goes."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr

from app import html, params, stage
from app.catalogue import Choice
from app.jobs import Busy, Job
from app.session import Worker, events, held
from lanternpp.checkpoints import ModelError
from lanternpp.settings import KNOBS


def model_picker(choices: dict[str, Choice], start: str) -> tuple[gr.Dropdown, gr.HTML]:
    """The list, which learns its facts when the page has opened, and the line below it."""
    titles = [(choice.title, name) for name, choice in choices.items()]
    picker = gr.Dropdown(titles, value=start, label="Model", elem_id="knob-model", filterable=False)
    return picker, html.words("model-note")


def choose(worker: Worker, visitor: str, choice: Choice, start: str) -> Iterator[dict[str, str]]:
    """Load a model for a visitor; yields values of the line: what happens, and the model's own line once it is there.

    Asks for nothing that is known to fail: a model without its files, or too large, leaves the loaded one in place.
    """
    model = "" if choice.where == start else choice.where
    worker.chosen[visitor] = model
    worker.cancel(visitor)
    if worker.pipe is not None and worker.loaded == model:
        yield said(choice, worker, "")
        return
    job, began = Job(visitor, []), time.monotonic()
    try:
        if model:
            choice.check(held(worker.pipe))
        worker.submit(job)
    except (ModelError, Busy) as error:
        yield said(choice, worker, str(error))
        return
    yield said(choice, worker, f"Loading {choice.title}.")
    for event in events(worker, job):
        ahead = worker.ahead(job)
        match event:
            case ("tick",) if ahead:
                yield said(choice, worker, f"Loads after {ahead} {'run' if ahead == 1 else 'runs'}.")
            case ("tick",):
                yield said(choice, worker, f"Loading {choice.title}{worker.size}, {time.monotonic() - began:.0f} s.")
            case ("model", about):
                text = f"Loaded in {time.monotonic() - began:.0f} s. {need(choice)}".strip()
                yield said(choice, worker, text) | {"model": stage.model_line(about)}
            case ("error", text):
                yield said(choice, worker, text)


def said(choice: Choice, worker: Worker, text: str) -> dict[str, str]:
    """A value of the line; without words it tells what the model needs."""
    there = {"model": stage.model_line(worker.about)} if not text and worker.about else {}
    return {"text": text or need(choice), **there}


def need(choice: Choice) -> str:
    """What a model needs, where that is known."""
    return f"Needs {choice.needs / 1e9:.1f} GB of memory." if choice.needs else ""


def opening(choice: Choice, bundled_style: str) -> dict[str, Any]:
    """What the page's knobs become for a model: its own defaults, its codes, and a style only where it reads one."""
    values = params.opening(choice.about["defaults"])
    codes = choice.about.get("codes")
    changed: dict[str, Any] = {
        name: values[name] for name in ("method", "same", "tree", "branching", "k", "cfg_scale", "temperature", "top_p")
    }
    high = codes or int(KNOBS["top_k"].high)
    changed["top_k"] = gr.Slider(value=min(values["top_k"], high), maximum=high)
    changed["style"] = gr.Dropdown(value=bundled_style if choice.styled else params.AS_TYPED, visible=choice.styled)
    if choice.examples:
        changed["prompt"] = choice.examples[0]
    return changed


def own_style(knobs: dict[str, gr.Component]) -> str:
    """The style in which the page opens, for a model that reads one."""
    style = knobs["style"].value
    return style if style in params.STYLES and style != params.AS_TYPED else next(iter(params.STYLES))


def wire(
    demo: gr.Blocks,
    worker: Worker,
    choices: dict[str, Choice],
    picker: gr.Dropdown,
    note: gr.HTML,
    knobs: dict[str, gr.Component],
    chips: gr.HTML,
    visitor: Callable[[gr.Request | None], str],
) -> None:
    """A choice loads the model and sets the knobs; the list's facts come when the page is open."""
    start, style = picker.value, own_style(knobs)

    def pick(name: str, request: gr.Request) -> Iterator[list]:
        choice, changed = choices[name], opening(choices[name], style)
        for number, value in enumerate(choose(worker, visitor(request), choice, start)):
            first = [changed.get(knob, gr.skip()) for knob in knobs] + [gr.HTML(visible=choice.styled)]
            yield [value, *(first if not number else [gr.skip()] * len(first))]

    def listed() -> gr.Dropdown:
        freed = held(worker.pipe)
        return gr.Dropdown([(choice.line(freed), name) for name, choice in choices.items()])

    hidden = {"show_progress": "hidden", "api_visibility": "private", "concurrency_limit": None}
    picker.input(pick, picker, [note, *knobs.values(), chips], trigger_mode="multiple", **hidden)
    demo.load(listed, None, picker, **hidden)
