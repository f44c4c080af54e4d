"""Indexing: reading, writing and gathering elements, with NumPy's rules.

Integers, slices, ``None`` and ``...`` pick a view. Integer arrays, lists and
boolean masks gather a copy, and may pick an element several times; its
gradient is then the sum over all of them.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, DeviceError, DTypeError, IndexOutOfRange, ShapeError
from ...kernels.arrays import keep, namespace
from ..device import device_of
from ..tape import Array, Node, Op, apply, is_tensor
from ._axes import one_axis
from ._operands import as_tensor, broadcast_shape, check_devices, is_scalar, unbroadcast
from ._rows import Index, Rows, add_rows, written_last

if TYPE_CHECKING:
    from ..tensor import Tensor


def is_advanced(index: Index) -> bool:
    """Whether a resolved index holds an array, and so gathers a copy."""
    return any(hasattr(entry, "dtype") for entry in index)


def resolve(array: Array, index: Any) -> Index:
    """Check ``index`` against ``array`` and write it out in full.

    The result has one entry for each axis, and ``None`` for each new one:
    ``...`` becomes slices, a boolean mask the integer arrays of its true
    places, a Tensor its array, a list an array. On a GPU the bounds of an
    index array are fetched to be checked, which waits for the GPU.

    Raises:
        IndexOutOfRange: for too many indices, or one outside its axis.
        DTypeError: for an index of another type, or an array that is not int or bool.
        ShapeError: for a mask, or index arrays, whose shapes do not fit.
        DeviceError: for an index Tensor on another device.
        ArgumentError: for two ``...``.
    """
    given = index if isinstance(index, tuple) else (index,)
    entries = [_entry(array, part) for part in given]
    dots = [i for i, entry in enumerate(entries) if entry is Ellipsis]
    if len(dots) > 1:
        raise ArgumentError("an index can hold only one '...'")
    used = sum(_axes_used(entry) for entry in entries)
    if used > array.ndim:
        raise IndexOutOfRange(f"{used} indices given for a tensor of {array.ndim} dimensions")
    at = dots[0] if dots else len(entries)
    entries[at : at + 1] = [slice(None)] * (array.ndim - used)
    result: list[Any] = []
    axis = 0
    for entry in entries:
        result += _checked(array, entry, axis)
        axis += _axes_used(entry)
    arrays = [entry.shape for entry in result if hasattr(entry, "dtype")]
    if arrays:
        broadcast_shape("an index", *arrays)
    return tuple(result)


def _entry(array: Array, part: Any) -> Any:
    """One part of an index as an int, a slice, None, Ellipsis, or an int or bool array."""
    if part is None or part is Ellipsis or isinstance(part, slice):
        return part
    if is_tensor(part):
        if device_of(part.data) != device_of(array):
            raise DeviceError(
                f"a tensor on {device_of(array)} is indexed by one on {device_of(part.data)}; "
                "move the index with .to(...)"
            )
        part = part.data
    elif isinstance(part, list):
        try:
            part = np.asarray(part)
        except ValueError as error:
            raise DTypeError("an index list must be rectangular") from error
        # NumPy makes an empty list float64, but as an index it names no places.
        part = part if part.size else part.astype(np.intp)
    elif not hasattr(part, "dtype") and not isinstance(part, bool):
        try:
            return operator.index(part)
        except TypeError as error:
            raise DTypeError(
                f"an index of type {type(part).__name__}; wanted integers, slices, None, '...', "
                "integer or boolean arrays"
            ) from error
    part = namespace(array).asarray(part)
    if part.dtype.kind not in "iub" or (part.dtype.kind == "b" and part.ndim == 0):
        raise DTypeError(
            f"an index array of dtype {part.dtype.name} and {part.ndim} dimensions; wanted "
            "integers, or booleans of at least one dimension"
        )
    return int(part) if part.ndim == 0 else part


def _axes_used(entry: Any) -> int:
    """How many axes of the array an entry indexes."""
    if entry is None or entry is Ellipsis:
        return 0
    return entry.ndim if hasattr(entry, "dtype") and entry.dtype.kind == "b" else 1


def _checked(array: Array, entry: Any, axis: int) -> list[Any]:
    """The entry as entries for single axes, each within its axis.

    Arrays are copied: the tape keeps them, and the caller may write into theirs.
    """
    if entry is None or isinstance(entry, slice):
        return [entry]
    if hasattr(entry, "dtype") and entry.dtype.kind == "b":
        wanted = array.shape[axis : axis + entry.ndim]
        if entry.shape != wanted:
            raise ShapeError(f"a mask of shape {entry.shape} indexes axes of shape {wanted}")
        return list(entry.nonzero())
    size = array.shape[axis]
    if isinstance(entry, int):
        low = high = entry
    else:
        entry = entry.copy()
        low, high = (int(entry.min()), int(entry.max())) if entry.size else (-size, size - 1)
    if low < -size or high >= size:
        wrong = low if low < -size else high
        raise IndexOutOfRange(f"index {wrong} is out of range for axis {axis} of size {size}")
    return [entry]


class Slice(Op):
    """y = x[index] with ints, slices and None: a view. dx is dy there and 0 elsewhere."""

    view = True

    @staticmethod
    def forward(ctx: Node, x: Array, *, index: Index) -> Array:
        ctx.save(x.shape, index)
        return x[index + (Ellipsis,)]  # the Ellipsis keeps a single element an array

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, index = ctx.saved
        dx = namespace(grad).zeros(shape, grad.dtype)
        dx[index] = grad
        return (dx,)


class Gather(Op):
    """y = x[index] with index arrays: a copy. dx is the sum of dy over equal places."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, index: Index) -> Array:
        ctx.save(x.shape, index)
        return x[index]

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, index = ctx.saved
        xp = namespace(grad)
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
            dx[index] = 0
        if need_value:
            picked = grad[index + (Ellipsis,)]
            if is_advanced(index):
                rows = Rows(shape, index, namespace(grad))
                stays = written_last(rows.numbers)[:, None]
                kept = keep(stays, rows.of_result(picked))
                picked = rows.to_result(kept, picked.shape)
            dvalue = unbroadcast(picked, value_shape)
        return dx, dvalue


