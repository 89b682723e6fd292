"""The adapter between raw knobs (widgets, the page's address, the API) and the one checked schema, lanternpp.settings.

No limit is stated here: every value goes through Settings.checked, which refuses with one sentence.
"""

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from lanternpp.presets import offered
from lanternpp.settings import BOUNDS, KNOBS, Settings, SettingsError
from lanternpp.tree import PRESETS, Tree, shortened

AS_TYPED = "As typed"  # the only style of models that were not trained on the bundled one's captions
STYLES = {"3D": "3d", "Flat": "flat", "Classic": "classic", AS_TYPED: ""}
# Words that name a style in the training captions; a prompt that already holds one keeps it.
STYLE_WORDS = ("3d", "fluent", "flat", "twitter style", "classic", "google style", "noto")

METHODS = {
    "exact": "Exact tree",
    "lantern": "LANTERN, δ",
    "lanternpp": "LANTERN++, λ",
    "annealed": "Annealed, λ",
    "coupled": "Coupled",
    "coupled-relaxed": "Coupled, λ",
    "eagle2": "EAGLE-2",
}
CUSTOM = "custom"
# The form of a method that paints AR's own picture at equal seed (lanternpp.coupled); EAGLE-2 does so by itself.
SAME = {"exact": "coupled", "lanternpp": "coupled-relaxed", "eagle2": "eagle2"}
CHOICES = {name: words for name, words in METHODS.items() if name == "eagle2" or name not in SAME.values()}
NOTHING = "none"

# The widgets of the page in the order in which handlers receive their values.
PAGE = (
    "prompt",
    "style",
    "method",
    "tree",
    "branching",
    "k",
    "lam",
    "delta",
    "gamma",
    "order",
    "seed",
    "cfg_scale",
    "temperature",
    "top_k",
    "top_p",
    "same",
    "against",
)
# Knobs that the baseline reads too: where they are equal, its run can be kept.
SAMPLING = ("prompt", "seed", "cfg_scale", "temperature", "top_k", "top_p")


def caption(prompt: str, style: str) -> str:
    """The caption that the model reads: the prompt with its style word, in the order of the training captions.

    "red apple" in 3D gives "red apple, 3d"; a background named last stays last. Nothing is added to an empty prompt,
    nor to one that names a style itself.
    """
    if not isinstance(prompt, str) or not prompt.strip() or not isinstance(style, str) or style not in STYLES:
        return prompt
    parts = [part.strip() for part in prompt.strip().split(",") if part.strip()]
    spoken = f" {' '.join(' '.join(parts).lower().split())} "
    if not parts or style == AS_TYPED or any(f" {word} " in spoken for word in STYLE_WORDS):
        return prompt.strip()
    at = len(parts) - 1 if len(parts) > 1 and parts[-1].lower().endswith("background") else len(parts)
    return ", ".join([*parts[:at], STYLES[style], *parts[at:]])


def uses(method: str) -> tuple[str, ...]:
    """The relaxation knobs of the page that a method's rule reads."""
    return {
        "lantern": ("k", "delta", "order"),
        "lanternpp": ("k", "lam", "order"),
        "annealed": ("k", "lam", "gamma", "order"),
        "coupled-relaxed": ("k", "lam"),
    }.get(method, ())


def from_page(*values: object) -> Settings:
    """Checked settings of the page's method; an empty seed draws one."""
    return lanes(*values)[1]


def lanes(*values: object) -> list[Settings]:
    """Checked settings of every lane: plain AR, the page's method and, where one is chosen, the second method.

    All at one seed, sampling and tree; each reads its own rule's knobs.
    """
    page = dict(zip(PAGE, values, strict=True))
    if not isinstance(page["style"], str) or page["style"] not in STYLES:
        raise SettingsError("style", f"The style {shortened(page['style'])} is unknown: choose {', '.join(STYLES)}.")
    if isinstance(page["prompt"], str) and any("\ud800" <= c <= "\udfff" for c in page["prompt"]):
        raise SettingsError("prompt", "The prompt holds half of a character, which cannot be sent back: remove it.")
    method = _settings(page, rule(page["method"], page["same"]))
    if page["against"] == NOTHING:
        return [method.baseline(), method]
    against = page["against"]
    if not isinstance(against, str) or against not in METHODS:
        offer = ", ".join((NOTHING, *METHODS))
        raise SettingsError("against", f"There is no method {shortened(against)} to compare with: choose {offer}.")
    if against == method.method:
        raise SettingsError("against", f"{METHODS[against]} is in the second lane already: choose another method.")
    second = _settings(page, against)
    return [method.baseline(), method, replace(second, seed=method.seed)]


