"""Losses of every float dtype against float64: the loss and each gradient are rounded once.

The inputs are numbers of the dtype, so that float64 takes them as they are. What may be off is
half a unit in the last place of the result's dtype, and some roundings of the dtype in which it
is computed (float32, or float64 for float64) of the terms that are added up.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinybn as tb
from tinybn import nn
from tinybn.kernels.arrays import accumulation_dtype

F = nn.functional
DTYPES = (tb.float16, tb.bfloat16, tb.float32, tb.float64)
ROUNDINGS = 16  # of an exponential, a logarithm, a few products and a sum of up to 60 terms
DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def softplus(x):
    return np.logaddexp(0, x)


def sigmoid(x):
    return np.exp(-softplus(-x))


def log_p(x):
    z = x - x.max(1, keepdims=True)
    return z - np.log(np.exp(z).sum(1, keepdims=True))


# Each gives losses, their derivatives by input and by target (or None), what the mean divides by,
# and the size of the terms of each of the three. Classes are the second axis.


def bce(x, t, weight, pos_weight):
    w, p = weight, pos_weight
    loss = w * ((1 - t) * softplus(x) + p * t * softplus(-x))  # of terms that are positive
    one, two = w * (1 - t) * sigmoid(x), w * p * t * sigmoid(-x)
    dt = w * (p * softplus(-x) - softplus(x))
    sizes = loss, one + two, w * (p * softplus(-x) + softplus(x))
    return loss, one - two, dt, x.size, sizes


def mse(x, t, weight):
    d = 2 * weight * (x - t)
    loss = weight * (x - t) ** 2
    return loss, d, -d, weight.sum(), (loss, abs(d), abs(d))


def soft(x, t, weight, smoothing):
    q = ((1 - smoothing) * t + smoothing / x.shape[1]) * weight
    p = np.exp(log_p(x)) * q.sum(1, keepdims=True)
    share = (1 - smoothing) * weight
    # −log p = (max − x) + log Σ: that sum, from 1 up, is off by a part of itself, its logarithm
    # by as much in all, also where it is 0.
    terms = 1 - log_p(x)
    sizes = (q * terms).sum(1), p + q, share * terms
    return -(q * log_p(x)).sum(1), p - q, -share * log_p(x), len(x), sizes


def hard(x, labels, weight, smoothing):
    hot = np.eye(x.shape[1])[labels]
    loss, dx, _, _, sizes = soft(x, hot, weight, smoothing)
    return loss, dx, None, weight[labels].sum(), sizes


def nll(x, labels, weight):
    hot = np.eye(x.shape[1])[labels] * weight
    loss = -(hot * x).sum(1)
    return loss, -hot, None, weight[labels].sum(), (abs(loss), hot, None)


def case(name, rng, dtype, scale, weighted):
    """The loss of Tensors, its float64 formula, and both's arguments."""

    def numbers(array):
        return array.astype(dtype).astype(np.float64)

    n, c = rng.integers(1, 8), rng.integers(1, 8)
    x = numbers(scale * rng.standard_normal((n, c)))
    t = numbers(rng.random((n, c)))
    labels = rng.integers(0, c, n)
    w, p = (numbers(0.5 + rng.random(c)) for _ in range(2))
    ones = np.ones(c)
    given_w, given_p = (w, p) if weighted else (ones, ones)

    def tensor(array):
        return tb.tensor(array.astype(dtype), device="cpu") if weighted else None

    smoothing = 0.125 if weighted else 0.0
    options = {"label_smoothing": smoothing}
    if name == "bce":
        loss = F.binary_cross_entropy_with_logits
        return loss, bce, (x, t), (given_w, given_p), dict(weight=tensor(w), pos_weight=tensor(p))
    if name == "mse":
        full = np.broadcast_to(given_w, x.shape)
        return F.mse_loss, mse, (x, t), (full,), dict(weight=tensor(np.broadcast_to(w, x.shape)))
    if name == "soft":
        return (
            F.cross_entropy,
            soft,
            (x, t),
            (given_w, smoothing),
            dict(weight=tensor(w), **options),
        )
    if name == "hard":
        arguments = (given_w, smoothing)
        return F.cross_entropy, hard, (x, labels), arguments, dict(weight=tensor(w), **options)
    return F.nll_loss, nll, (x, labels), (given_w,), dict(weight=tensor(w))


def close(got, want, size, dtype):
    info = ml_dtypes.finfo(dtype)
    wide = float(ml_dtypes.finfo(accumulation_dtype(dtype)).eps)
    off = abs(got.detach().numpy().astype(np.float64) - want)
    allowed = float(info.eps) / 2 * abs(want) + ROUNDINGS * wide * size
    allowed = allowed + float(info.smallest_subnormal)
    assert got.dtype == dtype and (off <= allowed).all(), (off / allowed).max()


@DEVICES
@pytest.mark.parametrize("name", ["bce", "mse", "soft", "hard", "nll"])
@given(
    dtype=st.sampled_from(DTYPES), seed=st.integers(0, 2**32 - 1), weighted=st.booleans(),
    scale=st.sampled_from([0.1, 1.0, 5.0]), reduction=st.sampled_from(["none", "mean", "sum"]),
)  # fmt: skip
def test_a_loss_is_rounded_once(name, device, dtype, seed, weighted, scale, reduction):
    rng = np.random.default_rng(seed)
    loss, formula, (x, t), arguments, options = case(name, rng, dtype, scale, weighted)
    want, dx, dt, divisor, sizes = formula(x, t, *arguments)
    options = {k: v.to(device) if isinstance(v, tb.Tensor) else v for k, v in options.items()}

    input = tb.tensor(x.astype(dtype), device=device, requires_grad=True)
    floating = t.dtype == np.float64
    target = tb.tensor(t.astype(dtype) if floating else t, device=device, requires_grad=floating)
    got = loss(input, target, reduction=reduction, **options)

    share = 1 / divisor if reduction == "mean" else 1.0
    if reduction == "none":
        close(got, want, sizes[0], dtype)
        upstream = rng.standard_normal(want.shape).astype(dtype)
        got.backward(tb.tensor(upstream, device=device))
        upstream = upstream.astype(np.float64)
        share = upstream if upstream.ndim == 2 else upstream[:, None]
    else:
        close(got, want.sum() * share, sizes[0].sum() * share, dtype)
        got.backward()
    close(input.grad, dx * share, abs(sizes[1] * share), dtype)
    if floating:
        close(target.grad, dt * share, abs(sizes[2] * share), dtype)
