"""What of a kernel's arguments changes its code, and what the compiled entry is passed."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import DTypeError
from .. import gpu
from ..arrays import BFLOAT16, Array

POINTER_TYPES = {
    np.dtype("float16"): "*fp16",
    BFLOAT16: "*bf16",
    np.dtype("float32"): "*fp32",
    np.dtype("float64"): "*fp64",
    np.dtype("int32"): "*i32",
    np.dtype("int64"): "*i64",
    np.dtype("uint8"): "*u8",
    np.dtype("uint32"): "*u32",
    np.dtype("bool"): "*i1",
}
# Scalars of a fixed type, whose value never changes the code.
SCALAR_TYPES = {np.float32: "fp32", np.float64: "fp64", np.int32: "i32", np.int64: "i64"}
LETTERS = {"fp32": "f", "fp64": "d", "i32": "i", "i64": "q"}  # of ``struct``; pointers are Q
ON_HOST = -1  # beside the numbers of the GPUs
ALIGNMENT = 16  # bytes, or elements of an integer: what Triton needs for its widest loads


def describe(value: Any) -> tuple[tuple, Any, int | None]:
    """An argument's kind, the value to pass, and for an array its device (ON_HOST for NumPy's).

    The kind is what changes the code: type, and whether 16 divides the address
    or integer. One that starts with a string is an argument of the compiled
    entry; any other (None, and the integer 1) is a constant in its code.
    """
    if value is None:
        return (None,), None, None
    if isinstance(value, int):
        if value == 1:
            return (1,), None, None
        return (integer_type(value), value % ALIGNMENT == 0), value, None
    kind = SCALAR_TYPES.get(type(value))
    if kind is not None:
        return (kind, False), value, None
    on_gpu = gpu.is_cupy(value)
    if not (on_gpu or isinstance(value, np.ndarray)) or value.dtype not in POINTER_TYPES:
        given = getattr(value, "dtype", type(value).__name__)
        raise DTypeError(f"a kernel's argument is {given}; wanted an array, int, None or scalar")
    address = value.data.ptr if on_gpu else value.ctypes.data
    device = value.data.device_id if on_gpu else ON_HOST
    return (POINTER_TYPES[value.dtype], address % ALIGNMENT == 0), address, device


def integer_type(value: int) -> str:
    # Half of int32's range, so that a bound plus a tile cannot wrap around.
    return "i32" if -(2**30) <= value < 2**30 else "i64"


def pointer(array: Array) -> int:
    """The address of the array's first element."""
    return array.data.ptr if gpu.is_cupy(array) else array.ctypes.data
