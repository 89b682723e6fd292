"""The search equals brute force, the cost curve recovers a known one, and `tune` keeps a tree that everything uses."""

import itertools
import json

import numpy as np
import pytest
from PIL import Image

from lanternpp import cost, presets, search, tune
from lanternpp.__main__ import main
from lanternpp.acceptance import AcceptanceTable, expected_accepted_length
from lanternpp.cost import CostCurve, random_tree
from lanternpp.search import best_trees, shares
from lanternpp.settings import Settings, SettingsError
from lanternpp.tree import MAX_DEPTH, PRESETS, Tree, TreeError

ABOUT = {"model": "Toy", "device": "a CPU", "dtype": "float32"}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv(presets.FOLDER, str(tmp_path / "cache"))
    return tmp_path / "cache"


def random_table(seed: int) -> AcceptanceTable:
    """Rates that neither fall with rank nor with depth, so that no greedy rule is right."""
    rng = np.random.default_rng(seed)
    tested = rng.integers(50, 500, (4, 4))
    return AcceptanceTable(tested, rng.binomial(tested, rng.uniform(0.02, 0.9, tested.shape)))


def all_trees(nodes: int, depth: int, ranks: int):
    """Every ordered tree, as lists of parents in breadth-first order."""
    for tail in itertools.product(range(nodes), repeat=nodes - 1):
        parents = (-1, 0, *tail)[: nodes + 1]
        if list(parents[1:]) == sorted(parents[1:]) and all(p < n for n, p in enumerate(parents[1:], start=1)):
            tree = Tree(parents)
            if tree.depth <= depth and max(map(len, tree.children)) <= ranks:
                yield tree


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(("depth", "ranks"), [(1, 3), (2, 2), (3, 4), (6, 6)])
def test_search_equals_brute_force(seed, depth, ranks):
    table = random_table(seed)
    found = best_trees(table, 6, depth, ranks)
    for nodes in range(1, 7):
        best = max((expected_accepted_length(t, table) for t in all_trees(nodes, depth, ranks)), default=None)
        assert (best is None) == (nodes not in found)
        if best is not None:
            tree = found[nodes]
            assert tree.nodes == nodes and tree.depth <= depth and max(map(len, tree.children)) <= ranks
            assert expected_accepted_length(tree, table) == pytest.approx(best, abs=1e-12)


def test_brute_force_sees_every_tree():
    """Ordered trees of n nodes below a root are counted by the Catalan numbers."""
    assert [sum(1 for _ in all_trees(n, 6, 6)) for n in range(1, 7)] == [1, 2, 5, 14, 42, 132]


def test_a_greedy_rule_would_fail_these_tables():
    """The control: adding the likeliest allowed node one by one is not optimal where rates do not fall with rank."""
    worse = 0
    for seed in range(4):
        table, paths = random_table(seed), []
        for _ in range(6):
            options = [(*p, sum(q[:-1] == p and len(q) == len(p) + 1 for q in paths)) for p in [(), *paths]]
            paths.append(max((o for o in options if len(o) <= 3 and o[-1] < 4),
                             key=lambda o: expected_accepted_length(Tree.from_paths([*paths, o]), table)))
        greedy = expected_accepted_length(Tree.from_paths(paths), table)
        worse += greedy < expected_accepted_length(best_trees(table, 6, 3, 4)[6], table) - 1e-9
    assert worse


def test_shares_are_the_parts_of_a_level():
    """Children of one node: their shares and the chance that none is accepted sum to 1."""
    table = random_table(0)
    share = shares(table, 2, 3)
    none = np.prod([1 - table.rate(2, r) for r in range(3)])
    assert share[1].sum() + none == pytest.approx(1)
    assert expected_accepted_length(Tree.from_branching([3]), table) == pytest.approx(1 + share[0].sum())


def test_search_prefers_what_is_cheap():
    table = random_table(1)
    curve = (0, 1, 127), (1.0, 1.1, 1.1 + 126 * 0.01)
    free_levels = search.search(table, CostCurve(*curve, level=0.0, row=0.0, rank=0.0), budget=60, depth=8)
    dear_levels = search.search(table, CostCurve(*curve, level=0.5, row=0.0, rank=0.0), budget=60, depth=8)
    assert set(free_levels) == set(range(1, 61))
    for nodes in (4, 16, 60):
        assert dear_levels[nodes].tree.depth < free_levels[nodes].tree.depth <= MAX_DEPTH
        assert dear_levels[nodes].accepted_length <= free_levels[nodes].accepted_length
    best = [min(f.values(), key=lambda c: c.seconds) for f in (free_levels, dear_levels)]
    for preset in PRESETS.values():
        if preset.nodes and max(map(len, preset.children)) <= 10:
            own = search.candidate(preset, table, CostCurve(*curve, level=0.0, row=0.0, rank=0.0))
            assert best[0].seconds <= own.seconds + 1e-12


