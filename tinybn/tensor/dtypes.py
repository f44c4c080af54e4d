"""The seven data types of tinybn, as NumPy dtypes, and their promotion.

Promotion is NumPy's (NEP 50): Python scalars are weak, arrays are not.
``bfloat16`` comes from ml_dtypes, which teaches NumPy about it.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from ..errors import DTypeError

float16 = np.dtype("float16")
bfloat16 = np.dtype(ml_dtypes.bfloat16)
float32 = np.dtype("float32")
float64 = np.dtype("float64")
int32 = np.dtype("int32")
int64 = np.dtype("int64")
bool_ = np.dtype("bool")

FLOATS = frozenset({float16, bfloat16, float32, float64})
SUPPORTED = FLOATS | {int32, int64, bool_}
_BY_NAME = {"bfloat16": bfloat16, "bool": bool_}


def as_dtype(dtype: Any) -> np.dtype:
    """Return ``dtype`` (a NumPy dtype, type or name) as one of the seven dtypes.

    Raises:
        DTypeError: if it is not a dtype or not one that tinybn supports.
    """
    if dtype is None:  # to NumPy it is float64, which nobody who writes None means
        raise DTypeError(f"None is not a data type; {dtypes_wanted()}")
    try:
        result = (
            _BY_NAME[dtype] if isinstance(dtype, str) and dtype in _BY_NAME else np.dtype(dtype)
        )
    except TypeError as error:
        raise DTypeError(f"{dtype!r} is not a data type; {dtypes_wanted()}") from error
    if result not in SUPPORTED:
        raise DTypeError(f"dtype {result.name} is not supported; {dtypes_wanted()}")
    return result


def is_float(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is one of the four floating-point dtypes."""
    return dtype in FLOATS


def dtypes_wanted() -> str:
    """The seven, for a message."""
    return "wanted float16, bfloat16, float32, float64, int32, int64 or bool"
