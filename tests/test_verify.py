"""`verify` against the slow per-token reference, and each edge case that the design names."""

import numpy as np
import pytest
import reference
import torch

from lanternpp.relax import Relaxation
from lanternpp.sampling import draw_ranked
from lanternpp.tree import PRESETS, Tree
from lanternpp.verify import TreeBuffers, verify

RULES = [Relaxation("exact"), Relaxation("lanternpp", 3, 2.0), Relaxation("lantern", 4, 0.3),
         Relaxation("annealed", 5, 3.0, gamma=0.5)]
ORDERS = ["sequential", "strict-first"]
CASES = [pytest.param(rule, order, id=f"{rule.rule}-{order}") for rule in RULES for order in ORDERS]
CHAIN = Tree.from_branching([1])
TWINS = Tree.from_branching([2])
TINY = 1 - 1e-9


def random_tree(random: np.random.Generator) -> Tree:
    """Breadth-first with up to 14 nodes: chains, stars and everything between."""
    parents, low = [-1], 0
    for node in range(1, random.integers(1, 15) + 1):
        low = int(random.integers(low, min(node, low + 3)))
        parents.append(low)
    return Tree(tuple(parents))


def random_row(random: np.random.Generator, codes: int) -> np.ndarray:
    row = random.dirichlet(np.full(codes, random.choice([0.1, 1.0, 10.0])))
    if random.random() < 0.5:
        row[random.choice(codes, int(random.integers(1, codes - 1)), replace=False)] = 0
    return row / row.sum() if row.sum() > 0 else np.eye(codes)[0]


def random_case(seed: int, greedy: bool = False):
    """p by node, q by parent, tokens, tree, neighbours, uniform, noise: float64, drafts drawn as decode.py draws."""
    random = np.random.default_rng(seed)
    tree, codes = random_tree(random), int(random.integers(3, 12))
    width = max(map(len, tree.children))
    codes = max(codes, width + 1)
    p = np.array([random_row(random, codes) for _ in tree.parents])
    q = {n: random_row(random, codes) for n in tree.inner}
    for n in tree.inner:
        kind = random.random()
        if kind < 0.5:
            q[n] = 0.7 * p[n] + 0.3 * q[n]
        elif kind < 0.6:
            q[n] = p[n]
    tokens = np.zeros(len(tree.parents), dtype=np.int64)
    noise = random.exponential(size=(3, tree.depth + 1, codes))
    for n in tree.inner:
        weights = q[n] if greedy else q[n] / noise[0, tree.depths[n]]
        tokens[list(tree.children[n])] = np.argsort(-weights, kind="stable")[:len(tree.children[n])]
    nearest = np.array([[j for j in random.permutation(codes) if j != i] for i in range(codes)])
    uniform = 1 - random.random((tree.depth + 1, max(1, width)))
    return p, q, tokens, tree, nearest, uniform, noise[1]


def shipped(case, relaxation: Relaxation, dtype=torch.float64, greedy: bool = False):
    p, q, tokens, tree, nearest, uniform, noise = case

    def row(values):
        return torch.from_numpy(np.asarray(values)).to(dtype)

    rows = row(np.array([q[n] for n in tree.inner])) if tree.nodes else torch.zeros(0, len(p[0]))
    return verify(row(p), rows, torch.as_tensor(tokens), TreeBuffers(tree), relaxation, torch.as_tensor(nearest),
                  row(uniform), row(noise), greedy)


def rounded(case):
    """The same case as float32 sees it, so that the float64 reference judges the same numbers."""
    p, q, tokens, tree, nearest, uniform, noise = case

    def single(x):
        return np.asarray(x).astype(np.float32).astype(np.float64)

    return single(p), {n: single(row) for n, row in q.items()}, tokens, tree, nearest, single(uniform), single(noise)


