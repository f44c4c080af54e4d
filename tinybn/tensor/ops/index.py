"""Indexing: reading, writing and gathering elements, with NumPy's rules.

Integers, slices, ``None`` and ``...`` pick a view. Integer arrays, lists and
boolean masks gather a copy, and may pick an element several times; its
gradient is then the sum over all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import DeviceError, DTypeError, ShapeError
from ...kernels.arrays import contiguous, keep, namespace
from ..device import device_of
from ..tape import Array, Node, Op, apply
from ._axes import one_axis
from ._index import Index, resolve, within_axis
from ._operands import as_tensor, broadcast_shape, check_devices, is_scalar, unbroadcast
from ._rows import Rows, add_rows, written_last

if TYPE_CHECKING:
    from ..tensor import Tensor


class Slice(Op):
    """y = x[index] with ints, slices and None: a view. dx is dy there and 0 elsewhere."""

    view = True

    @staticmethod
    def forward(ctx: Node, x: Array, *, index: Index) -> Array:
        ctx.save(x.shape, index)
        return index.get(x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, index = ctx.saved
        dx = namespace(grad).zeros(shape, grad.dtype)
        index.put(dx, grad)
        return (dx,)


class Gather(Op):
    """y = x[index] with index arrays: a copy. dx is the sum of dy over equal places.

    ``distinct`` says that no places are equal: then nothing need be sorted or added.
    """

    @staticmethod
    def forward(ctx: Node, x: Array, *, index: Index, distinct: bool = False) -> Array:
        ctx.save(x.shape, index, distinct)
        return index.get(x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, index, distinct = ctx.saved
        xp = namespace(grad)
        if distinct:
            dx = xp.zeros(shape, grad.dtype)
            index.put(dx, grad)
            return (dx,)
        rows = Rows(shape, index, xp)
        sums = add_rows(rows.numbers, rows.of_result(grad), rows.height)
        dx = xp.zeros(shape, grad.dtype)
        table = rows.table(dx)
        table[...] = sums.reshape(table.shape)
        return (dx,)


class SetItem(Op):
    """y = x, but y[index] = value: dx is dy with 0 there, dvalue is dy there.

    Where index arrays name a place twice, the last value stays, as in NumPy,
    and it alone gets the gradient.
    """

    @staticmethod
    def forward(ctx: Node, x: Array, value: Any, *, index: Index) -> Array:
        ctx.save(x.shape, index, getattr(value, "shape", ()))
        result = x.copy()
        write(result, index, value)
        return result

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, index, value_shape = ctx.saved
        need_x, need_value = ctx.needs
        dx = dvalue = None
        if need_x:
            dx = grad.copy()
            index.put(dx, 0)
        if need_value:
            picked = index.get(grad)
            if index.arrays:
                rows = Rows(shape, index, namespace(grad))
                stays = written_last(rows.numbers)[:, None]
                kept = keep(stays, rows.of_result(picked))
                picked = rows.to_result(kept, picked.shape)
            dvalue = unbroadcast(picked, value_shape)
        return dx, dvalue


def write(array: Array, index: Index, value: Any) -> None:
    """``array[index] = value`` in place; the last of equal places stays."""
    if hasattr(value, "dtype"):
        value = value.astype(array.dtype, copy=False)
    if not index.arrays:
        index.put(array, value)
    elif namespace(array) is np:
        # NumPy goes through the places in the order of memory: C order, as the index arrays are.
        index.put(array, contiguous(value) if hasattr(value, "dtype") else value)
    else:
        write_last(array, index, value)


def write_last(array: Array, index: Index, value: Any) -> None:
    """:func:`write` for CuPy, which leaves open which of the values for equal places stays.

    So only the last one of them is written.
    """
    xp = namespace(array)
    rows = Rows(array.shape, index, xp)
    value = xp.broadcast_to(xp.asarray(value, array.dtype), index.result_shape(array.shape))
    stays = written_last(rows.numbers)
    table = rows.table(array)
    last = rows.of_result(value)[stays]
    places = tuple(place[stays] for place in rows.places)
    table[places] = last.reshape(last.shape[0], *table.shape[len(places) :])


def getitem(x: Tensor, index: Any) -> Tensor:
    """``x[index]`` with NumPy's rules.

    Args:
        x: the tensor.
        index: ints, slices, None, ``...``, boolean masks (``True`` and ``False``
            too) and integer arrays (lists, NumPy arrays, Tensors), alone or in a
            tuple. Without masks and arrays the result is a view of ``x``, with
            them a copy. An integer array of no dimensions counts as its int.

    Raises:
        IndexOutOfRange: for too many indices, or one outside its axis.
        DTypeError: for an index that is neither int nor bool.
        ShapeError: for a mask, or index arrays, whose shapes do not fit.
        DeviceError: for an index Tensor on another device.
        ArgumentError: for two ``...``, or a slice of step 0.
    """
    x = as_tensor(x, "getitem")
    resolved = resolve(x.data, index)
    return apply(Gather if resolved.arrays else Slice, x, index=resolved)


def setitem(x: Tensor, index: Any, value: Any) -> Tensor:
    """A copy of ``x`` in which ``[index]`` is ``value``, differentiable in both.

    Args:
        x: the tensor, which stays as it is.
        index: as for :func:`getitem`. Where index arrays name a place twice the
            last value stays.
        value: a number, or a Tensor that broadcasts to ``x[index]``, where leading axes
            of size 1 count for nothing; it is cast to x's dtype.

    Raises:
        ShapeError: if the value does not broadcast to ``x[index]``.
        DeviceError: if the value or an index is on another device.
        IndexOutOfRange, DTypeError, ArgumentError: as for :func:`getitem`.
    """
    x = as_tensor(x, "setitem")
    resolved = resolve(x.data, index)
    if not is_scalar(value):
        value = as_tensor(value, "setitem", x.device)
    return apply(SetItem, x, fitting(x.data, resolved, value), index=resolved)


def fitting(array: Array, index: Index, value: Any) -> Any:
    """``value``, a number or Tensor, for ``array[index] = value``: without leading axes of size 1.

    Raises:
        ShapeError: if the value does not broadcast to ``array[index]``.
        DeviceError: if the value is on another device.
    """
    if is_scalar(value):
        return value
    if device_of(value.data) != device_of(array):
        raise DeviceError(
            f"a value on {device_of(value.data)} is written into a tensor on {device_of(array)}; "
            "move it with .to(...)"
        )
    wanted = index.result_shape(array.shape)
    more = max(value.ndim - len(wanted), 0)
    try:
        fits = np.broadcast_shapes(value.shape[more:], wanted) == wanted
    except ValueError:
        fits = False
    if not fits or any(n != 1 for n in value.shape[:more]):
        raise ShapeError(f"a value of shape {value.shape} does not broadcast to {wanted}")
    return value.reshape(value.shape[more:]) if more else value


def take_along_axis(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Along ``axis``, the elements of ``x`` that ``indices`` names; all other axes match.

    ``y[i, j] = x[i, indices[i, j]]`` for two dimensions and axis 1: the score of
    each row's own label, for example.

    Args:
        x: any tensor.
        indices: int32 or int64, of as many dimensions; its other axes broadcast with x's.
        axis: the axis along which is picked.

    Raises:
        ShapeError: if the shapes do not fit.
        DTypeError: if the indices are not integers.
        IndexOutOfRange: for an index or axis out of range. A captured step does not look.
        DeviceError: if they are on different devices.
    """
    x, indices = as_tensor(x, "take_along_axis"), as_tensor(indices, "take_along_axis")
    check_devices("take_along_axis", x, indices)
    axis = one_axis(axis, x.ndim)
    if indices.dtype.kind != "i":
        raise DTypeError(f"indices of dtype {indices.dtype.name}; int32 or int64 is wanted")
    if indices.ndim != x.ndim:
        raise ShapeError(
            f"indices of {indices.ndim} dimensions for a tensor of {x.ndim}: wanted as many"
        )
    others = [shape[:axis] + shape[axis + 1 :] for shape in (x.shape, indices.shape)]
    wanted = broadcast_shape(f"take_along_axis over the axes beside {axis}", *others)
    along = within_axis(indices.data, axis, x.shape[axis])
    # The other axes are indexed by their own positions: [0, 1, 2 …], set along that axis.
    arrays: list[Array] = []
    for i, size in enumerate(x.shape):
        positions = namespace(x.data).arange(size)
        arrays.append(positions.reshape((size,) + (1,) * (x.ndim - i - 1)))
    arrays[axis] = along
    index = Index((slice(None),) * x.ndim, tuple(range(x.ndim)), tuple(arrays))
    distinct = along.shape[axis] == 1 and others[0] == wanted
    return apply(Gather, x, index=index, distinct=distinct)
