"""Axes: checked, counted from the front, and what a reduction over them leaves."""

from __future__ import annotations

import math
from typing import Any

from ...arguments import integer
from ...errors import ArgumentError, IndexOutOfRange

Axes = tuple[int, ...]
Shape = tuple[int, ...]
AxisLike = int | tuple[int, ...] | None


def one_axis(axis: Any, ndim: int) -> int:
    """Return ``axis`` counted from the front.

    Raises:
        ArgumentTypeError: (an ArgumentError) if it is no integer.
        IndexOutOfRange: if it is not in [-ndim, ndim).
    """
    number = axis if type(axis) is int else integer("axis", axis)
    if not -ndim <= number < ndim:
        raise IndexOutOfRange(f"axis {number} is out of range for a tensor of {ndim} dimensions")
    return number % ndim


def many_axes(axis: Any, ndim: int) -> Axes:
    """Return ``axis`` (an int, a sequence of ints, or None for all) as sorted, positive axes.

    Raises:
        ArgumentError: if one of them is no integer or is given twice.
        IndexOutOfRange: if one is not in [-ndim, ndim).
    """
    if axis is None:
        return tuple(range(ndim))
    given = axis if isinstance(axis, (tuple, list)) else (axis,)
    axes = tuple(sorted(one_axis(a, ndim) for a in given))
    if len(set(axes)) != len(axes):
        raise ArgumentError(f"axis {axis!r} names the same axis twice")
    return axes


def kept_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of a reduction over ``axes`` with ``keepdims=True``."""
    return tuple(1 if i in axes else n for i, n in enumerate(shape))


def reduced_shape(shape: tuple[int, ...], axes: Axes) -> tuple[int, ...]:
    """The shape of a reduction over ``axes`` with ``keepdims=False``."""
    return tuple(n for i, n in enumerate(shape) if i not in axes)


def count(shape: tuple[int, ...], axes: Axes) -> int:
    """How many elements a reduction over ``axes`` makes into one."""
    return math.prod(shape[i] for i in axes)


def as_sizes(given: tuple[Any, ...], name: str) -> Shape:
    """``f(2, 3)`` and ``f((2, 3))`` alike, as a tuple of ints."""
    sizes = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    return tuple(n if type(n) is int else integer(f"an argument of {name}", n) for n in sizes)
