"""The coupled form: a slow reference, identity with plain autoregression, laws and bounds, each with a control."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from gates import export_gate, fake_gate
from scipy.stats import chi2
from test_verify import random_case, random_tree
from toy import SHAPE, target

from lanternpp.coupled import verify_coupled
from lanternpp.dynamic import DynamicTree, grow
from lanternpp.relax import Relaxation
from lanternpp.sampling import Noise, Sampling, distribution, draw_ranked
from lanternpp.tree import PRESETS, Tree

TREES = [Tree.from_branching([1, 1]), Tree.from_branching([3, 2, 1]), PRESETS["cpu8"], PRESETS["eagle25"]]
RULES = [None, Relaxation("exact"), Relaxation("lanternpp", 3, 2.5), Relaxation("lantern", 4, 0.3),
         Relaxation("annealed", 5, 4.0, gamma=0.5)]


def judge(p, tokens, tree: Tree, noise, nearest=None, relaxation=None, greedy=False):
    """verify_coupled for one picture and a static tree; a vector per field."""
    def row(x):
        return torch.as_tensor(np.asarray(x)).unsqueeze(0)

    found = verify_coupled(row(p), row(tokens), torch.tensor(tree.parents), torch.tensor(tree.depths), row(noise),
                           None if nearest is None else torch.as_tensor(np.asarray(nearest)), relaxation, greedy)
    return type(found)(*(part[0] for part in found))


# The slow reference: one node and one child at a time.

def pooled_set(p, x, nearest, relaxation, depth):
    """Code x and the codes that it may stand for."""
    if relaxation is None or relaxation.rule == "exact":
        return [x]
    limit = relaxation.bound if relaxation.rule == "lantern" else (relaxation.bound - 1) * p[x]
    limit *= relaxation.gamma ** (depth - 1) if relaxation.rule == "annealed" else 1
    found, total = [x], 0.0
    for code in nearest[x][:relaxation.k]:
        total += p[code]
        if total > limit:
            break
        found.append(int(code))
    return found


def reference(p, tokens, tree: Tree, nearest, relaxation, noise, greedy=False):
    """Path, committed tokens, and the nodes that match or are swapped."""
    draws = [int(np.argmax(p[n] if greedy else p[n] / noise[tree.depths[n]])) for n in range(len(tree.parents))]
    matched, swapped = set(), set()
    for node, kids in enumerate(tree.children):
        y = draws[node]
        equal = [kid for kid in kids if tokens[kid] == y]
        if equal:
            matched.add(equal[0])
            continue

        def distance(kid, y=y):  # codes are told apart by distance: the closer to y stands first in y's own list
            return list(nearest[y]).index(tokens[kid])

        able = [kid for kid in kids if p[node][tokens[kid]] > 0 and
                y in pooled_set(p[node], tokens[kid], nearest, relaxation, tree.depths[kid])]
        if able:
            swapped.add(min(able, key=distance))
    path = [0]
    while True:
        below = [kid for kid in tree.children[path[-1]] if kid in matched | swapped]
        if not below:
            return path, [int(tokens[n]) for n in path[1:]] + [draws[path[-1]]], matched, swapped
        path.append(below[0])


def agree(found, expected, tree: Tree):
    path, tokens, matched, swapped = expected
    assert found.path.tolist() == path + path[-1:] * (tree.depth + 1 - len(path))
    assert found.committed == len(tokens) and found.tokens[:len(tokens)].tolist() == tokens
    assert {n + 1 for n in found.matched.nonzero().flatten().tolist()} == matched
    assert {n + 1 for n in found.swapped.nonzero().flatten().tolist()} == swapped


def drafted_case(seed: int, coupled: bool = True):
    """p, tokens, tree, nearest, noise; the drafts are drawn with the noise that judges them, or with other noise."""
    p, q, tokens, tree, nearest, _, noise = random_case(seed)
    for n in tree.inner if coupled else ():
        drawn = draw_ranked(torch.as_tensor(q[n]), torch.as_tensor(noise[tree.depths[n]]), len(tree.children[n]))
        tokens[list(tree.children[n])] = drawn.numpy()
    return p, tokens, tree, nearest, noise


@pytest.mark.parametrize("greedy", [False, True])
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_equals_the_slow_reference(rule, greedy):
    swaps = matches = 0
    for seed in range(150):
        p, tokens, tree, nearest, noise = drafted_case(seed, seed % 2 == 0)
        found = judge(p, tokens, tree, noise, nearest, rule, greedy)
        agree(found, reference(p, tokens, tree, nearest, rule, noise, greedy), tree)
        swaps, matches = swaps + int(found.swapped.sum()), matches + int(found.matched.sum())
        for node in range(1, tree.nodes + 1):
            x, above = tokens[node], tree.parents[node]
            pool = pooled_set(p[above], x, nearest, rule, tree.depths[node])
            assert found.target[node - 1] == p[above][x]
            assert found.mass[node - 1].item() == pytest.approx(p[above][pool].sum(), abs=1e-12)
    assert matches > 100 and (swaps > 20) == (rule is not None and rule.rule != "exact")


def test_nearest_beyond_the_table():
    """The draw's own list may be too short to hold any child: then the draw's place in the child's list decides."""
    tree, p = Tree.from_branching([2]), [[0.1, 0.3, 0.3, 0.3]] * 3
    noise = [[1e-9, 1, 1, 1], [1, 1, 1, 1]]  # the target draws 0
    relaxation = Relaxation("lanternpp", 2, 3.0)
    nearest = np.array([[3, 2], [3, 0], [0, 3], [0, 1]])  # 0 knows 3 and 2; 1 and 2 both know 0, 2 as its nearest
    assert judge(p, [0, 1, 2], tree, noise, nearest, relaxation).tokens[0] == 2
    nearest[0] = [3, 3]
    assert judge(p, [0, 1, 2], tree, noise, nearest, relaxation).tokens[0] == 2
    nearest[0] = [3, 1]
    assert judge(p, [0, 1, 2], tree, noise, nearest, relaxation).tokens[0] == 1
    nearest[:] = [[3, 3], [0, 3], [0, 3], [0, 1]]  # nothing tells them apart: draft order
    assert judge(p, [0, 2, 1], tree, noise, nearest, relaxation).tokens[0] == 2


