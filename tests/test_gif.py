"""The GIF of a race: real runs of the toy model, read back frame by frame."""

import io

import numpy as np
import pytest
from PIL import Image
from serving import toy_pipeline

from app import gif, record
from lanternpp.pipeline import run
from lanternpp.settings import Settings


@pytest.fixture(scope="module")
def outputs():
    pipe = toy_pipeline()
    settings = Settings.checked(prompt="fox, 3d", tree="3,2", top_k=0)
    return [run(pipe.stream(each)) for each in (settings.baseline(), settings)]


def length(film: Image.Image) -> int:
    """Milliseconds until it begins again."""
    total = 0
    for number in range(film.n_frames):
        film.seek(number)
        total += film.info["duration"]
    return total


def wells(film: Image.Image, tick: int, lanes: int) -> list[np.ndarray]:
    """The pictures that are shown during a tick; equal ticks are one frame."""
    shown = 0
    for number in range(film.n_frames):
        film.seek(number)
        shown += film.info["duration"]
        if shown > tick * gif.TICK:
            break
    pixels = np.asarray(film.convert("RGB")).astype(int)
    return [pixels[gif.TOP : gif.TOP + gif.SIDE, x : x + gif.SIDE] for x in
            (gif.EDGE + lane * (gif.SIDE + gif.GAP) for lane in range(lanes))]


def test_frames_paint_what_was_there_at_their_moment(outputs):
    film = Image.open(io.BytesIO(gif.race_gif(outputs)))
    longest = max(output.trace.seconds["total"] for output in outputs)
    ticks = round(1000 * gif.SECONDS / gif.TICK)
    assert length(film) == ticks * gif.TICK + gif.REST
    empty = wells(film, 0, 2)[0][-1, -1]
    cell = gif.SIDE // 4
    for tick in (0, ticks // 3, ticks // 2, ticks):
        now = longest * tick / ticks
        for output, well in zip(outputs, wells(film, tick, 2), strict=True):
            trace = output.trace
            count = sum(event.accepted for event in trace.events if event.seconds <= now)
            count = 16 if now >= trace.seconds["total"] - 1e-9 else count
            blocks = well.reshape(4, cell, 4, cell, 3).swapaxes(1, 2).reshape(16, -1, 3)
            painted = [bool((block != empty).any()) for block in blocks]
            assert painted == [place < count for place in range(16)]
    for output, well in zip(outputs, wells(film, ticks, 2), strict=True):
        whole = output.images[0].resize((gif.SIDE, gif.SIDE), Image.Resampling.BICUBIC)
        assert np.abs(well - np.asarray(whole).astype(int)).mean() < 12


def test_a_gif_is_small_and_takes_any_number_of_lanes(outputs):
    sizes = [Image.open(io.BytesIO(gif.race_gif(outputs[:count]))).size for count in (1, 2)]
    assert sizes[1][0] - sizes[0][0] == gif.SIDE + gif.GAP
    recorded = [each for each in record.load_all() if each.name == "owl-7"]
    if recorded:
        content = gif.race_gif(list(recorded[0].outputs().values())[:3])
        assert len(content) < 3_000_000 and length(Image.open(io.BytesIO(content))) < 10_000


def test_a_long_prompt_is_cut_to_fit():
    line = gif.fitted("a very long prompt " * 20, 300)
    assert line.endswith("…") and gif.face(11).getlength(line) <= 300
