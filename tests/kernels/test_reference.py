"""The reference itself: golden numbers worked out by hand or elsewhere, and finite differences."""

from __future__ import annotations

import numpy as np
import pytest

from tinybn import kernels


def test_batch_norm_statistics_by_hand():
    # Three channels, twelve values each: channel c holds n + 4c + i + 1 for n in 0..2, i in 0..3.
    n, c, i = np.ogrid[:3, :3, :4]
    x = (n + 4 * c + i + 1).astype(np.float64)
    running_mean, running_var = np.zeros(3), np.ones(3)
    mean, rstd = kernels.batch_norm_stats_forward(x, running_mean, running_var, eps=0.0)
    # i is uniform on 0..3 (variance 5/4), n on 0..2 (variance 2/3): the sum has 23/12.
    np.testing.assert_allclose(mean, [3.5, 7.5, 11.5], rtol=1e-15)
    np.testing.assert_allclose(1 / rstd**2, np.full(3, 23 / 12), rtol=1e-14)
    np.testing.assert_allclose(running_mean, [0.35, 0.75, 1.15], rtol=1e-14)
    np.testing.assert_allclose(running_var, np.full(3, 0.9 + 0.1 * 23 / 11), rtol=1e-14)


def test_running_variance_divides_by_n_minus_1():
    x = np.array([[2, 15, 2, 1], [2, 17, 2, 1], [-4, -2, -2, -1]], np.float32)
    running_mean, running_var = np.zeros(4, np.float32), np.ones(4, np.float32)
    kernels.batch_norm_stats_forward(x, running_mean, running_var, momentum=1.0)
    np.testing.assert_allclose(running_mean, [0, 10, 2 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(running_var, [12, 109, 16 / 3, 4 / 3], rtol=1e-6)


def test_inference_adds_eps_once_and_in_full_precision():
    x = np.array([[100, 0.5], [-300, -0.25], [1000, 2]], np.float16)
    y = kernels.batch_norm_forward_inference(
        x, None, None, np.zeros(2, np.float32), np.array([1e6, 1e-6], np.float32)
    )
    want = [[0.1, 150.7556723], [-0.3, -75.3778361], [1.0, 603.0226892]]
    np.testing.assert_allclose(y, want, rtol=2.0**-11)


def test_philox_known_answers():
    # Random123's kat_vectors for philox4x32 with 10 rounds.
    like = np.zeros(1, np.float32)
    words = kernels.random_words(4, 0, 0, 0, like)
    assert [hex(w) for w in words] == ["0x6627e8d5", "0xe169c58d", "0xbc57ac4c", "0x9b00dbd8"]


def _numeric(f, x, step=1e-6):
    grad = np.zeros_like(x)
    for i in np.ndindex(x.shape):
        up, down = x.copy(), x.copy()
        up[i] += step
        down[i] -= step
        grad[i] = (f(up) - f(down)) / (2 * step)
    return grad


def _case(shape, seed=0):
    rng = np.random.default_rng(seed)
    c = shape[1]
    return [rng.standard_normal(s) for s in (shape, shape, (c,), (c,), (c,))]


@pytest.mark.parametrize("shape", [(5, 3), (2, 3, 4), (2, 2, 3, 2), (2, 2, 1, 2, 2)])
def test_backward_in_training_is_the_derivative_of_forward(shape):
    x, dy, weight, bias, _ = _case(shape)

    def loss(x, weight, bias):
        mean, rstd = kernels.batch_norm_stats_forward(x)
        return (kernels.batch_norm_normalize_forward(x, weight, bias, mean, rstd) * dy).sum()

    mean, rstd = kernels.batch_norm_stats_forward(x)
    dx, dweight, dbias = kernels.batch_norm_backward(dy, x, weight, mean, rstd)
    # Central differences err by step² times a third derivative: 1e-12 here, and by
    # ε·|loss|/step: 1e-9.
    np.testing.assert_allclose(dx, _numeric(lambda v: loss(v, weight, bias), x), atol=1e-7)
    np.testing.assert_allclose(dweight, _numeric(lambda v: loss(x, v, bias), weight), atol=1e-7)
    np.testing.assert_allclose(dbias, _numeric(lambda v: loss(x, weight, v), bias), atol=1e-7)


def test_backward_with_frozen_statistics_is_the_derivative_of_inference():
    x, dy, weight, bias, running_mean = _case((2, 3, 2, 2))
    running_var = np.array([0.5, 2.0, 1.0])

    def loss(x, weight, bias):
        y = kernels.batch_norm_2d_nchw_forward_inference(x, weight, bias, running_mean, running_var)
        return (y * dy).sum()

    dx, dweight, dbias = kernels.batch_norm_2d_nchw_backward(
        dy, x, weight, running_mean, running_var
    )
    np.testing.assert_allclose(dx, _numeric(lambda v: loss(v, weight, bias), x), atol=1e-7)
    np.testing.assert_allclose(dweight, _numeric(lambda v: loss(x, v, bias), weight), atol=1e-7)
    np.testing.assert_allclose(dbias, _numeric(lambda v: loss(x, weight, v), bias), atol=1e-7)


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_cross_entropy_backward_is_the_derivative_of_forward(smoothing, weighted):
    rng = np.random.default_rng(1)
    logits, target = rng.standard_normal((4, 3)), np.array([0, 2, -100, 1])
    weight = np.array([0.2, 1.0, 3.0]) if weighted else None
    grad = rng.standard_normal(4)
    found = kernels.cross_entropy_forward(logits, target, weight, label_smoothing=smoothing)
    got = kernels.cross_entropy_backward(
        grad, logits, target, weight, found, label_smoothing=smoothing
    )

    def loss(z):
        rows = kernels.cross_entropy_forward(z, target, weight, label_smoothing=smoothing)
        return (rows.loss * grad).sum()

    np.testing.assert_allclose(got, _numeric(loss, logits), atol=1e-8)


def test_cross_entropy_golden():
    # log(e + e² + e³) − 3 and its like, by hand.
    logits = np.array([[1.0, 2.0, 3.0]])
    rows = kernels.cross_entropy_forward(logits, np.array([2]))
    np.testing.assert_allclose(rows.loss, [np.log(1 + np.exp(-1) + np.exp(-2))], rtol=1e-15)
    rows = kernels.cross_entropy_forward(np.full((1, 11), -1e10, np.float32), np.array([3]))
    np.testing.assert_allclose(rows.loss, [np.log(11)], rtol=1e-7)
