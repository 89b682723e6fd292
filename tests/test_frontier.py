"""The sweep's own parts: its grid, what is measured once, the Pareto front, the files."""

import csv

import pytest
import toy

from lanternpp import frontier
from lanternpp.pipeline import LanternPipeline

ROWS = [{"label": "a", "method": "exact", "speedup": 1.2, "frechet_real": 3.0, "top1": 0.8},
        {"label": "b", "method": "lanternpp", "speedup": 1.5, "frechet_real": 3.2, "top1": 0.79},
        {"label": "c", "method": "lantern", "speedup": 1.4, "frechet_real": 3.5, "top1": 0.7}]


def test_every_point_of_the_grid_is_allowed_and_has_its_own_label():
    pipe = LanternPipeline(toy.bundle())
    points = [pipe.check(prompt="x", **p) for p in frontier.grid(("3,2", "4"))]
    labels = {p.label for p in points}
    assert len(labels) == len(points)
    assert {p.method for p in points} == {"exact", "coupled", "eagle2", "lanternpp", "lantern", "annealed",
                                          "coupled-relaxed"}


def test_a_speed_is_measured_once_a_device(tmp_path, monkeypatch):
    pipe, file = LanternPipeline(toy.bundle()), tmp_path / "speeds.jsonl"
    points = [pipe.check(prompt="x", method=m, tree="2") for m in ("exact", "coupled")]
    assert list(frontier.speeds(pipe, points, 2, file)) == [p.label for p in points]
    found = frontier.read_speeds(pipe, file)
    assert set(found) == {p.label for p in points}
    assert all(0 < r["low"] <= r["median"] <= r["high"] and r["pairs"] == 2 for r in found.values())
    monkeypatch.setattr(frontier.bench, "interleave", None)
    assert list(frontier.speeds(pipe, points, 2, file)) == [p.label for p in points]
    monkeypatch.setattr(pipe, "describe", lambda: {"device": "another"})
    assert frontier.read_speeds(pipe, file) == {}


def test_the_front_holds_what_nothing_beats_in_both():
    front = [not any(frontier.dominates(o, r) for o in ROWS) for r in ROWS]
    assert front == [True, True, False]
    assert not frontier.dominates(ROWS[0], ROWS[0])


def test_files(tmp_path):
    rows = [r | {"pareto": True} for r in ROWS]
    frontier.write_csv(rows, tmp_path / "f.csv")
    with (tmp_path / "f.csv").open() as file:
        read = list(csv.DictReader(file))
    assert [float(r["speedup"]) for r in read] == [1.2, 1.5, 1.4] and list(read[0]) == list(frontier.COLUMNS)
    ar = {"frechet_real": 3.0, "top1": 0.8}
    frontier.figure(rows, ar, {"frechet_real": 3.1, "top1": 0.81}, tmp_path / "f.png")
    assert (tmp_path / "f.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(KeyError):
        frontier.figure([{"label": "no numbers", "method": "exact", "pareto": False}], ar, ar, tmp_path / "g.png")


def test_what_plain_ar_beats_is_not_on_the_front(tmp_path, monkeypatch):
    pipe = LanternPipeline(toy.bundle())
    points = [pipe.check(prompt="x", method=m, tree="2") for m in ("exact", "coupled")]
    scores = {p.label: {"top1_interval": [0, 0], "frechet_real": 3.1} for p in points}
    fast = {p.label: {"median": m, "low": m, "high": m, "pairs": 1, "device": "d"}
            for p, m in zip(points, (0.9, 0.8), strict=True)}
    monkeypatch.setattr(frontier, "read_speeds", lambda *_: fast)
    for ar, front in ((3.0, [False, False]), (3.2, [True, False])):
        monkeypatch.setattr(frontier.evaluate, "report", lambda *_, ar=ar: scores | {"ar": {"frechet_real": ar}})
        rows, _ = frontier.table(pipe, points, ["x"], [1], tmp_path, 1)
        assert [r["pareto"] for r in rows] == front


def test_other_weights_have_another_mark(tmp_path):
    (tmp_path / "target-00001.safetensors").write_bytes(b"one")
    before = frontier.weights_mark(tmp_path)
    (tmp_path / "neighbours-x.safetensors").write_bytes(b"a cache")
    assert frontier.weights_mark(tmp_path) == before
    (tmp_path / "drafter-00001.safetensors").write_bytes(b"two")
    assert frontier.weights_mark(tmp_path) != before
