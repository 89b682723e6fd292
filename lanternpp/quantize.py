"""An int8 copy of a drafter for CPUs without bfloat16 instructions, where a draft level is bound by reading weights.

Whatever the drafter proposes, verification corrects: rounding its weights cannot change what is sampled, only how often
a draft is accepted. The target is never rounded.
"""

from __future__ import annotations

import copy
import warnings

import torch
from torch import Tensor, nn

from .drafter import Drafter


class Int8Linear(nn.Module):
    """x (…, in) -> (…, out), float32; weights are int8 with a scale per output, activations are rounded on the fly."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        weight = linear.weight.detach().float()
        scale = (weight.abs().amax(1).clamp(min=1e-8) / 127).double()
        with warnings.catch_warnings():  # quantised tensors will leave torch one day; until then only these pack fast
            warnings.simplefilter("ignore", UserWarning)
            zeros = torch.zeros_like(scale, dtype=torch.int64)
            rounded = torch.quantize_per_channel(weight, scale, zeros, 0, torch.qint8)
        bias = None if linear.bias is None else linear.bias.detach().float()
        self.packed = torch.ops.quantized.linear_prepack(rounded, bias)

    def forward(self, x: Tensor) -> Tensor:
        # A reduced range keeps the 16-bit sums of AVX2's byte products from saturating.
        return torch.ops.quantized.linear_dynamic(x, self.packed, reduce_range=True)


def int8_drafter(drafter: Drafter, head: nn.Linear) -> Drafter | None:
    """A copy of a float32 drafter whose matrices, and the target's head that it shares, are int8; None where this build
    of torch cannot."""
    small = copy.deepcopy(drafter)
    small.head = head
    try:
        for module in list(small.modules()):
            for name, child in module.named_children():
                if isinstance(child, nn.Linear):
                    setattr(module, name, Int8Linear(child))
    except (AttributeError, RuntimeError):
        return None
    return small
