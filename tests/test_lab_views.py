"""The Codebook and Tree lab views: their endpoints, and in headless Chromium what a visitor does with them."""

import re
from dataclasses import asdict
from pathlib import Path
from xml.etree import ElementTree

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from playwright.sync_api import expect
from serving import serve, toy_pipeline
from test_browser import browser, open_tab, overflow, part, soon, visit, wait_state  # noqa: F401
from test_browser import pytestmark as needs_chromium

from app import record, treelab
from lanternpp import presets
from lanternpp.acceptance import acceptance_table, expected_accepted_length
from lanternpp.codebook import psnr
from lanternpp.cost import CostCurve
from lanternpp.pipeline import run
from lanternpp.relax import nearest_codes
from lanternpp.settings import Settings
from lanternpp.tree import PRESETS, Tree, parse_tree


@pytest.fixture(scope="module")
def outputs():
    pipe = toy_pipeline()
    method = Settings.checked(pipe.bundle.defaults, prompt="fox, 3d", tree="3,2", k=10, bound=3.0)
    return [run(pipe.stream(each)) for each in (method.baseline(), method)]


@pytest.fixture(scope="module")
def site(outputs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    record.save(folder, "fox-0", "fox", "3D", outputs)
    with serve(toy_pipeline, folder) as (url, demo):
        yield url, demo


@pytest.fixture
def tuned(monkeypatch, tmp_path):
    """A cost curve, as `tune` keeps it for the toy model on this machine."""
    monkeypatch.setenv(presets.FOLDER, str(tmp_path))
    curve = CostCurve((0, 1, 4, 16, 127), (0.010, 0.011, 0.012, 0.015, 0.040), 0.0005, 0.0001, 0.0002, 0.05)
    about = toy_pipeline().describe()
    presets.keep(PRESETS["cpu8"], about, {"found": {"cost": asdict(curve), "once": 0.02}})
    return curve


@pytest.fixture(scope="module")
def client(site):
    return Client(site[0], verbose=False)


def in_browser(test):
    for mark in needs_chromium:
        test = mark(test)
    return test


def refused(call, *args, **named) -> str:
    with pytest.raises(AppError) as caught:
        call(*args, **named)
    text = str(caught.value)
    assert "\n" not in text and "Traceback" not in text and text.endswith((".", "!")), text
    return text


def test_the_codebook_endpoint_lists_neighbours_and_exchanges_tokens(client, site, outputs):
    from PIL import Image

    trace, pipe = outputs[1].trace, toy_pipeline()
    facts, picture = client.predict(code=5, k=4, run=trace.run_id, j=2, api_name="/codebook")
    table = nearest_codes(pipe.bundle.tokenizer.codebook, 63)
    assert facts["neighbours"] == table[5, :4].tolist() and facts["distances"] == sorted(facts["distances"])
    expected = pipe.decode_pixels([int(table[token, 1]) for token in trace.tokens])
    with Image.open(picture) as image:
        assert image.convert("RGB").tobytes() == expected.tobytes()
    assert facts["psnr"] == pytest.approx(psnr(pipe.decode_pixels(trace.tokens), expected), abs=1e-3)
    same, _ = client.predict(code=5, k=1, run=trace.run_id, j=0, api_name="/codebook")
    assert same["psnr"] is None  # no neighbour was taken: the picture itself
    assert client.predict(code=5, api_name="/codebook")[1] is None
    assert "from 0 to 63" in refused(client.predict, code=64, api_name="/codebook")
    assert "not kept" in refused(client.predict, run="nothing", api_name="/codebook")


def test_the_tree_endpoint_foretells_from_kept_runs(client, outputs):
    answer = client.predict(tree=[[0], [1], [0, 0]], api_name="/tree")
    tree, table = parse_tree("2/1.0"), acceptance_table([outputs[1].trace])
    assert answer["text"] == "2/1.0" and answer["paths"] == [[0], [1], [0, 0]] and answer["depth"] == 2
    assert answer["expected_accepted_length"] == pytest.approx(expected_accepted_length(tree, table), abs=1e-4)
    assert answer["acceptance"]["tested"] == table.tested.tolist() and answer["measured"] is None
    own = client.predict(tree="3,2", api_name="/tree")["measured"]
    assert own["length"] == pytest.approx(outputs[1].trace.summary()["accepted_length"], abs=1e-4)
    assert client.predict(tree="2", method="lantern", api_name="/tree")["expected_accepted_length"] is None
    assert "skips a sibling" in refused(client.predict, tree=[[1]], api_name="/tree")
    assert "drafts no tree" in refused(client.predict, tree="2", method="ar", api_name="/tree")


def test_the_speedup_is_predicted_where_the_cost_of_a_step_was_measured(client, outputs, tuned):
    tree, table = parse_tree("4/2.1.0.0"), acceptance_table([outputs[1].trace])
    answer = client.predict(tree="4/2.1.0.0", api_name="/tree")
    own = 0.012 + (0.015 - 0.012) * 3 / 12 + 2 * 0.0005 + 2 * 0.0001 + 4 * 0.0002
    assert answer["predicted_step_seconds"] == pytest.approx(own, abs=1e-6)
    length = expected_accepted_length(tree, table)
    assert answer["predicted_speedup"] == pytest.approx((0.02 + 15 * 0.010) / (0.02 + 15 * own / length), abs=1e-4)


def test_runs_of_one_rule_are_counted_together(outputs):
    class Kept:
        recorded = {}
        runs = dict(enumerate([*outputs, outputs[1]]))

    [group] = treelab.groups(Kept)
    assert len(group.traces) == 2 and group.steps == 2 * outputs[1].trace.steps
    assert (group.table.tested == 2 * acceptance_table([outputs[1].trace]).tested).all()
    assert group.json()["measured"]["3/2"]["runs"] == 2


@in_browser
def test_a_tree_is_edited_foretold_and_run(visit, site):  # noqa: F811
    url, demo = site
    page = visit(url, reduced_motion="reduce")
    open_tab(page, "Tree lab", "#treelab svg")
    shown = "Number(document.querySelector('#treelab [data-part=expected]').textContent)"
    table = treelab.groups(demo.worker)[0].table

    def check(tree: Tree) -> None:
        page.wait_for_function(
            "count => document.querySelectorAll('#treelab [data-node]').length === count", arg=len(tree.parents)
        )
        soon(page, lambda: page.input_value("#lab-paths").count("["), tree.nodes + 1)
        length = expected_accepted_length(tree, table)
        soon(page, lambda: page.evaluate(shown), pytest.approx(length, abs=0.006))

    check(parse_tree("3,2"))  # the Race's own
    page.select_option("#lab-start", label="4 tokens: 4")
    check(PRESETS["cpu4"])
    page.click("#lab-node-2 .hit")
    page.focus('#treelab [data-part="tree"]')
    page.keyboard.press("+")
    check(parse_tree("4/0.1.0.0"))
    page.keyboard.press("Delete")
    page.keyboard.press("z")
    check(parse_tree("4/0.1.0.0"))
    page.keyboard.press("z")
    check(PRESETS["cpu4"])
    page.click('#treelab [data-do="best"]')
    best = max((parse_tree(text) for text in ("5", "4/1.0.0.0")), key=lambda t: expected_accepted_length(t, table))
    check(best)
    page.fill("#lab-paths", "[[0], [2]]")
    page.keyboard.press("Tab")
    page.wait_for_selector('#treelab [data-part="error"]:not([hidden])')
    expect(part(page, "error", "treelab")).to_contain_text("skips a sibling")
    page.fill("#lab-paths", "[[0], [1], [0, 0]]")
    page.keyboard.press("Tab")
    check(parse_tree("2/1.0"))
    with page.expect_download() as caught:
        page.click('#treelab [data-action="svg"]')
    drawing = Path(caught.value.path()).read_text()
    assert (
        drawing.count('role="treeitem"') == 4 and "var(" not in drawing and ElementTree.fromstring(drawing) is not None
    )
    page.click('#treelab [data-action="save"]')
    expect(page.locator('#treelab [data-action="save"]')).to_have_text("Forget preset")
    serial = page.eval_on_selector("[data-serial]", "element => Number(element.dataset.serial)")
    page.click('#treelab [data-action="race"]')
    page.wait_for_function(
        "serial => Number(document.querySelector('[data-serial]').dataset.serial) > serial", arg=serial
    )
    wait_state(page, "done")
    expect(page.locator("#knob-branching textarea, #knob-branching input")).to_have_value("2/1.0")
    made = [output.trace for output in demo.worker.runs.values() if output.trace.header["method"] != "ar"]
    assert made[-1].header["tree"]["parents"] == [-1, 0, 0, 1]
    page.evaluate("Lantern.openTab('Tree lab')")
    page.wait_for_function("!/–/.test(document.querySelector('#treelab [data-part=measured]').textContent)")
    again = visit(page.evaluate("Lantern.link(Lantern.knobs)"), 390, 844)  # opens this tab, with this tree
    again.wait_for_selector("#treelab svg")
    again.wait_for_function("document.querySelector('#lab-paths').value === '[[0], [1], [0,0]]'")
    assert overflow(again) <= 0


@in_browser
def test_the_page_predicts_as_the_library_does(visit, site, tuned):  # noqa: F811
    url, demo = site
    page = visit(url, reduced_motion="reduce")
    open_tab(page, "Tree lab", "#treelab .treelab.costed")
    table, known = treelab.groups(demo.worker)[0].table, treelab.cost(demo.worker)
    for text in ("1", "2", "4/2.1.0.0", "3/3/1/1", "6/2.1.1.1.0.0/3.2.1.0.0", PRESETS["lantern57"].text):
        tree = parse_tree(text)
        page.fill("#lab-paths", text)
        page.keyboard.press("Tab")
        page.wait_for_function(
            "count => document.querySelectorAll('#treelab [data-node]').length === count", arg=len(tree.parents)
        )
        shown = "name => parseFloat(document.querySelector(`#treelab [data-part=${name}]`).textContent)"
        figures = {"predicted": (known.speedup(tree, table), 0.006), "step": (1000 * tuned.step(tree), 0.06)}
        for name, (value, rounding) in figures.items():
            soon(page, lambda: page.evaluate(shown, name), pytest.approx(value, abs=rounding))  # noqa: B023


@in_browser
def test_codes_are_picked_and_exchanged(visit, site):  # noqa: F811
    page = visit(site[0])
    open_tab(page, "Codebook", "#codebook canvas")
    said = "document.querySelector('#codebook [data-part=said]').textContent"
    page.wait_for_function(f"/nearest is code/.test({said})")
    page.fill("#codebook-code", "7")
    page.keyboard.press("Tab")
    page.wait_for_function(f"{said}.startsWith('Code 7:')")
    near = nearest_codes(toy_pipeline().bundle.tokenizer.codebook, 3)[7].tolist()
    for i, code in enumerate(near):
        expect(page.locator("#codebook .patch").nth(i)).to_have_attribute(
            "aria-label", re.compile(f"^Neighbour {i + 1}: code {code},")
        )
    page.click("#codebook .patch >> nth=1")
    page.wait_for_function(f"{said}.startsWith('Code {near[1]}:')")
    page.focus('#codebook [data-part="map"]')
    page.keyboard.press("ArrowLeft")
    page.wait_for_function(f"!{said}.startsWith('Code {near[1]}:')")
    facts = part(page, "swapped-facts", "codebook")
    expect(facts).to_contain_text("dB")
    before = facts.text_content()
    page.focus('#codebook [data-part="j"] input[type=range]')
    page.keyboard.press("ArrowRight")
    expect(facts).not_to_have_text(before)
    expect(part(page, "swapped-title", "codebook")).to_contain_text("Neighbour 20")
    page.keyboard.press("Home")
    expect(facts).to_contain_text("identical")
    with page.expect_download() as caught:
        page.click('#codebook [data-action="near"]')
    assert caught.value.suggested_filename.endswith(".csv")
    assert overflow(page) <= 0
