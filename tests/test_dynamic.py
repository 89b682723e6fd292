"""The dynamic tree: the reference implementation's trees, a slow list-based search, invariants, and no host sync."""

import llamagen
import pytest
import torch
import torch.nn.functional as F
from gates import export_gate, fake_gate
from toy import SHAPE, drafter, target

import lanternpp.dynamic
from lanternpp.dynamic import DynamicTree, Grown, ancestors, grow, slot_mask
from lanternpp.tree import Tree, TreeError

SIZES = [DynamicTree(4, 3, 12), DynamicTree(3, 4, 30), DynamicTree(2, 5, 7), DynamicTree(1, 4, 4),
         DynamicTree(6, 1, 5), DynamicTree(5, 2, 30), DynamicTree(4, 6, 1)]


class Growing(torch.nn.Module):
    """Grows trees for S pictures at the same position with a drafter and its cache, CFG rows [conditional; not]."""

    def __init__(self, model, head, ids, hidden, tree, scale, spoil=lambda level: None):
        super().__init__()
        self.model, self.tree, self.scale, self.spoil = model, tree, scale, spoil
        self.count = ids.shape[1]
        self.cache = model.new_cache(2 * len(ids), self.count - 1 + tree.rows)
        for name, value in (("head", head), ("ids", ids), ("hidden", hidden)):
            self.register_buffer(name, value, persistent=False)

    def logp(self, states):
        conditional, other = F.linear(states, self.head).chunk(2)
        return (other + self.scale * (conditional - other)).log_softmax(-1)

    @torch.no_grad()
    def forward(self):
        ids, places = self.ids, torch.arange(self.count, device=self.ids.device)
        slots = torch.arange(self.cache.slots, device=ids.device)
        read = self.model(ids.repeat(2, 1), self.hidden, places + 1, self.cache, places, places[:, None] >= slots)
        states = read[:, -1:]
        root = self.count - 1
        relative = (slots - root).expand(len(ids), -1)

        def call(level):
            nonlocal states
            self.spoil(level)
            hidden = states.gather(1, level.parents.repeat(2, 1)[..., None].expand(-1, -1, states.shape[-1]))
            mask = slot_mask(level.view, relative).repeat(2, 1, 1).unsqueeze(1)
            position = (places[-1:] + 1 + level.depth).expand(level.tokens.shape[1])
            states = self.model(level.tokens.repeat(2, 1), hidden, position, self.cache, root + level.slots, mask)
            return self.logp(states)

        return grow(ids[:, -1], self.logp(states)[:, 0], call, self.tree)


def paths_of(grown: Grown, picture: int = 0) -> list[tuple[int, ...]]:
    """Each node's tokens from below the root to itself, root first."""
    tokens, paths = grown.tokens[picture].tolist(), [()]
    for node, parent in enumerate(grown.parents[picture].tolist()[1:], start=1):
        paths.append((*paths[parent], tokens[node]))
    return paths


def slow(predict, tree: DynamicTree) -> dict[tuple[int, ...], float]:
    """The kept paths with their scores, in order: predict(path) is a list of log-probabilities."""
    scores, candidates, beam = {(): 0.0}, [()], [()]
    for _ in range(tree.depth):
        fresh = []
        for path in beam:
            row = predict(path)
            for code in sorted(range(len(row)), key=lambda code: -row[code])[:tree.top_k]:
                fresh.append((*path, code))
                scores[fresh[-1]] = scores[path] + row[code]
        candidates += fresh
        best = sorted(fresh, key=lambda path: -scores[path])[:tree.top_k]
        beam = [path for path in fresh if path in best]
    kept = sorted(candidates, key=lambda path: -scores[path])[:tree.total + 1]
    return {path: scores[path] for path in candidates if path in kept}


def check(grown: Grown, tree: DynamicTree):
    """What holds for every tree."""
    for picture in range(len(grown.tokens)):
        tokens, parents, depths, draft, scores = (part[picture].tolist() for part in (
            grown.tokens, grown.parents, grown.depths, grown.draft, grown.scores))
        assert len(tokens) == tree.total + 1 and parents[0] == -1
        shape = Tree(tuple(parents))  # breadth-first, parents before children
        assert depths == list(shape.depths) and shape.depth <= tree.depth
        assert torch.equal(grown.ancestors[picture], shape.ancestors())
        paths = paths_of(grown, picture)
        assert len(set(paths)) == len(paths)
        for node in range(1, len(tokens)):
            assert scores[node] <= scores[parents[node]]
            if scores[node] > float("-inf"):
                expected = scores[parents[node]] + torch.tensor(draft[node], dtype=torch.float64).log().item()
                assert scores[node] == pytest.approx(expected, abs=1e-5)


def reference_inputs(name: str):
    """The drafter's context of the golden tree `name`: tokens (1, T) and the states that predicted them (2, T, d)."""
    model, head, t = llamagen.drafter()
    if name == "dyn0":
        return model, head, t, t["d0/input_ids"][:1].long(), t["d0/hidden_in"]
    ids = t["dyn1/input_ids"][None, 1:].long()
    assert torch.equal(ids[:, :120], t["d0/input_ids"][:1].long())
    return model, head, t, ids, torch.cat([t["d0/hidden_in"], t["dyn1/hidden_in"]], dim=1)


