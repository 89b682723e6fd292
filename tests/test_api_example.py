"""The notebook-style example of the endpoints, run as it stands against the page on a toy model."""

import math
import runpy
from pathlib import Path

from PIL import Image
from serving import serve, toy_pipeline

EXAMPLE = Path(__file__).with_name("api_example.py")


def test_the_example_runs_and_what_it_finds_agrees(monkeypatch, capsys):
    with serve(toy_pipeline) as (url, demo):
        monkeypatch.setenv("LANTERNPP_URL", url)
        found, said = runpy.run_path(str(EXAMPLE)), capsys.readouterr().out
        trace = demo.worker.output(found["stats"]["run_id"]).trace
    assert len(said.splitlines()) == 6
    assert found["trace"]["run_id"] == trace.run_id == found["run"]["id"]
    assert Image.open(found["picture"]).size == Image.open(found["swapped"]).size
    event = trace.events[found["longest"]]
    assert len(event.tokens) == max(len(each.tokens) for each in trace.events[1:])
    assert math.isclose(found["node"]["q"], event.q[0], rel_tol=1e-5) and found["node"]["code"] == event.drafted[0]
    assert found["found"]["depth"] == 3 and found["found"]["expected_accepted_length"] >= 1
    assert found["code"] == event.tokens[0] and len(found["alike"]["neighbours"]) == 5
