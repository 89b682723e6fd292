"""The step and the loop: sync gates, equality with plain AR, and what a run reports."""

import pytest
import torch
from gates import export_gate, fake_gate
from toy import SHAPE, drafter, target

from lanternpp.decode import Decoder, Step
from lanternpp.relax import Relaxation, nearest_codes
from lanternpp.sampling import Sampling
from lanternpp.tree import PRESETS, Tree

TREE = Tree.from_branching([3, 2, 1])
TREES = [Tree.from_branching([1, 1]), TREE, PRESETS["cpu8"], PRESETS["eagle25"]]
MUTATED = {"position", "committed", "pending_tokens", "pending_hidden", "cache.keys", "cache.values",
           "drafter_cache.keys", "drafter_cache.values"}
WORDS = torch.tensor([[0, 2, 5, 7, 9]])


def toy_step(tree=TREE, relaxation=None, sampling=None, device="cpu", kind=Step, neighbours=None, dtype=torch.float64):
    def placed(module):  # modules made in fake mode cannot always be cast, and need not be
        return module if dtype == torch.float32 and str(device) == "cpu" else module.to(dtype).to(device)

    model = target()
    small = placed(drafter(model))
    return kind(placed(model), small, tree, relaxation or Relaxation("exact"),
                sampling or Sampling(2.0, 1.0, 40, 0.95), neighbours)


def decode(step, seed=0):
    return [t for e in Decoder(step).generate(WORDS, seed) for t in e.tokens]


RELAXED = Relaxation("lanternpp", 8, 3.0)


@pytest.mark.parametrize("order", ["sequential", "strict-first"])
@pytest.mark.parametrize("greedy", [False, True])
def test_step_passes_both_gates(order, greedy):
    relaxation = Relaxation("lanternpp", 8, 3.0, order=order)
    sampling = Sampling(2.0, 0.0 if greedy else 1.0, 40, 0.9)

    def make(device):
        table = torch.zeros(SHAPE.codes, 8, dtype=torch.int64, device=device)
        return toy_step(TREE, relaxation, sampling, device, neighbours=table, dtype=torch.float32)

    fake_gate(make)
    export_gate(make("cpu"), MUTATED)


@pytest.mark.parametrize("rule", ["coupled", "coupled-relaxed", "eagle2"])
def test_coupled_steps_pass_both_gates(rule):
    def make(device):
        table = torch.zeros(SHAPE.codes, 8, dtype=torch.int64, device=device)
        return toy_step(TREE, Relaxation(rule, 8, 3.0), device=device, neighbours=table, dtype=torch.float32)

    fake_gate(make)
    export_gate(make("cpu"), MUTATED)


def test_root_step_passes_both_gates():
    fake_gate(lambda device: toy_step(PRESETS["root"], device=device, dtype=torch.float32))
    export_gate(toy_step(PRESETS["root"], dtype=torch.float32),
                {"position", "committed", "pending_tokens", "cache.keys", "cache.values"})


def control(body):
    """A step that does `body(tensor)` on its committed count, and is otherwise the real one."""

    class Spoiled(Step):
        def forward(self):
            row = super().forward()
            body(self.committed, self)
            return row

    return Spoiled


def _branch(x, step):
    if x > 0:
        step.position.add_(0)


def _mask_write(x, step):
    flags = step.pending_tokens >= x
    step.pending_tokens[flags] = 0