def test_prefix_rule_and_ties_at_the_bound():
    """A sum equal to the bound is within it; a nearest code beyond it closes the set to those that would fit."""
    tree, noise = Tree.from_branching([1]), [[1, 1, 1e-9, 1], [1, 1, 1, 1]]  # the target draws 2
    for second, taken in ((0.25, True), (0.375, False)):
        p = [[0.25, second, 0.25, 0.75 - second - 0.25]] * 2
        found = judge(p, [0, 0], tree, noise, [[1, 2, 3]] * 4, Relaxation("lanternpp", 3, 3.0))
        assert found.swapped.tolist() == [taken]
    p = [[0.0, 0.0, 1.0, 0.0]] * 2  # a code of mass 0 stays unacceptable, by δ too: it may be a banned one
    for relaxation in (Relaxation("lanternpp", 3, 9.0), Relaxation("lantern", 3, 1.0)):
        assert not judge(p, [0, 0], tree, noise, [[2, 1, 3]] * 4, relaxation).swapped.any()


def test_pictures_together_equal_pictures_apart():
    """Three pictures with trees of their own shapes, as the dynamic tree makes them."""
    random, codes, nodes, depth = np.random.default_rng(5), 12, 9, 4
    trees = []
    while len(trees) < 3:
        tree = random_tree(random)
        if tree.nodes >= nodes and max(tree.depths[:nodes + 1]) <= depth:
            trees.append(Tree(tree.parents[:nodes + 1]))
    p = torch.as_tensor(random.dirichlet(np.full(codes, 0.3), size=(3, nodes + 1)))
    noise = torch.as_tensor(random.exponential(size=(3, depth + 1, codes)))
    tokens = torch.as_tensor(np.array([random.permutation(codes)[:nodes + 1] for _ in range(3)]))
    parents, depths = (torch.tensor([getattr(t, name) for t in trees]) for name in ("parents", "depths"))
    nearest = torch.as_tensor(np.array([[j for j in random.permutation(codes) if j != i] for i in range(codes)]))
    for rule in RULES:
        together = verify_coupled(p, tokens, parents, depths, noise, nearest, rule)
        for s in range(3):
            alone = verify_coupled(p[s:s + 1], tokens[s:s + 1], parents[s:s + 1], depths[s:s + 1], noise[s:s + 1],
                                   nearest, rule)
            assert all(torch.equal(a[s:s + 1], b) for a, b in zip(together, alone, strict=True))
        assert rule is None or rule.strict or together.swapped.any()


