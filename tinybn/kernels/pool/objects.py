"""Triton kernels of pooling: one element of the result, or of the gradient, a lane.

Forward a lane walks the taps of its window; backward it walks the windows that lie on its element,
so that nothing is added by atomics and the sums have one order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from ..arrays import Array
from ..common import KernelObject, accumulator, scalar, tile_for_axis
from ..launch import Launcher
from ..layout import image_steps, needs_wide_offsets
from ..windows import Windows, by_axis

BLOCK = 1024
MOST_COLUMNS = 64  # of a tile
UNROLLED = 16  # taps


@triton.jit
def tile_positions(
    ROWS, C, H, W, CHANNELS_LAST: tl.constexpr, WIDE: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Sample, channel and pixel of this program's tile of an image, and which elements exist.

    Columns count along the axis whose elements lie side by side, so that only rows are divided.
    """
    row = tl.program_id(0)
    if WIDE:
        row = row.to(tl.int64)
    row = (row * BLOCK_R + tl.arange(0, BLOCK_R))[:, None]
    column = (tl.program_id(1) * BLOCK_C + tl.arange(0, BLOCK_C))[None, :]
    if CHANNELS_LAST:
        return row // W // H, column, row // W % H, row % W, (row < ROWS) & (column < C)
    else:
        return row // H // C, row // H % C, row % H, column, (row < ROWS) & (column < W)


@triton.jit
def window_size(start, KERNEL: tl.constexpr, SIZE, AFTER: tl.constexpr, PAD: tl.constexpr):
    """Along one axis: the elements of the windows that begin at ``start``."""
    if PAD:
        return tl.minimum(start + KERNEL, SIZE + AFTER) - start
    else:
        return tl.minimum(start + KERNEL, SIZE) - tl.maximum(start, 0)


