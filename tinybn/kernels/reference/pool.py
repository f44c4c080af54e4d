"""Pooling: the largest or the mean element of each window, and where their gradients go."""

from __future__ import annotations

import numpy as np

from ..arrays import accumulation_dtype, keep
from ..windows import Pair, Windows
from .parts import in_parts, on_all_cores
from .taps import add_taps, under_taps

Array = np.ndarray

PART_BYTES = 2**21  # of images at a time


def _inside(windows: Windows, size: Pair, output: Pair) -> list[Array]:
    """Whether tap k of window o lies inside, for each axis: [KH, OH] and [KW, OW]."""
    found = []
    for axis in (0, 1):
        tap = np.arange(windows.kernel[axis])[:, None] * windows.dilation[axis]
        at = tap + np.arange(output[axis]) * windows.stride[axis] - windows.before[axis]
        found.append((at >= 0) & (at < size[axis]))
    return found


def max_pool2d_forward(x: Array, y: Array, winner: Array, *, windows: Windows) -> None:
    """y is the largest element of each window, the first of equal ones, or the last NaN.

    ``winner`` is the number of its tap, k·KW + l.
    """
    output = y.shape[2:]
    rows, columns = _inside(windows, x.shape[2:], output)
    # The first tap that lies inside wins where all elements are −∞.
    first = rows.argmax(0)[:, None] * windows.kernel[1] + columns.argmax(0)

    def work(part: slice) -> None:
        view = under_taps(x[part], windows, output, -np.inf)
        best = np.full(y[part].shape, -np.inf, y.dtype)
        number = np.empty(best.shape, winner.dtype)
        number[...] = first
        for tap in range(windows.taps):
            value = _at(view, tap, windows)
            # Numbers grow, so the latest better tap has the largest; padding, −∞, is never better.
            better = np.multiply(value > best, tap, dtype=number.dtype)
            np.maximum(number, better, out=number)
            np.maximum(best, value, out=best)
        if np.isnan(best).any():  # of NaNs the last wins, and nothing is greater than one
            for tap in range(windows.taps):
                number[np.isnan(_at(view, tap, windows))] = tap
        y[part], winner[part] = best, number

    with np.errstate(all="ignore"):
        on_all_cores(work, _parts(x))


def _at(view: Array, tap: int, windows: Windows) -> Array:
    """What lies under a tap in all windows, side by side, which all that is done to it gains by."""
    return np.ascontiguousarray(view[:, :, tap // windows.kernel[1], tap % windows.kernel[1]])


def _parts(x: Array) -> list[slice]:
    return in_parts(len(x), max(1, PART_BYTES // max(1, x[0].nbytes)))


def max_pool2d_backward(dy: Array, winner: Array, dx: Array, *, windows: Windows) -> None:
    """dx sums, over the windows that an element won, their dy."""

    def work(part: slice) -> None:
        grad = np.ascontiguousarray(dy[part], accumulation_dtype(dy.dtype))
        number = np.ascontiguousarray(winner[part])
        add_taps(
            dx[part], windows, dy.shape[2:],
            lambda k, tap: keep(number == k * windows.kernel[1] + tap, grad),
        )  # fmt: skip

    on_all_cores(work, _parts(dx))


def _divisors(
    windows: Windows, size: Pair, output: Pair, include_pad: bool, divisor: int | None
) -> Array | int:
    """What each window's sum is divided by: [OH, OW], or one number."""
    if divisor is not None:
        return divisor
    lengths = []
    for axis in (0, 1):
        start = np.arange(output[axis]) * windows.stride[axis] - windows.before[axis]
        end = start + windows.kernel[axis]
        if include_pad:
            lengths.append(np.minimum(end, size[axis] + windows.after[axis]) - start)
        else:
            lengths.append(np.minimum(end, size[axis]) - np.maximum(start, 0))
    return lengths[0][:, None] * lengths[1]


def avg_pool2d_forward(
    x: Array, y: Array, *, windows: Windows, include_pad: bool, divisor: int | None
) -> None:
    """y is the sum of each window over its divisor."""
    wide = accumulation_dtype(x.dtype)
    view = under_taps(x.astype(wide, copy=False), windows, y.shape[2:], 0)
    with np.errstate(all="ignore"):
        total = np.zeros(y.shape, wide)
        for k in range(windows.kernel[0]):
            for tap in range(windows.kernel[1]):
                total += view[:, :, k, tap]
        total /= _divisors(windows, x.shape[2:], y.shape[2:], include_pad, divisor)
        y[...] = total


def avg_pool2d_backward(
    dy: Array, dx: Array, *, windows: Windows, include_pad: bool, divisor: int | None
) -> None:
    """dx sums, over the windows that an element lies under, their dy over their divisor."""
    wide = accumulation_dtype(dy.dtype)
    output = dy.shape[2:]
    divisors = _divisors(windows, dx.shape[2:], output, include_pad, divisor)
    with np.errstate(all="ignore"):
        share = (dy.astype(wide, copy=False) / divisors).astype(wide, copy=False)
        add_taps(dx, windows, output, lambda k, tap: share)
