"""Triton kernels of pooling: one element of the result, or of the gradient, a lane.

Forward a lane walks the taps of its window; backward it walks the windows that lie on its element,
so that nothing is added by atomics and the sums have one order.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import triton
import triton.language as tl

from .arrays import Array
from .common import KernelObject, accumulator, scalar
from .launch import Launcher
from .layout import image_steps, needs_wide_offsets
from .windows import Windows, by_axis

BLOCK = 1024


@triton.jit
def element_numbers(WIDE: tl.constexpr, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    if WIDE:
        program = program.to(tl.int64)
    return program * BLOCK + tl.arange(0, BLOCK)


@triton.jit
def position(i, C, H, W, CHANNELS_LAST: tl.constexpr):
    """Pixel, sample and channel of element ``i``, counted as it lies in memory."""
    if CHANNELS_LAST:
        c = i % C
        w = i // C % W
        h = i // C // W % H
    else:
        w = i % W
        h = i // W % H
        c = i // W // H % C
    n = i // C // W // H
    return h, w, n, c


@triton.jit
def window_size(start, KERNEL: tl.constexpr, SIZE, AFTER: tl.constexpr, PAD: tl.constexpr):
    """Along one axis: the elements of the windows that begin at ``start``."""
    if PAD:
        return tl.minimum(start + KERNEL, SIZE + AFTER) - start
    else:
        return tl.minimum(start + KERNEL, SIZE) - tl.maximum(start, 0)


@triton.jit
def pool2d_forward_kernel(
    x_ptr, y_ptr, winner_ptr, TOTAL, C, H, W, OUT_H, OUT_W, x_n, x_c, x_h, x_w,
    y_n, y_c, y_h, y_w, divisor,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr, AFTER_H: tl.constexpr, AFTER_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = element_numbers(WIDE, BLOCK)
    h, w, n, c = position(i, C, OUT_H, OUT_W, CHANNELS_LAST)
    top = h * STRIDE_H - BEFORE_H
    left = w * STRIDE_W - BEFORE_W
    inside = i < TOTAL
    image = n * x_n + c * x_c
    best = tl.full([BLOCK], float("-inf"), ACC)
    total = tl.zeros([BLOCK], ACC)
    winner = tl.full([BLOCK], -1, tl.int32)
    for tap in range(KH * KW):
        from_h = top + tap // KW * DILATION_H
        from_w = left + tap % KW * DILATION_W
        mask = inside & (from_h >= 0) & (from_h < H) & (from_w >= 0) & (from_w < W)
        value = tl.load(x_ptr + image + from_h * x_h + from_w * x_w, mask=mask, other=0.0).to(ACC)
        if winner_ptr is not None:
            # NaN is the largest; the first tap inside wins where all are −∞.
            better = mask & ((value > best) | (value != value) | (winner < 0))
            best = tl.where(better, value, best)
            winner = tl.where(better, tap, winner)
        else:
            total += value
    at = n * y_n + c * y_c + h * y_h + w * y_w
    if winner_ptr is not None:
        tl.store(winner_ptr + at, winner.to(winner_ptr.dtype.element_ty), mask=inside)
        total = best
    elif divisor is not None:
        total = total / divisor
    else:
        size = window_size(top, KH, H, AFTER_H, PAD) * window_size(left, KW, W, AFTER_W, PAD)
        total = total / size.to(ACC)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=inside)


@triton.jit
def pool2d_backward_kernel(
    dy_ptr, winner_ptr, dx_ptr, TOTAL, C, H, W, OUT_H, OUT_W, x_n, x_c, x_h, x_w,
    y_n, y_c, y_h, y_w, divisor,
    KH: tl.constexpr, KW: tl.constexpr, STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr,
    BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr, AFTER_H: tl.constexpr, AFTER_W: tl.constexpr,
    DILATION_H: tl.constexpr, DILATION_W: tl.constexpr, PAD: tl.constexpr,
    CHANNELS_LAST: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    i = element_numbers(WIDE, BLOCK)
    h, w, n, c = position(i, C, H, W, CHANNELS_LAST)
    inside = i < TOTAL
    image = n * y_n + c * y_c
    total = tl.zeros([BLOCK], ACC)
    for tap in range(KH * KW):
        top = h + BEFORE_H - tap // KW * DILATION_H
        left = w + BEFORE_W - tap % KW * DILATION_W
        down = top // STRIDE_H
        across = left // STRIDE_W
        mask = inside & (top >= 0) & (down * STRIDE_H == top) & (down < OUT_H)
        mask = mask & (left >= 0) & (across * STRIDE_W == left) & (across < OUT_W)
        at = image + down * y_h + across * y_w
        grad = tl.load(dy_ptr + at, mask=mask, other=0.0).to(ACC)
        if winner_ptr is not None:
            winner = tl.load(winner_ptr + at, mask=mask, other=0).to(tl.int32)
            grad = tl.where(mask & (winner == tap), grad, 0.0)
        elif divisor is not None:
            grad = grad / divisor
        else:
            start_h = down * STRIDE_H - BEFORE_H
            start_w = across * STRIDE_W - BEFORE_W
            size = window_size(start_h, KH, H, AFTER_H, PAD)
            size = size * window_size(start_w, KW, W, AFTER_W, PAD)
            grad = tl.where(mask, grad / size.to(ACC), 0.0)
        total += grad
    at = n * x_n + c * x_c + h * x_h + w * x_w
    tl.store(dx_ptr + at, total.to(dx_ptr.dtype.element_ty), mask=inside)


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
        return dict(
            TOTAL=by_element.size, C=image.shape[1], H=image.shape[2], W=image.shape[3],
            OUT_H=pooled.shape[2], OUT_W=pooled.shape[3],
            **image_steps("x", image), **image_steps("y", pooled),
            divisor=None if divisor is None else scalar(divisor, image.dtype),
            KH=windows.kernel[0], KW=windows.kernel[1],
            **by_axis(STRIDE=windows.stride, BEFORE=windows.before, AFTER=windows.after,
                      DILATION=windows.dilation),
            PAD=include_pad, CHANNELS_LAST=not by_element.flags.c_contiguous,
            WIDE=needs_wide_offsets(image, pooled), BLOCK=self.block,
            **accumulator(image.dtype),
        )  # fmt: skip

    def _run(self, arguments: dict[str, Any]) -> None:
        self.launcher((triton.cdiv(arguments["TOTAL"], self.block),), **arguments)

    def _example(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Array, Array, Windows]:
        n, c, h, w = shape
        windows = Windows((2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
        return np.zeros(shape, dtype), np.zeros((n, c, h // 2, w // 2), dtype), windows


class _Forward(_PoolKernel):
    launcher = Launcher(pool2d_forward_kernel)

    def _all(self, x, y, winner, windows, include_pad=False, divisor=None) -> dict[str, Any]:
        shared = self._arguments(x, y, y, windows, include_pad, divisor)
        return dict(x_ptr=x, y_ptr=y, winner_ptr=winner, **shared)


class _Backward(_PoolKernel):
    launcher = Launcher(pool2d_backward_kernel)

    def _all(self, dy, winner, dx, windows, include_pad=False, divisor=None) -> dict[str, Any]:
        shared = self._arguments(dx, dy, dx, windows, include_pad, divisor)
        return dict(dy_ptr=dy, winner_ptr=winner, dx_ptr=dx, **shared)


class MaxPool2dForward(_Forward):
    """The largest of each window. Arguments: ``reference.max_pool2d_forward``."""

    def __call__(self, x: Array, y: Array, winner: Array, *, windows: Windows) -> None:
        self._run(self._all(x, y, winner, windows))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(x, y, np.zeros(y.shape, np.uint8), windows)


class MaxPool2dBackward(_Backward):
    """The gradient of x. Arguments: ``reference.max_pool2d_backward``."""

    def __call__(self, dy: Array, winner: Array, dx: Array, *, windows: Windows) -> None:
        self._run(self._all(dy, winner, dx, windows))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(y, np.zeros(y.shape, np.uint8), x, windows)


class AvgPool2dForward(_Forward):
    """The mean of each window. Arguments: ``reference.avg_pool2d_forward``."""

    def __call__(
        self, x: Array, y: Array, *, windows: Windows, include_pad: bool, divisor: int | None
    ) -> None:
        self._run(self._all(x, y, None, windows, include_pad, divisor))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(x, y, None, windows, True)


class AvgPool2dBackward(_Backward):
    """The gradient of x. Arguments: ``reference.avg_pool2d_backward``."""

    def __call__(
        self, dy: Array, dx: Array, *, windows: Windows, include_pad: bool, divisor: int | None
    ) -> None:
        self._run(self._all(dy, None, dx, windows, include_pad, divisor))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, y, windows = self._example(dtype, shape)
        return self._all(y, None, x, windows, True)
