"""How float32 matrix products are multiplied on a GPU: exactly, or faster with fewer digits."""

from __future__ import annotations

from ..errors import ArgumentError

# Triton's names: IEEE float32; three tensor-core products of 11-bit parts; one of them.
_INPUT = {"highest": "ieee", "high": "tf32x3", "medium": "tf32"}
_chosen = "highest"


def set_float32_matmul_precision(precision: str) -> None:
    """Choose how float32 convolutions are multiplied on a GPU from here on, in all threads.

    Args:
        precision: ``"highest"``, float32's 24 bits (the default); ``"high"``, about 22 bits from
            three products on the tensor cores; ``"medium"``, TF32's 11 bits. All add up in
            float32, and other dtypes and the CPU are not affected.

    Raises:
        ArgumentError: for another.
    """
    global _chosen
    if precision not in _INPUT:
        raise ArgumentError(f"precision is {precision!r}; wanted 'highest', 'high' or 'medium'")
    _chosen = precision


def get_float32_matmul_precision() -> str:
    """What :func:`set_float32_matmul_precision` chose, ``"highest"`` at first."""
    return _chosen


def input_precision() -> str:
    """The choice under Triton's name."""
    return _INPUT[_chosen]
