"""Pooling of images: the largest or the mean element of each window."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ... import kernels
from ...errors import ShapeError
from ...kernels import layout
from ...kernels.arrays import accumulation_dtype, namespace
from ...kernels.recording import upload
from ...kernels.windows import Pair, Windows, adaptive_output, pooling
from ..dtypes import is_float
from ..tape import Array, Node, Op, apply
from ._operands import check_tensors, not_floating, wide

if TYPE_CHECKING:
    from ..tensor import Tensor


class MaxPool2d(Op):
    """The largest element of each window; its gradient goes to that element."""

    @staticmethod
    def forward(
        ctx: Node, x: Array, *, windows: Windows, ceil_mode: bool, out: Array | None = None
    ) -> Array:
        y, winner = kernels.max_pool2d_forward(x, windows=windows, ceil_mode=ceil_mode, out=out)
        ctx.save(winner, x.shape, windows)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        winner, shape, windows = ctx.saved
        return (kernels.max_pool2d_backward(grad, winner, shape, windows=windows),)


class AvgPool2d(Op):
    """The mean of each window; its gradient is shared by all of them."""

    @staticmethod
    def forward(
        ctx: Node, x: Array, *, ceil_mode: bool, out: Array | None = None, **options: Any
    ) -> Array:
        ctx.save(x.shape, options)
        return kernels.avg_pool2d_forward(x, ceil_mode=ceil_mode, out=out, **options)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        shape, options = ctx.saved
        return (kernels.avg_pool2d_backward(grad, shape, **options),)


class AdaptiveAvgPool2d(Op):
    """The mean of each of OH·OW windows that share the image out.

    Along an axis window i of O on S elements is ⌊i·S/O⌋ to ⌈(i + 1)·S/O⌉. The windows on element j
    are then ⌊j·O/S⌋ to ⌈(j + 1)·O/S⌉, the same with O and S exchanged: so the gradient, dy over the
    number of its window's elements, is added up as the elements are.
    """

    @staticmethod
    def forward(ctx: Node, x: Array, *, output: Pair) -> Array:
        ctx.save(x.shape)
        x = layout.dense(x)
        y = layout.image(x, (*x.shape[:2], *output))
        y[...] = _sums_shared_out(wide(x), output) / _elements(x, x.shape[2:], output)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        (shape,) = ctx.saved
        grad = layout.dense(grad)
        dx = layout.image(grad, shape)
        dx[...] = _sums_shared_out(wide(grad) / _elements(dx, shape[2:], grad.shape[2:]), shape[2:])
        return (dx,)


def _sums_shared_out(x: Array, output: Pair) -> Array:
    """The sums, of x's dtype, of the windows that share its images out: [N, C, OH, OW]."""
    xp = namespace(x)
    # Rows lie side by side and are quick to gather: of the larger image they are, not columns.
    for axis in (2, 3) if output[0] < x.shape[2] else (3, 2):
        start, end = _bounds(x.shape[axis], output[axis - 2])
        size = end - start
        shortest = int(size.min())
        taps = start + np.arange(shortest)[:, None]
        under = x.take(upload(xp, taps), axis)
        y = under.sum(axis=axis, dtype=x.dtype) if shortest > 1 else under.squeeze(axis)
        (longer,) = np.nonzero(size > shortest)  # by one element, which is added to these alone
        if longer.size:
            at = (slice(None),) * axis + (upload(xp, longer),)
            y[at] += x.take(upload(xp, end[longer] - 1), axis)
        x = y
    return x


def _elements(x: Array, size: Pair, output: Pair) -> Array:
    """The numbers of elements in the windows that share ``size`` out, [OH, OW], in x's memory."""
    down, across = (end - start for start, end in map(_bounds, size, output))
    numbers = (down[:, None] * across).astype(accumulation_dtype(x.dtype))
    return upload(namespace(x), numbers)


def _bounds(size: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Where each of ``count`` windows that share ``size`` elements out starts and ends."""
    number = np.arange(count + 1) * size
    return number[:-1] // count, -(-number[1:] // count)


def max_pool2d(
    input: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    dilation: int | tuple[int, int] = 1,
    ceil_mode: bool = False,
) -> Tensor:
    """The largest element of each window; of equal ones the first gets the gradient, NaN wins.

    Args:
        input: [N, C, H, W] or [C, H, W], floating.
        kernel_size: of the windows.
        stride: from one window to the next; None for ``kernel_size``.
        padding: −∞ around the image, at most half of ``kernel_size``.
        dilation: from one element of a window to the next.
        ceil_mode: whether a last window may hang over the end.

    Returns:
        [N, C, OH, OW], or [C, OH, OW], in input's memory layout.

    Raises:
        ShapeError, DTypeError, ArgumentError: for arguments that do not fit.
    """
    batch = _batch(input)
    slid = pooling(kernel_size, stride, padding, dilation)
    y = apply(MaxPool2d, batch, windows=slid, ceil_mode=bool(ceil_mode))
    return y if input.ndim == 4 else y.squeeze(0)


def avg_pool2d(
    input: Tensor,
    kernel_size: int | tuple[int, int],
    stride: int | tuple[int, int] | None = None,
    padding: int | tuple[int, int] = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    """The mean of each window.

    Args:
        input: [N, C, H, W] or [C, H, W], floating.
        kernel_size: of the windows.
        stride: from one window to the next; None for ``kernel_size``.
        padding: zeros around the image, at most half of ``kernel_size``.
        ceil_mode: whether a last window may hang over the end; what hangs over never counts.
        count_include_pad: whether padding counts as zeros, else only elements are averaged.
        divisor_override: what sums are divided by instead.

    Returns:
        [N, C, OH, OW], or [C, OH, OW], in input's memory layout.

    Raises:
        ShapeError, DTypeError, ArgumentError: for arguments that do not fit.
    """
    batch = _batch(input)
    slid = pooling(kernel_size, stride, padding)
    y = apply(
        AvgPool2d, batch, windows=slid, ceil_mode=bool(ceil_mode),
        count_include_pad=bool(count_include_pad), divisor_override=divisor_override,
    )  # fmt: skip
    return y if input.ndim == 4 else y.squeeze(0)


def adaptive_avg_pool2d(input: Tensor, output_size: int | tuple[int | None, int | None]) -> Tensor:
    """Means of windows that share the image out: window i is ⌊i·H/OH⌋ to ⌈(i + 1)·H/OH⌉.

    Args:
        input: [N, C, H, W] or [C, H, W], floating.
        output_size: (OH, OW), or one number for both; None keeps the image's.

    Returns:
        [N, C, OH, OW], or [C, OH, OW], in input's memory layout.

    Raises:
        ShapeError, DTypeError, ArgumentError: for arguments that do not fit.
    """
    batch = _batch(input)
    size = batch.shape[2:]
    output = adaptive_output(output_size, size)
    if 0 in size:
        raise ShapeError(f"input has shape {input.shape}; wanted H and W of at least 1")
    if all(s % o == 0 for s, o in zip(size, output)):
        return avg_pool2d(input, (size[0] // output[0], size[1] // output[1]))
    y = apply(AdaptiveAvgPool2d, batch, output=output)
    return y if input.ndim == 4 else y.squeeze(0)


def _batch(input: Tensor) -> Tensor:
    """input as [N, C, H, W]."""
    check_tensors(input=input)
    if not is_float(input.dtype):
        raise not_floating("input", input)
    if input.ndim not in (3, 4):
        raise ShapeError(f"input has shape {input.shape}; wanted [N, C, H, W] or [C, H, W]")
    return input if input.ndim == 4 else input.unsqueeze(0)
