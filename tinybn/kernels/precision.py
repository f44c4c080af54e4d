"""How float32 matrix products are multiplied on a GPU: exactly, or faster with fewer digits.

Three products of TF32 parts leave out less than 2⁻²¹ of a product of normal numbers, and a tenth of
that in sums of many, less than adding up in float32 rounds off: their errors are those of float32's
own products or smaller. A training step takes 0.33 to 0.71 of the time that it takes with those (on
an H200, ``benchmarks/training_step.md``), so they are the default.
"""

from __future__ import annotations

import numpy as np

from ..arguments import choice

# Triton's names: IEEE float32; three tensor-core products of 11-bit parts (``addition.py``); one.
_INPUT = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
_chosen = "high"


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how a GPU multiplies float32 matrices and convolutions from here on, in all threads.

    Args:
        precision: ``"highest"``, float32's 24 bits; ``"high"`` (the default), about 22 bits of
            each product, from three on the tensor cores; ``"medium"``, TF32's 11 bits. All add
            up in float32, and other dtypes and the CPU are not affected. But for the first,
            numbers and products of 2¹²⁸·(1 − 2⁻¹⁰) = 3.3995·10³⁸ or more may count as infinite,
            and numbers below 2⁻¹²⁶ keep fewer bits.

    Raises:
        ArgumentError: for another.
    """
    global _chosen
    _chosen = choice("precision", precision, _INPUT)


def get_float32_matmul_precision() -> str:
    """What :func:`set_float32_matmul_precision` chose, ``"high"`` at first."""
    return _chosen


def precision_of(dtype: np.dtype) -> str:
    """How products of ``dtype`` are multiplied, under Triton's name; float32 has a choice."""
    return _INPUT[_chosen] if dtype == np.float32 else "ieee"
