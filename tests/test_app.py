"""The served app: API, errors, isolation, stop, unreadable assets, recorded runs, figures."""

import base64
import io
import json
import shutil
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import httpx
import pytest
import toy
from gradio_client import Client
from gradio_client.exceptions import AppError
from PIL import Image
from serving import serve, toy_pipeline

from app import api, model_facts, params, plots, race, record, stage
from app.jobs import Bounded, Busy, Job
from app.session import WAITING, Worker, events
from lanternpp.pipeline import LanternPipeline, run
from lanternpp.settings import KNOBS, Settings
from lanternpp.trace import StepEvent, Trace

NAMES = api.NAMES
PAGE = ("red apple", "3D", "lanternpp", params.CUSTOM, "3, 2", 10, 2.0, 0.1, 0.8, "strict-first", 7, 2.0, 1.0, 0, 1.0,
        False, params.NOTHING)


@pytest.fixture(scope="module")
def served():
    with serve(toy_pipeline) as (url, demo):
        yield url, demo


@pytest.fixture(scope="module")
def client(served):
    return Client(served[0], verbose=False)


@pytest.fixture
def worker():
    return Worker(toy_pipeline).start()


def call(url: str, name: str, body: str, version: str = "/v2") -> tuple[str, object]:
    """The last event of a raw call, such as ("error", {...})."""
    sent = httpx.post(
        f"{url}gradio_api/call{version}/{name}", content=body, headers={"content-type": "application/json"}
    )
    if sent.status_code != 200:
        return "refused", sent.text
    text = httpx.get(f"{url}gradio_api/call/{name}/{sent.json()['event_id']}", timeout=60).text
    event, data = text.strip().split("\n\n")[-1].split("\n", 1)
    return event.removeprefix("event: "), json.loads(data.removeprefix("data: "))


def one_sentence(text: str) -> bool:
    return 20 < len(text) < 300 and "\n" not in text and "Traceback" not in text and text[-1] in ".!?"


# ---- the named endpoints ----


def test_generate_returns_picture_stats_and_trace(client):
    path, stats, trace = client.predict(prompt="red apple, 3d", seed=3, tree="3,2", api_name="/generate")
    assert Image.open(path).format == "PNG"
    assert sum(len(event["tokens"]) for event in trace["events"]) == 16
    assert stats["run_id"] == trace["run_id"] and trace["header"]["prompt"] == "red apple, 3d"
    assert stats["seconds"] == pytest.approx(trace["seconds"]["total"], abs=1e-3)
    assert stats["target_passes"] == len(trace["events"]) and stats["device"]


def test_compare_measures_the_speedup(client):
    first, second, stats, traces = client.predict(prompt="fox", method="exact", tree="3,2", api_name="/compare")
    assert Image.open(first).size == Image.open(second).size
    ratio = traces["ar"]["seconds"]["total"] / traces["method"]["seconds"]["total"]
    assert stats["speedup"] == pytest.approx(ratio, abs=1e-3) and stats["pairs"] == 1
    assert [traces[name]["header"]["method"] for name in ("ar", "method")] == ["ar", "exact"]
    assert {traces[name]["header"]["seed"] for name in traces} == {0}


def test_exports_of_finished_runs(client):
    _, _, stats, _ = client.predict(prompt="red fox", method="exact", tree="3,2", api_name="/compare")
    ids = [stats["ar"]["run_id"], stats["method"]["run_id"]]
    film = client.predict(run_ids=ids, api_name="/race_gif")
    assert Image.open(io.BytesIO(base64.b64decode(film.removeprefix("data:image/gif;base64,")))).n_frames > 3
    page = client.predict(run_ids=ids, api_name="/report")
    assert all(run in page for run in ids) and f"{stats['speedup']:.2f}×" in page
    for name in ("/race_gif", "/report"):
        with pytest.raises(AppError) as error:
            client.predict(run_ids=["no such run"], api_name=name)
        assert one_sentence(str(error.value))


