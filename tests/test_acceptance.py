"""Acceptance by depth and rank: counted by hand, expected length against simulation and against another tree's runs."""

import random
from types import SimpleNamespace

import numpy as np
import pytest
import toy

from lanternpp.acceptance import PRIOR, AcceptanceTable, acceptance_table, expected_accepted_length, reach
from lanternpp.pipeline import LanternPipeline, run
from lanternpp.settings import Settings
from lanternpp.trace import StepEvent
from lanternpp.tree import PRESETS, Tree, parse_tree


def trace(tree: str, *steps: tuple[tuple[int, ...], str]):
    """A trace of steps (path, verdicts)."""
    events = [StepEvent(0, 0, (5,), 0.1)]
    events += [StepEvent(i, i, (5,), 0.1, path=path, verdicts=letters) for i, (path, letters) in enumerate(steps, 1)]
    return SimpleNamespace(header={"tree": {"parents": parse_tree(tree).parents}}, events=events)


def simulated(tree: Tree, table: AcceptanceTable, steps: int = 20_000) -> float:
    """Mean accepted length of a process that tries each child in turn with the table's rates."""
    draw, total = random.Random(5).random, 0
    rates = [table.rate(depth, rank) for depth, rank in zip(tree.depths, tree.ranks, strict=True)]
    for _ in range(steps):
        node, moved = 0, True
        while moved:
            total, moved = total + 1, False
            for child in tree.children[node]:
                if draw() < rates[child]:
                    node, moved = child, True
                    break
    return total / steps


def test_verdicts_are_counted_by_depth_and_rank():
    table = acceptance_table([
        trace("3,2", ((1, 5), "ann" "ra" "nnnn"),  # the first child, then the second below it
              ((), "rrr" "nnnnnn"),
              ((2,), "rxr" "nnrrnn"),  # taken by pooling: its later sibling was asked, but could not be the one
              ((3,), "-ra" "zzzzzz")),  # a child that was not drawn is a chance missed; no room is none
        trace("1", ((1,), "a")),
    ])
    assert table.tested.tolist() == [[5, 3, 2], [2, 2, 0]]
    assert table.accepted.tolist() == [[2, 1, 1], [0, 1, 0]]
    assert table.overall == pytest.approx(5 / 14)
    with pytest.raises(ValueError, match="no drafted token"):
        acceptance_table([trace("root", ((), ""))])


def test_rates_lean_on_coarser_ones_where_little_was_tested():
    table = AcceptanceTable(np.array([[100_000, 1000], [0, 0]]), np.array([[60_000, 100], [0, 0]]))
    assert table.rate(1, 0) == pytest.approx(0.6, abs=0.01) and table.rate(1, 1) == pytest.approx(0.1, abs=0.01)
    assert table.rate(2, 0) == table.rate(7, 0) == pytest.approx(0.6, abs=0.01)
    assert table.rate(1, 5) == table.rate(9, 9) == table.rate(2, 1)
    few = AcceptanceTable(np.array([[PRIOR, PRIOR]], dtype=int), np.array([[PRIOR, 0]], dtype=int))
    assert 0 < few.rate(1, 1) < 0.5 < few.rate(1, 0) < 1


@pytest.mark.parametrize("name", ["root", "chain5", "cpu14", "lantern57"])
def test_expected_length_is_that_of_a_simulation(name):
    tested = np.array([[400, 250, 180, 150], [300, 150, 90, 0], [60, 20, 0, 0]])
    accepted = np.array([[150, 60, 25, 12], [140, 50, 20, 0], [20, 5, 0, 0]])
    table, tree = AcceptanceTable(tested, accepted), PRESETS[name]
    assert expected_accepted_length(tree, table) == pytest.approx(simulated(tree, table), abs=0.03)
    reached = reach(tree, table)
    assert reached[0] == 1 and all(
        sum(reached[child] for child in children) <= reached[node] for node, children in enumerate(tree.children))


def test_one_trees_traces_predict_another_trees_accepted_length():
    """Rates from a broad tree foretell a chain and a bush, which were decoded on their own; wrong rates do not."""
    pipe = LanternPipeline(toy.bundle())

    def traces(tree: str, seeds: range) -> list:
        return [run(pipe.stream(Settings.checked(
            pipe.bundle.defaults, prompt="red fox", method="lanternpp", tree=tree, k=10, bound=3.0, seed=seed))).trace
            for seed in seeds]

    table = acceptance_table(traces("4,3,2", range(16)))
    wrong = AcceptanceTable(table.tested, table.accepted // 2)
    for tree in ("1,1,1", "3,2"):
        steps = [event for each in traces(tree, range(100, 116)) for event in each.events[1:]
                 if "z" not in event.verdicts]
        lengths = np.array([event.accepted for event in steps])
        assert len(steps) > 60
        error = lengths.std() / len(lengths) ** 0.5
        assert abs(lengths.mean() - expected_accepted_length(parse_tree(tree), table)) < 3 * error + 0.05
        assert abs(lengths.mean() - expected_accepted_length(parse_tree(tree), wrong)) > 3 * error + 0.05