def compare(case, relaxation: Relaxation, dtype, greedy: bool = False) -> bool:
    """Whether the case is far enough from every threshold to be compared; asserts equality if so."""
    expected = reference.verify(*case[:3], case[3], relaxation, *case[4:], greedy)
    if expected.margin < (1e-9 if dtype == torch.float64 else 1e-4):
        return False
    found, tree = shipped(case, relaxation, dtype, greedy), case[3]
    count = len(expected.tokens)
    assert found.committed == count
    assert found.tokens[:count].tolist() == expected.tokens
    padded = expected.path + expected.path[-1:] * (tree.depth + 1 - len(expected.path))
    assert found.path.tolist() == padded
    nodes = range(1, tree.nodes + 1)
    assert found.strict.tolist() == [expected.strict[n] for n in nodes]
    assert found.relaxed.tolist() == [expected.relaxed[n] for n in nodes]
    assert found.exists.tolist() == [expected.children[n].exists for n in nodes]
    close = {"rtol": 0, "atol": 1e-12 if dtype == torch.float64 else 1e-3}
    for name, values in (("draft", "q"), ("residual", "r"), ("mass", "mass")):
        wanted = torch.tensor([getattr(expected.children[n], values) for n in nodes], dtype=dtype)
        torch.testing.assert_close(getattr(found, name), wanted, **close)
    target = [case[0][tree.parents[n]][case[2][n]] for n in nodes]
    torch.testing.assert_close(found.target, torch.tensor(target, dtype=dtype), **close)
    return True


@pytest.mark.parametrize("rule, order", CASES)
@pytest.mark.parametrize("dtype, share", [(torch.float64, 0.97), (torch.float32, 0.8)], ids=["float64", "float32"])
def test_equals_the_reference(rule, order, dtype, share):
    relaxation = Relaxation(rule.rule, rule.k, rule.bound, rule.gamma, order)
    compared, cases = 0, 200
    for seed in range(cases):
        case = random_case(seed)
        compared += compare(case if dtype == torch.float64 else rounded(case), relaxation, dtype)
    assert compared >= share * cases


@pytest.mark.parametrize("rule, order", CASES)
def test_greedy_equals_the_reference(rule, order):
    relaxation = Relaxation(rule.rule, rule.k, rule.bound, rule.gamma, order)
    compared = sum(compare(random_case(seed, greedy=True), relaxation, torch.float64, greedy=True)
                   for seed in range(150))
    assert compared >= 140


def test_cases_cover_what_they_are_for():
    """The random cases hold missing children, relaxed-only acceptances, every ending and codes outside top-k."""
    seen = dict.fromkeys(("missing", "relaxed only", "bonus", "recovered", "uneven", "outside"), 0)
    for seed in range(200):
        case = random_case(seed)
        found, tree = shipped(case, Relaxation("lantern", 4, 0.3)), case[3]
        seen["missing"] += not found.exists.all()
        taken = found.path[1:found.committed] - 1
        seen["relaxed only"] += bool((~found.strict[taken]).any())
        seen["bonus" if not tree.children[found.path[-1]] else "recovered"] += 1
        seen["uneven"] += len({len(c) for c in tree.children if c}) > 1
        seen["outside"] += bool((found.target[taken] == 0).any())
    assert min(seen.values()) >= 5, seen


def judge(p, q, codes, relaxation=reference.EXACT, uniform=0.5, tree=None, nearest=None, noise=None, greedy=False,
          dtype=torch.float64):
    """One node with the children `codes`; p and q are that node's rows, p holds at the leaves too."""
    tree = tree or Tree.from_branching([len(codes)])
    count = len(p)
    nearest = [[j for j in range(count) if j != i] for i in range(count)] if nearest is None else nearest
    uniform = np.broadcast_to(uniform, (tree.depth + 1, len(codes)))
    case = (np.array([p] * (tree.nodes + 1), dtype=float), {n: np.array(q, dtype=float) for n in tree.inner},
            [0, *codes], tree, nearest, uniform, np.ones((tree.depth + 1, count)) if noise is None else noise)
    return shipped(case, relaxation, dtype, greedy)


@pytest.mark.parametrize("rule, order", CASES)
def test_child_that_was_not_drawn_does_not_exist(rule, order):
    """q = 0: never accepted, whatever p says; the residual stays as it was."""
    relaxation = Relaxation(rule.rule, rule.k, rule.bound, rule.gamma, order)
    found = judge([0.2, 0.8, 0.0], [1.0, 0.0, 0.0], [0, 1, 2], relaxation, uniform=0.9)
    assert found.exists.tolist() == [True, False, False]
    assert found.strict.tolist() == [False, False, False] and not found.relaxed[1:].any()
    assert found.draft.tolist() == [1, 0, 0]
    # The residual after code 0: all on code 1. Not tested as a draft, yet drawn as the recovered token.
    torch.testing.assert_close(found.residual, torch.tensor([0.2, 1.0, 0.0], dtype=torch.float64))
    if not found.relaxed[0]:
        assert found.committed == 1 and found.tokens[0] == 1