def test_defaults_are_the_schemas(client):
    parameters = client.view_api(return_format="dict")["named_endpoints"]["/generate"]["parameters"]
    assert [p["parameter_name"] for p in parameters] == NAMES
    assert {p["parameter_name"]: p["parameter_default"] for p in parameters}["method"] == KNOBS["method"].default


BAD = [
    {"prompt": ""},
    {"prompt": "   "},
    {"prompt": None},
    {"prompt": 5},
    {"prompt": ["red"]},
    {"prompt": "a" * 10_000},
    {"prompt": "\x00\x07"},
    {"prompt": "🦊"},
    {"method": "best"},
    {"method": None},
    {"method": {"a": 1}},
    {"tree": "oak"},
    {"tree": ",".join(["1"] * 100)},
    {"tree": {"parents": [-1] + [0] * 10_000}},
    {"tree": [4] * 9},
    {"tree": "root"},
    {"tree": {"parents": [-1, 5]}},
    {"tree": []},
    {"k": -1},
    {"k": "many"},
    {"k": 10**9},
    {"k": 2.5},
    {"k": None},
    {"k": True},
    {"bound": 0.5},
    {"bound": "x"},
    {"method": "lantern", "bound": 3},
    {"method": "annealed", "gamma": 7},
    {"order": "random"},
    {"seed": -1},
    {"seed": 2**40},
    {"seed": [1]},
    {"cfg_scale": 0},
    {"cfg_scale": "NaN"},
    {"temperature": -1},
    {"temperature": float("nan")},
    {"top_k": -5},
    {"top_p": 0},
    {"top_p": float("inf")},
    {"top_p": {}},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: json.dumps(bad)[:40])
def test_a_bad_input_is_one_sentence(served, bad):
    url, _ = served
    event, answer = call(url, "generate", json.dumps({"prompt": "fox"} | bad))
    assert event == "error" and one_sentence(answer["error"]), answer
    assert httpx.get(url).status_code == 200


def test_bad_inputs_everywhere_and_then_a_good_one(served, client):
    url, _ = served
    values = [KNOBS[name].default for name in NAMES]
    for name, bad in (("compare", "best"), ("generate", 3)):
        event, answer = call(url, name, json.dumps({"data": ["fox", bad, *values[2:]]}), version="")
        assert event == "error" and one_sentence(answer["error"])
    assert call(url, "generate", '{"data": 1}', version="")[0] in ("refused", "error")
    direct = httpx.post(f"{url}gradio_api/run/generate", json={"data": ["fox", "best", *values[2:]]})
    assert "Traceback" not in direct.text
    with pytest.raises(AppError) as error:
        client.predict(prompt="", api_name="/compare")
    assert one_sentence(str(error.value))
    assert client.predict(prompt="fox", tree="3,2", api_name="/generate")[1]["seconds"] > 0


def page_call(url: str, demo, values: list, session: str = "s") -> list[dict]:
    """What the page's Generate handler answers to a hand-made request, past all widgets."""
    index = next(i for i, fn in demo.fns.items() if len(fn.inputs) == len(params.PAGE) and len(fn.outputs) == 3)
    body = json.dumps({"data": values, "fn_index": index, "session_hash": session})
    httpx.post(f"{url}gradio_api/queue/join", content=body, headers={"content-type": "application/json"})
    text = httpx.get(f"{url}gradio_api/queue/data", params={"session_hash": session}, timeout=60).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


def test_the_page_checks_what_its_widgets_cannot(served):
    url, demo = served
    last = page_call(url, demo, [*PAGE[:5], "many", *PAGE[6:]])[-2]
    assert last["msg"] == "process_completed"
    error = last["output"]["data"][0]["error"]
    assert error["field"] == "k" and one_sentence(error["text"])
    text = json.dumps(page_call(url, demo, [*PAGE[:5], float("nan"), 2.0, *PAGE[7:]], "t"))
    assert "Traceback" not in text and httpx.get(url).status_code == 200


def test_half_a_character_breaks_no_answer(served):
    url, demo = served
    event, answer = call(url, "generate", json.dumps({"prompt": "fox \ud800", "tree": "2"}))
    assert event == "complete" or one_sentence(answer["error"]), answer
    answers = page_call(url, demo, ["fox \ud800", *PAGE[1:]], "u")
    assert "Traceback" not in json.dumps(answers) and httpx.get(url).status_code == 200


