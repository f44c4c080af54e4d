"""Softmax and its logarithms, safe from overflow and from cancellation.

All shift by the largest element, which changes no result and keeps every
exponential at most 1 (Blanchard, D. J. Higham and N. J. Higham, Accurately
computing the log-sum-exp and softmax functions, 2021). float16 and bfloat16
are computed in float32 and rounded once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ...kernels.arrays import namespace
from ..autocast import autocast_float32
from ..dtypes import is_float
from ..tape import Array, Node, Op, apply
from ._axes import Axes, AxisLike, count, kept_shape, many_axes, one_axis, reduced_shape
from ._operands import as_tensor, narrow, not_floating, wide
from ._sums import total

if TYPE_CHECKING:
    from ..tensor import Tensor


def _shifted(x: Array, axis: int) -> Array:
    """x − max(x) along ``axis``; a row of −∞ alone, or with an ∞, becomes NaN as in PyTorch."""
    x = wide(x)
    return x - x.max(axis=axis, keepdims=True) if x.size else x


class Softmax(Op):
    """y = exp(x) / Σ exp(x); dx = y (dy − Σ y dy)."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axis: int) -> Array:
        powers = namespace(x).exp(_shifted(x, axis))
        result = narrow(powers / total(powers, axis, True), x)
        ctx.save(result, axis)
        return result

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        result, axis = ctx.saved
        y, dy = wide(result), wide(grad)
        dx = y * (dy - total(y * dy, axis, True))
        return (narrow(dx, result),)


class LogSoftmax(Op):
    """y = x − log Σ exp(x); dx = dy − exp(y) Σ dy.

    The order matters: (x − max) − log Σ exp(x − max) loses nothing when x is
    large, where x − (max + log Σ …) would round the logarithm away.
    """

    @staticmethod
    def forward(ctx: Node, x: Array, *, axis: int) -> Array:
        xp = namespace(x)
        shifted = _shifted(x, axis)
        result = narrow(shifted - xp.log(total(xp.exp(shifted), axis, True)), x)
        ctx.save(result, axis)
        return result

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        result, axis = ctx.saved
        y, dy = wide(result), wide(grad)
        dx = dy - namespace(y).exp(y) * total(dy, axis, True)
        return (narrow(dx, result),)


class LogSumExp(Op):
    """y = log Σ exp(x); dx = dy exp(x − y)."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes, keepdims: bool) -> Array:
        xp = namespace(x)
        values = wide(x)
        kept = kept_shape(x.shape, axes)
        if count(x.shape, axes) == 0:
            value = xp.full(kept, -np.inf, values.dtype)
        else:
            largest = values.max(axis=axes, keepdims=True)
            # Shifting by an infinity would make ∞ − ∞; without a shift exp gives 0 or ∞.
            largest = xp.where(xp.isinf(largest), xp.zeros((), values.dtype), largest)
            value = largest + xp.log(total(xp.exp(values - largest), axes, True))
        value = xp.asarray(narrow(value, x))
        result = value if keepdims else value.reshape(reduced_shape(x.shape, axes))
        ctx.save(x, result, axes)
        return result

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, result, axes = ctx.saved
        kept = kept_shape(x.shape, axes)
        y, dy = wide(result).reshape(kept), wide(grad).reshape(kept)
        return (narrow(dy * namespace(x).exp(wide(x) - y), x),)


def softmax(input: Tensor, dim: int) -> Tensor:
    """exp(input) / Σ exp(input) along axis ``dim``: weights that are positive and sum to 1.

    A row that holds −∞ alone, a +∞ or a NaN is NaN, as in PyTorch.

    Raises:
        DTypeError: if ``input`` is not floating-point.
        ArgumentError, IndexOutOfRange: for an axis that is no integer or out of range.
    """
    input = _floating(input, "softmax")
    return apply(Softmax, *autocast_float32(input), axis=one_axis(dim, input.ndim))


def log_softmax(input: Tensor, dim: int) -> Tensor:
    """The logarithm of :func:`softmax` along axis ``dim``, right where softmax itself would be 0.

    Raises:
        DTypeError: if ``input`` is not floating-point.
        ArgumentError, IndexOutOfRange: for an axis that is no integer or out of range.
    """
    input = _floating(input, "log_softmax")
    return apply(LogSoftmax, *autocast_float32(input), axis=one_axis(dim, input.ndim))


def logsumexp(x: Tensor, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """log Σ exp(x) over ``axis`` (an int, a tuple, or None for all); −∞ over no elements.

    Raises:
        DTypeError: if ``x`` is not floating-point.
        ArgumentError, IndexOutOfRange: for an axis that is no integer, doubled or out of range.
    """
    x = _floating(x, "logsumexp")
    return apply(LogSumExp, x, axes=many_axes(axis, x.ndim), keepdims=bool(keepdims))


def _floating(x: Tensor, name: str) -> Tensor:
    x = as_tensor(x, name)
    if not is_float(x.dtype):
        raise not_floating("input", x)
    return x
