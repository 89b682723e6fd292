"""The decoding step, one for every method, and the loop around it.

A step is: catch-up (the drafter reads what the last step committed), expand (one drafter call a level), score (the
target over the tree), verify, commit (accepted cache rows move into place). All shapes are static, the positions are
device tensors and nothing in it waits for the host, so that the same step can run eagerly, compiled or as a CUDA graph.
Several pictures may be decoded side by side, each at its own position.

Letters: S pictures, B rows (S, or 2S with CFG: conditional rows first), N nodes below the root, D depth, V codes,
L image tokens, P prefix rows, M cache slots.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .drafter import Drafter
from .relax import Relaxation
from .sampling import Noise, Sampling, distribution, draw_ranked, guide
from .trace import StepEvent, verdict_letters
from .transformer import Transformer, prefix_mask
from .tree import Tree
from .verify import TreeBuffers, Verdict, undrafted, verify


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
        self.noise = Noise(pictures, past_end, config.codes, self.buffers_of_tree.max_children, device)
        self.cache = target.new_cache(self.rows, config.prefix + past_end + tree.nodes)
        inner = tree.inner
        self.drafter_cache = drafter.new_cache(self.rows, config.prefix + past_end + len(inner)) if tree.nodes else None
        self._levels = [[n for n in inner if tree.depths[n] == d] for d in range(self.depth)]

        def put(name: str, value: Tensor | None) -> None:
            self.register_buffer(name, None if value is None else value.to(device), persistent=False)

        put("neighbours", None if neighbours is None else neighbours[:, : relaxation.k].contiguous())
        put("banned", banned)
        put("position", torch.zeros(pictures, dtype=torch.int64))
        put("committed", torch.ones(pictures, dtype=torch.int64))
        put("pending_tokens", torch.zeros(pictures, self.depth + 1, dtype=torch.int64))
        put("pending_hidden", torch.zeros(self.rows, self.depth + 1, config.width, dtype=target.dtype))
        put("shift", torch.zeros(self.rows, 1, config.width, dtype=target.dtype) if config.pooled else None)
        put("places", torch.arange(self.depth + 1))
        put("picture", torch.arange(pictures).unsqueeze(1))
        put("row", torch.arange(self.rows).unsqueeze(1))
        put("node_slots", torch.arange(tree.nodes + 1))
        put("prefix_valid", torch.ones(self.rows, config.prefix, dtype=torch.bool))
        put("slots", torch.arange(self.cache.slots))
        put("target_view", _view_table(tree.ancestors()))
        if tree.nodes:
            index = torch.tensor(inner)
            put("drafter_view", _view_table(tree.ancestors()[index][:, index]))
            for d, nodes in enumerate(self._levels):
                put(f"level_nodes_{d}", torch.tensor(nodes))
                put(f"level_parents_{d}", torch.tensor([inner.index(max(0, tree.parents[n])) for n in nodes]))
                put(f"level_rows_{d}", torch.tensor([inner.index(n) for n in nodes]))
        self.padded = False

    def reach(self, position: int) -> int:
        """How many cache slots a step may have to see whose pictures all stand at or before `position`.

        In multiples of 32, so that a graph or a compiled step of each size can be kept.
        """
        return min(self.cache.slots, -(-(self.prefix + position + self.tree.nodes + self.depth + 1) // 32) * 32)

    @torch.no_grad()
    def prefill(self, condition: Tensor, seeds: Sequence[int], valid: Tensor | None = None) -> Tensor:
        """Read the prefixes, draw token 0 of each picture and reset all state; returns the tokens (S,).

        condition: what the target's prefix module reads, S prompts. valid (S, P) bool marks rows that are not padding.
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
            self.prefix_valid.copy_(self._by_row(valid))
        mask = prefix_mask(self.prefix_valid, "causal" if self.tree.nodes else "self")
        hidden = self.target(rows, positions, self.cache, positions, mask)
        p = self._distribution(self.target.head(hidden[:, -1:])).squeeze(1)
        token = (p if self.sampling.greedy else p / self.noise.target[:, 0]).argmax(-1)
        if self.tree.nodes and count > 1:
            slots = positions[:-1]
            filler = torch.zeros_like(slots).unsqueeze(0)
            self.drafter(filler, hidden[:, :-1], positions[1:], self.drafter_cache, slots, slots[:, None] >= slots)
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
        tokens, q = self._draft(reach)
        hidden, p = self._score(tokens, reach)
        verdict = self._verify(p, q, tokens)
        rows = self._trace_rows(tokens, verdict)
        self._commit(hidden, verdict)
        return rows

    def _by_row(self, x: Tensor) -> Tensor:
        """What is said of each picture (S, …), said of each row (B, …). One picture's rows share it by broadcasting."""
        return x if self.pictures == 1 or self.rows == self.pictures else torch.cat([x, x])

    def _distribution(self, logits: Tensor) -> Tensor:
        """(B, T, V) logits of all rows to float32 probabilities (S, T, V)."""
        return distribution(guide(logits, self.sampling.cfg_scale, self.pictures), self.sampling, self.banned)

    def _noise(self, stream: Tensor, places: Tensor) -> Tensor:
        """Rows of a noise stream (S, L, …) at each picture's position + places (n,): (S, n, …)."""
        return stream[self.picture, self.position.unsqueeze(1) + places]

    def _bias(self, view: Tensor) -> Tensor:
        """Who sees whom (S, T, M) as what attention adds to its scores, (S or B, 1, T, M)."""
        bias = torch.zeros_like(view, dtype=self.target.dtype).masked_fill(~view, float("-inf"))
        return self._by_row(bias.unsqueeze(1))

    def _draft(self, reach: int) -> tuple[Tensor, Tensor | None]:
        """Node codes (S, N+1), root first, and the drafter's distributions (S, I, V) at nodes with children."""
        last = self.committed.unsqueeze(1) - 1
        root = self.pending_tokens.gather(1, last)
        if not self.tree.nodes:
            return root, None
        head = self.drafter.head or self.target.head
        tree, slots = self.tree, self.slots[: min(reach, self.drafter_cache.slots)]
        # Catch-up. Rows past `last` read junk at slots that no query sees before they are written again.
        places = self.prefix + (self.position - self.committed).unsqueeze(1) + self.places
        view = (places - 1).unsqueeze(2) >= slots
        predicted = self.drafter(self._by_row(self.pending_tokens), self.pending_hidden, self._by_row(places),
                                 self.drafter_cache, self._by_row(places - 1), self._bias(view))
        predicted = _rows_at(predicted, self._by_row(last))  # (B, 1, d): what the root leads to
        root_slot = (self.prefix + self.position - 2).unsqueeze(1)
        tokens, distributions, states = [root], [], predicted
        for d, nodes in enumerate(self._levels):
            if d:
                own, level = getattr(self, f"level_nodes_{d}"), getattr(self, f"level_rows_{d}")
                view = _visible(slots - root_slot, self.drafter_view, level)
                hidden = states.index_select(1, getattr(self, f"level_parents_{d}"))
                place = (root_slot + 1 + d).expand(-1, len(nodes))
                predicted = self.drafter(self._by_row(torch.cat(tokens, 1).index_select(1, own)), hidden,
                                         self._by_row(place), self.drafter_cache, self._by_row(root_slot + level),
                                         self._bias(view))
                states = torch.cat([states, predicted], dim=1)
            q = self._distribution(head(predicted))
            distributions.append(q)
            most = max(len(tree.children[n]) for n in nodes)
            drawn = (q.topk(most, dim=-1).indices if self.sampling.greedy else
                     draw_ranked(q, self._noise(self.noise.draft, self.places[d:d + 1]), most))
            tokens += [drawn[:, i, : len(tree.children[n])] for i, n in enumerate(nodes)]
        return torch.cat(tokens, 1), torch.cat(distributions, 1)

    def _score(self, tokens: Tensor, reach: int) -> tuple[Tensor, Tensor]:
        """Target over root and nodes: hidden (B, N+1, d) and distributions (S, N+1, V)."""
        slots = self.slots[:reach]
        root_slot = (self.prefix + self.position - 1).unsqueeze(1)
        bias = self._bias(_visible(slots - root_slot, self.target_view, self.node_slots))
        if self.padded:
            seen = torch.nn.functional.pad(self.prefix_valid, (0, reach - self.prefix), value=True)
            bias = bias.masked_fill(~seen[:, None, None, :], float("-inf"))
        x = self.target.embed(self._by_row(tokens), self.shift).expand(self.rows, -1, -1)
        hidden = self.target(x, self._by_row(root_slot + self.buffers_of_tree.depths), self.cache,
                             self._by_row(root_slot + self.node_slots), bias)
        return hidden, self._distribution(self.target.head(hidden))

    def _verify(self, p: Tensor, q: Tensor | None, tokens: Tensor) -> Verdict:
        """A Verdict whose tensors have a leading S."""
        # The children of depth-d nodes are candidates for image position `position + d`.
        noise = self._noise(self.noise.target, self.places)
        if q is None:
            return undrafted(p, noise, self.sampling.greedy)
        given = (p, q, tokens, self._noise(self.noise.uniform, self.places), noise)

        def judge(p: Tensor, q: Tensor, tokens: Tensor, uniform: Tensor, noise: Tensor) -> Verdict:
            return verify(p, q, tokens, self.buffers_of_tree, self.relaxation, self.neighbours, uniform, noise,
                          self.sampling.greedy)

        if self.pictures > 1:
            return torch.vmap(judge)(*given)
        return Verdict(*(x.unsqueeze(0) for x in judge(*(x.squeeze(0) for x in given))))

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

    def _trace_rows(self, tokens: Tensor, verdict: Verdict) -> tuple[Tensor, Tensor]:
        whole = torch.cat([self.position.unsqueeze(1), verdict.committed.unsqueeze(1), verdict.path, verdict.tokens,
                           tokens[:, 1:], verdict.strict.long(), verdict.relaxed.long(), verdict.exists.long()], dim=1)
        return whole, torch.cat([verdict.draft, verdict.residual, verdict.mass, verdict.target], dim=1)


