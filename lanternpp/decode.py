"""The decoding step, one for every method, and the loop around it.

A step is: catch-up (the drafter reads what the last step committed), expand (one drafter call a level), score (the
target over the tree), verify, commit (accepted cache rows move into place). All shapes are static, the position is a
device tensor and nothing in it waits for the host, so that the same step can run eagerly, compiled or as a CUDA graph.

Letters: B CFG rows, N nodes below the root, D depth, V codes, L image tokens, P prefix rows, M cache slots.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .drafter import Drafter
from .relax import Relaxation
from .sampling import Noise, Sampling, distribution, draw_ranked, guide
from .trace import StepEvent, verdict_letters
from .transformer import Transformer, prefix_mask
from .tree import Tree
from .verify import TreeBuffers, Verdict, verify


class Step(nn.Module):
    """One decoding step with its live state: caches, position, pending tokens and noise, all buffers.

    `pending` are the tokens that the last step committed, padded to D+1, with the hidden state that predicted each.
    """

    def __init__(self, target: Transformer, drafter: Drafter | None, tree: Tree, relaxation: Relaxation,
                 sampling: Sampling, neighbours: Tensor | None = None, guided: bool = True,
                 banned: Tensor | None = None):
        super().__init__()
        if tree.nodes and drafter is None:
            raise ValueError("A draft tree needs a drafter, and this model has none: use the method ar.")
        config, device = target.config, target.device
        self.target, self.drafter, self.tree = target, drafter, tree
        self.relaxation, self.sampling = relaxation, sampling
        self.prefix, self.rows = config.prefix, 2 if guided else 1
        self.length, self.depth = config.image_tokens, tree.depth
        past_end = self.length + 2 * (self.depth + 1)  # a last step may begin at L − 1, one more may overrun the end
        self.buffers_of_tree = TreeBuffers(tree, device)
        self.noise = Noise(past_end, config.codes, self.buffers_of_tree.max_children, device)
        self.cache = target.new_cache(self.rows, config.prefix + past_end + tree.nodes)
        inner = tree.inner
        self.drafter_cache = drafter.new_cache(self.rows, config.prefix + past_end + len(inner)) if tree.nodes else None
        self._levels = [[n for n in inner if tree.depths[n] == d] for d in range(self.depth)]

        def put(name: str, value: Tensor | None) -> None:
            self.register_buffer(name, None if value is None else value.to(device), persistent=False)

        put("neighbours", neighbours)
        put("banned", banned)
        put("position", torch.zeros((), dtype=torch.int64))
        put("committed", torch.ones((), dtype=torch.int64))
        put("pending_tokens", torch.zeros(self.depth + 1, dtype=torch.int64))
        put("pending_hidden", torch.zeros(self.rows, self.depth + 1, config.width, dtype=target.dtype))
        put("shift", torch.zeros(self.rows, 1, config.width, dtype=target.dtype) if config.pooled else None)
        put("places", torch.arange(self.depth + 1))
        put("node_slots", torch.arange(tree.nodes + 1))
        put("inner_slots", torch.arange(len(inner)))
        put("prefix_valid", torch.ones(self.rows, config.prefix, dtype=torch.bool))
        put("target_slots", torch.arange(self.cache.slots))
        put("target_view", _view_table(tree.ancestors()))
        if tree.nodes:
            index = torch.tensor(inner)
            put("drafter_slots", torch.arange(self.drafter_cache.slots))
            put("drafter_view", _view_table(tree.ancestors()[index][:, index]))
            for d, nodes in enumerate(self._levels):
                put(f"level_nodes_{d}", torch.tensor(nodes))
                put(f"level_parents_{d}", torch.tensor([inner.index(max(0, tree.parents[n])) for n in nodes]))
                put(f"level_rows_{d}", torch.tensor([inner.index(n) for n in nodes]))
        self.padded = False

    @torch.no_grad()
    def prefill(self, condition: Tensor, seed: int, valid: Tensor | None = None) -> Tensor:
        """Read the prefix, draw token 0 and reset all state; returns token 0 (1,).

        condition: what the target's prefix module reads, one prompt. valid (1, P) bool marks rows that are not padding.
        """
        self.noise.refill(seed)
        rows = self.target.prefix_rows(condition, guided=self.rows == 2)
        if self.shift is not None:
            self.shift.copy_(self.target.caption_shift(rows))
        count = self.prefix
        positions = torch.arange(count, device=rows.device)
        self.padded = valid is not None and not bool(valid.all())
        self.prefix_valid.fill_(True)
        if self.padded:
            self.prefix_valid.copy_(valid.expand(self.rows, -1))
        mask = torch.zeros(self.rows, 1, count, self.cache.slots, dtype=torch.bool, device=rows.device)
        mask[..., :count] = prefix_mask(self.prefix_valid, "causal" if self.tree.nodes else "self")
        hidden = self.target(rows, positions, self.cache, positions, mask)
        p = self._distribution(self.target.head(hidden[:, -1:]))
        token = (p if self.sampling.greedy else p / self.noise.target[:1]).argmax(-1)
        if self.tree.nodes and count > 1:
            slots = positions[:-1]
            view = slots[:, None] >= self.drafter_slots
            filler = torch.zeros_like(slots)
            self.drafter(filler, hidden[:, :-1], positions[1:], self.drafter_cache, slots, view)
        self.position.fill_(1)
        self.committed.fill_(1)
        self.pending_tokens.zero_()
        self.pending_tokens[:1] = token
        self.pending_hidden.zero_()
        self.pending_hidden[:, :1] = hidden[:, -1:]
        return token

    def forward(self) -> tuple[Tensor, Tensor]:
        """Decode one step; returns the trace row: int64 and float32, laid out as `read_row` reads them."""
        tokens, q = self._draft()
        hidden, p = self._score(tokens)
        # The children of depth-d nodes are candidates for image position `position + d`.
        rows = self.position + self.places
        verdict = verify(p, q, tokens, self.buffers_of_tree, self.relaxation, self.neighbours,
                         self.noise.uniform.index_select(0, rows), self.noise.target.index_select(0, rows),
                         self.sampling.greedy)
        row = self._row(tokens, verdict)
        self._commit(hidden, verdict)
        return row

    def _distribution(self, logits: Tensor) -> Tensor:
        """(B, T, V) logits of all CFG rows to float32 probabilities (T, V)."""
        return distribution(guide(logits, self.sampling.cfg_scale), self.sampling, self.banned)

    def _draft(self) -> tuple[Tensor, Tensor | None]:
        """Node codes (N+1,), root first, and the drafter's distributions (I, V) at nodes with children."""
        last = self.committed - 1
        root = self.pending_tokens.index_select(0, last.unsqueeze(0))
        if not self.tree.nodes:
            return root, None
        tree, first = self.tree, self.position - self.committed
        # Catch-up. Rows past `last` read junk at slots that no query sees before they are written again.
        positions = self.prefix + first + self.places
        view = (positions - 1).unsqueeze(1) >= self.drafter_slots
        predicted = self.drafter(self.pending_tokens, self.pending_hidden, positions, self.drafter_cache,
                                 positions - 1, view)
        predicted = predicted.index_select(1, last.unsqueeze(0))  # (B, 1, d): what the root leads to
        root_slot = self.prefix + self.position - 2
        tokens, distributions, states = root.repeat(tree.nodes + 1), [], predicted
        for d, nodes in enumerate(self._levels):
            if d:
                own = getattr(self, f"level_nodes_{d}")
                at = root_slot + getattr(self, f"level_rows_{d}")
                view = _visible(self.drafter_slots - root_slot, self.drafter_view,
                                getattr(self, f"level_rows_{d}"))
                hidden = states.index_select(1, getattr(self, f"level_parents_{d}"))
                place = (root_slot + 1 + d).expand(len(nodes))
                predicted = self.drafter(tokens.index_select(0, own), hidden, place, self.drafter_cache, at, view)
                states = torch.cat([states, predicted], dim=1)
            q = self._distribution(self.target.head(predicted))
            distributions.append(q)
            noise = self.noise.draft.index_select(0, (self.position + d).unsqueeze(0))
            most = max(len(tree.children[n]) for n in nodes)
            drawn = q.topk(most, dim=-1).indices if self.sampling.greedy else draw_ranked(q, noise, most)
            chosen = torch.cat([drawn[i, : len(tree.children[n])] for i, n in enumerate(nodes)])
            begin = tree.children[nodes[0]][0]
            tokens = torch.cat([tokens[:begin], chosen, tokens[begin + len(chosen):]])
        return tokens, torch.cat(distributions)

    def _score(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Target over root and nodes: hidden (B, N+1, d) and distributions (N+1, V)."""
        root_slot = self.prefix + self.position - 1
        view = _visible(self.target_slots - root_slot, self.target_view, self.node_slots)
        if self.padded:
            seen = torch.nn.functional.pad(self.prefix_valid, (0, self.cache.slots - self.prefix), value=True)
            view = view & seen[:, None, None, :]
        x = self.target.embed(tokens, self.shift).expand(self.rows, -1, -1)
        hidden = self.target(x, root_slot + self.buffers_of_tree.depths, self.cache, root_slot + self.node_slots, view)
        return hidden, self._distribution(self.target.head(hidden))

    def _commit(self, hidden: Tensor, verdict: Verdict) -> None:
        """Move the path's cache rows behind the root, keep what the drafter reads next, advance."""
        root_slot = self.prefix + self.position - 1
        if self.tree.nodes:
            self.cache.move(root_slot + verdict.path, root_slot + self.places)
            self.pending_hidden.copy_(hidden.index_select(1, verdict.path))
        self.pending_tokens.copy_(verdict.tokens)
        self.committed.copy_(verdict.committed)
        self.position.add_(verdict.committed)

    def _row(self, tokens: Tensor, verdict: Verdict) -> tuple[Tensor, Tensor]:
        whole = torch.cat([self.position.unsqueeze(0), verdict.committed.unsqueeze(0), verdict.path, verdict.tokens,
                           tokens[1:], verdict.strict.long(), verdict.relaxed.long(), verdict.exists.long()])
        return whole, torch.cat([verdict.draft, verdict.residual, verdict.mass, verdict.target])


def _view_table(ancestors: Tensor) -> Tensor:
    """(T, S) who sees whom in the tree -> (T, S+2): a first column for everything before, a last for all after."""
    side = torch.ones(len(ancestors), 1, dtype=torch.bool)
    return torch.cat([side, ancestors, ~side], dim=1)


def _visible(relative: Tensor, table: Tensor, rows: Tensor) -> Tensor:
    """Mask (T, M) for tree rows `rows` (T,): relative (M,) is a slot's number counted from the root's slot."""
    column = relative.clamp(-1, table.shape[1] - 2) + 1
    return table.index_select(0, rows).index_select(1, column)


@dataclass(frozen=True)
class Decoder:
    """Runs a Step over a whole picture."""

    step: Step

    def stream(self, condition: Tensor, seed: int, valid: Tensor | None = None) -> Iterator[StepEvent]:
        """Yield the prefill's event, then one event a step, until the picture is full.

        On the CPU a step is read when it ends. Elsewhere the host reads one step late, so that the device never waits;
        the one step that this decodes too many lands in scratch slots and is not reported.
        """
        step, began = self.step, time.perf_counter()
        token = step.prefill(condition, seed, valid)
        yield StepEvent(0, 0, (int(token),), time.perf_counter() - began)
        position, index = 1, 1
        late = step.target.device.type != "cpu"
        waiting: list[tuple] = []
        while position < step.length:
            with torch.inference_mode():
                row = tuple(part.to("cpu", non_blocking=True) for part in step())
            mark = None
            if late:
                mark = torch.cuda.Event()
                mark.record()
            waiting.append((row, mark))
            if late and len(waiting) < 2:
                continue
            (whole, fractions), mark = waiting.pop(0)
            if mark is not None:
                mark.synchronize()
            event = read_row(step, index, whole.tolist(), fractions.tolist(), time.perf_counter() - began)
            position += event.accepted
            index += 1
            yield event

    def generate(self, condition: Tensor, seed: int, valid: Tensor | None = None) -> list[StepEvent]:
        """All events of a picture."""
        return list(self.stream(condition, seed, valid))


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
