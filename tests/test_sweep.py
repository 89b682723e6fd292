"""Sweeps: the grid and what it refuses, running, stopping and going on, and the same CSV from app and command line."""

import csv
import io
import json
from dataclasses import replace

import pytest
import toy
from PIL import Image

from lanternpp import frontier, sweep
from lanternpp.__main__ import main
from lanternpp.grid import BLOCK, CONSOLE, LISTED, Grid
from lanternpp.pipeline import LanternPipeline
from lanternpp.settings import SettingsError
from lanternpp.sweep import COLUMNS, MEASURED, Sweep

PROMPTS = "red apple\nfox, 3d"
# 24 settings: two trees times one exact, two LANTERN, four LANTERN++, four annealed and one coupled
MANY = {"methods": "exact, lantern, lanternpp, annealed, coupled", "trees": "2/1, 3", "k": "5, 20", "lam": "2, 3",
        "delta": "0.2", "gamma": "0.5", "prompts": "red apple", "repeats": 1}


@pytest.fixture(scope="module")
def pipe(toy_folder):
    return LanternPipeline.from_pretrained(toy_folder)  # as the commands load it


def grid(**raw) -> Grid:
    return Grid.checked(toy.bundle().defaults, **{"prompts": PROMPTS, "trees": "2/1", **raw})


def labels(**raw) -> list[str]:
    return [p.label for p in grid(**raw).points]


def same(text: str) -> list[dict]:
    """The columns of a CSV that no clock changes."""
    return [{k: v for k, v in row.items() if k not in MEASURED} for row in csv.DictReader(io.StringIO(text))]


def test_knobs_that_a_method_does_not_read_make_no_points():
    assert labels(methods="exact", k="1,2,3", lam="junk", gamma=None) == ["Exact tree 2/2"]
    assert labels(methods=["lanternpp"], k=[10], lam=[2, "3.0", 3], delta="x") == [
        "LANTERN++ 2/2 k=10 λ=2 strict-first", "LANTERN++ 2/2 k=10 λ=3 strict-first"]
    assert len(labels(methods="annealed", k=10, lam="2,3", gamma="0.5 0.8", orders="strict-first;sequential")) == 8
    assert len(labels(methods="coupled-relaxed", k=10, lam="2,3", orders="strict-first,sequential")) == 2
    assert labels(methods="ar, exact, exact", trees="2/1; 2,3") == ["Exact tree 2/2", "Exact tree 2", "Exact tree 3"]


def test_settings_that_come_to_the_same_are_one():
    assert labels(methods="lanternpp", k="0, 10", lam="1, 2, 3") == [
        "LANTERN++ 2/2 k=0 λ=1 strict-first", "LANTERN++ 2/2 k=10 λ=2 strict-first",
        "LANTERN++ 2/2 k=10 λ=3 strict-first"]
    assert labels(methods="exact", trees=["cpu4", "4", {"parents": [-1, 0, 0, 0, 0]}]) == ["Exact tree cpu4"]
    assert len(labels(methods="exact", trees=["2/1.1", "2/2.0"])) == 2  # other trees with the same widths


def test_every_prompt_is_painted_with_every_seed_of_the_repeats():
    own = grid(methods="exact", repeats="2", seed=2**31 - 1)
    assert own.pictures == [("red apple", 2**31 - 1), ("fox, 3d", 2**31 - 1), ("red apple", 0), ("fox, 3d", 0)]
    assert own.runs == 8 and [s.method for s in own.round(0, 1)] == ["ar", "exact"]
    assert grid(prompts=[" red  apple ", "red apple", ""]).prompts == ("red apple",)


