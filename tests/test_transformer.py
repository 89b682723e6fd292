from dataclasses import replace

import pytest
import torch
from golden import load, weights
from llamagen import C2I, T2I, network, read

from lanternpp.sampling import guide
from lanternpp.transformer import KVCache, Rotary, Transformer, TransformerConfig, prefix_mask

TOLERANCE = 2e-5


def close(actual, expected, tolerance=TOLERANCE):
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance


def view(slots, start, ancestors, valid):
    """(B, 1, T, M): everything valid before `start`, then the tree."""
    count = len(ancestors)
    mask = torch.zeros(len(valid), 1, count, slots, dtype=torch.bool)
    mask[..., :start] = True
    mask[..., : valid.shape[1]] &= valid[:, None, None, :]
    mask[..., start:start + count] = ancestors.bool()
    return mask


@pytest.mark.golden
@pytest.mark.parametrize("name", ["llamagen_gpt_hf", "llamagen_gpt_official_t2i"])
def test_rope_rows(name):
    _, t = load("llamagen_gpt_hf")
    for key, config in [("rope", T2I)] + [
            (f"rope_hd64_grid{g}", TransformerConfig(96, 64, 1, 1, 8, g, 120, "features", 24)) for g in (16, 24, 32)]:
        table = torch.view_as_real(Rotary(config).table[t[f"{key}/positions"].long()])
        close(table, t[f"{key}/cos_sin"], 1e-6)


@pytest.mark.golden
def test_hf_prefill_token_tree_compaction():
    model, t = network("llamagen_gpt_hf", T2I)
    valid = t["in/prefix_mask"].bool()
    cache = model.new_cache(2, 140)
    rows = model.prefix(t["in/cond"])
    close(model.prefix.unconditional(1), rows[1:], 1e-6)
    mask = torch.zeros(2, 1, 120, 140, dtype=torch.bool)
    mask[..., :120] = prefix_mask(valid)
    positions = torch.arange(120)
    hidden = model(rows, positions, cache, positions, mask)
    close(hidden[:, -7:], t["s0/hidden"][:, -7:])
    close(model.head(hidden[:, -1]), t["s0/logits_last"])
    assert guide(model.head(hidden[:, -1:]), 7.5).argmax() == t["s0/greedy_token"]

    def run(ids, depths, start, ancestors):
        ids = ids.long().expand(2, -1)
        slots = start + torch.arange(ids.shape[1])
        return model(model.token_embedding(ids), depths.long(), cache, slots, view(140, start, ancestors, valid))

    one = run(t["s1/token"], torch.tensor([120]), 120, torch.ones(1, 1))
    close(one, t["s1/hidden"])
    close(guide(model.head(one), 7.5)[0], t["s1/cfg_logits"][0], 2e-4)
    tree = run(t["s2/ids"], t["s2/pos"], 121, t["s2/tree_mask"])
    close(tree, t["s2/hidden"])
    close(guide(model.head(tree), 7.5)[0], t["s2/cfg_logits"][0], 2e-4)
    cache.move(121 + t["s3/accepted_nodes"].long(), 121 + torch.arange(3))
    close(run(t["s3/ids"], t["s3/pos"], 124, t["s3/tree_mask"]), t["s3/hidden"])


@pytest.mark.golden
def test_hf_full_sequence_without_cache():
    model, t = network("llamagen_gpt_hf", T2I)
    x = torch.cat([model.prefix(t["in/cond"]), model.token_embedding(t["s4/ids"].long())], dim=1)
    mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril().expand(2, 1, -1, -1).clone()
    mask[..., :120] &= t["in/prefix_mask"].bool()[:, None, None, :]
    mask |= torch.eye(x.shape[1], dtype=torch.bool)
    hidden = model(x, torch.arange(x.shape[1]), mask=mask)
    close(hidden[:, 119:], t["s4/hidden"])
    close(model.head(hidden[:, 119:]), t["s4/logits"])


