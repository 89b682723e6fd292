"""The tabs and their wiring, nothing else: what is shown where, and which handler an event calls."""

import uuid
from collections.abc import Callable, Iterator

import gradio as gr

from app import api, html, links, params, picker, race, record, stage, widgets
from app.catalogue import Choice
from app.session import Worker

EXAMPLES = ("red apple", "owl", "sailboat", "sunflower", "fox", "castle", "mushroom", "hatching chick")


def visitor(request: gr.Request | None) -> str:
    """Who asks: the page's session, or a new one for a call that has none."""
    return getattr(request, "session_hash", None) or uuid.uuid4().hex


def race_view(
    demo: gr.Blocks, worker: Worker, recordings: list[record.Recorded], choices: dict[str, Choice], start: str,
    line: gr.HTML,
) -> dict[str, gr.Component]:
    """The Race tab: prompt and stage, the rail of knobs, the maps, the downloads. Returns its knobs.

    line: where the page says what a link asked for in vain.
    """
    recorded = recordings[0] if recordings else None
    about, styled = choices[start].about, choices[start].styled
    opening = params.opening(about["defaults"], styled) | dict(zip(("prompt",), choices[start].examples, strict=False))
    if recorded:
        opening |= recorded.page()
    thumbnails = {each.prompt: each.thumbnail() for each in recordings}

    with gr.Row(elem_id="layout"):
        with gr.Column(elem_id="stage-column"):
            with gr.Row(elem_id="promptline"):
                knobs = widgets.prompt(opening, styled)
                go = gr.Button("Generate", variant="primary", elem_id="generate")
                stop = gr.Button("Stop", interactive=False, elem_id="stop")
            chips = html.chips([(text, thumbnails.get(text, "")) for text in EXAMPLES], visible=styled)
            first = recorded.stage() if recorded else stage.empty_stage()
            board = html.race_stage(first, api.server_functions(worker, "atlas"))
        with gr.Column(elem_id="rail"):
            models, note = picker.model_picker(choices, start)
            rail, bound, dice = widgets.rail(opening, about.get("codes"))
    html.accepted_length_maps()
    html.downloads(api.server_functions(worker, "trace", "figure", "gif", "report"))
    knobs = {name: (knobs | rail)[name] for name in params.PAGE}

    picker.wire(demo, worker, choices, models, note, knobs, chips, visitor)
    inputs = list(knobs.values())
    outputs = [board, knobs["seed"], stop]

    def handler(action: Callable) -> Callable:
        """The stage's values as they come; the seed that was used is written back once, and Stop is live meanwhile."""

        def run(request: gr.Request, *values) -> Iterator[tuple]:
            begun, value = False, None
            for value, settings in action(worker, visitor(request), values):
                busy = value.get("state") in ("running", "loading") or bool(value.get("measuring"))
                written = settings.seed if busy and not begun else gr.skip()
                yield value, written, gr.Button(interactive=busy) if busy != begun else gr.skip()
                begun = busy
            if value is None:  # a call that yields nothing would empty the outputs
                yield gr.skip(), gr.skip(), gr.skip()

        return run

    # Each new call makes the worker end the visitor's older one within a step, so calls need not wait for each other.
    live = {
        "inputs": inputs,
        "outputs": outputs,
        "show_progress": "hidden",
        "trigger_mode": "multiple",
        "concurrency_limit": None,
        "api_visibility": "private",
    }
    gr.on([go.click, knobs["prompt"].submit], handler(race.generate), **live)
    bound.settle(handler(race.again), **live)
    board.measure(handler(race.measure), **live)

    def end(request: gr.Request) -> None:
        worker.cancel(visitor(request))

    stop.click(end, queue=False, show_progress="hidden", api_visibility="private")

    client = {"fn": None, "show_progress": "hidden", "api_visibility": "private", "queue": False}
    dice.click(**client, outputs=knobs["seed"], js="() => Math.floor(Math.random() * 100000)")
    chips.pick(**client, inputs=chips, outputs=knobs["prompt"], js="prompt => prompt")
    links.wire(demo, worker, choices, models, note, line, knobs, chips, visitor)
    return knobs
