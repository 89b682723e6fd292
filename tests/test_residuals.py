"""The law of a token after each kind of residual, against the rules written in plain Python; and what they cost."""

import json

import pytest
import torch
from reference import pooled
from toy import bundle

from lanternpp.pipeline import LanternPipeline
from lanternpp.relax import Relaxation
from lanternpp.training import residuals
from lanternpp.training.residuals import laws

V = 7
RULES = [Relaxation("exact"), Relaxation("lanternpp", 3, 2.0), Relaxation("lantern", 3, 0.2)]


def case(seed: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """p, q (V,) and a table of nearest codes (V, V − 1)."""
    noise = torch.Generator().manual_seed(seed)
    p, q = torch.randn(2, V, generator=noise, dtype=torch.float64).mul(2).softmax(-1)
    nearest = torch.stack([torch.tensor([c for c in torch.randperm(V, generator=noise).tolist() if c != x])
                           for x in range(V)])
    return p, q, nearest


def by_hand(p, q, nearest, rule: Relaxation) -> list[float]:
    """The law when q is freed of the neighbours that the rejected child pooled."""
    out = [0.0] * V
    for x in range(V):
        mass, left = float(p[x]), [float(value) for value in q]
        limit = rule.bound if rule.rule == "lantern" else (rule.bound - 1) * float(p[x])
        total = 0.0
        for code in nearest[x, : rule.k].tolist() if rule.rule != "exact" else []:
            total += float(p[code])
            if total > limit:
                break
            mass += float(p[code])
            left[code] = 0.0
        kept = min(float(q[x]), mass)
        out[x] += kept
        rest = [max(0.0, float(a) - b) for a, b in zip(p, left, strict=True)]
        for y in range(V):
            out[y] += (float(q[x]) - kept) * rest[y] / sum(rest)
    return out


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.rule)
@pytest.mark.parametrize("seed", range(5))
def test_laws(rule, seed):
    p, q, nearest = case(seed)
    acceptance, found = laws(p, q, nearest, rule)
    kept = torch.tensor([min(float(q[x]), float(p[x]) + pooled(p.tolist(), x, nearest[x].tolist(), rule, 1, Ignored()))
                         for x in range(V)])
    assert acceptance == pytest.approx(float(kept.sum()))
    assert found["freed"].tolist() == pytest.approx(by_hand(p, q, nearest, rule))
    assert all(float(law.sum()) == pytest.approx(1) for law in found.values())
    away = {kind: float((law - p).abs().sum()) / 2 for kind, law in found.items()}
    if rule.rule == "exact":
        assert away["strict"] == pytest.approx(0) and away["anew"] > 1e-3
    else:  # nothing comes nearer than what the accepted drafts leave of p
        assert away["strict"] <= min(away["freed"], away["anew"]) + 1e-12
        left = (p - torch.minimum(q, kept)).clamp(min=0)
        assert torch.allclose(found["strict"], kept + (q - kept).sum() * left / left.sum())


class Ignored:
    def compare(self, a: float, b: float) -> None: ...


def test_the_command_reads_real_nodes(monkeypatch, capsys):
    pipe = LanternPipeline(bundle())
    monkeypatch.setattr(LanternPipeline, "from_pretrained", lambda *_: pipe)
    monkeypatch.setattr(residuals, "default_prompts", lambda *_: ["red apple"])
    assert residuals.main(["--prompts", "1", "--every", "2"]) == 0
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert len(table) == 3
    for row in table.values():
        assert row["nodes"] > 2 and row["strict"] <= min(row["freed"], row["anew"]) + 1e-6
        assert 0 < row["acceptance"] <= 1
