"""Clipping of gradients, by their common norm and by value."""

from __future__ import annotations

import math

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError
from tinybn.testing import FLOAT_DTYPES, epsilon

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])

A, B = [3.0, -4.0], [[0.0, 12.0, -84.0]]  # 3² + 4² + 12² + 84² = 85²


def tensors(device="cpu", dtype=np.float32, grads=(A, B)):
    params = []
    for grad in grads:
        param = nn.Parameter(np.zeros(np.shape(grad), dtype), device=device)
        param.grad = tb.Tensor(np.array(grad, dtype), device=device)
        params.append(param)
    return params


def grads_of(params):
    return [p.grad.numpy().astype(np.float64) for p in params]


@DEVICES
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
@pytest.mark.parametrize(
    ("norm_type", "norm"),
    [(2.0, 85.0), (1, 103.0), (math.inf, 84.0), (3.0, (27 + 64 + 1728 + 84**3) ** (1 / 3))],
)
def test_all_gradients_are_one_vector(device, dtype, norm_type, norm):
    params = tensors(device, dtype)
    got = nn.clip_grad_norm_(params, 2.0, norm_type)
    # Small whole numbers are exact in every dtype here, and their powers in float64.
    assert (got.shape, got.dtype, str(got.device)) == ((), tb.float64, str(params[0].device))
    assert got.item() == pytest.approx(norm, rel=1e-14)
    for grad, before in zip(grads_of(params), (A, B)):
        # One rounding to the gradient's dtype, half an ε, and a few in float64.
        bound = epsilon(dtype) / 2 + 16 * epsilon(np.float64)
        np.testing.assert_allclose(grad, np.array(before) * (2 / (norm + 1e-6)), rtol=bound)


def test_golden_values_of_pytorch():
    # clip_grad_norm_([a, b], 2.0) in PyTorch 2.13, float32.
    params = tensors()
    assert nn.clip_grad_norm_(iter(params), 2.0).item() == 85
    a, b = grads_of(params)
    # Theirs rounds the factor to float32 and then the product.
    rtol = 2 * epsilon(np.float32)
    np.testing.assert_allclose(a, [0.07058823853731155, -0.0941176488995552], rtol=rtol)
    np.testing.assert_allclose(b, [[0.0, 0.2823529541492462, -1.9764705896377563]], rtol=rtol)


@pytest.mark.parametrize("max_norm", [86.0, 1e30, math.inf])
def test_a_smaller_norm_leaves_the_gradients(max_norm):
    params = tensors()
    assert nn.clip_grad_norm_(params, max_norm).item() == 85
    for grad, before in zip(grads_of(params), (A, B)):
        np.testing.assert_array_equal(grad, before)


def test_max_norm_zero_makes_zeros_and_zeros_stay():
    params = tensors()
    nn.clip_grad_norm_(params, 0)
    assert not any(g.any() for g in grads_of(params))
    assert nn.clip_grad_norm_(params, 1.0).item() == 0  # not 0/0
    assert not any(g.any() for g in grads_of(params))


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_squares_do_not_overflow_or_vanish(dtype):
    # 300² is beyond float16, and (1e30)² beyond float32; the smallest squares are below both.
    big = 1e30 if dtype == np.float32 else 300.0
    for size in (big, 1e-30 if dtype == np.float32 else 2.0**-20):
        params = tensors(dtype=dtype, grads=([size, size], [size, -size]))
        value = float(dtype(size))
        assert nn.clip_grad_norm_(params, math.inf).item() == pytest.approx(2 * value, rel=1e-14)


def test_none_gradients_empty_ones_and_single_tensors():
    lone = nn.Parameter(np.ones(2, np.float32))
    assert nn.clip_grad_norm_(lone, 1.0).item() == 0
    assert nn.clip_grad_norm_([], 1.0).item() == 0
    assert nn.clip_grad_norm_([lone, lone], 1.0).dtype == tb.float64
    nn.clip_grad_value_([lone], 1.0)
    assert lone.grad is None
    (param,) = tensors(grads=(A,))
    (empty,) = tensors(grads=([],))
    for norm_type, norm in ((2.0, 5.0), (math.inf, 4.0)):
        param.grad = tb.Tensor(np.array(A, np.float32))
        got = nn.clip_grad_norm_([empty, lone, param], 1.0, norm_type)
        assert got.item() == norm and lone.grad is None
        np.testing.assert_allclose(param.grad.numpy(), np.array(A) / norm, rtol=1e-6)
    assert nn.clip_grad_norm_(param, 10.0).item() == pytest.approx(1.25, rel=1e-6)


@DEVICES
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("norm_type", [2.0, math.inf])
def test_error_if_nonfinite_changes_nothing(device, bad, norm_type):
    params = tensors(device, grads=(A, [1.0, bad]))
    with pytest.raises(ArgumentError, match="error_if_nonfinite"):
        nn.clip_grad_norm_(params, 1.0, norm_type, error_if_nonfinite=True)
    for grad, before in zip(grads_of(params), (A, [1.0, bad])):
        np.testing.assert_array_equal(grad, before)
    norm = nn.clip_grad_norm_(params, 1.0, norm_type).item()
    assert math.isnan(norm) if math.isnan(bad) else norm == math.inf
    # As in PyTorch: a norm of ∞ makes the finite gradients 0, one of NaN makes all NaN.
    want = np.full(2, np.nan) if math.isnan(bad) else np.zeros(2)
    np.testing.assert_array_equal(grads_of(params)[0], want)


@DEVICES
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_value_clipping(device, dtype):
    params = tensors(device, dtype, grads=([3.0, -4.0, 0.5, math.nan], [[-math.inf, math.inf]]))
    nn.clip_grad_value_(params, 3)
    first, second = grads_of(params)
    np.testing.assert_array_equal(first, [3.0, -3.0, 0.5, math.nan])
    np.testing.assert_array_equal(second, [[-3.0, 3.0]])
    nn.clip_grad_value_(params[1], 0.0)
    assert not params[1].grad.numpy().any() and params[1].grad.dtype == dtype


@pytest.mark.parametrize(
    "arguments",
    [(-1.0,), (math.nan,), (1.0, 0.0), (1.0, -2.0), (1.0, math.nan)],
)
def test_bad_arguments_change_nothing(arguments):
    params = tensors()
    with pytest.raises(ArgumentError, match="wanted"):
        nn.clip_grad_norm_(params, *arguments)
    for value in (-1.0, math.nan):
        with pytest.raises(ArgumentError, match="clip_value"):
            nn.clip_grad_value_(params, value)
    for grad, before in zip(grads_of(params), (A, B)):
        np.testing.assert_array_equal(grad, before)


def test_the_gradient_stays_the_same_object_and_counts_a_write():
    (param,) = tensors(grads=(A,))
    grad, memory = param.grad, param.grad.data
    for clip in (nn.clip_grad_norm_, nn.clip_grad_value_):
        before = grad._version.value
        clip(param, 1.0)
        assert param.grad is grad and grad.data is memory and grad._version.value > before


def test_the_optimisers_module_lends_both():
    assert nn.optim.clip_grad_norm_ is nn.clip_grad_norm_
    assert nn.optim.clip_grad_value_ is nn.clip_grad_value_
