"""Matrix products on every engine against float64.

A result is a sum of k products, added up in blocks: its error is at most (k + 4)·ε of the sum of
the absolute products, with ε of the dtype in which sums are added up (products of TF32's three
parts leave out less than 4·ε of each), and one rounding to the result's dtype.
"""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import CUDA, all_engines, kernel_engines
from tinybn import kernels
from tinybn.errors import DTypeError, ShapeError
from tinybn.kernels.arrays import accumulation_dtype, namespace
from tinybn.kernels.product.objects import LinearBackward, Matmul
from tinybn.testing import FLOAT_DTYPES, epsilon, fill

SIZES = (1, 2, 7, 16, 31, 33, 65)
TERMS = (1, 5, 31, 64, 129, 300)  # the longest are cut into parts


def laid_out(array, layout):
    """The values of ``array`` in other memory."""
    if layout == "transposed":
        return np.ascontiguousarray(array.T).T
    if layout == "reversed":
        return np.ascontiguousarray(array[::-1, ::-1])[::-1, ::-1]
    if layout == "sliced":
        wide = np.zeros((array.shape[0], 2 * array.shape[1] + 1), array.dtype)
        wide[:, 1::2] = array
        return wide[:, 1::2]
    return array


layouts = st.sampled_from(("contiguous", "transposed", "reversed", "sliced"))