def rule(method: object, same: object) -> object:
    """The method that the page's choice and its switch "same picture" name; where no such form exists, the choice."""
    if not isinstance(same, bool):
        raise SettingsError("same", f"Same picture must be on or off, not {shortened(same)}: use true or false.")
    return SAME.get(method, method) if same and isinstance(method, str) else method


def _settings(page: Mapping[str, object], method: object) -> Settings:
    raw = {name: page[name] for name in ("seed", "cfg_scale", "temperature", "top_k", "top_p")}
    raw["seed"] = new_seed() if raw["seed"] in (None, "") else raw["seed"]
    used = uses(method) if isinstance(method, str) else ()
    raw |= {name: page[name] for name in ("k", "gamma", "order") if name in used}
    if used:
        raw["bound"] = page["delta" if method == "lantern" else "lam"]
    return Settings.checked(
        prompt=caption(page["prompt"], page["style"]),
        method=method,
        tree=page["branching"] if page["tree"] == CUSTOM else page["tree"],
        **raw,
    )


def chosen(method: str) -> dict[str, object]:
    """The page's method and switch that name a method."""
    choice = next((each for each, same in SAME.items() if same == method), method)
    return {"method": choice, "same": choice != method}


def baseline_key(settings: Settings) -> tuple:
    """What must be equal for a baseline to be kept."""
    return tuple(getattr(settings, name) for name in (*SAMPLING, "mode"))


def from_query(query: Mapping[str, str], codes: int | None = None) -> dict[str, object]:
    """Widget values from the page's address; what the schema refuses is left out, so that no link breaks the page.

    `codes` is the most that the page's top-k can hold: the model's codes.
    """
    values: dict[str, object] = {}
    for name, text in query.items():
        try:
            if name == "style" and text in STYLES:
                values[name] = text
            elif name == "tree" and (text == CUSTOM or (text in offered() and offered()[text].nodes)):
                values[name] = text
            elif name == "branching":
                Settings.checked(prompt="a", tree=text)
                values[name] = text
            elif name in ("lam", "delta"):
                method = "lantern" if name == "delta" else "lanternpp"
                values[name] = Settings.checked(prompt="a", method=method, bound=text).bound
            elif name == "method" and text in METHODS:
                values |= chosen(text) if text not in CHOICES else {name: text}
            elif name == "same" and text in ("true", "false"):
                values[name] = text == "true"
            elif name == "against" and (text == NOTHING or text in METHODS):
                values[name] = text
            elif name == "prompt":
                values[name] = Settings.checked(prompt=text).prompt
            elif name in KNOBS and name in PAGE and name not in ("method", "tree"):
                values[name] = getattr(Settings.checked(**{"prompt": "a", "method": "annealed", name: text}), name)
        except SettingsError:
            continue
    if codes and "top_k" in values:
        values["top_k"] = min(values["top_k"], codes)
    return values


def opening(defaults: Mapping[str, object], styled: bool = True) -> dict[str, object]:
    """The page's values as it opens: the schema's defaults, and the model's own over them."""
    values = {name: knob.default for name, knob in KNOBS.items()} | dict(defaults)
    page = {
        "style": "3D" if styled else AS_TYPED,
        "branching": "3, 2, 1, 1",
        "lam": values["bound"],
        "delta": BOUNDS["lantern"].default,
        "against": NOTHING,
    }
    if values["method"] not in METHODS:  # plain AR is always there, as the baseline
        values["method"] = KNOBS["method"].default
    page |= chosen(values["method"])
    if not (isinstance(values["tree"], str) and values["tree"] in PRESETS and PRESETS[values["tree"]].nodes):
        page |= {"tree": CUSTOM, "branching": str(values["tree"])}
    return {name: page[name] if name in page else values[name] for name in PAGE}


def of_run(header: Mapping[str, Any]) -> dict[str, object]:
    """The page's values at which a finished run was made."""
    read = ("k", "gamma", "order", "seed", "cfg_scale", "temperature", "top_k", "top_p")
    values = {name: header[name] for name in read} | chosen(header["method"])
    values["delta" if header["method"] == "lantern" else "lam"] = header["bound"]
    if header["tree"]["name"] in PRESETS:
        values["tree"] = header["tree"]["name"]
    else:
        values |= {"tree": CUSTOM, "branching": Tree(tuple(header["tree"]["parents"])).text}
    return values


def new_seed() -> int:
    """A seed short enough to be read out."""
    return random.randrange(100_000)