def test_switched_off_relaxation_is_coupled():
    for seed in range(40):
        p, tokens, tree, nearest, noise = drafted_case(seed)
        plain = judge(p, tokens, tree, noise)
        for rule in (Relaxation("lanternpp", 0, 5.0), Relaxation("lanternpp", 3, 1.0), Relaxation("lantern", 3, 0.0)):
            assert all(torch.equal(a, b) for a, b in zip(plain, judge(p, tokens, tree, noise, nearest, rule),
                                                         strict=True))


def test_root_only_tree_is_plain_autoregression():
    random = np.random.default_rng(0)
    for rule in (None, Relaxation("lanternpp", 3, 3.0)):
        p, noise = random.dirichlet(np.ones(9), size=1), random.exponential(size=(1, 9))
        found = judge(p, [4], Tree((-1,)), noise, np.zeros((9, 5), dtype=np.int64), rule)
        assert found.tokens.tolist() == [(p[0] / noise[0]).argmax()] and found.committed == 1
        assert found.path.tolist() == [0] and found.matched.shape == found.mass.shape == (0,)


# Identity with plain autoregression, on a toy of the real networks, in float64.

class Painter:
    """A target and a drafter (the target with a disturbed head) that read whole sequences, without a cache."""

    def __init__(self, seed: int, sampling: Sampling, dtype=torch.float64):
        self.model, self.sampling = target(seed).to(dtype), sampling
        generator = torch.Generator().manual_seed(seed)
        self.head = self.model.head.weight
        self.drafting = self.head + self.head.std() * torch.randn(self.head.shape, generator=generator).to(dtype)
        words = torch.randint(1, SHAPE.condition, (1, SHAPE.prefix), generator=generator)
        self.prefix = self.model.prefix_rows(words, True)
        self.shift = self.model.caption_shift(self.prefix)

    def rows(self, codes: torch.Tensor, head: torch.Tensor, nodes: int = 0, ancestors=None, depths=None):
        """Distributions after each of the codes, the first row after the prefix; the last `nodes` codes are a tree."""
        x = torch.cat([self.prefix, self.model.embed(codes.expand(2, -1), self.shift)], dim=1)
        past = x.shape[1] - nodes
        mask, positions = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(), torch.arange(x.shape[1])
        if nodes:
            mask[past:, past:], positions[past:] = ancestors, past + depths
        conditional, other = self.model(x, positions, mask=mask)[:, SHAPE.prefix - 1:] @ head.T
        return distribution(other + self.sampling.cfg_scale * (conditional - other), self.sampling)

    def tree_rows(self, done, tokens, ancestors, depths, head):
        """Distributions at the nodes of a tree whose root is the last token that is done."""
        codes = torch.cat([torch.tensor(done[:-1], dtype=torch.int64), tokens])
        return self.rows(codes, head, len(tokens), ancestors, depths)[-len(tokens):]

    def static(self, done, tree: Tree, noise):
        """Children are the top of q/E with the target's own noise."""
        tokens = torch.tensor(done[-1]).repeat(len(tree.parents))
        for depth in range(tree.depth):
            q = self.tree_rows(done, tokens, tree.ancestors(), torch.tensor(tree.depths), self.drafting)
            for node in (n for n in tree.inner if tree.depths[n] == depth):
                kids = list(tree.children[node])
                tokens[kids] = draw_ranked(q[node], 1 if self.sampling.greedy else noise[depth], len(kids))
        return tokens, torch.tensor(tree.parents), torch.tensor(tree.depths), tree.ancestors()

    def dynamic(self, done, tree: DynamicTree):
        """Children are the drafter's most probable codes."""
        codes, depths = torch.tensor(done[-1:]), torch.zeros(1, dtype=torch.int64)
        views = torch.eye(1, tree.rows, dtype=torch.bool)

        def call(level):
            nonlocal codes, depths, views
            new = len(level.tokens[0])
            codes, views = torch.cat([codes, level.tokens[0]]), torch.cat([views, level.view[0]])
            depths = torch.cat([depths, torch.full((new,), level.depth)])
            q = self.tree_rows(done, codes, views[:, :len(codes)], depths, self.drafting)
            return q[-new:].log().unsqueeze(0)

        first = self.tree_rows(done, codes, views[:, :1], depths, self.drafting).log()
        grown = grow(codes, first, call, tree)
        return grown.tokens[0], grown.parents[0], grown.depths[0], grown.ancestors[0]

    def paint(self, tree, noise, relaxation=None, nearest=None) -> tuple[list[int], int, int]:
        """All tokens of a picture, and how many steps and swaps it took; tree None is plain autoregression."""
        def alone(done):
            p = self.rows(torch.tensor(done, dtype=torch.int64), self.head)[-1]
            return int((p if self.sampling.greedy else p / noise[len(done)]).argmax())

        done, steps, swaps = [alone([])], 0, 0
        while len(done) < SHAPE.image_tokens:
            steps += 1
            if tree is None:
                done.append(alone(done))
                continue
            rows = noise[len(done):len(done) + tree.depth + 1]
            tokens, parents, depths, ancestors = (
                self.dynamic(done, tree) if isinstance(tree, DynamicTree) else self.static(done, tree, rows))
            p = self.tree_rows(done, tokens, ancestors, depths, self.head)
            found = verify_coupled(p[None], tokens[None], parents[None], depths[None], rows[None], nearest, relaxation,
                                   self.sampling.greedy)
            taken = found.path[0, 1:int(found.committed)]
            swaps += int(found.swapped[0, taken[:SHAPE.image_tokens - len(done)] - 1].sum())
            done += found.tokens[0, :int(found.committed)].tolist()
        return done[:SHAPE.image_tokens], steps, swaps


