"""Comparisons, logic and tests, element by element. None has a gradient, none is recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DTypeError
from .. import watch
from ..dtypes import is_float
from ..tape import Array, wrap
from ._operands import Operand, as_tensor, is_scalar, module_of, number_operands, operands, raw

if TYPE_CHECKING:
    from ..tensor import Tensor


def equal(a: Operand, b: Operand) -> Tensor:
    """Whether a = b, as bool, broadcast; NaN equals nothing. Raises as ``add``."""
    return _compare("equal", a, b)


def not_equal(a: Operand, b: Operand) -> Tensor:
    """Whether a ≠ b, as bool, broadcast. Raises as ``add``."""
    return _compare("not_equal", a, b)


def less(a: Operand, b: Operand) -> Tensor:
    """Whether a < b, as bool, broadcast. Raises as ``add``."""
    return _compare("less", a, b)


def less_equal(a: Operand, b: Operand) -> Tensor:
    """Whether a ≤ b, as bool, broadcast. Raises as ``add``."""
    return _compare("less_equal", a, b)


def greater(a: Operand, b: Operand) -> Tensor:
    """Whether a > b, as bool, broadcast. Raises as ``add``."""
    return _compare("greater", a, b)


def greater_equal(a: Operand, b: Operand) -> Tensor:
    """Whether a ≥ b, as bool, broadcast. Raises as ``add``."""
    return _compare("greater_equal", a, b)


def bitwise_and(a: Operand, b: Operand) -> Tensor:
    """a & b of bools or integers, broadcast. Raises as ``add``."""
    return _bitwise("bitwise_and", a, b)


def bitwise_or(a: Operand, b: Operand) -> Tensor:
    """a | b of bools or integers, broadcast. Raises as ``add``."""
    return _bitwise("bitwise_or", a, b)


def bitwise_xor(a: Operand, b: Operand) -> Tensor:
    """a ^ b of bools or integers, broadcast. Raises as ``add``."""
    return _bitwise("bitwise_xor", a, b)


def bitwise_not(x: Operand) -> Tensor:
    """~x: of a bool its opposite, of an integer −x − 1. Raises DTypeError for floats."""
    x = as_tensor(x, "bitwise_not")
    watch.read(x, "bitwise_not")
    _check_integral("bitwise_not", x)
    return wrap(~x.data)


def isnan(x: Operand) -> Tensor:
    """Whether x is NaN, as bool."""
    data = _read(x, "isnan")
    return wrap(data != data)  # only NaN differs from itself


def isinf(x: Operand) -> Tensor:
    """Whether x is +∞ or −∞, as bool."""
    data = _read(x, "isinf")
    return wrap(abs(data) == float("inf"))


def isfinite(x: Operand) -> Tensor:
    """Whether x is neither infinite nor NaN, as bool."""
    data = _read(x, "isfinite")
    return wrap((data == data) & (abs(data) != float("inf")))


def _read(x: Operand, name: str) -> Array:
    tensor = as_tensor(x, name)
    watch.read(tensor, name)
    return tensor.data


def _compare(name: str, a: Operand, b: Operand) -> Tensor:
    a, b = operands(name, a, b)
    for x in (a, b):
        watch.read(x, name)
    a, b = raw(a), raw(b)
    with np.errstate(all="ignore"):
        return wrap(getattr(module_of(a, b), name)(a, b))


def _bitwise(name: str, a: Operand, b: Operand) -> Tensor:
    a, b = number_operands(name, a, b)
    _check_integral(name, a)
    _check_integral(name, b)
    for x in (a, b):
        watch.read(x, name)
    a, b = raw(a), raw(b)
    return wrap(getattr(module_of(a, b), name)(a, b))


def _check_integral(name: str, value: Any) -> None:
    if is_scalar(value):
        kind, floating = type(value).__name__, isinstance(value, float)
    else:
        kind, floating = value.dtype.name, is_float(value.dtype)
    if floating:
        raise DTypeError(f"{name} needs bool or integer operands, but one is {kind}")