@st.composite
def cases(draw, values=("normal", "constant", "large_mean", "mixed_scales")):
    """a [M, K], b [N, K] and what goes with the results."""
    m, n, k = (
        draw(st.sampled_from(SIZES)),
        draw(st.sampled_from(SIZES)),
        draw(st.sampled_from(TERMS)),
    )
    dtype = np.dtype(draw(st.sampled_from(FLOAT_DTYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(values if dtype.itemsize > 2 else ("normal", "constant")))
    a, b = (laid_out(fill(rng, (s, k), dtype, kind), draw(layouts)) for s in (m, n))
    bias = rng.standard_normal(n).astype(dtype) if draw(st.booleans()) else None
    return a, b, bias, rng.standard_normal((m, n)).astype(dtype)


@contextlib.contextmanager
def multiplied(precision):
    """float32's products are made in this precision inside."""
    before = kernels.get_float32_matmul_precision()
    kernels.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        kernels.set_float32_matmul_precision(before)


def assert_close(got, a, b, bias=None):
    """``got`` is a·b + bias as exactly as the module's text says."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    extra = 0 if bias is None else bias.astype(np.float64)
    want, total = a @ b + extra, np.abs(a) @ np.abs(b) + np.abs(extra)
    wide = epsilon(accumulation_dtype(got.dtype))
    bound = (a.shape[1] + 4) * wide * total + epsilon(got.dtype) * np.abs(want)
    smallest = 2.0**-24 if got.dtype == np.float16 else 0  # below its normal numbers
    got = got.astype(np.float64)
    largest = 65504 if smallest else np.inf
    beyond = np.abs(want) - bound > largest
    assert np.all(np.isinf(got[beyond]) & (np.sign(got[beyond]) == np.sign(want[beyond])))
    inside = np.abs(want) + bound < largest
    assert np.all(np.abs(got - want)[inside] <= (bound + smallest)[inside])


@all_engines
@given(case=cases())
@settings(max_examples=20)
def test_product(engine, case):
    a, b, bias, _ = case
    y = engine.run(kernels.matmul, a, b.T, bias)
    assert y.dtype == a.dtype and y.shape == (len(a), len(b))
    assert_close(y, a, b.T, bias)


@all_engines
@given(case=cases(), needs=st.tuples(st.booleans(), st.booleans(), st.booleans()))
@settings(max_examples=20)
def test_gradients(engine, case, needs):
    x, weight, _, dy = case
    dx, dweight, dbias = engine.run(kernels.linear_backward, dy, x, weight, needs)
    assert tuple(g is not None for g in (dx, dweight, dbias)) == needs
    if dx is not None:
        assert_close(dx, dy, weight)
    if dweight is not None:
        assert_close(dweight, dy.T, x)
    if dbias is not None:
        assert_close(dbias[None], np.ones((1, len(dy))), dy)


@all_engines
@given(case=cases(values=("normal",)), seed=st.integers(0, 99))
@settings(max_examples=10)
def test_infinities_and_nan_stay_in_their_rows(engine, case, seed):
    a, b, _, _ = case
    rng = np.random.default_rng(seed)
    a = a.copy()
    for value in (np.inf, -np.inf, np.nan):
        a[rng.integers(len(a)), rng.integers(a.shape[1])] = value
    y = engine.run(kernels.matmul, a, b.T)
    with np.errstate(invalid="ignore"):
        want = a.astype(np.float64) @ b.T.astype(np.float64)
    assert np.array_equal(np.isnan(y), np.isnan(want))
    infinite = np.isinf(want)
    assert np.array_equal(y[infinite].astype(np.float64), want[infinite])


@kernel_engines
@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0xFFC00000, 0x7F800001])
def test_nan_of_any_bits_beside_an_infinity_is_nan(engine, bits):
    a, b = np.ones((16, 32), np.float32), np.ones((16, 32), np.float32)
    a[0, 3] = np.array(bits, np.uint32).view(np.float32)
    a[0, 5] = a[1, 7] = np.inf
    a[2, 0] = -np.inf
    with np.errstate(invalid="ignore"):
        y = engine.run(kernels.matmul, a, b.T)
    want = np.full((16, 16), 32, np.float32)
    want[:3] = np.array([np.nan, np.inf, -np.inf])[:, None]
    np.testing.assert_array_equal(y, want)


@kernel_engines
def test_the_largest_numbers_that_are_not_infinite(engine):
    """Below 2¹²⁸·(1 − 2⁻¹²), which rounds to 2¹²⁸ where 11 bits are kept."""
    limit = 2.0**128 * (1 - 2.0**-12)
    largest = np.nextafter(np.float32(limit), np.float32(0))
    a, b = np.zeros((2, 16), np.float32), np.zeros((16, 2), np.float32)
    a[:, 0], b[0] = (largest, -largest), (0.5, -0.25)
    y = engine.run(kernels.matmul, a, b)
    want = a[:, :1].astype(np.float64) * b[0].astype(np.float64)
    np.testing.assert_allclose(y, want, rtol=6 * epsilon(np.float32))


@kernel_engines
def test_three_products_of_parts_leave_out_less_than_4_epsilon(engine):
    """Each product of 4096 random numbers with 16 alone in its sum, which is rounded twice."""
    rng = np.random.default_rng(0)
    x, y = np.zeros((4096, 16), np.float32), np.zeros((16, 16), np.float32)
    x[:, 0], y[0] = rng.uniform(1, 2, 4096), rng.uniform(-2, -1, 16)
    got = engine.run(kernels.matmul, x, y)
    want = x[:, :1].astype(np.float64) * y[0].astype(np.float64)
    assert (np.abs(got - want) <= (4 + 2) * epsilon(np.float32) * np.abs(want)).all()


@kernel_engines
@pytest.mark.parametrize("precision, unit", [("high", 2.0**-24), ("medium", 2.0**-12)])
def test_errors_are_not_all_to_one_side(engine, precision, unit):
    """Of 4096 sums of 2048 positive products, as cutting off rather than rounding makes them.

    Rounded, an operand's mean error is far below ``unit``, the largest of one rounding; cut off
    it is half of two units for each operand. Of float32, sums cut off in steps of eight terms err
    by 93 units in an emulation; added up outside, 32 or 64 terms at a time, by 2 to 3.
    """
    rng = np.random.default_rng(0)
    a, b = (rng.uniform(1, 2, (64, 2048)).astype(np.float32) for _ in range(2))
    with multiplied(precision):
        got = engine.run(kernels.matmul, a, b.T)
    want = a.astype(np.float64) @ b.T.astype(np.float64)
    errors = got / want - 1
    assert abs(errors.mean()) <= (8 if precision == "high" else 0.25) * unit
    assert np.abs(errors).max() <= (64 if precision == "high" else 1) * unit


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["highest", "high"])
@pytest.mark.parametrize(
    "shape", [(128, 784, 512), (128, 3136, 10), (1024, 512, 512), (3, 70000, 5)]
)
def test_larger_products_are_exact_and_the_same_each_time(precision, shape):
    m, k, n = shape
    rng = np.random.default_rng(0)
    a, b, dy = (rng.standard_normal(s).astype(np.float32) for s in ((m, k), (n, k), (m, n)))
    with multiplied(precision):
        y = CUDA.run(kernels.matmul, a, b.T)
        gradients = CUDA.run(kernels.linear_backward, dy, a, b, (True,) * 3)
        for _ in range(20):
            assert np.array_equal(CUDA.run(kernels.matmul, a, b.T), y)
            again = CUDA.run(kernels.linear_backward, dy, a, b, (True,) * 3)
            assert all(np.array_equal(*pair) for pair in zip(again, gradients))
    assert_close(y, a, b.T)
    assert_close(gradients[0], dy, b)
    assert_close(gradients[1], dy.T, a)


@all_engines
def test_sums_of_nothing(engine):
    y = engine.run(kernels.matmul, np.ones((3, 0)), np.ones((0, 2)), np.array([1.0, 2.0]))
    assert np.array_equal(y, [[1, 2]] * 3)
    dy, x, weight = np.ones((0, 2)), np.ones((0, 3)), np.ones((2, 3))
    dx, dweight, dbias = engine.run(kernels.linear_backward, dy, x, weight, (True,) * 3)
    assert dx.shape == (0, 3) and not dweight.any() and not dbias.any()


def test_what_does_not_fit():
    a = np.ones((2, 3))
    with pytest.raises(ShapeError, match=r"\(2, 3\)"):
        kernels.matmul(a, a)
    with pytest.raises(ShapeError, match="bias"):
        kernels.matmul(a, a.T, np.ones(3))
    with pytest.raises(DTypeError, match="float32"):
        kernels.matmul(a, a.T.astype(np.float32))
    with pytest.raises(ShapeError, match="weight"):
        kernels.linear_backward(a, None, np.ones((4, 5)), (True, False, False))
    with pytest.raises(ShapeError, match="x"):
        kernels.linear_backward(a, np.ones((4, 5)), None, (False, True, False))


@kernel_engines
@pytest.mark.parametrize("parts", [2, 8, 16, 17, 32, 33, 60])
def test_any_number_of_parts(engine, parts):
    """Up to 16 parts are added up at once, more by teams of 16."""
    rng, terms = np.random.default_rng(0), 16 * parts
    shapes = (5, terms), (3, terms), (terms, 5)
    a, b, dy = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    x = np.ascontiguousarray(b.T)
    product, backward = (kind(block_k=16, parts=parts) for kind in (Matmul, LinearBackward))

    def run(a, b, dy, x):
        found = []
        for _ in range(2):  # what counted the programs in is as it was
            y, dweight, dbias = (namespace(a).empty(s, a.dtype) for s in ((5, 3), (5, 3), (5,)))
            product(a, b.T, None, y)
            backward(dy, x, None, None, dweight, dbias)
            found += [y, dweight, dbias]
        return tuple(found)

    found = engine.run(run, a, b, dy, x)
    for y, dweight, dbias in (found[:3], found[3:]):
        assert_close(y, a, b.T)
        assert_close(dweight, dy.T, x)
        assert_close(dbias[None], np.ones((1, terms), np.float32), dy)
    tiles = product._tiles(5, 3, terms, a.dtype)
    assert product._split(5, 3, terms, tiles, processors=1).parts == parts


@kernel_engines
@pytest.mark.parametrize(
    ("rows", "out", "shared"), [(8, 300, [True, False, False]), (300, 8, [False, True, True])]
)
def test_only_gradients_that_are_made_in_parts_take_memory_for_them(engine, rows, out, shared):
    rng, inputs = np.random.default_rng(0), 8
    shapes = (rows, out), (rows, inputs), (out, inputs)
    dy, x, weight = (rng.standard_normal(s).astype(np.float32) for s in shapes)
    backward = LinearBackward()

    def run(dy, x, weight):
        made = [namespace(dy).empty_like(a) for a in (x, weight)]
        made.append(namespace(dy).empty(out, dy.dtype))
        backward(dy, x, weight, *made)
        return tuple(made)

    dx, dweight, dbias = engine.run(run, dy, x, weight)
    assert_close(dx, dy, weight)
    assert_close(dweight, dy.T, x)
    assert_close(dbias[None], np.ones((1, rows), np.float32), dy)
    splits, _ = backward._arguments(dy, x, weight, dx, dweight, dbias)
    assert [split.slots > 0 for split in splits] == shared


@all_engines
def test_gradients_of_layers_without_inputs_or_outputs(engine):
    for rows, inputs, out in ((4, 0, 3), (4, 3, 0), (0, 3, 4)):
        dy, x, weight = np.ones((rows, out)), np.ones((rows, inputs)), np.ones((out, inputs))
        dx, dweight, dbias = engine.run(kernels.linear_backward, dy, x, weight, (True,) * 3)
        assert dx.shape == x.shape and dweight.shape == weight.shape
        assert not dx.any() and not dweight.any() and dbias.tolist() == [rows] * out
