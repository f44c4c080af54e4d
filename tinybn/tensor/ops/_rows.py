"""Index arrays seen as row numbers of a table, and rows of equal numbers added up."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ...kernels.arrays import Array, namespace
from ._index import Index
from ._sums import adder


class Rows:
    """The gathered places of an index as a list of row numbers of a table.

    Put the axes that are indexed by arrays first, and see the array as a table
    with a row for each place in them. Then ``array[index]`` picks rows, and adding
    up a gradient is adding up rows.

    Attributes:
        places: for each of these axes the gathered places, one after the other.
        numbers: the row that each gathered place comes from, in the same order.
        height: how many rows there are.
    """

    def __init__(self, shape: tuple[int, ...], index: Index, xp: Any) -> None:
        self.index = index
        sizes = index.view_shape(shape)[index.first : index.first + len(index.axes)]
        places = xp.broadcast_arrays(*index.arrays)
        self.places_shape = places[0].shape
        self.places = [place.reshape(-1) for place in places]
        self.height = math.prod(sizes)
        self.numbers = xp.zeros(math.prod(self.places_shape), np.int64)
        for place, size in zip(self.places, sizes, strict=True):
            self.numbers = self.numbers * size + xp.where(place < 0, place + size, place)

    def table(self, array: Array) -> Array:
        """The view of ``array`` that is gathered from, with the indexed axes first."""
        n, first = len(self.index.axes), self.index.first
        source = tuple(range(first, first + n))
        return namespace(array).moveaxis(self.index.view(array), source, tuple(range(n)))

    def of_result(self, gathered: Array) -> Array:
        """``array[index]`` as [gathered places, the rest]."""
        n = len(self.places_shape)
        source = tuple(range(self.index.first, self.index.first + n))
        front = namespace(gathered).moveaxis(gathered, source, tuple(range(n)))
        return front.reshape(self.numbers.size, math.prod(front.shape[n:]))

    def to_result(self, rows: Array, shape: tuple[int, ...]) -> Array:
        """The inverse of :meth:`of_result`; ``shape`` is that of ``array[index]``."""
        n = len(self.places_shape)
        rest = shape[: self.index.first] + shape[self.index.first + n :]
        front = rows.reshape(*self.places_shape, *rest)
        destination = tuple(range(self.index.first, self.index.first + n))
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
