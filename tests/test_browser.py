"""The page in headless Chromium: what a visitor clicks, reads and hears, on a toy model; once on the bundled one."""

import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import synthetic
from playwright.sync_api import TimeoutError, expect, sync_playwright
from serving import OPEN, leave, serve, toy_pipeline

from app import MODEL, catalogue, load_model, record
from lanternpp.pipeline import run
from lanternpp.settings import Settings

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PROMPT = "#knob-prompt textarea, #knob-prompt input"
STAGE = "#stage [data-state], #stage[data-state]"
SLOW = 2.0  # seconds a step: none of its runs ends before the test has acted
expect.set_options(timeout=30_000)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(not Path(CHROMIUM).exists(), reason="needs Chromium, as apt's chromium package installs it"),
]


@pytest.fixture(scope="module")
def browser():
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def site():
    with serve(toy_pipeline) as (url, demo):
        yield url, demo


@pytest.fixture(scope="module")
def slow_site():
    """A page whose runs last until the test lets them end, by the pause of the pipeline that comes with it."""
    pipe = toy_pipeline()
    with serve(lambda: pipe) as (url, _):
        yield url, pipe


@pytest.fixture
def visit(browser):
    """Opens pages; at the end, no script may have failed and nothing outside this machine been asked for."""
    faults = []

    def request(asked):
        if not re.match(r"(https?://(127\.0\.0\.1|localhost)[:/]|data:|blob:)", asked.url):
            faults.append(f"asked for {asked.url}")

    def visit(url: str, width: int = 1440, height: int = 1000, **context):
        page = browser.new_context(viewport={"width": width, "height": height}, **context).new_page()
        OPEN.append(page)
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("console", lambda line: faults.append(line.text) if line.type == "error" else None)
        page.on("request", request)
        page.set_default_timeout(60_000)
        page.goto(url)
        page.wait_for_selector(STAGE, state="attached")  # a link may have opened another tab
        page.wait_for_function("document.body.dataset.method")
        return page

    yield visit
    leave(list(OPEN))
    assert not faults, faults


def open_tab(page, name: str, ready: str) -> None:
    """Open a view as its link does, until it is there: a click before the page has woken up is lost."""
    for _ in range(12):
        page.evaluate("name => Lantern.openTab(name)", name)
        try:
            page.wait_for_selector(ready, timeout=5_000)
            return
        except TimeoutError:
            continue
    page.wait_for_selector(ready)


def soon(page, read: Callable[[], Any], wanted: Any) -> None:
    """Assert that `read` comes to what is wanted: an event changes each part of the page in that part's own time."""
    end = time.monotonic() + 30
    while (found := read()) != wanted and time.monotonic() < end:
        page.wait_for_timeout(50)
    assert found == wanted


def part(page, name: str, view: str = "stage"):
    """A named part of a view, for `expect`."""
    return page.locator(f'#{view} [data-part="{name}"]')


def state(page) -> str:
    return page.eval_on_selector(STAGE, "element => element.dataset.state")


def wait_state(page, *wanted, timeout=60_000):
    page.wait_for_function(
        "wanted => wanted.includes(document.querySelector('#stage [data-state], #stage[data-state]').dataset.state)",
        arg=list(wanted),
        timeout=timeout,
    )


def text(page, part: str) -> str:
    return page.inner_text(f'#stage [data-part="{part}"]')


def generate(page, prompt="red apple", timeout=60_000):
    page.fill(PROMPT, prompt)
    before = page.eval_on_selector(STAGE, "element => Number(element.dataset.serial)")
    page.click("#generate")
    page.wait_for_function(
        "before => Number(document.querySelector('#stage [data-serial]').dataset.serial) > before", arg=before
    )
    wait_state(page, "done", timeout=timeout)


def runs(page) -> list[str]:
    """The run ids that the page shows beside its pictures."""
    return re.findall(r"run ([0-9a-f]{8})", text(page, "run"))


def traces(page, demo):
    kept = {run[:8]: output.trace for run, output in demo.worker.runs.items()}
    return [kept[run] for run in runs(page)]


def overflow(page) -> int:
    return page.evaluate("document.documentElement.scrollWidth - window.innerWidth")


def check_speedup(page, demo):
    base, lane = traces(page, demo)
    shown = float(text(page, "hero").replace("×", ""))
    assert shown == pytest.approx(base.seconds["total"] / lane.seconds["total"], abs=0.006)
    rows = dict(line.split("\t", 1) for line in page.inner_text("#stage tbody").splitlines())
    assert rows["Seconds"].split() == [f"{trace.seconds['total']:.2f}" for trace in (base, lane)]
    assert rows["Target passes"].split() == [str(len(trace.events)) for trace in (base, lane)]
    assert "n = 1" in text(page, "facts") and base.header["device"] in text(page, "facts")


