"""Losslessness: the rule by exact enumeration, the shipped routine by simulation, each with controls that must fail."""

import inspect
from itertools import permutations

import numpy as np
import pytest
import torch
from reference import EXACT, Toy, draws, joint_law, node_law, total_variation

import lanternpp.verify
from lanternpp.relax import Relaxation
from lanternpp.sampling import draw_ranked
from lanternpp.tree import Tree
from lanternpp.verify import TreeBuffers, verify

CODES, BANNED = 6, 5
UNEVEN = Tree.from_paths([[0], [1], [2], [0, 0], [0, 1], [1, 0], [0, 0, 0]])
WIDE = Tree.from_branching([3, 3])
TRIALS = 400_000
SEQUENTIAL, STRICT_FIRST = "sequential", "strict-first"


def tables(seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """p and q (V, V, V) by the last two codes, and neighbours (V, V−1): masked codes, a banned one, narrow q."""
    random = np.random.default_rng(seed)
    nearest = np.array([[j for j in random.permutation(CODES) if j != i] for i in range(CODES)])
    p, q = np.zeros((2, CODES, CODES, CODES))
    for row in np.ndindex(CODES, CODES):
        p[row], other = random.dirichlet(np.ones(CODES), size=2)
        q[row] = 0.4 * p[row] + 0.6 * other
        p[row][random.integers(BANNED)] = 0  # outside the target's top-k, though drafted
        if random.random() < 0.4:
            q[row][random.integers(BANNED)] = 0  # never drafted, though possible
        if random.random() < 0.2:
            q[row] = np.isin(np.arange(CODES), random.choice(BANNED, 2, replace=False))  # fewer codes than children
        if random.random() < 0.1:
            q[row] = p[row]
    p[..., BANNED] = q[..., BANNED] = 0
    return p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True), nearest


def toy(seed: int) -> Toy:
    p, q, nearest = tables(seed)
    return Toy(lambda context: p[context[-2:]].tolist(), lambda context: q[context[-2:]].tolist(), nearest.tolist())


def target_law(toy: Toy, length: int, context=(0, 0)) -> dict[tuple[int, ...], float]:
    """The joint law of plain autoregression."""
    if length == 0:
        return {(): 1.0}
    return {(code, *more): value * weight for code, value in enumerate(toy.p(context)) if value > 0
            for more, weight in target_law(toy, length - 1, (*context, code)).items()}


# The rule itself, by exact enumeration.

@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("tree", [UNEVEN, WIDE], ids=["uneven", "wide"])
@pytest.mark.parametrize("order", [SEQUENTIAL, STRICT_FIRST])
def test_joint_law_of_the_rule_is_the_targets(seed, tree, order):
    memory = {}
    for length in range(1, tree.depth + 3):  # within a step, and across two and more
        law = joint_law(toy(seed), tree, Relaxation("exact", order=order), length, memory=memory)
        assert sum(law.values()) == pytest.approx(1)
        assert total_variation(law, target_law(toy(seed), length)) < 1e-9


@pytest.mark.parametrize("rule, k, bound", [("lanternpp", 3, 2.0), ("lantern", 3, 0.2), ("annealed", 3, 2.0)])
def test_enumeration_sees_that_relaxation_is_not_lossless(rule, k, bound):
    law = joint_law(toy(0), UNEVEN, Relaxation(rule, k, bound), 3)
    assert total_variation(law, target_law(toy(0), 3)) > 0.01


@pytest.mark.parametrize("order", [SEQUENTIAL, STRICT_FIRST])
def test_joint_law_under_lambda_stays_below_lambda_for_each_token(order):
    for seed in range(3):
        expected = target_law(toy(seed), 3)
        law = joint_law(toy(seed), UNEVEN, Relaxation("lanternpp", 3, 2.0, order=order), 3)
        assert all(value <= 2.0 ** 3 * expected.get(tokens, 0) + 1e-12 for tokens, value in law.items())
        assert max(value / expected[tokens] for tokens, value in law.items()) > 1.2


