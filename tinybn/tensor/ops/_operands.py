"""What the elementwise ops share: operands made ready, and dtypes widened and narrowed.

A binary function takes Tensors, NumPy or CuPy arrays, lists and Python numbers.
Python numbers are weak, as in NumPy (NEP 50): they take the dtype of the tensor
beside them, so ``bfloat16 * 2.0`` stays bfloat16. Everything else is strong.
Arithmetic of a half precision and a number runs in float32 (``beside_numbers``),
as in PyTorch, so that 1e-3 is not rounded before it is used nor 1e5 infinite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, DeviceError, DTypeError, ShapeError
from ...kernels.arrays import accumulation_dtype
from ...kernels.gpu import cupy, is_cupy
from ..dtypes import bfloat16, bool_, float16, float32, float64, is_float
from ..interchange import to_array
from ..tape import is_tensor, wrap
from ._sums import total

if TYPE_CHECKING:
    from ..device import Device
    from ..tensor import Tensor

Array = Any  # numpy.ndarray or cupy.ndarray
Operand = Any  # Tensor, NumPy or CuPy array, list, or Python number


def is_operand(value: Any) -> bool:
    """Whether a binary operator takes ``value``; otherwise it returns NotImplemented."""
    return (
        is_tensor(value)
        or isinstance(value, (bool, int, float, np.ndarray, np.generic, list, tuple))
        or is_cupy(value)
    )


def is_scalar(value: Any) -> bool:
    """Whether ``value`` is a Python number (a NumPy number is not: it has a dtype)."""
    return isinstance(value, (bool, int, float)) and not isinstance(value, np.generic)


def as_tensor(value: Operand, name: str = "the function", device: Device | None = None) -> Tensor:
    """Return ``value`` as a Tensor: itself, or a new one on ``device`` (None: the default).

    Raises:
        DTypeError: for a type or dtype that the function called ``name`` does not take.
    """
    if is_tensor(value):
        return value
    if not is_operand(value):
        raise DTypeError(
            f"{name} takes tensors, arrays and real numbers, not {type(value).__name__}"
        )
    return wrap(to_array(value, device=None if is_cupy(value) else device))


def operands(name: str, *values: Operand, exact: bool = False) -> tuple[Any, ...]:
    """Return what ``apply`` takes for a function of several operands, all checked.

    Python numbers stay as they are beside a Tensor; the rest become Tensors on
    the device of the first Tensor. With no Tensor among them all become Tensors.

    Args:
        exact: leave a float beside bfloat16 a Python float, for ``beside_numbers``.

    Raises:
        DTypeError: for a type or dtype that is not taken.
        DeviceError: for tensors on different devices.
        ShapeError: for shapes that do not broadcast.
    """
    if all(map(is_tensor, values)) and _alike(*values):
        return values
    first = next((v for v in values if is_tensor(v)), None)
    if first is None:
        first = as_tensor(next((v for v in values if not is_scalar(v)), values[0]), name)
    ready = [v if is_scalar(v) else as_tensor(v, name, first.device) for v in values]
    tensors = [v for v in ready if is_tensor(v)]
    if not tensors:
        ready = tensors = [as_tensor(v, name) for v in values]
    if len(tensors) > 1:
        check_devices(name, *tensors)
        broadcast_shape(name, *(t.shape for t in tensors))
    if any(t.dtype == bfloat16 for t in tensors):
        return _promote_bfloat16(ready, tensors, exact)
    return tuple(ready)


def number_operands(name: str, *values: Operand, exact: bool = True) -> tuple[Any, ...]:
    """:func:`operands` of which Python numbers take the result's dtype.

    Raises:
        ArgumentError: for an integer too large for that dtype; also as :func:`operands`.
    """
    ready = operands(name, *values, exact=exact)
    check_numbers(name, *ready)
    return ready


def check_numbers(name: str, *values: Any) -> None:
    """Raise ArgumentError if an integer among the values does not fit the others' dtype."""
    for value in values:
        # Each dtype but bool, which gives int64 beside an integer, holds 31 bits.
        if type(value) is int and not -(2**31) <= value < 2**31:
            check_fits(name, value, result_dtype(*(v for v in values if v is not value), 0))


def check_fits(name: str, number: Any, dtype: np.dtype) -> None:
    """Raise ArgumentError if a Python integer is too large for ``dtype``.

    A floating dtype takes all that a Python float can be; it rounds, to infinity if it must.
    """
    if isinstance(number, float):
        return
    if is_float(dtype):
        fits = abs(number) < 2**1023
    elif dtype == bool_:
        fits = True  # every number is true or false
    else:
        fits = np.iinfo(dtype).min <= number <= np.iinfo(dtype).max
    if not fits:
        shown = str(number) if abs(number) < 10**30 else f"of {number.bit_length()} bits"
        raise ArgumentError(f"{name}: the integer {shown} does not fit into {dtype.name}")


def beside_numbers(*values: Any) -> tuple[Any, ...]:
    """The values, but float16 and bfloat16 arrays in float32 if a Python number is among them."""
    if not any(map(is_scalar, values)):
        return values
    return tuple(v if v is None or is_scalar(v) or not _is_half(v) else wide(v) for v in values)


def _is_half(array: Array) -> bool:
    return array.dtype.itemsize == 2  # of the seven dtypes float16 and bfloat16 alone