def test_missing_child_before_a_drawn_one_leaves_the_residual_alone():
    """Never drawn in this order, save where a race underflows: what was not tested is not subtracted."""
    found = judge([0.2, 0.5, 0.3], [0.6, 0.0, 0.4], [1, 0], uniform=0.9)
    assert found.exists.tolist() == [False, True]
    torch.testing.assert_close(found.draft, torch.tensor([0.0, 0.6], dtype=torch.float64))
    torch.testing.assert_close(found.residual, torch.tensor([0.5, 0.2], dtype=torch.float64))


def test_empty_residual_keeps_r():
    """r ≤ q everywhere: only rounding rejects. r stays; a uniform would bring masked and banned codes in (trap 5)."""
    p = np.array([0.5, 0.3, 0.2, 0.0])
    found = judge(p * TINY, p, [0, 1], uniform=1.0, noise=np.array([[1.0, 1.0, 1.0, 1e-30]] * 2))
    assert found.committed == 1 and found.tokens[0] in (0, 1, 2)
    torch.testing.assert_close(found.residual, torch.tensor([0.5, 0.3], dtype=torch.float64))
    torch.testing.assert_close(found.draft, torch.tensor([0.5, 0.6], dtype=torch.float64))


@pytest.mark.parametrize("order", ORDERS)
def test_codes_outside_the_targets_top_k(order):
    """p(x) = 0: λ never accepts x, δ may, and the verdict says that p was 0, so that the trace can count it."""
    p, q = [0.0, 0.3, 0.3, 0.4], [1.0, 0.0, 0.0, 0.0]
    for rule, bound in (("exact", 9.0), ("lanternpp", 1000.0), ("annealed", 1000.0)):
        found = judge(p, q, [0], Relaxation(rule, 3, bound, order=order), uniform=1e-6)
        assert not found.relaxed.any() and found.committed == 1
    found = judge(p, q, [0], Relaxation("lantern", 3, 0.3, order=order), uniform=0.29)
    assert found.committed == 2 and found.tokens[0] == 0
    assert found.target[0] == 0 and found.relaxed[0] and not found.strict[0]
    assert judge(p, q, [0], Relaxation("lantern", 3, 0.3, order=order), uniform=0.31).committed == 1


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("order", ORDERS)
def test_banned_codes_never_occur(order, greedy):
    """A banned code has p = q = 0: it is no child, though its neighbours hold all the mass, and is never drawn."""
    p, q = [0.5, 0.5, 0.0], [0.6, 0.4, 0.0]
    for relaxation in (Relaxation("lantern", 2, 1.0, order=order), Relaxation("lanternpp", 2, 9.0, order=order)):
        found = judge(p, q, [2], relaxation, uniform=1e-9, greedy=greedy, noise=np.array([[1, 1, 1e-30]] * 2))
        assert not found.relaxed.any() and not found.exists.any() and found.committed == 1
        assert found.tokens[0] != 2
    for seed in range(100):
        case = list(random_case(seed, greedy))
        case[0][:, 0], case[1] = 0, {n: np.where(np.arange(len(row)) == 0, 0, row) for n, row in case[1].items()}
        case[0] += (case[0].sum(1, keepdims=True) == 0) * np.eye(case[0].shape[1])[1]
        found = shipped(case, Relaxation("lantern", 4, 0.9, order=order), greedy=greedy)
        assert not (found.tokens[:found.committed] == 0).any()


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rule, k, bound", [("lantern", 0, 0.5), ("lantern", 5, 0.0), ("lanternpp", 0, 5.0),
                                            ("lanternpp", 5, 1.0), ("annealed", 0, 5.0), ("annealed", 5, 1.0)])
def test_switched_off_relaxation_is_exact(rule, k, bound, order, greedy):
    for seed in range(60):
        case = random_case(seed, greedy)
        exact = shipped(case, Relaxation("exact"), torch.float32, greedy)
        for a, b in zip(exact, shipped(case, Relaxation(rule, k, bound, order=order), torch.float32, greedy),
                        strict=True):
            assert torch.equal(a, b)


def test_relaxation_that_is_on_differs_from_exact():
    changed = sum(not torch.equal(shipped(random_case(s), Relaxation("exact")).tokens,
                                  shipped(random_case(s), Relaxation("lanternpp", 3, 3.0)).tokens) for s in range(60))
    assert changed >= 5