def noise_of(seed: int) -> torch.Tensor:
    streams = Noise(1, SHAPE.image_tokens + 8, SHAPE.codes, 0)
    streams.refill([seed])
    return streams.target[0]


@pytest.mark.parametrize("tree", [*TREES, DynamicTree(3, 3, 8)], ids=str)
@pytest.mark.parametrize("temperature", [1.0, 0.0])
def test_the_very_picture_of_plain_autoregression(tree, temperature):
    steps = 0
    for seed in range(2):
        painter = Painter(seed, Sampling(2.0, temperature, 40, 0.95))
        expected, slow, _ = painter.paint(None, noise_of(seed))
        found, fast, _ = painter.paint(tree, noise_of(seed))
        assert found == expected
        assert slow == SHAPE.image_tokens - 1
        steps += fast
    assert steps < 2 * slow  # and in fewer steps


def test_other_noise_and_swaps_make_another_picture():
    """Controls: the picture depends on the noise, and a swap is what makes relaxed and plain differ."""
    painter = Painter(0, Sampling(2.0, 1.0, 40))
    nearest = torch.randint(SHAPE.codes, (SHAPE.codes, 30), generator=torch.Generator().manual_seed(0))
    expected = painter.paint(None, noise_of(0))[0]
    assert painter.paint(None, noise_of(1))[0] != expected
    differ = 0
    for bound in (2.0, 8.0, 40.0):
        found, _, swaps = painter.paint(TREES[1], noise_of(0), Relaxation("lanternpp", 30, bound), nearest)
        assert (found != expected) == (swaps > 0)
        differ += swaps > 0
    assert differ