def test_two_clients_get_their_own_runs(served):
    url, _ = served
    clients = [Client(url, verbose=False) for _ in range(2)]
    asked = [("red apple", 1), ("blue fox", 2), ("a fox", 3), ("red fox", 4)]

    def ask(i):
        prompt, seed = asked[i]
        return clients[i % 2].predict(prompt=prompt, seed=seed, tree="2,1", api_name="/compare")

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(ask, range(4)))
    for (prompt, seed), (_, _, _, traces) in zip(asked, answers, strict=True):
        for trace in traces.values():
            assert (trace["header"]["prompt"], trace["header"]["seed"]) == (prompt, seed)
    assert len({trace["run_id"] for answer in answers for trace in answer[3].values()}) == 8


# ---- the worker ----


def job(visitor="v", method="exact", **more):
    settings = Settings.checked(prompt="fox", method=method, tree="3,2")
    return Job(visitor, [settings.baseline(), settings], **more)


def kinds(worker, submitted):
    return [event[0] for event in events(worker, submitted, 0.05) if event[0] != "tick"]


def test_stop_ends_a_run_within_a_step():
    worker = Worker(lambda: toy_pipeline(0.05)).start()
    running = job()
    worker.submit(running)
    seen = []
    for event in events(worker, running):
        seen.append(event[0])
        if seen.count("step") == 3:
            worker.cancel("v")
    assert seen[-1] == "stopped" and seen.count("step") <= 5 and "done" not in seen


def test_a_new_click_replaces_the_old_run_and_leaves_others_alone():
    worker = Worker(lambda: toy_pipeline(0.02)).start()
    old, other, new = job("a"), job("b"), job("a")
    for each in (old, other, new):
        worker.submit(each)
    assert old.replaced and not other.cancelled.is_set()
    with ThreadPoolExecutor(3) as pool:
        ends = list(pool.map(lambda each: kinds(worker, each)[-1], (old, other, new)))
    assert ends == ["stopped", "done", "done"]


def test_turns_are_fair_and_the_queue_is_bounded():
    worker = Worker(toy_pipeline)
    for number in range(3):
        worker.submit(job("greedy"), replace=False)
        if number == 1:
            worker.submit(job("late"))
    worker._served = {"greedy": 1}
    order = []
    for _ in range(4):
        order.append(worker._next().visitor)
    assert order[0] == "late"
    for number in range(WAITING):
        worker.submit(job(str(number)))
    with pytest.raises(Busy) as error:
        worker.submit(job("one too many"))
    assert one_sentence(str(error.value))


def test_all_runs_work_in_the_hosts_mode():
    worker = Worker(toy_pipeline, mode="compile")
    asked = job("me")
    assert asked.settings and all(each.mode == "eager" for each in asked.settings)
    worker.submit(asked)
    assert all(each.mode == "compile" for each in asked.settings)
    assert "mode" not in api.NAMES  # a visitor cannot ask for minutes of compiling


def test_a_full_queue_refuses_before_it_ends_the_own_run():
    worker = Worker(toy_pipeline)
    worker.running = mine = job("me")
    for number in range(WAITING):
        worker.submit(job(str(number)))
    with pytest.raises(Busy):
        worker.submit(job("me"))
    assert not mine.cancelled.is_set() and not mine.replaced
    worker.submit(job("0"))  # takes the place of its own waiting run
    assert len(worker._jobs) == WAITING


def test_new_visitors_do_not_pass_one_who_waits():
    worker = Worker(toy_pipeline)
    worker._served = {"long ago": 1, "lately": 9}
    waiting = [job(name) for name in ("new 1", "lately", "new 2", "long ago", "new 3")]
    for each in waiting:
        worker.submit(each)
    ahead = [worker.ahead(each) for each in waiting]
    assert [worker._next().visitor for _ in waiting] == ["long ago", "new 1", "lately", "new 2", "new 3"]
    assert ahead == [1, 2, 3, 0, 4]


