"""Reductions: values against NumPy in float64, dtypes, hard values, gradients, errors."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensor.tensor_cases import (
    DTYPES,
    EPS,
    FLOATS,
    as64,
    few,
    gradient_of,
    laid_out,
    layouts,
    leaf,
    normal,
    plain,
    seeds,
    shapes,
    some,
)
from tinybn.errors import ArgumentError, IndexOutOfRange, ShapeError
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.tensor import dtypes
from tinybn.tensor.gradcheck import gradcheck
from tinybn.tensor.ops import reduce

pytestmark = pytest.mark.filterwarnings("error")

NUMPY = {
    "sum": np.sum,
    "mean": np.mean,
    "max": np.max,
    "min": np.min,
    "any": np.any,
    "all": np.all,
    "var": lambda x, axis, keepdims: np.var(x, axis, ddof=1, keepdims=keepdims),
    "std": lambda x, axis, keepdims: np.std(x, axis, ddof=1, keepdims=keepdims),
}
SMOOTH = ("sum", "mean", "var", "std", "max", "min")


def axes_of(ndim: int):
    """None, an int of either sign, or a tuple of distinct axes of either sign."""
    one = st.integers(-ndim, ndim - 1)
    several = st.lists(one, unique_by=lambda a: a % ndim, max_size=ndim).map(tuple)
    return st.one_of(st.none(), one, several)


@st.composite
def cases(draw, **options):
    shape = draw(shapes(**options))
    return shape, draw(axes_of(len(shape))), draw(st.booleans()), draw(seeds), draw(layouts)


@pytest.mark.parametrize("name", NUMPY)
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@given(case=cases())
@few
def test_values_against_numpy(name, dtype, case):
    shape, axis, keepdims, seed, layout = case
    x = laid_out(normal(shape, seed, dtype), layout)
    got = getattr(reduce, name)(plain(x), axis, keepdims=keepdims)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # NumPy warns of no degrees of freedom
        wide = x if name in ("max", "min") and dtype == dtypes.bool_ else x.astype(np.float64)
        want = np.asarray(NUMPY[name](wide, axis=axis, keepdims=keepdims), np.float64)
        scale = np.sum(np.abs(x.astype(np.float64)))
    assert got.shape == want.shape
    # n additions in the accumulation dtype, each off by half an eps of the
    # partial sum, then one rounding. Squares (var) double it; √ (std) of a
    # value near 0 turns an error δ into √δ, but there the deviations are exact.
    n = x.size + 4
    bound = 0.0
    if got.dtype in EPS and name not in ("max", "min"):
        bound = 2 * n * EPS[accumulation_dtype(got.dtype)] * (scale + scale**2)
        bound = bound + EPS[got.dtype] * np.abs(want)
    error = np.abs(as64(got) - want)
    assert np.all((error <= bound) | (np.isnan(as64(got)) & np.isnan(want)))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_dtype_rules(dtype):
    x = plain(normal((3, 4), 0, dtype))
    floating = dtype in FLOATS
    for name in ("sum", "cumsum"):
        assert getattr(reduce, name)(x, 0).dtype == (dtype if floating else dtypes.int64)
    for name in ("mean", "var", "std"):
        assert getattr(reduce, name)(x).dtype == (dtype if floating else dtypes.float64)
    for name in ("max", "min"):
        assert getattr(reduce, name)(x).dtype == dtype
    for name in ("argmax", "argmin"):
        assert getattr(reduce, name)(x).dtype == dtypes.int64
    for name in ("any", "all"):
        assert getattr(reduce, name)(x).dtype == dtypes.bool_


@pytest.mark.parametrize("name", SMOOTH)
@given(case=cases())
@few
def test_gradients(name, case):
    shape, axis, keepdims, seed, layout = case
    values = normal(shape, seed)
    n = np.sum(np.ones(shape), axis=axis).flat[0]
    if name in ("max", "min", "std") and layout == "expanded":
        layout = "transposed"  # repeated values tie, where these have no derivative
    if name in ("var", "std") and n < 2:
        return  # NaN by definition
    x = leaf(values, layout)
    assert gradcheck(lambda x: getattr(reduce, name)(x, axis, keepdims=keepdims), x)


@given(case=cases(empty=True))
@some
def test_empty_tensors(case):
    shape, axis, keepdims, _, _ = case
    x = plain(np.zeros(shape))
    want = np.zeros(shape).sum(axis=axis, keepdims=keepdims)
    nothing = 0 in shape and want.size > 0
    assert np.array_equal(reduce.sum(x, axis, keepdims).data, want)
    assert reduce.mean(x, axis, keepdims).shape == want.shape
    if nothing:
        assert np.isnan(reduce.mean(x, axis, keepdims).data).all()
        assert np.isnan(reduce.var(x, axis).data).all()
    t = leaf(np.zeros(shape))
    reduce.mean(t, axis).backward(plain(np.ones_like(np.sum(np.zeros(shape), axis=axis))))
    assert t.grad.shape == shape


@pytest.mark.parametrize("name", ("max", "min", "argmax", "argmin"))
def test_no_elements_have_no_largest(name):
    nothing = plain(np.zeros((2, 0)))
    with pytest.raises(ShapeError, match=r"shape \(2, 0\)"):
        getattr(reduce, name)(nothing, 1)
    assert getattr(reduce, name)(nothing, 0).shape == (0,)  # two elements for each of no results


@pytest.mark.parametrize("dtype", (dtypes.float16, dtypes.bfloat16), ids=lambda d: d.name)
def test_low_precision_sums_do_not_stall(dtype):
    # In float16 a running sum of ones stops growing at 2048, in bfloat16 at 256.
    ones = plain(np.ones(4096, dtype))
    assert as64(reduce.sum(ones)) == 4096
    assert as64(reduce.mean(ones)) == 1
    assert as64(reduce.cumsum(ones))[-1] == 4096


def test_float16_sum_overflows_to_infinity_in_silence():
    assert np.isposinf(as64(reduce.sum(plain(np.full(4, 60000, np.float16)))))
    assert as64(reduce.mean(plain(np.full(4, 60000, np.float16)))) == 60000


def test_variance_under_a_large_mean():
    rng = np.random.default_rng(0)
    x = (1e4 + 1e-2 * rng.standard_normal((64, 1000))).astype(np.float32)
    exact = np.var(x.astype(np.float64), axis=1)
    got = as64(reduce.var(plain(x), 1, correction=0))
    # Differences from the mean are exact or off by one eps; squares and sums of
    # equal sign add a relative error of a few eps each.
    assert np.max(np.abs(got / exact - 1)) < 16 * EPS[dtypes.float32]
    assert np.all(reduce.var(plain(np.full(1001, 0.1, np.float32))).data == 0)


def test_one_value_has_no_unbiased_variance():
    one = plain(np.array([3.0], np.float32))
    assert np.isnan(reduce.var(one).data) and np.isnan(reduce.std(one).data)
    assert reduce.var(one, correction=0).data == 0


def test_std_gradient_of_equal_values_is_zero():
    x = leaf(np.full(5, 2.0))
    reduce.std(x).backward()
    assert np.array_equal(x.grad.data, np.zeros(5))


@pytest.mark.parametrize("name, sign", [("max", 1), ("min", -1)])
def test_ties_share_the_gradient(name, sign):
    x = sign * np.array([[1.0, 3, 3, 2], [5, 5, 5, 5]])
    (dx,) = gradient_of(
        lambda t: getattr(reduce, name)(t, 1), leaf(x), upstream=np.array([3.0, 8.0])
    )
    assert np.array_equal(dx, [[0, 1.5, 1.5, 0], [2, 2, 2, 2]])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_nan_and_infinity(dtype):
    x = np.array([[1, np.nan, 2], [np.inf, 1, -np.inf]]).astype(dtype)
    assert np.isnan(as64(reduce.max(plain(x), 1))[0]) and np.isnan(as64(reduce.min(plain(x), 1))[0])
    assert as64(reduce.max(plain(x), 1))[1] == np.inf
    assert as64(reduce.min(plain(x), 1))[1] == -np.inf
    assert np.isnan(as64(reduce.sum(plain(x), 1))).all()
    assert np.isnan(as64(reduce.var(plain(x), 1))).all()
    assert reduce.argmax(plain(x), 1).data.tolist() == [1, 0]
    assert reduce.all(plain(x)).data and reduce.any(plain(np.full(1, np.nan, dtype))).data
    t = leaf(x)
    reduce.max(t, 1).backward(plain(np.ones(2, dtype)))
    assert as64(t.grad).tolist() == [[0, 1, 0], [1, 0, 0]]


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@given(case=cases())
@few
def test_argmax_and_argmin(dtype, case):
    shape, axis, keepdims, seed, layout = case
    axis = None if isinstance(axis, tuple) else axis
    x = laid_out(normal(shape, seed, dtype), layout)
    for name in ("argmax", "argmin"):
        got = getattr(reduce, name)(plain(x), axis, keepdims)
        want = getattr(np, name)(x.astype(np.float64), axis=axis, keepdims=keepdims)
        assert got.shape == want.shape and np.array_equal(got.data, want)


@given(case=cases(empty=True))
@some
def test_cumsum(case):
    shape, axis, _, seed, layout = case
    axis = None if isinstance(axis, tuple) else axis
    values = normal(shape, seed)
    x = laid_out(values, layout)
    assert np.array_equal(reduce.cumsum(plain(x), axis).data, np.cumsum(x, axis))
    if values.size:
        assert gradcheck(lambda t: reduce.cumsum(t, axis), leaf(values, layout))


def test_scalars():
    x = leaf(np.array(3.0))
    for name in ("sum", "mean", "max", "min"):
        assert getattr(reduce, name)(x).data == 3 and gradcheck(getattr(reduce, name), x)
    assert reduce.argmax(x).data == 0 and reduce.argmax(x).shape == ()


def test_low_precision_bias_gradient_is_rounded_once():
    x = leaf(np.ones((4096, 1), np.float16))
    y = reduce.sum(x, 1)
    y.backward(plain(np.full(4096, 0.1, np.float16)))
    assert x.grad.dtype == np.float16 and np.all(x.grad.data == np.float16(0.1))


@pytest.mark.parametrize("name", [*NUMPY, "cumsum", "argmax", "argmin"])
def test_wrong_axes(name):
    x = plain(np.zeros((2, 3)))
    fn = getattr(reduce, name)
    for axis in (2, -3):
        with pytest.raises(IndexOutOfRange, match=f"axis {axis} .* 2 dimensions"):
            fn(x, axis)
    with pytest.raises(ArgumentError, match="axis is .*; wanted an integer"):
        fn(x, 1.0)
    if name in NUMPY:
        with pytest.raises(ArgumentError, match="twice"):
            fn(x, (1, -1))
    with pytest.raises(TypeError):
        fn(x, dim=1)