@pytest.mark.golden
@pytest.mark.parametrize("name", ["dyn0", "dyn1"])
def test_golden(name):
    """total_tokens 13 counts the root; depth 3 counts the drafter calls after the root's."""
    model, head, t, ids, hidden = reference_inputs(name)
    grown = Growing(model, head, ids, hidden, DynamicTree(top_k=4, depth=4, total=12), 7.5)()
    assert grown.tokens[0].tolist() == t[f"{name}/draft_tokens"].tolist()
    assert torch.equal(grown.ancestors[0], t[f"{name}/tree_mask"].bool())
    assert grown.depths[0].tolist() == t[f"{name}/tree_position_ids"].tolist()
    routes = {tuple(n for n in row if n >= 0) for row in t[f"{name}/retrieve_indices"].tolist()}
    leaves = set(range(13)) - set(grown.parents[0].tolist())
    assert routes == {tuple(grown.ancestors[0, leaf].nonzero().flatten().tolist()) for leaf in leaves}
    check(grown, DynamicTree(4, 4, 12))


@pytest.mark.golden
@pytest.mark.parametrize("change", ["no guidance", "no context"])
def test_control_another_tree_is_not_golden(change):
    model, head, t, ids, hidden = reference_inputs("dyn0")
    hidden = hidden if change == "no guidance" else torch.zeros_like(hidden)
    grown = Growing(model, head, ids, hidden, DynamicTree(4, 4, 12), 1.0 if change == "no guidance" else 7.5)()
    assert grown.tokens[0].tolist() != t["dyn0/draft_tokens"].tolist()


def toy_case(seed: int, pictures: int = 1, dtype=torch.float64, device="cpu"):
    """A random drafter, its head, and a context of six tokens for each picture."""
    model = drafter(target(seed), seed + 1)
    if dtype != torch.float32 or str(device) != "cpu":
        model = model.to(dtype).to(device)
    generator = torch.Generator().manual_seed(seed)
    head = torch.randn(SHAPE.codes, SHAPE.width, generator=generator, dtype=torch.float64) / 8
    ids = torch.randint(SHAPE.codes, (pictures, 6), generator=generator)
    hidden = torch.randn(2 * pictures, 6, SHAPE.width, generator=generator, dtype=torch.float64)
    return model, head.to(dtype).to(device), ids.to(device), hidden.to(dtype).to(device)


def path_by_path(model, head, ids, hidden, scale):
    """A predict for `slow`: reads each path on its own, without a cache and a mask."""
    states = {}

    def predict(path):
        fed = torch.cat([hidden, *[states[path[:n]] for n in range(len(path))]], dim=1)
        codes = torch.cat([ids, torch.tensor([path], dtype=torch.int64)], dim=1)
        states[path] = model(codes.repeat(2, 1), fed, torch.arange(codes.shape[1]) + 1)[:, -1:]
        conditional, other = F.linear(states[path], head)[:, 0]
        return (other + scale * (conditional - other)).log_softmax(-1).tolist()

    return predict


@pytest.mark.parametrize("tree", SIZES, ids=str)
def test_equals_the_slow_search(tree):
    for seed in range(3):
        case = toy_case(seed)
        grown, expected = Growing(*case, tree, 2.0)(), slow(path_by_path(*case, 2.0), tree)
        assert paths_of(grown) == list(expected)
        assert grown.scores[0].tolist() == pytest.approx(list(expected.values()), abs=1e-5)
        check(grown, tree)


@pytest.mark.parametrize("tree", SIZES, ids=str)
def test_pictures_together_equal_pictures_apart(tree):
    model, head, ids, hidden = toy_case(7, pictures=3)
    together = Growing(model, head, ids, hidden, tree, 2.0)()
    check(together, tree)
    for picture in range(3):
        rows = hidden[[picture, 3 + picture]]
        alone = Growing(model, head, ids[picture:picture + 1], rows, tree, 2.0)()
        for a, b in zip(together, alone, strict=True):
            assert torch.allclose(a[picture:picture + 1], b, atol=1e-6) and a.dtype == b.dtype


def table_grow(table: torch.Tensor, root: torch.Tensor, tree: DynamicTree) -> Grown:
    """A drafter that looks at the last two tokens: table (V, V, V) of probabilities; the root follows itself."""
    last = root.unsqueeze(1)

    def call(level):
        nonlocal last
        before, last = last.gather(1, level.parents), level.tokens
        return table[before, last].log()

    return grow(root, table[root, root].log(), call, tree)