def test_top_drafts_judged_as_draws_are_lossy():
    """Trap 4: the drafter's top codes are no draws from q, and must not be judged by q."""
    q, p = [0.6, 0.3, 0.1, 0.0], [0.25, 0.25, 0.25, 0.25]
    nearest = [[1], [0], [1], [2]]
    assert total_variation(node_law(p, q, 2, nearest, EXACT).out, p) < 1e-12
    assert total_variation(node_law(p, q, 2, nearest, EXACT, drafts=[((0, 1), 1.0)]).out, p) > 0.1


def random_node(seed: int, codes: int = 7):
    random = np.random.default_rng(seed)
    nearest = [[int(j) for j in random.permutation(codes) if j != i] for i in range(codes)]
    p = random.dirichlet(np.full(codes, random.choice([0.3, 1, 3])))
    q = random.dirichlet(np.full(codes, random.choice([0.3, 1, 3])))
    if seed % 3 == 0:
        p[random.integers(codes)] = 0
    k, bound, delta = int(random.integers(1, codes)), float(random.uniform(1, 6)), float(random.uniform(0, 0.6))
    return (p / p.sum()).tolist(), q.tolist(), nearest, k, bound, delta


@pytest.mark.parametrize("rule", ["lanternpp", "lantern"])
@pytest.mark.parametrize("children", [1, 2, 3, 4])
def test_bounds_of_the_relaxed_rules(rule, children):
    prices = {SEQUENTIAL: [], STRICT_FIRST: []}
    for seed in range(20 if children < 4 else 8):
        p, q, nearest, k, bound, delta = random_node(100 * children + seed)
        bound = bound if rule == "lanternpp" else delta
        strict = node_law(p, q, children, nearest, EXACT)
        laws = {order: node_law(p, q, children, nearest, Relaxation(rule, k, bound, order=order)) for order in prices}
        gain = laws[SEQUENTIAL].acceptance - strict.acceptance
        apart = {order: total_variation(law.out, p) for order, law in laws.items()}
        assert total_variation(strict.out, p) < 1e-12
        # Both orders accept equally often.
        assert laws[STRICT_FIRST].acceptance == pytest.approx(laws[SEQUENTIAL].acceptance, abs=1e-12)
        assert laws[STRICT_FIRST].relaxed_only == pytest.approx(gain, abs=1e-12)
        assert apart[SEQUENTIAL] <= laws[SEQUENTIAL].surplus + 1e-12
        assert apart[STRICT_FIRST] <= laws[STRICT_FIRST].relaxed_only + 1e-12
        for order, law in laws.items():
            if children == 1:  # one child: what the output departs is what acceptance gained, whatever the rule
                assert apart[order] == pytest.approx(gain, abs=1e-12)
            if rule == "lanternpp":
                assert all(out <= bound * own + 1e-12 for out, own in zip(law.out, p, strict=True))
                assert apart[order] <= 1 - 1 / bound + 1e-12
            elif children == 1:
                assert all(out <= own + bound + 1e-12 for out, own in zip(law.out, p, strict=True))
            if gain > 1e-3:
                prices[order].append(apart[order] / gain)
    assert len(prices[SEQUENTIAL]) >= 4
    assert max(prices[STRICT_FIRST]) <= 1 + 1e-9
    if children > 1:  # total variation for each gained acceptance: the published order pays more
        assert max(prices[SEQUENTIAL]) > 1.5 and np.mean(prices[SEQUENTIAL]) > 1.1


