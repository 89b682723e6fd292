"""The views of a finished run in headless Chromium, used as a person would, on a toy model."""

import csv
import io
import json
import random
import re

import pytest
from playwright.sync_api import expect
from serving import serve, toy_pipeline
from test_browser import browser, generate, open_tab, overflow, part, pytestmark, visit  # noqa: F401

from app import record
from app.inspector import inside
from lanternpp.detail import inspect, whatif
from lanternpp.pipeline import run
from lanternpp.relax import Relaxation
from lanternpp.tree import Tree


@pytest.fixture(scope="module")
def recorded_site(tmp_path_factory):
    """One recorded run with its details, and a model that never loads."""
    folder = tmp_path_factory.mktemp("recorded")
    pipe = toy_pipeline()
    knobs = {"seed": 3, "tree": "3,2", "k": 8}
    outputs = [pipe("fox, 3d", method=method, **knobs) for method in ("ar", "lanternpp", "exact")]
    details = [run(inspect(pipe, output.trace)) for output in outputs]
    pipe.atlas().save(folder / "atlas.png")
    record.save(folder, "fox-3", "fox", "3D", outputs, None, details)

    def never():
        raise RuntimeError("no model here")

    with serve(never, folder) as (url, _):
        yield url, outputs, details


@pytest.fixture(scope="module")
def site():
    with serve(toy_pipeline) as (url, demo):
        yield url, demo


def said(page, view: str, name: str, *words: str | re.Pattern) -> None:
    """Assert that a part of a view comes to hold these words."""
    for each in words:
        expect(part(page, name, view)).to_contain_text(each)


INSPECTOR = "#inspector [data-step], #inspector[data-step]"
AMBIGUITY = "#ambiguity [data-cell], #ambiguity[data-cell]"


def test_inspector_on_a_recorded_run_without_a_model(recorded_site, visit):  # noqa: F811
    url, outputs, details = recorded_site
    trace, detail = outputs[1].trace, details[1]
    page = visit(url)
    open_tab(page, "Step inspector", INSPECTOR)
    strip = page.locator('#inspector [data-part="strip"]')
    strip.press("Home")
    said(page, "inspector", "where", re.compile(f"^Step 1 of {trace.steps}"))
    page.locator('#inspector .node[data-n="2"]').click()
    page.wait_for_function("document.querySelector('#inspector [data-part=maths]').textContent.includes('m =')")
    event = trace.events[1]
    said(page, "inspector", "numbers", *(f"{value:.4f}" for value in (event.q[1], event.p[1], event.mass[1])))
    if event.verdicts[1] in "axr":
        said(page, "inspector", "line", f"u = {detail.uniform[1, 1]:.3f}")

    # what if: the strict end of both sliders pools nothing
    page.locator('#inspector input[aria-label="What if k"]').press("Home")
    said(page, "inspector", "if-caption", "k = 0")
    said(page, "inspector", "pool-caption", "strict")

    # keyboard: from the second child to the third, down to its child, steps on the strip, play and pause
    page.keyboard.press("Escape")
    page.locator('#inspector .node[data-n="2"]').focus()
    page.keyboard.press("ArrowDown")
    selected = page.locator('#inspector .node[aria-selected="true"]')
    expect(selected).to_have_attribute("data-n", "3")
    page.keyboard.press("ArrowRight")
    expect(selected).to_have_attribute("data-n", "8")
    strip.press("ArrowRight")
    said(page, "inspector", "where", re.compile("^Step 2 "))
    strip.press(" ")
    page.wait_for_function("document.querySelector('#inspector [data-part=where]').textContent.startsWith('Step 3')")
    strip.press(" ")
    said(page, "inspector", "play", "Play")

    with page.expect_download() as saved:
        page.click('#inspector [data-save="csv"]')
    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text())))
    assert len(rows) == sum(len(each.drafted) for each in trace.events)
    assert float(rows[0]["u"]) == pytest.approx(float(detail.uniform[1, 0]), rel=1e-5)
    with page.expect_download() as saved:
        page.click('#inspector [data-save="json"]')
    assert json.loads(saved.value.path().read_text())["run"] == trace.run_id


