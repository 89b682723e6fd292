"""Draft trees: notations, limits, buffers, and the presets against the reference implementation's static trees."""

import golden
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lanternpp.tree import MAX_DEPTH, MAX_NODES, PRESETS, Tree, TreeError, parse_tree

STATIC = {"eagle25": "static_mc_sim_7b_63", "lantern57": "static_naive_extend_57"}
UNEVEN = Tree((-1, 0, 0, 0, 1, 1, 3, 4))


def paths_of(tree: Tree) -> list[tuple[int, ...]]:
    """Each node's path of child ranks, node 1 first."""
    paths = [()]
    for node in range(1, len(tree.parents)):
        paths.append((*paths[tree.parents[node]], tree.ranks[node]))
    return paths[1:]


def brute_ancestors(tree: Tree) -> torch.Tensor:
    mask = torch.zeros(len(tree.parents), len(tree.parents), dtype=torch.bool)
    for node in range(len(tree.parents)):
        seen = node
        while seen >= 0:
            mask[node, seen] = True
            seen = tree.parents[seen]
    return mask


@st.composite
def trees(draw) -> Tree:
    parents, depths = [-1], [0]
    for node in range(1, draw(st.integers(0, 40)) + 1):
        low = max(parents[-1], 0)
        parent = draw(st.integers(low, min(node - 1, low + 4)))
        if depths[parent] == MAX_DEPTH:
            break
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return Tree(tuple(parents))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees())
def test_notations_agree(tree):
    assert Tree.from_paths(paths_of(tree)) == tree
    assert Tree.from_paths(reversed(paths_of(tree))) == tree  # order of the list does not matter
    assert parse_tree([list(path) for path in paths_of(tree)]) == tree
    assert parse_tree({"parents": list(tree.parents)}) == tree
    assert parse_tree(str([list(path) for path in paths_of(tree)])) == tree
    assert parse_tree(tree) is tree
    if tree.nodes:
        assert parse_tree(tree.text) == tree and parse_tree(tree.text.replace("/", ", ")) == tree


@settings(max_examples=60, deadline=None, derandomize=True)
@given(trees())
def test_buffers(tree):
    assert torch.equal(tree.ancestors(), brute_ancestors(tree))
    assert list(tree.depths) == [len(path) for path in [(), *paths_of(tree)]]
    assert list(tree.depths) == sorted(tree.depths)  # breadth-first
    assert tree.depth == max(tree.depths) and tree.nodes == len(tree.parents) - 1
    assert sum(tree.widths) == tree.nodes and len(tree.widths) == tree.depth
    for node, kids in enumerate(tree.children):
        assert [tree.parents[kid] for kid in kids] == [node] * len(kids)
        assert [tree.ranks[kid] for kid in kids] == list(range(len(kids)))
        assert list(kids) == list(range(kids[0], kids[0] + len(kids))) if kids else node not in tree.inner
    assert list(tree.inner) == sorted(n for n, kids in enumerate(tree.children) if kids)


def test_small_trees_by_hand():
    assert Tree.from_branching([2, 1]).parents == (-1, 0, 0, 1, 2)
    assert Tree.from_branching([]).parents == (-1,)
    assert Tree.from_paths([[0], [1], [2], [0, 0], [0, 1], [2, 0], [0, 0, 0]]) == UNEVEN
    assert UNEVEN.children == ((1, 2, 3), (4, 5), (), (6,), (7,), (), (), ())
    assert UNEVEN.ranks == (0, 0, 1, 2, 0, 1, 0, 0) and UNEVEN.widths == (3, 3, 1) and UNEVEN.inner == (0, 1, 3, 4)
    assert UNEVEN.ancestors()[7].tolist() == [True, True, False, False, True, False, False, True]
    assert UNEVEN.name == "3/3/1"
    assert Tree.from_widths([3, 3, 1]).widths == (3, 3, 1)


def test_presets():
    assert PRESETS["root"].nodes == 0 and PRESETS["root"].depth == 0
    assert PRESETS["chain5"].widths == (1, 1, 1, 1, 1)
    assert PRESETS["eagle25"].widths == (4, 8, 8, 3, 2)
    assert PRESETS["lantern57"].widths == (5, 13, 16, 14, 9)
    for name, tree in PRESETS.items():
        assert parse_tree(name) == tree and tree.name == name


