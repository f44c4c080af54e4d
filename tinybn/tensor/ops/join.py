"""Joining tensors, cutting them in pieces, and putting a border around them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arguments import integer
from ...errors import ArgumentError, ShapeError
from ...kernels.arrays import namespace
from ..tape import Array, Node, Op, apply
from ._axes import Shape, as_sizes, one_axis
from ._operands import as_tensor, check_devices, result_dtype
from .index import getitem

if TYPE_CHECKING:
    from ..tensor import Tensor


class Concatenate(Op):
    """y = the inputs one after the other along an axis; each dx is its part of dy."""

    @staticmethod
    def forward(ctx: Node, *arrays: Array, axis: int) -> Array:
        ctx.save([x.shape[axis] for x in arrays], axis)
        common = result_dtype(*arrays)
        ready = [x.astype(common, copy=False) for x in arrays]
        return namespace(ready[0]).concatenate(ready, axis=axis)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        sizes, axis = ctx.saved
        front = namespace(grad).moveaxis(grad, axis, 0)
        parts, start = [], 0
        for size, needed in zip(sizes, ctx.needs, strict=True):
            part = namespace(grad).moveaxis(front[start : start + size], 0, axis)
            parts.append(part if needed else None)
            start += size
        return tuple(parts)


class Stack(Op):
    """y = the inputs side by side along a new axis; each dx is its slice of dy."""

    @staticmethod
    def forward(ctx: Node, *arrays: Array, axis: int) -> Array:
        ctx.save(axis)
        common = result_dtype(*arrays)
        ready = [x.astype(common, copy=False) for x in arrays]
        return namespace(ready[0]).stack(ready, axis=axis)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (axis,) = ctx.saved
        front = namespace(grad).moveaxis(grad, axis, 0)
        # The Ellipsis keeps a single element an array.
        return tuple(front[i, ...] if needed else None for i, needed in enumerate(ctx.needs))


class Pad(Op):
    """y = x with a constant around it; dx = dy without the border."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, widths: tuple[tuple[int, int], ...], value: Any) -> Array:
        shape = tuple(
            n + before + after for n, (before, after) in zip(x.shape, widths, strict=True)
        )
        inner = tuple(
            slice(before, before + n) for n, (before, _) in zip(x.shape, widths, strict=True)
        )
        ctx.save(inner)
        result = namespace(x).full(shape, value, x.dtype)
        result[inner] = x
        return result

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (inner,) = ctx.saved
        return (grad[inner + (Ellipsis,)],)


def concatenate(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors one after the other along ``axis``, of their promoted dtype.

    Raises:
        ArgumentError: for no tensors.
        ShapeError: if they differ in another axis, or have no dimensions.
        DeviceError: if they are on different devices.
        IndexOutOfRange: if the axis is out of range.
    """
    ready = _several("concatenate", tensors)
    shapes = [t.shape for t in ready]
    if shapes[0] == ():
        raise ShapeError("concatenate of tensors of no dimensions; use stack")
    axis = one_axis(axis, len(shapes[0]))
    if len({(*shape[:axis], None, *shape[axis + 1 :]) for shape in shapes}) > 1:
        raise ShapeError(
            f"concatenate along axis {axis} of shapes {_list(shapes)}: the other axes must agree"
        )
    return apply(Concatenate, *ready, axis=axis)


def cat(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """PyTorch's name for :func:`concatenate`."""
    return concatenate(tensors, axis)


def stack(tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
    """The tensors, all of one shape, side by side along a new axis, of their promoted dtype.

    Raises:
        ArgumentError: for no tensors.
        ShapeError: if their shapes differ.
        DeviceError: if they are on different devices.
        IndexOutOfRange: if the axis is out of range.
    """
    ready = _several("stack", tensors)
    shapes = [t.shape for t in ready]
    if len(set(shapes)) > 1:
        raise ShapeError(f"stack of shapes {_list(shapes)}: all must be the same")
    return apply(Stack, *ready, axis=one_axis(axis, len(shapes[0]) + 1))


def split(x: Tensor, size: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
    """``x`` in pieces along ``axis``, as views: PyTorch's rule, not NumPy's.

    Args:
        x: any tensor.
        size: the size of each piece (the last may be smaller), or the sizes of all.
        axis: the axis that is cut.

    Raises:
        ArgumentError: if a size is negative, the one size is 0, or they do not add up to the axis.
        IndexOutOfRange: if the axis is out of range.
    """
    x = as_tensor(x, "split")
    axis = one_axis(axis, x.ndim)
    length = x.shape[axis]
    if isinstance(size, (tuple, list)):
        sizes = as_sizes((size,), "split")
        if any(n < 0 for n in sizes) or sum(sizes) != length:
            raise ArgumentError(
                f"split of axis {axis} of size {length} into {list(size)}: sizes of at least 0 "
                "that add up to it are wanted"
            )
    else:
        step = integer("size of split", size, 1)
        sizes = tuple(min(step, length - i) for i in range(0, length, step)) or (0,)
    ends = np.cumsum(sizes).tolist()
    before = (slice(None),) * axis
    return tuple(getitem(x, (*before, slice(e - n, e))) for n, e in zip(sizes, ends, strict=True))


def chunk(x: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
    """``x`` in at most ``chunks`` pieces of equal size along ``axis`` (the last may be smaller).

    Raises:
        ArgumentError: if ``chunks`` is not at least 1.
        IndexOutOfRange: if the axis is out of range.
    """
    x = as_tensor(x, "chunk")
    number = integer("chunks", chunks, 1)
    length = x.shape[one_axis(axis, x.ndim)]
    return split(x, -(-length // number) or 1, axis)


def pad(x: Tensor, pad_width: Any, mode: str = "constant", value: float = 0) -> Tensor:
    """``x`` with ``value`` around it.

    Args:
        x: any tensor.
        pad_width: as for ``numpy.pad``: n, (before, after), or a pair for each axis.
        mode: only ``"constant"``.
        value: what the border holds.

    Raises:
        ArgumentError: for another mode, or a width that is negative or no integer.
        ShapeError: if the widths do not fit the number of axes.
    """
    x = as_tensor(x, "pad")
    if mode != "constant":
        raise ArgumentError(f'pad with mode {mode!r}; only "constant" is known')
    widths = np.asarray(pad_width)
    if widths.dtype.kind not in "iu" or (widths < 0).any():
        raise ArgumentError(f"pad by {pad_width!r}; integers of at least 0 are wanted")
    try:
        pairs = np.broadcast_to(widths, (x.ndim, 2)).tolist()
    except ValueError as error:
        raise ShapeError(
            f"pad by {pad_width!r} of a tensor of shape {x.shape}; wanted n, (before, after) "
            "or a pair for each axis"
        ) from error
    return apply(Pad, x, widths=tuple((b, a) for b, a in pairs), value=value)


def _several(name: str, tensors: Sequence[Tensor]) -> list[Tensor]:
    ready = [as_tensor(t, name) for t in tensors]
    if not ready:
        raise ArgumentError(f"{name} of no tensors; at least one is wanted")
    check_devices(name, *ready)
    return ready


def _list(shapes: Sequence[Shape]) -> str:
    return ", ".join(str(shape) for shape in shapes)
