"""Chameleon's language model and drafter in this project's network: the reference's numbers, and the stock class."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from gates import fake_gate
from golden import load, weights

from lanternpp import keymaps
from lanternpp.checkpoints import Weights, fill
from lanternpp.decode import Step
from lanternpp.drafter import Drafter, DrafterConfig
from lanternpp.dynamic import DynamicTree, grow, slot_mask
from lanternpp.relax import Relaxation
from lanternpp.sampling import Sampling, distribution, guide
from lanternpp.transformer import Transformer, TransformerConfig, prefix_mask
from lanternpp.tree import PRESETS, Tree

TOLERANCE, OFFSET, CODES, PROMPT, SLOTS = 2e-5, 4, 64, 9, 60
TINY = TransformerConfig(codes=CODES, width=64, layers=3, heads=4, hidden=112, grid=8, prefix=PROMPT,
                         prefix_kind="tokens", condition=96, rotary="line", qk_norm=True, null_prompt=(0, 69))
SMALL = DrafterConfig(attention_norm=True, norm_eps=1e-5, qk_norm=True, masks_padding=True)


def close(actual, expected, tolerance=TOLERANCE):
    assert actual.shape == expected.shape
    assert (actual - expected).abs().max() <= tolerance


def target():
    _, tensors = load("anole_lm")
    with torch.device("meta"):
        model = Transformer(TINY)
    fill(model, keymaps.chameleon(model), Weights.of(weights(tensors), "target"), torch.float32)
    return model.requires_grad_(False), tensors


def drafter():
    """The drafter, the target's head for picture codes, tensors."""
    _, tensors = load("anole_eagle_drafter")
    state = weights(tensors)
    head = state.pop("lm_head.weight")[OFFSET: OFFSET + CODES]
    with torch.device("meta"):
        base, model = Transformer(TINY), Drafter(SMALL, TINY)
    fill(model, keymaps.chameleon_drafter(model, base), Weights.of(state, "drafter"), torch.float32)
    return model.requires_grad_(False), head, tensors


def view(valid, start, ancestors):
    """(2, 1, T, M): what is valid before `start`, then the tree."""
    mask = torch.zeros(2, 1, len(ancestors), SLOTS, dtype=torch.bool)
    mask[..., :start] = True
    mask[..., : valid.shape[1]] &= valid[:, None, None, :]
    mask[..., start:start + len(ancestors)] = ancestors.bool()
    return mask


@pytest.mark.golden
def test_prefill_token_tree_compaction():
    """Positions are counted in slots for both rows; the reference counts the padded row's from its first valid one."""
    model, t = target()
    ids, valid = t["s0/ids"].long(), t["s0/mask"].bool()
    rows = model.prefix_rows(ids[:1], guided=True)
    assert torch.equal(rows, model.prefix(ids))  # the null prompt is made here
    assert torch.equal(model.prefix_codes(ids[:1], guided=True), ids + CODES)
    cache, positions = model.new_cache(2, SLOTS), torch.arange(PROMPT)
    mask = torch.zeros(2, 1, PROMPT, SLOTS, dtype=torch.bool)
    mask[..., :PROMPT] = prefix_mask(valid, "causal")
    hidden = model(rows, positions, cache, positions, mask)
    close(hidden[valid], t["s0/hidden"][valid])
    picture = slice(OFFSET, OFFSET + CODES)
    close(model.head(hidden[:, -1]), t["s0/logits_last"][:, picture])
    guided = guide(model.head(hidden[:, -1:]), 3.0)[0]
    close(guided, t["s0/cfg_logits_masked"][:, picture], 2e-4)
    outside = torch.ones(96, dtype=torch.bool)
    outside[picture] = False  # what the reference forbids has no row in the head here
    assert (t["s0/cfg_logits_masked"][:, outside] == torch.finfo(torch.float32).min).all()
    assert guided.argmax(-1) + OFFSET == t["s0/greedy_token"]

    def run(ids, depths, start, ancestors):
        codes = ids.long() - OFFSET
        slots = start + torch.arange(len(codes))
        x = model.embed(codes.unsqueeze(0), None).expand(2, -1, -1)
        return model(x, depths[0].long(), cache, slots, view(valid, start, ancestors))

    one = run(t["s0/greedy_token"], t["s1/pos"], PROMPT, torch.ones(1, 1))
    close(one, t["s1/hidden"])
    tree = run(t["s2/ids"], t["s2/pos"], PROMPT + 1, t["s2/tree_mask"])
    close(tree, t["s2/hidden"])
    close(guide(model.head(tree), 3.0)[0], t["s2/cfg_logits_masked"][0][:, picture], 2e-4)
    cache.move(PROMPT + 1 + t["s3/accepted_nodes"].long(), PROMPT + 1 + torch.arange(3))
    last = run(t["s3/ids"], t["s3/pos"], PROMPT + 4, t["s3/tree_mask"])
    close(last, t["s3/hidden"])
    close(model.head(last), t["s3/logits"][..., picture])