def _rows_at(x: Tensor, index: Tensor) -> Tensor:
    """x (B, T, d) and index (B, n), or (1, n) for all rows -> (B, n, d)."""
    return x.gather(1, index.unsqueeze(-1).expand(x.shape[0], -1, x.shape[-1]))


def _view_table(ancestors: Tensor) -> Tensor:
    """(T, S) who sees whom in the tree -> (T, S+2): a first column for everything before, a last for all after."""
    side = torch.ones(len(ancestors), 1, dtype=torch.bool)
    return torch.cat([side, ancestors, ~side], dim=1)


def _visible(relative: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Mask (S, T, M) for tree rows `rows` (T,): relative (S, M) is a slot's number counted from the root's slot."""
    column = relative.clamp(-1, table.shape[1] - 2) + 1
    return table.index_select(0, rows)[:, column].transpose(0, 1)


@dataclass(frozen=True)
class Decoder:
    """Runs a Step over whole pictures."""

    step: Step

    def stream(self, condition: Tensor, seed: int, valid: Tensor | None = None) -> Iterator[StepEvent]:
        """Yield one picture's events as they happen: the prefill's, then one a step, until the picture is full."""
        for _, event in self.stream_many(condition, [seed], valid):
            yield event

    def stream_many(self, condition: Tensor, seeds: Sequence[int],
                    valid: Tensor | None = None) -> Iterator[tuple[int, StepEvent]]:
        """Yield (picture, event) of S pictures decoded side by side; a picture's events come in order.

        On the CPU a step is read when it ends. Elsewhere the host reads one step late, so that the device never waits;
        the one step that this decodes too many lands in scratch slots and is not reported.
        """
        step, began = self.step, time.perf_counter()
        tokens = step.prefill(condition, seeds, valid).tolist()
        spent = time.perf_counter() - began
        for picture, token in enumerate(tokens):
            yield picture, StepEvent(0, 0, (token,), spent)
        positions, indices = [1] * step.pictures, [1] * step.pictures
        late = step.target.device.type != "cpu"
        waiting: list[tuple] = []
        while min(positions) < step.length:
            ahead = (len(waiting) + 1) * (step.depth + 1) if late else 0
            with torch.inference_mode():
                rows = tuple(part.to("cpu", non_blocking=True) for part in step(step.reach(max(positions) + ahead)))
            mark = None
            if late:
                mark = torch.cuda.Event()
                mark.record()
            waiting.append((rows, mark))
            if late and len(waiting) < 2:
                continue
            (whole, fractions), mark = waiting.pop(0)
            if mark is not None:
                mark.synchronize()
            spent = time.perf_counter() - began
            for picture, row in enumerate(zip(whole.tolist(), fractions.tolist(), strict=True)):
                if positions[picture] < step.length:
                    event = read_row(step, indices[picture], *row, spent)
                    positions[picture] += event.accepted
                    indices[picture] += 1
                    yield picture, event

    def generate(self, condition: Tensor, seed: int, valid: Tensor | None = None) -> list[StepEvent]:
        """All events of a picture."""
        return list(self.stream(condition, seed, valid))

    def generate_many(self, condition: Tensor, seeds: Sequence[int],
                      valid: Tensor | None = None) -> list[list[StepEvent]]:
        """All events of S pictures."""
        events: list[list[StepEvent]] = [[] for _ in seeds]
        for picture, event in self.stream_many(condition, seeds, valid):
            events[picture].append(event)
        return events


def read_row(step: Step, index: int, whole: list[int], fractions: list[float], seconds: float) -> StepEvent:
    """A StepEvent from a trace row; tokens past the picture's end are cut off."""
    tree, n, d = step.tree, step.tree.nodes, step.depth + 1
    position, committed = whole[:2]
    cuts = [2, d, d, n, n, n, n]
    starts = [sum(cuts[: i + 1]) for i in range(len(cuts))]
    path, tokens, drafted, strict, relaxed, exists = (whole[a:a + size] for a, size in
                                                      zip(starts, cuts[1:], strict=False))
    q, residual, mass, target = (fractions[i * n:(i + 1) * n] for i in range(4))
    room = [position + tree.depths[node] <= step.length for node in range(1, n + 1)]
    tokens = tokens[:committed][: step.length - position]
    path = path[:committed]
    kept = path[1:][: len(tokens)]
    letters = verdict_letters(tree.parents, tree.ranks, path, [bool(x) for x in strict], [bool(x) for x in relaxed],
                              [bool(x) for x in exists], step.relaxation.order, room)
    if len(tokens) < committed:
        ending = "end"
    elif not n:
        ending = "sampled"
    else:
        ending = "recovered" if tree.children[path[-1]] else "bonus"
    return StepEvent(index, position, tuple(tokens), seconds, ending, tuple(kept), tuple(drafted), tuple(q),
                     tuple(residual), tuple(mass), letters, sum(target[node - 1] == 0 for node in kept))