def test_ambiguity_on_a_recorded_run_and_on_a_phone(recorded_site, visit):  # noqa: F811
    url, outputs, details = recorded_site
    trace, detail = outputs[1].trace, details[1]
    page = visit(url, 390, 800)
    open_tab(page, "Ambiguity", AMBIGUITY)
    assert overflow(page) <= 0
    big = page.locator('#ambiguity [data-part="big"]')
    for _ in range(16):
        big.press("ArrowLeft")
    big.press("ArrowRight")
    said(page, "ambiguity", "place", "token 2 ·")
    said(page, "ambiguity", "numbers", f"{detail.entropy[1]:.2f} bits")
    expect(big).to_have_attribute("aria-valuetext", re.compile(f"{detail.entropy[1]:.2f} bits"))
    page.locator("#ambiguity .mini", has_text="Where it came from").click()
    pooled = trace.summary()["relaxed_only"]
    said(page, "ambiguity", "histogram-legend", f"Accepted only by pooling, {pooled}")
    said(page, "ambiguity", "difference-words", f"Mean {trace.summary()['accepted_length']:.2f}")
    with page.expect_download() as saved:
        page.click('#ambiguity [data-save="csv"]')
    rows = list(csv.DictReader(io.StringIO(saved.value.path().read_text())))
    assert [int(row["code"]) for row in rows] == trace.tokens
    page.click('#ambiguity [data-part="open"]')
    page.wait_for_selector(INSPECTOR)
    step = next(event.index for event in trace.events if event.position <= 1 < event.position + event.accepted)
    page.wait_for_function(
        "start => document.querySelector('#inspector [data-part=where]').textContent.startsWith(start)",
        arg=f"Step {step} ",
    )
    assert overflow(page) <= 0


def test_a_link_opens_the_inspector_at_its_step(recorded_site, visit):  # noqa: F811
    url, outputs, _ = recorded_site
    page = visit(f"{url}?view=Step+inspector&run={outputs[2].trace.run_id}&step=2&node=4")
    page.wait_for_selector(INSPECTOR)
    page.wait_for_function("document.querySelector('#inspector [data-part=name]').textContent.startsWith('Draft 4')")
    said(page, "inspector", "where", re.compile("^Step 2 "))


def test_a_finished_run_is_looked_into_and_judged_alike_in_the_browser(site, visit):  # noqa: F811
    url, demo = site
    page = visit(url)
    generate(page)
    open_tab(page, "Step inspector", INSPECTOR)
    page.wait_for_function("document.querySelector('#inspector [data-part=maths]').textContent.includes('m =')")
    [(name, detail)] = [(name, each) for name, each in demo.worker.details.items() if each.uniform.shape[1]]
    trace = demo.worker.output(name).trace
    depths = Tree(tuple(trace.header["tree"]["parents"])).depths

    rng, asked, expected = random.Random(1), [], []
    for _ in range(1000):
        event, node = rng.randrange(1, len(trace.events)), rng.randrange(1, detail.uniform.shape[1] + 1)
        rule = rng.choice(["lantern", "lanternpp", "annealed"])
        bound = rng.choice([0.0, 0.05, 0.3, 1.0]) if rule == "lantern" else rng.choice([1.0, 1.3, 2.0, 3.7, 10.0])
        knobs = {"k": rng.choice([0, 1, 2, 5, 20, 63]), "bound": bound, "gamma": rng.choice([0.0, 0.5, 0.8, 1.0])}
        asked.append([inside(demo.worker, name, event, node), {"rule": rule, **knobs}])
        expected.append(whatif(detail, event, node, Relaxation(rule, **knobs), depths[node]))
    got = page.evaluate(
        "asked => asked.map(([node, knobs]) => { const r = Lantern.whatif(node, knobs); "
        "return [r.verdict, r.mass, r.pooled]; })", asked
    )
    assert [tuple(each) for each in got] == expected
    assert {letter for letter, _, _ in expected} >= {"a", "r"}
