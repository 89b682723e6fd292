"""The one checked schema of every knob: API, command line, app and links all go through `Settings.checked`."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace

from .modes import MODES
from .presets import TUNED, tuned_tree
from .relax import MAX_NEIGHBOURS, Relaxation
from .sampling import Sampling
from .tree import PRESETS, Tree, TreeError, parse_tree, shortened

METHODS = {"ar": "Plain AR", "exact": "Exact tree", "lantern": "LANTERN", "lanternpp": "LANTERN++",
           "annealed": "Annealed", "coupled": "Coupled", "coupled-relaxed": "Coupled, relaxed", "eagle2": "EAGLE-2"}
MAX_PROMPT = 300
COLDEST = 0.01  # below, logits divided by the temperature would overflow


class SettingsError(ValueError):
    """One clear sentence about one knob; `field` is the knob's name."""

    def __init__(self, field: str, message: str):
        super().__init__(message)
        self.field = field


@dataclass(frozen=True)
class Knob:
    """A knob's words and limits. Numbers have low, high and step; choices have a mapping from value to label."""

    name: str
    label: str
    help: str
    default: object
    low: float | None = None
    high: float | None = None
    step: float | None = None
    choices: Mapping[str, str] | None = None
    whole: bool = False


_LAMBDA = Knob("bound", "λ, bound", "A token may count for at most λ times its own probability. 1 is exact.",
               2.0, 1.0, 10.0, 0.1)
_DELTA = Knob("bound", "δ, bound", "At most this much probability is added to a token. 0 is exact.",
              0.1, 0.0, 1.0, 0.01)
BOUNDS = {"lantern": _DELTA, "lanternpp": _LAMBDA, "annealed": _LAMBDA, "coupled-relaxed": _LAMBDA}

KNOBS: dict[str, Knob] = {knob.name: knob for knob in (
    Knob("prompt", "Prompt", "A thing, a style and a background colour, in a few words.", ""),
    Knob("method", "Method", "How drafted tokens are accepted.", "lanternpp", choices=METHODS),
    Knob("tree", "Draft tree", "Which tokens are drafted before each pass of the target.", "cpu4",
         choices={name: name for name in (*PRESETS, TUNED)}),
    Knob("k", "k, neighbours that may be pooled", "0 is exact. More neighbours, more mass to pool.", 100, 0,
         MAX_NEIGHBOURS, 1, whole=True),
    _LAMBDA,
    Knob("gamma", "γ, annealing", "The bound's excess is multiplied by γ at each further depth of the tree.", 0.8, 0.0,
         1.0, 0.05),
    Knob("order", "Order", "Strict-first departs from the target only where nothing passed the strict rule.",
         "strict-first", choices={"strict-first": "Strict first", "sequential": "Sequential, as published"}),
    Knob("seed", "Seed", "The same seed and settings paint the same picture.", 0, 0, 2**31 - 1, 1, whole=True),
    Knob("cfg_scale", "Guidance (CFG)", "How strongly the prompt steers. 1 is none.", 3.0, 1.0, 20.0, 0.1),
    Knob("temperature", "Temperature", "0 is greedy.", 1.0, 0.0, 2.0, 0.05),
    Knob("top_k", "Top-k", "Only the k most probable tokens may occur. 0 allows all.", 1000, 0, 65536, 1, whole=True),
    Knob("top_p", "Top-p", "Only the most probable tokens that make up this share may occur.", 1.0, 0.01, 1.0, 0.01),
    Knob("mode", "Engine mode", "How a step runs, the baseline's too. Compiling takes minutes once; graphs need a GPU.",
         "eager", choices=MODES),
)}


def _plain(number: float) -> str:
    """2,147,483,647 rather than 2.14748e+09; 0.01 rather than 0.010000."""
    return f"{number:,}" if isinstance(number, int) else f"{number:g}"


def checked_number(knob: Knob, value: object) -> float | int:
    """A number within a knob's limits, from a number or its text; SettingsError says what is wrong."""
    kind = "whole number" if knob.whole else "number"
    say = f"{knob.label.split(',')[0]} must be a {kind} from {_plain(knob.low)} to {_plain(knob.high)}"
    shown = shortened(value)
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise SettingsError(knob.name, f"{say}, not {shown}: enter a number.")
    try:
        number = float(value)
    except (ValueError, OverflowError):
        raise SettingsError(knob.name, f"{say}, not {shown}: enter a number.") from None
    if not math.isfinite(number) or not knob.low <= number <= knob.high:
        raise SettingsError(knob.name, f"{say}, not {shown}: choose a value in that range.")
    if knob.name == "temperature" and 0 < number < COLDEST:
        raise SettingsError(knob.name, f"Temperature must be 0 (greedy) or from {COLDEST} to {knob.high:g}, "
                                       f"not {shown}: use 0 for greedy.")
    if knob.whole and number != int(number):
        raise SettingsError(knob.name, f"{say}, not {shown}: leave out the fraction.")
    return int(number) if knob.whole else number


