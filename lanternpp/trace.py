"""What happened in each step of a run. App, bench, tree search and exports all read this one thing.

Accepted length is the number of tokens that a step commits, the bonus or recovered token included, never counting past
the picture's end; over a run it is (L − 1) / steps, because the prefill commits the first token and is no step.
Step compression is L / target forward passes, the prefill's included.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

SCHEMA = "lanternpp-trace/1"


class TraceError(ValueError):
    """A trace file cannot be read; the message says why."""


@dataclass(frozen=True)
class StepEvent:
    """One step. Rows over drafted nodes (N,) hold node 1 first; the tree is in the trace's header.

    path: the accepted nodes within the picture, root left out. q, p, mass: qᵢ(x), rᵢ(x) and mᵢ(x) of the node, which
    its verdict compared. seconds: when the step ended, since the run began. parents: this step's own tree where trees
    are dynamic. verdicts, a letter a node: a accepted by the strict rule, x only by pooling, r rejected, n not reached,
    z past the picture's end, - not drawn (q = 0).
    """

    index: int
    position: int
    tokens: tuple[int, ...]
    seconds: float
    ending: str = "sampled"
    path: tuple[int, ...] = ()
    drafted: tuple[int, ...] = ()
    q: tuple[float, ...] = ()
    p: tuple[float, ...] = ()
    mass: tuple[float, ...] = ()
    verdicts: str = ""
    outside_top_k: int = 0
    parents: tuple[int, ...] = ()

    @property
    def accepted(self) -> int:
        """Accepted length of the step: tokens committed."""
        return len(self.tokens)


@dataclass
class Trace:
    """Header, events and wall time of one run. seconds: prompt, decode, pixels and total, as far as the run came."""

    header: dict
    events: list[StepEvent] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    run_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])

    @property
    def tokens(self) -> list[int]:
        return [token for event in self.events for token in event.tokens]

    @property
    def steps(self) -> int:
        """Decoding steps, the prefill left out."""
        return max(0, len(self.events) - 1)

    def summary(self) -> dict[str, float | int]:
        tokens, steps = len(self.tokens), self.steps
        decode = self.seconds.get("decode", self.events[-1].seconds if self.events else 0.0)
        return {
            "tokens": tokens,
            "steps": steps,
            "target_passes": len(self.events),
            "accepted_length": (tokens - 1) / steps if steps else 0.0,
            "step_compression": tokens / len(self.events) if self.events else 0.0,
            "decode_seconds": decode,
            "total_seconds": self.seconds.get("total", decode),
            "tokens_per_second": tokens / decode if decode else 0.0,
            "relaxed_only": sum(e.verdicts.count("x") for e in self.events),
            "outside_top_k": sum(e.outside_top_k for e in self.events),
        }

    def accepted_map(self) -> list[int]:
        """For each token of the picture, how many tokens its step committed (raster order, without row ends)."""
        return [event.accepted for event in self.events for _ in pictured(event, self.header)]

    def pooled_places(self) -> list[int]:
        """Places in the picture (from 0, raster order, without row ends) of the tokens that only pooling accepted.

        In a `coupled-relaxed` run these are the swaps: codes that stand in for the target's own draws.
        """
        side = self.header.get("grid")
        row = self.header.get("row_tokens", side)
        places = [divmod(event.position + below, row) for event in self.events
                  for below, node in enumerate(event.path) if event.verdicts[node - 1] == "x"]
        return [line * side + column for line, column in places if column < side]

    def to_json(self) -> str:
        return json.dumps({"schema": SCHEMA, "run_id": self.run_id, "header": self.header, "seconds": self.seconds,
                           "summary": self.summary(), "events": [_slim(asdict(e)) for e in self.events]})

    @classmethod
    def from_json(cls, text: str) -> Trace:
        try:
            raw = json.loads(text)
            if raw["schema"] != SCHEMA:
                raise TraceError(f"This trace has schema {raw['schema']!r}; {SCHEMA!r} is read here.")
            events = [StepEvent(**{k: tuple(v) if isinstance(v, list) else v for k, v in e.items()})
                      for e in raw["events"]]
            return cls(raw["header"], events, raw["seconds"], raw["run_id"])
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise TraceError(f"This is not a trace of this program: {error}.") from error

    def save(self, path: str | Path) -> None:
        Path(path).write_text(self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        return cls.from_json(Path(path).read_text())


def pictured(event: StepEvent, about: Mapping[str, object]) -> list[int]:
    """The codes that a step painted: its tokens without row ends, which some models put after each row of the picture.

    about: a trace's header or what a pipeline says of itself; its `row_tokens` is one more than `grid` in such a model.
    """
    side = about.get("grid")
    row = about.get("row_tokens", side)
    if row == side:
        return list(event.tokens)
    return [token for place, token in enumerate(event.tokens, event.position) if place % row < side]


def _slim(event: dict) -> dict:
    """Six significant digits are more than float32 measurements and probabilities hold."""
    return {k: [float(f"{x:.6g}") for x in v] if k in ("q", "p", "mass") else round(v, 6) if k == "seconds" else v
            for k, v in event.items()}


def verdict_letters(parents: tuple[int, ...], ranks: tuple[int, ...], path: list[int], strict: list[bool],
                    relaxed: list[bool], exists: list[bool], order: str, room: list[bool]) -> str:
    """A letter for each drafted node from what was judged.

    path holds the accepted nodes, root first. room says which nodes lie inside the picture.
    """
    taken = set(path[1:])
    chosen_rank = {parents[n]: ranks[n] for n in taken}
    on_path = set(path)
    letters = []
    for node in range(1, len(parents)):
        i, parent = node - 1, parents[node]
        if not room[i]:
            letters.append("z")
        elif node in taken:  # before what follows: the target may draw a coupled draft to which q gave nothing
            letters.append("a" if strict[i] else "x")
        elif not exists[i]:
            letters.append("-")
        elif parent not in on_path:
            letters.append("n")
        else:
            # After the chosen sibling nothing was tested, save that strict-first asks all siblings for the strict rule
            # before it takes one by pooling, and that coupled drafts are all compared with the target's draw.
            rank = chosen_rank.get(parent)
            pooled = rank is not None and any(
                parents[n] == parent and relaxed[n - 1] and not strict[n - 1] for n in taken)
            tested = (rank is None or ranks[node] < rank or order == "coupled"
                      or (order == "strict-first" and pooled))
            letters.append("r" if tested else "n")
    return "".join(letters)
