"""What a finished run's verdicts compared: the run is decoded once more, outside of any timed run, by a step that keeps
what it saw, and must give the same tokens again. `whatif` then judges a node anew under another relaxation.

    trace = pipe("red apple, 3d", seed=7).trace
    detail = run(inspect(pipe, trace)); detail.save("apple.npz")
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from . import vq
from .decode import Decoder
from .relax import Relaxation
from .sampling import guide
from .settings import METHODS, Settings
from .step import Draft, Step
from .trace import StepEvent, Trace
from .verify import Verdict

LISTED = 64  # nearest codes of which the ids are kept
LIKELIEST = 8  # codes that a place's distribution is shown by
WINDOW = 5  # codes a side that are decoded to paint a drafted code in its place


class DetailError(ValueError):
    """A run cannot be looked into; the message says why."""


@dataclass(frozen=True)
class Detail:
    """Arrays of one run. T events (row 0 is the prefill), N drafted nodes, L tokens. Probabilities are the target's,
    after CFG, temperature, top-k and top-p, unless said otherwise. numpy, float32 where no other type is named.

    A node's cumulative sums of the neighbours' rᵢ in order of distance, as `verify` adds them up, are kept sparsely:
    for node j of event t (row t·N + j), `place[first[row]:first[row + 1]]` are the neighbours' numbers (from 1) at
    which the sum changes, `total` the sums there.
    """

    uniform: np.ndarray  # (T, N) the uniform number that judges the node
    draft: np.ndarray  # (T, N) qᵢ(x)
    residual: np.ndarray  # (T, N) rᵢ(x)
    target: np.ndarray  # (T, N) p(x)
    other: np.ndarray  # (T, N) the largest rᵢ(y), y ≠ x: what greedy decoding compares with
    first: np.ndarray  # (T·N + 1,) int32
    place: np.ndarray  # (·,) uint16
    total: np.ndarray  # (·,)
    codes: np.ndarray  # (C,) int32: every drafted code once, rising
    nearest: np.ndarray  # (C, 64) int32: their nearest codes
    entropy: np.ndarray  # (L,) bits
    plain_entropy: np.ndarray  # (L,) bits, of the softmax without guidance, temperature and filters
    top1: np.ndarray  # (L,) the largest probability
    likeliest: np.ndarray  # (L, 8) int32: the most probable codes
    likeliest_p: np.ndarray  # (L, 8)
    interchangeable: np.ndarray  # (L,) 2^entropy of p over the painted token and its k nearest, k that of the run
    agreement: np.ndarray  # (L,) Σ min(p, q); NaN where nothing was drafted
    patches: np.ndarray  # (T, N, s, s, 3) uint8: what the node would paint, in the finished picture

    def thinned(self, relaxation: Relaxation, depths: tuple[int, ...], share: float = 1e-3) -> Detail:
        """A smaller copy for a file: sums that grew by less than `share` since the last kept one are left out.

        Those that the run's own relaxation stops at are kept, so that its own masses stay exact; depths are the tree's.
        """
        keep = np.zeros(len(self.place), bool)
        nodes = self.uniform.shape[1]
        for row in range(len(self.first) - 1):
            start, end = self.first[row], self.first[row + 1]
            last = 0.0
            for i in range(start, end):
                if self.total[i] - last > share * self.total[i]:
                    keep[i], last = True, self.total[i]
            if end > start and not relaxation.strict:
                depth = torch.tensor([depths[row % nodes + 1]])
                bound = relaxation.limit(torch.from_numpy(self.residual.reshape(-1)[row:row + 1]), depth).numpy()[0]
                fits = int(((self.place[start:end] <= relaxation.k) & (self.total[start:end] <= bound)).sum())
                keep[start + max(0, fits - 1)] = keep[min(end - 1, start + fits)] = True
        first = np.concatenate([[0], np.cumsum(keep)])[self.first].astype(np.int32)
        return replace(self, first=first, place=self.place[keep], total=self.total[keep])

    def save(self, path: str | Path) -> None:
        np.savez_compressed(path, **{field.name: getattr(self, field.name) for field in fields(self)})

    @classmethod
    def load(cls, path: str | Path) -> Detail:
        """Raises DetailError where the file cannot be read."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                return cls(**{field.name: arrays[field.name] for field in fields(cls)})
        except (OSError, KeyError, ValueError, TypeError) as error:
            raise DetailError(f"{Path(path).name} does not hold a run's detail: {error}.") from error

    def sums(self, event: int, node: int) -> tuple[np.ndarray, np.ndarray]:
        """place and total of a node, counted from 1."""
        row = event * self.uniform.shape[1] + node - 1
        part = slice(self.first[row], self.first[row + 1])
        return self.place[part], self.total[part]