def test_a_stopped_run_stays_replaced():
    worker = Worker(toy_pipeline)
    worker.running = old = job("v")
    worker.submit(job("v"))
    worker.cancel("v")
    assert old.replaced


class Watched(LanternPipeline):
    """Notes what is decoded and how far."""

    def __init__(self, bundle):
        super().__init__(bundle)
        self.calls = []

    def decode_pixels(self, tokens):
        self.calls.append("pixels")
        return super().decode_pixels(tokens)

    def stream(self, settings):
        self.calls.append((settings.prompt, settings.method, settings.tree.name))
        return super().stream(settings)


def test_first_run_costs_are_paid_while_loading():
    pipe = Watched(toy.bundle())
    worker = Worker(lambda: pipe)
    assert worker._ensure()
    tree = KNOBS["tree"].default
    assert pipe.calls == ["pixels", ("warm up", "ar", "root"), ("warm up", "lanternpp", tree)]
    assert pipe._neighbours is not None
    pipe.calls.clear()
    new = job()
    worker._race(new)
    assert pipe.calls == [
        ("fox", "ar", "root"), "pixels", ("warm up", "exact", "3/6"), ("fox", "exact", "3/6"), "pixels"
    ]  # fmt: skip
    steps = [event[0] for event in new.events.queue].count("step")  # those of the warm-up are nobody's
    assert steps == sum(len(output.trace.events) for output in worker.runs.values())


def test_a_model_without_a_drafter_is_warmed_up_too():
    bundle = toy.bundle()
    bundle.drafter = None
    pipe = Watched(bundle)
    worker = Worker(lambda: pipe)
    assert worker._ensure(), worker.failure
    assert [each[1] for each in pipe.calls if each != "pixels"] == ["ar"] and pipe._neighbours is None


def test_a_reader_that_goes_away_ends_its_run():
    worker = Worker(lambda: toy_pipeline(0.02)).start()
    left = job()
    worker.submit(left)
    reader = events(worker, left)
    next(reader)
    reader.close()
    assert left.cancelled.is_set()
    follower = job("next")
    worker.submit(follower)
    assert kinds(worker, follower)[-1] == "done"


def test_measured_pairs_report_progress_and_stop():
    worker = Worker(toy_pipeline).start()
    values = [value for value, _ in race.measure(worker, "v", PAGE)]
    assert values[-1]["measuring"] is None
    [pairs] = values[-1]["pairs"]
    assert pairs["n"] == race.PAIRS
    assert pairs["low"] <= pairs["median"] <= pairs["high"]
    assert pairs["facts"] == stage.hardware(worker.about) and pairs["recorded"] is False
    lane = list(race.generate(worker, "v", PAGE))[-1][0]["lanes"][1]
    assert pairs["key"] == lane["key"]
    slow = Worker(lambda: toy_pipeline(0.05)).start()
    began = time.monotonic()
    values = []
    for value, _ in race.measure(slow, "v", PAGE):
        values.append(value)
        slow.cancel("v")
    value = values[-1]
    assert value["measuring"] is None and "pairs" not in value and time.monotonic() - began < 20


def test_bounded_forgets_the_oldest():
    kept = Bounded(2)
    for key in "abac":
        kept[key] = 1
    assert list(kept) == ["a", "c"]
    heavy = Bounded(9, 10, len)
    for key, value in (("a", "12345"), ("b", "12345"), ("c", "1"), ("d", "123456789012")):
        heavy[key] = value
        assert list(heavy)[-1] == key
        assert sum(map(len, heavy.values())) <= 10 or len(heavy) == 1
    assert list(heavy) == ["d"]


# ---- the race ----


