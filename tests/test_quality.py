"""Fréchet distance, precision and recall, bootstrap and retrieval against answers known beforehand."""

import numpy as np
import pytest
import torch
from scipy.linalg import sqrtm

from lanternpp.quality import bootstrap_interval, frechet, precision_recall, retrieval


def cloud(count, width, seed=0):
    rng = np.random.default_rng(seed)
    return torch.from_numpy(rng.normal(size=(count, width)) @ rng.normal(size=(width, width)) + rng.normal(size=width))


def test_frechet_of_a_set_with_itself_is_zero():
    a = cloud(300, 12)
    assert abs(frechet(a, a)) < 1e-9
    assert abs(frechet(a, a[torch.randperm(300)])) < 1e-9


def test_frechet_of_a_shift_is_its_square():
    a, shift = cloud(300, 12), torch.arange(12.0)
    assert frechet(a, a + shift) == pytest.approx(float(shift.square().sum()))


@pytest.mark.parametrize("factor", [0.5, 3.0])
def test_frechet_of_a_stretch_is_that_of_the_deviations(factor):
    a = cloud(300, 12)
    centred = a - a.mean(0)
    expected = (factor - 1) ** 2 * float(centred.var(0).sum())
    assert frechet(centred, factor * centred) == pytest.approx(expected)


def test_frechet_is_the_textbook_form_where_covariances_do_not_commute():
    a, b = cloud(400, 6, 1), cloud(300, 6, 2)
    left, right = np.cov(a.numpy().T), np.cov(b.numpy().T)
    means = float((a.mean(0) - b.mean(0)).square().sum())
    expected = means + np.trace(left + right - 2 * sqrtm(left @ right).real)
    simple = means + np.trace(left + right - 2 * sqrtm(left) @ sqrtm(right)).real  # right only where they commute
    assert frechet(a, b) == pytest.approx(expected) == frechet(b, a)
    assert abs(simple - expected) > 1e-3 * expected


def test_frechet_of_fewer_points_than_dimensions():
    a, b = cloud(20, 64), cloud(20, 64, 3)
    assert np.isfinite(frechet(a, b)) and frechet(a, b) > 0
    assert abs(frechet(a.float(), a.float())) < 1e-9 * 64  # the arithmetic is float64 whatever comes in


@pytest.mark.parametrize("a, b", [((1, 4), (9, 4)), ((9, 4), (9, 5)), ((9,), (9,))])
def test_frechet_names_bad_shapes(a, b):
    with pytest.raises(ValueError, match="two sets"):
        frechet(torch.zeros(a), torch.zeros(b))


def test_precision_and_recall_by_hand():
    real, made = torch.tensor([[0.0], [1], [10], [11]]), torch.tensor([[0.5], [5], [10.5], [20]])
    # Real balls reach 1, made ones 4.5, 4.5, 5.5 and 9.5: 5 and 20 lie outside the real ones, 0 and 1 inside 0.5's.
    assert precision_recall(real, made, k=1) == (0.5, 1.0)
    # The other way round the radii change places.
    assert precision_recall(made, real, k=1) == (1.0, 0.5)


def test_precision_and_recall_of_clouds():
    generator = torch.Generator().manual_seed(0)
    one, two = (torch.randn(400, 8, generator=generator) + shift for shift in (0.0, 100.0))
    both = torch.cat([one, two])
    assert precision_recall(both, both) == (1.0, 1.0)
    assert precision_recall(one, two) == (0.0, 0.0)
    assert precision_recall(both, one) == (1.0, 0.5)  # a mode is missing
    assert precision_recall(one, both) == (0.5, 1.0)  # a mode is invented
    precision, recall = precision_recall(one, torch.randn(400, 8, generator=generator))
    assert precision > 0.8 and recall > 0.8
    with pytest.raises(ValueError, match="more than 3"):
        precision_recall(one[:3], two)


def test_bootstrap_covers_the_mean_as_often_as_it_says():
    rng = np.random.default_rng(0)
    hits = 0
    for seed in range(200):
        low, high = bootstrap_interval(rng.normal(1.0, 2.0, 60), seed, resamples=300)
        hits += low <= 1.0 <= high
    assert 0.88 <= hits / 200 <= 0.99


def test_bootstrap_tells_a_difference_from_none():
    noise = np.random.default_rng(0).normal(size=500)
    noise -= noise.mean()
    low, high = bootstrap_interval(noise, 0)
    assert low < 0 < high and high - low == pytest.approx(2 * 1.96 * noise.std() / np.sqrt(500), rel=0.1)
    assert bootstrap_interval(noise + 0.3, 0)[0] > 0 and bootstrap_interval(torch.from_numpy(noise) - 0.3, 0)[1] < 0
    assert bootstrap_interval(noise, 5) == bootstrap_interval(noise, 5) != (low, high)
    assert bootstrap_interval(np.full(9, 0.25), 0) == (0.25, 0.25)
    with pytest.raises(ValueError, match="n at least 1"):
        bootstrap_interval(np.array([]), 0)


def test_retrieval_ranks_and_counts_ties_against():
    texts = torch.eye(4).expand(3, 4, 4)
    images = torch.tensor([[0.9, 0.3, 0.2, 0.1], [0.1, 0.9, 0.3, 0.2], [0.5, 0.5, 0.5, 0.5]])
    assert retrieval(images, texts, torch.tensor([0, 0, 2])).tolist() == [0, 3, 3]
    assert retrieval(images, texts, torch.tensor([2, 1, 0])).tolist() == [2, 0, 3]
