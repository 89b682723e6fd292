"""Figures from traces, for papers and slides. matplotlib's Figure without pyplot has no state that threads share."""

import io
from typing import Any

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, ListedColormap
from matplotlib.figure import Figure
from PIL import Image

from app import stage
from lanternpp.trace import Trace

LENGTHS = 6  # longer steps share the last colour
COLORS = {
    "ar": "#6a7280", "exact": "#1d68b3", "lantern": "#16776f", "lanternpp": "#e0801f", "annealed": "#2b2e35",
    "coupled": "#7a4fb5", "coupled-relaxed": "#b0468c", "eagle2": "#5d6d1e",
}
VIRIDIS = ListedColormap(["#46186b", "#3d4b89", "#2b748e", "#25988a", "#63c860", "#fde725"])
DIFFERENCE = LinearSegmentedColormap.from_list("difference", ["#2f7fd6", "#efece6", "#e0801f"])


def grid_of(values: list[int]) -> np.ndarray:
    """A list over a square picture's tokens as rows and columns."""
    side = round(len(values) ** 0.5)
    return np.asarray(values).reshape(side, side)


def accepted_length(axes: Any, trace: Trace, title: str) -> Any:
    """One map: each token coloured by how many tokens its step committed."""
    image = axes.imshow(
        grid_of(trace.accepted_map()), cmap=VIRIDIS, vmin=0.5, vmax=LENGTHS + 0.5, interpolation="nearest"
    )
    axes.set_title(title, fontsize=8, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    return image


def histogram(axes: Any, traces: list[Trace]) -> None:
    """How many steps brought how many tokens, the prefill left out."""
    height = 0.8 / len(traces)
    same = len({trace.header["method"] for trace in traces}) < len(traces)
    for row, trace in enumerate(traces):
        counts = np.bincount([min(LENGTHS, event.accepted) for event in trace.events[1:]], minlength=LENGTHS + 1)[1:]
        label = f"{stage.describe(trace.header)}: {trace.steps} steps, mean {trace.summary()['accepted_length']:.2f}"
        places = np.arange(1, LENGTHS + 1) + (row - (len(traces) - 1) / 2) * height
        axes.barh(
            places,
            counts,
            height * 0.9,
            color=COLORS[trace.header["method"]],
            label=label,
            alpha=0.45 if same and row == 0 else 1,
        )
    axes.set_yticks(range(1, LENGTHS + 1), [*map(str, range(1, LENGTHS)), f"{LENGTHS}+"])
    axes.invert_yaxis()
    axes.set_xlabel("steps", fontsize=8)
    axes.set_ylabel("tokens that a step brought", fontsize=8)
    axes.tick_params(labelsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(fontsize=7, frameon=False, loc="lower right")


def comparison(traces: list[Trace], images: list[Image.Image]) -> Figure:
    """Pictures, maps, their difference and the histogram of one or two runs, with the settings and the hardware."""
    figure = Figure(figsize=(11, 5.4), layout="constrained")
    axes = figure.subplot_mosaic([["p0", "m0", "d", "h"], ["p1", "m1", "d", "h"]], width_ratios=[1, 1, 1, 1.5])
    shown = None
    for row in range(2):
        picture, cells = axes[f"p{row}"], axes[f"m{row}"]
        picture.set_axis_off()
        if row >= len(traces):
            cells.set_axis_off()
            continue
        picture.imshow(images[row])
        header, seconds = traces[row].header, traces[row].seconds["total"]
        tree = "" if header["method"] == "ar" else f"tree {header['tree']['name']}, "
        picture.set_title(f"{stage.describe(header)}\n{tree}{seconds:.2f} s", fontsize=8, loc="left")
        shown = accepted_length(cells, traces[row], "accepted length\nof each token")
    figure.colorbar(shown, ax=[axes["m0"], axes["m1"]], ticks=range(1, LENGTHS + 1), shrink=0.5, aspect=12)
    axes["d"].set_axis_off()
    if len(traces) == 2 and len(traces[0].tokens) == len(traces[1].tokens):
        change = grid_of(traces[1].accepted_map()) - grid_of(traces[0].accepted_map())
        image = axes["d"].imshow(change, cmap=DIFFERENCE, vmin=-4, vmax=4, interpolation="nearest")
        axes["d"].set_title("difference, second minus first", fontsize=8, loc="left")
        figure.colorbar(image, ax=axes["d"], shrink=0.4, aspect=12)
    histogram(axes["h"], traces)
    header = traces[-1].header
    lines = f"“{header['prompt']}”, seed {header['seed']}, {header['model']}. {'; '.join(stage.hardware(header))}."
    figure.suptitle(lines.replace("$", r"\$"), fontsize=8, x=0.01, ha="left")
    return figure


def data_url(figure: Figure) -> str:
    """A figure as the data URL of a PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=160)
    return stage.as_url(buffer.getvalue())
