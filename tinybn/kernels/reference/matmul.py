"""Matrix products, and the three gradients of a layer's product.

For Y = A B and an upstream gradient G, dA = G Bᵀ and dB = Aᵀ G (Giles, Collected
matrix derivative results, 2008, section 2.2.1). Transposes are views: BLAS reads
a transposed matrix as fast as a plain one.
"""

from __future__ import annotations

import numpy as np

from ..arrays import accumulation_dtype
from .activations import ACTIVATIONS

Array = np.ndarray


def matmul(
    a: Array, b: Array, bias: Array | None, y: Array, addend: Array | None = None,
    activation: str | None = None,
) -> None:  # fmt: skip
    """y = activation(a·b + bias + addend), rounded once."""
    if bias is None and addend is None and activation is None:
        _multiply(a, b, y)
        return
    product = np.empty(y.shape, accumulation_dtype(y.dtype))
    _multiply(a, b, product)
    finish(product, bias, addend, activation, y)


def finish(
    product: Array, bias: Array | None, addend: Array | None, activation: str | None, y: Array
) -> None:
    """y = activation(product + bias + addend), rounded once; ``product`` is written to."""
    with np.errstate(all="ignore"):
        for term in (bias, addend):
            if term is not None:
                np.add(product, term, out=product, casting="same_kind")
        if activation == "relu":
            np.maximum(product, product.dtype.type(0), out=y, casting="same_kind")
        else:
            y[...] = ACTIVATIONS[activation][0](product)


def linear_backward(
    dy: Array, x: Array | None, weight: Array | None, dx: Array | None, dweight: Array | None,
    dbias: Array | None,
) -> None:  # fmt: skip
    """dx = dy·weight, dweight = dyᵀ·x and dbias, the sums of dy's columns; those not None."""
    if dx is not None and weight is not None:
        _multiply(dy, weight, dx)
    if dweight is not None and x is not None:
        _multiply(dy.T, x, dweight)
    if dbias is not None:
        # NumPy adds rows one after the other: in float64 that loses nothing.
        dbias[...] = dy.sum(axis=0, dtype=np.float64)


def _multiply(a: Array, b: Array, y: Array) -> None:
    """y = a·b; float16 and bfloat16 in float32, which NumPy's BLAS can multiply, theirs not."""
    wide = accumulation_dtype(a.dtype)
    with np.errstate(all="ignore"):
        a, b = dense(a.astype(wide, copy=False)), dense(b.astype(wide, copy=False))
        if y.dtype == wide:
            np.matmul(a, b, out=y)
        else:
            y[...] = a @ b


def dense(a: Array) -> Array:
    """``a``, or a copy where neither axis of its matrices is dense in memory.

    NumPy multiplies such matrices (reversed, stepped, broadcast) in a plain
    loop, ten and more times slower than BLAS.
    """
    (rows, columns), (row_step, column_step) = a.shape[-2:], a.strides[-2:]
    dense_rows = column_step == a.itemsize and row_step >= columns * a.itemsize
    dense_columns = row_step == a.itemsize and column_step >= rows * a.itemsize
    return a if dense_rows or dense_columns else np.ascontiguousarray(a)
