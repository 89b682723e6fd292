"""The race as a GIF: the lanes side by side, painted at their measured relative speed in a few seconds."""

import io
from bisect import bisect_right
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from app import stage
from lanternpp.settings import METHODS
from lanternpp.trace import Trace, pictured

SECONDS = 5.0  # that the slowest lane takes
TICK = 80  # milliseconds a frame
REST = 2500  # of the last frame
SIDE, GAP, EDGE, TOP = 256, 16, 14, 36  # pixels
COLORS, GREYS = 240, 16  # of the palette: the pictures' own, then from paper to ink
PAPER, INK = (251, 250, 248), (26, 28, 32)
# The face that matplotlib brings along: Pillow's own has no Greek letters.
FACE = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf"


def race_gif(outputs: Sequence[Any]) -> bytes:
    """A GIF of one to three finished runs, each with `trace` and `images`; the first is the baseline if it is AR."""
    traces = [output.trace for output in outputs]
    sheet, palette = indexed([output.images[0] for output in outputs])
    longest = max(trace.seconds["total"] for trace in traces)
    count = round(1000 * SECONDS / TICK)
    bare = empty(palette, traces)
    frames = [frame(bare, sheet, traces, longest * number / count) for number in range(count + 1)]
    buffer = io.BytesIO()
    frames[0].save(
        buffer, "GIF", save_all=True, append_images=frames[1:], duration=[TICK] * count + [REST], loop=0, optimize=False
    )
    return buffer.getvalue()


def indexed(images: Sequence[Image.Image]) -> tuple[Image.Image, list[int]]:
    """The pictures in a row as palette indices, dithered once so that frames differ only where paint is added."""
    row = Image.new("RGB", (SIDE * len(images), SIDE))
    for place, image in enumerate(images):
        row.paste(image.convert("RGB").resize((SIDE, SIDE), Image.Resampling.BICUBIC), (place * SIDE, 0))
    few = row.quantize(COLORS)
    own = (few.getpalette() or [])[: 3 * COLORS]
    own += [0] * (3 * COLORS - len(own))
    greys = [round(a + (b - a) * step / (GREYS - 1)) for step in range(GREYS) for a, b in zip(PAPER, INK, strict=True)]
    return row.quantize(palette=few, dither=Image.Dither.FLOYDSTEINBERG), own + greys


def empty(palette: list[int], traces: Sequence[Trace]) -> Image.Image:
    """A frame with all that stays: the lanes' names, bare wells, the run in a line."""
    width = 2 * EDGE + len(traces) * SIDE + (len(traces) - 1) * GAP
    out = Image.new("P", (width, TOP + SIDE + 58), COLORS)
    out.putpalette(palette)
    for place, trace in enumerate(traces):
        x = EDGE + place * (SIDE + GAP)
        out.paste(COLORS + 1, (x, TOP, x + SIDE, TOP + SIDE))
        write(out, (x, EDGE), METHODS[trace.header["method"]], 14)
    header, longest = traces[-1].header, max(trace.seconds["total"] for trace in traces)
    where = f"one run each on {header['device']}, {header['dtype']}"
    line = f"“{header['prompt']}”, seed {header['seed']} · shown at {longest / SECONDS:.2g}× real speed · {where}"
    write(out, (EDGE, TOP + SIDE + 30), fitted(line, width - 2 * EDGE), 11, 0.7)
    return out


def frame(bare: Image.Image, sheet: Image.Image, traces: Sequence[Trace], now: float) -> Image.Image:
    """What stood on the page `now` seconds after the lanes began together."""
    out = bare.copy()
    for place, trace in enumerate(traces):
        x, total = EDGE + place * (SIDE + GAP), trace.seconds["total"]
        paint(out, sheet.crop((place * SIDE, 0, (place + 1) * SIDE, SIDE)), (x, TOP), trace, now)
        done = now >= total - 1e-9
        gain = place and done and traces[0].header["method"] == "ar"
        times = f" · {stage.speedup(traces[0], trace):.2f}×" if gain else ""
        write(out, (x, TOP + SIDE + 6), f"done in {total:.2f} s{times}" if done else f"{now:.2f} s", 12)
    return out


def paint(out: Image.Image, picture: Image.Image, corner: tuple[int, int], trace: Trace, now: float) -> None:
    """The tokens that were there after `now` seconds; whole once the pixels were decoded."""
    (x, y), grid = corner, trace.header["grid"]
    steps = bisect_right([event.seconds for event in trace.events], now)
    count = sum(len(pictured(event, trace.header)) for event in trace.events[:steps])
    row, column = divmod(grid * grid if now >= trace.seconds["total"] - 1e-9 else count, grid)
    top, bottom = row * SIDE // grid, (row + 1) * SIDE // grid
    if top:
        out.paste(picture.crop((0, 0, SIDE, top)), (x, y))
    if column:
        out.paste(picture.crop((0, top, column * SIDE // grid, bottom)), (x, y + top))


@cache
def face(size: int) -> ImageFont.FreeTypeFont:
    """The labels' face."""
    return ImageFont.truetype(str(FACE), size)


def write(out: Image.Image, corner: tuple[int, int], text: str, size: int, strength: float = 1.0) -> None:
    """Text in the palette's greys."""
    font = face(size)
    mask = Image.new("L", (out.width - corner[0], size + 6), 0)
    ImageDraw.Draw(mask).text((0, 0), text, 255, font)
    box = mask.getbbox()
    if box:
        mask = mask.crop((0, 0, box[2], mask.height)).point([COLORS + round(v / 255 * strength * (GREYS - 1)) for v in
                                                             range(256)])
        out.paste(Image.frombytes("P", mask.size, mask.tobytes()), corner)


def fitted(text: str, width: int, size: int = 11) -> str:
    """As much of a line as fits."""
    font = face(size)
    while font.getlength(text) > width and len(text) > 1:
        text = text[:-2].rstrip() + "…"
    return text