def _choice(knob: Knob, value: object) -> str:
    if isinstance(value, str) and value in knob.choices:
        return value
    raise SettingsError(knob.name, f"{knob.label} {shortened(value)} is unknown: choose one of "
                                   f"{', '.join(knob.choices)}.")


def _prompt(value: object) -> str:
    if not isinstance(value, str):
        raise SettingsError("prompt", f"The prompt must be text, not {shortened(value)}: type a few words.")
    if len(value) > MAX_PROMPT:
        raise SettingsError("prompt", f"The prompt has {len(value):,} characters; at most {MAX_PROMPT} are read: "
                                      "shorten it.")
    plain = "".join(" " if unicodedata.category(c)[0] in "CZ" else c for c in unicodedata.normalize("NFKC", value))
    plain = " ".join(plain.split())
    if not any(c.isalnum() for c in plain):
        raise SettingsError("prompt", "The prompt has no words in it: type a few, such as “a red apple, 3d”.")
    return plain


@dataclass(frozen=True)
class Settings:
    """Everything that determines a picture, all within limits. Make one with `checked`."""

    prompt: str
    method: str
    tree: Tree
    k: int
    bound: float
    gamma: float
    order: str
    seed: int
    cfg_scale: float
    temperature: float
    top_k: int
    top_p: float
    mode: str = "eager"

    @classmethod
    def checked(cls, defaults: Mapping[str, object] | None = None, about: Mapping[str, object] | None = None,
                **raw: object) -> Settings:
        """Settings from anything a person, a link or a program sent; SettingsError says what is wrong with one knob.

        A knob that is missing or an empty string gets its default; `defaults` are a model's own. `None` counts as
        missing only for the bound, whose default depends on the method. The tree "tuned" is the one tuned for the model
        and machine that `about` describes (LanternPipeline.describe), or the last one where it is left out.
        """
        if unknown := set(raw) - set(KNOBS):
            name = sorted(unknown)[0]
            raise SettingsError(name, f"There is no setting {name[:40]!r}: use one of {', '.join(KNOBS)}.")
        defaults = defaults or {}
        given = {n: raw[n] if n in raw and not (raw[n] == "" and n != "prompt")
                 else defaults.get(n, knob.default) for n, knob in KNOBS.items()}
        method = _choice(KNOBS["method"], given["method"])
        bound = BOUNDS.get(method, _LAMBDA)
        if "bound" not in raw or raw["bound"] in (None, "") or method not in BOUNDS:
            given["bound"] = bound.default
        try:
            named = isinstance(given["tree"], str) and given["tree"].strip() == TUNED
            tree = tuned_tree(about) if named else parse_tree(given["tree"])
        except TreeError as error:
            raise SettingsError("tree", str(error)) from None
        if tree.nodes == 0 and method != "ar":
            raise SettingsError("tree", f"The tree 'root' drafts nothing, so {METHODS[method]} would be plain AR: "
                                        "choose another tree or the method ar.")
        return cls(prompt=_prompt(given["prompt"]), method=method, tree=tree if method != "ar" else PRESETS["root"],
                   bound=checked_number(bound, given["bound"]), order=_choice(KNOBS["order"], given["order"]),
                   mode=_choice(KNOBS["mode"], given["mode"]),
                   **{n: checked_number(KNOBS[n], given[n])
                      for n in ("k", "gamma", "seed", "cfg_scale", "temperature", "top_k", "top_p")})

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.cfg_scale, self.temperature, self.top_k, self.top_p)

    @property
    def relaxation(self) -> Relaxation:
        rule = "exact" if self.method == "ar" else self.method
        return Relaxation(rule, self.k, self.bound, self.gamma, self.order)

    def baseline(self) -> Settings:
        """Plain AR of the same prompt, seed and sampling, in the same mode."""
        return replace(self, method="ar", tree=PRESETS["root"])

    @property
    def label(self) -> str:
        """Method, tree and the knobs that the method reads, such as "LANTERN++ cpu4 k=100 λ=2 strict-first"."""
        said = [METHODS[self.method]]
        if self.method != "ar":
            said.append(self.tree.name)
        if self.method in BOUNDS:
            said += [f"k={self.k}", f"{'δ' if self.method == 'lantern' else 'λ'}={self.bound:g}"]
        if self.method == "annealed":
            said.append(f"γ={self.gamma:g}")
        if self.method in BOUNDS and not self.relaxation.coupled:
            said.append(self.order)
        return " ".join(said)

    def to_dict(self) -> dict[str, object]:
        """JSON-ready; the tree as name and parents."""
        return asdict(self) | {"tree": {"name": self.tree.name, "parents": list(self.tree.parents)}}
