"""Half precision beside a Python number: computed in float32 and rounded once."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import tinybn as tb
from tests.tensor.tensor_cases import as64
from tinybn.errors import ArgumentError

HALVES = [tb.float16, tb.bfloat16]
OPERATIONS = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "pow": operator.pow,
    "remainder": operator.mod,
    "floor_divide": operator.floordiv,
}
# In float16 the first is rounded by 4 per cent, the second is infinite, the third 0.
NUMBERS = (1.3e-6, 1e5, 1e-9, 3, 1.001, 70_000)


def half(values, dtype, requires_grad=False) -> tb.Tensor:
    return tb.tensor(values, dtype=dtype, requires_grad=requires_grad)


def same(found: tb.Tensor, wanted: np.ndarray, dtype) -> None:
    assert found.dtype == dtype
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(as64(found), wanted.astype(dtype).astype(np.float64))


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_the_number_is_not_rounded_first(name, number, dtype):
    function = OPERATIONS[name]
    x = half([1.0, 3.0, 0.7, 1000.0], dtype)
    wide = x.data.astype(np.float32)
    with np.errstate(all="ignore"):
        same(function(x, number), function(wide, number), dtype)
        same(function(number, x), function(number, wide), dtype)
    if name in ("add", "sub", "mul", "div"):
        with np.errstate(all="ignore"):
            same(getattr(x, f"{name}_")(number), function(wide, number), dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("name", ["mul", "div", "pow"])
def test_gradients_take_the_whole_number_too(name, number, dtype):
    function = OPERATIONS[name]
    for flipped in (False, True):
        gradients = []
        for kind in (dtype, tb.float32):
            x = half([1.0, 3.0, 0.7], dtype).astype(kind)
            x.requires_grad = True
            y = function(number, x) if flipped else function(x, number)
            y.backward(tb.tensor([1.0, 2.0, 0.5], dtype=kind))
            gradients.append(x.grad)
        if flipped and name == "pow":  # its gradient is made of the rounded result
            finite = np.isfinite(as64(gradients[0]))
            bound = 2 * float(np.spacing(dtype.type(1)))
            np.testing.assert_allclose(
                as64(gradients[0])[finite], as64(gradients[1])[finite], rtol=bound, atol=1e-6
            )
        else:
            same(gradients[0], gradients[1].data, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_selections_round_the_number_once(dtype):
    # Rounding keeps the order, so that the choice is that of float32; a value equal to the
    # rounded bound still counts as inside and gets the gradient, as in PyTorch.
    x = half([0.1, 5.0, -7.0], dtype, requires_grad=True)
    wide = x.data.astype(np.float32)
    same(tb.maximum(x, 0.1), np.maximum(wide, np.float32(0.1)), dtype)
    same(tb.minimum(x, 1e5), wide, dtype)
    same(tb.where(x > 0, x, 1e-3), np.where(wide > 0, wide, np.float32(1e-3)), dtype)
    clipped = x.clip(0.1, 1e5)
    same(clipped, np.clip(wide, np.float32(0.1), np.float32(1e5)), dtype)
    clipped.sum().backward()
    assert x.grad.tolist() == [1, 1, 0]


@pytest.mark.parametrize("dtype", HALVES, ids=lambda d: d.name)
def test_a_small_factor_under_a_large_gradient(dtype):
    h = half(np.ones(4), dtype, requires_grad=True)
    ((h * 1e-3).sum() * 32768.0).backward()
    same(h.grad, np.full(4, np.float32(32768) * np.float32(1e-3)), dtype)
    x = half([1000.0], dtype, requires_grad=True)
    y = x / 1e5
    assert y.item() == pytest.approx(0.01, rel=2.0**-8)  # one rounding, of bfloat16 at most
    y.backward()
    assert x.grad.item() == pytest.approx(1e-5, rel=2.0**-8)


@pytest.mark.parametrize("name", ["add", "mul", "sub", "div"])
@pytest.mark.parametrize(("dtype", "number"), [(tb.int32, 2**40), (tb.int64, 2**70)])
def test_a_whole_number_too_large_for_the_dtype(name, dtype, number):
    x = tb.tensor([1, 2], dtype=dtype)
    if name == "div":  # the result is float64, which holds both
        assert (x / number).dtype == tb.float64
        return
    for call in (
        lambda: getattr(tb, name)(x, number),
        lambda: getattr(tb, name)(number, x),
        lambda: getattr(x, f"{name}_")(-number),
    ):
        with pytest.raises(ArgumentError, match=dtype.name):
            call()
    assert x.tolist() == [1, 2]


def test_whole_numbers_too_large_for_writes_and_choices():
    x = tb.tensor([1, 2], dtype=tb.int32)
    for call in (
        lambda: x.fill_(2**40),
        lambda: x.__setitem__(0, 2**40),
        lambda: x.clamp_(0, 2**40),
        lambda: tb.maximum(x, 2**40),
        lambda: tb.where(x > 0, x, 2**40),
        lambda: x % 2**40,
        lambda: x // 2**40,
        lambda: x & 2**40,
        lambda: x**2**40,
        lambda: tb.full((2,), 2**40, dtype=tb.int32),
        lambda: tb.ones(2) * 10**400,
        lambda: tb.ones(2, dtype=tb.float16) + 10**400,
        lambda: tb.ones(2).fill_(10**400),
        lambda: tb.tensor([True]) + 2**70,
    ):
        with pytest.raises(ArgumentError, match="does not fit"):
            call()
    assert x.tolist() == [1, 2]
    assert (x < 2**40).tolist() == [True, True]  # a comparison has an answer
    assert (x == 2**70).tolist() == [False, False]
    assert (tb.ones(2) * 2**70).tolist() == [2.0**70] * 2
