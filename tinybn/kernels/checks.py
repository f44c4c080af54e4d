"""The checks that every array function makes before any work."""

from __future__ import annotations

from collections.abc import Container
from typing import Any

import numpy as np

from ..arguments import number
from ..errors import ArgumentError, DeviceError, DTypeError, ShapeError
from .arrays import BFLOAT16, Array, is_array
from .gpu import is_cupy
from .reference.activations import ACTIVATIONS

FLOATS = (np.dtype("float16"), BFLOAT16, np.dtype("float32"), np.dtype("float64"))


def place(array: Array) -> str:
    """The array's device, for a message."""
    return f"cuda:{array.data.device_id}" if is_cupy(array) else "cpu"


def same_place(a: Array, b: Array) -> bool:
    """Whether two arrays are on one device."""
    if is_cupy(a):
        return is_cupy(b) and a.data.device_id == b.data.device_id
    return not is_cupy(b)


def check_array(array: Any, name: str, dtypes: Container[np.dtype], wanted: str) -> None:
    """Raise DTypeError unless ``array`` is a NumPy or CuPy array of one of ``dtypes``."""
    if not is_array(array):
        raise DTypeError(f"{name} is {type(array).__name__}; wanted a NumPy or CuPy array")
    if array.dtype not in dtypes:
        raise DTypeError(f"{name} has dtype {array.dtype}; wanted {wanted}")


def check_float(array: Any, name: str) -> None:
    """Raise DTypeError unless ``array`` is a NumPy or CuPy array of a floating dtype."""
    check_array(array, name, FLOATS, "float16, bfloat16, float32 or float64")


def check_like(first: Array, first_name: str, **others: Array | None) -> None:
    """Each given array must be floating, of ``first``'s dtype, and where it is."""
    for name, array in others.items():
        if array is None:
            continue
        check_float(array, name)
        check_same_place(first, array, name, first_name)
        if array.dtype != first.dtype:
            raise DTypeError(
                f"{name} has dtype {array.dtype}; wanted that of {first_name}, {first.dtype}"
            )


def check_input(x: Array, name: str = "x") -> None:
    check_float(x, name)
    if not 2 <= x.ndim <= 5:
        raise ShapeError(
            f"{name} has shape {x.shape}; wanted [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W]"
        )


def check_channels(x: Array, **arrays: Array | None) -> None:
    """Each given array must be [C], floating, and where ``x`` is."""
    for name, array in arrays.items():
        if array is None:
            continue
        check_float(array, name)
        if array.shape != (x.shape[1],):
            raise ShapeError(
                f"{name} has shape {array.shape}; wanted ({x.shape[1]},), one value for each of "
                f"the channels of x {x.shape}"
            )
        check_same_place(x, array, name)


def check_same_place(x: Array, array: Array, name: str, x_name: str = "x") -> None:
    if not same_place(array, x):
        raise DeviceError(
            f"{name} is on {place(array)} and {x_name} on {place(x)}; wanted one device"
        )


def check_out(out: Any, x: Array, shape: tuple[int, ...], dtype: np.dtype) -> None:
    """``out`` must be an array of this shape and dtype, where ``x`` is, and writable."""
    check_array(out, "out", (dtype,), str(dtype))
    check_same_place(x, out, "out")
    if out.shape != shape:
        raise ShapeError(f"out has shape {out.shape}; wanted {shape}")
    check_writable(out, "out")


def check_pair(running_mean: Any, running_var: Any) -> None:
    """Running statistics come together or not at all."""
    if (running_mean is None) != (running_var is None):
        raise ArgumentError("running_mean and running_var: one is given; wanted both or neither")


def check_writable(array: Array | None, name: str) -> None:
    """CuPy arrays always are; a NumPy array may be read-only."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only; wanted an array that can be written to")


def check_eps(eps: Any) -> None:
    number("eps", eps, least=0)


def check_momentum(momentum: Any) -> None:
    number("momentum", momentum, least=0, most=1)


def check_nchw(x: Array) -> None:
    check_input(x)
    if x.ndim != 4:
        raise ShapeError(f"x has shape {x.shape}; wanted [N, C, H, W]")


def check_activation(activation: str | None) -> None:
    if activation not in tuple(ACTIVATIONS):
        names = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ArgumentError(f"activation is {activation!r}; wanted one of {names}")


def check_finish(
    x: Array, shape: tuple[int, ...], addend: Array | None, activation: str | None
) -> None:
    """A product's end (its epilogue): an addend of the result's shape, an activation by name."""
    check_activation(activation)
    check_like(x, "x", addend=addend)
    if addend is not None and addend.shape != shape:
        raise ShapeError(f"addend has shape {addend.shape}; wanted that of the result, {shape}")


def check_passing(x: Array, addend: Array | None, activation: str | None) -> None:
    """What is applied in passing: an addend of x's shape, an activation by name."""
    check_activation(activation)
    if addend is None:
        return
    check_input(addend, "addend")
    check_same_place(x, addend, "addend")
    if addend.shape != x.shape or addend.dtype != x.dtype:
        raise ShapeError(
            f"addend is {addend.dtype} {addend.shape}; wanted that of x, {x.dtype} {x.shape}"
        )
