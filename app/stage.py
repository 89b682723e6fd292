"""What the page's components are given: plain JSON, folded from step events and traces. Nothing here knows Gradio."""

import base64
import io
import json
from typing import Any

from PIL import Image

from app import params
from lanternpp.settings import METHODS, Settings
from lanternpp.trace import Trace, pictured

TESTED = {"a": "strict", "x": "pooled", "r": "rejected"}


def describe(settings: dict[str, Any]) -> str:
    """One run's method and bound in a line, such as "LANTERN++, k = 10, λ = 3"."""
    method = settings["method"]
    parts = [METHODS[method]]
    if method not in ("ar", "exact"):
        parts += [f"k = {settings['k']}", f"{'δ' if method == 'lantern' else 'λ'} = {settings['bound']:g}"]
    if method == "annealed":
        parts += [f"γ = {settings['gamma']:g}"]
    return ", ".join(parts)


def key(settings: dict[str, Any]) -> str:
    """All that determines a run, as text: what its rule does not read is no part of it."""
    used = params.uses(settings["method"])
    names = [
        *params.SAMPLING,
        "method",
        *(["k", "bound", "order"] if used else []),
        *(["gamma"] if "gamma" in used else []),
    ]
    return json.dumps([settings["tree"]["parents"], *(settings[name] for name in names)])


def new_lane(method: str, state: str = "empty") -> dict[str, Any]:
    """A lane in which nothing is painted yet."""
    return {
        "method": method,
        "name": METHODS[method],
        "state": state,
        "note": "",
        "tokens": [],
        "counts": [],
        "painted": [],
        "ends": [],
    }


def add_step(lane: dict[str, Any], event: Any, about: dict[str, Any]) -> None:
    """Fold one step event into a lane, in place: the lists only grow, so that a yield sends what is new.

    `about` tells where rows end: the tokens that say so are counted, but not painted.
    """
    codes = pictured(event, about)
    lane["state"] = "running"
    lane["tokens"] += [int(token) for token in codes]
    lane["counts"].append(len(event.tokens))
    lane["painted"].append(len(codes))
    lane["ends"].append(round(event.seconds, 4))


def finish(lane: dict[str, Any], trace: Trace, image: Image.Image) -> None:
    """Put a finished run's measured numbers and decoded picture into its lane."""
    lane |= {
        "state": "done",
        "note": "",
        "run": trace.run_id,
        "label": describe(trace.header),
        "tree": trace.header["tree"]["name"],
        "key": key(trace.header),
        "image": data_url(image),
        "summary": figures(trace),
        "tested": tested(trace),
        "endings": "".join(event.ending[0] for event in trace.events),
        "settings": {name: trace.header[name] for name in ("method", "k", "bound", "gamma", "temperature", "seed")},
        "facts": hardware(trace.header),
    }


def lane_of(trace: Trace, image: Image.Image, base: Trace | None = None) -> dict[str, Any]:
    """A finished run as a lane, beside its baseline where it has one."""
    lane = new_lane(trace.header["method"])
    for event in trace.events:
        add_step(lane, event, trace.header)
    finish(lane, trace, image)
    if base:
        lane |= {"speedup": speedup(base, trace), "same": same(base, trace)}
    return lane


def figures(trace: Trace) -> dict[str, float]:
    """The measured numbers of a run, as the page and the API report them."""
    summary = trace.summary()
    return {
        "seconds": round(trace.seconds["total"], 4),
        "prompt_seconds": round(trace.seconds["prompt"], 4),
        "decode_seconds": round(trace.seconds["decode"], 4),
        "pixel_seconds": round(trace.seconds["pixels"], 4),
        "steps": summary["steps"],
        "target_passes": summary["target_passes"],
        "accepted_length": round(summary["accepted_length"], 4),
        "step_compression": round(summary["step_compression"], 4),
        "tokens_per_second": round(summary["tokens_per_second"], 3),
        "relaxed_only": summary["relaxed_only"],
        "outside_top_k": summary["outside_top_k"],
    }


def speedup(baseline: Trace, trace: Trace) -> float:
    """How many times sooner the whole picture was there: prompt, decoding and pixels."""
    return round(baseline.seconds["total"] / trace.seconds["total"], 4)


def comparable(base: Trace, trace: Trace) -> bool:
    """Whether both runs had one prompt, seed and sampling, on one model, device and dtype."""
    alike = (*params.SAMPLING, "model", "device", "dtype")
    return all(base.header.get(name) == trace.header.get(name) for name in alike)


