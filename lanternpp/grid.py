"""The settings that a sweep measures: the product of methods, trees and values, checked and without duplicates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product

from .bench import PROMPTS
from .scorer import parts
from .settings import BOUNDS, METHODS, Knob, Settings, SettingsError, checked_number
from .tree import shortened

BLOCK = 4  # settings that share AR's runs: all of a round are decoded within seconds
LISTED, TYPED = 64, 20_000  # values of one knob, characters of one list
SAMPLING = ("seed", "cfg_scale", "temperature", "top_k", "top_p")
DEFAULTS: dict[str, object] = {
    "methods": "exact, lantern, lanternpp", "trees": "cpu4, cpu8", "k": "100", "lam": "1.5, 2, 3, 5",
    "delta": "0.05, 0.2", "gamma": "0.8", "orders": "strict-first", "prompts": "\n".join(PROMPTS[:4]),
    "repeats": 1}


@dataclass(frozen=True)
class Limits:
    """The most that one sweep measures: settings, prompts, repeats."""

    points: int = 64
    prompts: int = 8
    repeats: int = 5


CONSOLE = Limits(4096, 1000, 1000)


@dataclass(frozen=True)
class Grid:
    """What a sweep measures, all within limits. Make one with `checked`."""

    points: tuple[Settings, ...]
    prompts: tuple[str, ...]
    repeats: int

    @classmethod
    def checked(cls, defaults: Mapping[str, object] | None = None, about: Mapping[str, object] | None = None,
                limits: Limits = Limits(), scored: bool = True, **raw: object) -> Grid:
        """A grid from lists, or their text with commas, of methods, trees, k, lam, delta, gamma and orders; prompts (a
        line each), repeats, and the sampling knobs and mode of Settings. What is left out has its DEFAULTS.

        Values of a knob that a method does not read are not looked at and make no points; settings that come to the
        same, such as any λ at k = 0, are one. `scored`: refuse a prompt that the scorer does not know. `defaults` and
        `about` as for Settings.checked. SettingsError, one sentence, for anything else.
        """
        if unknown := set(raw) - set(DEFAULTS) - set(SAMPLING) - {"mode"}:
            name = sorted(map(str, unknown))[0]
            raise SettingsError(name, f"A sweep has no {name[:40]!r}: use {', '.join((*DEFAULTS, *SAMPLING))}.")
        given = {**DEFAULTS, **raw}
        common = {n: raw[n] for n in (*SAMPLING, "mode") if n in raw}
        methods = dict.fromkeys(_listed("methods", given["methods"]))
        trees, found = _trees(given["trees"]), {}

        def values(name: str, knob: str, method: str) -> list[object]:
            each = (getattr(Settings.checked(prompt="a", method=method, tree="1", **{knob: v}), knob)
                    for v in _listed(name, given[name]))
            return list(dict.fromkeys(each))

        for method in methods:
            knobs: dict[str, list] = {"tree": trees}
            if method in BOUNDS:
                name = "delta" if method == "lantern" else "lam"
                knobs |= {"k": values("k", "k", method), "bound": values(name, "bound", method)}
            if method == "annealed":
                knobs["gamma"] = values("gamma", "gamma", method)
            if method in BOUNDS and method != "coupled-relaxed":
                knobs["order"] = values("orders", "order", method)
            for chosen in product(*knobs.values()) if method != "ar" else ():
                point = Settings.checked(defaults, about, prompt="a", method=method, **common,
                                         **dict(zip(knobs, chosen, strict=True)))
                own = () if method in BOUNDS and point.relaxation.strict else tuple(chosen[1:])
                found.setdefault((method, point.tree.parents, own), point)
                if len(found) > limits.points:
                    raise SettingsError("grid", f"The grid has more than {limits.points} settings, the most that one "
                                                "sweep measures: leave out some methods, trees or values.")
        if not found:
            raise SettingsError("methods", "Plain AR is measured beside all others: choose at least one other method.")
        repeats = checked_number(Knob("repeats", "Repeats", "", 1, 1, limits.repeats, 1, whole=True), given["repeats"])
        prompts = _prompts(given["prompts"], limits.prompts, scored)
        return cls(tuple(replace(point, prompt=prompts[0]) for point in found.values()), prompts, repeats)

    @cached_property
    def blocks(self) -> list[tuple[Settings, ...]]:
        return [self.points[i:i + BLOCK] for i in range(0, len(self.points), BLOCK)]

    @cached_property
    def pictures(self) -> list[tuple[str, int]]:
        """Prompt and seed of each; a repeat takes the next seed."""
        return [(p, (self.points[0].seed + r) % 2**31) for r in range(self.repeats) for p in self.prompts]

    def setting(self, number: int) -> Settings:
        """AR for 0, then the points."""
        return self.points[number - 1] if number else self.points[0].baseline()

    @property
    def runs(self) -> int:
        return len(self.pictures) * (len(self.points) + len(self.blocks))

    def round(self, block: int, picture: int) -> list[Settings]:
        """AR and a block's settings for one picture."""
        prompt, seed = self.pictures[picture]
        each = (self.points[0].baseline(), *self.blocks[block])
        return [replace(s, prompt=prompt, seed=seed) for s in each]

    def to_dict(self) -> dict[str, object]:
        """JSON-ready."""
        points = [{k: v for k, v in p.to_dict().items() if k not in ("prompt", "seed")} for p in self.points]
        return {"points": points, "prompts": list(self.prompts), "repeats": self.repeats, "seed": self.points[0].seed}


