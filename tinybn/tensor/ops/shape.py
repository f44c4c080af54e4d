"""Shapes: the same elements seen in another shape or order.

``reshape``, ``permute``, ``expand`` and what is built on them give views, which
share memory with their input as in NumPy (``reshape`` copies where it must).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ...errors import ArgumentError, ShapeError
from ...kernels.arrays import namespace
from ..tape import Array, Node, Op, apply
from ._axes import Axes, AxisLike, Shape, as_sizes, many_axes, one_axis
from ._operands import as_tensor, unbroadcast

if TYPE_CHECKING:
    from ..tensor import Tensor


class Reshape(Op):
    """y = x in another shape; dx = dy in x's."""

    view = True

    @staticmethod
    def forward(ctx: Node, x: Array, *, shape: Shape) -> Array:
        ctx.save(x.shape)
        return x.reshape(shape)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (shape,) = ctx.saved
        return (grad.reshape(shape),)


class Permute(Op):
    """y = x with its axes in another order; dx = dy with the inverse order."""

    view = True

    @staticmethod
    def forward(ctx: Node, x: Array, *, axes: Axes) -> Array:
        ctx.save(axes)
        return x.transpose(axes)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (axes,) = ctx.saved
        inverse = sorted(range(len(axes)), key=axes.__getitem__)
        return (grad.transpose(inverse),)


class Expand(Op):
    """y = x repeated along axes of size 1, without copying; dx is dy summed over them."""

    view = True

    @staticmethod
    def forward(ctx: Node, x: Array, *, shape: Shape) -> Array:
        ctx.save(x.shape)
        return namespace(x).broadcast_to(x, shape)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (shape,) = ctx.saved
        return (unbroadcast(grad, shape),)


