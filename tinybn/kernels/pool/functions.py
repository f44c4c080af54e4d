"""Pooling of images, and its gradients."""

from __future__ import annotations

import numpy as np

from ...arguments import integer
from ...errors import ArgumentError, ShapeError
from .. import layout
from ..arrays import Array
from ..checks import check_array, check_nchw, check_out, check_same_place
from ..engines import implementation
from ..results import result_in, written
from ..windows import Windows, check_padding

WINNERS = (np.dtype("uint8"), np.dtype("int32"))


def max_pool2d_forward(
    x: Array, *, windows: Windows, ceil_mode: bool = False, out: Array | None = None
) -> tuple[Array, Array]:
    """The largest element of each window, and the number of the tap that it lies under.

    Of equal elements the first counts, and NaN is larger than any number. Padding is no element.

    Args:
        x: [N, C, H, W], floating, C-contiguous or channels-last, which the results are then too.
        windows: their size, stride, padding and dilation.
        ceil_mode: whether a last window may hang over the end.
        out: where y is written.

    Returns:
        y [N, C, OH, OW] of x's dtype, and k·KW + l of the winning tap, uint8 or int32.

    Raises:
        ShapeError, DTypeError, ArgumentError: for arguments that do not fit.
    """
    x, y = _pooled(x, windows, ceil_mode, out)
    winner = layout.like(y, WINNERS[windows.taps > 256])
    if y.size:
        implementation("max_pool2d_forward", x)(x, y, winner, windows=windows)
    return written(y, out), winner


def max_pool2d_backward(
    dy: Array, winner: Array, x_shape: tuple[int, ...], *, windows: Windows
) -> Array:
    """The gradient of x: each window's dy goes to the element that won it.

    Args:
        dy: [N, C, OH, OW], the gradient of y.
        winner, windows: as forward returned and had them.
        x_shape: (N, C, H, W).

    Raises:
        ShapeError, DTypeError, DeviceError: for arguments that do not fit.
    """
    check_nchw(dy)
    check_array(winner, "winner", WINNERS, "uint8 or int32")
    check_same_place(dy, winner, "winner")
    if winner.shape != dy.shape:
        raise ShapeError(f"dy has shape {dy.shape} and winner {winner.shape}; wanted equal ones")
    dy = layout.dense(dy)
    dx = _unpooled(dy, x_shape, windows)
    if dx.size:
        implementation("max_pool2d_backward", dy)(
            dy, layout.in_layout_of(winner, dy), dx, windows=windows
        )
    return dx


def avg_pool2d_forward(
    x: Array,
    *,
    windows: Windows,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
    out: Array | None = None,
) -> Array:
    """The mean of each window.

    Args:
        x: [N, C, H, W], floating, C-contiguous or channels-last, which y is then too.
        windows: their size, stride and padding, with dilation 1.
        ceil_mode: whether a last window may hang over the end; what hangs over never counts.
        count_include_pad: whether padding counts as zeros, else only elements are averaged.
        divisor_override: what sums are divided by instead.
        out: where the result is written.

    Raises:
        ShapeError, DTypeError, ArgumentError: for arguments that do not fit.
    """
    divisor_override = check_divisor(divisor_override)
    x, y = _pooled(x, windows, ceil_mode, out)
    if y.size:
        implementation("avg_pool2d_forward", x)(
            x, y, windows=windows, include_pad=bool(count_include_pad), divisor=divisor_override
        )
    return written(y, out)


def avg_pool2d_backward(
    dy: Array,
    x_shape: tuple[int, ...],
    *,
    windows: Windows,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """The gradient of x: each window's dy, over its divisor, goes to all its elements.

    Args:
        dy: [N, C, OH, OW], the gradient of y.
        x_shape: (N, C, H, W).
        windows, count_include_pad, divisor_override: as forward had them.

    Raises:
        ShapeError, DTypeError, ArgumentError: for arguments that do not fit.
    """
    check_nchw(dy)
    divisor_override = check_divisor(divisor_override)
    dy = layout.dense(dy)
    dx = _unpooled(dy, x_shape, windows)
    if dx.size:
        implementation("avg_pool2d_backward", dy)(
            dy, dx, windows=windows, include_pad=bool(count_include_pad), divisor=divisor_override
        )
    return dx


def _pooled(x: Array, windows: Windows, ceil_mode: bool, out: Array | None) -> tuple[Array, Array]:
    """x made dense, and where the result is written: ``out`` where it can be."""
    check_nchw(x)
    check_padding(windows)
    shape = (*x.shape[:2], *windows.output(x.shape[2:], ceil_mode))
    if out is not None:
        check_out(out, x, shape, x.dtype)
    x = layout.dense(x)
    return x, result_in(out, layout.image(x, shape), x)


def _unpooled(dy: Array, x_shape: tuple[int, ...], windows: Windows) -> Array:
    """An uninitialised gradient of x."""
    if len(x_shape) != 4 or tuple(x_shape[:2]) != dy.shape[:2]:
        raise ShapeError(f"dy has shape {dy.shape} and x {tuple(x_shape)}; wanted equal N and C")
    size = x_shape[2], x_shape[3]
    wanted = [
        tuple(windows.count(axis, size[axis], ceil_mode) for axis in (0, 1))
        for ceil_mode in (False, True)
    ]
    if dy.shape[2:] not in wanted:
        raise ShapeError(
            f"dy has shape {dy.shape}; wanted {wanted[0]} windows for x {tuple(x_shape)}, or with "
            f"ceil_mode {wanted[1]}"
        )
    return layout.image(dy, x_shape)


def check_divisor(divisor: int | None) -> int | None:
    """Return ``divisor_override`` as an int, which is not 0, or None."""
    if divisor is None:
        return None
    divisor = integer("divisor_override", divisor)
    if divisor == 0:
        raise ArgumentError("divisor_override is 0; wanted another integer")
    return divisor