def test_a_run_folds_into_the_stage(worker):
    values = []
    for value, _settings in race.generate(worker, "v", PAGE):
        values.append(json.loads(json.dumps(value)))
    last = values[-1]
    assert values[0]["state"] in ("running", "loading") and last["state"] == "done"
    assert [sum(lane["counts"]) for lane in last["lanes"]] == [16, 16]
    base, lane = (worker.output(lane["run"]).trace for lane in last["lanes"])
    assert last["lanes"][1]["speedup"] == pytest.approx(base.seconds["total"] / lane.seconds["total"], abs=1e-3)
    assert last["typed"] == ["red apple", "3D"] and last["seed"] == 7
    assert all(lane["image"].startswith("data:image/png;base64,") for lane in last["lanes"])
    tested = last["lanes"][1]["tested"]
    assert len(tested["q"]) == len(tested["v"]) > 0 and set(tested["v"]) <= set("axr") and min(tested["d"]) == 1


def with_knobs(**changed) -> tuple:
    return tuple((dict(zip(params.PAGE, PAGE, strict=True)) | changed).values())


def test_a_third_lane_has_its_own_numbers(worker):
    values = with_knobs(against="exact")
    last = list(race.generate(worker, "v", values))[-1][0]
    assert last["state"] == "done" and [lane["method"] for lane in last["lanes"]] == ["ar", "lanternpp", "exact"]
    base, *traces = (worker.output(lane["run"]).trace for lane in last["lanes"])
    assert [lane["speedup"] for lane in last["lanes"][1:]] == [stage.speedup(base, trace) for trace in traces]
    assert {stage.comparable(base, trace) for trace in traces} == {True}
    measured = list(race.measure(worker, "v", values))[-1][0]["pairs"]
    assert [pairs["key"] for pairs in measured] == [lane["key"] for lane in last["lanes"][1:]]
    assert {pairs["n"] for pairs in measured} == {race.PAIRS}
    assert all(api.measured(worker)(trace)["n"] == race.PAIRS for trace in traces)
    # moved knobs decode both methods again beside the kept baseline
    moved = list(race.again(worker, "v", with_knobs(against="exact", k=5)))[-1][0]
    kept = [lane["run"] == old["run"] for lane, old in zip(moved["lanes"], last["lanes"], strict=True)]
    assert kept == [True, False, False] and api.measured(worker)(worker.output(moved["lanes"][1]["run"]).trace) is None


def test_both_methods_may_change_while_the_baseline_runs():
    worker = Worker(lambda: toy_pipeline(0.03)).start()
    running = Job("v", params.lanes(*with_knobs(against="exact")))
    worker.submit(running)
    while running.lane < 0:
        time.sleep(0.01)
    assert not worker.adopt("v", params.lanes(*PAGE))  # another number of lanes is another race
    assert not worker.adopt("v", params.lanes(*with_knobs(against="exact", seed=8)))
    lanes = params.lanes(*with_knobs(against="coupled", k=9))
    assert worker.adopt("v", lanes) and running.settings[1:] == lanes[1:]
    assert kinds(worker, running)[-1] == "done"


def test_the_same_picture_is_ars_and_departures_are_told_apart(worker):
    for method in ("exact", "eagle2"):
        last = list(race.generate(worker, "v", with_knobs(method=method, same=True)))[-1][0]
        base, lane = last["lanes"]
        assert lane["tokens"] == base["tokens"]
        assert lane["same"] == {"swapped": [], "flipped": None, "later": [], "words": "All 16 tokens are AR’s own."}
    page = with_knobs(same=True, k=50, lam=10.0, seed=3)
    base, lane = list(race.generate(worker, "v", page))[-1][0]["lanes"]
    same, trace = lane["same"], worker.output(lane["run"]).trace
    differ = {place for place, (a, b) in enumerate(zip(lane["tokens"], base["tokens"], strict=True)) if a != b}
    swaps = [event.position + at for event in trace.events for at, node in enumerate(event.path)
             if event.verdicts[node - 1] == "x"]
    assert swaps and same["swapped"] == swaps and same["flipped"] is None
    assert min(differ) == swaps[0] and set(same["later"]) == differ - set(swaps)
    assert f"{len(swaps)} of 16 tokens swapped" in same["words"]
    # the control: with its swaps untold, the first of them reads as a flipped near-tie
    events = [replace(event, verdicts=event.verdicts.replace("x", "a")) for event in trace.events]
    untold = replace(trace, events=events)
    told = stage.same(worker.output(base["run"]).trace, untold)
    assert told["flipped"] == swaps[0] and not told["swapped"] and "Rounding" in told["words"]
    other = replace(trace, header=trace.header | {"seed": 99})
    assert stage.same(worker.output(base["run"]).trace, other) is None


