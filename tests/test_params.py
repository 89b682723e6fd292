"""The thin adapter of raw knobs: captions, page values, links."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app import params
from lanternpp.settings import BOUNDS, KNOBS, SettingsError

PAGE = {
    "prompt": "red apple",
    "style": "3D",
    "method": "lanternpp",
    "tree": "cpu8",
    "branching": "3, 2",
    "k": 10,
    "lam": 2.0,
    "delta": 0.1,
    "gamma": 0.8,
    "order": "strict-first",
    "seed": 7,
    "cfg_scale": 3.0,
    "temperature": 1.0,
    "top_k": 1000,
    "top_p": 1.0,
    "same": False,
    "against": "none",
}


def settings(**changed):
    return params.from_page(*(PAGE | changed).values())


@pytest.mark.parametrize(
    "prompt, style, expected",
    [
        ("red apple", "3D", "red apple, 3d"),
        ("red apple", "Flat", "red apple, flat"),
        ("  red apple , ", "Classic", "red apple, classic"),
        ("red apple, white background", "3D", "red apple, 3d, white background"),
        ("red apple, 3d, white background", "3D", "red apple, 3d, white background"),
        ("red apple, flat", "3D", "red apple, flat"),
        ("a FLAT fish", "3D", "a FLAT fish"),
        ("flatfish", "3D", "flatfish, 3d"),
        ("white background", "Flat", "white background, flat"),
        ("", "3D", ""),
        (" , ", "3D", ","),
    ],
)
def test_caption(prompt, style, expected):
    assert params.caption(prompt, style) == expected


@given(st.text(max_size=60), st.sampled_from(list(params.STYLES)))
def test_caption_is_stable(prompt, style):
    once = params.caption(prompt, style)
    assert params.caption(once, style) == once


def test_page_values_become_settings():
    found = settings()
    assert (found.prompt, found.method, found.k, found.bound, found.seed) == ("red apple, 3d", "lanternpp", 10, 2.0, 7)
    assert settings(method="lantern").bound == 0.1
    assert settings(tree=params.CUSTOM).tree.widths == (3, 6)
    assert list(PAGE) == list(params.PAGE)


def test_knobs_that_the_rule_does_not_read_cannot_refuse():
    assert settings(method="exact", k=math.nan, lam="x", order=None).method == "exact"
    assert settings(method="lanternpp", delta=99, gamma="x").bound == 2.0


def test_an_empty_seed_is_drawn():
    seeds = {settings(seed=None).seed for _ in range(5)}
    assert len(seeds) > 1 and all(0 <= seed < 100_000 for seed in seeds)


@pytest.mark.parametrize(
    "changed, field",
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": "red \ud800 apple"}, "prompt"),
        ({"style": "Oil"}, "style"),
        ({"style": ["3D"]}, "style"),
        ({"method": "best"}, "method"),
        ({"method": ["exact"]}, "method"),
        ({"tree": "oak"}, "tree"),
        ({"tree": None}, "tree"),
        ({"tree": params.CUSTOM, "branching": "9,9,9"}, "tree"),
        ({"k": -1}, "k"),
        ({"k": math.nan}, "k"),
        ({"lam": 0.5}, "bound"),
        ({"method": "lantern", "delta": 2}, "bound"),
        ({"method": "annealed", "gamma": 2}, "gamma"),
        ({"order": "random"}, "order"),
        ({"seed": 1.5}, "seed"),
        ({"seed": -3}, "seed"),
        ({"cfg_scale": math.inf}, "cfg_scale"),
        ({"temperature": True}, "temperature"),
        ({"top_k": "many"}, "top_k"),
        ({"top_p": 0}, "top_p"),
        ({"same": "yes"}, "same"),
        ({"same": None}, "same"),
        ({"same": 1}, "same"),
        ({"against": "best"}, "against"),
        ({"against": None}, "against"),
        ({"against": ["exact"]}, "against"),
        ({"against": "ar"}, "against"),
        ({"against": "lanternpp"}, "against"),
        ({"method": "exact", "same": True, "against": "coupled"}, "against"),
    ],
)
def test_refusals_name_their_field(changed, field):
    with pytest.raises(SettingsError) as error:
        settings(**changed)
    assert error.value.field == field
    assert str(error.value).endswith(".") and "\n" not in str(error.value)


def lanes(**changed):
    return params.lanes(*(PAGE | changed).values())


def test_a_second_method_reads_its_own_knobs_at_the_same_seed_and_sampling():
    assert [each.method for each in lanes()] == ["ar", "lanternpp"]
    found = lanes(against="lantern", lam=3.0, delta=0.3, seed=None, tree="cpu4")
    assert [each.method for each in found] == ["ar", "lanternpp", "lantern"]
    assert [each.bound for each in found[1:]] == [3.0, 0.3]
    assert len({params.baseline_key(each) for each in found}) == 1  # one seed was drawn for all
    assert found[1].tree == found[2].tree
    with pytest.raises(SettingsError) as error:  # a knob that only the second method reads is checked too
        lanes(method="exact", against="lantern", delta=7)
    assert error.value.field == "bound"


@pytest.mark.parametrize(
    "method, rule",
    [("exact", "coupled"), ("lanternpp", "coupled-relaxed"), ("eagle2", "eagle2"), ("lantern", "lantern")],
)
def test_same_picture_takes_the_coupled_form_where_there_is_one(method, rule):
    assert settings(method=method, same=True).method == rule and settings(method=method).method == method
    if method in params.SAME:
        page = params.opening({}) | params.of_run(settings(method=method, same=True).to_dict())
        assert params.from_page(*(page | {"prompt": "fox"}).values()).method == rule


def test_links_name_the_switch_and_the_second_method():
    assert params.from_query({"same": "true", "against": "exact"}) == {"same": True, "against": "exact"}
    assert params.from_query({"same": "1", "against": "ar"}) == {}
    assert params.from_query({"method": "coupled"}) == {"method": "exact", "same": True}
    assert params.from_query({"method": "coupled-relaxed"}) == {"method": "lanternpp", "same": True}


def test_baseline_key_holds_what_the_baseline_reads():
    assert params.baseline_key(settings()) == params.baseline_key(settings(method="exact", k=0, tree="eagle25"))
    for changed in (
        {"seed": 8},
        {"prompt": "fox"},
        {"cfg_scale": 4},
        {"temperature": 0.9},
        {"top_k": 10},
        {"top_p": 0.9},
    ):
        assert params.baseline_key(settings()) != params.baseline_key(settings(**changed))


def test_links_bring_knobs_back_and_drop_what_is_refused():
    query = {
        "prompt": "fox",
        "style": "Flat",
        "k": "7",
        "lam": "3.5",
        "delta": "0.2",
        "seed": "11",
        "top_p": "nan",
        "temperature": "hot",
        "method": "exact",
        "tree": "custom",
        "branching": "2,1",
        "evil": "<img>",
        "gamma": "-1",
    }
    assert params.from_query(query) == {
        "prompt": "fox",
        "style": "Flat",
        "k": 7,
        "lam": 3.5,
        "delta": 0.2,
        "seed": 11,
        "method": "exact",
        "tree": "custom",
        "branching": "2,1",
    }


def test_a_link_cannot_choose_what_the_page_does_not_offer():
    assert params.from_query({"method": "ar", "tree": "[1]", "style": "Oil", "bound": "2"}) == {}


def test_a_link_keeps_no_more_codes_than_there_are():
    assert params.from_query({"top_k": "60000"}, 4096) == {"top_k": 4096}
    assert params.from_query({"top_k": "0"}, 4096) == {"top_k": 0}
    assert params.from_query({"top_k": "60000"}) == {"top_k": 60000}


def test_the_page_opens_on_the_models_own_defaults():
    opening = params.opening({"cfg_scale": 4.5})
    assert list(opening) == list(params.PAGE) and opening["cfg_scale"] == 4.5
    assert params.from_page(*(opening | {"prompt": "fox"}).values()).bound == KNOBS["bound"].default


def test_a_runs_settings_come_back_to_the_page():
    found = settings(method="lantern", tree="eagle25", delta=0.3, seed=5)
    page = params.opening({}) | params.of_run(found.to_dict()) | {"prompt": "red apple"}
    assert params.from_page(*page.values()) == found


def test_every_knob_of_the_schema_is_on_the_page():
    # λ and δ are two widgets; the mode is no visitor's choice, whom a minute of compiling would keep waiting.
    assert set(KNOBS) - {"bound", "mode"} <= set(params.PAGE)
    assert set(BOUNDS) == {method for method in params.METHODS if params.uses(method)}
