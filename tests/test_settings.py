import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanternpp.settings import KNOBS, MAX_PROMPT, Settings, SettingsError
from lanternpp.tree import PRESETS, shortened

GOOD = {"prompt": "a red apple"}
BAD = [
    ("k", math.nan), ("k", "many"), ("k", -1), ("k", 1001), ("k", 2.5), ("k", True), ("k", None), ("k", [1]),
    ("bound", math.inf), ("bound", 0.5), ("bound", "x"), ("gamma", 1.5), ("seed", -1), ("seed", 2**31),
    ("cfg_scale", 0), ("cfg_scale", "1e999"), ("temperature", -0.1),
    ("temperature", 1e-300), ("k", 10**5000), ("method", 10**5000), ("top_k", -5), ("top_p", 0), ("top_p", math.nan),
    ("prompt", ""), ("prompt", "   "), ("prompt", "\x00\x1b"), ("prompt", "🦊"), ("prompt", None), ("prompt", 7),
    ("prompt", "a" * 10_000), ("method", "magic"), ("method", None), ("order", "random"), ("tree", "oak"),
    ("tree", [1] * 100), ("tree", {"parents": [-1] + [0] * 10_000}), ("tree", {"parents": [-1, 5]}),
    ("tree", {"parents": "x"}), ("tree", [100, 100]), ("tree", "root"), ("tree", None), ("tree", 3),
    ("tree", "9999999"), ("tree", [[0], [0, 1]]), ("tree", "1," * 5000), ("colour", "red"),
]


@pytest.mark.parametrize("field, value", BAD, ids=lambda v: shortened(v)[:24])
def test_bad_values_give_one_sentence(field, value):
    with pytest.raises(SettingsError) as error:
        Settings.checked(**{**GOOD, field: value})
    text = str(error.value)
    assert error.value.field == field
    assert "\n" not in text and text[0].isalpha() and text.endswith(".")
    assert len(text) < 300


def test_defaults_and_text_values():
    settings = Settings.checked(prompt="  A  red\tapple ", k="7", bound="2.5", seed="3", tree="3,2,1")
    assert (settings.prompt, settings.k, settings.bound, settings.seed) == ("A red apple", 7, 2.5, 3)
    assert settings.tree.widths == (3, 6, 6)
    assert settings.method == KNOBS["method"].default
    assert Settings.checked(**GOOD, method="lantern").bound == 0.1
    assert Settings.checked(**GOOD, method="lantern", bound=0.3).bound == 0.3
    assert Settings.checked({"cfg_scale": 4.5}, **GOOD).cfg_scale == 4.5
    assert Settings.checked(**GOOD, method="exact", bound=None).relaxation.strict


def test_baseline_keeps_all_but_method_and_tree():
    settings = Settings.checked(**GOOD, seed=9, cfg_scale=2)
    base = settings.baseline()
    assert base == replace(settings, method="ar", tree=PRESETS["root"])
    assert base.sampling == settings.sampling


def test_limits_are_inclusive():
    for name, knob in KNOBS.items():
        if knob.low is not None:
            for value in (knob.low, knob.high):
                assert getattr(Settings.checked(**{**GOOD, name: value}), name) == value
    assert len(Settings.checked(prompt="a" * MAX_PROMPT).prompt) == MAX_PROMPT


@given(st.dictionaries(st.sampled_from(sorted(KNOBS)), st.one_of(
    st.none(), st.booleans(), st.floats(), st.integers(), st.text(max_size=20),
    st.lists(st.integers(-2, 6), max_size=20),
    st.dictionaries(st.just("parents"), st.lists(st.integers(-1, 5), max_size=20))), max_size=4))
def test_anything_is_checked_or_refused(raw):
    try:
        settings = Settings.checked(**{**GOOD, **raw})
    except SettingsError:
        return
    assert settings.tree.nodes <= 127
    assert all(math.isfinite(getattr(settings, n)) for n in ("k", "bound", "gamma", "seed", "cfg_scale", "temperature"))
