"""`coupled` paints AR's picture, the bundled model's too; what departs from it is counted, and told from a near-tie."""

import json
from dataclasses import replace

import pytest
import torch
import toy

from lanternpp import LanternPipeline, hub, identity
from lanternpp.bench import PROMPTS
from lanternpp.evaluate import Painted
from lanternpp.identity import differences, measure, paint, race, render, row

TOYS, SEEDS = ["red apple", "blue fox, 3d", "a flat apple"], [3, 4, 5]


@pytest.fixture(scope="module")
def exact():
    """The toy model in float64."""
    parts = toy.bundle()
    return LanternPipeline(replace(parts, target=hub.cast(parts.target, torch.float64),
                                   drafter=hub.cast(parts.drafter, torch.float64)))


def test_the_bundled_model_paints_the_same_tokens():
    pipe = LanternPipeline.from_pretrained(device="cpu", dtype=torch.float64)
    found, = measure(pipe, ["cpu8"], list(PROMPTS[:2]), [0, 1], tokens=48)
    assert (found["pictures"], found["identical"], found["tokens"]) == (2, 2, 96)
    assert found["accepted_length"] > 1.2 and not found["faults"]


def test_every_tree_and_batch_paints_the_same_tokens(exact):
    rows = list(measure(exact, ["chain5", "cpu4"], TOYS, SEEDS, batch=2))
    assert [(r["tree"], r["identical"], r["tokens"], r["faults"]) for r in rows] == \
        [("chain5", 3, 48, 0), ("cpu4", 3, 48, 0)]
    assert all(r["accepted_length"] > 1 for r in rows)


def test_a_swap_is_a_fault(exact):
    """Control: what departs from AR on purpose is counted."""
    loose = exact.check(prompt="x", method="coupled-relaxed", tree="cpu4", k=60, bound=10)
    ar, other = (paint(exact, s, TOYS, SEEDS) for s in (loose.baseline(), loose))
    found = row(loose, "float64", ar, other, differences(exact, loose, TOYS, SEEDS, ar.codes, other.codes))
    assert found["faults"] and found["identical"] + found["faults"] == 3


def test_the_race_is_that_of_the_draw(exact):
    settings = exact.check(prompt="x", method="ar")
    drawn = paint(exact, settings, TOYS[:1], SEEDS[:1]).codes[0].tolist()
    for position in (0, 1, 2, 9, 15):
        assert race(exact, settings, TOYS[0], SEEDS[0], drawn[:position]).argmax() == drawn[position]
    others = [race(exact, settings, TOYS[0], seed, drawn[:9]).argmax() for seed in range(10, 15)]
    assert any(code != drawn[9] for code in others)  # other noise has other winners


def test_near_ties_are_told_from_faults(exact, monkeypatch):
    settings = exact.check(prompt="x", method="coupled", tree="3,2")
    ar = paint(exact, settings.baseline(), TOYS, SEEDS)
    codes = ar.codes.clone()
    codes[1, 7:], codes[2, 15] = (codes[1, 7:] + 1) % 64, (codes[2, 15] + 1) % 64
    made = Painted(codes, ar.steps)
    found = differences(exact, settings, TOYS, SEEDS, ar.codes, codes)
    assert [(d.picture, d.position) for d in found] == [(1, 7), (2, 15)] and min(d.lead for d in found) > 1e-3
    said = row(settings, "float64", ar, made, found)
    assert (said["identical"], said["tokens"], said["near_ties"], said["faults"]) == (1, 16 + 8 + 16, 0, 2)
    tied = [replace(found[0], lead=1e-9), found[1]]
    said = row(settings, "float64", ar, made, tied)
    assert (said["near_ties"], said["faults"]) == (1, 1)
    assert "picture 1, token 7" in render(said)


def test_the_command(toy_folder, capsys):
    options = ["--model", str(toy_folder), "--prompts", "2", "--trees", "2,1", "--dtypes", "float64"]
    assert identity.main(options) == 0
    told = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert told["rows"][0]["identical"] == 2
    assert identity.main([*options, "--trees", "no tree"]) == 2
    assert "no tree" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        identity.main([*options, "--dtypes", "float16"])
    assert "float16" in capsys.readouterr().err


def test_the_command_fails_where_something_is_wrong(toy_folder, monkeypatch):
    true = identity.paint

    def wrong(pipe, settings, *rest):
        made = true(pipe, settings, *rest)
        return made if settings.method == "ar" else replace(made, codes=(made.codes + 1) % 64)

    monkeypatch.setattr(identity, "paint", wrong)
    assert identity.main(["--model", str(toy_folder), "--prompts", "2", "--trees", "2,1", "--dtypes", "float64"]) == 1