def test_delta_is_no_bound_on_total_variation():
    codes = 1000
    p, q = [1 / codes] * codes, [0.1] * 10 + [0.0] * (codes - 10)
    nearest = [[j for j in range(codes) if j != i] for i in range(10)]
    law = node_law(p, q, 1, nearest, Relaxation("lantern", 99, 0.1))
    assert total_variation(law.out, p) == pytest.approx(0.99)
    assert max(out - own for out, own in zip(law.out, p, strict=True)) <= 0.1
    # With several children, published order, not even the single codes stay below p + δ.
    p, q, nearest, k, delta = _beyond_delta()
    law = node_law(p, q, 3, nearest, Relaxation("lantern", k, delta, order=SEQUENTIAL))
    assert max(out - own for out, own in zip(law.out, p, strict=True)) > delta + 0.005


def _beyond_delta():
    random = np.random.default_rng(46)  # found by search over seeds
    nearest = [[j for j in random.permutation(7) if j != i] for i in range(7)]
    p, q = (random.dirichlet(np.full(7, random.choice([0.3, 1, 3]))) for _ in range(2))
    if random.random() < 0.5:
        p[random.integers(7)] = 0
    delta = float(random.uniform(0, 0.6))
    return (p / p.sum()).tolist(), q.tolist(), nearest, int(random.integers(1, 7)), delta


# The shipped routine, by simulation.

def mutated(*replacements: tuple[str, str]):
    """The shipped `verify` with some of its text replaced: a control that differs in that alone."""
    source = inspect.getsource(lanternpp.verify.verify)
    for old, new in replacements:
        assert source.count(old) == 1, f"verify.py changed: {old!r} is not in it once, so this control needs an update"
        source = source.replace(old, new)
    names = dict(vars(lanternpp.verify))
    exec(compile("from __future__ import annotations\n" + source, "mutated verify", "exec"), names)
    return names["verify"]