def test_places_of_a_model_with_row_ends():
    events = [StepEvent(0, 0, (1,), 0.1), StepEvent(1, 1, (2, 9, 3), 0.2, path=(1, 2), verdicts="xx")]
    assert Trace({"grid": 2, "row_tokens": 3}, events).pooled_places() == [1]  # place 2 is a row's end
    assert Trace({"grid": 3}, events).pooled_places() == [1, 2]


def test_pairs_belong_to_all_settings_that_a_run_reads():
    def key(**changed):
        raw = {"prompt": "fox", "tree": "3,2", "k": 9, "gamma": 0.5} | changed
        return stage.key(Settings.checked(**raw).to_dict())

    changes = [
        {"tree": "3,3"}, {"tree": {"parents": [-1, 0, 0, 0, 1, 1, 1, 2, 2, 3]}}, {"order": "sequential"}, {"seed": 1},
        {"prompt": "owl"}, {"cfg_scale": 4}, {"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.5}, {"k": 8}, {"bound": 3},
        {"method": "annealed"}, {"method": "annealed", "gamma": 0.6}, {"method": "exact"},
    ]  # fmt: skip
    assert len({key(), *(key(**change) for change in changes)}) == len(changes) + 1
    assert key(method="exact") == key(method="exact", k=3, gamma=0.1)


def test_what_is_refused_ends_no_run(worker):
    [(value, _)] = race.generate(worker, "v", ("", *PAGE[1:]))
    assert "serial" not in value and "lanes" not in value and value["error"]["field"] == "prompt"
    [(later, _)] = race.measure(worker, "v", ("", *PAGE[1:]))
    assert later["refused"] > value["refused"]


def test_the_page_says_what_a_run_waits_for():
    worker = SimpleNamespace(pipe=None, failure=None, size="", ahead=lambda job: worker.before, before=2)
    value = {}
    race._wait_note(worker, None, value, time.monotonic())
    assert value["state"] == "loading" and "Loading the model" in value["note"]
    worker.pipe = object()
    race._wait_note(worker, None, value, time.monotonic())
    assert value["state"] == "running" and "2 runs ahead" in value["note"]
    worker.before = 0
    race._wait_note(worker, None, value, time.monotonic())
    assert value == {"state": "running", "note": ""}


def pressing_generate_is_asked_for(values) -> bool:
    [(value, _)] = values
    return (
        "Press Generate" in value["hint"] and value["error"] is None and not {"serial", "lanes", "state"} & set(value)
    )


def test_a_moved_knob_keeps_the_baseline(worker):
    assert pressing_generate_is_asked_for(race.again(worker, "v", PAGE))
    first = list(race.generate(worker, "v", PAGE))[-1][0]
    moved = [*PAGE[:6], 5.0, *PAGE[7:]]
    second = list(race.again(worker, "v", tuple(moved)))[-1][0]
    assert second["lanes"][0]["run"] == first["lanes"][0]["run"] and second["lanes"][0]["kept"]
    assert second["lanes"][1]["run"] != first["lanes"][1]["run"]
    assert second["lanes"][1]["settings"]["bound"] == 5.0 and second["serial"] > first["serial"]
    assert pressing_generate_is_asked_for(race.again(worker, "v", ("fox", *PAGE[1:])))


def test_knobs_may_move_while_the_baseline_runs():
    worker = Worker(lambda: toy_pipeline(0.03)).start()
    moved = (*PAGE[:5], 99, *PAGE[6:])
    value, tried = None, False
    for value, _ in race.generate(worker, "v", PAGE):
        if value["lanes"][0]["tokens"] and not tried:
            tried = True
            assert list(race.again(worker, "v", moved)) == []
    assert value["state"] == "done" and value["lanes"][1]["settings"]["k"] == 99


def test_a_failed_run_clears_its_lane_and_says_why():
    class Broken(LanternPipeline):
        def stream(self, settings):
            yield from super().stream(settings) if settings.prompt == "warm up" else self.fail()

        def fail(self):
            yield SimpleNamespace(tokens=(1,), seconds=0.1)
            raise RuntimeError("the cache is full\nTraceback")

    value = list(race.generate(Worker(lambda: Broken(toy.bundle())).start(), "v", PAGE))[-1][0]
    assert value["state"] == "failed" and value["lanes"][0]["tokens"] == []
    assert value["lanes"][0]["note"] == "The run failed: the cache is full."


# ---- unreadable assets ----


@pytest.mark.parametrize("harm", ["missing", "config", "weights"])
def test_unreadable_assets_are_one_sentence_and_the_page_is_served(tmp_path, harm):
    folder = tmp_path / "model"
    LanternPipeline(toy.bundle()).save_pretrained(folder)
    spare = tmp_path / "spare"
    shutil.copytree(folder, spare)
    if harm == "missing":
        shutil.rmtree(folder)
    else:
        file = folder / ("config.json" if harm == "config" else next(folder.glob("target-*")).name)
        file.write_bytes(b"\x00garbage")
    with serve(lambda: LanternPipeline.from_pretrained(folder)) as (url, demo):
        for name in ("generate", "compare"):
            event, answer = call(url, name, json.dumps({"prompt": "fox"}))
            assert event == "error" and one_sentence(answer["error"]), answer
        assert httpx.get(url).status_code == 200
        value = list(race.generate(demo.worker, "v", PAGE))[-1][0]
        assert value["state"] == "failed" and one_sentence(value["error"]["text"])
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(spare, folder)
        assert call(url, "generate", json.dumps({"prompt": "fox", "tree": "2"}))[0] == "complete"


# ---- recorded runs, downloads, figures ----


@pytest.fixture(scope="module")
def outputs():
    pipe = toy_pipeline()
    settings = Settings.checked(prompt="fox, 3d", tree="3,2", top_k=0)
    return [run(pipe.stream(each)) for each in (settings.baseline(), settings)]


def test_recorded_runs_come_back(tmp_path, outputs):
    path = record.save(tmp_path, "fox-0", "fox", "3D", outputs)
    value = record.load(path).stage()
    assert value["state"] == "done" and value["recorded"] and value["typed"] == ["fox", "3D"]
    assert [lane["run"] for lane in value["lanes"]] == [output.trace.run_id for output in outputs]
    assert value["lanes"][1]["speedup"] == stage.speedup(*(output.trace for output in outputs))
    (tmp_path / "a-damaged.json").write_text("{")
    record.save(tmp_path, "a-fox", "a fox", "3D", outputs)
    pairs = {"n": 5, "median": 2.0, "low": 1.9, "high": 2.1, "key": "x", "facts": ["a CPU", ""], "recorded": False}
    record.save(tmp_path, "z-fox", "z fox", "3D", outputs, pairs)
    loaded = record.load_all(tmp_path)
    assert [each.name for each in loaded] == ["z-fox", "a-fox", "fox-0"]
    assert loaded[0].stage()["pairs"] == [pairs | {"recorded": True}]
    assert record.load_all(tmp_path / "none") == []


@pytest.mark.parametrize("harm", ["one lane", "no tree", "no run", "knob", "style", "pairs", "seconds"])
def test_a_damaged_recorded_run_does_not_stop_the_page(tmp_path, outputs, harm):
    path = record.save(tmp_path, "fox-0", "fox", "3D", outputs)
    data = json.loads(path.read_text())
    match harm:
        case "one lane":
            data["lanes"].pop(), data["images"].pop()
        case "no tree":
            del data["lanes"][1]["header"]["tree"]
        case "no run":
            data["lanes"][1]["run_id"] = ["x"]
        case "knob":
            data["lanes"][1]["header"]["cfg_scale"] = "much"
        case "style":
            data["style"] = None
        case "pairs":
            data["pairs"] = [1]
        case "seconds":
            data["lanes"][0]["seconds"] = {}
    path.write_text(json.dumps(data))
    assert record.load_all(tmp_path) == []


def test_damaged_defaults_do_not_stop_the_page(tmp_path):
    target = {"grid": 4, "codes": 64}
    for defaults, name in ((None, "Toy"), ({"top_k": 9}, "Toy"), ([1], None), ({"cfg_scale": "much"}, None)):
        (tmp_path / "config.json").write_text(json.dumps({"name": "Toy", "target": target, "defaults": defaults}))
        about = model_facts(tmp_path)
        assert about.get("model") == name
        assert params.from_page(*(params.opening(about["defaults"]) | {"prompt": "fox"}).values())


def test_recorded_file_names_cannot_leave_their_folder(tmp_path, outputs):
    path = record.save(tmp_path / "in", "fox-0", "fox", "3D", outputs)
    data = json.loads(path.read_text())
    outputs[0].images[0].save(tmp_path / "outside.png")
    data["images"][0] = "../outside.png"
    path.write_text(json.dumps(data))
    with pytest.raises(FileNotFoundError):
        record.load(path)


def test_the_page_can_ask_for_traces_and_figures_only_of_kept_runs(outputs, monkeypatch):
    worker = Worker(toy_pipeline)
    for output in outputs:
        worker.runs[output.trace.run_id] = output
    trace, figure, atlas = api.server_functions(worker, "trace", "figure", "atlas")
    ids = [output.trace.run_id for output in outputs]
    assert json.loads(trace(ids[0]))["run_id"] == ids[0]
    assert all(trace(bad) is None for bad in ("../etc/passwd", None, 3, ["x"], {}))
    deep = []
    for _ in range(100_000):
        deep = [deep]
    assert all(figure(bad) is None for bad in ([], None, ["x"], [ids[0], "x"], {"a": 1}, 7, deep))
    monkeypatch.setattr(api, "PATIENCE", 0.01)
    worker.running = job()
    assert figure(ids) is None  # a figure would take time from the run
    monkeypatch.setattr(api, "DRAWING", 0.01)
    worker.running = None
    with api.drawing:
        assert figure(ids) is None
    assert atlas("") is None
    png = base64.b64decode(figure(ids).split(",", 1)[1])
    assert Image.open(io.BytesIO(png)).size[0] > 1000


def test_a_figure_asked_for_during_a_short_run_comes_after_it(outputs, monkeypatch):
    """A view that is opened has its run decoded again for the details: files asked for meanwhile only wait."""
    worker, ended = Worker(toy_pipeline), threading.Event()
    monkeypatch.setattr(worker, "_inspect", lambda job: ended.wait(60))
    worker.start()
    worker.runs[outputs[0].trace.run_id] = outputs[0]
    look = Job("me", [], inspect=outputs[0].trace.run_id)
    worker.submit(look)
    while worker.running is not look:
        time.sleep(0.005)
    threading.Timer(0.3, ended.set).start()
    [figure] = api.server_functions(worker, "figure")
    assert figure([outputs[0].trace.run_id]) and ended.is_set()


def test_figures_hold_the_maps(outputs):
    traces = [output.trace for output in outputs]
    figure = plots.comparison(traces, [output.images[0] for output in outputs])
    cells = [
        axes.images[0].get_array() for axes in figure.axes if axes.images and axes.images[0].get_array().shape == (4, 4)
    ]
    lengths = [sum(trace.accepted_map()) for trace in traces]
    assert sorted(int(each.sum()) for each in cells) == sorted([*lengths, lengths[1] - lengths[0]])


def test_runs_describe_themselves(outputs):
    assert stage.describe(outputs[1].trace.header) == "LANTERN++, k = 100, λ = 2"
    assert stage.describe(outputs[0].trace.header) == "Plain AR"
    assert stage.model_line({"model": "Toy", "grid": 4, "codes": 4096}) == "Toy · 4 × 4 tokens · 4,096 codes"


def test_nothing_of_the_page_waits_for_the_model():
    gate = threading.Event()
    with serve(lambda: gate.wait(30) and toy_pipeline()) as (url, _):
        assert httpx.get(url).status_code == 200
        gate.set()