def test_random_trees_vary_in_depth_and_width():
    rng = np.random.default_rng(0)
    trees = [random_tree(size, rng) for size in cost.SIZES for _ in range(6)]
    assert {t.nodes for t in trees} == set(cost.SIZES)
    for feature in zip(*(cost.features(t) for t in trees if t.nodes == 32), strict=True):
        assert len(set(feature)) > 2


def test_fit_recovers_a_known_curve():
    rng = np.random.default_rng(1)
    true = CostCurve((0, 1, 4, 16, 64), (5.0, 6.0, 7.0, 9.0, 20.0), level=0.7, row=0.05, rank=0.2)
    trees = [PRESETS["root"], *(random_tree(n, rng) for n in true.nodes[1:] for _ in range(4))]
    found = cost.fit(trees, [true.step(t) for t in trees])
    assert found.nodes == true.nodes and found.misfit < 1e-9
    for tree in (*PRESETS.values(), random_tree(40, rng)):
        assert found.step(tree) == pytest.approx(true.step(tree))
    noisy = cost.fit(trees, [true.step(t) * rng.normal(1, 0.1) for t in trees])
    assert 0.01 < noisy.misfit < 0.2 and min(noisy.level, noisy.row, noisy.rank) >= 0
    falling = CostCurve((0, 1, 4, 16, 64), (5.0, 30.0, 30.0, 30.0, 30.0), level=-0.7, row=0.05, rank=0.2)
    assert cost.fit(trees, [falling.step(t) for t in trees]).level == 0


def test_step_cost_is_measured_halfway(pipe):
    settings = pipe.check(prompt="a fox", method="exact", tree="3,2")
    seconds = cost.step_seconds(pipe, settings, 4)
    assert len(seconds) == 4 and min(seconds) > 0


def test_acceptance_is_counted_in_sequential_order(pipe):
    work = tune.probe(pipe, pipe.check(prompt="a fox", order="strict-first"), 2)
    assert next(work) == (1, 2) and next(work) == (2, 2)
    with pytest.raises(StopIteration) as end:
        next(work)
    headers = [trace.header for trace in end.value.value]
    assert [h["order"] for h in headers] == ["sequential"] * 2
    assert [tuple(h["tree"]["parents"]) for h in headers] == [t.parents for t in tune.PROBES[:2]]
    assert max(t.depth for t in tune.PROBES) == MAX_DEPTH and min(tune.once(t) for t in end.value.value) > 0


def test_predicted_speedup_by_hand():
    curve = CostCurve((0, 4), (0.010, 0.02), 0.0, 0.0, 0.0)
    one = search.Candidate(Tree.from_branching([4]), 2.5, 0.020)
    assert tune.predicted_speedup(one, curve, 0.5, 101) == pytest.approx((0.5 + 1.0) / (0.5 + 100 * 0.008))


def test_presets_are_kept_per_model_device_and_dtype(cache):
    first, second = Tree.from_branching([3, 1]), Tree.from_branching([2, 2])
    path = presets.keep(first, ABOUT, {"gain": 1})
    presets.keep(second, ABOUT | {"dtype": "bfloat16"}, {})
    assert path.parent == cache and presets.tuned_tree(ABOUT) == first
    assert presets.tuned_tree(ABOUT | {"dtype": "bfloat16"}) == second
    with pytest.raises(TreeError, match="python -m lanternpp tune"):
        presets.tuned_tree(ABOUT | {"device": "another"})
    assert presets.tuned_tree() in (first, second) and presets.offered()["tuned"] in (first, second)


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"parents": [0]}', '{"parents": null}', '{"parents": [-1, "a"]}'])
def test_a_damaged_preset_is_said_in_one_sentence(content):
    path = presets.keep(PRESETS["cpu4"], ABOUT, {})
    path.write_text(content)
    with pytest.raises(TreeError, match="tune"):
        presets.tuned_tree(ABOUT)


