"""Ops that hang a view, or the tensor it is a view of, behind a write into shared memory.

After ``y[0] += 1`` the memory of y holds new values in one place, so y's gradient
must go to the written part there and to the old y elsewhere (:class:`Written`);
and every other view of that memory is a part of the new y (:class:`Region`).
Both see a view by its place alone, whatever operation made it.
"""

from __future__ import annotations

from typing import NamedTuple

from ...kernels.arrays import Array, contiguous, namespace
from ...kernels.gpu import is_cupy
from ..tape import Node, Op


class Place(NamedTuple):
    """Where a view lies in a C-contiguous array, counted in elements."""

    shape: tuple[int, ...]
    steps: tuple[int, ...]
    start: int


def address(array: Array) -> int:
    """The address of the first element."""
    return array.data.ptr if is_cupy(array) else array.__array_interface__["data"][0]


def place_in(base: Array, view: Array) -> Place | None:
    """Where ``view`` lies in ``base``; None if that is not wholly inside, or it overlaps itself."""
    if not base.flags.c_contiguous or view.dtype != base.dtype:
        return None
    if view.size == 0:
        return Place(view.shape, (0,) * view.ndim, 0)
    start, rest = divmod(address(view) - address(base), base.itemsize)
    steps = tuple(s // base.itemsize for s in view.strides)
    spans = [(n - 1) * s for n, s in zip(view.shape, steps, strict=True)]
    low, high = start + sum(s for s in spans if s < 0), start + sum(s for s in spans if s > 0)
    repeated = any(s == 0 for s, n in zip(steps, view.shape, strict=True) if n > 1)
    if rest or repeated or low < 0 or high >= base.size:
        return None
    return Place(view.shape, steps, start)


def part(dense: Array, place: Place) -> Array:
    """The elements of a C-contiguous array at ``place``, as a view."""
    flat = dense.reshape(-1)
    if 0 in place.shape:
        return flat[:0].reshape(place.shape)
    as_strided = namespace(dense).lib.stride_tricks.as_strided
    strides = tuple(s * dense.itemsize for s in place.steps)
    return as_strided(flat[place.start :], place.shape, strides)


class Written(Op):
    """y = base with the elements at ``place`` replaced by ``value``: memory already holds it."""

    @staticmethod
    def forward(ctx: Node, base: Array, value: Array, *, place: Place) -> Array:
        ctx.save(place)
        return base

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (place,) = ctx.saved
        dvalue = part(contiguous(grad), place).copy() if ctx.needs[1] else None
        dbase = None
        if ctx.needs[0]:
            dbase = grad.copy(order="C")
            part(dbase, place)[...] = 0
        return dbase, dvalue


class Region(Op):
    """y = the elements of base at ``place``: dx is dy there and 0 elsewhere."""

    @staticmethod
    def forward(ctx: Node, base: Array, *, place: Place) -> Array:
        ctx.save(base.shape, place)
        return part(base, place)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, place = ctx.saved
        dx = namespace(grad).zeros(shape, grad.dtype)
        part(dx, place)[...] = grad
        return (dx,)
