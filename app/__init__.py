"""The web app: `build_demo` makes the page, `launch_options` says how it is served."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before gradio is imported

from app import zero  # isort: skip  # before torch

import gradio as gr

from app import (
    ambiguity,
    api,
    codebook,
    html,
    inspector,
    learn,
    record,
    session,
    stage,
    sweep,
    theme,
    treelab,
    views,
)
from app.catalogue import choices_for, command_line, model_facts, weights
from lanternpp.hub import BUNDLED as MODEL

__all__ = ["MODEL", "build_demo", "command_line", "launch_options", "load_model", "model_facts"]


def build_demo(
    load: Callable[[], Any] | None = None, recordings: Path = record.FOLDER, model: str | Path | None = None,
    mode: str = "eager",
) -> gr.Blocks:
    """The page. The model is loaded by the worker's thread, which starts here and does not delay the first paint.

    model: the folder or name of the one to start with; that of LANTERNPP_MODEL or the bundled one by default. `load`
    returns a pipeline in its place. The recorded runs and example prompts are the bundled model's. mode: how all steps
    run, see lanternpp.modes.
    """
    start = str(model or os.environ.get("LANTERNPP_MODEL") or MODEL)
    choices = choices_for(start, load)
    first = choices[start]
    if zero.entry:  # its process is forked once, with the model that is loaded then
        choices = {start: first}
    worker = session.Worker(first.load, weights(Path(start)), choices, mode)
    recorded = record.load_all(recordings) if Path(start).resolve() == MODEL else []
    worker.recorded = {run: output for each in recorded for run, output in each.outputs().items()}
    for each in recorded:
        worker.measured.update(each.measured())
    worker.atlas = record.atlas(recordings)
    book = codebook.Book(worker, Path(start) if Path(start).is_dir() and not load else None)
    desk = sweep.Desk(worker, choices, start)
    with gr.Blocks(title="LANTERN++ demo", fill_width=True, analytics_enabled=False, delete_cache=(3600, 3600)) as demo:
        html.header(stage.model_line(first.about))
        line = html.words("link-note")
        learn.panel(worker)
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Race"):
                knobs = views.race_view(demo, worker, recorded, choices, start, line)
            with gr.Tab("Step inspector"):
                inspector.inspector_view(worker, recorded)
            with gr.Tab("Ambiguity"):
                ambiguity.ambiguity_view(worker, recorded)
            with gr.Tab("Codebook"):
                codebook.view(book, worker, recorded)
            with gr.Tab("Tree lab"):
                treelab.view(worker, knobs)
            with gr.Tab("Sweep"):
                sweep.view(desk, knobs, bool(recorded))
            with gr.Tab("Learn"):
                learn.view()
        api.endpoints(worker, first.about["defaults"])
        inspector.endpoint(worker)
        codebook.endpoint(book, worker)
        treelab.endpoint(worker)
        sweep.endpoint(desk)

        def left(request: gr.Request) -> None:
            worker.cancel(views.visitor(request))

        demo.unload(left)
    demo.queue(max_size=32, default_concurrency_limit=None)
    demo.worker, demo.desk = worker.start(), desk
    return demo


def load_model(where: str | Path) -> Any:
    """The pipeline of a folder or name."""
    from lanternpp.pipeline import LanternPipeline

    return LanternPipeline.from_pretrained(where)


def launch_options() -> dict[str, Any]:
    """What gradio 6 takes at launch: looks, limits, and nothing that leaves the machine."""
    return {
        "theme": theme.build_theme(),
        "css": "\n".join((html.ASSETS / name).read_text() for name in ("style.css", "lab.css", "learn.css")),
        "head": html.head(),
        "footer_links": ["api", "settings"],
        "max_file_size": "1mb",
        "run_history": False,
        "enable_monitoring": False,
    }