def test_settings_take_the_tuned_tree_or_say_what_to_run(pipe):
    with pytest.raises(SettingsError, match="python -m lanternpp tune") as error:
        Settings.checked(prompt="a fox", tree="tuned")
    assert error.value.field == "tree" and "tuned" not in presets.offered()
    tree = Tree.from_branching([2, 1])
    presets.keep(tree, ABOUT, {})
    assert Settings.checked(prompt="a fox", tree="tuned").tree == tree  # the last one, for no model was named
    with pytest.raises(SettingsError, match="Toy"):
        pipe.check(prompt="a fox", tree="tuned")  # this device has another name
    presets.keep(Tree.from_branching([3]), pipe.describe(), {})
    assert pipe.check(prompt="a fox", tree=" tuned ").tree == Tree.from_branching([3])


def test_the_page_offers_the_tuned_tree_once_there_is_one():
    from app import params, widgets

    assert params.from_query({"tree": "tuned"}) == {}
    presets.keep(Tree.from_branching([3, 1]), ABOUT, {})
    assert params.from_query({"tree": "tuned"}) == {"tree": "tuned"}
    assert widgets.tree_name("tuned", presets.offered()["tuned"]) == "Tuned here, 6 tokens: 3 / 3"
    assert widgets.tree_name("chain5", PRESETS["chain5"]) == "Chain of 5"


@pytest.mark.parametrize(("gain", "speedup", "says"), [
    ((1.06, 1.04, 1.09), 1.5, "6.0 % more pictures"), ((1.06, 0.97, 1.09), 1.5, "The spread holds 0"),
    ((0.9, 0.85, 0.95), 1.5, "No searched tree is faster"), ((1.06, 1.04, 1.09), 0.8, "Plain AR is faster")])
def test_verdict(gain, speedup, says):
    triple = dict(zip(("median", "low", "high"), gain, strict=True))
    both = {"searched": {"median": speedup}, "preset": {"median": speedup}}
    document = {"duel": {"gain": triple, "preset": "cpu4", "pictures": 5, "speedup": both}, "tuned": {"name": "2/2"}}
    assert says in tune.verdict(document)
    assert ("Plain AR" in tune.verdict(document)) == (speedup < 1)
    assert "cpu4" in tune.verdict(document | {"duel": None, "tuned": {"name": "cpu4"}})


def test_tune_from_the_command_line_to_the_next_picture(toy_folder, tmp_path, capsys, monkeypatch, cache):
    small = {"cpu4": PRESETS["cpu4"], "root": PRESETS["root"]}
    monkeypatch.setattr(tune, "PRESETS", small)
    monkeypatch.setattr(cost, "SIZES", (1, 2, 4))
    monkeypatch.setattr(tune, "PROBES", (Tree.from_branching([4, 2]),))
    base = ["--model", str(toy_folder)]
    picture = tmp_path / "a.png"
    assert main(["generate", "a fox", "--tree", "tuned", *base]) == 2
    assert "python -m lanternpp tune" in capsys.readouterr().err
    assert main(["tune", *base, "--traces", "1", "--pictures", "1", "--rounds", "1", "--budget", "4", "--figure",
                 str(picture)]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    document = json.loads(lines[-1])
    assert Image.open(picture).format == "PNG"
    assert {row["nodes"] for row in document["searched"]} >= {1, 2, 4} and len(document["presets"]) == 1
    known = [row["parents"] for kind in ("searched", "presets") for row in document[kind]]
    assert document["tuned"]["parents"] in known and document["predicted_best"] in known
    assert any("predicted" in line for line in lines)
    kept = [json.loads(path.read_text()) for path in cache.glob("tree-*.json")]
    assert [k["parents"] for k in kept] == [document["tuned"]["parents"]] and kept[0]["model"] == "Toy"
    assert main(["generate", "a fox", "--tree", "tuned", *base, "--out", str(picture), "--trace",
                 str(tmp_path / "a.json")]) == 0
    assert json.loads((tmp_path / "a.json").read_text())["header"]["tree"]["parents"] == document["tuned"]["parents"]
    assert main(["bench", "--methods", "exact", "--prompts", "1", "--tree", "tuned", *base]) == 0


@pytest.mark.parametrize("options", [["--tree", "3"], ["--method", "ar"], ["--budget", "128"], ["--pictures", "0"],
                                     ["--k", "nan"], ["--model", "nowhere"]])
def test_bad_options(options, capsys):
    assert main(["tune", *options]) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1 and said[0].startswith("lanternpp: ") and said[0].endswith(".")
