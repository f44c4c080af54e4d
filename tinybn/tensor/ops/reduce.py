"""Reductions: many elements become one, over chosen axes.

Axes are named as in NumPy: an int, a tuple of ints, negative from the end,
``None`` for all of them, and ``()`` for none. Sums are added up wide and rounded
once, at the end (``_sums``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...arguments import number
from ...errors import ShapeError
from ...kernels.arrays import accumulation_dtype, namespace
from .. import watch
from ..autocast import autocast_float32
from ..dtypes import bool_, float64, int64, is_float
from ..tape import Array, Node, Op, apply, wrap
from ._axes import Axes, AxisLike, count, kept_shape, many_axes, one_axis, reduced_shape
from ._operands import as_tensor, wide
from ._sums import running_total, total
from .shape import reshape

if TYPE_CHECKING:
    import numpy as np

    from ..tensor import Tensor


def _finish(kept: Array, shape: tuple[int, ...], axes: Axes, keepdims: bool, dtype: Any) -> Array:
    """Round a result, computed with ``keepdims=True``, to ``dtype`` and give it its shape."""
    kept = _rounded(kept, dtype)
    return kept if keepdims else kept.reshape(reduced_shape(shape, axes))


def _rounded(values: Array, dtype: Any) -> Array:
    """``values`` as an array of ``dtype``; NumPy made them a scalar if they have no dimensions."""
    return namespace(values).asarray(values).astype(dtype, copy=False)


def _mean_dtype(dtype: np.dtype) -> np.dtype:
    return dtype if is_float(dtype) else float64


class Sum(Op):
    """y = Σ x; each x has dy/dx = 1."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes, keepdims: bool) -> Array:
        ctx.save(x.shape, axes)
        result = x.dtype if is_float(x.dtype) else int64
        return _finish(total(x, axes, True, result), x.shape, axes, keepdims, result)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, axes = ctx.saved
        kept = grad.reshape(kept_shape(shape, axes))
        return (namespace(grad).broadcast_to(kept, shape),)


class Mean(Op):
    """y = Σ x / n; each x has dy/dx = 1/n."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes, keepdims: bool) -> Array:
        ctx.save(x.shape, axes)
        return _finish(_mean(wide(x), axes), x.shape, axes, keepdims, _mean_dtype(x.dtype))

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, axes = ctx.saved
        kept = grad.reshape(kept_shape(shape, axes))
        # n is 0 only where x is empty; its empty gradient needs no division by it.
        share = _rounded(wide(kept) / (count(shape, axes) or 1), grad.dtype)
        return (namespace(grad).broadcast_to(share, shape),)


def _mean(x: Array, axes: Axes) -> Array:
    """The mean of widened values, with kept axes; NaN over no elements."""
    return total(x, axes, True) / x.dtype.type(count(x.shape, axes))


def _centred(x: Array, axes: Axes) -> Array:
    """x − mean(x), of widened values.

    The mean itself is rounded, which shows when it is large against the spread
    (1e4 against 1e-2 in float32). The differences from it are small and nearly
    exact, so a second mean, of them, takes the rest off: the "corrected
    two-pass algorithm" of Chan, Golub and LeVeque (1983).
    """
    rest = x - _mean(x, axes)
    rest -= _mean(rest, axes)
    return rest


def _variance(x: Array, axes: Axes, correction: float) -> Array:
    """Σ (x − mean)² / (n − correction) of widened values, with kept axes."""
    rest = _centred(x, axes)
    return total(rest * rest, axes, True) / _freedom(x, axes, correction)


def _freedom(x: Array, axes: Axes, correction: float) -> Any:
    """max(0, n − correction), the degrees of freedom, as a scalar of x's dtype."""
    n = count(x.shape, axes)
    return x.dtype.type(n - correction if n > correction else 0)


class Var(Op):
    """y = Σ (x − m)² / (n − c); dy/dx = 2 (x − m) / (n − c), as Σ (x − m) = 0."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes, correction: float, keepdims: bool) -> Array:
        ctx.save(x, axes, correction)
        value = _variance(wide(x), axes, correction)
        return _finish(value, x.shape, axes, keepdims, _mean_dtype(x.dtype))

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, axes, correction = ctx.saved
        rest = _centred(wide(x), axes)
        slope = 2 * wide(grad).reshape(kept_shape(x.shape, axes))
        return (_rounded(rest * (slope / _freedom(rest, axes, correction)), x.dtype),)


class Std(Op):
    """y = √Var(x); dy/dx = (x − m) / ((n − c) y), and 0 where y = 0, as in PyTorch."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes, correction: float, keepdims: bool) -> Array:
        ctx.save(x, axes, correction)
        root = namespace(x).sqrt(_variance(wide(x), axes, correction))
        return _finish(root, x.shape, axes, keepdims, _mean_dtype(x.dtype))

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, axes, correction = ctx.saved
        xp = namespace(x)
        rest = _centred(wide(x), axes)
        free = _freedom(rest, axes, correction)
        root = xp.sqrt(total(rest * rest, axes, True) / free)
        slope = wide(grad).reshape(kept_shape(x.shape, axes)) / (free * root)
        slope = xp.where(root == 0, xp.zeros((), rest.dtype), slope)
        return (_rounded(rest * slope, x.dtype),)


