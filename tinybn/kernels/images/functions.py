"""Batches of a data set of images, ready for a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...arguments import integer
from ...errors import ArgumentError, ShapeError
from ..arrays import Array, contiguous, namespace
from ..checks import check_array, check_same_place
from ..engines import implementation
from ..gpu import is_cupy

GREYS = 256
STREAM = 4  # of Philox: apart from those of random numbers and dropout


def gather_images(
    images: Array,
    labels: Array,
    order: Array,
    table: Array,
    count: int,
    *,
    first: int = 0,
    shift: int = 0,
    seed: int = 0,
    offset: int | None = None,
) -> tuple[Array, Array]:
    """The images order[first], order[first + 1], …, each grey looked up in ``table``.

    With ``shift`` each is moved by −shift to shift pixels along each axis, at random from
    ``seed`` and the image's place, offset, offset + 1, …; what comes in at the edges is grey 0.

    Args:
        images: [N, H, W], uint8.
        labels: [N], int64.
        order: [n], int64, each from 0 to N − 1, which is not checked.
        table: [256], float32: what each grey becomes.
        count: how many.
        first: the first's place in ``order``; with ``count`` not over its end.
        shift: pixels, at least 0.
        seed: 0 to 2⁶³ − 1.
        offset: the first's place for the random moves; None is ``first``.

    In a recorded step first, seed and offset may be arrays of one int64 that replays find renewed.

    Returns:
        [count, 1, H, W] float32 and [count] int64.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.

    Source: Salmon et al. 2011, doi:10.1145/2063384.2063405, for the random moves.
    """
    for array, name, dtype in (
        (images, "images", "uint8"), (labels, "labels", "int64"), (order, "order", "int64"),
        (table, "table", "float32"),
    ):  # fmt: skip
        check_array(array, name, (np.dtype(dtype),), dtype)
        check_same_place(images, array, name)
    if images.ndim != 3 or labels.shape != images.shape[:1]:
        raise ShapeError(
            f"images have shape {images.shape} and labels {labels.shape}; wanted [N, H, W] and [N]"
        )
    if order.ndim != 1 or table.shape != (GREYS,):
        raise ShapeError(
            f"order has shape {order.shape} and table {table.shape}; wanted [n] and ({GREYS},)"
        )
    shift = _checked(count, first, len(order), shift, seed)
    xp = namespace(images)
    x = xp.empty((count, 1, *images.shape[1:]), np.float32)
    y = xp.empty(count, np.int64)
    if not x.size:
        y[...] = labels[order[first + xp.arange(count)]]  # of images without pixels
    else:
        implementation("gather_images", images)(
            contiguous(images), contiguous(labels), contiguous(order), contiguous(table),
            x[:, 0], y, first=first, shift=shift, seed=seed,
            offset=first if offset is None else offset, stream=STREAM,
        )  # fmt: skip
    return x, y


def _checked(count: int, first: Any, length: int, shift: Any, seed: Any) -> int:
    """The shift as an int; raises for numbers that do not fit."""
    # Those of a recorded step are its own.
    known, key = (0 if is_cupy(number) else number for number in (first, seed))
    if count < 0 or known < 0 or known + count > length:
        raise ArgumentError(f"first is {known} and count {count}; wanted 0 to {length} together")
    if not 0 <= key < 2**63:
        raise ArgumentError(f"seed is {key}; wanted 0 to 2**63 - 1")
    return integer("shift", shift, 0)