# Laws.

CODES, DEEP = 6, Tree.from_branching([2, 1])


def tables(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p and q (V, V, V) by the last two codes, with zeros, and each code's neighbours."""
    random = np.random.default_rng(seed)
    p, q = random.dirichlet(np.ones(CODES), size=(2, CODES, CODES))
    q = 0.2 * p + 0.8 * q
    p[..., 3] *= random.random((CODES, CODES)) < 0.5
    nearest = [[j for j in random.permutation(CODES) if j != i] for i in range(CODES)]
    return torch.as_tensor(p / p.sum(-1, keepdims=True)), torch.as_tensor(q), torch.tensor(nearest)


def step(p, q, before, root, noise, nearest, relaxation):
    """One step of tree DEEP for many pictures, drafted with the noise (S, 3, V) that judges."""
    def kids(a, b, depth):
        return (q[a, b] / noise[:, depth]).topk(2, dim=-1).indices

    children = kids(before, root, 0)
    grand = [kids(root, children[:, i], 1)[:, :1] for i in range(2)]
    tokens = torch.cat([root[:, None], children, *grand], dim=1)
    above = torch.cat([before[:, None], root[:, None].expand(-1, 2), children], dim=1)
    return verify_coupled(p[above, tokens], tokens, torch.tensor(DEEP.parents), torch.tensor(DEEP.depths), noise,
                          nearest, relaxation)


def two_tokens(seed: int, trials: int, relaxation=None, repeated=False):
    """The first two tokens after (0, 0) and whether one was swapped; a second step where the first commits one."""
    p, q, nearest = tables(seed)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(trials, 4, CODES, dtype=torch.float64).exponential_(generator=generator)
    if repeated:
        noise = noise[:, :1].expand(-1, 4, -1)
    zero = torch.zeros(trials, dtype=torch.int64)
    one = step(p, q, zero, zero, noise[:, :3], nearest, relaxation)
    x = one.tokens[:, 0]
    two = step(p, q, zero, x, noise[:, 1:], nearest, relaxation)
    y = torch.where(one.committed > 1, one.tokens[:, 1], two.tokens[:, 0])

    def swapped(found, place):
        node = found.path[:, place]
        return (node > 0) & found.swapped.gather(1, (node - 1).clamp(min=0)[:, None])[:, 0]

    first = swapped(one, 1)
    second = torch.where(one.committed > 1, swapped(one, 2) & (one.committed > 2), swapped(two, 1))
    counts = torch.bincount(x * CODES + y, minlength=CODES**2).view(CODES, CODES).double()
    expected = p[0, 0][:, None] * p[0]
    return counts, expected, (first | second).double().mean().item()


def shared_draft_and_recovery(seed: int, trials: int):
    """What the independent streams prevent: drafts and recovered tokens of rejection sampling from one noise."""
    p, q, _ = tables(seed)
    generator = torch.Generator().manual_seed(seed)
    noise = torch.empty(trials, 2, CODES, dtype=torch.float64).exponential_(generator=generator)
    pair = [torch.zeros(trials, dtype=torch.int64)] * 2
    for place in range(2):
        a, b = p[pair[-2], pair[-1]], q[pair[-2], pair[-1]]
        x = (b / noise[:, place]).argmax(-1, keepdim=True)
        keep = torch.rand(trials, 1, generator=generator) * b.gather(1, x) <= a.gather(1, x)
        recovered = ((a - b).clamp(min=0) / noise[:, place]).argmax(-1, keepdim=True)
        pair.append(torch.where(keep, x, recovered).squeeze(1))
    counts = torch.bincount(pair[2] * CODES + pair[3], minlength=CODES**2).view(CODES, CODES).double()
    return counts, p[0, 0][:, None] * p[0]


def chi_square(counts: torch.Tensor, expected: torch.Tensor) -> float:
    """The p-value; 0 where something impossible came out."""
    possible = expected > 0
    if counts[~possible].any():
        return 0.0
    wanted = expected[possible] * counts.sum()
    statistic = ((counts[possible] - wanted) ** 2 / wanted).sum().item()
    return float(chi2.sf(statistic, int(possible.sum()) - 1))


def test_two_token_marginals_pass_a_chi_square_test():
    for seed in range(4):
        counts, expected, _ = two_tokens(seed, 40_000)
        assert chi_square(counts, expected) > 1e-3


def test_controls_fail_the_chi_square_test():
    for seed in range(2):
        for counts, expected in (two_tokens(seed, 40_000, repeated=True)[:2],
                                 two_tokens(seed, 40_000, Relaxation("lanternpp", 5, 5.0))[:2],
                                 shared_draft_and_recovery(seed, 40_000)):
            assert chi_square(counts, expected) < 1e-6


@pytest.mark.parametrize("rule", [Relaxation("lanternpp", 5, 5.0), Relaxation("lantern", 5, 0.4),
                                  Relaxation("annealed", 5, 6.0, gamma=0.7)], ids=str)
def test_relaxed_tokens_stay_below_their_mass(rule):
    """Both tokens: out(x, y) ≤ m(x)·m(y), and the total variation is at most the probability of a swap."""
    trials = 40_000
    for seed in range(3):
        p, _, nearest = tables(seed)
        counts, expected, swaps = two_tokens(seed, trials, rule)

        def masses(row, depth, nearest=nearest):
            return torch.tensor([sum(row[c] for c in pooled_set(row, x, nearest.tolist(), rule, depth))
                                 for x in range(CODES)])

        # A token may be judged at depth 1 or 2; the bound at depth 1 is the larger one.
        most = masses(p[0, 0].tolist(), 1)[:, None] * torch.stack([masses(p[0, x].tolist(), 1) for x in range(CODES)])
        out = counts / trials
        assert (out <= most + 5 * (most / trials).sqrt() + 1e-12).all()
        assert (out - expected).abs().sum() / 2 <= swaps + 0.01
        assert swaps > 0.01  # and not because nothing happens


def random_node(seed: int, codes: int = 7):
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.full(codes, random.choice([0.3, 1, 3])))
    p[random.integers(codes)] *= seed % 3 > 0
    nearest = [[int(j) for j in random.permutation(codes) if j != i] for i in range(codes)]
    return p / p.sum(), random.permutation(codes)[:int(random.integers(1, 5))], nearest, float(random.uniform(1, 6))


