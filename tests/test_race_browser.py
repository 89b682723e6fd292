"""The race's strips of steps, its third lane, the same picture and the exports in headless Chromium."""

import base64
import shutil
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest
from PIL import Image
from serving import serve, toy_pipeline
from test_browser import browser, generate, open_tab, overflow, pytestmark, soon, text, traces, visit  # noqa: F401
from test_inspector_browser import INSPECTOR

from app import gif, record, stage

LINK = "?prompt=red+apple&method=lanternpp&same=true&against=exact&k=60&lam=10&seed=7&tree=custom&branching=3,2&top_k=0"


@pytest.fixture(scope="module")
def site():
    with serve(toy_pipeline) as (url, demo):
        yield url, demo


@pytest.fixture(scope="module")
def recorded_url(tmp_path_factory):
    """One recorded run of the bundled model, and a model that never loads."""
    folder = tmp_path_factory.mktemp("recorded")
    for file in record.FOLDER.glob("red-apple-7*"):
        shutil.copy(file, folder)

    def never():
        raise RuntimeError("no model here")

    with serve(never, folder) as (url, _):
        yield url


def strip(page, lane: int):
    return page.locator(".lane .steps").nth(lane)


def cell(page, lane: int, step: int) -> dict[str, float]:
    """Where a step's cell lies in its strip."""
    return page.evaluate(
        """([lane, step]) => {
            const canvas = document.querySelectorAll('.lane .steps')[lane], grid = Lantern.last.shown.grid || 16;
            const rows = Math.ceil((grid * grid - 1) / (2 * grid)), tall = Math.min(10, Math.max(3, 80 / rows));
            return { x: ((step - 1) % (2 * grid) + 0.5) * canvas.clientWidth / (2 * grid),
                     y: (Math.floor((step - 1) / (2 * grid)) + 0.5) * tall };
        }""",
        [lane, step],
    )


def shown_pixels(page, lane: int) -> bytes:
    url = page.locator(".lane .well canvas").nth(lane).evaluate("canvas => canvas.toDataURL()")
    return base64.b64decode(url.split(",")[1])


def test_three_lanes_from_a_link(visit, site):  # noqa: F811
    url, demo = site
    page = visit(url + LINK, reduced_motion="reduce")
    page.wait_for_function("document.querySelector('#knob-same input').checked")
    assert page.input_value("#knob-against input") == "Exact tree"
    assert page.is_visible("#knob-lam") and not page.is_visible("#knob-delta")
    generate(page)
    base, same, exact = found = traces(page, demo)
    assert [trace.header["method"] for trace in found] == ["ar", "coupled-relaxed", "exact"]
    assert page.locator(".lane:visible").count() == 3

    # each lane has its own numbers beside AR's
    rows = dict(line.split("\t", 1) for line in page.inner_text("#stage tbody").splitlines())
    gains = [stage.speedup(base, trace) for trace in (same, exact)]
    assert rows["Speedup"].split() == ["–", *(f"{gain:.2f}×" for gain in gains)]
    assert rows["Seconds"].split() == [f"{trace.seconds['total']:.2f}" for trace in found]

    # departures from AR's picture, in words and on the picture; the marks can be taken off
    parted = stage.same(base, same)
    assert parted["swapped"] and page.locator(".lane .same").nth(1).inner_text() == parted["words"]
    marked = shown_pixels(page, 1)
    page.click('#stage [data-part="marks"]')
    bare = shown_pixels(page, 1)
    page.click('#stage [data-part="marks"]')
    assert bare != marked == shown_pixels(page, 1)

    # a strip by keyboard: the tooltip and the spoken text are the trace's, Enter goes to the step's moment
    strip(page, 1).press("Home")
    strip(page, 1).press("ArrowRight")
    event = same.events[2]
    head = f"Step 2 of {same.steps}: {event.accepted} token"
    assert page.locator(".lane .tip").nth(1).inner_text().startswith(head)
    assert head in strip(page, 1).get_attribute("aria-valuetext")
    strip(page, 1).press("Enter")
    soon(page, lambda: text(page, "clock").startswith(f"{event.seconds:.2f} s"), True)
    assert text(page, "picked").startswith(f"Coupled, relaxed, step 2 of {same.steps}")
    count = sum(each.accepted for each in same.events[:3])
    label = page.locator(".lane .well canvas").nth(1).get_attribute("aria-label")
    assert f"{count} of 16 tokens painted" in label

    # by mouse, and on to the inspector at that step
    strip(page, 2).click(position=cell(page, 2, 3))
    assert text(page, "picked").startswith(f"Exact tree, step 3 of {exact.steps}")
    link = page.locator('#stage [data-part="inspect"]')
    query = parse_qs(urlsplit(link.get_attribute("href")).query)
    assert (query["tab"], query["run"], query["step"]) == (["step-inspector"], [exact.run_id], ["3"])
    link.click()
    page.wait_for_selector(INSPECTOR)
    page.wait_for_function(
        "n => document.querySelector('#inspector [data-part=where]').textContent.startsWith(`Step 3 of ${n}`)",
        arg=exact.steps,
    )
    assert page.locator("#inspector [data-run]").or_(page.locator("#inspector[data-run]")).first.get_attribute(
        "data-run") == exact.run_id
    open_tab(page, "Race", "#generate:visible")

    # exports
    page.wait_for_selector("#foot [data-action=gif]:enabled")
    with page.expect_download() as film:
        page.click("#foot [data-action=gif]")
    with Image.open(film.value.path()) as image:
        assert image.n_frames > 3 and image.width == 2 * gif.EDGE + 3 * gif.SIDE + 2 * gif.GAP
    with page.expect_download() as report:
        page.click("#foot [data-action=report]")
    written = Path(report.value.path()).read_text()
    assert report.value.suggested_filename.endswith(".html")
    assert all(trace.run_id in written for trace in found) and parted["words"] in written

    # the link keeps switch and second method, and the switch is there only where a rule has such a form
    kept = parse_qs(urlsplit(page.evaluate("Lantern.link(Lantern.knobs)")).query)
    assert kept["same"] == ["true"] and kept["against"] == ["exact"] and "delta" not in kept
    page.click("#knob-method label:has-text('LANTERN, δ')")
    page.wait_for_function("!document.querySelector('#knob-same').offsetParent")
    assert page.is_visible("#knob-delta")

    # a phone
    page.set_viewport_size({"width": 390, "height": 844})
    page.wait_for_timeout(300)
    assert overflow(page) <= 0
    tops = page.evaluate("[...document.querySelectorAll('.lane')].map(e => e.getBoundingClientRect().top)")
    assert len(set(tops)) == 1


@pytest.mark.skipif(not (record.FOLDER / "red-apple-7.json").exists(), reason="the recorded runs are not there")
def test_255_steps_fit_a_phone_before_any_model_is_there(visit, recorded_url):  # noqa: F811
    page = visit(recorded_url, 390, 844, reduced_motion="reduce", has_touch=True)
    assert overflow(page) <= 0
    strip(page, 0).click(position=cell(page, 0, 255))
    assert text(page, "picked").startswith("Plain AR, step 255 of 255: 1 token")
    strip(page, 0).click(position=cell(page, 0, 1))
    assert text(page, "picked").startswith("Plain AR, step 1 of 255: 1 token")
    assert "2 of 256 tokens painted" in page.locator(".lane .well canvas").first.get_attribute("aria-label")
    page.click('#stage [data-part="inspect"]')
    page.wait_for_selector(INSPECTOR)
