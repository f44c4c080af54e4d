"""What every engine needs of an array: its library, accumulator and layout, and a mask of it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np

from .gpu import cupy, is_cupy

Array = Any  # numpy.ndarray or cupy.ndarray

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
_WIDE: dict[np.dtype, np.dtype] = {
    np.dtype("float16"): np.dtype("float32"),
    BFLOAT16: np.dtype("float32"),
    np.dtype("float32"): np.dtype("float32"),
    np.dtype("float64"): np.dtype("float64"),
}


def is_array(value: Any) -> bool:
    """Whether ``value`` is a NumPy or CuPy array."""
    return isinstance(value, np.ndarray) or is_cupy(value)


def namespace(array: Array) -> ModuleType:
    """The module with NumPy's functions for ``array``: NumPy itself, or CuPy."""
    return cupy() if is_cupy(array) else np


def contiguous(array: Array) -> Array:
    """``array`` where it is C-contiguous, else a copy; it leaves 0-d arrays 0-d."""
    return namespace(array).asarray(array, order="C")


def accumulation_dtype(dtype: np.dtype) -> np.dtype:
    """The dtype in which sums of ``dtype`` are added up.

    float32 for float16, bfloat16 and float32; otherwise ``dtype`` itself.
    """
    return _WIDE.get(dtype, dtype)


def keep(condition: Array, values: Array) -> Array:
    """``values`` where ``condition`` (bool) holds, else exactly 0 (∞·0 would be NaN)."""
    if is_cupy(values) or condition.shape != values.shape:
        return namespace(values).where(condition, values, values.dtype.type(0))
    # By the bits, which −1 has all of: where() branches at every element, and guessing half of
    # the branches wrong, as after a ReLU, makes it five times slower.
    bits = np.dtype(f"i{values.itemsize}")
    mask = np.negative(condition.view(np.int8), dtype=bits)
    result = np.empty_like(values)
    np.bitwise_and(values.view(bits), mask, out=result.view(bits))
    return result