def enumerate_node(p, children, nearest, relaxation):
    """The exact law of the token at one node with given children, and P(swap): every draw forced once."""
    codes, count = len(p), len(children) + 1
    tree = Tree((-1, *[0] * len(children)))
    force = torch.ones(codes, 2, codes, dtype=torch.float64) - (1 - 1e-30) * torch.eye(codes)[:, None]
    tokens = torch.as_tensor(np.concatenate([[0], children])).expand(codes, -1)
    found = verify_coupled(torch.as_tensor(p).expand(codes, count, -1), tokens, torch.tensor(tree.parents),
                           torch.tensor(tree.depths), force, torch.tensor(nearest), relaxation)
    assert found.draws[p > 0, 0].tolist() == np.flatnonzero(p).tolist()
    out = np.bincount(found.tokens[:, 0].numpy(), weights=p, minlength=codes)
    return out, float((found.swapped.any(1).numpy() * p).sum())


@pytest.mark.parametrize("rule", ["lanternpp", "lantern"])
def test_bounds_by_enumeration(rule):
    changed = 0
    for seed in range(150):
        p, children, nearest, bound = random_node(seed)
        relaxation = Relaxation(rule, 1 + seed % 6, bound if rule == "lanternpp" else bound / 10)
        out, swap = enumerate_node(p, children, nearest, relaxation)
        mass = [p[pooled_set(p, x, nearest, relaxation, 1)].sum() for x in range(len(p))]
        assert (out <= np.array(mass) + 1e-12).all()
        apart = np.abs(out - p).sum() / 2
        assert apart <= swap + 1e-12
        if rule == "lanternpp":
            assert (out <= bound * p + 1e-12).all() and apart <= 1 - 1 / bound + 1e-12
        changed += apart > 0.01
        assert enumerate_node(p, children, nearest, None)[0] == pytest.approx(p, abs=1e-12)
    assert changed > 30


