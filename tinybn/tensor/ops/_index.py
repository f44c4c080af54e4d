"""What an index means: checked against an array, and written out in full."""

from __future__ import annotations

import operator
from typing import Any, NamedTuple

import numpy as np

from ...errors import ArgumentError, DeviceError, DTypeError, IndexOutOfRange, ShapeError
from ...kernels import recording
from ...kernels.arrays import Array, namespace
from ...kernels.gpu import is_cupy
from ..device import device_of
from ..tape import is_tensor
from ._operands import broadcast_shape


class Index(NamedTuple):
    """A checked index in two steps, which NumPy and CuPy understand alike.

    First a view: ``outer`` is applied, which leaves whole the axes that are
    indexed by arrays, and these are brought together at ``first``. Then the
    arrays gather from them. Nothing stands between them any more, so the axes of
    the gathered places come where they were: at ``first``.

    Attributes:
        outer: ints, slices and None, of which ints and slices are one for each axis.
        axes: the axes of ``array[outer]`` that are indexed by arrays.
        arrays: an int64 array for each of them, which broadcast against each other.
        first: where these axes go, and in the result those of the gathered places begin.
    """

    outer: tuple[Any, ...]
    axes: tuple[int, ...] = ()
    arrays: tuple[Array, ...] = ()
    first: int = 0

    def view(self, array: Array) -> Array:
        """The view of ``array`` from which the arrays gather; without arrays the result."""
        view = array[self.outer + (Ellipsis,)]  # the Ellipsis keeps a single element an array
        together = tuple(range(self.first, self.first + len(self.axes)))
        if self.axes == together:
            return view
        return namespace(array).moveaxis(view, self.axes, together)

    def get(self, array: Array) -> Array:
        """``array[index]``: a view without arrays, a copy with them."""
        view = self.view(array)
        return view[self._picks()] if self.arrays else view

    def put(self, array: Array, value: Any) -> None:
        """``array[index] = value``."""
        self.view(array)[self._picks()] = value

    def _picks(self) -> tuple[Any, ...]:
        return (slice(None),) * self.first + self.arrays if self.arrays else (Ellipsis,)

    def places_shape(self) -> tuple[int, ...]:
        """The shape of the gathered places."""
        return np.broadcast_shapes(*(array.shape for array in self.arrays))

    def view_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of :meth:`view` for an array of ``shape``."""
        # A zero-stride stand-in has the shape without the memory.
        return self.view(np.broadcast_to(np.zeros((), bool), shape)).shape

    def result_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of ``array[index]`` for an array of ``shape``."""
        view = self.view_shape(shape)
        return view[: self.first] + self.places_shape() + view[self.first + len(self.axes) :]


def resolve(array: Array, index: Any) -> Index:
    """Check ``index`` against ``array`` and write it out in full, by NumPy's rules.

    ``...`` becomes slices, a boolean mask the integer arrays of its true places,
    a Tensor its array, a list an array. A mask of no axes (``True``, ``False``)
    gathers once or never from a new axis. The bounds of an index array on a GPU
    are fetched to be checked, which waits for the GPU; a captured step, which
    could not, takes them as they are.

    Raises:
        IndexOutOfRange: for too many indices, or one outside its axis.
        DTypeError: for an index of another type, or an array that is not int or bool.
        ShapeError: for a mask, or index arrays, whose shapes do not fit.
        DeviceError: for an index array on another device.
        ArgumentError: for two ``...``, or a slice of step 0.
    """
    given = index if isinstance(index, tuple) else (index,)
    entries = [_entry(array, part) for part in given]
    dots = sum(entry is Ellipsis for entry in entries)
    if dots > 1:
        raise ArgumentError("an index can hold only one '...'")
    used = sum(_axes_used(entry) for entry in entries)
    if used > array.ndim:
        raise IndexOutOfRange(f"{used} indices given for a tensor of {array.ndim} dimensions")
    if not dots:
        entries.append(Ellipsis)
    outer: list[Any] = []
    arrays: dict[int, Array] = {}  # by their places in outer
    axis = 0
    for entry in entries:
        if entry is Ellipsis:
            outer += [slice(None)] * (array.ndim - used)
            axis += array.ndim - used
        elif _gathers(entry):
            for numbers in _index_arrays(array, entry, axis):
                arrays[len(outer)] = numbers
                outer.append(None if isinstance(entry, bool) else slice(None))
        else:
            if isinstance(entry, int):
                _check_bounds(entry, entry, axis, array.shape[axis])
            outer.append(entry)
        axis += _axes_used(entry)
    if not arrays:
        return Index(tuple(outer))
    broadcast_shape("an index", *(numbers.shape for numbers in arrays.values()))
    # NumPy puts the gathered axes where the first array or int was, or in front if a slice, None
    # or '...', even one for no axes, stands between two of them.
    at = [i for i, entry in enumerate(entries) if isinstance(entry, int) or _gathers(entry)]
    together = at == list(range(at[0], at[-1] + 1))
    axes = tuple(sum(not isinstance(e, int) for e in outer[:place]) for place in arrays)
    return Index(tuple(outer), axes, tuple(arrays.values()), axes[0] if together else 0)


