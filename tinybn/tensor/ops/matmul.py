"""Matrix products: ``matmul`` with NumPy's rules, and ``linear``, a layer's product in one op.

For Y = A B and an upstream gradient G, dA = G Bᵀ and dB = Aᵀ G (Giles, Collected
matrix derivative results, 2008, section 2.2.1). Transposes are views, which BLAS and
the kernels read as they are.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ... import kernels
from ...errors import ShapeError
from ...kernels.arrays import accumulation_dtype, namespace
from ...kernels.reference.matmul import dense
from ..autocast import autocast_low
from ..dtypes import is_float
from ..tape import Array, Node, Op, apply
from ._operands import as_tensor, check_devices, not_floating, promoted, result_dtype, unbroadcast

if TYPE_CHECKING:
    from ..tensor import Tensor


def _product(a: Array, b: Array) -> Array:
    """a @ b for arrays of at least two dimensions, of the common dtype or its accumulator."""
    dtype = result_dtype(a, b)
    if is_float(dtype) and b.ndim == 2:
        # One large product is faster than a batch of small ones with the same b.
        wide = (_flat(a).astype(dtype, copy=False), b.astype(dtype, copy=False))
        return kernels.matmul(*wide).reshape(*a.shape[:-1], b.shape[-1])
    # A batch in float16 or bfloat16 is multiplied in float32 and rounded once by the caller:
    # NumPy's BLAS has no other, and CuPy 14.2 fails for bfloat16.
    dtype = accumulation_dtype(dtype)
    return namespace(a).matmul(*(dense(m.astype(dtype, copy=False)) for m in (a, b)))


def _flat(a: Array) -> Array:
    """A batch of matrices as one tall matrix."""
    return a.reshape(math.prod(a.shape[:-1]), a.shape[-1])


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
    def forward(
        ctx: Node, x: Array, weight: Array, bias: Array | None, *, out: Array | None = None
    ) -> Array:
        need_x, need_weight, _ = ctx.needs
        ctx.save(x if need_weight else None, weight if need_x else None, x.shape)
        rows, weight, bias = promoted(_flat(x), weight, bias)
        if is_float(rows.dtype):
            flat = None if out is None else _flat(out)
            y = kernels.matmul(rows, weight.T, bias, out=flat)
        else:
            y = _product(rows, weight.T)
            y = y if bias is None else y + bias
        return y.reshape(*x.shape[:-1], weight.shape[0])

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, shape = ctx.saved
        dtype = grad.dtype
        dx, dweight, dbias = kernels.linear_backward(
            _flat(grad),
            None if x is None else _flat(x).astype(dtype, copy=False),
            None if weight is None else weight.astype(dtype, copy=False),
            ctx.needs,
        )
        return None if dx is None else dx.reshape(shape), dweight, dbias


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


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``input @ weight.T + bias``, as one operation.

    Args:
        input: [..., in].
        weight: [out, in].
        bias: [out], or None.

    Returns:
        [..., out], of the promoted dtype: float64 beside float32 computes and gives float64.

    Raises:
        ShapeError: if the shapes do not fit.
        DeviceError: if they are on different devices.
        DTypeError: if one is no tensor or array, or input of integers and the weight floating.
    """
    input, weight = as_tensor(input, "linear"), as_tensor(weight, "linear")
    bias = None if bias is None else as_tensor(bias, "linear")
    if not is_float(input.dtype) and is_float(weight.dtype):
        raise not_floating("input", input)
    check_devices("linear", *(t for t in (input, weight, bias) if t is not None))
    if input.ndim == 0 or weight.ndim != 2 or input.shape[-1] != weight.shape[1]:
        raise ShapeError(
            f"linear of input {input.shape} with weight {weight.shape}: wanted input [..., in] "
            "and weight [out, in]"
        )
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ShapeError(
            f"linear with weight {weight.shape} and bias {bias.shape}: wanted a bias of shape "
            f"{weight.shape[:1]}"
        )
    return apply(Linear, *autocast_low(input, weight, bias))