def whatif(detail: Detail, event: int, node: int, relaxation: Relaxation, depth: int,
           greedy: bool = False) -> tuple[str, float, int]:
    """The verdict of a node, were it tested under `relaxation`: letter, relaxed mass and number of pooled neighbours.

    Exactly what `verify` decides for the node alone, whatever its siblings got: a (strict), x (only by pooling),
    r (rejected), - (never drawn). node counts from 1, depth is its depth in the tree. The number is that of all
    neighbours that fit, those of probability 0 among them. assets/inspector.js holds the same in JavaScript.
    """
    q, r, u, other = (getattr(detail, name)[event, node - 1] for name in ("draft", "residual", "uniform", "other"))
    place, total = detail.sums(event, node)
    fits = pooled = 0
    if not relaxation.strict:
        bound = relaxation.limit(torch.tensor([r]), torch.tensor([depth])).numpy()[0]
        fits = int(((place <= relaxation.k) & (total <= bound)).sum())
        # Between two places the sum stands still: what lies before the one that is too much fits as well.
        pooled = min(relaxation.k, int(place[fits]) - 1) if fits < len(place) else relaxation.k
    mass = r + total[fits - 1] if fits else r
    if greedy:
        strict, relaxed = r > other, mass > r and mass >= other
    else:
        strict, relaxed = u * q <= r and r > 0, u * q <= mass and mass > 0
    return "-" if q <= 0 else "a" if strict else "x" if relaxed else "r", float(mass), pooled


class Recorder(Step):
    """A step that keeps the distributions which its verdicts compared."""

    def _distribution(self, logits: Tensor, depths: Tensor | None = None) -> Tensor:
        self.logits, self.p = logits, super()._distribution(logits, depths)  # the target's come last
        return self.p

    def _verify(self, p: Tensor, draft: Draft) -> Verdict:
        self.at, self.q, self.tokens = int(self.position[0]), draft.q, draft.tokens
        return super()._verify(p, draft)


@torch.no_grad()
def inspect(pipe, trace: Trace) -> Iterator[StepEvent]:
    """Decode a finished run again, yielding its events; the generator's return value is its Detail.

    `pipe` is a LanternPipeline with the model of the run. Raises DetailError where the run does not come out the same:
    another device, dtype, number of threads or version may round differently and flip a near tie.
    """
    settings = Settings.checked(pipe.bundle.defaults, **trace.header["settings"])
    if settings.relaxation.coupled:
        raise DetailError(f"{METHODS[settings.method]} judges drafts by the target's own draw, not by ratios that "
                          "could be shown here: inspect a run of another method.")
    step, condition, valid = pipe.prepare(settings, kind=Recorder)
    events = Decoder(step).stream(condition, settings.seed, valid)
    parts, done = [], torch.tensor(trace.tokens)
    for event, known in zip(events, trace.events, strict=False):
        if event.tokens != known.tokens or event.drafted != known.drafted:
            made, here = (f"{h['device']}, {h['dtype']}" for h in (trace.header, pipe.describe()))
            raise DetailError(f"Decoding this run again gave other tokens from step {event.index} on (it was made on "
                              f"{made}; here: {here}). Decode it here first: press Generate.")
        parts.append(_look(pipe, step, settings, event) | {"patches": _paint(pipe, settings, event, done)})
        yield event
    by_node = [part["nodes"] for part in parts]
    rows = {name: np.stack([part[name] for part in by_node])
            for name in ("uniform", "draft", "residual", "target", "other")}
    sums = [row for part in by_node for row in part["sums"]]
    by_place = {name: np.concatenate([part[name] for part in parts])[: len(trace.tokens)]
                for name in ("entropy", "plain_entropy", "top1", "likeliest", "likeliest_p", "interchangeable",
                             "agreement")}
    codes = np.unique(np.array([event.drafted for event in trace.events if event.drafted], dtype=np.int32))
    nearest = pipe.neighbours[:, :LISTED].cpu().numpy().astype(np.int32)[codes]
    return Detail(**rows, **by_place, codes=codes, nearest=nearest,
                  first=np.cumsum([0, *(len(place) for place, _ in sums)]).astype(np.int32),
                  place=np.concatenate([np.zeros(0, np.uint16), *(place for place, _ in sums)]),
                  total=np.concatenate([np.zeros(0, np.float32), *(total for _, total in sums)]),
                  patches=np.stack([part["patches"] for part in parts]))


