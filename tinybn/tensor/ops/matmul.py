"""Matrix products: ``matmul`` with NumPy's rules, and ``linear``, a layer's product in one op.

For Y = A B and an upstream gradient G, dA = G Bᵀ and dB = Aᵀ G (Giles, Collected
matrix derivative results, 2008, section 2.2.1). Transposes are views: BLAS reads
a transposed matrix as fast as a plain one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ...errors import ShapeError
from ...kernels.arrays import accumulation_dtype, namespace
from ..autocast import autocast_low
from ..tape import Array, Node, Op, apply
from ._operands import as_tensor, check_devices, result_dtype, unbroadcast
from ._sums import total

if TYPE_CHECKING:
    from ..tensor import Tensor


def _product(a: Array, b: Array) -> Array:
    """a @ b for arrays of at least two dimensions, of the common dtype or its accumulator.

    float16 and bfloat16 are multiplied in float32, which NumPy's BLAS can and
    theirs cannot; the caller rounds the float32 result once. On a GPU CuPy's
    plain 2-D product takes both types directly and adds up in float32.
    (Its batched product turns float16 into float32 itself and fails for
    bfloat16 in CuPy 14.2, and a product of one element rounds each term.)
    """
    xp = namespace(a)
    dtype = result_dtype(a, b)
    one_element = a.shape[-2] == b.shape[-1] == 1
    direct = xp is not np and a.ndim == b.ndim == 2 and not one_element
    if not direct:
        dtype = accumulation_dtype(dtype)
    a, b = (_for_blas(m.astype(dtype, copy=False)) for m in (a, b))
    if a.ndim > 2 and b.ndim == 2:
        # One large product is faster than a batch of small ones with the same b.
        return xp.matmul(_flat(a), b).reshape(*a.shape[:-1], b.shape[-1])
    return xp.matmul(a, b)


def _flat(a: Array) -> Array:
    """A batch of matrices as one tall matrix."""
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1])


def _for_blas(a: Array) -> Array:
    """``a``, or a dense copy where neither axis of its matrices is dense.

    NumPy multiplies such matrices (reversed, stepped, broadcast) in a plain
    loop, ten and more times slower than BLAS.
    """
    (rows, columns), (row_step, column_step) = a.shape[-2:], a.strides[-2:]
    dense_rows = column_step == a.itemsize and row_step >= columns * a.itemsize
    dense_columns = row_step == a.itemsize and column_step >= rows * a.itemsize
    return a if dense_rows or dense_columns else namespace(a).ascontiguousarray(a)


class MatMul(Op):
    """Y = A B, over batches: dA = G Bᵀ, dB = Aᵀ G, summed over the axes that were broadcast."""

    @staticmethod
    def forward(ctx: Node, a: Array, b: Array) -> Array:
        need_a, need_b = ctx.needs
        ctx.save(a if need_b else None, b if need_a else None, a.shape, b.shape)
        matrix_a, matrix_b = a, b
        if a.ndim == 1:
            matrix_a = a[None, :]
        if b.ndim == 1:
            matrix_b = b[:, None]
        result = _product(matrix_a, matrix_b).astype(result_dtype(a, b), copy=False)
        shape = list(result.shape)
        if b.ndim == 1:
            del shape[-1]
        if a.ndim == 1:
            del shape[-1 if b.ndim == 1 else -2]
        return result.reshape(shape)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        a, b, shape_a, shape_b = ctx.saved
        # A vector is a matrix of one row (on the left) or one column (on the right).
        if len(shape_b) == 1:
            grad = grad[..., None]
            b = b if b is None else b[:, None]
        if len(shape_a) == 1:
            grad = grad[..., None, :]
            a = a if a is None else a[None, :]
        grad_a = grad_b = None
        if b is not None:
            matrix = (1, *shape_a) if len(shape_a) == 1 else shape_a
            product = unbroadcast(_product(grad, b.swapaxes(-1, -2)), matrix)
            grad_a = product.astype(grad.dtype, copy=False).reshape(shape_a)
        if a is not None:
            matrix = (*shape_b, 1) if len(shape_b) == 1 else shape_b
            if len(matrix) == 2:
                # Every batch multiplied the same b: one product sums over them all.
                product = _product(_flat(a).T, _flat(grad))
            else:
                product = unbroadcast(_product(a.swapaxes(-1, -2), grad), matrix)
            grad_b = product.astype(grad.dtype, copy=False).reshape(shape_b)
        return grad_a, grad_b


class Linear(Op):
    """Y = X Wᵀ + b: dX = G W, dW = Gᵀ X, db = Σ rows of G."""

    @staticmethod
    def forward(ctx: Node, x: Array, weight: Array, bias: Array | None) -> Array:
        need_x, need_weight, _ = ctx.needs
        ctx.save(x if need_weight else None, weight if need_x else None, x.shape)
        given = (x, weight) if bias is None else (x, weight, bias)
        product = _product(_flat(x), weight.T)
        if bias is not None:
            product = product.astype(result_dtype(product, bias), copy=False)
            product += bias.astype(product.dtype, copy=False)
        result = product.astype(result_dtype(*given), copy=False)
        return result.reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, shape = ctx.saved
        rows = _flat(grad)
        grad_x = grad_weight = grad_bias = None
        if weight is not None:
            grad_x = _product(rows, weight).astype(grad.dtype, copy=False).reshape(shape)
        if x is not None:
            grad_weight = _product(rows.T, _flat(x)).astype(grad.dtype, copy=False)
        if ctx.needs[2]:
            grad_bias = total(rows, 0, dtype=grad.dtype)
        return grad_x, grad_weight, grad_bias


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """The matrix product ``a @ b`` with NumPy's rules.

    A 1-D ``a`` is a row and a 1-D ``b`` a column, and that axis is dropped from
    the result; with more than two dimensions the last two are matrices and the
    others are broadcast. The dtypes are promoted as in NumPy; float16 and
    bfloat16 are added up in float32 and rounded once.

    Args:
        a: [n], [m, n] or [..., m, n].
        b: [n], [n, k] or [..., n, k].

    Raises:
        ShapeError: if the shapes do not fit, or one has no dimensions.
        DeviceError: if they are on different devices.
        DTypeError: if one is no tensor or array.
    """
    a, b = as_tensor(a, "matmul"), as_tensor(b, "matmul")
    check_devices("matmul", a, b)
    if a.ndim == 0 or b.ndim == 0 or a.shape[-1] != b.shape[-2 if b.ndim > 1 else -1]:
        raise ShapeError(
            f"matmul of shapes {a.shape} and {b.shape}: the last axis of the first must equal "
            "the second-last (or only) axis of the second"
        )
    try:
        np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ValueError as error:
        raise ShapeError(
            f"matmul of shapes {a.shape} and {b.shape}: the axes before the last two "
            "cannot be broadcast together"
        ) from error
    return apply(MatMul, *autocast_low(a, b))


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weight.T + bias``, as one operation.

    Args:
        x: [..., in].
        weight: [out, in].
        bias: [out], or None.

    Returns:
        [..., out], of the promoted dtype.

    Raises:
        ShapeError: if the shapes do not fit.
        DeviceError: if they are on different devices.
        DTypeError: if one is no tensor or array.
    """
    x, weight = as_tensor(x, "linear"), as_tensor(weight, "linear")
    bias = None if bias is None else as_tensor(bias, "linear")
    check_devices("linear", *(t for t in (x, weight, bias) if t is not None))
    if x.ndim == 0 or weight.ndim != 2 or x.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear of x {x.shape} with weight {weight.shape}: wanted x [..., in] and "
            "weight [out, in]"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"linear with weight {weight.shape} and bias {bias.shape}: wanted a bias of shape "
            f"{weight.shape[:1]}"
        )
    return apply(Linear, *autocast_low(x, weight, bias))
