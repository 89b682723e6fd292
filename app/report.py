"""A comparison on one page: pictures, numbers, accepted-length maps, settings and hardware, in one HTML file."""

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from app import params, plots, stage
from lanternpp.settings import BOUNDS
from lanternpp.trace import Trace

_STYLE = """
body { font: 13px/1.45 system-ui, "Segoe UI", Roboto, "Noto Sans", sans-serif; color: #1a1c20; background: #fbfaf8;
  max-width: 900px; margin: 24px auto; padding: 0 20px; font-variant-numeric: tabular-nums; }
h1 { font-size: 20px; margin: 0 0 4px; letter-spacing: -.01em; }
h2 { font-size: 14px; margin: 22px 0 8px; }
p { margin: 0 0 6px; color: #4a4e57; }
.lanes { display: grid; grid-template-columns: repeat(3, minmax(0, 1fr)); gap: 16px; margin: 14px 0; }
figure { margin: 0; min-width: 0; }
figcaption b { display: block; font-size: 14px; }
figcaption { color: #4a4e57; overflow-wrap: anywhere; }
img, svg { width: 100%; display: block; border-radius: 3px; margin-bottom: 6px; }
svg { shape-rendering: crispEdges; }
table { border-collapse: collapse; width: 100%; table-layout: fixed; }
th, td { text-align: left; padding: 3px 10px 3px 0; border-bottom: 1px solid #e4e1da; vertical-align: top; }
th { color: #6a6e77; font-weight: 500; }
.sw { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 5px 0 12px; }
@page { size: A4; margin: 12mm; }
@media print { body { background: none; margin: 0; font-size: 9px; -webkit-print-color-adjust: exact;
  print-color-adjust: exact; } .lanes { grid-template-columns: repeat(3, 44mm); margin: 6px 0; }
  h2 { margin: 8px 0 4px; } th, td { padding-block: 1px; } }
@media (max-width: 500px) { .lanes { gap: 8px; } body { padding: 0 12px; } table { font-size: 11px; } }
"""
# What a run's row of numbers is called, where stage.figures has it, and how it is written.
NUMBERS = (
    ("Seconds, all in all", "seconds", ".2f"),
    ("of these reading the prompt", "prompt_seconds", ".3f"),
    ("of these decoding tokens", "decode_seconds", ".2f"),
    ("of these decoding pixels", "pixel_seconds", ".2f"),
    ("Target passes", "target_passes", "d"),
    ("Accepted length, tokens a step", "accepted_length", ".2f"),
    ("Step compression", "step_compression", ".2f"),
    ("Tokens a second", "tokens_per_second", ".1f"),
    ("Tokens accepted only by pooling", "relaxed_only", "d"),
)
SAMPLING = {"seed": "Seed", "cfg_scale": "Guidance (CFG)", "temperature": "Temperature", "top_k": "Top-k",
            "top_p": "Top-p"}