def test_annealed_bound_falls_with_depth():
    """λ − 1 = 3, γ = ½: depth 1 may borrow 3 times its own mass, depth 2 1.5 times, depth 3 0.75 times."""
    p = [0.1, 0.07, 0.08, 0.15, 0.6]  # nearest to code 0 in this order: sums 0.07, 0.15, 0.3
    found = judge(p, [1, 0, 0, 0, 0], [0, 0, 0], Relaxation("annealed", 3, 4.0, gamma=0.5), uniform=1e-6,
                  tree=Tree.from_branching([1, 1, 1]))
    torch.testing.assert_close(found.mass, torch.tensor([0.4, 0.25, 0.17], dtype=torch.float64))
    found = judge(p, [1, 0, 0, 0, 0], [0, 0, 0], Relaxation("annealed", 3, 4.0, gamma=0.0), uniform=1e-6,
                  tree=Tree.from_branching([1, 1, 1]))
    torch.testing.assert_close(found.mass, torch.tensor([0.4, 0.1, 0.1], dtype=torch.float64))  # never below strict


def test_residual_is_the_targets_minus_the_drafters():
    """Traps 2 and 3: pooling changes what is accepted, not what is left after a rejection."""
    p, q = [0.1, 0.2, 0.3, 0.4], [0.7, 0.1, 0.1, 0.1]
    for relaxation in (reference.EXACT, Relaxation("lanternpp", 3, 3.0), Relaxation("lantern", 3, 0.3)):
        found = judge(p, q, [0, 1], relaxation, uniform=0.99)
        torch.testing.assert_close(found.residual, torch.tensor([0.1, 0.1 / 0.6], dtype=torch.float64))
        torch.testing.assert_close(found.draft, torch.tensor([0.7, 0.1 / 0.3], dtype=torch.float64))


def test_orders_differ_where_they_should():
    """Child 0 passes by pooling alone, child 1 strictly: published order takes 0, strict-first takes 1."""
    p, q = [0.2, 0.4, 0.4], [0.5, 0.3, 0.2]
    uniform = np.array([[0.6, 0.5]])
    pick = {order: judge(p, q, [0, 1], Relaxation("lanternpp", 2, 3.0, order=order), uniform=uniform).tokens[0]
            for order in ORDERS}
    assert pick == {"sequential": 0, "strict-first": 1}
    # Where child 1 fails too, strict-first falls back on child 0.
    found = judge([0.28, 0.05, 0.67], q, [0, 1], Relaxation("lanternpp", 2, 3.0), uniform=uniform)
    assert found.tokens[0] == 0 and not found.strict.any()


def test_ties_pass():
    """u·q = r exactly, and u·q = m exactly, are acceptances; the next larger u is a rejection."""
    p, q = [0.25, 0.25, 0.5], [0.5, 0.25, 0.25]
    assert judge(p, q, [0], uniform=0.5).committed == 2
    assert judge(p, q, [0], uniform=np.nextafter(0.5, 1)).committed == 1
    relaxed = Relaxation("lanternpp", 1, 1.5)  # 0.125 may be borrowed, the neighbour holds 0.25: nothing is
    assert judge(p, q, [0], relaxed, uniform=np.nextafter(0.5, 1)).committed == 1
    relaxed = Relaxation("lanternpp", 1, 2.0)  # 0.25 may be borrowed: all of it, an equal sum stays within the bound
    assert judge(p, q, [0], relaxed, uniform=1.0).committed == 2


def test_mass_zero_is_not_accepted_when_the_product_underflows():
    """u·q is 0 in float32, and so is r."""
    for relaxation in (reference.EXACT, Relaxation("lanternpp", 2, 3.0)):
        found = judge([0.0, 1.0, 0.0], [1e-42, 1.0, 0.0], [0], relaxation, uniform=1e-6, dtype=torch.float32)
        assert found.exists[0] and not found.relaxed[0] and found.tokens[0] == 1


def test_vanishing_draft_probabilities_are_renormalised():
    """Beside its first code the drafter leaves 3e-35: q₂ is still ⅔ and ⅓ (and not 2e-5, for a guard against 0)."""
    found = judge([0.2, 0.1, 0.5, 0.2], [1.0, 2e-35, 1e-35, 0.0], [0, 1, 2], uniform=0.9, dtype=torch.float32)
    torch.testing.assert_close(found.draft, torch.tensor([1, 2 / 3, 1.0]), rtol=1e-4, atol=0)