@pytest.mark.golden
def test_control_without_norm_of_queries_or_turning_of_pairs_it_is_another_network():
    model, t = target()
    ids, valid = t["s0/ids"].long(), t["s0/mask"].bool()
    rows, positions, mask = model.prefix(ids), torch.arange(PROMPT), prefix_mask(valid, "causal")
    close(model(rows, positions, mask=mask)[valid], t["s0/hidden"][valid])
    state = model.state_dict()
    recipe = keymaps.chameleon(model)
    turned = recipe["blocks.0.qkv.weight"][0].convert
    plain = state["blocks.0.qkv.weight"].clone()
    plain[:64] = turned(plain[:64])
    for key, value in (("blocks.0.qk_norm.weight", torch.ones(8, 16)), ("blocks.0.qkv.weight", plain)):
        other = Transformer(TINY)
        other.load_state_dict(state | {key: value})
        assert (other(rows, positions, mask=mask)[valid] - t["s0/hidden"][valid]).abs().max() > 1e-2


@pytest.mark.golden
def test_stock_chameleon_gives_the_same(tmp_path):
    """The stock class, per-row positions and padding of transformers, against one forward pass here."""
    from transformers import ChameleonConfig, ChameleonForConditionalGeneration

    model, t = target()
    config = ChameleonConfig(vocab_size=96, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
                             num_attention_heads=4, num_key_value_heads=4, rms_norm_eps=1e-5, vocabulary_map={
                                 "<image>": 68}, vq_config={"base_channels": 32, "channel_multiplier": [1, 1],
                                                            "num_res_blocks": 1, "latent_channels": 32,
                                                            "embed_dim": 32, "num_embeddings": 64})
    stock = ChameleonForConditionalGeneration(config).eval()
    missing, unexpected = stock.load_state_dict(weights(t), strict=False)
    assert not unexpected and all(key.startswith("model.vqmodel.") for key in missing)
    valid = t["s0/mask"].bool()
    with torch.no_grad():
        hidden = stock.model(input_ids=t["s0/ids"].long(), attention_mask=valid.long(),
                             position_ids=t["s0/pos"].long()).last_hidden_state
    ours = model(model.prefix(t["s0/ids"].long()), torch.arange(PROMPT), mask=prefix_mask(valid))
    close(ours[valid], hidden[valid])


def run_drafter(model, t):
    """Cache and hidden states after the prefill, as Step does it: prompt ids stand behind the codes."""
    ids, valid = t["d0/input_ids"].long(), t["d0/mask"].bool()
    tokens = torch.cat([ids[:, :-1] + CODES, ids[:, -1:] - OFFSET], dim=1)
    slots, cache = torch.arange(PROMPT), model.new_cache(2, SLOTS)
    mask = torch.zeros(2, 1, PROMPT, SLOTS, dtype=torch.bool)
    mask[..., :PROMPT] = prefix_mask(valid, "self")
    return model(tokens, t["d0/hidden_in"], slots + 1, cache, slots, mask), cache, valid


@pytest.mark.golden
def test_drafter_prefill_and_levels():
    model, head, t = drafter()
    out, cache, valid = run_drafter(model, t)
    close(out[valid], t["d0/hidden_out"][valid])
    close(guide(F.linear(out[:, -1:], head), 3.0)[0], t["d0/cfg_logits_last_masked"][:, OFFSET:OFFSET + CODES], 2e-4)
    first = model(t["d1/ids"].long() - OFFSET, out[:, -1:].expand(-1, 2, -1), torch.full((2,), PROMPT + 1), cache,
                  PROMPT + torch.arange(2), view(valid, PROMPT, torch.eye(2)))
    close(first, t["d1/hidden_out"])
    parent = t["d1b/parent"].long()
    seen = view(valid, PROMPT, torch.zeros(3, 3))
    seen[..., torch.arange(3), PROMPT + parent] = True
    seen[..., torch.arange(3), PROMPT + 2 + torch.arange(3)] = True
    second = model(t["d1b/ids"].long() - OFFSET, first[:, parent], torch.full((3,), PROMPT + 2), cache,
                   PROMPT + 2 + torch.arange(3), seen)
    close(second, t["d1b/hidden_out"])


@pytest.mark.golden
def test_drafter_static_tree():
    """Top-10 tokens and guided logits of every expanded node of EAGLE-1's tree."""
    model, head, t = drafter()
    tree, name = PRESETS["eagle25"], "static_mc_sim_7b_63"
    out, cache, valid = run_drafter(model, t)
    states, codes, ancestors, inner = {0: out[:, -1:]}, {}, tree.ancestors(), list(tree.inner)
    for row, node in enumerate(inner):
        if node:
            seen = view(valid, PROMPT, torch.zeros(1, 1))
            for other_row, other in enumerate(inner[1: row + 1]):
                seen[..., PROMPT + other_row] = ancestors[node, other]
            place, slot = torch.tensor([PROMPT + tree.depths[node]]), torch.tensor([PROMPT + row - 1])
            states[node] = model(torch.tensor([[codes[node]]]), states[tree.parents[node]], place, cache, slot, seen)
        top = guide(F.linear(states[node], head), 3.0)[0, 0].topk(10)
        assert (top.indices + OFFSET).tolist() == t[f"{name}/tokens"][row].tolist()
        close(top.values, t[f"{name}/cfg_logits"][row], 2e-4)
        for child in tree.children[node]:
            codes[child] = int(top.indices[tree.ranks[child]])