def greedy(model, rows, valid, scale, count):
    """Greedy tokens (n, count), guided logits of each step; rows (2n, P, d) are [conditional; unconditional]."""
    config, prompts = model.config, len(rows) // 2
    slots = config.prefix + count
    cache, positions = model.new_cache(len(rows), slots), torch.arange(config.prefix)
    mask = torch.zeros(len(rows), 1, config.prefix, slots, dtype=torch.bool)
    mask[..., : config.prefix] = prefix_mask(valid)
    first = hidden = model(rows, positions, cache, positions, mask)
    tokens, logits = [], []
    for index in range(count):
        conditional, unconditional = model.head(hidden[:, -1]).split(prompts)
        logits.append(unconditional + scale * (conditional - unconditional))
        tokens.append(logits[-1].argmax(-1))
        position = torch.tensor([config.prefix + index])
        seen = view(slots, config.prefix + index, torch.ones(1, 1), valid)
        hidden = model(model.token_embedding(tokens[-1].repeat(2))[:, None], position, cache, position, seen)
    return torch.stack(tokens, 1), torch.stack(logits, 1), model.head(first)


@pytest.mark.golden
def test_official_t2i_greedy():
    model, t = network("llamagen_gpt_official_t2i", T2I)
    rows = model.prefix_rows(t["in/cond"], guided=True)
    valid = t["in/prefix_mask"].bool().expand(2, -1)
    tokens, logits, prefill = greedy(model, rows, valid, 7.5, 256)
    close(prefill, t["prefill/logits_all"])
    close(logits[0, :16], t["gen/cfg_logits_first16"].view(16, -1), 2e-4)
    assert tokens[0].tolist() == t["gen/greedy_tokens"].tolist()


@pytest.mark.golden
def test_official_t2i_two_prompts():
    model, t = network("llamagen_gpt_official_t2i", T2I)
    rows = model.prefix_rows(t["batch/cond"], guided=True)
    tokens, _, prefill = greedy(model, rows, t["batch/prefix_mask"].bool().repeat(2, 1), 7.5, 48)
    close(prefill[:, -1], t["batch/prefill_logits_last"])
    assert tokens.tolist() == t["batch/greedy_tokens48"].tolist()


@pytest.mark.golden
def test_official_c2i_greedy():
    model, t = network("llamagen_gpt_official_c2i", C2I)
    rows = model.prefix_rows(t["in/labels"].long(), guided=True)
    tokens, logits, prefill = greedy(model, rows, torch.ones(4, 1, dtype=torch.bool), 4.0, 64)
    close(prefill, t["prefill/logits"])
    close(logits[:, :8], t["gen/cfg_logits_first8"], 2e-4)
    assert tokens.tolist() == t["gen/greedy_tokens"].tolist()


@pytest.mark.golden
def test_control_identity_rotation_breaks_published_weights():
    _, tensors = load("llamagen_gpt_official_t2i")
    model = read(replace(T2I, prefix_rotation="identity"), weights(tensors))
    valid = tensors["in/prefix_mask"].bool().expand(2, -1)
    _, _, prefill = greedy(model, model.prefix_rows(tensors["in/cond"], guided=True), valid, 7.5, 1)
    assert (prefill - tensors["prefill/logits_all"]).abs().max() > 1e-2


def test_cast_keeps_rotary_exact():
    model = Transformer(C2I)
    before = model.rotary.table.clone()
    model.to(torch.bfloat16)
    assert model.dtype == torch.bfloat16
    assert torch.equal(model.rotary.table, before)


def test_cache_move_with_overlap():
    cache = KVCache(2, 1, 1, 8, 4)
    cache.keys.copy_(torch.arange(8.0).view(1, 1, 8, 1, 1).expand_as(cache.keys))
    cache.move(torch.tensor([3, 5, 7]), torch.tensor([2, 3, 4]))
    assert cache.keys[1, 0, :, 0, 0].tolist() == [0, 1, 3, 5, 7, 5, 6, 7]