@triton.jit
def pool_tap(
    x_ptr, winner_ptr, image, top, left, inside, tap, best, winner, H, W, x_h, x_w,
    KW: tl.constexpr, DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, WHOLE: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """``best`` and ``winner`` (or the sum, where none wins) with one tap more."""
    from_h = top + tap // KW * DILATION_H
    from_w = left + tap % KW * DILATION_W
    mask = inside
    if not WHOLE:
        mask = mask & (from_h >= 0) & (from_h < H) & (from_w >= 0) & (from_w < W)
    value = tl.load(x_ptr + image + from_h * x_h + from_w * x_w, mask=mask, other=0.0).to(ACC)
    if winner_ptr is None:
        return best + value, winner
    else:
        # NaN is the largest; the first tap inside wins where all are −∞.
        better = mask & ((value > best) | (value != value) | (winner < 0))
        return tl.where(better, value, best), tl.where(better, tap, winner)


@triton.jit
def pool2d_forward_kernel(
    x_ptr, y_ptr, winner_ptr, ROWS, C, H, W, OUT_H, OUT_W, x_n, x_c, x_h, x_w,
    y_n, y_c, y_h, y_w, divisor,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr, AFTER_H: tl.constexpr, AFTER_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD: tl.constexpr, WHOLE: tl.constexpr,
    UNROLL: tl.constexpr, CHANNELS_LAST: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, c, h, w, inside = tile_positions(
        ROWS, C, OUT_H, OUT_W, CHANNELS_LAST, WIDE, BLOCK_R, BLOCK_C
    )
    top = h * STRIDE_H - BEFORE_H
    left = w * STRIDE_W - BEFORE_W
    image = n * x_n + c * x_c
    best = tl.full([BLOCK_R, BLOCK_C], 0.0 if winner_ptr is None else float("-inf"), ACC)
    winner = tl.full([BLOCK_R, BLOCK_C], -1, tl.int32)
    if UNROLL:
        for tap in tl.static_range(KH * KW):
            best, winner = pool_tap(
                x_ptr, winner_ptr, image, top, left, inside, tap, best, winner, H, W, x_h, x_w,
                KW, DILATION_H, DILATION_W, WHOLE, ACC,
            )  # fmt: skip
    else:
        for tap in range(KH * KW):
            best, winner = pool_tap(
                x_ptr, winner_ptr, image, top, left, inside, tap, best, winner, H, W, x_h, x_w,
                KW, DILATION_H, DILATION_W, WHOLE, ACC,
            )  # fmt: skip
    at = n * y_n + c * y_c + h * y_h + w * y_w
    if winner_ptr is not None:
        tl.store(winner_ptr + at, winner.to(winner_ptr.dtype.element_ty), mask=inside)
    elif divisor is not None:
        best = best / divisor
    else:
        size = window_size(top, KH, H, AFTER_H, PAD) * window_size(left, KW, W, AFTER_W, PAD)
        best = best / size.to(ACC)
    tl.store(y_ptr + at, best.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def window_gradient(
    dy_ptr, winner_ptr, image, down, across, tap, mask, H, W, y_h, y_w, divisor,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr, AFTER_H: tl.constexpr, AFTER_W: tl.constexpr,
    PAD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """What the window (``down``, ``across``) gives to the element under its ``tap``."""
    at = image + down * y_h + across * y_w
    grad = tl.load(dy_ptr + at, mask=mask, other=0.0).to(ACC)
    if winner_ptr is not None:
        winner = tl.load(winner_ptr + at, mask=mask, other=0).to(tl.int32)
        return tl.where(mask & (winner == tap), grad, 0.0)
    elif divisor is not None:
        return grad / divisor
    else:
        size = window_size(down * STRIDE_H - BEFORE_H, KH, H, AFTER_H, PAD)
        size = size * window_size(across * STRIDE_W - BEFORE_W, KW, W, AFTER_W, PAD)
        return tl.where(mask, grad / size.to(ACC), 0.0)


@triton.jit
def pool2d_backward_kernel(
    dy_ptr, winner_ptr, dx_ptr, ROWS, C, H, W, OUT_H, OUT_W, x_n, x_c, x_h, x_w,
    y_n, y_c, y_h, y_w, divisor,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr, AFTER_H: tl.constexpr, AFTER_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD: tl.constexpr, APART: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr,
):  # fmt: skip
    n, c, h, w, inside = tile_positions(ROWS, C, H, W, CHANNELS_LAST, WIDE, BLOCK_R, BLOCK_C)
    image = n * y_n + c * y_c
    if APART:  # one window at most lies on an element
        top = h + BEFORE_H
        left = w + BEFORE_W
        down = top // STRIDE_H
        across = left // STRIDE_W
        under_h = top - down * STRIDE_H
        under_w = left - across * STRIDE_W
        mask = inside & (under_h < KH) & (down < OUT_H) & (under_w < KW) & (across < OUT_W)
        total = window_gradient(
            dy_ptr, winner_ptr, image, down, across, under_h * KW + under_w, mask, H, W, y_h, y_w,
            divisor, KH, KW, STRIDE_H, STRIDE_W, BEFORE_H, BEFORE_W, AFTER_H, AFTER_W, PAD, ACC,
        )  # fmt: skip
    else:
        total = tl.zeros([BLOCK_R, BLOCK_C], ACC)
        for tap in range(KH * KW):
            top = h + BEFORE_H - tap // KW * DILATION_H
            left = w + BEFORE_W - tap % KW * DILATION_W
            down = top // STRIDE_H
            across = left // STRIDE_W
            mask = inside & (top >= 0) & (down * STRIDE_H == top) & (down < OUT_H)
            mask = mask & (left >= 0) & (across * STRIDE_W == left) & (across < OUT_W)
            total += window_gradient(
                dy_ptr, winner_ptr, image, down, across, tap, mask, H, W, y_h, y_w, divisor,
                KH, KW, STRIDE_H, STRIDE_W, BEFORE_H, BEFORE_W, AFTER_H, AFTER_W, PAD, ACC,
            )  # fmt: skip
    at = n * x_n + c * x_c + h * x_h + w * x_w
    tl.store(dx_ptr + at, total.to(dx_ptr.dtype.element_ty), mask=inside)


def _columns(image: Array) -> int:
    """How many elements lie side by side: a row's, or a pixel's channels."""
    return image.shape[3 if image.flags.c_contiguous else 1]


def _lie_inside(windows: Windows, axis: int, size: int, count: int) -> bool:
    """Whether all windows along an axis lie on elements alone."""
    end = (count - 1) * windows.stride[axis] - windows.before[axis] + windows.span(axis)
    return windows.before[axis] == 0 and end <= size


class _PoolKernel(KernelObject):
    """Block size shared by the pooling kernels.

    Args:
        block: elements of a program, a power of two.
    """

    example_shape = (8, 16, 14, 14)

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block

    def _arguments(
        self, image: Array, pooled: Array, by_element: Array, windows: Windows, include_pad: bool,
        divisor: int | None,
    ) -> dict[str, Any]:  # fmt: skip
        """All but the pointers; lanes count the elements of ``by_element``."""
        last = not by_element.flags.c_contiguous
        block_c = tile_for_axis(_columns(by_element), min(MOST_COLUMNS, self.block))
        return dict(
            ROWS=by_element.size // _columns(by_element), C=image.shape[1], H=image.shape[2],
            W=image.shape[3], OUT_H=pooled.shape[2], OUT_W=pooled.shape[3],
            **image_steps("x", image), **image_steps("y", pooled),
            divisor=None if divisor is None else scalar(divisor, image.dtype),
            KH=windows.kernel[0], KW=windows.kernel[1],
            **by_axis(STRIDE=windows.stride, BEFORE=windows.before, AFTER=windows.after,
                      DILATION=windows.dilation),
            PAD=include_pad, CHANNELS_LAST=last, WIDE=needs_wide_offsets(image, pooled),
            BLOCK_R=max(1, self.block // block_c), BLOCK_C=block_c, **accumulator(image.dtype),
        )  # fmt: skip

    def _run(self, by_element: Array, arguments: dict[str, Any]) -> None:
        grid = (
            triton.cdiv(arguments["ROWS"], arguments["BLOCK_R"]),
            triton.cdiv(_columns(by_element), arguments["BLOCK_C"]),
        )
        self.launcher(grid, **arguments)

    def _example(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Array, Array, Windows]:
        n, c, h, w = shape
        windows = Windows((2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
        return np.zeros(shape, dtype), np.zeros((n, c, h // 2, w // 2), dtype), windows


class _Forward(_PoolKernel):
    launcher = Launcher(pool2d_forward_kernel)

    def _all(self, x, y, winner, windows, include_pad=False, divisor=None) -> dict[str, Any]:
        shared = self._arguments(x, y, y, windows, include_pad, divisor)
        whole = all(_lie_inside(windows, axis, x.shape[2 + axis], y.shape[2 + axis])
                    for axis in (0, 1))  # fmt: skip
        return dict(
            x_ptr=x, y_ptr=y, winner_ptr=winner, WHOLE=whole, UNROLL=windows.taps <= UNROLLED,
            **shared,
        )  # fmt: skip


class _Backward(_PoolKernel):
    launcher = Launcher(pool2d_backward_kernel)

    def _all(self, dy, winner, dx, windows, include_pad=False, divisor=None) -> dict[str, Any]:
        shared = self._arguments(dx, dy, dx, windows, include_pad, divisor)
        apart = windows.dilation == (1, 1) and all(
            stride >= kernel for stride, kernel in zip(windows.stride, windows.kernel)
        )
        return dict(dy_ptr=dy, winner_ptr=winner, dx_ptr=dx, APART=apart, **shared)


class MaxPool2dForward(_Forward):
    """The largest of each window. Arguments: ``reference.max_pool2d_forward``."""

    def __call__(self, x: Array, y: Array, winner: Array, *, windows: Windows) -> None:
        self._run(y, self._all(x, y, winner, windows))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(x, y, np.zeros(y.shape, np.uint8), windows)


class MaxPool2dBackward(_Backward):
    """The gradient of x. Arguments: ``reference.max_pool2d_backward``."""

    def __call__(self, dy: Array, winner: Array, dx: Array, *, windows: Windows) -> None:
        self._run(dx, self._all(dy, winner, dx, windows))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(y, np.zeros(y.shape, np.uint8), x, windows)


class AvgPool2dForward(_Forward):
    """The mean of each window. Arguments: ``reference.avg_pool2d_forward``."""

    def __call__(
        self, x: Array, y: Array, *, windows: Windows, include_pad: bool, divisor: int | None
    ) -> None:
        self._run(y, self._all(x, y, None, windows, include_pad, divisor))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(x, y, None, windows, True)


class AvgPool2dBackward(_Backward):
    """The gradient of x. Arguments: ``reference.avg_pool2d_backward``."""

    def __call__(
        self, dy: Array, dx: Array, *, windows: Windows, include_pad: bool, divisor: int | None
    ) -> None:
        self._run(dx, self._all(dy, None, dx, windows, include_pad, divisor))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(y, None, x, windows, True)
