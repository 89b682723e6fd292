"""Named endpoints for programs, and what the page's components may ask the server for."""

import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import gradio as gr
from gradio.components.api_component import Api

from app import gif, plots, report, stage
from app.jobs import Busy, Job
from app.session import Worker, events
from lanternpp.settings import KNOBS, Settings, SettingsError

NUMBER = {"type": "number"}
KINDS = {
    "prompt": {"type": "string"},
    "method": {"type": "string"},
    "order": {"type": "string"},
    "seed": {"type": "integer"},
    "k": {"type": "integer"},
    "top_k": {"type": "integer"},
    "tree": {},
}
NAMES = [name for name in KNOBS if name != "mode"]  # that is the host's to choose: compiling holds up all visitors
drawing = threading.Lock()  # matplotlib's fonts are shared
DRAWING = 5.0  # seconds that a figure waits for another one
PATIENCE = 10.0  # seconds that a figure waits for a run
LANES = 3  # of a race
TICK = 0.5  # seconds between two reports of a running call


def server_functions(worker: Worker, *names: str) -> list[Callable]:
    """Functions that a component's script may call: cheap, checked, and never the decoder."""

    def atlas(model: Any) -> str | None:
        """Every code decoded alone, as a data URL; nothing before the model is there, nor for another one's line."""
        return worker.atlas if not model or model == stage.model_line(worker.about) else None

    def trace(run: Any) -> str | None:
        """The whole trace of a finished run, as JSON text; nothing where it is not kept."""
        output = find(worker, run)
        return output.trace.to_json() if output else None

    def figure(chosen: Any) -> str | None:
        """Accepted-length maps of one or two finished runs, as the data URL of a PNG."""
        return drawn(worker, chosen, 2, lambda outputs: plots.data_url(
            plots.comparison([each.trace for each in outputs], [each.images[0] for each in outputs])
        ))

    def race_gif(chosen: Any) -> str | None:
        """The race of one to three finished runs, as the data URL of a GIF; nothing where and while `figure` has none.
        """
        return drawn(worker, chosen, LANES, lambda outputs: stage.as_url(gif.race_gif(outputs), "image/gif"))

    def page(chosen: Any) -> str | None:
        """One to three finished runs on one page of HTML; nothing where and while `figure` has none."""
        return drawn(worker, chosen, LANES, lambda outputs: report.page(outputs, measured(worker)))

    race_gif.__name__, page.__name__ = "gif", "report"  # what scripts call them
    known = {"atlas": atlas, "trace": trace, "figure": figure, "gif": race_gif, "report": page}
    return [known[name] for name in names]


def drawn(worker: Worker, chosen: Any, most: int, draw: Callable[[list], str]) -> str | None:
    """What `draw` makes of different finished runs, at most `most`; nothing where one is not kept.

    Nor while a long run is being decoded: its time must not pay for a figure.
    """
    ids = chosen[:most] if isinstance(chosen, list) else []
    outputs = list({id(output): output for output in (find(worker, run) for run in ids)}.values())
    if not outputs or None in outputs or not worker.quiet(PATIENCE) or not drawing.acquire(timeout=DRAWING):
        return None
    try:
        return draw(outputs)
    finally:
        drawing.release()


def measured(worker: Worker) -> Callable[[Any], dict | None]:
    """What is known of a run's speedup over several pairs."""
    return lambda trace: worker.measured.get((trace.header["model"], stage.key(trace.header)))


def find(worker: Worker, run: Any) -> Any:
    """A finished or recorded run by its id, None where there is none."""
    return worker.output(run) if isinstance(run, str) else None


