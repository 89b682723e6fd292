"""The Sweep view: its endpoint, its turns in the worker, the recorded frontier, and in Chromium what a visitor does."""

import csv
import io
import json
import shlex
from urllib.parse import quote

import pytest
from gradio_client import Client
from serving import SlowPipeline, serve, toy_pipeline
from test_app import call, one_sentence
from test_browser import browser, open_tab, overflow, visit  # noqa: F401
from test_lab_views import in_browser
from test_sweep import MANY, same

from app import catalogue, stage, sweep, sweeps
from app.jobs import Job
from app.session import Worker, events
from lanternpp import frontier
from lanternpp.__main__ import main
from lanternpp.settings import Settings

SMALL = {"methods": "exact, lanternpp", "trees": "2/1", "k": [10], "lam": "3", "prompts": "fox, 3d", "cfg_scale": 2}


@pytest.fixture(scope="module")
def site(toy_folder):
    with serve(lambda: SlowPipeline.from_pretrained(toy_folder)) as (url, demo):
        yield url, demo


@pytest.fixture
def desk():
    worker = Worker(toy_pipeline).start()
    return sweeps.Desk(worker, catalogue.choices_for(str(catalogue.BUNDLED), toy_pipeline), str(catalogue.BUNDLED))


def test_the_endpoint_streams_progress_and_returns_rows(site):
    job = Client(site[0], verbose=False).submit(**SMALL, repeats=2, api_name="/sweep")
    progress, rows = job.result()
    assert progress["state"] == "done" and progress["done"] == progress["total"] == 6 and progress["device"]
    assert [row["method"] for row in rows] == ["ar", "exact", "lanternpp"] and rows[2]["images"] == 2
    assert rows[0]["speedup"] == 1 and rows[1]["speedup_low"] <= rows[1]["speedup"] <= rows[1]["speedup_high"]
    counts = [each[0]["done"] for each in job.outputs()]
    assert counts == sorted(counts) and len(set(counts)) > 3


@pytest.mark.parametrize("bad", [
    {"methods": None}, {"methods": "ar"}, {"trees": {"a": 1}}, {"k": [float("nan")]}, {"k": None}, {"lam": "nan"},
    {"k": list(range(64)), "lam": [1 + i / 9 for i in range(60)]}, {"prompts": ["fox"] * 9}, {"prompts": 7},
    {"repeats": 6}, {"repeats": None}, {"repeats": "x"}, {"seed": -1}, {"temperature": float("nan")}, {"top_k": {}},
], ids=lambda bad: json.dumps(bad)[:40])  # fmt: skip
def test_a_bad_sweep_is_one_sentence(site, bad):
    event, answer = call(site[0], "sweep", json.dumps(SMALL | bad))
    assert event == "error" and one_sentence(answer["error"]), answer


def test_a_page_may_send_anything(desk):
    for asked in (None, 5, [], "x", {}, {"grid": None}, {"grid": []}, {"grid": {"k": None}}, {"grid": {"colour": 1}},
                  {"grid": {"methods": "lanternpp", "lam": float("nan")}}):  # fmt: skip
        [value] = list(sweeps.measure(desk, "a", asked))
        assert value["state"] == "refused" and one_sentence(value["error"]["text"])
    plan, pictures, file = sweep.server_functions(desk)
    for asked in (None, 5, [], {}, {"key": [], "setting": 1}, {"key": "no", "setting": "x"}, {"key": None}):
        assert "error" in plan(asked) or asked == {} and plan(asked)["settings"]
        assert pictures(asked) == [] and set(file(asked)) == {"error"}


def test_a_sweep_lets_others_run_between_two_pictures(desk):
    desk.worker.submit(Job("warm", []))
    value, at = None, {}
    stream = sweeps.measure(desk, "a", {"grid": SMALL | {"repeats": 3}})
    for value in stream:
        if value["done"] >= 1 and "other" not in at:
            one = Settings.checked({"cfg_scale": 2.0, "top_k": 40}, prompt="fox", tree="2")
            at["other"] = Job("b", [one.baseline(), one])
            desk.worker.submit(at["other"])
            kinds = [event[0] for event in events(desk.worker, at["other"])]
            assert kinds.count("done") == 2
            at["then"] = desk.worker.running and desk.worker.running.visitor
            assert value["done"] < value["total"]
    assert value["state"] == "done" and value["complete"] and len(value["rows"]) == 3
    assert at["then"] in ("a", None)


