"""NumPy's operators, ufuncs and functions with a Tensor among their arguments."""

from __future__ import annotations

import operator

import numpy as np
import pytest

import tinybn as tb
from tinybn.errors import DTypeError, TapeError

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
ARRAY = np.array([3.0, 4.0], np.float32)
WANTED = {
    "exp": "tb.exp", "log": "tb.log", "sqrt": "tb.sqrt", "tanh": "tb.tanh", "sin": "tb.sin",
    "log1p": "tb.log1p", "isnan": "tb.isnan", "isfinite": "tb.isfinite", "absolute": r"abs\(x\)",
    "negative": "-x", "square": r"x\.square\(\)", "sign": r"x\.sign\(\)",
    "reciprocal": r"x\.reciprocal\(\)", "floor": r"x\.floor\(\)", "rint": r"x\.round\(\)",
    "add": "tb.add", "subtract": "tb.sub", "multiply": "tb.mul", "divide": "tb.div",
    "power": "tb.pow", "matmul": "tb.matmul", "maximum": "tb.maximum", "remainder": "tb.remainder",
}  # fmt: skip


def x_of(device="cpu", grad=False):
    return tb.tensor([1.0, 2.0], device=device, requires_grad=grad)


@DEVICES
@pytest.mark.parametrize("name", WANTED)
def test_a_ufunc_names_ours(name, device):
    function = getattr(np, name)
    for grad in (False, True):
        x = x_of(device, grad)
        with pytest.raises(DTypeError, match=rf"np\.{name} takes no Tensor; wanted {WANTED[name]}"):
            function(*[x] * function.nin)


def test_a_ufunc_that_we_lack_names_the_array():
    for function in (np.arctan, np.cbrt, np.logical_not):
        with pytest.raises(DTypeError, match=rf"{function.__name__} takes no Tensor.*x\.numpy\(\)"):
            function(x_of())
    for call in (np.add.reduce, np.maximum.accumulate, lambda x: np.multiply.outer(x, x)):
        with pytest.raises(DTypeError, match=r"takes no Tensor.*x\.numpy\(\)"):
            call(x_of())
    with pytest.raises(DTypeError, match="takes no Tensor"):
        np.exp(ARRAY, out=x_of())
    with pytest.raises(DTypeError, match="takes no Tensor"):
        np.add(ARRAY, x_of(), where=ARRAY > 3)


BINARY = [
    operator.add, operator.sub, operator.mul, operator.truediv, operator.floordiv, operator.mod,
    operator.pow, operator.matmul, operator.eq, operator.ne, operator.lt, operator.le,
    operator.gt, operator.ge,
]  # fmt: skip
INTEGER = [operator.and_, operator.or_, operator.xor]


@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_an_array_beside_an_operator_is_an_operand(op):
    for left in (ARRAY, ARRAY.astype(np.float64), np.arange(2), np.float64(3), np.float32(3)):
        if op is operator.matmul and left.ndim == 0:
            continue
        x = x_of(grad=True)
        result = op(left, x)
        assert isinstance(result, tb.Tensor)
        wanted = op(np.asarray(left), x.detach().numpy())
        assert result.dtype == wanted.dtype
        np.testing.assert_allclose(result.detach().numpy(), wanted, rtol=1e-6)
        assert result.requires_grad == (wanted.dtype != bool and op is not operator.floordiv)


@pytest.mark.parametrize("op", INTEGER, ids=lambda op: op.__name__)
def test_bits(op):
    for dtype in (np.int64, bool):
        left, right = np.array([1, 0], dtype), np.array([1, 1], dtype)
        result = op(left, tb.tensor(right))
        assert isinstance(result, tb.Tensor)
        assert result.tolist() == op(left, right).tolist()


def test_what_is_no_operator_of_ours():
    for op in (operator.lshift, operator.rshift, divmod):
        with pytest.raises(TypeError):
            op(np.array([1, 2]), tb.tensor([1, 2]))
    array = ARRAY.copy()
    for op in (operator.iadd, operator.imul, operator.ipow):
        with pytest.raises(DTypeError, match=r"takes no Tensor.*x\.numpy\(\)"):
            op(array, x_of())
    np.testing.assert_array_equal(array, ARRAY)


@DEVICES
def test_functions_of_arrays_take_the_values(device):
    x, values = x_of(device), np.array([1.0, 2.0], np.float32)
    for function in (np.mean, np.sum, np.max, np.min, np.prod, np.std, np.var, np.argmax, np.sort,
                     np.cumsum, np.median, np.ptp, np.any, np.all, np.linalg.norm):  # fmt: skip
        result = function(x)
        assert not isinstance(result, tb.Tensor) and result.dtype == function(values).dtype
        np.testing.assert_array_equal(result, function(values))
    np.testing.assert_array_equal(np.mean(x, axis=0, dtype=np.float64), 1.5)
    assert type(np.concatenate([x, x])) is np.ndarray
    np.testing.assert_array_equal(np.stack([x, values]), np.stack([values, values]))
    np.testing.assert_array_equal(np.where(x > 1 if device == "cpu" else values > 1, x, 0), [0, 2])
    assert np.allclose(x, values) and np.shape(x) == (2,) and np.ndim(x) == 1
    np.testing.assert_allclose(x, values)


def test_a_gradient_is_not_lost_in_silence():
    x = x_of(grad=True)
    for function in (np.mean, np.sum, np.sort, lambda v: np.concatenate([v, v])):
        with pytest.raises(TapeError, match=r"x\.detach\(\)\.numpy\(\)"):
            function(x)
    assert np.shape(x) == (2,)


def test_numpy_writes_into_no_tensor():
    x = x_of()
    for write in (
        lambda: np.copyto(x, 0), lambda: np.put(x, [0], 5), lambda: np.sum(ARRAY, out=x),
        lambda: np.fill_diagonal(tb.zeros(2, 2), 1), lambda: np.cumsum(ARRAY, out=x),
    ):  # fmt: skip
        with pytest.raises(ValueError, match="read-only"):
            write()
    assert x.tolist() == [1, 2]


@pytest.mark.gpu
@pytest.mark.parametrize("op", BINARY, ids=lambda op: op.__name__)
def test_a_cupy_array_beside_an_operator_is_an_operand(op):
    import cupy

    x = x_of("cuda", grad=True)
    result = op(cupy.asarray(ARRAY), x)
    assert isinstance(result, tb.Tensor) and result.device.type == "cuda"
    wanted = op(ARRAY, x.detach().numpy())
    np.testing.assert_allclose(result.detach().numpy(), wanted, rtol=1e-6)
    assert result.requires_grad == (wanted.dtype != bool and op is not operator.floordiv)