class Max(Op):
    """y = max x; the gradient is shared equally among the elements that tie."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes, keepdims: bool) -> Array:
        return _extreme(ctx, x, "max", axes, keepdims)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        return _extreme_backward(ctx, grad)


class Min(Op):
    """y = min x; the gradient is shared equally among the elements that tie."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes, keepdims: bool) -> Array:
        return _extreme(ctx, x, "min", axes, keepdims)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        return _extreme_backward(ctx, grad)


def _extreme(ctx: Node, x: Array, method: str, axes: Axes, keepdims: bool) -> Array:
    # Widening and rounding back is exact here, and spares bfloat16's slow element loop.
    values = x.astype(accumulation_dtype(x.dtype), copy=False)
    kept = getattr(values, method)(axis=axes, keepdims=True)
    result = _finish(kept, x.shape, axes, keepdims, x.dtype)
    ctx.save(x, result, axes)
    return result


def _extreme_backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
    x, result, axes = ctx.saved
    xp = namespace(x)
    kept = kept_shape(x.shape, axes)
    # A NaN anywhere makes the result NaN: then the NaNs are the elements that decided it.
    chosen = (x == result.reshape(kept)) | (x != x)
    ties = chosen.sum(axis=axes, keepdims=True)
    dy = wide(grad).reshape(kept)
    share = _rounded(dy / ties.astype(dy.dtype), grad.dtype)
    return (xp.where(chosen, share, xp.zeros((), grad.dtype)),)


class CumSum(Op):
    """y[i] = x[0] + … + x[i] along one axis; dx[i] = dy[i] + … + dy[n − 1]."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, axis: int) -> Array:
        ctx.save(axis)
        return running_total(x, axis)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (axis,) = ctx.saved
        flip = namespace(grad).flip
        return (flip(running_total(flip(grad, axis), axis), axis),)


def sum(x: Tensor, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """The sum over ``axis``; 0 over no elements.

    Floating-point dtypes are kept; int32, int64 and bool give int64.

    Raises:
        ArgumentError: if an axis is no integer or is given twice.
        IndexOutOfRange: if an axis is out of range.
    """
    (x,) = autocast_float32(as_tensor(x, "sum"))
    return apply(Sum, x, axes=many_axes(axis, x.ndim), keepdims=bool(keepdims))


def mean(x: Tensor, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean over ``axis``; NaN over no elements.

    Floating-point dtypes are kept; int32, int64 and bool give float64, as in NumPy.

    Raises:
        ArgumentError: if an axis is no integer or is given twice.
        IndexOutOfRange: if an axis is out of range.
    """
    (x,) = autocast_float32(as_tensor(x, "mean"))
    return apply(Mean, x, axes=many_axes(axis, x.ndim), keepdims=bool(keepdims))


def var(
    x: Tensor, axis: AxisLike = None, *, correction: float = 1, keepdims: bool = False
) -> Tensor:
    """The variance over ``axis``: Σ (x − mean)² / max(0, n − correction).

    ``correction`` has PyTorch's default, 1: the unbiased estimate. 0 is NumPy's
    default, the variance of the values themselves. One value with correction 1
    gives NaN. Floating-point dtypes are kept; the others give float64.

    Raises:
        ArgumentError: if an axis is no integer or is given twice.
        IndexOutOfRange: if an axis is out of range.
    """
    x = as_tensor(x, "var")
    axes, correction = many_axes(axis, x.ndim), number("correction", correction)
    return apply(Var, x, axes=axes, correction=correction, keepdims=bool(keepdims))


def std(
    x: Tensor, axis: AxisLike = None, *, correction: float = 1, keepdims: bool = False
) -> Tensor:
    """The standard deviation over ``axis``: the square root of :func:`var`.

    Its gradient where the deviation is 0, which has none, is 0 as in PyTorch.

    Raises:
        ArgumentError: if an axis is no integer or is given twice.
        IndexOutOfRange: if an axis is out of range.
    """
    x = as_tensor(x, "std")
    axes, correction = many_axes(axis, x.ndim), number("correction", correction)
    return apply(Std, x, axes=axes, correction=correction, keepdims=bool(keepdims))