def test_generate_and_read_the_speedup(visit, site):
    url, demo = site
    page = visit(url)
    assert state(page) == "empty" and text(page, "hero") == "–"
    before = page.evaluate("window.lanternPaints")
    generate(page)
    check_speedup(page, demo)
    assert page.evaluate("window.lanternPaints") > before
    assert [trace.header["prompt"] for trace in traces(page, demo)] == ["red apple, 3d"] * 2
    # another prompt hides the pictures at once; the same prompt brings them back
    page.fill(PROMPT, "blue fox")
    wait_state(page, "stale")
    assert text(page, "hero") == "–" and not runs(page)
    page.fill(PROMPT, "red apple")
    wait_state(page, "done")


def test_the_keyboard_turns_k_and_the_method_decodes_again(visit, site):
    url, demo = site
    page = visit(url)
    generate(page)
    first = runs(page)
    page.focus("#knob-k input[type=range]")
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(
        "first => !document.querySelector('[data-part=run]').textContent.includes(first)", arg=first[1]
    )
    wait_state(page, "done")
    again = runs(page)
    assert again[0] == first[0] and again[1] != first[1]
    assert "baseline kept from an earlier run" in text(page, "facts") and "one pair" not in text(page, "facts")
    expect(part(page, "left-run", "maps").locator("option").first).to_contain_text("k = 50, λ = 2, tree cpu4")
    assert traces(page, demo)[1].header["k"] == 50
    # gradio's own slider, by keyboard too
    page.focus("#knob-lam input[type=range]")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("run => !document.querySelector('[data-part=run]').textContent.includes(run)", arg=again[1])
    wait_state(page, "done")
    assert traces(page, demo)[1].header["bound"] == pytest.approx(2.1)


def test_replay_by_keyboard_and_maps_by_focus(visit, site):
    page = visit(site[0], reduced_motion="reduce")
    generate(page)
    expect(page.locator("#maps select option")).to_have_count(4)  # two runs either side, once decoded
    assert "Replay" in text(page, "play")
    page.focus('#stage [data-part="tracks"]')
    page.keyboard.press("Home")
    assert text(page, "clock").startswith("0.00 s")
    page.keyboard.press("ArrowRight")
    assert "LANTERN++ 1 tokens" in page.get_attribute('#stage [data-part="tracks"]', "aria-valuetext")
    page.keyboard.press("End")
    assert "16 tokens" in page.get_attribute('#stage [data-part="tracks"]', "aria-valuetext")
    page.focus('#maps [data-part="left"]')
    page.keyboard.press("ArrowRight")
    assert "row 1, column 2" in page.inner_text('#maps [data-part="tip"]')
    assert "in step" in page.get_attribute('#maps [data-part="left"]', "aria-valuetext")
    page.hover('#maps [data-part="right"]', position={"x": 5, "y": 5})
    expect(part(page, "tip", "maps")).to_contain_text("row 1, column 1")


def test_knobs_are_there_only_where_the_rule_reads_them(visit, site):
    page = visit(site[0])
    expected = {
        "Exact tree": [],
        "LANTERN, δ": ["k", "delta"],
        "LANTERN++, λ": ["k", "lam"],
        "Annealed, λ": ["k", "lam", "gamma"],
    }
    for label, shown in expected.items():
        page.click(f"#knob-method label:has-text('{label}')")
        knobs = ("k", "lam", "delta", "gamma")
        soon(page, lambda: [name for name in knobs if page.is_visible(f"#knob-{name}")], shown)  # noqa: B023
    assert not page.is_visible("#knob-branching")
    page.click("#knob-tree input")
    page.click("#knob-tree li:has-text('Custom'), ul.options li:has-text('Custom')")
    page.fill("#knob-branching textarea, #knob-branching input", "2, 2, 1")
    page.wait_for_function(
        "document.querySelector('#tree-preview svg').getAttribute('aria-label').startsWith('10 drafted')"
    )


def test_an_error_stands_beside_its_field(visit, site):
    page = visit(site[0])
    page.fill("#knob-seed input", "-5")
    page.fill(PROMPT, "red apple")
    page.click("#generate")
    page.wait_for_selector("#knob-seed .field-error")
    assert "Seed must be" in page.inner_text("#knob-seed .field-error")
    page.fill("#knob-seed input", "3")
    page.fill(PROMPT, "")
    page.click("#generate")
    page.wait_for_selector("#promptline + .field-error")
    assert page.locator(".field-error").count() == 1
    assert "<img" not in page.content().replace("<img ", "")
    generate(page, "<img src=x onerror=alert(1)> fox")
    assert page.locator("#stage img").count() == 0 and page.locator(".field-error").count() == 0