def sharp_table(seed: int, codes: int = 9) -> torch.Tensor:
    """Rows with zeros, and rows that are certain of one code: scores that tie with their parent's, and −∞."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.rand(codes, codes, codes, generator=generator, dtype=torch.float64) ** 6
    table = table * (torch.rand(table.shape, generator=generator) < 0.6)
    sure = torch.rand(codes, codes, 1, generator=generator) < 0.4
    one = torch.randint(codes, (codes, codes), generator=generator)
    table = torch.where(sure | (table.sum(-1, keepdim=True) == 0), F.one_hot(one, codes).double(), table)
    return table / table.sum(-1, keepdim=True)


@pytest.mark.parametrize("tree", SIZES, ids=str)
def test_ties_and_impossible_tokens(tree):
    for seed in range(10):
        table, root = sharp_table(seed), torch.tensor([0, 3, 8])
        grown = table_grow(table, root, tree)
        check(grown, tree)
        for picture, start in enumerate(root.tolist()):
            def predict(path, start=start, table=table):
                a, b = (start, start, *path)[-2:]
                return table[a, b].log().tolist()

            expected = {p: s for p, s in slow(predict, tree).items() if s > float("-inf")}
            possible = grown.scores[picture] > float("-inf")
            assert [p for p, here in zip(paths_of(grown, picture), possible.tolist(), strict=True) if here] == \
                list(expected)
            assert grown.scores[picture][possible].tolist() == pytest.approx(list(expected.values()), abs=1e-9)


def test_probabilities_rounded_above_one():
    """A distribution whose largest entry rounds to more than 1 must not let a child outscore its parent."""
    tree = DynamicTree(3, 4, 6)
    for seed in range(10):
        grown = table_grow(sharp_table(seed) * (1 + 1e-9), torch.tensor([0, 3, 8]), tree)
        check(grown, tree)
        assert (grown.scores <= 0).all()


def test_control_ties_for_the_later_candidate(monkeypatch):
    """Where a certain child may win against its parent, the parent can be missing: the checks see it."""
    def last(scores, count):
        order = scores.flip(1).sort(dim=1, descending=True, stable=True).indices[:, :count]
        return (scores.shape[1] - 1 - order).sort(dim=1).values

    monkeypatch.setattr(lanternpp.dynamic, "_best", last)
    with pytest.raises((AssertionError, TreeError)):
        test_ties_and_impossible_tokens(DynamicTree(3, 4, 6))


def test_ancestors_of_random_trees():
    generator = torch.Generator().manual_seed(0)
    for nodes in (1, 2, 9, 40):
        parents = [-1]
        for node in range(1, nodes):
            parents.append(int(torch.randint(max(0, parents[-1]), node, (1,), generator=generator)))
        shape = Tree(tuple(parents)) if nodes < 17 else Tree(tuple([-1] + [(n - 1) // 2 for n in range(1, nodes)]))
        mask = ancestors(torch.tensor([shape.parents]), max(1, shape.depth))
        assert torch.equal(mask[0], shape.ancestors())
    assert not torch.equal(ancestors(torch.tensor([[-1, 0, 1, 2]]), 2)[0], Tree((-1, 0, 1, 2)).ancestors())  # too few


def test_slot_mask():
    view = torch.tensor([[[True, False, False], [True, True, False], [True, False, True]]])
    relative = torch.tensor([[-2, -1, 0, 1, 2, 3, 4]])
    rows = [[1, 1, 1, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 0, 1, 0, 0]]
    assert slot_mask(view, relative)[0].int().tolist() == rows


@pytest.mark.parametrize("values, word", [((0, 3, 3), "top_k"), ((4, 0, 3), "depth"), ((4, 17, 3), "depth"),
                                          ((4, 3, 0), "total"), ((4, 3, 128), "total"), ((2, 2, 7), "6 candidates"),
                                          ((True, 3, 3), "top_k"), ((4, 2.0, 3), "depth"), (("4", 3, 3), "top_k")])
def test_limits(values, word):
    with pytest.raises(TreeError, match=word) as caught:
        DynamicTree(*values)
    assert str(caught.value).endswith(".") and len(str(caught.value)) < 200


def gate_case(device, spoil=lambda level: None):
    return Growing(*toy_case(0, 2, torch.float32, device), DynamicTree(2, 3, 6), 2.0, spoil)


def test_growing_passes_both_gates():
    fake_gate(gate_case)
    export_gate(gate_case("cpu"), {"cache.keys", "cache.values"})


def _branch(level):
    if level.tokens[0, 0] > 0:
        level.tokens.add_(0)


CONTROLS = {
    "item": lambda level: level.tokens.add_(level.tokens[0, 0].item() * 0),
    "nonzero": lambda level: level.tokens.add_(level.view.nonzero().shape[0] * 0),
    "mask read": lambda level: level.tokens.add_(level.tokens[level.tokens > 3].sum() * 0),
    "branch": _branch,
    "constant": lambda level: level.tokens.add_(torch.tensor(0, device=level.tokens.device)),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_fail_a_gate(name):
    with pytest.raises(Exception):  # noqa: B017 - each fault raises what it raises
        fake_gate(lambda device: gate_case(device, CONTROLS[name]))
        export_gate(gate_case("cpu", CONTROLS[name]), {"cache.keys", "cache.values"})
