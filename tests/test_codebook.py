"""The codebook: its map, exchanged tokens, the distance of pictures."""

import math

import numpy as np
import pytest
import torch
from PIL import Image

from lanternpp.codebook import principal_plane, psnr, swapped
from lanternpp.relax import nearest_codes, neighbours_of


def test_the_plane_holds_the_two_widest_directions_with_settled_signs():
    torch.manual_seed(0)
    turn, _ = torch.linalg.qr(torch.randn(5, 5))
    rows = torch.randn(300, 5) * torch.tensor([5.0, 3.0, 0.5, 0.2, 0.1]) @ turn + 7
    points, share = principal_plane(rows)
    _, singular, right = torch.linalg.svd((rows - rows.mean(0)).double(), full_matrices=False)
    assert share == pytest.approx(float((singular[:2] ** 2).sum() / (singular**2).sum())) and share > 0.95
    expected = (rows - rows.mean(0)).double() @ right[:2].T
    assert torch.allclose(points.abs(), expected.abs(), atol=1e-4)
    again, _ = principal_plane(rows.flip(0))
    assert torch.allclose(again.flip(0), points, atol=1e-4)  # another order of the codes, the same map


def test_neighbours_of_some_codes_are_those_of_the_table():
    rows = torch.randint(0, 3, (40, 3)).float()  # many equal distances
    codes = torch.tensor([7, 0, 39])
    near, distance = neighbours_of(rows, codes, 12)
    assert torch.equal(near, nearest_codes(rows, 12)[codes])
    assert torch.allclose(distance, (rows[codes, None] - rows[near]).norm(dim=-1).double())
    assert near.shape == (3, 12) and neighbours_of(rows, codes, 99)[0].shape == (3, 39)


def test_tokens_are_exchanged_for_the_jth_neighbour():
    rows = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    tokens, table = torch.tensor([3, 3, 29, 0]), nearest_codes(rows, 29)
    out = swapped(rows, tokens, [0, 1, 5, 500])
    assert torch.equal(out[0], tokens) and torch.equal(out[1], table[tokens, 0])
    assert torch.equal(out[2], table[tokens, 4]) and torch.equal(out[3], table[tokens, 28])


def test_psnr():
    black = Image.new("RGB", (8, 8))
    assert psnr(black, black) == math.inf
    assert psnr(black, Image.new("RGB", (8, 8), (255, 255, 255))) == pytest.approx(0)
    one = np.zeros((8, 8, 3), np.uint8)
    one[0, 0, 0] = 255
    assert psnr(black, Image.fromarray(one)) == pytest.approx(10 * math.log10(192))
