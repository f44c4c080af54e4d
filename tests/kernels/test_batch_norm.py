"""The BatchNorm kernels, interpreted and on the GPU, against the reference in float64.

Bounds: a sum over the n rows of a channel errs by at most n·ε of the sum of
absolute values (Higham, equation 4.4), which ``assert_close`` takes as
``terms`` and ``scale``; 16 more terms stand for the few operations around it.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import CPU, all_engines, kernel_engines
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.testing import (
    LAYOUTS,
    NON_FINITE,
    assert_close,
    batch_norm_cases,
    epsilon,
)

FEW = settings(max_examples=20)


def axes(x):
    return (0, *range(2, x.ndim))


def column(values, x):
    return np.asarray(values, np.float64).reshape(-1, *(1,) * (x.ndim - 2))


def exact_statistics(case):
    """x, mean, x − mean and variance, in float64 but worked out in more.

    The mean is taken of x − x₀, so that a constant channel has exactly no spread.
    """
    x = case.x.astype(np.longdouble)
    first = x[(slice(0, 1), slice(None), *(slice(0, 1),) * (x.ndim - 2))]
    shifted = x - first
    shift = shifted.mean(axis=axes(x), keepdims=True)
    spread = shifted - shift
    results = x, (first + shift).reshape(-1), spread, np.square(spread).mean(axis=axes(x))
    return tuple(r.astype(np.float64) for r in results)


@kernel_engines  # which subtract a value first: the bound is on what is left
@FEW
@given(case=batch_norm_cases())
def test_statistics(engine, case):
    x, mean, spread, var = exact_statistics(case)
    running_mean, running_var = case.running_mean.copy(), case.running_var.copy()

    def run(x, running_mean, running_var):
        results = kernels.batch_norm_statistics(
            x, running_mean, running_var, eps=case.eps, momentum=case.momentum
        )
        return (*results, running_mean, running_var)

    got_mean, rstd, residual, running_mean, running_var = engine.run(
        run, case.x, running_mean, running_var
    )
    n = case.rows
    terms = n + 16
    spread = np.abs(spread).mean(axis=axes(x))
    assert_close(got_mean, mean, terms=terms, scale=spread, name="mean")
    assert_close(rstd, 1 / np.sqrt(var + case.eps), terms=terms, scale=1 / np.sqrt(var + case.eps))
    if got_mean.dtype == np.float32:  # float64 has no wider type to check both parts in
        # Together they are the mean to ε², beside what the second pass rounds of the spread.
        error = np.abs(got_mean.astype(np.float64) + residual - mean)
        eps = epsilon(np.float32)
        assert (error <= 2 * terms * eps * (eps * np.abs(mean) + spread) + 1e-40).all()
    keep, m = 1 - case.momentum, case.momentum
    want = keep * case.running_mean.astype(np.float64) + m * mean
    parts = keep * np.abs(case.running_mean) + m * (np.abs(mean) / terms + spread)
    assert_close(running_mean, want, terms=terms, scale=parts, name="running_mean")
    want = keep * case.running_var.astype(np.float64) + m * var * n / (n - 1)
    assert_close(running_var, want, terms=terms, scale=want, name="running_var")


@all_engines
@FEW
@given(case=batch_norm_cases())
def test_training_forward(engine, case):
    x, mean, spread, var = exact_statistics(case)

    def run(x, weight, bias):
        mean, rstd, residual = kernels.batch_norm_statistics(x, eps=case.eps)
        return kernels.batch_norm_normalize_forward(x, weight, bias, mean, rstd, residual=residual)

    y = engine.run(run, case.x, case.weight, case.bias)
    scale = column(1 / np.sqrt(var + case.eps), x)
    x_hat = spread * scale
    weight = 1.0 if case.weight is None else column(case.weight, x)
    bias = 0.0 if case.bias is None else column(case.bias, x)
    average = column(np.abs(x_hat).mean(axis=axes(x)), x)
    parts = np.abs(weight) * (np.abs(x_hat) + average) + np.abs(bias)
    assert_close(y, x_hat * weight + bias, terms=case.rows + 16, scale=parts, name="y")


@all_engines
@FEW
@given(case=batch_norm_cases())
def test_inference(engine, case):
    y = engine.run(
        kernels.batch_norm_forward_inference,
        case.x, case.weight, case.bias, case.running_mean, case.running_var, eps=case.eps,
    )  # fmt: skip
    x = case.x.astype(np.float64)
    rstd = column(1 / np.sqrt(case.running_var.astype(np.float64) + case.eps), x)
    weight = 1.0 if case.weight is None else column(case.weight, x)
    bias = 0.0 if case.bias is None else column(case.bias, x)
    x_hat = (x - column(case.running_mean, x)) * rstd
    parts = np.abs(weight * x_hat) + np.abs(bias)
    assert_close(y, x_hat * weight + bias, terms=16, scale=parts, name="y")


@all_engines
@FEW
@given(case=batch_norm_cases())
def test_training_backward(engine, case):
    x, _, spread, var = exact_statistics(case)
    n = case.rows

    def run(dy, x, weight):
        mean, rstd, residual = kernels.batch_norm_statistics(x, eps=case.eps)
        return kernels.batch_norm_backward(dy, x, weight, mean, rstd, residual=residual)

    dx, dweight, dbias = engine.run(run, case.dy, case.x, case.weight)
    dy = case.dy.astype(np.float64)
    rstd = column(1 / np.sqrt(var + case.eps), x)
    x_hat = spread * rstd
    assert_gradients(case, dx, dweight, dbias, dy, x_hat, rstd, n, frozen=False)


@all_engines
@FEW
@given(case=batch_norm_cases())
def test_frozen_backward(engine, case):
    dx, dweight, dbias = engine.run(
        kernels.batch_norm_frozen_backward,
        case.dy, case.x, case.weight, case.running_mean, case.running_var, eps=case.eps,
    )  # fmt: skip
    x = case.x.astype(np.float64)
    rstd = column(1 / np.sqrt(case.running_var.astype(np.float64) + case.eps), x)
    x_hat = (x - column(case.running_mean, x)) * rstd
    assert_gradients(
        case, dx, dweight, dbias, case.dy.astype(np.float64), x_hat, rstd, case.rows, frozen=True
    )


def assert_gradients(case, dx, dweight, dbias, dy, x_hat, rstd, n, frozen):
    x = case.x
    terms = n + 16
    weight = 1.0 if case.weight is None else column(case.weight, x)
    sum_dy, sum_dy_x_hat = dy.sum(axis=axes(x)), (dy * x_hat).sum(axis=axes(x))
    size_dy = np.abs(dy).sum(axis=axes(x))
    # x̂ itself errs by terms·ε of its size and of its channel's average size.
    average = column(np.abs(x_hat).mean(axis=axes(x)), x)
    size_dy_x_hat = (np.abs(dy) * (np.abs(x_hat) + average)).sum(axis=axes(x))
    assert_close(dbias, sum_dy, terms=terms, scale=size_dy, name="dbias")
    assert_close(dweight, sum_dy_x_hat, terms=2 * terms, scale=size_dy_x_hat, name="dweight")
    if frozen:
        want, parts = dy, np.abs(dy)
    else:
        want = dy - column(sum_dy, x) / n - x_hat * column(sum_dy_x_hat, x) / n
        parts = np.abs(dy) + column(size_dy, x) / n
        parts = parts + (np.abs(x_hat) + average) * column(size_dy_x_hat, x) / n
    factor = np.abs(weight * rstd)
    assert_close(dx, weight * rstd * want, terms=3 * terms, scale=factor * parts, name="dx")


@all_engines
@settings(max_examples=12)
@given(case=batch_norm_cases(values=NON_FINITE, dtype=(np.float32, np.float16)))
def test_a_value_that_is_not_finite_spoils_its_channel_alone(engine, case):
    def run(dy, x, weight, bias):
        mean, rstd, residual = kernels.batch_norm_statistics(x, eps=case.eps)
        y = kernels.batch_norm_normalize_forward(x, weight, bias, mean, rstd, residual=residual)
        dx, dweight, _ = kernels.batch_norm_backward(dy, x, weight, mean, rstd, residual=residual)
        return mean, y, dx, dweight

    arguments = (case.dy, case.x, case.weight, case.bias)
    for got, want in zip(engine.run(run, *arguments), CPU.run(run, *arguments)):
        np.testing.assert_array_equal(np.isnan(got), np.isnan(want))
        np.testing.assert_array_equal(np.isinf(got), np.isinf(want))


@all_engines
@pytest.mark.parametrize("layout", LAYOUTS)
def test_inputs_are_unchanged_and_layout_is_kept(engine, layout):
    from tinybn.testing import lay_out

    rng = np.random.default_rng(0)
    x = lay_out(rng.standard_normal((3, 4, 5, 2)).astype(np.float32), layout)
    before = x.copy()

    def run(x, mean, var):
        y = kernels.batch_norm_forward_inference(x, None, None, mean, var, eps=0.0)
        if layout == "channels_last":
            assert y.transpose(0, 2, 3, 1).flags.c_contiguous
        return x, y

    for result in engine.run(run, x, np.zeros(4, np.float32), np.ones(4, np.float32)):
        np.testing.assert_array_equal(result, before)


@all_engines
def test_large_mean_small_spread_loses_nothing(engine):
    # float32 holds these values exactly: the result must be the float64 one, rounded.
    x = (1e4 + 2.0**-7 * np.arange(-8, 8)).astype(np.float32)[:, None]
    wide = x.astype(np.float64)
    want = (wide - wide.mean()) / np.sqrt(wide.var() + 1e-12)

    def run(x):
        mean, rstd, residual = kernels.batch_norm_statistics(x, eps=1e-12)
        return kernels.batch_norm_normalize_forward(x, None, None, mean, rstd, residual=residual)

    np.testing.assert_allclose(engine.run(run, x), want, rtol=8 * epsilon(np.float32))


@all_engines
@pytest.mark.parametrize(
    "x",
    [
        np.array([1e30, 2e30, 3e30, 4e30], np.float32)[:, None],
        np.repeat(np.array([1.0, 2e35], np.float32), 5000)[:, None],
    ],
    ids=["few", "many"],
)
def test_values_near_the_largest_float_give_no_nan(engine, x):

    def run(x):
        mean, rstd = kernels.batch_norm_stats_forward(x)
        return kernels.batch_norm_normalize_forward(x, None, None, mean, rstd)

    assert np.isfinite(engine.run(run, x)).all()


@all_engines
def test_float64_running_statistics_of_float32_input_keep_their_digits(engine):
    x = np.random.default_rng(0).standard_normal((4, 2)).astype(np.float32)
    third = np.full(2, 1 / 3)

    def run(x, mean, var):
        kernels.batch_norm_stats_forward(x, mean, var, momentum=0.0)
        return mean, var

    for result in engine.run(run, x, third.copy(), third.copy()):
        np.testing.assert_array_equal(result, third)


@all_engines
def test_same_input_same_bits(engine):
    x = np.random.default_rng(0).standard_normal((257, 33)).astype(np.float32)
    first = engine.run(kernels.batch_norm_stats_forward, x)
    for _ in range(3):
        for a, b in zip(first, engine.run(kernels.batch_norm_stats_forward, x)):
            np.testing.assert_array_equal(a, b)


@all_engines
@pytest.mark.parametrize(("rows", "channels"), [(1, 1), (8, 2), (2, 64), (64, 1)])
def test_result_does_not_depend_on_tile_sizes_beyond_rounding(engine, rows, channels):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((7, 5, 3)).astype(np.float32)
    want_mean = x.astype(np.float64).mean(axis=(0, 2))
    stats = kernels.BatchNormStatsForward(rows, channels)

    def run(x, mean, rstd):
        stats(x, None, None, mean, rstd, None, eps=1e-5, momentum=0.1)
        return mean, rstd

    mean, _ = engine.run(run, x, np.full(5, np.nan, np.float32), np.full(5, np.nan, np.float32))
    assert_close(mean, want_mean, terms=37, scale=np.abs(x).mean())


@all_engines
def test_out_is_written_and_returned(engine):
    rng = np.random.default_rng(0)
    x = rng.standard_normal((6, 3)).astype(np.float32)

    def run(x):
        mean, rstd = x[0] * 0, x[0] * 0
        results = kernels.batch_norm_stats_forward(x, out=(mean, rstd))
        y = x.copy()
        result = kernels.batch_norm_normalize_forward(x, None, None, mean, rstd, out=y)
        assert result is y and results[0] is mean and results[1] is rstd
        in_place = x.copy()
        kernels.batch_norm_normalize_forward(in_place, None, None, mean, rstd, out=in_place)
        return y, in_place

    y, in_place = engine.run(run, x)
    want = (x - x.astype(np.float64).mean(0)) / np.sqrt(x.astype(np.float64).var(0) + 1e-5)
    assert_close(y, want, terms=22)
    np.testing.assert_array_equal(y, in_place)


X = np.ones((4, 3), np.float32)
C = np.ones(3, np.float32)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: kernels.batch_norm_stats_forward(X[:1]), ShapeError, "more than one"),
        (lambda: kernels.batch_norm_stats_forward(X[:, 0]), ShapeError, "wanted \\[N, C\\]"),
        (lambda: kernels.batch_norm_stats_forward(X.astype(int)), DTypeError, "int64"),
        (lambda: kernels.batch_norm_stats_forward(X, C), ArgumentError, "both or neither"),
        (lambda: kernels.batch_norm_stats_forward(X, C[:2], C), ShapeError, "running_mean"),
        (lambda: kernels.batch_norm_stats_forward(X, eps=-1.0), ArgumentError, "eps"),
        (lambda: kernels.batch_norm_stats_forward([[1.0]]), DTypeError, "list"),
        (lambda: kernels.batch_norm_normalize_forward(X, C[:1], None, C, C), ShapeError, "weight"),
        (lambda: kernels.batch_norm_backward(X[:2], X, C, C, C), ShapeError, "dy has shape"),
        (
            lambda: kernels.batch_norm_2d_nchw_forward_inference(X, C, C, C, C),
            ShapeError,
            "N, C, H, W",
        ),
        (
            lambda: kernels.batch_norm_forward_inference(X, C, C, C, C, out=X[:2].copy()),
            ShapeError,
            "out",
        ),
    ],
)
def test_bad_arguments_raise_one_sentence(call, error, words):
    with pytest.raises(error, match=words) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_running_statistics_are_untouched_when_a_call_raises():
    running_mean, running_var = C.copy(), C.copy()
    with pytest.raises(ShapeError):
        kernels.batch_norm_stats_forward(X[:1], running_mean, running_var)
    np.testing.assert_array_equal(running_mean, C)
    np.testing.assert_array_equal(running_var, C)


@pytest.mark.gpu
def test_more_channels_than_a_grid_axis_has_programs():
    from tests.engines import CUDA

    i = np.arange(3 * 65537, dtype=np.int64)
    x = (((40503 * i + 7) % 65536) / 65536).astype(np.float32).reshape(3, 65537)

    def run(x):
        mean, rstd = kernels.batch_norm_stats_forward(x)
        return kernels.batch_norm_normalize_forward(x, None, None, mean, rstd)

    y = CUDA.run(run, x)
    wide = x.astype(np.float64)
    want = (wide - wide.mean(0)) / np.sqrt(wide.var(0) + 1e-5)
    np.testing.assert_allclose(y, want, rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_offsets_beyond_32_bits():
    import cupy

    shape = (2, 1, 32768, 32769)  # 2³¹ + 65536 elements, 4.3 GB
    x = cupy.zeros(shape, cupy.float16)
    x[-1, -1, -1, -1] = 1
    zero, one = cupy.zeros(1, cupy.float32), cupy.ones(1, cupy.float32)
    y = kernels.batch_norm_forward_inference(x, None, None, zero, one, eps=0.0, out=x.copy())
    assert float(y[-1, -1, -1, -1]) == 1 and int(cupy.count_nonzero(y)) == 1
    mean, rstd = kernels.batch_norm_stats_forward(x)
    y = kernels.batch_norm_normalize_forward(x, None, None, mean, rstd, out=y)
    n = x.size
    assert abs(float(y[-1, -1, -1, -1]) - (1 - 1 / n) / np.sqrt(1 / n + 1e-5)) < 0.5
    assert abs(float(y[0, 0, 0, 0])) < 1e-6
    del x, y
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.gpu
@settings(max_examples=100)
@given(case=batch_norm_cases(max_elements=200_000), seed=st.integers(0, 3))
def test_large_cases_on_the_gpu(case, seed):
    from tests.engines import CUDA

    test_training_forward.hypothesis.inner_test(CUDA, case)
    test_training_backward.hypothesis.inner_test(CUDA, case)
