"""softmax, log_softmax and logsumexp: values, hard values, dtypes, gradients, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensor.tensor_cases import (
    EPS,
    FLOATS,
    as64,
    few,
    laid_out,
    layouts,
    leaf,
    normal,
    plain,
    seeds,
    shapes,
)
from tinybn.errors import ArgumentError, DTypeError, IndexOutOfRange
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.tensor.gradcheck import gradcheck
from tinybn.tensor.ops.softmax import log_softmax, logsumexp, softmax

pytestmark = pytest.mark.filterwarnings("error")


def reference(x: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """softmax, log_softmax and logsumexp in extended precision."""
    x = x.astype(np.longdouble)
    largest = x.max(axis=axis, keepdims=True)
    log_sum = np.log(np.exp(x - largest).sum(axis=axis, keepdims=True))
    log = (x - largest) - log_sum
    return np.exp(log), log, np.squeeze(largest + log_sum, axis)


@st.composite
def cases(draw):
    shape = draw(shapes())
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    return shape, axis, draw(seeds), draw(layouts), draw(st.sampled_from((1, 10, 1000)))


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@given(case=cases())
@few
def test_values(dtype, case):
    shape, axis, seed, layout, scale = case
    x = laid_out((scale * normal(shape, seed)).astype(dtype), layout)
    soft, log, log_sum = (a.astype(np.float64) for a in reference(x, axis))
    # exp(x − max) is off by a few eps times |x − max|, which its argument's
    # rounding brings in; the sum of n terms adds n eps; then one rounding.
    unit = EPS[accumulation_dtype(x.dtype)]
    spread = float(x.astype(np.float64).max() - x.astype(np.float64).min())
    n = x.shape[axis] + 4
    close = unit * (n + spread)
    for got, want in ((softmax(plain(x), axis), soft), (log_softmax(plain(x), axis), log)):
        assert got.dtype == dtype and got.shape == want.shape
        # float16 has no numbers between 0 and 2**-24: half of that is lost there.
        assert np.all(np.abs(as64(got) - want) <= close + EPS[dtype] * np.abs(want) + 2.0**-25)
    got = logsumexp(plain(x), axis)
    assert got.dtype == dtype and got.shape == log_sum.shape
    assert np.all(np.abs(as64(got) - log_sum) <= close + (EPS[dtype] + unit) * np.abs(log_sum))


@pytest.mark.parametrize("fn", (softmax, log_softmax, logsumexp))
@given(case=cases())
@few
def test_gradients(fn, case):
    shape, axis, seed, layout, _ = case
    assert gradcheck(lambda x: fn(x, axis), leaf(normal(shape, seed), layout))


def test_large_equal_values():
    got = log_softmax(plain(np.full((1, 11), -1e10, np.float32)), -1)
    assert np.array_equal(got.data, np.full((1, 11), -np.log(np.float32(11))))
    assert np.array_equal(
        softmax(plain(np.full((2, 4), 1e38, np.float32)), -1).data, np.full((2, 4), 0.25)
    )
    assert log_softmax(plain(np.array([0.0, 1000.0])), -1).data.tolist() == [-1000, 0]


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_infinities_and_nan(dtype):
    low, high = -np.inf, np.inf
    x = plain(np.array([[low, low], [low, 1], [high, 1], [np.nan, 1]]).astype(dtype))
    for fn in (softmax, log_softmax):
        y = as64(fn(x, -1))
        assert np.isnan(y[[0, 2, 3]]).any(axis=1).all() and not np.isnan(y[1]).any()
    assert as64(softmax(x, -1))[1].tolist() == [0, 1]
    assert as64(log_softmax(x, -1))[1].tolist() == [low, 0]
    total = as64(logsumexp(x, 1))
    assert total[:3].tolist() == [low, 1, high] and np.isnan(total[3])


def test_gradient_where_one_score_is_minus_infinity():
    x = leaf(np.array([-np.inf, 0.0, 0.0]))
    log_softmax(x, -1)[1].backward()
    assert np.allclose(x.grad.data, [0, 0.5, -0.5])


def test_logsumexp_axes_and_empties():
    x = leaf(normal((2, 3, 4), 0))
    for axis in (None, (0, 2), (), -1):
        for keepdims in (False, True):
            want = np.log(np.sum(np.exp(x.data), axis=axis, keepdims=keepdims))
            got = logsumexp(x, axis, keepdims)
            assert got.shape == want.shape and np.allclose(got.data, want, rtol=1e-14)
            assert gradcheck(lambda t, a=axis, k=keepdims: logsumexp(t, a, k), x)
    assert logsumexp(plain(np.array(2.0))).data == 2
    assert np.isneginf(logsumexp(plain(np.zeros((2, 0))), 1).data).all()
    assert softmax(plain(np.zeros((2, 0))), -1).shape == (2, 0)
    assert log_softmax(plain(np.zeros((0, 3))), -1).shape == (0, 3)
    empty = leaf(np.zeros((0, 3)))
    softmax(empty, -1).backward(plain(np.zeros((0, 3))))
    assert empty.grad.shape == (0, 3)


@pytest.mark.parametrize("fn", (softmax, log_softmax, logsumexp))
def test_errors(fn):
    with pytest.raises(DTypeError, match="int64"):
        fn(plain(np.zeros(3, np.int64)), 0)
    with pytest.raises(IndexOutOfRange, match="axis 1"):
        fn(plain(np.zeros(3)), 1)
    with pytest.raises(ArgumentError, match="axis is .*; wanted an integer"):
        fn(plain(np.zeros(3)), 0.5)
