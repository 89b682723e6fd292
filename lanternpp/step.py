"""The decoding step, one for every method.

A step is: catch-up (the drafter reads what the last step committed), expand (one drafter call a level), score (the
target over the tree), verify, commit (accepted cache rows move into place). All shapes are static, the positions are
device tensors and nothing in it waits for the host, so that the same step can run eagerly, compiled or as a CUDA graph.
Several pictures may be decoded side by side, each at its own position.

Letters: S pictures, B rows (S, or 2S with CFG: conditional rows first), N nodes below the root, D depth, V codes,
L image tokens, P prefix rows, M cache slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .coupled import verify_coupled
from .drafter import Drafter
from .dynamic import DynamicTree, Level, grow, slot_mask
from .relax import Relaxation
from .sampling import Noise, Sampling, distribution, draw_ranked, guide
from .transformer import Transformer, prefix_mask
from .tree import Tree
from .verify import TreeBuffers, Verdict, undrafted, verify

BLOCK = 32  # slots


class Draft(NamedTuple):
    """A drafted tree of each picture, root first. A static tree's parents and depths are the same for all, (N+1,)."""

    tokens: Tensor  # (S, N+1) int64
    parents: Tensor  # (S, N+1) or (N+1,) int64, −1 for the root
    depths: Tensor  # (S, N+1) or (N+1,) int64
    view: Tensor | None = None  # (S, N+1, N+1) bool, a dynamic tree's mask
    q: Tensor | None = None  # (S, I, V): the drafter's distributions at a static tree's nodes with children
    chance: Tensor | None = None  # (S, N) float32: the drafter's probability of a dynamic tree's nodes