def test_greedy_strict_takes_the_argmax_alone():
    p, q = [0.3, 0.45, 0.25], [0.5, 0.3, 0.2]
    found = judge(p, q, [0, 1], greedy=True)
    assert found.strict.tolist() == found.relaxed.tolist() == [False, True]
    assert found.tokens.tolist() == [1, 1] and found.committed == 2
    found = judge(p, q, [0, 2], greedy=True)
    assert found.committed == 1 and found.tokens[0] == 1 and found.path.tolist() == [0, 0]
    # Codes that tie for the argmax: the first is it, the other one is rejected, with k = 0 as without relaxation.
    for relaxation in (reference.EXACT, Relaxation("lanternpp", 0, 9.0), Relaxation("lanternpp", 2, 1.01)):
        found = judge([0.1, 0.45, 0.45], q, [2], relaxation, greedy=True)
        assert found.committed == 1 and found.tokens[0] == 1


def test_greedy_relaxed_compares_with_the_largest_other_probability():
    p, q = [0.3, 0.45, 0.25], [0.5, 0.3, 0.2]
    wide, narrow = Relaxation("lanternpp", 2, 2.6), Relaxation("lanternpp", 2, 2.4)
    assert judge(p, q, [0], wide, greedy=True).tokens[0] == 0  # 0.3 + 0.45 ≥ 0.45
    assert judge(p, q, [0], narrow, greedy=True).tokens[0] == 1  # 0.45 > 1.4 · 0.3: nothing is pooled
    # Draft order decides among those that pass by pooling; a strict one comes first in order strict-first.
    assert judge(p, q, [0, 1], wide, greedy=True).tokens[0] == 1
    assert judge(p, q, [0, 1], Relaxation("lanternpp", 2, 2.6, order="sequential"), greedy=True).tokens[0] == 0


def test_root_only_tree_is_plain_autoregression():
    random, root = np.random.default_rng(0), Tree((-1,))
    for _ in range(20):
        p, noise = random.dirichlet(np.ones(9)), random.exponential(size=(1, 9))
        case = p[None], {}, [4], root, np.zeros((9, 8), dtype=int), np.ones((1, 1)), noise
        for greedy, weights in ((False, p / noise[0]), (True, p)):
            found = shipped(case, Relaxation(), greedy=greedy)
            assert found.tokens.tolist() == [weights.argmax()] and found.committed == 1 and found.path.tolist() == [0]
            assert found.strict.shape == found.mass.shape == (0,)


@pytest.mark.parametrize("name", PRESETS)
def test_presets_run_in_float32(name):
    tree, codes = PRESETS[name], 300
    generator = torch.Generator().manual_seed(0)
    p = torch.rand(tree.nodes + 1, codes, generator=generator).pow(8)
    q = torch.rand(len(tree.inner), codes, generator=generator).pow(8)
    p, q = p / p.sum(-1, keepdim=True), q / q.sum(-1, keepdim=True)
    buffers, noise = TreeBuffers(tree), torch.empty(2, tree.depth + 1, codes).exponential_(generator=generator)
    tokens = torch.zeros(tree.nodes + 1, dtype=torch.int64)
    for row, node in enumerate(tree.inner):
        kids = list(tree.children[node])
        tokens[kids] = draw_ranked(q[row], noise[0, tree.depths[node]], len(kids))
    nearest = torch.stack([torch.randperm(codes, generator=generator)[:20] for _ in range(codes)])
    uniform = 1 - torch.rand(tree.depth + 1, max(1, buffers.max_children), generator=generator)
    for order in ORDERS:
        found = verify(p, q, tokens, buffers, Relaxation("lanternpp", 20, 2.0, order=order), nearest, uniform, noise[1])
        path = found.path.tolist()
        assert 1 <= found.committed <= tree.depth + 1 and found.path.dtype == found.tokens.dtype == torch.int64
        for place in range(1, int(found.committed)):
            assert tree.parents[path[place]] == path[place - 1] and found.relaxed[path[place] - 1]
            assert found.tokens[place - 1] == tokens[path[place]]
        assert set(path[found.committed:]) <= {path[found.committed - 1]}
        assert (found.strict <= found.relaxed).all() and (found.mass >= found.residual).all()
