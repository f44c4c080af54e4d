"""Index arrays seen as row numbers of a table, and rows of equal numbers added up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...kernels.arrays import Array, namespace
from ._sums import adder

Index = tuple[Any, ...]  # ints, slices, None and integer arrays, one for every axis


class Rows:
    """An advanced index seen as rows: the gathered places as a list of row numbers.

    Put the axes that are indexed by an array or an int first, and see the array
    as a table with a row for each place in them. Then ``array[index]`` picks
    rows, and adding up a gradient is adding up rows.

    Attributes:
        numbers: the row that each gathered place comes from, in the result's order.
        height: how many rows there are.
        axes: the axes that are indexed by an array or an int.
        outer: the index that applies the slices and keeps those axes whole.
    """

    def __init__(self, shape: tuple[int, ...], index: Index, xp: Any) -> None:
        by_axis = [entry for entry in index if entry is not None]
        self.axes = tuple(i for i, e in enumerate(by_axis) if not isinstance(e, slice))
        self.outer = tuple(e if isinstance(e, slice) else slice(None) for e in by_axis)
        sizes = [shape[i] for i in self.axes]
        places = xp.broadcast_arrays(*(xp.asarray(by_axis[i], np.int64) for i in self.axes))
        self.places_shape = places[0].shape
        self.height = math.prod(sizes)
        numbers = xp.zeros(self.places_shape, np.int64)
        for place, size in zip(places, sizes, strict=True):
            numbers = numbers * size + xp.where(place < 0, place + size, place)
        self.numbers = numbers.reshape(-1)
        # NumPy puts the gathered axes where the first of them was, or in front
        # if a slice or None stands between two of them.
        at = [i for i, e in enumerate(index) if not (e is None or isinstance(e, slice))]
        together = at == list(range(at[0], at[-1] + 1))
        self.position = at[0] if together else 0

    def table(self, array: Array) -> Array:
        """A view of ``array`` with the indexed axes first and the slices applied."""
        return namespace(array).moveaxis(array[self.outer], self.axes, tuple(range(len(self.axes))))

    def of_result(self, gathered: Array) -> Array:
        """``array[index]`` as [gathered places, the rest]."""
        n = len(self.places_shape)
        source = tuple(range(self.position, self.position + n))
        front = namespace(gathered).moveaxis(gathered, source, tuple(range(n)))
        return front.reshape(self.numbers.size, math.prod(front.shape[n:]))

    def to_result(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of :meth:`of_result`; ``shape`` is that of ``array[index]``."""
        n = len(self.places_shape)
        rest = shape[: self.position] + shape[self.position + n :]
        front = rows.reshape(*self.places_shape, *rest)
        destination = tuple(range(self.position, self.position + n))
        return namespace(rows).moveaxis(front, tuple(range(n)), destination)


def add_rows(numbers: Array, rows: Array, height: int) -> Array:
    """A table of ``height`` rows, each the sum of those ``rows`` whose number is its own.

    Added up as wide as any sum (``_sums``), in an order that depends on ``numbers``
    alone, so that the same input gives the same bits. ``np.add.at`` adds one
    after the other. On a GPU the atomic additions of ``cupyx.scatter_add``
    come in any order; there the rows are sorted and added as pairs instead.
    """
    xp = namespace(rows)
    width = rows.shape[1]
    wide = rows.astype(adder(rows), copy=False)
    table = xp.zeros((height, width), wide.dtype)
    if xp is np:
        places = (numbers[:, None] * width + np.arange(width)).reshape(-1)
        np.add.at(table.reshape(-1), places, wide.reshape(-1))
    elif numbers.size:
        unique, sums = sum_runs(numbers, wide)
        table[unique] = sums
    return table.astype(rows.dtype, copy=False)


def sum_runs(numbers: Array, rows: Array) -> tuple[Array, Array]:
    """The distinct ``numbers``, sorted, and for each the sum of its ``rows``.

    Rows of the same number are brought together by a stable sort. Then each run
    is added up as a tree: neighbours, then neighbours of neighbours, and so on,
    each level being one vectorised addition for all runs at once.
    """
    xp = namespace(rows)
    order, first = _runs(numbers)
    starts = xp.flatnonzero(first)
    rows = rows[order]
    run = xp.cumsum(first) - 1  # for each sorted row, which run it is in
    ends = xp.append(starts[1:], xp.asarray([numbers.size]))
    place = xp.arange(numbers.size) - starts[run]
    length = (ends - starts)[run]
    step, longest = 1, int(length.max())
    while step < longest:
        left = xp.flatnonzero((place % (2 * step) == 0) & (place + step < length))
        rows[left] += rows[left + step]
        step *= 2
    return numbers[order][starts], rows[starts]


def _runs(numbers: Array) -> tuple[Array, Array]:
    """A stable order that sorts ``numbers``, and where in it each new number begins."""
    xp = namespace(numbers)
    order = xp.argsort(numbers, kind="stable")
    ordered = numbers[order]
    first = xp.ones(numbers.size, bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return order, first


def written_last(numbers: Array) -> Array:
    """For each place whether it is the last one with its number: the one whose value stays."""
    xp = namespace(numbers)
    order, first = _runs(numbers)
    last = xp.ones(numbers.size, bool)
    last[:-1] = first[1:]
    result = xp.empty(numbers.size, bool)
    result[order] = last
    return result