def test_a_visitors_newer_run_stops_the_sweep_which_goes_on_later(desk):
    grid, last = {"grid": SMALL | {"repeats": 4}}, None
    for last in sweeps.measure(desk, "a", grid):
        if last["done"] == 3:
            desk.worker.submit(Job("a", [Settings.checked(prompt="fox", method="ar")]))
    assert last["state"] == "stopped" and last["note"] and 3 <= last["done"] < last["total"]
    plan = sweep.server_functions(desk)[0](grid["grid"])
    assert plan["kept"]["done"] == last["done"] and plan["runs"] == 12
    *_, last = sweeps.measure(desk, "another", grid)
    assert last["state"] == "done" and last["done"] == 12 and {row["images"] for row in last["rows"]} == {4}
    first = next(sweeps.measure(desk, "a", grid | {"again": True}))
    assert first["done"] == 0 and first["rows"] == []


def test_the_recorded_frontier_is_read_as_it_was_written(tmp_path):
    facts = dict.fromkeys(frontier.COLUMNS, 0.5) | {"images": 100, "pairs": 4, "nodes": 4, "device": "Some CPU"}
    rows = [facts | {"label": "a", "method": "lanternpp", "tree": "cpu4", "k": 100, "bound": 2.0, "gamma": 0.8,
                     "order": "sequential", "pareto": True, "speedup": 1.5, "top1_change": -0.01},
            facts | {"label": "b", "method": "exact", "tree": "3/2", "k": 100, "bound": 2.0, "gamma": 0.8,
                     "order": "strict-first", "pareto": False, "speedup": float("nan")},
            facts | {"label": "c", "method": "magic", "tree": "cpu4"},
            facts | {"label": "d", "method": "exact", "tree": "cpu8", "k": 100, "bound": 2.0, "gamma": 0.8,
                     "order": "strict-first", "pareto": False}]  # fmt: skip
    path = tmp_path / "frontier.csv"
    frontier.write_csv(rows, path)
    value = sweeps.recorded(path, {})
    assert [row["setting"] for row in value["rows"]] == [1, 2] and value["facts"] == ["Some CPU"]
    assert value["settings"][1]["words"] == "k 100, λ 2, sequential" and value["rows"][0]["speedup"] == 1.5
    assert value["settings"][1]["page"]["order"] == "sequential" and value["rows"][0]["pareto"]
    json.dumps(value, allow_nan=False)
    assert sweeps.recorded(path, {}, "0.5")["facts"] == ["Some CPU"]
    assert sweeps.recorded(path, {}, "another")["facts"] == ["Some CPU", "the model’s former weights"]
    path.write_bytes(b"\xff\x00 no table")
    assert sweeps.recorded(path, {}) is None and sweeps.recorded(tmp_path / "none.csv", {}) is None