def simulate(seed: int, tree: Tree, relaxation: Relaxation, length: int, trials: int = TRIALS, judge=verify,
             shared_noise: bool = False) -> np.ndarray:
    """The first `length` codes (trials, length), drafted and verified as decode.py does it: noise rows belong to
    positions, siblings' children share the draft noise of their position, unused rows serve the next step."""
    generator = torch.Generator().manual_seed(1000 + seed)
    return np.concatenate([_simulate(seed, tree, relaxation, length, 50_000, judge, shared_noise, generator)
                           for _ in range(trials // 50_000)])


def _simulate(seed, tree, relaxation, length, trials, judge, shared_noise, generator) -> np.ndarray:
    p, q, nearest = map(torch.from_numpy, tables(seed))
    p, q, buffers = p.float(), q.float(), TreeBuffers(tree)
    positions = length + tree.depth

    def exponential():
        return torch.empty(trials, positions, CODES).exponential_(generator=generator)

    draft = exponential()
    target = draft if shared_noise else exponential()
    uniform = 1 - torch.rand(trials, positions, max(1, buffers.max_children), generator=generator)
    batched = torch.vmap(lambda *rows: judge(*rows[:3], buffers, relaxation, nearest, *rows[3:])[:3])
    # Two codes of context, then the picture; every trial is `at` codes far.
    codes = torch.zeros(trials, 2 + positions + 1, dtype=torch.int64)
    at = torch.zeros(trials, dtype=torch.int64)
    while (left := (at < length).nonzero().squeeze(1)).numel():
        place, line = at[left], left.unsqueeze(1)
        tokens = torch.zeros(len(left), tree.nodes + 1, dtype=torch.int64)
        before = tokens.clone()  # each node's parent's code
        tokens[:, 0], before[:, 0] = codes[left, place + 1], codes[left, place]
        drafts = []
        for node in tree.inner:
            kids = list(tree.children[node])
            drafts.append(q[before[:, node], tokens[:, node]])
            tokens[:, kids] = draw_ranked(drafts[-1], draft[left, place + tree.depths[node]], len(kids))
            before[:, kids] = tokens[:, node:node + 1]
        rows = place.unsqueeze(1) + torch.arange(tree.depth + 1)
        drafted = torch.stack(drafts, 1) if drafts else torch.zeros(len(left), 0, CODES)
        _, committed, found = batched(p[before, tokens], drafted, tokens, uniform[line, rows], target[line, rows])
        codes[line, 2 + rows] = found
        at[left] += committed
    return codes[:, 2:2 + length].numpy()


def chi_square(codes: np.ndarray, law: dict[tuple[int, ...], float]) -> float:
    """The p-value that draws (n, length) follow `law`; 0 where something of probability 0 was drawn."""
    weights = CODES ** np.arange(codes.shape[1])[::-1]
    seen = np.bincount(codes @ weights, minlength=CODES ** codes.shape[1])
    expected = np.zeros(len(seen))
    for tokens, value in law.items():
        expected[np.dot(tokens, weights)] = value * len(codes)
    if seen[expected < 1e-9].any():
        return 0.0
    rare = expected < 10
    seen, expected = ([*cells[~rare], cells[rare].sum()] for cells in (seen, expected))
    if expected[-1] < 10:  # too little to be a cell of its own
        seen, expected = [seen[0] + seen[-1], *seen[1:-1]], [expected[0] + expected[-1], *expected[1:-1]]
    statistic = sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    degrees = torch.tensor((len(seen) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(degrees, torch.tensor(statistic / 2, dtype=torch.float64)))


@pytest.mark.parametrize("tree", [UNEVEN, WIDE], ids=["uneven", "wide"])
def test_shipped_routine_is_lossless(tree):
    length = 3 if tree is WIDE else 4
    codes = simulate(0, tree, EXACT, length)
    law = target_law(toy(0), length)
    assert chi_square(codes, law) > 1e-3
    assert chi_square(codes[:, :1], target_law(toy(0), 1)) > 1e-3
    assert chi_square(codes, target_law(toy(1), length)) < 1e-6


@pytest.mark.parametrize("order", [SEQUENTIAL, STRICT_FIRST])
@pytest.mark.parametrize("rule, bound", [("lanternpp", 2.0), ("lantern", 0.2), ("annealed", 3.0)])
def test_shipped_routine_follows_the_relaxed_rule(rule, bound, order):
    relaxation = Relaxation(rule, 3, bound, order=order)
    other = Relaxation(rule, 3, bound, order=STRICT_FIRST if order == SEQUENTIAL else SEQUENTIAL)
    codes = simulate(0, UNEVEN, relaxation, 3, trials=100_000)
    assert chi_square(codes, joint_law(toy(0), UNEVEN, relaxation, 3)) > 1e-3
    assert chi_square(codes, joint_law(toy(0), UNEVEN, other, 3)) < 1e-6
    assert chi_square(codes, target_law(toy(0), 3)) < 1e-6


def test_control_noise_shared_by_draft_and_target():
    codes = simulate(0, UNEVEN, EXACT, 3, trials=100_000, shared_noise=True)
    assert chi_square(codes, target_law(toy(0), 3)) < 1e-6


def test_control_q_not_renormalised():
    judge = mutated(("rest = rest / (total + (total == 0))", "pass"))
    codes = simulate(0, UNEVEN, EXACT, 3, trials=100_000, judge=judge)
    assert chi_square(codes, target_law(toy(0), 3)) < 1e-6


@pytest.mark.parametrize("control", [False, True])
def test_empty_residual_keeps_r(control):
    """r = q up to rounding: a rejection (u = 1) then leaves no residual, and the token must come from r.

    In exact arithmetic this has probability 0, so the law is taken given that it happened: q is larger than p by its
    last bits everywhere. The control draws from all codes alike instead, the masked and the banned one included.
    """
    p = torch.tensor([0.1, 0.35, 0.0, 0.3, 0.25, 0.0])
    q = p * (1 + 2 ** -22)
    trials, buffers = 50_000, TreeBuffers(Tree.from_branching([1]))
    generator = torch.Generator().manual_seed(5)
    judge = mutated(("torch.where(usable, reduced / total, r)",
                     "torch.where(usable, reduced / total, 1 / r.shape[-1])")) if control else verify
    noise, draft = torch.empty(2, trials, 2, CODES).exponential_(generator=generator)
    tokens = torch.cat([torch.zeros(trials, 1, dtype=torch.int64), draw_ranked(q, draft[:, 0], 1)], 1)
    _, committed, found = torch.vmap(lambda tokens, noise: judge(
        p.expand(2, -1), q.expand(1, -1), tokens, buffers, EXACT, None, torch.ones(2, 1), noise)[:3])(tokens, noise)
    assert (committed == 1).all()  # every draft was rejected
    fits = chi_square(found[:, :1].numpy(), {(code,): float(value) for code, value in enumerate(p)})
    assert fits < 1e-6 if control else fits > 1e-3


def test_control_rejected_sibling_kept_in_q():
    judge = mutated(("rest = rest.scatter(1, x, 0.0)", "rest = rest"))
    codes = simulate(0, UNEVEN, EXACT, 3, trials=100_000, judge=judge)
    assert chi_square(codes, target_law(toy(0), 3)) < 1e-6


def test_draft_probabilities_near_the_end_of_float32_are_still_renormalised():
    """An overconfident drafter: beside its first code all others share 3e-35."""
    p, q = torch.tensor([0.2, 0.1, 0.5, 0.2, 0, 0]), torch.tensor([1, 2e-35, 1e-35, 0, 0, 0])
    trials, buffers = 50_000, TreeBuffers(Tree.from_branching([2]))
    generator = torch.Generator().manual_seed(6)
    noise, draft = torch.empty(2, trials, 2, CODES).exponential_(generator=generator)
    uniform = 1 - torch.rand(trials, 2, 2, generator=generator)
    tokens = torch.cat([torch.zeros(trials, 1, dtype=torch.int64), draw_ranked(q, draft[:, 0], 2)], 1)

    def law_of(judge):
        found = torch.vmap(lambda *rows: judge(p.expand(3, -1), q.expand(1, -1), rows[0], buffers, EXACT, None,
                                               *rows[1:])[2])(tokens, uniform, noise)
        return chi_square(found[:, :1].numpy(), {(code,): float(value) for code, value in enumerate(p)})

    assert law_of(verify) > 1e-3
    assert law_of(mutated(("rest / (total + (total == 0))", "rest / total.clamp(min=1e-30)"))) < 1e-6


def test_greedy_trees_give_the_greedy_chain():
    for seed in range(5):
        p, q, _ = (torch.from_numpy(table) for table in tables(seed))
        greedy, context = [], (0, 0)
        for _ in range(8):
            greedy.append(int(p[context].argmax()))
            context = (context[1], greedy[-1])
        for tree in (Tree((-1,)), Tree.from_branching([1, 1]), UNEVEN, WIDE):
            buffers, found = TreeBuffers(tree), []
            while len(found) < 8:
                line, before = ([0, 0, *found][n:n + 1] + [0] * tree.nodes for n in (len(found) + 1, len(found)))
                for node in tree.inner:
                    kids = tree.children[node]
                    for kid, code in zip(kids, q[before[node], line[node]].topk(len(kids)).indices, strict=True):
                        line[kid], before[kid] = int(code), line[node]
                inner = list(tree.inner)
                drafted = q[torch.tensor(before)[inner], torch.tensor(line)[inner]]
                verdict = verify(p[before, line], drafted, torch.tensor(line), buffers, EXACT, None,
                                 torch.ones(tree.depth + 1, 3), torch.ones(tree.depth + 1, CODES), greedy=True)
                found += verdict.tokens[:verdict.committed].tolist()
            assert found[:8] == greedy


def test_draws_are_a_law():
    """The enumeration's own draws: all ordered pairs, with probabilities q(a)·q(b)/(1 − q(a))."""
    q = [0.5, 0.3, 0.2]
    assert dict(draws(q, 2)) == pytest.approx({(a, b): q[a] * q[b] / (1 - q[a]) for a, b in permutations(range(3), 2)})
