"""Two gates that prove, without a GPU, that a decoding step never waits for the host."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode


def fake_gate(make) -> None:
    """Run a step on tensors that have shapes but no values: whatever needs a value on the host raises.

    Once in fake mode without symbolic shapes, and once on the meta device, from which nothing can be copied to the
    host. `make(device)` builds the step.
    """
    with FakeTensorMode(shape_env=None), torch.no_grad():
        make(torch.device("cpu"))()
    with torch.no_grad():
        make(torch.device("meta"))()


def export_gate(step: torch.nn.Module, mutated: set[str]) -> None:
    """Export the step: no lifted constants (each would be copied from the host), no indexing by a boolean mask (its
    size is only known on the host), no scalar read, and just the expected buffers mutated."""
    program = torch.export.export(step, (), strict=False).run_decompositions({})
    signature = program.graph_signature
    assert not signature.lifted_tensor_constants, signature.lifted_tensor_constants
    lifted = set(program.constants) - {name for name, _ in step.named_buffers()}
    assert not lifted, lifted
    changed = set(signature.buffers_to_mutate.values())
    assert changed == mutated, changed ^ mutated
    for node in program.graph.nodes:
        if node.op != "call_function":
            continue
        name = str(node.target)
        assert "_local_scalar_dense" not in name and "nonzero" not in name and "masked_select" not in name, name
        if "aten.index" in name:
            for index in torch.utils._pytree.tree_leaves([a for a in node.args[1:]]):
                value = getattr(index, "meta", {}).get("val")
                assert value is None or value.dtype != torch.bool, f"{name} with a boolean mask"