def endpoints(worker: Worker, defaults: dict[str, Any]) -> None:
    """/generate decodes one method, /compare the baseline and a method; call it inside a gr.Blocks."""

    def generate(
        prompt,
        method="lanternpp",
        tree="cpu4",
        k=100,
        bound=None,
        gamma=0.8,
        order="strict-first",
        seed=0,
        cfg_scale=3.0,
        temperature=1.0,
        top_k=1000,
        top_p=1.0,
        request: gr.Request = None,
    ):
        """Paint a prompt with one method. Returns the picture, measured stats and the trace of every step.

        Args:
            prompt: a thing, a style and a background in a few words, such as "red apple, 3d, white background"
            method: ar, exact, lantern, lanternpp, annealed, coupled, coupled-relaxed or eagle2
            tree: a preset's name, branching per level such as "3,2,1", or {"parents": [-1, 0, 0, ...]}
            k: how many of the nearest codes may be pooled; 0 is exact
            bound: δ from 0 to 1 for lantern, λ from 1 to 10 for lanternpp, annealed
                and coupled-relaxed; null takes the method's default
            gamma: annealed only: the bound's excess is multiplied by it at each further depth
            order: strict-first or sequential
            seed: the same seed and settings paint the same picture
            cfg_scale: guidance; 1 is none
            temperature: 0 is greedy
            top_k: only that many most probable tokens may occur; 0 allows all
            top_p: only the most probable tokens that make up this share may occur
        """
        settings = checked(prompt, method, tree, k, bound, gamma, order, seed, cfg_scale, temperature, top_k, top_p)
        for outputs, progress in decode(worker, caller(request), [settings]):
            if outputs is None:
                yield None, progress, None
            else:
                [output] = outputs
                yield output.images[0], stats(output.trace), json.loads(output.trace.to_json())

    def compare(
        prompt,
        method="lanternpp",
        tree="cpu4",
        k=100,
        bound=None,
        gamma=0.8,
        order="strict-first",
        seed=0,
        cfg_scale=3.0,
        temperature=1.0,
        top_k=1000,
        top_p=1.0,
        request: gr.Request = None,
    ):
        """Paint a prompt with plain autoregression, then with a method, each alone, at equal seed and sampling.

        Returns both pictures, stats with the measured speedup (one pair), and both traces. Arguments as for /generate.
        """
        settings = checked(prompt, method, tree, k, bound, gamma, order, seed, cfg_scale, temperature, top_k, top_p)
        for outputs, progress in decode(worker, caller(request), [settings.baseline(), settings]):
            if outputs is None:
                yield None, None, progress, None
            else:
                base, output = outputs
                traces = {"ar": json.loads(base.trace.to_json()), "method": json.loads(output.trace.to_json())}
                both = {
                    "speedup": stage.speedup(base.trace, output.trace),
                    "pairs": 1,
                    "ar": stats(base.trace),
                    "method": stats(output.trace),
                }
                yield base.images[0], output.images[0], both, traces

    values = {name: knob.default for name, knob in KNOBS.items()} | defaults | {"bound": None}
    inputs = [Api(values[name], KINDS.get(name, NUMBER), label=name) for name in NAMES]
    picture, second = (
        gr.Image(format="png", visible=False, label=label) for label in ("picture", "picture of the method")
    )
    numbers, traces = (gr.JSON(visible=False, label=label) for label in ("stats", "trace"))
    shared = {"inputs": inputs, "concurrency_limit": None, "show_progress": "hidden"}
    gr.on([], generate, outputs=[picture, numbers, traces], api_name="generate", **shared)
    gr.on([], compare, outputs=[picture, second, numbers, traces], api_name="compare", **shared)
    exports(worker)


def exports(worker: Worker) -> None:
    """/race_gif and /report: files of finished runs; call it inside a gr.Blocks."""
    [film, page] = server_functions(worker, "gif", "report")

    def race_gif(run_ids: list[str]) -> str:
        """The race of finished runs as a GIF, painted at their measured relative speed; a data URL of it.

        Args:
            run_ids: one to three, as in the traces that /generate and /compare returned; plain AR first
        """
        return there(film(run_ids))

    def comparison(run_ids: list[str]) -> str:
        """Finished runs on one page: pictures, numbers, accepted-length maps, settings, hardware; HTML text.

        Args:
            run_ids: one to three, as in the traces that /generate and /compare returned; plain AR first
        """
        return there(page(run_ids))

    gr.api(race_gif, api_name="race_gif", queue=False)
    gr.api(comparison, api_name="report", queue=False)


def there(made: str | None) -> str:
    """An export, or one sentence in its place."""
    if made is None:
        raise gr.Error(
            "Nothing was made: name one to three runs that are still kept, and ask when no run is being decoded.",
            print_exception=False,
        )
    return made


def checked(*values: Any) -> Settings:
    """Settings from an API call's arguments; what the schema refuses becomes one sentence for the caller."""
    try:
        return Settings.checked(**dict(zip(NAMES, values, strict=True)))
    except SettingsError as error:
        raise gr.Error(str(error), print_exception=False) from None


def decode(worker: Worker, visitor: str, settings: list[Settings]) -> Iterator[tuple[list | None, dict]]:
    """Run a job for a program: (None, progress) while it runs, then its outputs; an error is one sentence."""
    job = Job(visitor, settings)
    try:
        worker.submit(job, replace=False)
    except Busy as error:
        raise gr.Error(str(error), print_exception=False) from None
    outputs: list[Any] = []
    progress = {"state": "waiting", "run": 0, "tokens": 0}
    for event in events(worker, job, TICK):
        match event:
            case ("step", lane, step):
                progress = {"state": "running", "run": lane, "tokens": step.position + len(step.tokens)}
                if step.index % 32:
                    continue
            case ("done", _, output):
                outputs.append(output)
                continue
            case ("error", text):
                raise gr.Error(text, print_exception=False)
            case ("stopped", _):
                raise gr.Error("The run was stopped.", print_exception=False)
        yield None, progress
    yield outputs, progress


def stats(trace: Any) -> dict[str, Any]:
    """A run's measured numbers and where they were measured."""
    device, rest = stage.hardware(trace.header)
    return {
        "run_id": trace.run_id,
        "method": trace.header["method"],
        **stage.figures(trace),
        "device": device,
        "settings": rest,
    }


def caller(request: gr.Request | None) -> str:
    """Calls of one program share a turn; they do not end each other's runs."""
    return f"api-{getattr(request, 'session_hash', None) or id(request)}"
