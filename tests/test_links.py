"""What a link asks of the page: checked on the server, told in one sentence, and read by the page in both spellings."""

from types import SimpleNamespace

import pytest
from serving import serve, toy_pipeline
from test_browser import browser, visit  # noqa: F401
from test_browser import pytestmark as needs_chromium

from app import catalogue, links, params
from lanternpp.hub import BUNDLED

START = str(BUNDLED)
CHOICES = catalogue.choices_for(START)
TABS = ("Race", "Step inspector", "Learn")
KEPT = SimpleNamespace(steps=9, header={"tree": {"parents": [-1, 0, 0]}})


def read(**query: str) -> links.Asked:
    worker = SimpleNamespace(output=lambda run: SimpleNamespace(trace=KEPT) if run == "kept" else None)
    return links.read(query, worker, CHOICES, START, TABS, 6)


def test_what_can_be_had_is_had_and_nothing_is_said():
    found = read(k="7", seed="3", tab="step-inspector", run="kept", step="9", node="2", model="anole-7b", utm="mail")
    assert found.knobs == {"k": 7, "seed": 3} and found.model == "anole-7b" and found.sentence == ""
    for name, value in (("view", "Step inspector"), ("tab", "Step inspector"), ("view", "learn"), ("view", "api")):
        assert read(**{name: value}).sentence == ""
    assert read(tab="learn", lesson="6").sentence == read().sentence == ""


@pytest.mark.parametrize(
    "name, value, rule",
    [
        ("k", "5000", "from 0 to 1,000"),
        ("lam", "0.5", "from 1 to 10"),
        ("seed", "1.5", "whole number"),
        ("temperature", "hot", "from 0 to 2"),
        ("method", "ar", "lanternpp"),
        ("style", "Oil", "3D"),
        ("tree", "oak", "page offers"),
        ("branching", "9,9,9", "children per level"),
        ("prompt", "...", "a few words"),
        ("model", "gpt", "list of models"),
        ("tab", "nowhere", "step-inspector"),
        ("view", "nowhere", "learn"),
        ("lesson", "7", "from 1 to 6"),
        ("lesson", "0", "from 1 to 6"),
        ("code", "-1", "from 0 to 4,095"),
        ("run", "gone", "still kept"),
    ],
)
def test_a_bad_value_is_told_in_one_sentence(name, value, rule):
    found = read(**{name: value, "top_p": "0.9"})
    text = found.sentence
    assert found.knobs == {"top_p": 0.9} and not found.model
    assert value in text and rule in text and text.endswith("the default stands.") and len(text) < 300
    assert text.count(". ") == 0 and "\n" not in text


def test_a_place_that_the_run_does_not_have():
    assert "from 1 to 9" in read(run="kept", step="10").sentence
    assert "from 0 to 2" in read(run="kept", node="3").sentence


def test_many_bad_values_are_still_one_sentence():
    text = read(k="-1", seed="x", lam="99", order="best", tab="<img src=x>", gamma="2", evil="<b>").sentence
    assert text.startswith("This link asks for ") and text.endswith("their defaults stand.") and "evil" not in text
    assert len(text) < 300 and all(name in text for name in ("k '-1'", "seed", "lam", "order", "tab", "gamma"))


def test_every_knob_can_be_refused_with_words():
    assert all(links.allowed(name) for name in params.PAGE)


def test_models_have_names_for_links():
    names = [choice.name for choice in CHOICES.values()]
    assert len(set(names)) == len(names) and all("/" not in name and " " not in name for name in names)


@pytest.fixture(scope="module")
def site():
    with serve(toy_pipeline) as (url, _):
        yield url


def in_browser(test):
    for mark in needs_chromium:
        test = mark(test)
    return test


@in_browser
def test_a_hand_edited_link_is_told_and_what_is_good_in_it_is_used(visit, site):  # noqa: F811
    page = visit(f"{site}?view=Tree+lab&k=5000&seed=42&prompt=%3Cimg+src%3Dx%3E+fox&lesson=99")
    page.wait_for_selector("#treelab svg")  # the old spelling opens the view
    page.wait_for_function("document.querySelector('#link-note').textContent.includes('cannot be had')")
    said = page.inner_text("#link-note")
    assert "k '5000'" in said and "lesson '99'" in said and said.endswith("their defaults stand.")
    page.wait_for_function("Lantern.knobs.seed === 42 && Lantern.linked.model")
    assert page.evaluate("Lantern.knobs.k") == 100 and page.locator("#link-note img").count() == 0
    link = page.evaluate("Lantern.link(Lantern.knobs)")
    query = dict(part.split("=") for part in link.split("?")[1].split("&"))
    assert query["tab"] == "tree-lab" and query["seed"] == "42" and query["model"] == CHOICES[START].name
    again = visit(link)  # says nothing, and opens the same
    again.wait_for_selector("#treelab svg")
    again.wait_for_function("Lantern.knobs.seed === 42")
    assert not again.is_visible("#link-note")