@pytest.mark.golden
def test_control_drafter_that_sees_padding_is_another():
    model, _, t = drafter()
    ids = t["d0/input_ids"].long()
    tokens = torch.cat([ids[:, :-1] + CODES, ids[:, -1:] - OFFSET], dim=1)
    out = model(tokens, t["d0/hidden_in"], torch.arange(PROMPT) + 1)
    assert (out[1, -1] - t["d0/hidden_out"][1, -1]).abs().max() > 1e-2


@pytest.mark.golden
@pytest.mark.parametrize("name", ["dyn0", "dyn1"])
def test_drafter_dynamic_trees(name):
    """EAGLE-2's trees of the reference: the second continues the first with four more tokens."""
    model, head, t = drafter()
    ids, hidden = t["d0/input_ids"].long(), t["d0/hidden_in"]
    tokens = torch.cat([ids[:, :-1] + CODES, ids[:, -1:] - OFFSET], dim=1)
    if name == "dyn1":
        more = t["dyn1/input_ids"].long()[PROMPT + 1:] - OFFSET
        tokens, hidden = torch.cat([tokens, more.expand(2, -1)], 1), torch.cat([hidden, t["dyn1/hidden_in"]], 1)
    count = tokens.shape[1]
    valid = F.pad(t["d0/mask"].bool(), (0, count - PROMPT), value=True)
    mask = F.pad(prefix_mask(valid), (0, SLOTS - count))
    cache, places = model.new_cache(2, SLOTS), torch.arange(count)
    states = model(tokens, hidden, places + 1, cache, places, mask)[:, -1:]
    seen = F.pad(valid, (0, SLOTS - count), value=True)

    def logp():
        return guide(F.linear(states, head), 3.0).log_softmax(-1)

    def call(level):
        nonlocal states
        view = slot_mask(level.view, torch.arange(SLOTS)[None] - (count - 1)) & seen[:, None]
        before = states.gather(1, level.parents.expand(2, -1)[..., None].expand(-1, -1, states.shape[-1]))
        position = torch.full((level.tokens.shape[1],), count + level.depth)
        states = model(level.tokens, before, position, cache, count - 1 + level.slots, view.unsqueeze(1))
        return logp()

    grown = grow(tokens[:1, -1], logp()[:, 0], call, DynamicTree(top_k=4, depth=4, total=12))
    assert (grown.tokens[0] + OFFSET).tolist() == t[f"{name}/draft_tokens"].tolist()
    assert torch.equal(grown.ancestors[0], t[f"{name}/tree_mask"].bool())
    assert grown.depths[0].tolist() == t[f"{name}/tree_position_ids"].tolist()
    leaves = set(range(13)) - set(grown.parents[0].tolist())
    assert {tuple(n for n in row if n >= 0) for row in t[f"{name}/retrieve_indices"].tolist()} == {
        tuple(grown.ancestors[0, leaf].nonzero().flatten().tolist()) for leaf in leaves}


@pytest.mark.golden
def test_step_reads_prompts_as_the_reference():
    """Prefill of target and drafter in Step against the reference: prompt ids, padding, guidance, first token."""
    model, t = target()
    small, _, _ = drafter()
    step = Step(model, small, Tree.from_branching([3]), Relaxation("exact"), Sampling(3.0, 0))
    ids, valid = t["s0/ids"].long(), t["s0/mask"].bool()
    token = step.prefill(ids[:1], [0], valid)
    assert token + OFFSET == t["s0/greedy_token"]
    assert (step.pending_hidden[:, 0] - t["s0/hidden"][:, -1]).abs().max() <= TOLERANCE
    # The drafter's last row needs the first token and sees what the prefill left in its cache; the features are the
    # target's own here, so the reference is the drafter without a cache.
    codes = torch.cat([model.prefix_codes(ids[:1], True)[:, 1:], token.expand(2, 1)], dim=1)
    hidden = model(model.prefix(ids), torch.arange(PROMPT), mask=prefix_mask(valid, "causal"))
    plain = small(codes, hidden, torch.arange(PROMPT) + 1, mask=prefix_mask(valid, "self"))
    draft = step._draft(step.cache.slots)
    expected = distribution(guide(model.head(plain[:, -1:]), 3.0), step.sampling)
    assert (draft.q - expected).abs().max() <= TOLERANCE
    assert draft.tokens[0, 1:].tolist() == expected[0, 0].topk(3).indices.tolist()


def test_row_ends_and_padding_need_no_host():
    def make(device):  # modules made in fake mode cannot always be moved, and need not be
        shape = replace(TINY, codes=CODES + 1, row_end=80, grid=4)
        parts = Transformer(shape), Drafter(SMALL, shape)
        parts = parts if device.type == "cpu" else [part.to(device) for part in parts]
        step = Step(*parts, Tree.from_branching([3, 2]), Relaxation("exact"), Sampling(3.0, 1.0, 40, 0.9))
        step.padded = True
        return step

    fake_gate(make)