def _entry(array: Array, part: Any) -> Any:
    """One part of an index as an int, a bool, a slice, None, Ellipsis, or an int or bool array."""
    if part is None or part is Ellipsis or isinstance(part, int):
        return part
    if isinstance(part, slice):
        return _slice(part)
    tensor = is_tensor(part)
    if tensor:
        part = part.data
    if (tensor or is_cupy(part)) and device_of(part) != device_of(array):
        raise DeviceError(
            f"a tensor on {device_of(array)} is indexed by one on {device_of(part)}; "
            "move the index with .to(...)"
        )
    if isinstance(part, (list, tuple, range)):
        try:
            part = np.asarray(part)
        except ValueError as error:
            raise DTypeError("an index list must be rectangular") from error
        # NumPy makes an empty list float64, but as an index it names no places.
        part = part if part.size else part.astype(np.int64)
    elif not hasattr(part, "dtype"):
        try:
            return operator.index(part)
        except TypeError as error:
            raise DTypeError(
                f"an index of type {type(part).__name__}; wanted integers, slices, None, '...', "
                "integer or boolean arrays"
            ) from error
    if part.dtype.kind not in "iub":
        raise DTypeError(
            f"an index array of dtype {part.dtype.name} and {part.ndim} dimensions; wanted "
            "integers or booleans"
        )
    if part.ndim == 0:
        return bool(part) if part.dtype.kind == "b" else int(part)
    return part


def _slice(part: slice) -> slice:
    """The slice with ints, which no one can change."""
    start, stop, step = part.start, part.stop, part.step
    try:
        start, stop, step = (
            None if end is None else operator.index(end) for end in (start, stop, step)
        )
    except TypeError as error:
        raise DTypeError(f"{part} as an index; wanted integers or None in it") from error
    if step == 0:
        raise ArgumentError(f"{part} as an index; wanted a step other than 0")
    return slice(start, stop, step)


def _gathers(entry: Any) -> bool:
    """Whether an entry is an array or a mask, and so gathers a copy."""
    return isinstance(entry, bool) or hasattr(entry, "dtype")


def _axes_used(entry: Any) -> int:
    """How many axes of the array an entry indexes."""
    if entry is None or entry is Ellipsis or isinstance(entry, bool):
        return 0
    return entry.ndim if hasattr(entry, "dtype") and entry.dtype.kind == "b" else 1


def _index_arrays(array: Array, entry: Any, axis: int) -> list[Array]:
    """An array or mask as int64 arrays for single axes, each within its axis, beside ``array``."""
    xp = namespace(array)
    if isinstance(entry, bool):
        return [xp.zeros(int(entry), np.int64)]
    if entry.dtype.kind == "b":
        wanted = array.shape[axis : axis + entry.ndim]
        if entry.shape != wanted:
            raise ShapeError(f"a mask of shape {entry.shape} indexes axes of shape {wanted}")
        return [xp.asarray(places) for places in entry.nonzero()]
    return [xp.asarray(within_axis(entry, axis, array.shape[axis]))]


def within_axis(numbers: Array, axis: int, size: int) -> Array:
    """A copy of an index array, which the tape may keep, as int64 in C order.

    (The order decides which of the values for equal places NumPy writes last.)

    Raises:
        IndexOutOfRange: for a number outside the axis, which is of ``size``. A captured step
            looks at none on a GPU: CuPy counts such a number on from the axis's other end.
    """
    if numbers.size and not (is_cupy(numbers) and recording.capturing()):
        _check_bounds(int(numbers.min()), int(numbers.max()), axis, size)
    return numbers.astype(np.int64, order="C")


def _check_bounds(low: int, high: int, axis: int, size: int) -> None:
    if low < -size or high >= size:
        wrong = low if low < -size else high
        raise IndexOutOfRange(f"index {wrong} is out of range for axis {axis} of size {size}")
