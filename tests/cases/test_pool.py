"""Pooling: padding, ties, infinities and overlaps.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import F, assert_close, assert_golden, assert_same, case
from tinybn import nn
from tinybn.errors import ArgumentError

ONES = np.float32(1)


@pytest.mark.parametrize(
    ("x", "dy", "size", "stride", "padding", "golden_y", "golden_dx"),
    [
        case("PL-01", "pytorch/pytorch#33384, pytorch/pytorch#41294, apache/mxnet#2753",
             -F((1, 1, 4, 4), 7, 3, 16, 1, 1), ONES, 3, 2, 1,
             [-4, -2, -3, -1], [1, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]),
        case("PL-03", "pytorch/pytorch#40131, pytorch/pytorch#1465, pytorch/pytorch#39044",
             np.full((1, 1, 2, 2), -np.inf, np.float32), ONES, 2, 2, 0,
             [-np.inf], [1, 0, 0, 0]),
        case("PL-03", "pytorch/pytorch#40131, pytorch/pytorch#1465, pytorch/pytorch#39044",
             np.full((1, 1, 2, 2), -np.inf, np.float32), ONES, 2, 2, 1,
             [-np.inf] * 4, [1, 1, 1, 1]),
        case("PL-04", "tensorflow/tensorflow#4886, Theano/Theano#5248, facebookresearch/CrypTen#90",
             np.array([1, 2, 2, 2], np.float32).reshape(1, 1, 2, 2), ONES, 2, 2, 0,
             [2], [0, 1, 0, 0]),
        case("PL-06", "pytorch/pytorch#122024",
             F((1, 1, 5, 5), 7, 3, 32), F((1, 1, 3, 3), 1, 1, 16), 3, 1, 0,
             [23, 30, 31, 26, 30, 30, 29, 30, 30],
             [0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1, 30, 0, 0, 0, 4, 0, 0, 0, 0, 7, 0, 0]),
    ],
)  # fmt: skip
def test_max_pool(engine, x, dy, size, stride, padding, golden_y, golden_dx):
    t = tb.Tensor(x, requires_grad=True)
    y = nn.functional.max_pool2d(t, size, stride, padding)
    y.backward(tb.Tensor(dy * np.ones(y.shape, np.float32)))
    want, dx = m.max_pool(x, dy, size, stride, padding)
    assert_same(y, want)
    assert_same(t.grad, dx)
    assert_golden(want, golden_y)
    assert_golden(dx, golden_dx)


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(
    ("size", "padding"),
    [
        case("PL-08", "apache/mxnet#6191, denizyuret/Knet.jl#182", 2, 2),
        case("PL-08", "apache/mxnet#6191, denizyuret/Knet.jl#182", 3, 2),
    ],
)
def test_padding_beyond_half_the_window(engine, pool, size, padding):
    with pytest.raises(ArgumentError, match="at most half"):
        getattr(nn.functional, pool)(tb.zeros(1, 1, 4, 4), size, padding=padding)


@pytest.mark.parametrize("pool", ["max_pool2d", "avg_pool2d"])
@pytest.mark.parametrize(
    ("side", "ceil_mode", "golden"),
    [
        case("PL-09", "pytorch/pytorch#6842", 25, False, 12),
        case("PL-09", "pytorch/pytorch#6842", 25, True, 13),
        case("PL-09", "pytorch/pytorch#6842", 24, True, 12),
    ],
)
def test_the_size_of_the_result(engine, pool, side, ceil_mode, golden):
    y = getattr(nn.functional, pool)(tb.zeros(1, 1, side, side), 2, ceil_mode=ceil_mode)
    want = -(-side // 2) if ceil_mode else side // 2
    assert want == golden
    assert y.shape == (1, 1, want, want)


LEAK = "pytorch/pytorch#7645, and a comparison of results with PyTorch's"


def corner(shape, value, where=(-1, -1)):
    values = np.ones(shape)
    values[(0, 0, *where)] = value
    return values


@pytest.mark.parametrize(
    ("x", "dy"),
    [
        case("PL-10", LEAK, corner((1, 1, 4, 4), np.inf), corner((1, 1, 3, 3), 1)),
        case("PL-10", LEAK, corner((1, 1, 4, 4), np.nan), corner((1, 1, 3, 3), 1)),
        case("PL-10", LEAK, corner((1, 1, 4, 4), -np.inf, (0, 2)), corner((1, 1, 3, 3), 1)),
        case("PL-10", LEAK, corner((1, 1, 4, 4), 1), corner((1, 1, 3, 3), np.inf)),
        case("PL-10", LEAK, corner((1, 1, 4, 4), 1), corner((1, 1, 3, 3), np.nan, (1, 1))),
    ],
)
def test_an_infinity_stays_in_its_windows(engine, x, dy):
    t = tb.Tensor(x, requires_grad=True)
    y = nn.functional.adaptive_avg_pool2d(t, 3)
    y.backward(tb.Tensor(dy))
    want, dx = m.adaptive_avg_pool(x, dy, 3)
    for got, exact in ((y, want), (t.grad, dx)):
        assert_close(got, exact, rtol=4 * 2.0**-52, atol=0)
    if not np.isfinite(x[0, 0, -1, -1]):
        assert_same(np.isfinite(want), corner((1, 1, 3, 3), 0) == 1)