def test_a_refused_click_does_not_freeze_the_run(visit, slow_site):
    url, pipe = slow_site
    page, pipe.pause = visit(url), SLOW
    page.fill("#knob-seed input", "4")
    page.fill(PROMPT, "red apple")
    page.click("#generate")
    wait_state(page, "running")
    page.fill("#knob-seed input", "-5")
    page.click("#generate")
    page.wait_for_selector("#knob-seed .field-error")
    assert state(page) == "running"
    pipe.pause = 0
    wait_state(page, "done")
    assert len(runs(page)) == 2 and page.locator("#knob-seed .field-error").count() == 1


def test_stop_ends_the_run_and_the_next_one_starts(visit, slow_site):
    url, pipe = slow_site
    page, pipe.pause = visit(url), SLOW
    page.fill(PROMPT, "red apple")
    page.click("#generate")
    page.wait_for_function("/^[1-9]/.test(document.querySelector('.lane em').textContent)")
    page.click("#stop")
    wait_state(page, "stopped")
    assert "nothing was measured" in text(page, "hero-cap") and text(page, "hero") == "–"
    expect(page.locator("#stop")).to_be_disabled()
    page.click("#generate")
    wait_state(page, "running")
    page.click("#generate")
    pipe.pause = 0
    wait_state(page, "done")
    assert len(runs(page)) == 2


def test_measure_pairs(visit, site):
    page = visit(site[0])
    generate(page)
    page.click('#stage [data-part="measure"]')
    page.wait_for_function("document.querySelector('[data-part=facts]').textContent.includes('n = 5')")
    assert "quartiles" in text(page, "facts")


def test_downloads(visit, site, tmp_path):
    url, demo = site
    page = visit(url)
    generate(page)
    page.wait_for_selector("#foot button:enabled")
    with page.expect_download() as caught:
        page.click("#foot [data-action=figure]")
    assert caught.value.suggested_filename == "accepted-length.png"
    files = []
    page.on("download", lambda file: files.append(file))
    page.click("#foot [data-action=traces]")
    soon(page, lambda: len(files), 2)
    found = {json.loads(Path(file.path()).read_text())["run_id"] for file in files}
    assert found == {trace.run_id for trace in traces(page, demo)}


def test_a_link_brings_the_knobs_back(visit, site):
    page = visit(f"{site[0]}?prompt=blue+fox&style=Flat&k=7&lam=3.5&seed=42&method=annealed&top_p=oops")
    page.wait_for_function("document.body.dataset.method === 'annealed'")
    page.wait_for_function("document.querySelector('#knob-k input[type=number]').value === '7'")
    expect(page.locator(PROMPT)).to_have_value("blue fox")
    expect(page.locator("#knob-seed input")).to_have_value("42")
    expect(page.locator("#knob-lam input[type=number]")).to_have_value("3.5")
    assert state(page) == "empty"


def test_phone(visit, site):
    page = visit(site[0], 390, 844, has_touch=True, device_scale_factor=2)
    assert overflow(page) <= 0
    generate(page)
    assert overflow(page) <= 0
    order = page.evaluate("""['#knob-prompt', '.race .lane', '.hero', '.tracks', '#knob-method', '#maps'].map(
        name => document.querySelector(name).getBoundingClientRect().top + scrollY)""")
    assert order == sorted(order)
    small = page.evaluate("""
        [...document.querySelectorAll('#layout button, #layout fieldset label, #foot button, #maps button')]
        .filter(e => e.offsetParent && e.getBoundingClientRect().height < 36 && !e.closest('.hide'))
        .map(e => e.outerHTML.slice(0, 80))""")
    assert not small, small


def test_nothing_jumps_while_a_run_comes_and_goes(visit, slow_site):
    url, pipe = slow_site
    page, pipe.pause = visit(url), SLOW
    where = """['.tracks', '.transport', '#maps', '#foot'].map(
        name => document.querySelector(name).getBoundingClientRect().top + scrollY)"""
    places = [page.evaluate(where)]
    page.fill(PROMPT, "red apple")
    page.click("#generate")
    wait_state(page, "running")
    places.append(page.evaluate(where))
    seed = page.input_value("#knob-seed input")
    page.fill("#knob-k input[type=number]", "7")  # the run that goes on takes it up, and nothing new is yielded
    page.locator("#knob-k input[type=number]").blur()
    page.wait_for_timeout(1500)  # the page lets a knob settle first
    pipe.pause = 0
    wait_state(page, "done")
    places.append(page.evaluate(where))
    assert places[0] == places[1] == places[2]
    assert page.input_value("#knob-seed input") == seed != "" and page.inner_text("#stop") == "Stop"