def page(outputs: Sequence[Any], measured: Callable[[Trace], dict[str, Any] | None]) -> str:
    """The report of one to three finished runs, each with `trace` and `images`; AR first where it is among them.

    measured: what is known of a run's speedup over several pairs, as app.stage.pairs makes it, or None.
    """
    traces = [output.trace for output in outputs]
    header, base = traces[-1].header, next((trace for trace in traces if trace.header["method"] == "ar"), None)
    python, torch = (escape(str(header.get("versions", {}).get(name, "unknown"))) for name in ("python", "torch"))
    names = [escape(stage.describe(trace.header)) for trace in traces]
    pictures = "".join(
        f'<figure><img src="{stage.data_url(output.images[0])}" alt="Picture of {name}"><figcaption><b>{name}</b>'
        f"run {escape(output.trace.run_id)}{departures(base, output.trace)}</figcaption></figure>"
        for output, name in zip(outputs, names, strict=True)
    )
    maps = "".join(f"<figure>{accepted_map(trace, name)}<figcaption>{name}</figcaption></figure>" for trace, name in
                   zip(traces, names, strict=True))
    figures = [stage.figures(trace) for trace in traces]
    rows = [["Speedup over plain AR", *(speedup(base, trace, measured(trace)) for trace in traces)]]
    rows += [[label, *(format(each[name], form) for each in figures)] for label, name, form in NUMBERS]
    title = f"“{escape(header['prompt'])}”"
    origin = "A recorded run. " if header.get("recorded") else ""
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>LANTERN++ demo: {title}</title><style>{_STYLE}</style></head><body>
<h1>{title}</h1>
<p>{escape(stage.model_line(header))}. {origin}{escape("; ".join(stage.hardware(header)))}.</p>
<div class="lanes">{pictures}</div>
<h2>Numbers</h2>{table(["", *names], rows)}
<h2>How many tokens the step of each token brought</h2>
<p>{legend()}</p><div class="lanes">{maps}</div>
<h2>Settings</h2>{table(["", *names], settings(traces))}
<p style="margin-top:12px">Each run went alone, one after the other, on the same worker, dtype and mode; warm-up is left
out, reading the prompt and decoding the pixels are counted. Accepted length leaves the prefill out.
Python {python}, torch {torch}, {escape(str(header.get("mode", "")))} mode, threads:
{header.get("threads", "unknown")}.</p>
</body></html>
"""


def speedup(base: Trace | None, trace: Trace, pairs: dict[str, Any] | None) -> str:
    """A run's speedup with how often and where it was measured; a dash where there is no baseline beside it."""
    if base is None or trace is base or not stage.comparable(base, trace):
        return "–"
    if not pairs:
        return f"<b>{stage.speedup(base, trace):.2f}×</b>, one pair, n = 1"
    where = "" if pairs["facts"] == stage.hardware(trace.header) else f", on {escape('; '.join(pairs['facts']))}"
    quartiles = f"quartiles {pairs['low']:.2f} to {pairs['high']:.2f}"
    return f"<b>{pairs['median']:.2f}×</b>, median of n = {pairs['n']} pairs, {quartiles}{where}"


def departures(base: Trace | None, trace: Trace) -> str:
    """Where a picture that should be AR's is not, in words."""
    same = stage.same(base, trace) if base else None
    return f"<br>{escape(same['words'])}" if same else ""


def accepted_map(trace: Trace, name: str) -> str:
    """An SVG of the picture's tokens, each coloured by how many tokens its step committed."""
    grid = trace.header["grid"]
    cells = "".join(
        f'<rect x="{place % grid}" y="{place // grid}" width="1" height="1" fill="{color(count)}">'
        f"<title>{count}</title></rect>"
        for place, count in enumerate(trace.accepted_map())
    )
    return f'<svg viewBox="0 0 {grid} {grid}" role="img" aria-label="Accepted length, {name}">{cells}</svg>'


def color(count: int) -> str:
    """A colour of the page's map of accepted lengths."""
    return plots.VIRIDIS.colors[min(plots.LENGTHS, count) - 1]


def legend() -> str:
    """The map's colours with their numbers."""
    return "Tokens" + "".join(
        f'<i class="sw" style="background:{color(n)}"></i>{n}{"+" if n == plots.LENGTHS else ""}'
        for n in range(1, plots.LENGTHS + 1)
    )


def settings(traces: Sequence[Trace]) -> list[list[str]]:
    """Every knob that a run's method reads; a dash where it reads none."""
    headers = [trace.header for trace in traces]

    def read(header: dict[str, Any], name: str) -> str:
        known = params.uses(header["method"])
        used = {"bound": header["method"] in BOUNDS}.get(name, name in known)
        return escape(f"{header[name]:g}" if isinstance(header[name], float) else str(header[name])) if used else "–"

    tree = [
        "–" if header["method"] == "ar" else f"{escape(header['tree']['name'])}, {len(header['tree']['parents']) - 1} "
        "tokens" for header in headers
    ]
    rows = [["Draft tree", *tree]]
    knobs = {"k": "k, neighbours", "bound": "Bound, δ or λ", "gamma": "γ, annealing", "order": "Order"}
    rows += [[label, *(read(header, name) for header in headers)] for name, label in knobs.items()]
    rows += [[label, *(f"{header[name]:g}" for header in headers)] for name, label in SAMPLING.items()]
    return rows + [["dtype", *(escape(header["dtype"]) for header in headers)]]


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table; the cells are HTML already."""
    head = "".join(f"<th scope=col>{each}</th>" for each in heads)
    body = "".join(f"<tr><th scope=row>{row[0]}</th>{''.join(f'<td>{each}</td>' for each in row[1:])}</tr>" for row in
                   rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
