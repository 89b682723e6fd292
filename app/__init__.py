"""The web app: `build_demo` makes the page, `launch_options` says how it is served."""

import json
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")  # before gradio is imported

import gradio as gr

from app import ambiguity, api, codebook, html, inspector, record, session, stage, theme, treelab, views
from lanternpp.settings import Settings

MODEL = Path(__file__).resolve().parent.parent / "assets" / "emoji"
log = logging.getLogger(__name__)


def build_demo(load: Callable[[], Any] | None = None, recordings: Path = record.FOLDER) -> gr.Blocks:
    """The page. The model is loaded by the worker's thread, which starts here and does not delay the first paint.

    `load` returns a pipeline; by default the bundled model's, or that of the folder named by LANTERNPP_MODEL.
    """
    folder = Path(os.environ.get("LANTERNPP_MODEL") or MODEL)
    worker = session.Worker(load or (lambda: load_model(folder)), weights(folder))
    about = model_facts(folder)
    recorded = record.load_all(recordings)
    worker.recorded = {run: output for each in recorded for run, output in each.outputs().items()}
    book = codebook.Book(worker, None if load else folder)
    worker.atlas = record.atlas(recordings)
    with gr.Blocks(title="LANTERN++ demo", fill_width=True, analytics_enabled=False, delete_cache=(3600, 3600)) as demo:
        html.header(stage.model_line(about))
        with gr.Tabs(elem_id="tabs"):
            with gr.Tab("Race"):
                knobs = views.race_view(demo, worker, recorded, about)
            with gr.Tab("Step inspector"):
                inspector.inspector_view(worker, recorded)
            with gr.Tab("Ambiguity"):
                ambiguity.ambiguity_view(worker, recorded)
            with gr.Tab("Codebook"):
                codebook.view(book, worker, recorded)
            with gr.Tab("Tree lab"):
                treelab.view(worker, knobs)
        api.endpoints(worker, about["defaults"])
        inspector.endpoint(worker)
        codebook.endpoint(book, worker)
        treelab.endpoint(worker)

        def left(request: gr.Request) -> None:
            worker.cancel(views.visitor(request))

        demo.unload(left)
    demo.queue(max_size=32, default_concurrency_limit=None)
    demo.worker = worker.start()
    return demo


def load_model(folder: Path) -> Any:
    """The pipeline; its heavy imports belong to the worker's thread too, so that the page is served before them."""
    from lanternpp.pipeline import LanternPipeline

    return LanternPipeline.from_pretrained(folder)


def weights(folder: Path) -> str:
    """The size of the weights in words, nothing where there are none."""
    size = sum(file.stat().st_size for file in folder.glob("[!n]*.safetensors"))  # not the table of neighbours
    return f", {size / 1e6:.0f} MB" if size else ""


def model_facts(folder: Path) -> dict[str, Any]:
    """Name, grid, codes and defaults from the model's small config file; the weights are not touched."""
    try:
        config = json.loads((folder / "config.json").read_text())
        target, defaults = config["target"], config["defaults"] or {}
        Settings.checked(defaults, prompt="a")  # a value that no knob can hold would keep the page from opening
        return {
            "model": str(config["name"]),
            "grid": int(target["grid"]),
            "codes": int(target["codes"]),
            "defaults": dict(defaults),
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.warning("the model's config could not be read: %s", error)
        return {"defaults": {}}


def launch_options() -> dict[str, Any]:
    """What gradio 6 takes at launch: looks, limits, and nothing that leaves the machine."""
    return {
        "theme": theme.build_theme(),
        "css": "\n".join((html.ASSETS / name).read_text() for name in ("style.css", "lab.css")),
        "head": html.head(),
        "footer_links": ["api", "settings"],
        "max_file_size": "1mb",
        "run_history": False,
        "enable_monitoring": False,
    }