@in_browser
def test_a_sweep_runs_stops_resumes_and_its_csv_equals_the_command_lines(visit, site, toy_folder, tmp_path):  # noqa: F811
    url, demo = site
    page = visit(url, reduced_motion="reduce", permissions=["clipboard-read", "clipboard-write"])
    open_tab(page, "Sweep", "#sweep [data-part=run]")
    said = "document.querySelector('#sweep [data-part=plan]').textContent"
    state = "document.querySelector('#sweep [data-state], #sweep[data-state]').dataset.state"
    page.wait_for_function(f"/^14 settings on 4 pictures/.test({said})")
    for box in ("annealed", "coupled"):
        page.check(f"#sweep input[value={box}]")
    for box in ("cpu4", "cpu8"):
        page.uncheck(f"#sweep input[value={box}]")
    for name in ("k", "lam", "delta", "gamma"):
        page.fill(f"#sweep-{name}", str(MANY[name]))
    page.fill("#sweep-more", MANY["trees"].replace(", ", ","))
    page.fill("#sweep-prompts", MANY["prompts"])
    page.wait_for_function(f"/^24 settings on 1 picture, 30 runs/.test({said})")
    page.fill("#sweep-k", "5, nan")
    page.wait_for_selector("#sweep [data-part=error]:not([hidden])")
    assert "must be a whole number" in page.inner_text("#sweep [data-part=error]")
    assert page.is_disabled("#sweep [data-part=run]") and page.get_attribute("#sweep-k", "aria-invalid") == "true"
    page.fill("#sweep-k", MANY["k"])
    page.wait_for_selector("#sweep [data-part=run]:not([disabled])")

    demo.worker.pipe.pause = 0.02
    page.click("#sweep [data-part=run]")
    page.wait_for_function("document.querySelectorAll('#sweep tbody tr[aria-selected=true]').length === 1")
    assert page.inner_text("#sweep [data-part=run]") == "Running"
    page.click("#sweep [data-part=stop]")
    page.wait_for_function(f"{state} === 'stopped'")
    assert "Stopped at" in page.inner_text("#sweep [data-part=head]")
    [kept] = [each for each in demo.desk.kept.values() if len(each.grid.points) == 24]
    done = kept.done
    assert 0 < done < 30 and page.inner_text("#sweep [data-part=run]") == "Resume"
    demo.worker.pipe.pause = 0.0
    page.click("#sweep [data-part=run]")
    page.wait_for_function(f"{state} === 'done'")
    assert page.inner_text("#sweep [data-part=head]") == "24 settings measured"
    assert page.locator("#sweep table.settings tbody tr").count() == 25
    assert page.locator("#sweep .scatter [data-setting]").count() == 25

    with page.expect_download() as caught:
        page.click("#sweep [data-action=csv]")
    shown = open(caught.value.path()).read()
    page.click("#sweep [data-action=command]")
    page.wait_for_function("/Copied/.test(document.querySelector('#sweep [data-action=command]').textContent)")
    command = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    assert command[:4] == ["python", "-m", "lanternpp", "sweep"]
    assert main([*command[3:], "--model", str(toy_folder), "--out", str(tmp_path)]) == 0
    assert same(shown) == same((tmp_path / "sweep.csv").read_text()) and len(same(shown)) == 25
    with page.expect_download() as caught:
        page.click("#sweep [data-action=png]")
    assert open(caught.value.path(), "rb").read(4) == b"\x89PNG"

    speeds = [float(row["speedup"]) for row in csv.DictReader(io.StringIO(shown))]
    page.focus("#sweep [data-part=scatter]")
    page.keyboard.press("End")
    fastest = page.get_attribute("#sweep .scatter [aria-selected=true]", "data-setting")
    assert speeds[int(fastest)] == max(speeds)
    page.keyboard.press("ArrowLeft")
    assert page.get_attribute("#sweep .scatter [aria-selected=true]", "data-setting") != fastest
    page.click("#sweep table.settings tbody tr >> nth=3")
    page.wait_for_function("document.querySelector('#sweep tr[aria-selected=true] td').textContent === 'LANTERN'")
    page.wait_for_selector("#sweep [data-part=picture]:not([hidden])")
    assert page.get_attribute("#sweep [data-part=picture]", "alt") == (
        "red apple, seed 0, LANTERN, k 5, δ 0.2, tree 2/1"
    )
    source = page.get_attribute("#sweep [data-part=picture]", "src")
    assert source == stage.as_url(list(demo.desk.kept.values())[-1].pictures[3, 0])
    link = page.evaluate("Lantern.link(Lantern.knobs)")
    page.click("#sweep [data-part=race]")
    page.wait_for_function("Lantern.knobs.method === 'lantern' && Lantern.knobs.branching === '2/1'")
    values = page.evaluate("Lantern.knobs")
    assert (values["prompt"], values["style"], values["k"], values["delta"]) == ("red apple", "As typed", 5, 0.2)
    assert page.get_attribute("#sweep [data-part=race]", "href").count("method=lantern&") == 1

    phone = visit(link, 390, 844)
    phone.wait_for_function("document.querySelectorAll('#sweep tr[aria-selected=true]').length === 1")
    assert phone.input_value("#sweep-more").replace(" ", "") == "2/1,3" and phone.input_value("#sweep-k") == "5, 20"
    assert phone.inner_text("#sweep tr[aria-selected=true] td >> nth=1") == "k 5, δ 0.2"
    assert overflow(phone) <= 0
    phone.goto(f"{url}?tab=Sweep&sweep={quote(json.dumps({'k': 'nan', 'repeats': 1e9}))}")
    phone.wait_for_selector("#sweep [data-part=error]:not([hidden])")
    text = phone.inner_text("#sweep [data-part=error]")
    assert one_sentence(text.replace(" The default grid is shown.", "")) and phone.input_value("#sweep-k") == "100"
    assert overflow(phone) <= 0