def computed(function: Callable[..., Array], a: Any, b: Any) -> Array:
    """``function(a, b)``; half precision beside a Python number in float32, rounded once."""
    array = b if is_scalar(a) else a if is_scalar(b) else None
    if array is None or not _is_half(array):
        return function(a, b)
    return narrow(function(*beside_numbers(a, b)), array)


def _alike(first: Tensor, *others: Tensor) -> bool:
    """Whether shapes, dtypes and devices are all the same, so that nothing is left to check."""
    return all(
        other.shape == first.shape
        and other.dtype == first.dtype
        and _same_place(other.data, first.data)
        for other in others
    )


def _same_place(a: Array, b: Array) -> bool:
    # Ten times as fast on a GPU as making two Devices to compare.
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return type(a) is type(b)
    return a.data.device_id == b.data.device_id


def _promote_bfloat16(
    ready: Sequence[Any], tensors: Sequence[Tensor], exact: bool
) -> tuple[Any, ...]:
    # NumPy knows no common dtype of bfloat16 and most others, nor that a
    # Python float beside it is weak; ours is the rule that float16 follows.
    common = result_dtype(*ready)
    return tuple(
        (bfloat16.type(v) if common == bfloat16 and isinstance(v, float) and not exact else v)
        if is_scalar(v)
        else (v if v.dtype in (common, bool_) else v.astype(common))
        for v in ready
    )


def result_dtype(*operands: Any) -> np.dtype:
    """NumPy's promotion of Tensors, arrays and Python numbers, extended to bfloat16.

    bfloat16 with float16 gives float32, with int32 or int64 float64 (as float16
    does), and with bool or a Python number bfloat16.
    """
    dtypes = [v.dtype for v in operands if not is_scalar(v)]
    if bfloat16 not in dtypes:
        return np.result_type(*(v if is_scalar(v) else v.dtype for v in operands))
    others = [d for d in dtypes if d not in (bfloat16, bool_)]
    if not others:
        return bfloat16
    if all(d == float16 for d in others):
        return float32
    return np.result_type(float32, *others)


def promoted(*arrays: Array | None) -> list[Any]:
    """The arrays in the dtype that they have in common; None stays."""
    dtype = result_dtype(*(a for a in arrays if a is not None))
    return [None if a is None else a.astype(dtype, copy=False) for a in arrays]


def check_tensors(**values: Any) -> None:
    """Raise DTypeError unless each value is a Tensor; the keywords name them."""
    for name, value in values.items():
        if not is_tensor(value):
            raise DTypeError(f"{name} is {type(value).__name__}; wanted a Tensor")


def check_optional_tensors(**values: Any) -> None:
    """Raise DTypeError unless each value is a Tensor or None; the keywords name them."""
    for name, value in values.items():
        if value is not None and not is_tensor(value):
            raise DTypeError(f"{name} is {type(value).__name__}; wanted a Tensor or None")


def not_floating(name: str, value: Tensor) -> DTypeError:
    """The error of a Tensor called ``name`` that must be floating."""
    images = f", or {name}.float() / 255 for images" if name == "input" else ""
    return DTypeError(
        f"{name} has dtype {value.dtype.name}; wanted a floating dtype: {name}.float(){images}"
    )


def check_devices(name: str, *tensors: Tensor) -> None:
    """Raise DeviceError unless all tensors are on one device."""
    first = tensors[0].device
    for other in tensors[1:]:
        if other.device != first:
            raise DeviceError(
                f"{name} needs its tensors on one device, but they are on {first} and "
                f"{other.device}; move one with .to()"
            )


def broadcast_shape(name: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape that ``shapes`` broadcast to, or raise ShapeError naming them."""
    if all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    try:
        return np.broadcast_shapes(*shapes)
    except ValueError:
        listed = " and ".join(str(shape) for shape in shapes)
        raise ShapeError(f"{name} cannot broadcast the shapes {listed} together") from None


def unbroadcast(grad: Array, shape: tuple[int, ...]) -> Array:
    """Sum ``grad`` over the axes along which an input of ``shape`` was repeated.

    Sums are rounded to the accumulation dtype, so that a low-precision bias under
    a large batch gets the right gradient; the tape rounds the result once.
    """
    if grad.shape == shape:
        return grad
    lead = grad.ndim - len(shape)
    axes = tuple(
        axis
        for axis, size in enumerate(grad.shape)
        if axis < lead or (shape[axis - lead] == 1 and size != 1)
    )
    return total(grad, axes).reshape(shape)


def wide(x: Array) -> Array:
    """Return ``x`` in the dtype in which it is computed.

    float32 for the half precisions, float64 for integers and booleans.
    """
    dtype = accumulation_dtype(x.dtype) if is_float(x.dtype) else float64
    return x if x.dtype == dtype else x.astype(dtype)


def narrow(y: Array, x: Array) -> Array:
    """Return ``y``, computed from ``wide(x)``, in the dtype of a floating ``x``."""
    return y.astype(x.dtype) if is_float(x.dtype) and y.dtype != x.dtype else y


def raw(value: Any) -> Any:
    """The array of a Tensor; a number as it is."""
    return value.data if is_tensor(value) else value


def module_of(*values: Any) -> ModuleType:
    """CuPy if one of the arrays and numbers is CuPy's, else NumPy."""
    return cupy() if any(map(is_cupy, values)) else np