def write(array: Array, index: Index, value: Any) -> None:
    """``array[index] = value`` in place, for a resolved index; the last of equal places stays."""
    if hasattr(value, "dtype"):
        value = value.astype(array.dtype, copy=False)
    if is_advanced(index) and namespace(array) is not np:
        write_last(array, index, value)
    else:
        array[index] = value


def write_last(array: Array, index: Index, value: Any) -> None:
    """:func:`write` for CuPy, which leaves open which of the values for equal places stays.

    So only the last one of them is written.
    """
    xp = namespace(array)
    rows = Rows(array.shape, index, xp)
    value = xp.broadcast_to(xp.asarray(value, array.dtype), array[index].shape)
    stays = written_last(rows.numbers)
    table = rows.table(array)
    sizes, rest = table.shape[: len(rows.axes)], table.shape[len(rows.axes) :]
    places = xp.unravel_index(rows.numbers[stays], sizes)
    last = rows.of_result(value)[stays]
    table[places] = last.reshape(last.shape[0], *rest)


def getitem(x: Tensor, index: Any) -> Tensor:
    """``x[index]`` with NumPy's rules.

    Args:
        x: the tensor.
        index: ints, slices, None, ``...``, boolean masks and integer arrays
            (lists, NumPy arrays, Tensors), alone or in a tuple. Without arrays
            the result is a view of ``x``, with them a copy.

    Raises:
        IndexOutOfRange: for too many indices, or one outside its axis.
        DTypeError: for an index that is neither int nor bool.
        ShapeError: for a mask, or index arrays, whose shapes do not fit.
        DeviceError: for an index Tensor on another device.
        ArgumentError: for two ``...``.
    """
    x = as_tensor(x, "getitem")
    resolved = resolve(x.data, index)
    return apply(Gather if is_advanced(resolved) else Slice, x, index=resolved)


def setitem(x: Tensor, index: Any, value: Any) -> Tensor:
    """A copy of ``x`` in which ``[index]`` is ``value``, differentiable in both.

    Args:
        x: the tensor, which stays as it is.
        index: as for :func:`getitem`. Where index arrays name a place twice the
            last value stays.
        value: a number, or a Tensor that broadcasts to ``x[index]``; it is cast to x's dtype.

    Raises:
        ShapeError: if the value does not broadcast to ``x[index]``.
        DeviceError: if the value or an index is on another device.
        IndexOutOfRange, DTypeError, ArgumentError: as for :func:`getitem`.
    """
    x = as_tensor(x, "setitem")
    resolved = resolve(x.data, index)
    if not is_scalar(value):
        value = as_tensor(value, "setitem", x.device)
    check_value(x.data, resolved, value)
    return apply(SetItem, x, value, index=resolved)


def check_value(array: Array, index: Index, value: Any) -> None:
    """Check that ``array[index] = value``, a number or Tensor, fits, for a resolved index.

    Raises:
        ShapeError: if the value does not broadcast to ``array[index]``.
        DeviceError: if the value is on another device.
    """
    if is_scalar(value):
        return
    if device_of(value.data) != device_of(array):
        raise DeviceError(
            f"a value on {device_of(value.data)} is written into a tensor on {device_of(array)}; "
            "move it with .to(...)"
        )
    # A zero-stride stand-in has the shape of array[index] without its memory.
    stand_in = namespace(array).broadcast_to(namespace(array).zeros((), bool), array.shape)
    wanted = stand_in[index].shape
    try:
        fits = np.broadcast_shapes(value.shape, wanted) == wanted
    except ValueError:
        fits = False
    if not fits:
        raise ShapeError(f"a value of shape {value.shape} does not broadcast to {wanted}")


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
        IndexOutOfRange: for an index or axis out of range.
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
    broadcast_shape(f"take_along_axis over the axes beside {axis}", *others)
    (along,) = _checked(x.data, indices.data, axis)
    # The other axes are indexed by their own positions: [0, 1, 2 …], set along that axis.
    index: list[Array] = []
    for i, size in enumerate(x.shape):
        positions = namespace(x.data).arange(size)
        index.append(positions.reshape((size,) + (1,) * (x.ndim - i - 1)))
    index[axis] = along
    return apply(Gather, x, index=tuple(index))