def max(x: Tensor, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """The largest element over ``axis``, of x's dtype; NaN if one of them is NaN.

    The gradient is shared equally among ties, as in PyTorch's ``amax``.

    Raises:
        ShapeError: over no elements.
        ArgumentError: if an axis is no integer or is given twice.
        IndexOutOfRange: if an axis is out of range.
    """
    x = as_tensor(x, "max")
    axes = many_axes(axis, x.ndim)
    _check_not_empty(x, axes, "max")
    return apply(Max, x, axes=axes, keepdims=bool(keepdims))


def min(x: Tensor, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """The smallest element over ``axis``, of x's dtype; NaN if one of them is NaN.

    The gradient is shared equally among ties, as in PyTorch's ``amin``.

    Raises:
        ShapeError: over no elements.
        ArgumentError: if an axis is no integer or is given twice.
        IndexOutOfRange: if an axis is out of range.
    """
    x = as_tensor(x, "min")
    axes = many_axes(axis, x.ndim)
    _check_not_empty(x, axes, "min")
    return apply(Min, x, axes=axes, keepdims=bool(keepdims))


def argmax(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index, as int64, of the first largest element along ``axis``; a NaN counts as largest.

    With ``axis=None`` it is the index into the flattened tensor. No gradient.

    Raises:
        ShapeError: over no elements.
        ArgumentError, IndexOutOfRange: for an axis that is no integer or out of range.
    """
    return _arg("argmax", x, axis, keepdims)


def argmin(x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
    """The index, as int64, of the first smallest element along ``axis``; a NaN counts as smallest.

    With ``axis=None`` it is the index into the flattened tensor. No gradient.

    Raises:
        ShapeError: over no elements.
        ArgumentError, IndexOutOfRange: for an axis that is no integer or out of range.
    """
    return _arg("argmin", x, axis, keepdims)


def any(x: Tensor, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Whether an element over ``axis`` is not zero, as bool; NaN is not zero. No gradient.

    Raises:
        ArgumentError, IndexOutOfRange: for an axis that is no integer, doubled or out of range.
    """
    return _truth("any", x, axis, keepdims)


def all(x: Tensor, axis: AxisLike = None, keepdims: bool = False) -> Tensor:
    """Whether all elements over ``axis`` are not zero, as bool; NaN is not zero. No gradient.

    Raises:
        ArgumentError, IndexOutOfRange: for an axis that is no integer, doubled or out of range.
    """
    return _truth("all", x, axis, keepdims)


def cumsum(x: Tensor, axis: int | None = None) -> Tensor:
    """The running sum along ``axis``; with ``axis=None``, of the flattened tensor.

    Floating-point dtypes are kept; int32, int64 and bool give int64.

    Raises:
        ArgumentError, IndexOutOfRange: for an axis that is no integer or out of range.
    """
    (x,) = autocast_float32(as_tensor(x, "cumsum"))
    if axis is None:
        x, axis = reshape(x, -1), 0
    return apply(CumSum, x, axis=one_axis(axis, x.ndim))


def _check_not_empty(x: Tensor, axes: Axes, name: str) -> None:
    if x.size == 0 and count(x.shape, axes) == 0:
        raise ShapeError(
            f"{name} over axes {axes} of a tensor of shape {x.shape} has no elements to choose from"
        )


def _arg(name: str, x: Tensor, axis: int | None, keepdims: bool) -> Tensor:
    x = as_tensor(x, name)
    axes = many_axes(None, x.ndim) if axis is None else (one_axis(axis, x.ndim),)
    _check_not_empty(x, axes, name)
    watch.read(x, name)
    # NumPy's function takes one axis, or the flattened array.
    flat = x.data.reshape(-1) if axis is None else x.data
    values = flat.astype(accumulation_dtype(flat.dtype), copy=False)
    found = getattr(values, name)(axis=0 if axis is None else axes[0])
    shape = kept_shape(x.shape, axes) if keepdims else reduced_shape(x.shape, axes)
    return wrap(_rounded(found, int64).reshape(shape))


def _truth(name: str, x: Tensor, axis: AxisLike, keepdims: bool) -> Tensor:
    x = as_tensor(x, name)
    axes = many_axes(axis, x.ndim)
    watch.read(x, name)
    found = getattr(x.data != 0, name)(axis=axes, keepdims=True)
    return wrap(_finish(found, x.shape, axes, keepdims, bool_))
