"""The checks that every array function makes before any work."""

from __future__ import annotations

import numpy as np

from ...errors import ArgumentError, DeviceError, DTypeError, ShapeError
from ..arrays import BFLOAT16, Array
from ..gpu import is_cupy

FLOATS = (np.dtype("float16"), BFLOAT16, np.dtype("float32"), np.dtype("float64"))


def place(array: Array) -> str:
    return f"cuda:{array.device.id}" if is_cupy(array) else "cpu"


def check_input(x: Array, name: str = "x") -> None:
    if not (isinstance(x, np.ndarray) or is_cupy(x)):
        raise DTypeError(f"{name} is {type(x).__name__}; wanted a NumPy or CuPy array")
    if x.dtype not in FLOATS:
        raise DTypeError(
            f"{name} has dtype {x.dtype}; wanted float16, bfloat16, float32 or float64"
        )
    if not 2 <= x.ndim <= 5:
        raise ShapeError(
            f"{name} has shape {x.shape}; wanted [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W]"
        )


def check_channels(x: Array, **arrays: Array | None) -> None:
    """Each given array must be [C], floating, and where ``x`` is."""
    for name, array in arrays.items():
        if array is None:
            continue
        if not (isinstance(array, np.ndarray) or is_cupy(array)):
            raise DTypeError(f"{name} is {type(array).__name__}; wanted a NumPy or CuPy array")
        if array.dtype not in FLOATS:
            raise DTypeError(f"{name} has dtype {array.dtype}; wanted a floating-point dtype")
        if array.shape != (x.shape[1],):
            raise ShapeError(
                f"{name} has shape {array.shape}; wanted ({x.shape[1]},), one value for each of "
                f"the channels of x {x.shape}"
            )
        check_same_place(x, array, name)


def check_same_place(x: Array, array: Array, name: str) -> None:
    if place(array) != place(x):
        raise DeviceError(f"{name} is on {place(array)} and x on {place(x)}; wanted one device")


def check_out(out: Array, x: Array) -> None:
    if type(out) is not type(x) or out.shape != x.shape or out.dtype != x.dtype:
        raise ShapeError(
            f"out has shape {getattr(out, 'shape', None)} and dtype {getattr(out, 'dtype', None)}; "
            f"wanted {x.shape} and {x.dtype}"
        )
    check_writable(out, "out")


def check_writable(array: Array | None, name: str) -> None:
    """CuPy arrays always are; a NumPy array may be read-only."""
    if isinstance(array, np.ndarray) and not array.flags.writeable:
        raise ArgumentError(f"{name} is read-only; wanted an array that can be written to")


def check_eps(eps: float) -> None:
    if not eps >= 0:
        raise ArgumentError(f"eps is {eps}; wanted a number that is at least 0")


def check_nchw(x: Array) -> None:
    check_input(x)
    if x.ndim != 4:
        raise ShapeError(f"x has shape {x.shape}; wanted [N, C, H, W]")
