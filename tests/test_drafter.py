import pytest
import torch
import torch.nn.functional as F
from llamagen import drafter

from lanternpp.sampling import guide
from lanternpp.tree import PRESETS, Tree

TOLERANCE = 2e-5


def close(actual, expected, tolerance=TOLERANCE):
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance


def causal(count, slots):
    return torch.arange(count)[:, None] >= torch.arange(slots)


@pytest.mark.golden
def test_prefill_and_levels():
    model, head, t = drafter()
    cache = model.new_cache(2, 140)
    ids, hidden = t["d0/input_ids"].long(), t["d0/hidden_in"]
    slots = torch.arange(120)
    out = model(ids, hidden, slots + 1, cache, slots, causal(120, 140))
    close(out, t["d0/hidden_out"])
    close(guide(F.linear(out[:, -1:], head), 7.5)[0], t["d0/cfg_logits_last"], 2e-4)

    level = model(t["d1/ids"].long(), out[:, -1:].expand(-1, 2, -1), t["d1/pos"].long() + 1, cache,
                  torch.tensor([120, 121]), torch.cat([causal(120, 140)[-1:].expand(2, -1)[:, :120],
                                                       torch.eye(2, dtype=torch.bool),
                                                       torch.zeros(2, 18, dtype=torch.bool)], dim=1))
    close(level, t["d1/hidden_out"])
    parent = t["d1b/parent"].long()
    view = torch.zeros(3, 140, dtype=torch.bool)
    view[:, :120] = True
    view[torch.arange(3), 120 + parent] = True
    view[torch.arange(3), 122 + torch.arange(3)] = True
    out = model(t["d1b/ids"].long(), level[:, parent], t["d1b/pos"].long() + 1, cache, torch.arange(122, 125), view)
    close(out, t["d1b/hidden_out"])


@pytest.mark.golden
@pytest.mark.parametrize("name, preset", [("static_mc_sim_7b_63", "eagle25"), ("static_naive_extend_57", "lantern57")])
def test_static_trees(name, preset):
    """Top-10 tokens and guided logits of every expanded node, drafted level by level."""
    model, head, t = drafter()
    tree = PRESETS[preset]
    paths = [[rank for rank in row if rank >= 0] for row in t[f"{name}/choices"].tolist()]
    assert Tree.from_paths(paths) == tree
    cache = model.new_cache(2, 200)
    ids, slots = t["d0/input_ids"].long(), torch.arange(120)
    out = model(ids, t["d0/hidden_in"], slots + 1, cache, slots, causal(120, 200))[:, -1:]
    # The golden rows: the root, then inner nodes by (length, lexicographic), which is breadth-first here as well.
    states, codes = {0: out}, {}
    inner = list(tree.inner)
    ancestors = tree.ancestors()
    for row, node in enumerate(inner):
        if node:
            at = torch.tensor([120 + row - 1])
            view = torch.zeros(1, 200, dtype=torch.bool)
            view[:, :120] = True
            for other_row, other in enumerate(inner[1: row + 1]):
                view[:, 120 + other_row] = ancestors[node, other]
            place = torch.tensor([120 + tree.depths[node]])
            states[node] = model(torch.tensor([[codes[node]]]), states[tree.parents[node]], place, cache, at, view)
        logits = guide(F.linear(states[node], head), 7.5)[0, 0]
        top = logits.topk(10)
        assert top.indices.tolist() == t[f"{name}/tokens"][row].tolist()
        close(top.values, t[f"{name}/cfg_logits"][row], 2e-4)
        for child in tree.children[node]:
            codes[child] = int(top.indices[tree.ranks[child]])


@pytest.mark.golden
def test_control_embedding_of_the_head():
    """A drafter that reads the head's rows as its token embedding (a fault of the reference) is another drafter."""
    model, head, t = drafter()
    model.token_embedding.weight.data.copy_(head)
    out = model(t["d0/input_ids"].long(), t["d0/hidden_in"], torch.arange(1, 121))
    assert (out - t["d0/hidden_out"]).abs().max() > 1e-2