def reshape(x: Tensor, *shape: Any) -> Tensor:
    """``x`` in another shape of as many elements, in C order; a view where one is possible.

    Args:
        x: any tensor.
        shape: the sizes, as ints or one tuple; one may be -1 and is worked out.

    Raises:
        ShapeError: if the number of elements differs.
        ArgumentError: if a size is no integer.
    """
    x = as_tensor(x, "reshape")
    sizes = as_sizes(shape, "reshape")
    known = math.prod(n for n in sizes if n != -1)
    unknown = sizes.count(-1)
    full = sizes
    if unknown == 1 and known > 0:
        full = tuple(x.size // known if n == -1 else n for n in sizes)
    if unknown > 1 or any(n < 0 for n in full) or math.prod(full) != x.size:
        raise ShapeError(
            f"a tensor of shape {x.shape} has {x.size} elements and cannot take shape {sizes}"
        )
    return apply(Reshape, x, shape=full)


def flatten(x: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
    """``x`` with the axes from ``start_dim`` to ``end_dim``, both included, made one.

    A tensor of no dimensions becomes one of shape (1,).

    Raises:
        IndexOutOfRange: if an axis is out of range.
        ArgumentError: if ``start_dim`` comes after ``end_dim``.
    """
    x = as_tensor(x, "flatten")
    if x.ndim == 0:
        return apply(Reshape, x, shape=(1,))
    start, end = one_axis(start_dim, x.ndim), one_axis(end_dim, x.ndim)
    if start > end:
        raise ArgumentError(f"flatten from axis {start_dim} to axis {end_dim}: wanted start <= end")
    middle = math.prod(x.shape[start : end + 1])
    return apply(Reshape, x, shape=(*x.shape[:start], middle, *x.shape[end + 1 :]))


def squeeze(x: Tensor, axis: AxisLike = None) -> Tensor:
    """``x`` without axes of size 1: those given, or all of them. A view.

    Raises:
        ShapeError: if an axis that is given has another size, as in NumPy.
        IndexOutOfRange, ArgumentError: for an axis that is out of range, doubled or no integer.
    """
    x = as_tensor(x, "squeeze")
    if axis is None:
        return apply(Reshape, x, shape=tuple(n for n in x.shape if n != 1))
    axes = many_axes(axis, x.ndim)
    if any(x.shape[a] != 1 for a in axes):
        raise ShapeError(
            f"squeeze of axis {axis} of a tensor of shape {x.shape}: the size there must be 1"
        )
    return apply(Reshape, x, shape=tuple(n for i, n in enumerate(x.shape) if i not in axes))


def expand_dims(x: Tensor, axis: int | tuple[int, ...]) -> Tensor:
    """``x`` with a new axis of size 1 at each of ``axis``, places in the result. A view.

    Raises:
        IndexOutOfRange, ArgumentError: for an axis that is out of range, doubled or no integer.
    """
    x = as_tensor(x, "expand_dims")
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = many_axes(tuple(given), x.ndim + len(given))
    sizes = iter(x.shape)
    ndim = x.ndim + len(axes)
    return apply(Reshape, x, shape=tuple(1 if i in axes else next(sizes) for i in range(ndim)))


def unsqueeze(x: Tensor, axis: int) -> Tensor:
    """``x`` with one new axis of size 1: PyTorch's name for :func:`expand_dims`."""
    return expand_dims(x, axis)


def permute(x: Tensor, *axes: Any) -> Tensor:
    """``x`` with its axes in the order given, each named once. A view.

    Raises:
        ShapeError: if not every axis is named.
        IndexOutOfRange, ArgumentError: for an axis that is out of range, doubled or no integer.
    """
    x = as_tensor(x, "permute")
    order = tuple(one_axis(a, x.ndim) for a in as_sizes(axes, "permute"))
    many_axes(order, x.ndim)  # refuses an axis named twice
    if len(order) != x.ndim:
        raise ShapeError(f"permute of a tensor of {x.ndim} dimensions got {len(order)} axes")
    return apply(Permute, x, axes=order)


def transpose(x: Tensor, *axes: Any) -> Tensor:
    """``x`` with its axes reversed, permuted or, given two of more, swapped. A view.

    ``transpose(x)`` reverses and ``transpose(x, 2, 0, 1)`` permutes as in NumPy;
    two axes of a tensor that has more are swapped, as in PyTorch.

    Raises:
        ShapeError: if neither two nor all axes are named.
        IndexOutOfRange, ArgumentError: for an axis that is out of range, doubled or no integer.
    """
    x = as_tensor(x, "transpose")
    if not axes or axes == (None,):
        return apply(Permute, x, axes=tuple(reversed(range(x.ndim))))
    order = as_sizes(axes, "transpose")
    if len(order) == 2 and x.ndim != 2:
        return swapaxes(x, *order)
    return permute(x, *order)


def swapaxes(x: Tensor, axis1: int, axis2: int) -> Tensor:
    """``x`` with two axes swapped. A view.

    Raises:
        IndexOutOfRange, ArgumentError: for an axis that is out of range or no integer.
    """
    x = as_tensor(x, "swapaxes")
    first, second = one_axis(axis1, x.ndim), one_axis(axis2, x.ndim)
    order = list(range(x.ndim))
    order[first], order[second] = second, first
    return apply(Permute, x, axes=tuple(order))


def moveaxis(x: Tensor, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
    """``x`` with the axes ``source`` at the places ``destination``, the others in order. A view.

    Raises:
        ArgumentError: if there are not as many of one as of the other, or an axis is named twice.
        IndexOutOfRange: for an axis that is out of range.
    """
    x = as_tensor(x, "moveaxis")
    pairs = []
    for given in (source, destination):
        axes = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        many_axes(axes, x.ndim)  # refuses an axis named twice
        pairs.append([one_axis(a, x.ndim) for a in axes])
    taken, places = pairs
    if len(taken) != len(places):
        raise ArgumentError(f"moveaxis of {len(taken)} axes to {len(places)} places")
    order = [a for a in range(x.ndim) if a not in taken]
    for place, axis in sorted(zip(places, taken, strict=True)):
        order.insert(place, axis)
    return apply(Permute, x, axes=tuple(order))


def expand(x: Tensor, *shape: Any) -> Tensor:
    """``x`` repeated along axes of size 1 to ``shape``, by NumPy's broadcasting. A view.

    Args:
        x: any tensor.
        shape: the sizes, as ints or one tuple; -1 keeps a size.

    Raises:
        ShapeError: if ``x`` does not broadcast to the shape.
        ArgumentError: if a size is no integer.
    """
    x = as_tensor(x, "expand")
    sizes = as_sizes(shape, "expand")
    new = len(sizes) - x.ndim
    full = tuple(x.shape[i - new] if n == -1 and i >= new else n for i, n in enumerate(sizes))
    fits = new >= 0 and all(n in (1, m) for n, m in zip(x.shape, full[new:], strict=True))
    if not fits or min(full, default=0) < 0:
        raise ShapeError(f"a tensor of shape {x.shape} cannot be expanded to shape {sizes}")
    return apply(Expand, x, shape=full)


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """``x`` broadcast to ``shape``: NumPy's name for :func:`expand`."""
    return expand(x, tuple(shape))
