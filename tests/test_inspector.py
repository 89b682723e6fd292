"""What the views of a finished run are given, and the endpoint /inspect."""

import time

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError
from serving import serve, toy_pipeline

from app import inspector
from app.jobs import Job
from app.session import events

KNOBS = {"prompt": "fox", "method": "lanternpp", "tree": "2,2", "seed": 4, "k": 8}


@pytest.fixture(scope="module")
def site():
    with serve(toy_pipeline) as (url, demo):
        yield url, demo


@pytest.fixture(scope="module")
def finished(site):
    worker = site[1].worker
    while worker.pipe is None:
        time.sleep(0.05)
    job = Job("visitor", [worker.pipe.check(**KNOBS)])
    worker.submit(job)
    [output] = [event[2] for event in events(worker, job) if event[0] == "done"]
    return output.trace


def test_a_run_is_looked_into_when_asked(site, finished):
    worker, run = site[1].worker, finished.run_id
    before = inspector.whole(worker, run)
    assert before["places"] is None and before["patches"] is None and "u" not in before["steps"][1]
    values = list(inspector.look_inside(worker, "visitor", run))
    assert values[0] == {"run": run, "done": 0, "of": 16} and values[-1] == {"run": run, "ready": True}
    after = inspector.whole(worker, run)
    assert len(after["places"]["entropy"]) == 16 and after["patches"].startswith("data:image/png")
    for event, step in zip(finished.events, after["steps"], strict=True):
        assert (step["at"], step["tokens"], step["verdicts"]) == (event.position, event.tokens, event.verdicts)
        assert (step["q"], step["r"], step["m"]) == (event.q, event.p, event.mass)
    node = inspector.inside(worker, run, 1, 2)
    assert node["q"] == pytest.approx(finished.events[1].q[1]) and node["code"] == finished.events[1].drafted[1]
    assert len(node["near"]) == 63 and node["place"] == sorted(node["place"]) and node["total"] == sorted(node["total"])


@pytest.mark.parametrize("which", [(1, 0), (0, 1), (999, 1), (1, 7), ("1", 1), (True, 1), (None, None)])
def test_what_does_not_exist_is_not_told(site, finished, which):
    assert inspector.inside(site[1].worker, finished.run_id, *which) is None


def test_a_run_that_is_not_kept(site):
    assert inspector.whole(site[1].worker, "nothing") is None and inspector.whole(site[1].worker, ["x"]) is None
    assert list(inspector.look_inside(site[1].worker, "visitor", 5)) == [
        {"run": 5, "error": "This run is no longer kept; run it again."}
    ]


def test_endpoint(site, finished):
    client = Client(site[0], verbose=False)
    whole = client.predict(finished.run_id, api_name="/inspect")
    assert [step["tokens"] for step in whole["steps"]] == [list(event.tokens) for event in finished.events]
    with pytest.raises(AppError, match="no such step"):
        client.predict(finished.run_id, 999, 1, api_name="/inspect")