CONTROLS = {
    "item": lambda x, s: s.position.add_(x.item() * 0),
    "nonzero": lambda x, s: s.position.add_(s.pending_tokens.nonzero().shape[0] * 0),
    "mask read": lambda x, s: s.position.add_(s.pending_tokens[s.pending_tokens >= x].sum() * 0),
    "mask write": _mask_write,
    "branch": _branch,
    "slice by tensor": lambda x, s: s.position.add_(s.pending_tokens[:x].sum() * 0),
    "tolist": lambda x, s: s.position.add_(s.pending_tokens.tolist()[0] * 0),
    "cpu": lambda x, s: s.position.add_((x.cpu() * 0).to(x.device)),
    "constant": lambda x, s: s.position.add_(torch.tensor(0, device=x.device)),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_controls_fail_a_gate(name):
    kind = control(CONTROLS[name])
    failed = 0
    for gate in (lambda: fake_gate(lambda device: toy_step(device=device, kind=kind, dtype=torch.float32)),
                 lambda: export_gate(toy_step(kind=kind, dtype=torch.float32), MUTATED)):
        try:
            gate()
        except Exception:
            failed += 1
    assert failed, f"{name} passed both gates"


@pytest.mark.parametrize("tree", TREES, ids=lambda t: t.name)
@pytest.mark.parametrize("seed", [0, 1])
def test_greedy_tree_equals_greedy_ar(tree, seed):
    greedy = Sampling(2.0, 0.0)
    model_seed = torch.Generator().manual_seed(seed)
    words = torch.randint(1, SHAPE.condition, (1, SHAPE.prefix), generator=model_seed)

    def run(shape):
        events = Decoder(toy_step(shape, sampling=greedy)).generate(words, seed)
        return [t for e in events for t in e.tokens]

    assert run(tree) == run(PRESETS["root"])


@pytest.mark.parametrize("relaxation", [Relaxation("lanternpp", 0, 3.0), Relaxation("lantern", 8, 0.0),
                                        Relaxation("lanternpp", 8, 1.0), Relaxation("annealed", 8, 1.0)], ids=str)
@pytest.mark.parametrize("order", ["sequential", "strict-first"])
def test_no_relaxation_is_exact(relaxation, order):
    from dataclasses import replace
    table = nearest_codes(torch.randn(SHAPE.codes, 4, generator=torch.Generator().manual_seed(3)), 8)
    relaxation = replace(relaxation, order=order)
    exact = Relaxation("exact", order=order)
    for seed in range(3):
        assert decode(toy_step(TREE, relaxation, neighbours=table), seed) == decode(toy_step(TREE, exact), seed)


def test_relaxation_changes_something():
    table = nearest_codes(torch.randn(SHAPE.codes, 4, generator=torch.Generator().manual_seed(3)), 8)
    runs = [decode(toy_step(TREE, r, neighbours=table), s) for r in (RELAXED, Relaxation("exact")) for s in range(4)]
    assert runs[:4] != runs[4:]


def test_orders_agree_when_strict():
    """With no relaxation the two orders are one rule."""
    for seed in range(3):
        runs = [decode(toy_step(TREE, Relaxation("exact", order=o)), seed) for o in ("sequential", "strict-first")]
        assert runs[0] == runs[1]


def test_events_cover_the_picture():
    step = toy_step(PRESETS["eagle25"])
    for seed in range(5):
        events = Decoder(step).generate(WORDS, seed)
        assert [e.index for e in events] == list(range(len(events)))
        assert sum(e.accepted for e in events) == SHAPE.image_tokens
        position = 0
        for event in events:
            assert event.position == position
            position += event.accepted
            if event.index:
                assert len(event.verdicts) == 25
                assert event.accepted == len(event.path) + (event.ending != "end")
                assert sum(v in "ax" for v in event.verdicts) <= len(event.path)
                parents = PRESETS["eagle25"].parents
                assert all(parents[b] == a for a, b in zip((0, *event.path), event.path, strict=False))
                assert [event.drafted[n - 1] for n in event.path] == list(event.tokens[: len(event.path)])


@pytest.mark.parametrize("tree", [PRESETS["root"], TREE, PRESETS["cpu8"]], ids=lambda t: t.name)
@pytest.mark.parametrize("guided", [True, False])
def test_pictures_side_by_side_equal_pictures_alone(tree, guided):
    """Each keeps its own position, noise and end, though they end after different numbers of steps."""
    words = torch.tensor([[0, 2, 5, 7, 9], [3, 4, 5, 6, 7], [0, 0, 0, 8, 11]])
    seeds, neighbours = [4, 5, 6], torch.stack([torch.arange(SHAPE.codes).roll(-1 - i) for i in range(8)], 1)
    model = target().double()

    def step(pictures):
        return Step(model, drafter(model).double(), tree, RELAXED, Sampling(2.0, 1.0, 40), neighbours, guided=guided,
                    pictures=pictures)

    together = Decoder(step(3)).generate_many(words, seeds)
    assert len({len(events) for events in together}) > 1 or not tree.nodes
    for picture, seed in enumerate(seeds):
        alone = Decoder(step(1)).generate(words[picture:picture + 1], seed)
        for a, b in zip(together[picture], alone, strict=True):
            assert (a.tokens, a.position, a.path, a.drafted, a.verdicts) == (b.tokens, b.position, b.path, b.drafted,
                                                                             b.verdicts)
            assert a.q == pytest.approx(b.q, abs=1e-9) and a.mass == pytest.approx(b.mass, abs=1e-9)


@pytest.mark.parametrize("rule", ["coupled", "eagle2"])
@pytest.mark.parametrize("tree", TREES, ids=lambda t: t.name)
def test_coupled_paints_what_ar_paints_at_the_same_seed(rule, tree):
    saved = 0
    for seed in range(4):
        events = Decoder(toy_step(tree, Relaxation(rule))).generate(WORDS, seed)
        assert [t for e in events for t in e.tokens] == decode(toy_step(PRESETS["root"]), seed)
        saved += SHAPE.image_tokens - len(events)
        if rule == "eagle2":  # each step's own tree is in its event
            assert all(len(e.parents) == tree.nodes + 1 == len(e.drafted) + 1 for e in events[1:])
    assert saved > 0  # and it was faster


def test_relaxed_coupling_departs_only_where_it_swapped():
    neighbours = torch.stack([torch.arange(SHAPE.codes).roll(-1 - i) for i in range(40)], 1)
    swaps = 0
    for seed in range(12):
        step = toy_step(TREE, Relaxation("coupled-relaxed", 40, 10.0), neighbours=neighbours)
        events = Decoder(step).generate(WORDS, seed)
        plain = decode(toy_step(PRESETS["root"]), seed)
        painted = [t for e in events for t in e.tokens]
        swapped = [e.position + TREE.depths[n] - 1 for e in events for n in e.path if e.verdicts[n - 1] == "x"]
        first = next((i for i, (a, b) in enumerate(zip(painted, plain, strict=True)) if a != b), None)
        assert first == (swapped[0] if swapped else None)
        swaps += len(swapped)
    assert swaps


def test_control_coupling_with_other_noise_leaves_the_picture():
    """The same judge over drafts and draws of the drafts' own stream paints another picture."""
    step = toy_step(TREE, Relaxation("coupled"))
    step.noise.refill = lambda seeds, fill=step.noise.refill: fill([s + 1 for s in seeds])
    assert decode(step, 3) != decode(toy_step(PRESETS["root"]), 3)


def test_attention_over_the_filled_slots_alone_changes_nothing():
    """The step that looks at `reach` slots against the one that looks at all."""
    short, full = toy_step(), toy_step()
    for step in (short, full):
        step.prefill(WORDS, [3])
    while int(short.position) < short.length:
        reach = short.reach(int(short.position))
        assert reach <= short.cache.slots
        for a, b in zip(short(reach), full(), strict=True):
            assert torch.allclose(a, b, atol=1e-9)


def test_same_seed_same_picture_and_state_is_reset():
    step = toy_step()
    assert decode(step, 5) == decode(step, 5) != decode(step, 6)


def test_the_step_reads_only_its_past():
    """Scores of a tree equal the target's scores of each path decoded alone, cache and mask included."""
    step = toy_step(TREE)
    step.prefill(WORDS, [0])
    first = step.pending_tokens[0, :1].clone()
    reach = step.reach(1)
    draft = step._draft(reach)
    _, p = step._score(draft, reach)
    tokens, p = draft.tokens[0], p[0]
    model = step.target
    for node in range(TREE.nodes + 1):
        path, at = [], node
        while at > 0:
            path.insert(0, int(tokens[at]))
            at = TREE.parents[at]
        codes = torch.tensor([[int(first), *path]])
        rows = model.prefix_rows(WORDS, True)
        x = torch.cat([rows, model.embed(codes.expand(2, -1), model.caption_shift(rows))], dim=1)
        hidden = model(x, torch.arange(x.shape[1]))[:, -1:]
        place = torch.tensor([[1 + len(path)]])
        assert torch.allclose(step._distribution(model.head(hidden), place)[0, 0], p[node], atol=1e-6)


@pytest.mark.parametrize("rule", ["coupled", "coupled-relaxed"])
def test_a_coupled_draft_without_probability_is_told_as_what_it_became(rule):
    """Where top-k leaves q fewer codes than a node has children, the target may still draw one of the others."""
    codebook = torch.randn(SHAPE.codes, 4, generator=torch.Generator().manual_seed(0))
    tree, nearest = Tree.from_branching([30, 1]), nearest_codes(codebook, 20)
    step = toy_step(tree, Relaxation(rule, 20, 5.0), Sampling(2.0, 1.0, 6), neighbours=nearest)
    events = [event for seed in range(6) for event in Decoder(step).generate(WORDS, seed)]
    letters = [event.verdicts[node - 1] for event in events for node in event.path]
    assert letters and set(letters) <= set("ax")
    assert any(event.q[node - 1] == 0 for event in events for node in event.path)  # so it did happen