def test_control_a_wider_pool_breaks_the_bound():
    broken = 0
    for seed in range(60):
        p, children, nearest, _ = random_node(seed)
        out, _ = enumerate_node(p, children, nearest, Relaxation("lanternpp", 5, 5.0))
        broken += bool((out > 2.0 * p + 1e-9).any())
    assert broken > 5


def test_one_shared_draft_is_right_often_enough():
    """Acceptance at least (1−TV)/(1+TV); with independent noise it falls far below."""
    trials, generator = 30_000, torch.Generator().manual_seed(0)
    for seed in range(5):
        random = np.random.default_rng(seed)
        p, q = torch.as_tensor(random.dirichlet(np.ones(20), size=2))
        q = 0.7 * p + 0.3 * q
        apart = (p - q).abs().sum().item() / 2
        noise = torch.empty(2, trials, 1, 20, dtype=torch.float64).exponential_(generator=generator)
        rates = []
        for drafting in noise:
            tokens = torch.cat([torch.zeros(trials, 1, dtype=torch.int64), (q / drafting).argmax(-1)], dim=1)
            found = verify_coupled(p.expand(trials, 2, -1), tokens, torch.tensor([-1, 0]), torch.tensor([0, 1]),
                                   noise[0].expand(-1, 2, -1))
            rates.append(found.matched.double().mean().item())
        assert rates[0] >= (1 - apart) / (1 + apart) - 0.01 > rates[1]


# No host sync.

class Judging(torch.nn.Module):
    def __init__(self, device, relaxation, greedy=False, spoil=lambda found: None):
        super().__init__()
        self.relaxation, self.greedy, self.spoil = relaxation, greedy, spoil
        generator, tree, codes = torch.Generator().manual_seed(0), PRESETS["cpu8"], 40
        for name, value in {
            "p": torch.rand(2, tree.nodes + 1, codes, generator=generator).softmax(-1),
            "tokens": torch.randint(codes, (2, tree.nodes + 1), generator=generator),
            "parents": torch.tensor(tree.parents), "depths": torch.tensor(tree.depths),
            "noise": torch.rand(2, tree.depth + 1, codes, generator=generator),
            "neighbours": torch.randint(codes, (codes, 8), generator=generator),
        }.items():
            self.register_buffer(name, value.to(device), persistent=False)

    def forward(self):
        found = verify_coupled(self.p, self.tokens, self.parents, self.depths, self.noise, self.neighbours,
                               self.relaxation, self.greedy)
        self.spoil(found)
        return tuple(found)


@pytest.mark.parametrize("rule, greedy", [(None, False), (RULES[2], True), (RULES[4], False)])
def test_judging_passes_both_gates(rule, greedy):
    fake_gate(lambda device: Judging(device, rule, greedy))
    export_gate(Judging("cpu", rule, greedy), set())


def _branch(found):
    if found.committed[0] > 1:
        found.tokens.add_(0)


CONTROLS = {
    "item": lambda found: found.tokens.add_(found.committed[0].item() * 0),
    "nonzero": lambda found: found.tokens.add_(found.matched.nonzero().shape[0] * 0),
    "mask read": lambda found: found.tokens.add_(found.tokens[found.tokens > 3].sum() * 0),
    "slice by tensor": lambda found: found.tokens.add_(found.tokens[0, :found.committed[0]].sum() * 0),
    "tolist": lambda found: found.tokens.add_(found.path.tolist()[0][0] * 0),
    "branch": _branch,
    "constant": lambda found: found.tokens.add_(torch.tensor(0, device=found.tokens.device)),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_fail_a_gate(name):
    with pytest.raises(Exception):  # noqa: B017 - each fault raises what it raises
        fake_gate(lambda device: Judging(device, RULES[2], spoil=CONTROLS[name]))
        export_gate(Judging("cpu", RULES[2], spoil=CONTROLS[name]), set())
