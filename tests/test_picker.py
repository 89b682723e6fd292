"""The app's choice of models: from folder to picture for each family, one in memory at a time, faults in a sentence."""

import gc
import json
import weakref

import pytest
import synthetic
import torch
from gradio_client import Client
from PIL import Image
from serving import serve, toy_pipeline

from app import build_demo, catalogue, params, picker, race, stage
from app.jobs import Job
from app.session import Worker, events
from lanternpp import published
from lanternpp.models import MODELS
from lanternpp.pipeline import LanternPipeline
from lanternpp.settings import Settings

PROMPTS = {"c2i": "golden retriever"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("models")
    return {family: synthetic.write(root / family.replace(" ", "-"), family) for family in synthetic.FAMILIES}


def choices_of(folders, *families):
    """Tiny models to choose from, as those of the hub are."""
    return {str(folders[family]): catalogue.of_folder(folders[family]) for family in families}


def page(choice, prompt, style=params.AS_TYPED):
    values = params.opening(choice.about["defaults"], choice.styled) | {"prompt": prompt, "style": style, "seed": 3}
    return tuple(values[name] for name in params.PAGE)


@pytest.mark.parametrize("family", synthetic.FAMILIES)
def test_each_family_paints_through_the_worker(folders, family):
    choice = catalogue.of_folder(folders[family])
    worker = Worker(choice.load).start()
    values = [json.loads(json.dumps(value)) for value, _ in
              race.generate(worker, "v", page(choice, PROMPTS.get(family, "a red fox")))]
    last, side = values[-1], synthetic.GRID
    assert last["grid"] == side and [len(lane["tokens"]) for lane in last["lanes"]][0] == side**2
    assert max(last["lanes"][0]["tokens"]) < synthetic.CODES  # no row ends
    if family == "c2i":  # no drafter: the baseline is painted, and a sentence says why nothing else is
        assert last["lanes"][0]["state"] == "done" and "has no drafter" in last["error"]["text"]
        return
    assert last["state"] == "done" and last["lanes"][1]["speedup"]
    rows = [worker.output(lane["run"]).trace for lane in last["lanes"]]
    for lane, trace in zip(last["lanes"], rows, strict=True):
        assert sum(lane["painted"]) == side**2 == len(trace.accepted_map())
        assert sum(lane["counts"]) == len(trace.tokens) == side * (side + (family == "lumina"))


def test_the_api_paints_from_a_published_folder(folders, monkeypatch):
    monkeypatch.setenv("LANTERNPP_MODEL", str(folders["lumina"]))
    with serve(None) as (url, demo):
        assert demo.worker.recorded == {}  # recorded runs are the bundled model's
        path, stats, trace = Client(url, verbose=False).predict(prompt="a red fox", k=5, api_name="/generate")
    assert Image.open(path).size == (8, 8) and stats["target_passes"] == len(trace["events"])
    assert trace["header"]["row_tokens"] == 5 and trace["header"]["model"].startswith("Lumina")


def test_a_model_named_on_the_command_line(folders):
    assert catalogue.command_line(["--model", "anole-7b"]) == {"model": "anole-7b", "mode": "eager"}
    assert catalogue.command_line(["--mode", "graph"]) == {"model": None, "mode": "graph"}
    demo = build_demo(model=folders["anole"])
    assert list(demo.worker.models)[0] == str(folders["anole"]) and len(demo.worker.models) == len(MODELS) + 2


def test_choosing_unloads_the_other(folders):
    choices, other = choices_of(folders, "t2i", "anole"), str(folders["t2i"])
    kept = []

    def load():
        pipe = toy_pipeline()
        kept.append(weakref.ref(pipe.bundle.target))
        return pipe

    worker = Worker(load, models=choices).start()
    for _ in run(worker, "one", Settings.checked(prompt="fox", method="ar")):
        pass
    assert kept[0]() is not None and worker.loaded == ""
    said = [value["text"] for value in picker.choose(worker, "two", choices[other], "start")]
    gc.collect()
    assert kept[0]() is None and worker.loaded == other
    assert said[0].startswith("Loading ") and said[-1].startswith("Loaded in ")
    assert [event[0] for event in run(worker, "two", Settings.checked(prompt="fox", method="ar"))][-1] == "done"
    assert worker.about["model"] == choices[other].title
    # the first visitor's page still runs what it shows
    assert [event[0] for event in run(worker, "one", Settings.checked(prompt="fox", method="ar"))][-1] == "done"
    assert worker.about["model"] == "Toy" and len(kept) == 2 and kept[1]() is not None


def run(worker, visitor, settings):
    job = Job(visitor, [settings])
    worker.submit(job)
    return list(events(worker, job))


def test_a_baseline_belongs_to_its_model(folders):
    choices = choices_of(folders, "t2i")
    worker, settings = Worker(toy_pipeline, models=choices).start(), Settings.checked(prompt="fox", method="ar")
    run(worker, "v", settings)
    assert worker.baseline("v", settings) is not None
    worker.chosen["v"] = str(folders["t2i"])
    assert worker.baseline("v", settings) is None and worker.baseline("w", settings) is not None


def test_a_model_without_files_says_one_sentence_and_changes_nothing():
    spec = MODELS["llamagen-t2i-256"]
    choice = catalogue.choices_for(spec.name)[spec.name]
    worker = Worker(toy_pipeline, models={spec.name: choice}).start()
    run(worker, "v", Settings.checked(prompt="fox", method="ar"))
    pipe = worker.pipe
    [value] = picker.choose(worker, "v", choice, "start")
    assert "is not on this machine: run `hf download jadohu/LlamaGen-T2I " in value["text"]
    assert value["text"].endswith(".") and "\n" not in value["text"]
    last = list(race.generate(worker, "v", page(choice, "fox")))[-1][0]
    assert last["state"] == "failed" and last["error"]["text"] == value["text"] and worker.pipe is pipe


def test_a_model_too_large_says_one_sentence(monkeypatch):
    spec = MODELS["llamagen-c2i-B-256"]
    choice = catalogue.choices_for(spec.name)[spec.name]
    monkeypatch.setattr(published, "missing", lambda spec: [])
    monkeypatch.setattr("lanternpp.checkpoints.free_memory", lambda device: 1000)
    worker = Worker(toy_pipeline, models={spec.name: choice})
    [value] = picker.choose(worker, "v", choice, "start")
    assert "needs 1." in value["text"] and "0.0 GB free" in value["text"]
    assert choice.line().endswith("too large") and choice.line(10**12).endswith("ready")


def test_the_list_names_needs_and_what_is_missing():
    found = catalogue.choices_for("assets/emoji")
    assert list(found)[0] == "assets/emoji" and set(MODELS) < set(found) and len(found) == len(MODELS) + 1
    line = found["anole-7b"].line()
    assert "GB" in line and "needs its files" in line
    assert found["assets/emoji"].styled and not found["anole-7b"].styled


def test_progress_counts_all_bytes(folders):
    seen = []
    pipe = LanternPipeline.from_pretrained(folders["t2i"], "cpu", torch.float32,
                                           progress=lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1][0] == seen[-1][1] > 0
    assert len({total for _, total in seen}) == 1 and pipe.bundle.drafter is not None


def test_knobs_follow_the_model(folders):
    classes, captions = choices_of(folders, "c2i", "t2i").values()
    changed = picker.opening(classes, "3D")
    assert changed["prompt"] == "golden retriever" and changed["style"].value == params.AS_TYPED
    assert changed["top_k"].maximum == synthetic.CODES and changed["method"] in params.METHODS
    assert picker.opening(captions, "3D")["branching"] == "3,2"
    assert params.caption("a fox", params.AS_TYPED) == "a fox"


def test_larger_grids_and_row_ends_fold():
    lane = stage.new_lane("ar")
    tokens = [*range(48), 8192, *range(48)]
    for place in range(0, len(tokens), 5):
        event = stage_event(place, tokens[place:place + 5])
        stage.add_step(lane, event, {"grid": 48, "row_tokens": 49})
    assert lane["tokens"] == [*range(48), *range(48)] and sum(lane["counts"]) == len(tokens)
    assert sum(lane["painted"]) == 96


def stage_event(position, tokens):
    from lanternpp.trace import StepEvent
    return StepEvent(0, position, tuple(tokens), 0.1)