NAN = float("nan")
BAD = [
    {"methods": None}, {"methods": 5}, {"methods": ""}, {"methods": []}, {"methods": "magic"},
    {"methods": ["exact", 3]}, {"methods": "ar"}, {"methods": {"exact": 1}}, {"methods": True},
    {"methods": ["exact"] * 100},
    {"trees": None}, {"trees": []}, {"trees": "oak"}, {"trees": ["2"] * 100}, {"trees": [None]}, {"trees": "root"},
    {"trees": ",".join(["9/9/9/9"] * 3)}, {"trees": {"parents": [-1, 0]}}, {"trees": [3, 2]},
    {"k": None}, {"k": NAN}, {"k": "nan"}, {"k": [10, NAN]}, {"k": -1}, {"k": 2.5}, {"k": "many"}, {"k": [True]},
    {"k": [None]}, {"k": [[1]]}, {"k": list(range(LISTED + 1))}, {"k": "1," * 50_000}, {"k": {}}, {"k": 10**400},
    {"lam": 0.5}, {"lam": float("inf")}, {"lam": "1e999"}, {"lam": None}, {"lam": ""},
    {"methods": "lantern", "delta": 3}, {"methods": "lantern", "delta": [None]}, {"methods": "annealed", "gamma": NAN},
    {"orders": "random"}, {"orders": None}, {"orders": [1]},
    {"prompts": None}, {"prompts": ""}, {"prompts": []}, {"prompts": 5}, {"prompts": [None]}, {"prompts": ["x" * 9000]},
    {"prompts": "\n".join(f"fox {i}" for i in range(9))}, {"prompts": "the meaning of life"}, {"prompts": [["fox"]]},
    {"repeats": 0}, {"repeats": 6}, {"repeats": NAN}, {"repeats": None}, {"repeats": "two"}, {"repeats": True},
    {"repeats": 1.5}, {"repeats": [1]},
    {"seed": NAN}, {"seed": None}, {"temperature": NAN}, {"cfg_scale": "hot"}, {"top_p": 0}, {"top_k": [1]},
    {"colour": 1}, {"bound": 2}, {"k": list(range(1, 40)), "lam": [1 + i / 10 for i in range(1, 60)]},
    {"methods": "lanternpp,annealed", "k": list(range(64)), "lam": [1 + i / 64 for i in range(64)],
     "gamma": [i / 64 for i in range(64)], "trees": [str(i) for i in range(1, 65)]},
]


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: json.dumps(bad)[:40] if 10**400 not in bad.values() else "huge")
def test_a_bad_grid_is_one_sentence(bad):
    with pytest.raises(SettingsError) as caught:
        grid(**{"methods": "lanternpp", **bad})
    said = str(caught.value)
    assert 20 < len(said) < 300 and "\n" not in said and said.endswith("."), said


def test_the_command_line_may_ask_for_more_than_the_server():
    huge = {"methods": "lanternpp", "k": list(range(1, 41)), "lam": [2, 3]}
    assert len(Grid.checked(limits=CONSOLE, **huge).points) == 160  # two default trees
    with pytest.raises(SettingsError, match="more than 64 settings"):
        Grid.checked(**huge)
    assert Grid.checked(scored=False, prompts="anything goes").prompts == ("anything goes",)
    assert 10 <= len(Grid.checked().points) <= 30  # the page's own


@pytest.fixture(scope="module")
def measured(pipe):
    done = Sweep(grid(**MANY), keep=1)
    steps = list(done.run(pipe))
    assert len(steps) == done.grid.runs == 30 and done.complete and steps[-1].left == 0
    assert [step.complete for step in steps] == ([False] * BLOCK + [True]) * 6
    assert steps[0].left is None and steps[10].left > 0
    return done


def test_rows_are_what_the_runs_were(measured, pipe):
    rows = measured.rows()
    assert [row["setting"] for row in rows] == list(range(25)) and all(set(COLUMNS) <= set(row) for row in rows)
    for row in (rows[0], rows[1], rows[7], rows[24]):
        settings = replace(measured.grid.setting(row["setting"]), prompt="red apple")
        output = pipe(**{k: v for k, v in settings.to_dict().items() if k != "tree"}, tree=settings.tree)
        facts = output.trace.summary()
        assert [row[n] for n in ("tokens", "steps", "accepted_length", "relaxed_only")] == pytest.approx(
            [facts[n] for n in ("tokens", "steps", "accepted_length", "relaxed_only")])
        judged = sweep.judge(sweep.Scorer.load(), output, "red apple")
        assert row["similarity"] == pytest.approx(judged["similarity"], abs=1e-5)
        kept = io.BytesIO(measured.pictures[row["setting"], 0])
        assert Image.open(kept).tobytes() == output.images[0].tobytes()
        assert row["similarity_change"] == pytest.approx(row["similarity"] - rows[0]["similarity"], abs=1e-6)
    assert rows[0]["method"] == "ar" and rows[0]["speedup"] == 1 and rows[0]["k"] is None
    assert rows[1]["k"] is None and rows[3]["gamma"] is None and rows[3]["order"] == "strict-first"
    coupled = next(row for row in rows if row["method"] == "coupled")
    assert coupled["similarity_change"] == 0 and coupled["steps"] < rows[0]["steps"]  # AR's very picture
    front = [r for r in rows if r["pareto"]]
    assert front and not any(frontier.dominates(o, r, "similarity_change", -1) for r in front for o in rows)
    assert all(any(frontier.dominates(o, r, "similarity_change", -1) for o in rows) for r in rows if not r["pareto"])


