"""Trees tuned to a model on a machine: one small JSON file each in the user's cache folder.

A tuned tree decides how fast a picture is made, never which distribution it is drawn from by an exact method; so one
that was tuned for another model is slow at worst.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from .tree import PRESETS, Tree, TreeError

FOLDER = "LANTERNPP_CACHE"  # environment variable that names another folder
TUNED = "tuned"
KEY = ("model", "device", "dtype")
REMEDY = "run `python -m lanternpp tune`, or choose another tree"


def cache_folder() -> Path:
    """Where tuned trees are kept: $LANTERNPP_CACHE, else lanternpp in the user's cache folder."""
    if chosen := os.environ.get(FOLDER):
        return Path(chosen)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lanternpp"


def preset_path(about: Mapping[str, object]) -> Path:
    """The file of a model, device and dtype; `about` is a pipeline's description."""
    key = [str(about[k]) for k in KEY]
    readable = re.sub(r"[^A-Za-z0-9]+", "-", " ".join(key)).strip("-")[:80]
    return cache_folder() / f"tree-{readable}-{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:8]}.json"


def keep(tree: Tree, about: Mapping[str, object], facts: Mapping[str, object]) -> Path:
    """Write the tuned tree of what `about` describes, with the facts that chose it; returns the file."""
    path = preset_path(about)
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps({**{k: about[k] for k in KEY}, "parents": list(tree.parents), **facts}))
    new.replace(path)
    return path


def tuned_tree(about: Mapping[str, object] | None = None) -> Tree:
    """The tree tuned for what `about` describes or, where it is left out, the one tuned last.

    TreeError, one sentence, where there is none or its file is damaged.
    """
    try:
        if about is not None:
            path = preset_path(about)
        else:
            path = max(cache_folder().glob("tree-*.json"), key=lambda p: p.stat().st_mtime, default=Path("none"))
        return Tree(tuple(int(p) for p in json.loads(path.read_text())["parents"]))
    except (FileNotFoundError, NotADirectoryError):
        where = f" for the model {about['model']} ({about['dtype']}) on this device" if about else " on this machine"
        raise TreeError(f"No tree has been tuned{where} yet: {REMEDY}.") from None
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        raise TreeError(f"The tuned tree in {path.name} cannot be read: {REMEDY}.") from None


def offered() -> dict[str, Tree]:
    """The presets by name, and the tuned tree after them where there is one."""
    try:
        return PRESETS | {TUNED: tuned_tree()}
    except TreeError:
        return dict(PRESETS)
