"""Recorded runs: what plays at first paint, before any model is loaded. `python -m app.recorder` makes them.

A run is assets/recorded/NAME.json (lanes: the traces of the baseline, the method and others; images: the names of their
PNGs beside it; pairs: measured pairs, where there are any). NAME-LANE.npz holds what a lane's verdicts compared
(lanternpp.detail), atlas.png every code decoded alone. Its picture stands on the example chip of the same prompt.
"""

import json
import logging
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from PIL import Image

from app import params, stage
from lanternpp.settings import Settings
from lanternpp.trace import Trace

FOLDER = Path(__file__).resolve().parent.parent / "assets" / "recorded"
log = logging.getLogger(__name__)


@dataclass
class Recorded:
    """Runs of one prompt: the baseline, the method beside it, then others for the maps."""

    name: str
    prompt: str
    style: str
    traces: list[Trace]
    images: list[Image.Image]
    pairs: dict[str, Any] | None = None
    details: list[Path | None] | None = None

    def outputs(self) -> dict[str, Any]:
        """The runs by id, as the worker keeps finished ones."""
        details = self.details or [None] * len(self.traces)
        return {
            trace.run_id: SimpleNamespace(images=[image], trace=trace, detail=detail)
            for trace, image, detail in zip(self.traces, self.images, details, strict=True)
        }

    def measured(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Its measured pairs by model and stage.key, as the worker keeps those of finished measurements."""
        pairs = self.pairs and self.pairs | {"recorded": True}
        return {(self.traces[0].header["model"], pairs["key"]): pairs} if pairs else {}

    def page(self) -> dict[str, Any]:
        """The page's values at which the method's run was made."""
        return params.of_run(self.traces[1].header) | {"prompt": self.prompt, "style": self.style}

    def thumbnail(self) -> str:
        """The method's picture, small enough for a chip."""
        return stage.data_url(self.images[1].resize((56, 56), Image.Resampling.LANCZOS))

    def stage(self) -> dict[str, Any]:
        """The run as the stage plays it."""
        runs = zip(self.traces, self.images, strict=True)
        lanes = [stage.lane_of(trace, image, self.traces[0] if at else None) for at, (trace, image) in enumerate(runs)]
        return stage.stage(
            "done",
            lanes[:2],
            more=lanes[2:],
            serial=0,
            recorded=True,
            typed=[self.prompt, self.style],
            pairs=list(self.measured().values()) or None,
            grid=self.traces[0].header["grid"],
            model=stage.model_line(self.traces[0].header),
        )


def save(
    folder: Path,
    name: str,
    prompt: str,
    style: str,
    outputs: list[Any],
    pairs: dict | None = None,
    details: list[Any] | None = None,
) -> Path:
    """Write a recorded run from the outputs of its lanes and, where given, their details."""
    folder.mkdir(parents=True, exist_ok=True)
    images = [f"{name}-{lane}.png" for lane in range(len(outputs))]
    for file, output in zip(images, outputs, strict=True):
        output.images[0].save(folder / file, optimize=True)
    for lane, (output, detail) in enumerate(zip(outputs, details or [], strict=False)):
        save_detail(folder / f"{name}-{lane}.npz", detail, output.trace)
    lanes = [json.loads(output.trace.to_json()) for output in outputs]
    for lane in lanes:
        lane["header"]["recorded"] = True
    path = folder / f"{name}.json"
    path.write_text(json.dumps({"prompt": prompt, "style": style, "images": images, "pairs": pairs, "lanes": lanes}))
    return path


def save_detail(path: Path, detail: Any, trace: Trace) -> None:
    """Write a lane's detail, made small."""
    settings = Settings.checked(**trace.header["settings"])
    detail.thinned(settings.relaxation, settings.tree.depths).save(path)


def atlas(folder: Path = FOLDER) -> str | None:
    """Every code of the recorded model decoded alone, as a data URL; None where it was not recorded."""
    try:
        with Image.open(folder / "atlas.png") as image:
            return stage.data_url(image.convert("RGB"))
    except OSError:
        return None


def load(path: Path) -> Recorded:
    """Read one recorded run."""
    data = json.loads(path.read_text())
    images = []
    for file in data["images"]:
        with Image.open(path.parent / Path(file).name) as image:
            images.append(image.convert("RGB"))
    traces = [Trace.from_json(json.dumps(lane)) for lane in data["lanes"]]
    files = [path.with_name(f"{path.stem}-{lane}.npz") for lane in range(len(traces))]
    details = [file if file.exists() else None for file in files]
    return Recorded(path.stem, data["prompt"], data["style"], traces, images, data.get("pairs"), details)


def load_all(folder: Path = FOLDER) -> list[Recorded]:
    """All readable recorded runs; the one with measured pairs comes first, it plays at first paint."""
    found = []
    for path in sorted(folder.glob("*.json")):
        try:
            each = load(path)
            params.from_page(*(params.opening({}) | each.page()).values())
            json.dumps([each.stage(), each.thumbnail(), list(each.outputs())])  # all that the page will ask of it
            found.append(each)
        except Exception as error:  # a damaged file must not keep the page from opening
            log.warning("the recorded run %s could not be read: %s", path.name, error)
    return sorted(found, key=lambda each: each.pairs is None)
