"""Convolution on every engine against its definition in float64.

A result is a sum of n products, each rounded once, added up in blocks: its error is at most
n·ε of the sum of the absolute products, with ε of the dtype in which sums are added up, and one
rounding to the result's dtype.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import CUDA, all_engines
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.kernels.windows import Windows, windows
from tinybn.testing import FLOAT_DTYPES, epsilon, fill, lay_out

LAYOUTS = ("contiguous", "channels_last", "transposed", "reversed")
VALUES = ("normal", "constant", "large_mean", "mixed_scales")


@st.composite
def geometries(draw, taps=(1, 2, 3, 5)):
    """Windows, and an image that holds one at least."""
    kernel, stride, dilation, padding, size = [], [], [], [], []
    for _ in range(2):
        kernel.append(draw(st.sampled_from(taps)))
        stride.append(draw(st.sampled_from((1, 2, 3))))
        dilation.append(draw(st.sampled_from((1, 2))))
        padding.append(draw(st.integers(0, 2)))
        span = dilation[-1] * (kernel[-1] - 1) + 1
        size.append(max(1, span - 2 * padding[-1]) + draw(st.sampled_from((0, 1, 3, 6))))
    pairs = (tuple(v) for v in (kernel, stride, padding, padding, dilation))
    return Windows(*pairs), tuple(size)


@st.composite
def cases(draw, most=3):
    slid, size = draw(geometries())
    groups = draw(st.sampled_from((1, 1, 2, 3)))
    n = draw(st.sampled_from((1, 2, 5)))
    c, o = (groups * draw(st.integers(1, most)) for _ in range(2))
    dtype = np.dtype(draw(st.sampled_from(FLOAT_DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(VALUES if dtype.itemsize > 2 else ("normal", "constant")))
    x = lay_out(fill(rng, (n, c, *size), dtype, kind), draw(st.sampled_from(LAYOUTS)))
    weight = rng.standard_normal((o, c // groups, *slid.kernel)).astype(dtype)
    bias = rng.standard_normal(o).astype(dtype) if draw(st.booleans()) else None
    dy = rng.standard_normal((n, o, *slid.output(size))).astype(dtype)
    return x, weight, bias, lay_out(dy, draw(st.sampled_from(LAYOUTS))), slid, groups


def definition(x, weight, bias, dy, slid, groups):
    """y, dx and dweight in float64, tap by tap; and the same sums of absolute values."""
    (h, w), (o, per_group) = x.shape[2:], weight.shape[:2]
    (out_h, out_w), (top, left) = dy.shape[2:], slid.before
    results = []
    for absolute in (False, True):
        a, f, g = (np.abs(v) if absolute else v for v in (x, weight, dy))
        y, dx, dweight = np.zeros(dy.shape), np.zeros(x.shape), np.zeros(weight.shape)
        for k, tap in itertools.product(*map(range, slid.kernel)):
            for i, j in itertools.product(range(out_h), range(out_w)):
                at_h = i * slid.stride[0] + k * slid.dilation[0] - top
                at_w = j * slid.stride[1] + tap * slid.dilation[1] - left
                if not (0 <= at_h < h and 0 <= at_w < w):
                    continue
                for group in range(groups):
                    ins = slice(group * per_group, (group + 1) * per_group)
                    outs = slice(group * o // groups, (group + 1) * o // groups)
                    filters = f[outs, :, k, tap]
                    y[:, outs, i, j] += a[:, ins, at_h, at_w] @ filters.T
                    dx[:, ins, at_h, at_w] += g[:, outs, i, j] @ filters
                    dweight[outs, :, k, tap] += g[:, outs, i, j].T @ a[:, ins, at_h, at_w]
        if bias is not None:
            y += (np.abs(bias) if absolute else bias)[:, None, None]
        results.append((y, dx, dweight))
    return results


def run(x, weight, bias, dy, slid, groups):
    options = dict(windows=slid, groups=groups)
    y = kernels.conv2d_forward(x, weight, bias, **options)
    dx = kernels.conv2d_backward_input(dy, weight, x.shape, **options)
    dweight = kernels.conv2d_backward_weight(dy, x, weight.shape, **options)
    return y, dx, dweight


def check(engine, case):
    x, weight, bias, dy, slid, groups = case
    got = engine.run(run, *case)
    wide = [None if a is None else a.astype(np.float64) for a in (x, weight, bias, dy)]
    want, size = definition(*wide, slid, groups)
    per_group = weight.shape[0] // groups
    terms = (weight[0].size + 1, per_group * slid.taps, dy[:, 0].size)
    for result, exact, absolute, n in zip(got, want, size, terms):
        bound = n * epsilon(accumulation_dtype(x.dtype)) * absolute
        bound += 2 * epsilon(x.dtype) * np.abs(exact) + np.finfo(np.float16).smallest_subnormal
        assert result.dtype == x.dtype
        assert (np.abs(result.astype(np.float64) - exact) <= bound).all()


@all_engines
@settings(max_examples=40)
@given(case=cases())
def test_all_three_products(engine, case):
    check(engine, case)


@pytest.mark.gpu
@settings(max_examples=60)
@given(case=cases(most=40))
def test_larger_cases_on_the_gpu(case):
    check(CUDA, case)


@all_engines
@pytest.mark.parametrize("layout", ["contiguous", "channels_last"])
def test_more_than_one_tile_each_way(engine, layout):
    rng = np.random.default_rng(0)
    slid = windows(3, 1, 1, 1)
    x, dy = (lay_out(rng.normal(size=(3, c, 20, 19)).astype(np.float32), layout) for c in (9, 70))
    weight = rng.normal(size=(70, 9, 3, 3)).astype(np.float32)
    y, dx, dweight = engine.run(run, x, weight, None, dy, slid, 1)
    wide = np.pad(x.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    want = np.einsum("nchwkl,ockl->nohw", view, weight)
    np.testing.assert_allclose(y, want, atol=81 * 8 * epsilon(np.float32))
    want = np.einsum("nchwkl,nohw->ockl", view, dy)
    np.testing.assert_allclose(dweight, want, atol=1140 * 8 * epsilon(np.float32))
    # dx is the convolution of dy with the filters turned around.
    wide = np.pad(dy.astype(np.float64), ((0, 0), (0, 0), (1, 1), (1, 1)))
    view = np.lib.stride_tricks.sliding_window_view(wide, (3, 3), (2, 3))
    want = np.einsum("nohwkl,ockl->nchw", view, weight[:, :, ::-1, ::-1])
    np.testing.assert_allclose(dx, want, atol=630 * 8 * epsilon(np.float32))
    assert y.strides == dy.strides and dx.strides == x.strides


@all_engines
def test_infinity_and_nan_reach_their_windows_alone(engine):
    x = np.ones((1, 1, 6, 6), np.float32)
    x[0, 0, 0, 0], x[0, 0, 5, 5] = np.inf, np.nan
    slid = windows(3, 1, 0, 1)

    def forward(x, weight):
        return kernels.conv2d_forward(x, weight, windows=slid)

    y = engine.run(forward, x, np.ones((1, 1, 3, 3), np.float32))[0, 0]
    assert y[0, 0] == np.inf and np.isnan(y[3, 3])
    y[0, 0] = y[3, 3] = 9
    np.testing.assert_array_equal(y, 9)


@all_engines
def test_empty_batches(engine):
    slid = windows(3, 1, 1, 1)
    x, dy = np.zeros((0, 2, 5, 5), np.float32), np.zeros((0, 4, 5, 5), np.float32)
    y, dx, dweight = engine.run(run, x, np.ones((4, 2, 3, 3), np.float32), None, dy, slid, 1)
    assert y.shape == dy.shape and dx.shape == x.shape
    assert dweight.shape == (4, 2, 3, 3) and not dweight.any()


X, W = np.zeros((2, 4, 8, 8), np.float32), np.zeros((6, 4, 3, 3), np.float32)
DY, BY_3 = np.zeros((2, 6, 8, 8), np.float32), windows(3, 1, 1, 1)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: kernels.conv2d_forward(X[0], W, windows=BY_3), ShapeError, "wanted \\[N, C"),
        (lambda: kernels.conv2d_forward(X, W[0], windows=BY_3), ShapeError, "weight"),
        (lambda: kernels.conv2d_forward(X, W, windows=BY_3, groups=3), ShapeError, "groups is 3"),
        (lambda: kernels.conv2d_forward(X, W, windows=BY_3, groups=0), ArgumentError, "groups"),
        (lambda: kernels.conv2d_forward(X, W, W[0, 0], windows=BY_3), ShapeError, "bias"),
        (lambda: kernels.conv2d_forward(X, W.astype("f8"), windows=BY_3), DTypeError, "float64"),
        (lambda: kernels.conv2d_forward(X, W, windows=windows(9, 1, 0, 1)), ShapeError, "weight"),
        (lambda: kernels.conv2d_forward(X, W, windows=BY_3, out=X), ShapeError, "out"),
        (
            lambda: kernels.conv2d_backward_input(X, W, X.shape, windows=BY_3),
            ShapeError,
            "dy has shape",
        ),
        (
            lambda: kernels.conv2d_backward_weight(X, X, W.shape, windows=BY_3),
            ShapeError,
            "dy has shape",
        ),
        (
            lambda: kernels.conv2d_backward_input(DY, W, (2, 5, 8, 8), windows=BY_3),
            ShapeError,
            "x has shape \\(2, 5",
        ),
        (
            lambda: kernels.conv2d_backward_input(DY, W, (2, 4, 8), windows=BY_3),
            ShapeError,
            "N, C, H, W",
        ),
        (
            lambda: kernels.conv2d_backward_input(DY, W[..., :2], X.shape, windows=BY_3),
            ShapeError,
            "weight",
        ),
        (
            lambda: kernels.conv2d_backward_input(DY, W, X.shape, windows=BY_3, groups=4),
            ShapeError,
            "groups is 4",
        ),
        (
            lambda: kernels.conv2d_backward_weight(DY, X, (6, 5, 3, 3), windows=BY_3),
            ShapeError,
            "weight \\(6, 5",
        ),
        (
            lambda: kernels.conv2d_backward_weight(DY, X, (6, 4, 2, 3), windows=BY_3),
            ShapeError,
            "weight \\(6, 4, 2",
        ),
        (lambda: windows(3, 1, "same", 1).output((0, 0)), ShapeError, "slide over"),
        (lambda: windows(3, 2, "same", 1), ArgumentError, "stride 1"),
        (lambda: windows(3, 1, "full", 1), ArgumentError, "'same'"),
        (lambda: windows(0, 1, 0, 1), ArgumentError, "kernel_size is 0"),
        (lambda: windows((3, 3, 3), 1, 0, 1), ArgumentError, "kernel_size"),
        (lambda: windows(3, 1, -1, 1), ArgumentError, "padding"),
        (lambda: windows(3, True, 0, 1), ArgumentError, "stride is True"),
    ],
)
def test_what_does_not_fit_raises(call, error, words):
    with pytest.raises(error, match=words):
        call()


@all_engines
def test_images_without_channels(engine):
    """PyTorch's result: sums of nothing."""
    x, weight, dy = np.ones((2, 0, 4, 4)), np.ones((3, 0, 3, 3)), np.ones((2, 3, 2, 2))
    y, dx, dweight = engine.run(run, x, weight, None, dy, windows(3, 1, 0, 1), 1)
    assert y.shape == dy.shape and not y.any()
    assert dx.shape == x.shape and dweight.shape == weight.shape