@pytest.mark.parametrize("how", ["query", "system"])
def test_dark(visit, site, tmp_path, how):
    page = visit(site[0] + ("?__theme=dark" if how == "query" else ""), color_scheme="dark")
    page.wait_for_function(
        "document.body.classList.contains('dark') || document.documentElement.classList.contains('dark')"
    )
    color = page.evaluate("getComputedStyle(document.querySelector('.gradio-container')).backgroundColor")
    body = page.evaluate("getComputedStyle(document.body).getPropertyValue('--bg').trim()")
    assert body == "#131417", (color, body)
    page.screenshot(path=tmp_path / "dark.png")
    assert (tmp_path / "dark.png").stat().st_size > 10_000


def test_a_recorded_run_plays_at_first_paint(visit, tmp_path):
    pipe = toy_pipeline()
    settings = Settings.checked(prompt="fox, 3d", tree="3,2", top_k=0)
    outputs = [run(pipe.stream(each)) for each in (settings.baseline(), settings)]
    record.save(tmp_path, "fox-0", "fox", "3D", outputs)
    with serve(toy_pipeline, tmp_path) as (url, _):
        page = visit(url)
        assert state(page) == "done" and "recorded" in text(page, "hero-cap") and "recorded" in text(page, "run")
        assert outputs[0].trace.header["device"] in text(page, "facts")
        expect(page.locator(PROMPT)).to_have_value("fox")
        page.wait_for_function("document.querySelector('.lane em').textContent.startsWith('done')")
        still = visit(url, reduced_motion="reduce")
        assert "Replay" in text(still, "play")


def test_pairs_measured_beside_a_recorded_run_are_this_machines(visit, tmp_path):
    pipe = toy_pipeline()
    settings = Settings.checked(prompt="fox, 3d", top_k=0)
    outputs = [run(pipe.stream(each)) for each in (settings.baseline(), settings)]
    for output in outputs:
        output.trace.header["device"] = "Another machine"
    record.save(tmp_path, "fox-0", "fox", "3D", outputs)
    with serve(toy_pipeline, tmp_path) as (url, demo):
        page = visit(url, reduced_motion="reduce")
        assert "recorded" in text(page, "hero-cap") and "Another machine" in text(page, "facts")
        page.click('#stage [data-part="measure"]')
        page.wait_for_function("document.querySelector('[data-part=facts]').textContent.includes('n = 5')")
        assert "recorded" not in text(page, "hero-cap") and "recorded" in text(page, "run")
        assert demo.worker.about["device"] in text(page, "facts") and "Another" not in text(page, "facts")
        page.focus("#knob-lam input[type=range]")
        page.keyboard.press("ArrowRight")
        page.wait_for_function("document.querySelector('[data-part=price]').textContent.includes('Press Generate')")


@pytest.mark.skipif(not (MODEL / "config.json").exists(), reason="the bundled model is not there")
def test_the_bundled_model(visit):
    with serve(lambda: load_model(MODEL)) as (url, demo):
        page = visit(url)
        generate(page, "red apple, white background", timeout=400_000)
        check_speedup(page, demo)
        assert [sum(len(e.tokens) for e in trace.events) for trace in traces(page, demo)] == [256, 256]


def test_another_model_is_chosen_and_paints(visit, tmp_path):
    folder = synthetic.write(tmp_path / "lumina", "lumina")
    with serve(toy_pipeline) as (url, demo):
        demo.worker.models[str(folder)] = catalogue.of_folder(folder)
        page = visit(url)
        generate(page)
        picker = page.get_by_role("combobox", name="Model")
        option = page.get_by_role("option", name="Anole 7B (512 px), ")  # the list has its facts
        picker.click()
        option.wait_for()
        option.click()
        note = page.locator("#model-note [role=status]")
        note.filter(has_text="hf download leloy/Anole").wait_for()
        expect(page.locator("#knob-style")).to_be_hidden()
        expect(page.locator("#chips")).to_be_hidden()
        picker.click()
        page.get_by_role("option", name="Lumina-mGPT 7B (768 px)", exact=True).click()
        note.filter(has_text="Loaded in ").wait_for()
        refused = page.evaluate("Lantern.last.shown.refused || 0")
        page.focus("#knob-k input[type=range]")  # what is said of the older run does not bring its model back
        page.keyboard.press("ArrowLeft")
        page.wait_for_function("refused => Lantern.last.shown.refused > refused", arg=refused)
        expect(page.locator(".top .model")).to_contain_text("Lumina")
        generate(page, "a red fox")
        assert text(page, "hero").endswith("×")
        for trace in traces(page, demo):
            assert trace.header["model"].startswith("Lumina") and len(trace.tokens) == 20  # 16 codes, 4 row ends
        painted = page.evaluate("window.Lantern.last.shown.lanes.map(lane => lane.tokens.length)")
        assert painted == [16, 16]