@pytest.mark.golden
@pytest.mark.parametrize("preset, key", STATIC.items())
def test_presets_are_the_references_trees(preset, key):
    """`choices` is the reference's own list. Its verification buffers order nodes by (length, path), as here, and
    index `tree_indices` into [root, top-10 of each expanded node]."""
    _, tensors = golden.load("llamagen_eagle_drafter")
    choices = [tuple(c for c in path if c >= 0) for path in tensors[f"{key}/choices"].tolist()]
    tree = PRESETS[preset]
    assert Tree.from_paths(choices) == tree and sorted(choices, key=lambda p: (len(p), p)) == paths_of(tree)
    assert torch.equal(tree.ancestors(), tensors[f"{key}/verify_tree_attn_mask"].bool())
    assert list(tree.depths) == tensors[f"{key}/verify_tree_position_ids"].tolist()
    row_of = {node: row for row, node in enumerate(tree.inner)}
    indices = [0] + [1 + 10 * row_of[tree.parents[n]] + tree.ranks[n] for n in range(1, tree.nodes + 1)]
    assert indices == tensors[f"{key}/verify_tree_indices"].tolist()
    leaves = {n for n in range(1, tree.nodes + 1) if not tree.children[n]}
    routes = {tuple(n for n in path if n >= 0) for path in tensors[f"{key}/verify_retrieve_indices"].tolist()}
    assert routes == {tuple(tree.ancestors()[leaf].nonzero().flatten().tolist()) for leaf in leaves}


@pytest.mark.parametrize("given, parents", [
    ("3, 2", (-1, 0, 0, 0, 1, 1, 2, 2, 3, 3)), ("2/1", (-1, 0, 0, 1, 2)), (" 1 1 ", (-1, 0, 1)),
    ([2, 1], (-1, 0, 0, 1, 2)), ((1,), (-1, 0)),
    ([[0], [0, 0]], (-1, 0, 1)), ([[0], [0], [0, 0]], (-1, 0, 1)), ({"parents": [-1]}, (-1,)),
])
def test_parse(given, parents):
    assert parse_tree(given).parents == parents


def test_limits_are_reached_and_not_passed():
    assert parse_tree([MAX_NODES]).nodes == 127 and parse_tree([1] * MAX_DEPTH).depth == 16
    assert parse_tree({"parents": [-1] + [0] * 127}).nodes == 127
    for beyond in ([128], [1] * 17, {"parents": [-1] + [0] * 128}, {"parents": list(range(-1, 17))},
                   [[0] * n for n in range(1, 18)], [[n] for n in range(128)], "128", "2,2,2,2,2,2,2"):
        with pytest.raises(TreeError, match=r"at most (127|16)|more than 127"):
            parse_tree(beyond)


GARBAGE = [
    None, True, 3, 2.5, "", "  ", "oak", "3,-1", "3;2", "1e3", "٣", "0", "99999", "3,2.5", "9" * 10_000, "x" * 10_000,
    b"3", [0], [-1], [2.0], ["3"], [True], [None], [10**9], [10**9] * 9, [10**5000], ["x" * 10_000], [float("nan")],
    [[1]], [[-1]],
    [[0], [2]], [[0], [1, 0]], [[0, 0]], [[0], 1], [[0.5]], [["a"]], [[0] * 10_000], [[0], [0] * 5000], [3] * 100_000,
    {}, {"parents": None}, {"parents": []}, {"parents": [0]}, {"parents": [-1, 5]}, {"parents": [-1, -1]},
    {"parents": [-1, 0, 1, 0]}, {"parents": [-1, 1]}, {"parents": [-1, 0.0]}, {"parents": [-1, True]}, {"parents": "x"},
    {"parents": [-1, 10**5000]}, {"parents": [-1] + [0] * 10_000}, {"parents": [-1] + [0] * 200_000}, {"nodes": 3},
    object(),
]


@pytest.mark.parametrize("value", GARBAGE, ids=range(len(GARBAGE)))
def test_garbage_gets_one_clear_sentence(value):
    with pytest.raises(TreeError) as caught:
        parse_tree(value)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message and 20 < len(message) < 300


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
                    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.just("parents"), inner, max_size=1)))
def test_anything_is_a_tree_or_an_error(value):
    try:
        assert isinstance(parse_tree(value), Tree)
    except TreeError as error:
        assert len(str(error)) < 300


@pytest.mark.parametrize("text, says", [
    ("2/3.1.4", "give one for all"), ("9.9/9", "give one for all"),
    ("4/" + ".".join("99" for _ in range(4)), "more than"),
    ("2/0.0", "has no tokens"), ("/".join(["2.1"] + ["1"] * MAX_DEPTH), "levels"), ("2/1.x", "unknown"),
    ("[[0], [1]", "cannot be read"), ("[" * 5000, "cannot be read"), ("[[1]]", "skips a sibling"), ("[[0.5]]", "whole"),
])
def test_text_of_a_tree_that_is_wrong_gets_one_sentence(text, says):
    with pytest.raises(TreeError, match=says) as caught:
        parse_tree(text)
    assert "\n" not in str(caught.value)