def test_a_stopped_sweep_keeps_complete_rounds_and_goes_on(measured, pipe):
    part = Sweep(measured.grid)
    stream = part.run(pipe)
    for _ in range(13):
        next(stream)
    stream.close()
    assert len(part.rounds) == 2 and part.done == 10 and len(part.rows()) == 9  # three runs of a round are lost
    again = part.copy()
    assert len(list(again.run(pipe))) == 20 and again.complete and not part.complete
    assert same(again.csv()) == same(measured.csv())


def test_speed_is_paired_with_the_rounds_own_baseline(pipe):
    both = Sweep(grid(methods="exact", prompts=PROMPTS))
    for i, (ar, own) in enumerate(((8.0, 2.0), (3.0, 3.0))):
        base = {"tokens": 16, "steps": 15, "accepted_length": 1.0, "step_compression": 1.0, "relaxed_only": 0}
        both.rounds[0, i] = [base | {"total_seconds": ar}, base | {"total_seconds": own}]
    [baseline, row] = both.rows()
    assert row["speedup"] == 2.5 and (row["speedup_low"], row["speedup_high"]) == (1.75, 3.25)
    assert row["images"] == 2 and row["similarity"] is None and not row["pareto"] and baseline["speedup"] == 1
    assert both._left(0) == 0


def test_few_pictures_without_a_change_prove_little(pipe):
    pair = Sweep(grid(methods="exact", prompts=PROMPTS))
    run = {"tokens": 16, "steps": 15, "accepted_length": 1.0, "step_compression": 1.0, "relaxed_only": 0,
           "total_seconds": 1.0, "similarity": 0.5, "rank": 0}
    for i in range(2):
        pair.rounds[0, i] = [dict(run), dict(run)]
    [_, row] = pair.rows()
    assert row["top1_change"] == 0 and row["top1_low"] < -0.2 < 0.2 < row["top1_high"]


def test_the_command_line_goes_on_and_its_csv_equals_a_sweeps(measured, toy_folder, tmp_path, capsys, monkeypatch):
    options = [f"--{k}={v}" for k, v in MANY.items() if k != "prompts"]
    call = ["sweep", *options, "--prompt", "red apple", "--model", str(toy_folder), "--out", str(tmp_path)]
    real, calls = sweep.bench.run, []

    def interrupted(stream):
        calls.append(1)
        if len(calls) == 13:
            raise KeyboardInterrupt
        return real(stream)

    monkeypatch.setattr(sweep.bench, "run", interrupted)
    assert main(call) == 130
    assert "10 of 30 runs" in capsys.readouterr().err and (tmp_path / "sweep.png").read_bytes()[:4] == b"\x89PNG"
    monkeypatch.setattr(sweep.bench, "run", lambda stream: calls.append(1) or real(stream))
    assert main(call) == 0
    assert len(calls) == 13 + 20
    said = capsys.readouterr()
    document = json.loads(said.out.strip().splitlines()[-1])
    assert document["complete"] and len(document["rows"]) == 25 and document["device"]
    text = (tmp_path / "sweep.csv").read_text()
    assert same(text) == same(measured.csv()) and len(same(text)) == 25
    full = json.loads((tmp_path / "sweep.json").read_text())
    assert len(full["rounds"]) == 6 and full["grid"]["prompts"] == ["red apple"]
    assert main([*call, "--seed", "5"]) == 2
    assert "another sweep" in capsys.readouterr().err
    assert main(["sweep", "--k", "nan", "--out", str(tmp_path)]) == 2
    assert "k must be a whole number" in capsys.readouterr().err
