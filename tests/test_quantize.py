"""The int8 drafter: close to the drafter that it copies, and harmless to what is sampled."""

import pytest
import torch
from toy import SHAPE, drafter, target

from lanternpp.decode import Decoder, Step
from lanternpp.quantize import Int8Linear, int8_drafter
from lanternpp.relax import Relaxation
from lanternpp.sampling import Sampling
from lanternpp.tree import PRESETS

MODEL = target()
SMALL = drafter(MODEL)
INT8 = int8_drafter(SMALL, MODEL.head)
pytestmark = pytest.mark.skipif(INT8 is None, reason="this build of torch has no int8 matrices")


def test_layer_against_its_definition():
    linear = torch.nn.Linear(48, 20)
    x = torch.randn(3, 5, 48)
    scale = linear.weight.abs().amax(1, keepdim=True) / 127
    rounded = torch.nn.functional.linear(x, (linear.weight / scale).round() * scale, linear.bias)
    step = (x.amax() - x.amin()) / 127  # activations have 7 bits
    bound = 0.5 * step * linear.weight.abs().sum(1).max()
    assert (Int8Linear(linear)(x) - rounded).abs().max() < bound


def test_copy_leaves_the_original_alone_and_stays_close():
    assert isinstance(SMALL.fuse, torch.nn.Linear) and SMALL.head is None and isinstance(MODEL.head, torch.nn.Linear)
    codes, hidden = torch.randint(0, SHAPE.codes, (2, 6)), torch.randn(2, 6, SHAPE.width)
    exact, rounded = (d(codes, hidden, torch.arange(6)) for d in (SMALL, INT8))
    assert 0 < (exact - rounded).abs().mean() < 0.05 * exact.abs().mean()
    assert torch.allclose(MODEL.head(exact), INT8.head(exact), atol=0.1 * float(MODEL.head(exact).abs().max()))


def test_greedy_picture_is_the_targets_whatever_the_rounding():
    words = torch.tensor([[0, 2, 5, 7, 9]])

    def run(tree, small):
        step = Step(MODEL, small, PRESETS[tree], Relaxation("exact"), Sampling(2.0, 0.0))
        return [t for e in Decoder(step).generate(words, 0) for t in e.tokens]

    assert run("cpu8", INT8) == run("root", None)
