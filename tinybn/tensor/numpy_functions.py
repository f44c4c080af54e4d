"""What NumPy's own functions do with a Tensor: NEP 13 (ufuncs) and NEP 18 (the other functions).

``array + tensor`` is ours, with a tape. NumPy's exponential of a Tensor would be an array, without
one: it raises an error that names ours. Other functions take a Tensor for the array of its values.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError
from .tape import is_tensor

if TYPE_CHECKING:
    from .tensor import Tensor

# What the Tensor on the right is asked for, where an array stands on the left.
_REFLECTED = {
    np.add: "__radd__", np.subtract: "__rsub__", np.multiply: "__rmul__",
    np.true_divide: "__rtruediv__", np.floor_divide: "__rfloordiv__", np.remainder: "__rmod__",
    np.power: "__rpow__", np.matmul: "__rmatmul__", np.bitwise_and: "__rand__",
    np.bitwise_or: "__ror__", np.bitwise_xor: "__rxor__", np.equal: "__eq__",
    np.not_equal: "__ne__", np.less: "__gt__", np.less_equal: "__ge__", np.greater: "__lt__",
    np.greater_equal: "__le__",
}  # fmt: skip

# Ours where the name is another.
_OURS = {
    "absolute": "abs(x)", "bitwise_and": "a & b", "bitwise_or": "a | b", "bitwise_xor": "a ^ b",
    "divide": "tb.div", "equal": "a == b", "floor_divide": "a // b", "greater": "a > b",
    "greater_equal": "a >= b", "invert": "~x", "less": "a < b", "less_equal": "a <= b",
    "multiply": "tb.mul", "negative": "-x", "not_equal": "a != b", "power": "tb.pow",
    "rint": "x.round()", "subtract": "tb.sub",
}  # fmt: skip

_OF_SHAPES = frozenset({np.ndim, np.shape, np.size})  # which need no values


class ArrayUfunc:
    """``Tensor.__array_ufunc__``: a function to NumPy, which asks the type, and None to CuPy.

    CuPy asks the object, and only where it finds None leaves ``array + tensor`` to us; else it
    would read a tensor's memory itself and leave the tape.
    """

    def __get__(self, tensor: Tensor | None, owner: type[Tensor]) -> Callable[..., Any] | None:
        return _array_ufunc if tensor is None else None


def _array_ufunc(tensor: Tensor, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
    """What NumPy calls for a ufunc with a Tensor among its arguments.

    Raises:
        DTypeError: (a TypeError) unless an operator with an array on its left made the call.
    """
    # A Tensor on the left of an operator never asks NumPy.
    if method == "__call__" and ufunc in _REFLECTED and not options and not is_tensor(inputs[0]):
        return getattr(tensor, _REFLECTED[ufunc])(inputs[0])
    name, ours = ufunc.__name__, None
    if method != "__call__":
        name = f"{name}.{method}"
    elif not options:
        ours = _ours(name, type(tensor))
    array = f"x.numpy(), the array, for np.{name}"
    raise DTypeError(
        f"np.{name} takes no Tensor; wanted {array if ours is None else f'{ours}, or {array}'}"
    )


def _ours(name: str, cls: type[Tensor]) -> str | None:
    if name in _OURS:
        return _OURS[name]
    if callable(getattr(sys.modules[__package__], name, None)):
        return f"tb.{name}"
    return f"x.{name}()" if hasattr(cls, name) else None


def array_function(
    tensor: Tensor, function: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """``Tensor.__array_function__``: what NumPy calls for its functions that are no ufuncs.

    Lists of Tensors become arrays within NumPy, by ``__array__``.

    Raises:
        TapeError: for a tensor whose gradient the array would lose.
        ValueError: (NumPy's own) for a tensor that would be written to.
    """
    if function not in _OF_SHAPES:
        args = tuple(map(_values, args))
        kwargs = {name: _values(value) for name, value in kwargs.items()}
    return function._implementation(*args, **kwargs)


def _values(value: Any) -> Any:
    """A Tensor as a read-only array, since its version would not count what NumPy writes."""
    if not is_tensor(value):
        return value
    array = np.asarray(value).view()
    array.flags.writeable = False
    return array
