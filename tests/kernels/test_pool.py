"""Pooling on every engine against its definition, window by window.

A maximum is exact. A mean of n elements errs by at most n·ε of their mean absolute value, and one
rounding; so does a gradient that is a sum of at most n shares.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import all_engines
from tests.kernels.test_conv import LAYOUTS, VALUES, geometries
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.kernels.windows import Windows, windows
from tinybn.testing import FLOAT_DTYPES, NON_FINITE, epsilon, fill, lay_out


@st.composite
def cases(draw, dilated):
    slid, size = draw(geometries(taps=(1, 2, 3, 4)))
    padding = tuple(min(p, k // 2) for p, k in zip(slid.before, slid.kernel))
    dilation = slid.dilation if dilated else (1, 1)
    slid = Windows(slid.kernel, slid.stride, padding, padding, dilation)
    size = tuple(max(s, slid.span(axis)) for axis, s in enumerate(size))
    dtype = np.dtype(draw(st.sampled_from(FLOAT_DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from((*VALUES, *NON_FINITE)))
    n, c = draw(st.sampled_from((1, 2, 3))), draw(st.sampled_from((1, 2, 5)))
    x = fill(rng, (n, c, *size), dtype, kind)
    if draw(st.booleans()):
        x = np.sign(x)  # many equal elements
    x = lay_out(x, draw(st.sampled_from(LAYOUTS)))
    ceil_mode = draw(st.booleans())
    dy = rng.standard_normal((n, c, *slid.output(size, ceil_mode))).astype(dtype)
    return x, dy, slid, ceil_mode


def elements(slid, size, i, j):
    """(row, column) of the elements under window i, j, and the numbers of their taps."""
    for k, tap in itertools.product(*map(range, slid.kernel)):
        row = i * slid.stride[0] + k * slid.dilation[0] - slid.before[0]
        column = j * slid.stride[1] + tap * slid.dilation[1] - slid.before[1]
        if 0 <= row < size[0] and 0 <= column < size[1]:
            yield row, column, k * slid.kernel[1] + tap


@all_engines
@settings(max_examples=40)
@given(case=cases(dilated=True))
def test_max_pool(engine, case):
    x, dy, slid, ceil_mode = case

    def run(x, dy):
        y, winner = kernels.max_pool2d_forward(x, windows=slid, ceil_mode=ceil_mode)
        return y, winner, kernels.max_pool2d_backward(dy, winner, x.shape, windows=slid)

    y, winner, dx = engine.run(run, x, dy)
    want_y, want_winner = np.empty(dy.shape), np.empty(dy.shape, int)
    want_dx, size = np.zeros(x.shape), np.zeros(x.shape)
    for n, c, i, j in np.ndindex(*dy.shape):
        # PyTorch's loop: the first of equal ones, and of NaNs the last.
        best = None
        for row, column, tap in elements(slid, x.shape[2:], i, j):
            value = float(x[n, c, row, column])
            if best is None or value > best[0] or value != value:
                best = value, tap, row, column
        want_y[n, c, i, j], want_winner[n, c, i, j] = best[:2]
        want_dx[n, c, best[2], best[3]] += dy[n, c, i, j]
        size[n, c, best[2], best[3]] += abs(float(dy[n, c, i, j]))
    np.testing.assert_array_equal(y.astype(np.float64), want_y)
    np.testing.assert_array_equal(winner, want_winner)
    assert_within(dx, want_dx, size, slid.taps)


@all_engines
@settings(max_examples=40)
@given(case=cases(dilated=False), include_pad=st.booleans(), divisor=st.sampled_from((None, 3, -2)))
def test_avg_pool(engine, case, include_pad, divisor):
    x, dy, slid, ceil_mode = case
    options = dict(windows=slid, count_include_pad=include_pad, divisor_override=divisor)

    def run(x, dy):
        y = kernels.avg_pool2d_forward(x, ceil_mode=ceil_mode, **options)
        return y, kernels.avg_pool2d_backward(dy, x.shape, **options)

    y, dx = engine.run(run, x, dy)
    want_y, size_y = np.zeros(dy.shape), np.zeros(dy.shape)
    want_dx, size_dx = np.zeros(x.shape), np.zeros(x.shape)
    for n, c, i, j in np.ndindex(*dy.shape):
        under = [(row, column) for row, column, _ in elements(slid, x.shape[2:], i, j)]
        count = len(under)
        if include_pad:
            # Padding counts, what hangs over it does not.
            count = 1
            for axis, at in ((0, i), (1, j)):
                start = at * slid.stride[axis] - slid.before[axis]
                end = min(start + slid.kernel[axis], x.shape[2 + axis] + slid.after[axis])
                count *= end - start
        count = divisor or count
        values = np.array([float(x[n, c, row, column]) for row, column in under])
        want_y[n, c, i, j], size_y[n, c, i, j] = values.sum(), np.abs(values).sum()
        want_y[n, c, i, j] /= count
        size_y[n, c, i, j] /= abs(count)
        for row, column in under:
            want_dx[n, c, row, column] += float(dy[n, c, i, j]) / count
            size_dx[n, c, row, column] += abs(float(dy[n, c, i, j]) / count)
    assert_within(y, want_y, size_y, slid.taps)
    assert_within(dx, want_dx, size_dx, slid.taps)


def assert_within(got, want, size, terms):
    finite = np.isfinite(want)
    np.testing.assert_array_equal(got[~finite].astype(np.float64), want[~finite])
    bound = (terms + 1) * epsilon(accumulation_dtype(got.dtype)) * size
    bound += 2 * epsilon(got.dtype) * np.abs(want) + np.finfo(np.float16).smallest_subnormal
    assert (np.abs(got.astype(np.float64)[finite] - want[finite]) <= bound[finite]).all()


@all_engines
def test_windows_of_minus_infinity_and_many_taps(engine):
    x = np.full((1, 1, 20, 20), -np.inf, np.float32)
    slid = windows(17, 1, 8, 1)

    def run(x):
        y, winner = kernels.max_pool2d_forward(x, windows=slid)
        return y, winner

    y, winner = engine.run(run, x)
    assert (y == -np.inf).all() and winner.dtype == np.int32
    assert winner[0, 0, 0, 0] == 8 * 17 + 8 and winner[0, 0, 10, 10] == 0


X = np.zeros((2, 3, 8, 8), np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (
            lambda: kernels.max_pool2d_forward(X, windows=windows(2, 2, 2, 1)),
            ArgumentError,
            "at most half",
        ),
        (lambda: kernels.max_pool2d_forward(X[0], windows=windows(2, 2, 0, 1)), ShapeError, "N, C"),
        (
            lambda: kernels.max_pool2d_forward(X, windows=windows(9, 2, 0, 1)),
            ShapeError,
            "spanning",
        ),
        (
            lambda: kernels.max_pool2d_backward(X, X, X.shape, windows=windows(1, 1, 0, 1)),
            DTypeError,
            "winner",
        ),
        (
            lambda: kernels.avg_pool2d_forward(X, windows=windows(2, 2, 0, 1), divisor_override=0),
            ArgumentError,
            "divisor_override",
        ),
        (
            lambda: kernels.avg_pool2d_backward(X, (1, 3, 8, 8), windows=windows(1, 1, 0, 1)),
            ShapeError,
            "equal N and C",
        ),
        (
            lambda: kernels.avg_pool2d_backward(X, X.shape, windows=windows(2, 2, 0, 1)),
            ShapeError,
            "\\(4, 4\\) windows",
        ),
    ],
)
def test_what_does_not_fit_raises(call, error, words):
    with pytest.raises(error, match=words):
        call()


@all_engines
def test_windows_that_hang_over_small_images(engine):
    """With ceil_mode one window lies on an image that is smaller than it, as in PyTorch."""
    slid = windows(2, 4, 0, 1)

    def run(x, dy):
        y, winner = kernels.max_pool2d_forward(x, windows=slid, ceil_mode=True)
        dx = kernels.max_pool2d_backward(dy, winner, x.shape, windows=slid)
        mean = kernels.avg_pool2d_forward(x, windows=slid, ceil_mode=True)
        return y, dx, mean, kernels.avg_pool2d_backward(dy, x.shape, windows=slid)

    x, dy = np.full((1, 1, 1, 1), 3.0), np.full((1, 1, 1, 1), 2.0)
    assert [a.tolist() for a in engine.run(run, x, dy)] == [[[[[v]]]] for v in (3, 2, 3, 2)]


@all_engines
def test_images_without_elements_have_windows_of_padding_alone(engine):
    x = np.ones((2, 2, 0, 4))
    y, _ = engine.run(lambda x: kernels.max_pool2d_forward(x, windows=windows(2, 2, 1, 1)), x)
    assert y.shape == (2, 2, 1, 3) and np.all(y == -np.inf)