def same(base: Trace, trace: Trace) -> dict[str, Any] | None:
    """Where a run that paints AR's own picture departs from it; None for other runs and other settings.

    swapped: places (from 0) where a near-equal code stands in for AR's draw, as traced. flipped: the first place that
    differs with no swap before it, which only rounding can cause, or None. later: the other places that differ, since
    the picture before them does. words: all that in a sentence or two.
    """
    if trace.header["method"] not in params.SAME.values() or not comparable(base, trace):
        return None
    own, theirs = (
        [code for event in each.events for code in pictured(event, each.header)] for each in (trace, base)
    )
    differ = [place for place, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b]
    swapped = trace.pooled_places()
    flipped = differ[0] if differ and differ[0] < min([*swapped, len(own)]) else None
    later = [place for place in differ if place not in swapped and place != flipped]
    words = f"All {len(own)} tokens are AR’s own."
    if swapped:
        words = f"{len(swapped)} of {len(own)} tokens swapped for a near-equal code (framed)."
    if flipped is not None:
        words = f"Rounding flipped a near-tie at token {flipped + 1}. {words if swapped else ''}".strip()
    if later:
        count = f"{len(later)} {'other differs' if len(later) == 1 else 'others differ'}"
        words += f" {count} only because the picture before does (dotted)."
    return {"swapped": swapped, "flipped": flipped, "later": later, "words": words}


def tested(trace: Trace) -> dict[str, list]:
    """The drafts that were judged: draft and target probability, relaxed mass, depth and verdict of each."""
    parents = trace.header["tree"]["parents"]
    depth = [0] * len(parents)
    for node in range(1, len(parents)):
        depth[node] = depth[parents[node]] + 1
    out: dict[str, list] = {"q": [], "r": [], "m": [], "d": [], "v": []}
    for event in trace.events:
        for node, verdict in enumerate(event.verdicts):
            if verdict in TESTED and event.q[node] > 0:
                out["q"].append(float(f"{event.q[node]:.4g}"))
                out["r"].append(float(f"{event.p[node]:.4g}"))
                out["m"].append(float(f"{event.mass[node]:.4g}"))
                out["d"].append(depth[node + 1])
                out["v"].append(verdict)
    return out


def hardware(header: dict[str, Any]) -> list[str]:
    """Where a run was measured: the device, then what else its time depends on."""
    torch = (header.get("versions") or {}).get("torch") or header.get("torch", "")
    rest = [header.get("dtype", ""), header.get("mode", ""), f"torch {str(torch).split('+')[0]}" if torch else ""]
    return [str(header.get("device", "")), ", ".join(str(part) for part in rest if part)]


def model_line(about: dict[str, Any]) -> str:
    """The model in a line, as the page's header shows it."""
    name, grid, codes = about.get("model", ""), about.get("grid"), about.get("codes")
    return " · ".join(
        str(part)
        for part in (name, f"{grid} × {grid} tokens" if grid else "", f"{codes:,} codes" if codes else "")
        if part
    )


def stage(state: str, lanes: list[dict], **more: Any) -> dict[str, Any]:
    """The value of the race stage."""
    return {"state": state, "lanes": lanes, "note": "", "pairs": None, "error": None, **more}


def empty_stage() -> dict[str, Any]:
    """Nothing has run, nothing is recorded."""
    return stage("empty", [new_lane("ar"), new_lane("lanternpp")], serial=0)


def data_url(image: Image.Image, fast: bool = False) -> str:
    """A picture as a lossless data URL: no file is written for it. Fast: a sixth larger, in a twentieth of the time."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", **({"compress_level": 1} if fast else {"optimize": True}))
    return as_url(buffer.getvalue())


def as_url(content: bytes, kind: str = "image/png") -> str:
    """A file as a data URL."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def pairs(result: dict[str, Any], settings: Settings, about: dict[str, Any]) -> dict[str, Any]:
    """Median and quartiles of a method's measured speedups, from bench.compare's table, and where they were measured.

    `about` is what the pipeline says of itself; its key is that of a run, whose top-k is at most the model's codes.
    """
    row = result[settings.method]
    run = settings.to_dict() | {"top_k": min(settings.top_k, about["codes"])}
    return {"n": row["n"], **row["speedup"], "key": key(run), "facts": hardware(about), "recorded": False}