def _listed(name: str, raw: object, split: str = r"[,;\s]+") -> list[object]:
    """The values of a list or of a text with commas; SettingsError where there is none, or too many."""
    items = [raw] if isinstance(raw, int | float) else raw
    if isinstance(raw, str) and len(raw) <= TYPED:
        items = re.split(split, raw.strip())
    example = "such as 10, 100" if name in ("k", "lam", "delta", "gamma") else f"such as {DEFAULTS[name]}"
    if isinstance(items, str) or not isinstance(items, list | tuple) or any(
            isinstance(x, bool) or not isinstance(x, str | int | float) for x in items[:LISTED]):
        raise SettingsError(name, f"{name} must be a list, or text with commas {example}, not {shortened(raw)}.")
    items = [x.strip() if isinstance(x, str) else x for x in items if x not in ("",) and str(x).strip()]
    if not 1 <= len(items) <= LISTED:
        raise SettingsError(name, f"{name} lists {len(items):,} values: name 1 to {LISTED}, {example}.")
    if name == "methods" and (bad := next((x for x in items if x not in METHODS), None)) is not None:
        raise SettingsError(name, f"The method {shortened(bad)} is unknown: choose from {', '.join(METHODS)}.")
    return items


def _trees(raw: object) -> list[object]:
    """Trees as Settings.checked reads them: items of a list, or of a text in which commas stand between trees."""
    if isinstance(raw, list | tuple) and 1 <= len(raw) <= LISTED:
        return list(raw)
    if isinstance(raw, str) and raw.strip().startswith("["):
        return [raw]
    return _listed("trees", raw, r"[,;\n]+")


def _prompts(raw: object, most: int, scored: bool) -> tuple[str, ...]:
    lines = raw.splitlines() if isinstance(raw, str) else raw
    if not isinstance(lines, list | tuple):
        raise SettingsError("prompts", f"The prompts must be a list or lines of text, not {shortened(raw)}.")
    lines = [x for x in lines if not isinstance(x, str) or x.strip()]
    if not 1 <= len(lines) <= most:
        raise SettingsError("prompts", f"The sweep has {len(lines):,} prompts: name 1 to {most}, one a line.")
    prompts = tuple(dict.fromkeys(Settings.checked(prompt=each).prompt for each in lines))
    if scored and (bad := next((p for p in prompts if parts(p)[0] is None), None)):
        raise SettingsError("prompts", f"The prompt {bad[:60]!r} names none of the things whose pictures the scorer "
                                       "can judge: name one, such as fox, owl or red apple.")
    return prompts
