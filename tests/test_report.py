"""The one-page report: its numbers are the traces', its text is escaped, it asks for nothing outside itself."""

import re
from dataclasses import replace

import pytest
from serving import toy_pipeline

from app import report, stage
from lanternpp.pipeline import Output, run
from lanternpp.settings import Settings


@pytest.fixture(scope="module")
def outputs():
    pipe = toy_pipeline()
    settings = Settings.checked(prompt="fox <b>&", tree="3,2", top_k=0, method="coupled-relaxed", bound=9, k=40)
    kinds = (settings.baseline(), settings, replace(settings, method="exact"))
    return [run(pipe.stream(each)) for each in kinds]


def rows(page: str) -> dict[str, list[str]]:
    """The cells of every table row by its label."""
    found = re.findall(r"<tr><th scope=row>(.*?)</th>(.*?)</tr>", page, re.S)
    return {label: re.findall(r"<td>(.*?)</td>", cells, re.S) for label, cells in found}


def test_numbers_settings_and_maps_are_the_traces(outputs):
    page = report.page(outputs, lambda trace: None)
    traces = [output.trace for output in outputs]
    found = rows(page)
    assert found["Seconds, all in all"] == [f"{trace.seconds['total']:.2f}" for trace in traces]
    assert found["Target passes"] == [str(len(trace.events)) for trace in traces]
    speedups = [f"<b>{stage.speedup(traces[0], trace):.2f}×</b>, one pair, n = 1" for trace in traces[1:]]
    assert found["Speedup over plain AR"] == ["–", *speedups]
    assert found["k, neighbours"] == ["–", "40", "–"] and found["Bound, δ or λ"] == ["–", "9", "–"]
    assert found["Draft tree"][0] == "–" and "9 tokens" in found["Draft tree"][1]
    maps = re.findall(r"<svg.*?</svg>", page, re.S)
    assert [list(map(int, re.findall(r"<title>(\d+)</title>", each))) for each in maps] == [
        trace.accepted_map() for trace in traces
    ]
    assert all(trace.run_id in page for trace in traces) and traces[0].header["device"] in page
    assert stage.same(*traces[:2])["words"] in page


def test_measured_pairs_stand_in_place_of_one(outputs):
    pairs = {"n": 5, "median": 2.0, "low": 1.9, "high": 2.1, "facts": ["Another machine", "float32"]}
    cells = rows(report.page(outputs, lambda trace: pairs if trace.header["method"] == "exact" else None))
    first, second = cells["Speedup over plain AR"][1:]
    assert "n = 1" in first and "<b>2.00×</b>, median of n = 5" in second and "Another machine" in second


def test_no_speedup_without_a_comparable_baseline(outputs):
    base, other = outputs[0], outputs[1]
    moved = Output(other.images, replace(other.trace, header=other.trace.header | {"seed": 5}))
    assert rows(report.page([base, moved], lambda trace: None))["Speedup over plain AR"] == ["–", "–"]
    assert rows(report.page([other], lambda trace: None))["Speedup over plain AR"] == ["–"]


def test_it_stands_alone_and_escapes_what_was_typed(outputs):
    page = report.page(outputs, lambda trace: None)
    assert "fox &lt;b&gt;&amp;" in page and "fox <b>" not in page
    assert not re.search(r"<script|https?://|url\(", page)
    assert page.count("data:image/png;base64,") == 3