def _look(pipe, step: Recorder, settings: Settings, event: StepEvent) -> dict:
    """One event's rows: of every node, and of the places that its tokens fill."""
    first = event.index == 0
    nodes = settings.tree.nodes if not first else 0
    # The nodes whose distributions predicted the tokens: root, accepted drafts.
    path = torch.tensor([0, *event.path][: len(event.tokens)], device=step.p.device)
    p, logits = (step.p[0], step.logits[:1]) if not first else (step.p[0, -1:], step.logits[:1, -1:])
    p = p.index_select(0, path)
    plain = guide(logits, 1.0).squeeze(0).index_select(0, path).softmax(-1)
    best = p.topk(LIKELIEST, dim=-1)
    tokens = torch.tensor(event.tokens, device=p.device).unsqueeze(1)
    ball = torch.cat([tokens, pipe.neighbours[tokens.squeeze(1), : settings.k]], dim=1)
    near = p.gather(1, ball)
    agreement = np.full(len(event.tokens), np.nan, np.float32)
    if nodes:
        inner = settings.tree.inner
        for i, node in enumerate(path.tolist()):
            if node in inner:
                agreement[i] = torch.minimum(p[i], step.q[0, inner.index(node)]).sum().item()
    out = {"entropy": _bits(p), "plain_entropy": _bits(plain), "top1": best.values[:, 0],
           "likeliest": best.indices.int(), "likeliest_p": best.values,
           "interchangeable": 2 ** _bits(near / near.sum(-1, keepdim=True).clamp(min=1e-30))}
    return {name: value.cpu().numpy() for name, value in out.items()} | {
        "agreement": agreement, "nodes": _judge(pipe, step, settings, nodes)}


def _judge(pipe, step: Recorder, settings: Settings, nodes: int) -> dict:
    """What every node's verdict compared, sibling after sibling as `verify` goes."""
    tree, width = settings.tree, settings.tree.nodes
    rows = {name: np.zeros(width, np.float32) for name in ("uniform", "draft", "residual", "target", "other")}
    sums = [(np.zeros(0, np.uint16), np.zeros(0, np.float32))] * width
    for row, parent in enumerate(tree.inner if nodes else ()):
        r = p = step.p[0, parent]
        q = step.q[0, row]
        for rank, node in enumerate(tree.children[parent]):
            x = step.tokens[0, node].view(1)
            near = r[pipe.neighbours[x[0]]].cumsum(-1).cpu().numpy()
            at = np.flatnonzero(np.diff(near, prepend=np.float32(0)))
            sums[node - 1] = ((at + 1).astype(np.uint16), near[at])
            uniform = step.noise.uniform[0, step.at + tree.depths[parent], rank]
            values = (uniform, q[x], r[x], p[x], r.scatter(0, x, -1.0).amax())
            for name, value in zip(rows, values, strict=True):
                rows[name][node - 1] = float(value)
            if not step.sampling.greedy:
                r, q = _reject(r, q, x)
    return rows | {"sums": sums}


def _reject(r: Tensor, q: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """rᵢ₊₁ and qᵢ₊₁ (V,) after the rejection of child x (1,), as in `verify`, for a single parent."""
    reduced, rest = (r - q).clamp(min=0), q.scatter(0, x, 0.0)
    usable = bool(q[x] > 0) and bool(reduced.sum() > 0)
    return reduced / reduced.sum() if usable else r, rest / rest.sum() if rest.sum() > 0 else rest


def _bits(p: Tensor) -> Tensor:
    """Entropy in bits: (…, V) -> (…)."""
    return -torch.special.xlogy(p, p).sum(-1) / np.log(2)


def _paint(pipe, settings: Settings, event: StepEvent, done: Tensor) -> np.ndarray:
    """What every node would paint (N, s, s, 3): the finished picture with it and its ancestors in their places.

    A window of 5 × 5 codes is decoded, not the picture: but for the decoder's norms, pixels depend on no more.
    """
    tree, size = settings.tree, pipe.bundle.tokenizer.config.pixels_per_code
    grid = pipe.bundle.target.config.grid
    side = min(WINDOW, grid)
    out = np.zeros((tree.nodes, size, size, 3), np.uint8)
    windows, wanted = [], []
    for node in range(1, len(event.drafted) + 1):
        place = event.position + tree.depths[node] - 1
        if place >= len(done):
            continue
        picture, walk = done.clone(), node
        while walk > 0:
            picture[event.position + tree.depths[walk] - 1] = event.drafted[walk - 1]
            walk = tree.parents[walk]
        top, left = (min(max(0, at - side // 2), grid - side) for at in divmod(place, grid))
        windows.append(picture.view(grid, grid)[top:top + side, left:left + side].flatten())
        wanted.append((node - 1, place // grid - top, place % grid - left))
    if windows:
        pixels = pipe.bundle.tokenizer.decode(torch.stack(windows).to(pipe.bundle.target.device), (side, side))
        for image, (node, y, x) in zip(vq.to_pil(pixels), wanted, strict=True):
            out[node] = np.asarray(image)[y * size:(y + 1) * size, x * size:(x + 1) * size]
    return out
