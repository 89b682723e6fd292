"""The Learn view: numbers read from the trace, strings, and the tour in headless Chromium on a toy recorded run."""

import json
import re
from dataclasses import replace
from string import Formatter
from types import SimpleNamespace

import pytest
import torch
from serving import serve, toy_pipeline
from test_browser import browser, overflow, visit  # noqa: F401
from test_browser import pytestmark as needs_chromium

from app import learn, record, stage
from app.session import Worker
from lanternpp.detail import inspect
from lanternpp.pipeline import run
from lanternpp.relax import relaxed_mass

WORDS = learn.words()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Recorded runs of the toy model with their details: plain AR, LANTERN++ and the exact tree."""
    folder, pipe = tmp_path_factory.mktemp("recorded"), toy_pipeline()
    outputs = [pipe("fox, 3d", method=method, seed=3, tree="3,2", k=8) for method in ("ar", "lanternpp", "exact")]
    pipe.atlas().save(folder / "atlas.png")
    record.save(folder, "fox-3", "fox", "3D", outputs, None, [run(inspect(pipe, output.trace)) for output in outputs])
    return folder, outputs


@pytest.fixture(scope="module")
def worker(recorded):
    made = Worker(toy_pipeline)
    made.recorded = {name: output for each in record.load_all(recorded[0]) for name, output in each.outputs().items()}
    return made


def test_every_number_is_the_traces(worker, recorded):
    plain, trace, exact = (output.trace for output in recorded[1])
    found = learn.material(worker)
    assert found.run.run_id == trace.run_id and found.exact.run_id == exact.run_id and found.detail is not None
    known = learn.facts(found)
    assert known["ar_passes"] == str(len(plain.events)) and known["passes"] == str(len(trace.events))
    assert known["length"] == f"{trace.summary()['accepted_length']:.2f}" and known["nodes"] == "9"
    assert known["relaxed"] == str(trace.summary()["relaxed_only"]) and known["tv"] == "0.50"
    shares = stage.tested(trace)
    passing = [min(1, r / q) for r, q in zip(shares["r"], shares["q"], strict=True)]
    assert known["strict"] == f"{100 * sum(passing) / len(passing):.0f} %" and known["tested"] == str(len(passing))
    told = learn.tour(worker, WORDS)
    place = told["lessons"][4]["place"]
    event, node = trace.events[place["step"]], place["node"]
    assert event.verdicts[node - 1] == ("x" if trace.summary()["relaxed_only"] else "r")
    for value in (event.q[node - 1], event.p[node - 1], event.mass[node - 1]):
        assert learn.number(value) in told["lessons"][4]["text"]
    assert f"{float(found.detail.uniform[place['step'], node - 1]):.3f}" in told["lessons"][4]["text"]
    long = trace.events[told["lessons"][1]["place"]["step"]]
    assert len(long.tokens) == max(len(each.tokens) for each in trace.events[1:] if each.ending != "end")
    assert f"kept {len(long.path)} and" in told["lessons"][2]["text"]


def test_no_number_is_typed_by_hand(worker):
    known = learn.facts(learn.material(worker))
    said = [text for lesson in WORDS["lessons"] for text in lesson["text"]]
    said += [text for each in WORDS["questions"] for text in each["answer"]]
    for text in said:
        names = {name for _, name, _, _ in Formatter().parse(text) if name}
        assert names <= set(known), names - set(known)
        bare = re.sub(r"\{\w+\}", "", text)
        for formula in ("min(1, ", "(λ − 1)", "*k* = 0", "λ = 1 ", "1 − 1/λ", "λ − 1 ", "instead of 1"):
            bare = bare.replace(formula, "")
        assert not re.search(r"\d", bare), bare
    assert len(WORDS["lessons"]) == len(set(lesson["title"] for lesson in WORDS["lessons"])) == 6


def test_a_sentence_whose_number_is_unknown_is_left_out(worker):
    assert learn.told(["Of {a}.", "At {b}.", "Plain."], {"a": "3", "b": None}) == "Of 3. Plain."
    found = learn.material(worker)
    bare = learn.facts(learn.Material(found.run, found.plain, None))
    assert bare["u"] is None and bare["exact_passes"] is None and bare["q"] is not None
    text = learn.told(WORDS["lessons"][4]["text"], bare)
    assert "*u* =" not in text and "*k* is how many" in text


def test_a_draft_that_pooling_would_have_saved_is_not_told_to_have_failed(worker):
    found = learn.material(worker)
    event, node = next(at for at in learn.tested(found.run) if at[0].verdicts[at[1] - 1] in "xr")
    index, told = found.run.events.index(event), list(event.verdicts)
    told[node - 1] = "r"  # as where a later sibling passes the strict rule
    event = replace(event, verdicts="".join(told))
    events = [event if i == index else each for i, each in enumerate(found.run.events)]
    uniform = found.detail.uniform.copy()
    for share, missed in ((0.99, False), (1.01, True)):
        uniform[index, node - 1] = share * event.mass[node - 1] / event.q[node - 1]
        run = replace(found.run, events=events)
        known = learn.inner(replace(found, run=run, detail=replace(found.detail, uniform=uniform)), event, node)
        assert known["pooled_at"] is None and (known["missed_at"] is not None) == missed


def test_no_run_no_tour():
    assert learn.tour(SimpleNamespace(recorded={}, runs={}, details={}), WORDS) is None


def test_a_finished_run_will_do(recorded):
    plain, method, _ = recorded[1]
    runs = {output.trace.run_id: output for output in (plain, method)}
    found = SimpleNamespace(recorded={}, runs=runs, details={}, detail=lambda name: None)
    told = learn.tour(found, WORDS)
    assert [lesson["place"]["tab"] for lesson in told["lessons"]].count("Step inspector") == 4
    assert learn.tour(SimpleNamespace(recorded={}, runs={method.trace.run_id: method}, details={}), WORDS) is None


def test_another_language_takes_what_it_lacks_from_english(tmp_path):
    (tmp_path / "en.json").write_text(json.dumps({"next": "Next", "back": "Back"}))
    (tmp_path / "de.json").write_text(json.dumps({"next": "Weiter"}))
    assert learn.words("de", tmp_path) == {"next": "Weiter", "back": "Back"}
    assert learn.words("../de", tmp_path)["next"] == "Weiter" and learn.words("xx", tmp_path)["next"] == "Next"


def test_the_counterexample_of_the_maths_holds():
    """With δ = 0.1 every draft of a q on 10 codes passes against a uniform p, so the output is q: distance 0.99."""
    p, q = torch.full((1000,), 1e-3, dtype=torch.float64), torch.zeros(1000, dtype=torch.float64)
    q[:10] = 0.1
    near = p[(torch.arange(10).unsqueeze(1) + torch.arange(1, 100)) % 1000]
    mass = relaxed_mass(p[:10], near, torch.full((10,), 0.1, dtype=torch.float64))
    assert torch.all(mass / q[:10] >= 1 - 1e-12)
    assert 0.5 * (q - p).abs().sum().item() == pytest.approx(0.99)
    assert "0.99" in json.dumps(WORDS["maths"])


@pytest.fixture(scope="module")
def site(recorded):
    def never():
        raise RuntimeError("no model here")

    with serve(never, recorded[0]) as (url, _):
        yield url


def in_browser(test):
    for mark in needs_chromium:
        test = mark(test)
    return test


def at_step(page, number: int) -> None:
    page.wait_for_function(
        "n => document.querySelector('#tour [data-part=count]').textContent.startsWith(`Step ${n} of 6`)", arg=number
    )
    page.wait_for_selector(".tour-here", state="attached")


@in_browser
def test_the_tour_drives_the_views_by_keyboard(visit, site, worker):  # noqa: F811
    told = learn.tour(worker, WORDS)
    page = visit(f"{site}?tab=learn", reduced_motion="reduce")
    page.wait_for_selector("#learn .lessons")
    assert page.locator("#learn .lessons li").count() == 6 and not page.is_visible("#tour .tour")
    plain = re.sub(r"[*~^]", "", told["lessons"][0]["text"])
    assert plain in page.inner_text("#learn .lessons")
    page.click("#learn .questions summary >> nth=3")
    assert re.sub(r"[*~^]", "", told["answers"][3]) in page.inner_text("#learn .questions")
    page.click("#learn .maths-fold > summary")
    assert page.locator("#learn .maths-fold sub").count() > 10 and "[+" not in page.inner_text("#learn .maths-fold")
    assert all(href.startswith("https://arxiv.org/abs/") for href in
               page.eval_on_selector_all("#learn .references a", "links => links.map(link => link.href)"))
    page.click("#learn .learn-head button")
    for number, lesson in enumerate(told["lessons"], 1):
        at_step(page, number)
        place = lesson["place"]
        assert page.inner_text('#tabs [role="tab"][aria-selected="true"]') == place["tab"]
        assert f"tab=learn&lesson={number}" in page.evaluate("location.search")
        assert page.evaluate("document.activeElement.textContent") == lesson["title"]
        view = "#ambiguity" if place["tab"] == "Ambiguity" else "#inspector"
        shown = page.eval_on_selector(f"{view} [data-run], {view}[data-run]", "element => ({ ...element.dataset })")
        assert all(str(place[name]) == shown[name] for name in ("run", "step", "node", "cell") if name in place)
        top = page.evaluate("document.querySelector('.tour-here').getBoundingClientRect().top")
        assert page.evaluate("document.querySelector('#tour').getBoundingClientRect().bottom") <= top < 1000
        assert f"lesson={number}" in page.evaluate("Lantern.link(Lantern.knobs)")
        page.keyboard.press("ArrowRight")
    page.wait_for_selector("#learn .lessons")  # after the last step
    assert "lesson" not in page.evaluate("location.search") and not page.is_visible("#tour .tour")
    focused = "document.activeElement.getAttribute('role') + ' ' + document.activeElement.textContent.trim()"
    page.wait_for_function(f"{focused} === 'tab Learn'")


@in_browser
def test_a_link_to_a_lesson_opens_it_on_a_phone(visit, site, worker):  # noqa: F811
    place = learn.tour(worker, WORDS)["lessons"][4]["place"]
    page = visit(f"{site}?tab=learn&lesson=5", 390, 844, has_touch=True)
    at_step(page, 5)
    assert page.get_attribute("#inspector [data-node], #inspector[data-node]", "data-node") == str(place["node"])
    assert overflow(page) <= 0
    page.click('#tour [data-part="back"]')
    at_step(page, 4)
    assert page.is_visible("#ambiguity") and overflow(page) <= 0
    page.focus('#ambiguity [data-part="big"]')  # arrows there move the cell, not the tour
    page.keyboard.press("ArrowRight")
    at_step(page, 4)
    page.keyboard.press("Escape")
    page.wait_for_selector("#tour .tour", state="hidden")
    assert page.is_visible("#ambiguity") and page.locator(".tour-here").count() == 0
    assert "lesson" not in page.evaluate("Lantern.link(Lantern.knobs)")
