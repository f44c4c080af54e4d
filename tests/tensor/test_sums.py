"""Long sums: adding along any axis is as exact as one rounding allows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinybn as tb
from tests.tensor.tensor_cases import EPS, FLOATS, as64, few, normal, plain, seeds
from tinybn.tensor.ops import softmax
from tinybn.tensor.ops._rows import add_rows, sum_runs

LOW = [tb.float16, tb.bfloat16, tb.float32]
N = 200_000  # float32 added one after the other loses about N eps / 2 = 1 per cent here


def long(dtype, columns: int = 2) -> np.ndarray:
    """[N, columns] of 0.1: a float32 sum of them drifts, and always to one side."""
    return np.full((N, columns), 0.1, np.float32).astype(dtype)


def check(found: np.ndarray, exact, dtype, roundings: int = 2) -> None:
    """Right to ``roundings`` of eps/2 each: to the accumulator and to the result.

    The float64 sum's own error, at most N 2^-53, is less than a thousandth of one.
    """
    bound = roundings * EPS[dtype] / 2 * 1.001
    np.testing.assert_allclose(found.astype(np.float64), exact, rtol=bound, atol=0)


@pytest.mark.parametrize("dtype", LOW, ids=lambda d: d.name)
@pytest.mark.parametrize("layout", ["rows", "columns"])
def test_sum_mean_and_cumsum_over_a_long_axis(dtype, layout):
    x = long(dtype) if layout == "rows" else np.asfortranarray(long(dtype))
    exact = float(x[0, 0]) * N
    scale = 0.125 if dtype == tb.float16 else 1.0  # the sum of 0.1 itself is near 65504
    values = (x * dtype.type(scale)).astype(dtype)
    exact *= scale
    check(plain(values).sum(0).data, exact, dtype)
    check(plain(values).sum().data, 2 * exact, dtype)
    check(plain(values).mean(0).data, exact / N, dtype, roundings=3)  # and the division
    check(plain(values).cumsum(0).data[-1], exact, dtype)


@pytest.mark.parametrize("dtype", LOW, ids=lambda d: d.name)
def test_var_and_std_over_a_long_axis(dtype):
    x = np.random.default_rng(0).standard_normal((N, 2)).astype(dtype)
    exact = x.astype(np.float64).var(axis=0, ddof=1)
    # Each (x - mean)² is rounded in float32 three times at random, which averages out; then
    # the sum, the division and the result: below 6 float32 roundings and one to dtype.
    bound = 6 * EPS[tb.float32] + EPS[dtype]
    np.testing.assert_allclose(as64(plain(x).var(0)), exact, rtol=bound)
    np.testing.assert_allclose(as64(plain(x).std(0)), np.sqrt(exact), rtol=bound)


@pytest.mark.parametrize("dtype", LOW, ids=lambda d: d.name)
def test_gradients_of_what_is_broadcast_over_many_rows(dtype):
    upstream = plain((long(dtype) * dtype.type(0.125)).astype(dtype))
    exact = float(upstream.data[0, 0]) * N
    x = plain(np.ones((N, 2), dtype))
    for fn in (lambda b: x + b, lambda b: x * b, lambda b: b.expand(N, 2)):
        bias = plain(np.ones(2, dtype))
        bias.requires_grad = True
        fn(bias).backward(upstream)
        check(bias.grad.data, exact, dtype)
    bias, weight = plain(np.ones(2, dtype)), plain(np.ones((2, 2), dtype))
    bias.requires_grad = True
    tb.linear(x, weight, bias).backward(upstream)
    check(bias.grad.data, exact, dtype)


def test_softmax_along_a_long_leading_axis():
    x = plain(np.zeros((N, 2), np.float32))
    exact = 1 / N
    check(softmax.softmax(x, 0).data[0], exact, tb.float32)
    # The sum and the logarithm are rounded, the latter to the size of log N: 2 roundings.
    check(softmax.log_softmax(x, 0).data[0], -np.log(N), tb.float32, roundings=4)
    check(softmax.logsumexp(x, 0).data, np.log(N), tb.float32, roundings=4)
    y = plain(np.zeros((N, 2), np.float32))
    y.requires_grad = True
    softmax.log_softmax(y, 0).backward(plain(long(tb.float32)))
    # dx = dy - softmax Σ dy, which is 0 but for the roundings of numbers as large as 0.1;
    # one is that of exp(y), whose exponent near -log N = -12 carries 12 eps/2 into it.
    assert np.abs(y.grad.data).max() <= 0.1 * 16 * EPS[tb.float32]


def test_many_rows_of_one_number():
    numbers = np.zeros(N, np.int64)
    check(add_rows(numbers, long(tb.float32), 1)[0], float(np.float32(0.1)) * N, tb.float32)


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@given(
    n=st.sampled_from((0, 1, 2, 3, 7, 8, 9, 100)), height=st.sampled_from((1, 2, 5, 200)),
    width=st.sampled_from((0, 1, 3)), seed=seeds,
)  # fmt: skip
@few
def test_rows_are_added_up_in_both_ways(dtype, n, height, width, seed):
    numbers = np.random.default_rng(seed).integers(0, height, n)
    rows = normal((n, width), seed, dtype)
    want, total = np.zeros((height, width)), np.zeros((height, width))
    np.add.at(want, numbers, rows.astype(np.float64))
    np.add.at(total, numbers, np.abs(rows.astype(np.float64)))
    got = add_rows(numbers, rows, height)
    assert got.dtype == dtype
    # At most n additions in the accumulation dtype, then one rounding.
    bound = max(n, 1) * EPS[dtype if dtype == np.float64 else np.dtype("float32")] * total
    assert np.all(np.abs(got.astype(np.float64) - want) <= bound + EPS[dtype] * np.abs(want))
    if n:
        wide = rows.astype(np.float64)
        unique, sums = sum_runs(numbers, wide)  # the way CuPy takes
        assert np.array_equal(unique, np.unique(numbers))
        assert np.all(np.abs(sums - want[unique]) <= n * EPS[np.dtype("float64")] * total[unique])
        assert np.array_equal(sums, sum_runs(numbers, wide)[1])  # the same bits each time
        assert np.array_equal(wide, rows.astype(np.float64))  # not written