class Step(nn.Module):
    """One decoding step with its live state: caches, positions, pending tokens and noise, all buffers.

    `pending` are the tokens that the last step committed, padded to D+1, with the hidden state that predicted each.
    A picture that is full stays where it is while the others go on.
    """

    def __init__(self, target: Transformer, drafter: Drafter | None, tree: Tree, relaxation: Relaxation,
                 sampling: Sampling, neighbours: Tensor | None = None, guided: bool = True,
                 banned: Tensor | None = None, pictures: int = 1):
        super().__init__()
        if tree.nodes and drafter is None:
            raise ValueError("A draft tree needs a drafter, and this model has none: use the method ar.")
        config, device = target.config, target.device
        self.target, self.drafter, self.tree = target, drafter, tree
        self.relaxation, self.sampling = relaxation, sampling
        self.pictures, self.prefix, self.rows = pictures, config.prefix, pictures * (2 if guided else 1)
        self.length, self.depth = config.image_tokens, tree.depth
        past_end = self.length + 2 * (self.depth + 1)  # a last step may begin at L − 1, one more may overrun the end
        self.buffers_of_tree = TreeBuffers(tree, device)
        # A dynamic tree has the static one's size: as many nodes, as deep, beams as wide as its widest level.
        self.dynamic = (DynamicTree(max(tree.widths), tree.depth, tree.nodes)
                        if relaxation.rule == "eagle2" and tree.nodes else None)
        self.noise = Noise(pictures, past_end, config.codes, self.buffers_of_tree.max_children, device)
        self.cache = target.new_cache(self.rows, config.prefix + past_end + tree.nodes)
        inner = tree.inner
        drafted = self.dynamic.rows if self.dynamic else len(inner)
        self.drafter_cache = drafter.new_cache(self.rows, config.prefix + past_end + drafted) if tree.nodes else None
        self._levels = [[n for n in inner if tree.depths[n] == d] for d in range(self.depth)]

        def put(name: str, value: Tensor | None) -> None:
            self.register_buffer(name, None if value is None else value.to(device), persistent=False)

        # verify reads the k nearest; the coupled form orders swaps by all that the table holds.
        put("neighbours", neighbours if neighbours is None or relaxation.coupled
            else neighbours[:, : relaxation.k].contiguous())
        put("banned", banned)
        put("row_bans", _row_bans(config.codes) if config.row_end is not None else None)
        put("position", torch.zeros(pictures, dtype=torch.int64))
        put("committed", torch.ones(pictures, dtype=torch.int64))
        put("pending_tokens", torch.zeros(pictures, self.depth + 1, dtype=torch.int64))
        put("pending_hidden", torch.zeros(self.rows, self.depth + 1, config.width, dtype=target.dtype))
        put("shift", torch.zeros(self.rows, 1, config.width, dtype=target.dtype) if config.pooled else None)
        put("places", torch.arange(self.depth + 1))
        put("first_place", torch.arange(pictures).unsqueeze(1) * past_end)  # of a picture, in a stream's rows
        put("parents", torch.tensor(tree.parents))
        put("node_slots", torch.arange(tree.nodes + 1))
        put("prefix_valid", torch.ones(self.rows, config.prefix, dtype=torch.bool))
        put("slots", torch.arange(self.cache.slots))
        put("target_view", self._view_table(tree.ancestors()))
        if tree.nodes:
            index = torch.tensor(inner)
            put("drafter_view", self._view_table(tree.ancestors()[index][:, index]))
            put("committed_view", self._view_table(torch.ones(self.depth + 1, self.depth + 1).bool().tril()))
            for d, nodes in enumerate(self._levels):
                put(f"level_nodes_{d}", torch.tensor(nodes))
                put(f"level_parents_{d}", torch.tensor([inner.index(max(0, tree.parents[n])) for n in nodes]))
                put(f"level_rows_{d}", torch.tensor([inner.index(n) for n in nodes]))
                most = max(len(tree.children[n]) for n in nodes)
                put(f"level_drawn_{d}", torch.tensor([i * most + rank for i, n in enumerate(nodes)
                                                      for rank in range(len(tree.children[n]))]))
            put("q_row", torch.tensor([inner.index(p) for p in tree.parents[1:]]))
        self.padded = False

    def reach(self, position: int) -> int:
        """How many cache slots a step may have to see whose pictures all stand at or before `position`.

        In multiples of BLOCK, so that a graph or a compiled step of each size can be kept.
        """
        beyond = max(self.tree.nodes, self.dynamic.rows if self.dynamic else 0) + self.depth + 1
        return min(self.cache.slots, -(-(self.prefix + position + beyond) // BLOCK) * BLOCK)

    @torch.no_grad()
    def prefill(self, condition: Tensor, seeds: Sequence[int], valid: Tensor | None = None) -> Tensor:
        """Read the prefixes, draw token 0 of each picture and reset all state; returns the tokens (S,).

        condition: what the target's prefix module reads, S prompts. valid (S, P), or (B, P) where unconditional rows
        are padded otherwise, bool, marks prefix rows that are not padding.
        """
        self.noise.refill(seeds)
        rows = self.target.prefix_rows(condition, guided=self.rows > self.pictures)
        if self.shift is not None:
            self.shift.copy_(self.target.caption_shift(rows))
        count = self.prefix
        positions = torch.arange(count, device=rows.device)
        self.padded = valid is not None and not bool(valid.all())
        self.prefix_valid.fill_(True)
        if self.padded:
            self.prefix_valid.copy_(valid if len(valid) == self.rows else self._by_row(valid))
        mask = prefix_mask(self.prefix_valid, "causal" if self.tree.nodes else "self")
        hidden = self.target(rows, positions, self.cache, positions, mask)
        p = self._distribution(self.target.head(hidden[:, -1:])).squeeze(1)
        token = (p if self.sampling.greedy else p / self.noise.target[:, 0]).argmax(-1)
        if self.tree.nodes and count > 1:
            codes = self.target.prefix_codes(condition, guided=self.rows > self.pictures)
            mask = prefix_mask(self.prefix_valid[:, :-1] | (not self.drafter.config.masks_padding), "causal")
            self.drafter(codes[:, 1:], hidden[:, :-1], positions[1:], self.drafter_cache, positions[:-1], mask)
        self.position.fill_(1)
        self.committed.fill_(1)
        self.pending_tokens.zero_()
        self.pending_tokens[:, 0] = token
        self.pending_hidden.zero_()
        self.pending_hidden[:, :1] = hidden[:, -1:]
        return token

    def forward(self, reach: int | None = None) -> tuple[Tensor, Tensor]:
        """Decode one step; returns the trace rows (S, …): int64 and float32, laid out as `read_row` reads them.

        reach: how many cache slots attention looks at, `self.reach(position)` or more; all if None.
        """
        reach = reach or self.cache.slots
        draft = self._draft(reach)
        hidden, p = self._score(draft, reach)
        verdict = self._verify(p, draft)
        rows = self._trace_rows(draft, verdict)
        self._commit(hidden, verdict)
        return rows

    def _by_row(self, x: Tensor) -> Tensor:
        """What is said of each picture (S, …), said of each row (B, …). One picture's rows share it by broadcasting."""
        return x if self.pictures == 1 or self.rows == self.pictures else torch.cat([x, x])

    def _distribution(self, logits: Tensor, depths: Tensor | None = None) -> Tensor:
        """(B, T, V) logits of all rows to float32 probabilities (S, T, V) of what follows nodes at depths (S or 1, T
        or 1); of a picture's first token where depths is None."""
        banned = self.banned
        if self.row_bans is not None:
            side = self.target.config.grid + 1
            ends = (torch.zeros_like(self.position) if depths is None else self.position).unsqueeze(1)
            ends = (ends if depths is None else ends + depths) % side == side - 1
            banned = self.row_bans[ends.long()]
        return distribution(guide(logits, self.sampling.cfg_scale, self.pictures), self.sampling, banned)

    def _noise(self, stream: Tensor, places: Tensor) -> Tensor:
        """Rows of a noise stream (S, L, …) at each picture's position + places (n,): (S, n, …)."""
        at = self.first_place + self.position.unsqueeze(1) + places
        return stream.flatten(0, 1).index_select(0, at.flatten()).unflatten(0, at.shape)

    def _view_table(self, view: Tensor) -> Tensor:
        """(T, R) who sees whom -> what attention adds to its scores, (T, R+2): a first column for everything before the
        R rows, a last for all after."""
        side = torch.ones(len(view), 1, dtype=torch.bool)
        return self._bias(torch.cat([side, view, ~side], dim=1))

    def _bias(self, view: Tensor) -> Tensor:
        """Who sees whom as what attention adds to its scores."""
        return torch.zeros_like(view, dtype=self.target.dtype).masked_fill(~view, float("-inf"))

    def _seen(self, table: Tensor, slots: Tensor, first: Tensor) -> Tensor:
        """A table's T rows, which begin at slots first (S, 1), as a bias over slots (M,): (S or B, 1, T, M)."""
        column = (slots - first + 1).clamp(0, table.shape[1] - 1)
        bias = table.index_select(1, column.flatten()).unflatten(1, column.shape).transpose(0, 1)
        return self._by_row(bias.unsqueeze(1))

    def _drafter_bias(self, bias: Tensor) -> Tensor:
        # The drafter reads prefix row p beside token p + 1, at slot p.
        return self._without_padding(bias, self.prefix_valid[:, :-1]) if self.drafter.config.masks_padding else bias

    def _without_padding(self, bias: Tensor, valid: Tensor) -> Tensor:
        """bias (…, T, M) that hides what is not valid (B, n) of the first n slots."""
        if not self.padded:
            return bias
        seen = F.pad(valid, (0, bias.shape[-1] - valid.shape[1]), value=True)
        return bias.masked_fill(~seen[:, None, None, :], float("-inf"))

    def _draft(self, reach: int) -> Draft:
        """The drafter reads what was committed and drafts a tree."""
        root = self.pending_tokens.gather(1, self.committed.unsqueeze(1) - 1)
        if not self.tree.nodes:
            return Draft(root, self.parents, self.buffers_of_tree.depths)
        slots = self.slots[: min(reach, self.drafter_cache.slots)]
        state = self._catch_up(slots)
        return self._grow(root, state, slots) if self.dynamic else self._expand(root, state, slots)

    def _catch_up(self, slots: Tensor) -> Tensor:
        """The hidden state (B, 1, d) that the drafter predicts after the last committed token."""
        # Rows past the last committed token read junk at slots that no query sees before they are written again.
        places = self.prefix + (self.position - self.committed).unsqueeze(1) + self.places
        own = places - 1
        bias = self._drafter_bias(self._seen(self.committed_view, slots, own[:, :1]))
        predicted = self._read(self._by_row(self.pending_tokens), self.pending_hidden, self._by_row(places),
                               self._by_row(own), bias)
        return _rows_at(predicted, self._by_row(self.committed.unsqueeze(1) - 1))

    def _expand(self, root: Tensor, state: Tensor, slots: Tensor) -> Draft:
        """Draw a static tree below root (S, 1), one drafter call a level."""
        tree, coupled = self.tree, self.relaxation.coupled
        stream = self.noise.target if coupled else self.noise.draft
        root_slot = (self.prefix + self.position - 2).unsqueeze(1)
        tokens, distributions, states = [root], [], state
        bias = self._drafter_bias(self._seen(self.drafter_view, slots, root_slot)) if self.depth > 1 else None
        read = 1
        for d, nodes in enumerate(self._levels):
            if d:
                own, level = getattr(self, f"level_nodes_{d}"), getattr(self, f"level_rows_{d}")
                hidden = states.index_select(1, getattr(self, f"level_parents_{d}"))
                place = (root_slot + 1 + d).expand(-1, len(nodes))
                state = self._read(self._by_row(torch.cat(tokens, 1).index_select(1, own)), hidden,
                                   self._by_row(place), self._by_row(root_slot + level),
                                   bias[:, :, read:read + len(nodes)])
                read += len(nodes)
                states = torch.cat([states, state], dim=1)
            q = self._draft_distribution(state, d)
            distributions.append(q)
            most = max(len(tree.children[n]) for n in nodes)
            drawn = (q.topk(most, dim=-1).indices if self.sampling.greedy else
                     draw_ranked(q, self._noise(stream, self.places[d:d + 1]), most))
            tokens.append(drawn.flatten(1).index_select(1, getattr(self, f"level_drawn_{d}")))
        return Draft(torch.cat(tokens, 1), self.parents, self.buffers_of_tree.depths, q=torch.cat(distributions, 1))

    def _grow(self, root: Tensor, state: Tensor, slots: Tensor) -> Draft:
        """Grow a dynamic tree below root (S, 1), one drafter call a level."""
        root_slot = (self.prefix + self.position - 2).unsqueeze(1)

        def call(level: Level) -> Tensor:
            nonlocal state
            hidden = _rows_at(state, self._by_row(level.parents))
            place = (root_slot + 1 + level.depth).expand_as(level.tokens)
            state = self._read(self._by_row(level.tokens), hidden, self._by_row(place),
                               self._by_row(root_slot + level.slots),
                               self._drafter_bias(self._grown_bias(level.view, slots - root_slot)))
            return self._draft_distribution(state, level.depth).log()

        first = self._draft_distribution(state, 0).log().squeeze(1)
        grown = grow(root.squeeze(1), first, call, self.dynamic)
        return Draft(grown.tokens, grown.parents, grown.depths, grown.ancestors, chance=grown.draft[:, 1:])

    def _grown_bias(self, view: Tensor, relative: Tensor) -> Tensor:
        return self._by_row(self._bias(slot_mask(view, relative)).unsqueeze(1))

    def _draft_distribution(self, state: Tensor, depth: int) -> Tensor:
        """The drafter's states (B, T, d) at nodes of one depth -> what it expects after them, (S, T, V)."""
        head = self.drafter.head or self.target.head
        return self._distribution(head(state), self.places[depth:depth + 1])

    def _score(self, draft: Draft, reach: int) -> tuple[Tensor, Tensor]:
        """Target over root and nodes: hidden (B, N+1, d) and distributions (S, N+1, V)."""
        root_slot = (self.prefix + self.position - 1).unsqueeze(1)
        slots = self.slots[:reach]
        bias = (self._seen(self.target_view, slots, root_slot) if draft.view is None
                else self._grown_bias(draft.view, slots - root_slot))
        bias = self._without_padding(bias, self.prefix_valid)
        x = self.target.embed(self._by_row(draft.tokens), self.shift).expand(self.rows, -1, -1)
        hidden, logits = self._target(x, self._by_row(root_slot + draft.depths),
                                      self._by_row(root_slot + self.node_slots), bias)
        return hidden, self._distribution(logits, draft.depths)

    def _target(self, x: Tensor, positions: Tensor, slots: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Hidden states (B, T, d) and logits (B, T, V) of embedded rows x (B, T, d): what mode compile compiles."""
        hidden = self.target(x, positions, self.cache, slots, bias)
        return hidden, self.target.head(hidden)

    def _read(self, tokens: Tensor, hidden: Tensor, positions: Tensor, slots: Tensor, bias: Tensor) -> Tensor:
        """What the drafter predicts after tokens, as Drafter.forward says; compiled as well."""
        return self.drafter(tokens, hidden, positions, self.drafter_cache, slots, bias)

    def _verify(self, p: Tensor, draft: Draft) -> Verdict:
        """A Verdict whose tensors have a leading S."""
        # The children of depth-d nodes are candidates for image position `position + d`.
        noise = self._noise(self.noise.target, self.places)
        if not self.tree.nodes:
            return undrafted(p, noise, self.sampling.greedy)
        if self.relaxation.coupled:
            return self._verify_coupled(p, draft, noise)
        given = (p, draft.q, draft.tokens, self._noise(self.noise.uniform, self.places), noise)

        def judge(p: Tensor, q: Tensor, tokens: Tensor, uniform: Tensor, noise: Tensor) -> Verdict:
            return verify(p, q, tokens, self.buffers_of_tree, self.relaxation, self.neighbours, uniform, noise,
                          self.sampling.greedy)

        if self.pictures > 1:
            return torch.vmap(judge)(*given)
        return Verdict(*(x.unsqueeze(0) for x in judge(*(x.squeeze(0) for x in given))))

    def _verify_coupled(self, p: Tensor, draft: Draft, noise: Tensor) -> Verdict:
        found = verify_coupled(p, draft.tokens, draft.parents, draft.depths, noise, self.neighbours, self.relaxation,
                               self.sampling.greedy)
        chance = draft.chance
        if chance is None:
            chance = draft.q.index_select(1, self.q_row).gather(2, draft.tokens[:, 1:, None]).squeeze(2)
        return Verdict(found.path, found.committed, found.tokens, found.matched, found.matched | found.swapped,
                       chance > 0, chance, found.target, found.mass, found.target)

    def _commit(self, hidden: Tensor, verdict: Verdict) -> None:
        """Move the path's cache rows behind the root, keep what the drafter reads next, advance."""
        root_slot = (self.prefix + self.position - 1).unsqueeze(1)
        if self.tree.nodes:
            path = self._by_row(verdict.path)
            self.cache.move(self._by_row(root_slot) + path, self._by_row(root_slot + self.places))
            self.pending_hidden.copy_(_rows_at(hidden, path))
        self.pending_tokens.copy_(verdict.tokens)
        self.committed.copy_(verdict.committed)
        self.position.add_(verdict.committed * (self.position < self.length))

    def _trace_rows(self, draft: Draft, verdict: Verdict) -> tuple[Tensor, Tensor]:
        grown = (draft.parents,) if self.dynamic else ()
        flags = torch.cat([verdict.strict, verdict.relaxed, verdict.exists], dim=1).long()
        whole = torch.cat([self.position.unsqueeze(1), verdict.committed.unsqueeze(1), verdict.path, verdict.tokens,
                           draft.tokens[:, 1:], flags, *grown], dim=1)
        return whole, torch.cat([verdict.draft, verdict.residual, verdict.mass, verdict.target], dim=1)


def _rows_at(x: Tensor, index: Tensor) -> Tensor:
    """x (B, T, d) and index (B, n), or (1, n) for all rows -> (B, n, d)."""
    return x.gather(1, index.unsqueeze(-1).expand(x.shape[0], -1, x.shape[-1]))


def _row_bans(codes: int) -> Tensor:
    """(2, V): what may not stand within a row of the picture (the row end, the last code), and what not at its end."""
    end = torch.arange(codes) == codes - 1
    return torch.stack([end, ~end])
