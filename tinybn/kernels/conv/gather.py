"""Convolution as a matrix product whose one factor is gathered, not written (implicit GEMM).

Results are pixels × channels, and each is a sum over the taps and channels of what is read.
Forward, pixel p reads p·stride − before + tap·dilation. The gradient of the input turns that
around: pixel p reads the windows at (p + before − tap·dilation) / stride, where stride divides
it. Each group of channels is a product of its own.

A product of tiles has a factor of 0 where a pixel reads nothing for a tap. In the gradient of the
input an infinite or NaN weight so makes NaN of pixels that the weight does not reach, where the
reference has their sums. A row of the product cannot leave out a term that others have; adding
such tiles up again, term by term, costs the kernel registers and a third of its programs.

Tiles are [pixels, channels]. Triton sees that channels lie side by side in channels-last memory
and gives them to neighbouring threads. Of NCHW's pixels, whose addresses come of divisions, it has
to be told that two lie side by side. That is not so at the end of a row or with a stride, and is
harmless only while nothing says that they begin at a multiple of anything: then Triton makes no
wider loads or stores of it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..activations import activate
from ..product.addition import add_product, sum_of


@triton.jit
def source(p, tap, SHIFT: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, SIZE,
           TRANSPOSED: tl.constexpr):  # fmt: skip
    """Along one axis: where pixels ``p`` read for each ``tap``, and whether that is inside."""
    if TRANSPOSED:
        at = p + SHIFT - tap * DILATION
        window = at // STRIDE
        return window, (at >= 0) & (window * STRIDE == at) & (window < SIZE)
    else:
        at = p * STRIDE - SHIFT + tap * DILATION
        return at, (at >= 0) & (at < SIZE)


@triton.jit
def pixels_of(row, PIXELS, OUT_W, WIDE: tl.constexpr):
    """The image, line and column of row numbers of the result."""
    n = row // PIXELS
    h = row % PIXELS // OUT_W
    w = row % OUT_W  # rows are OUT_W apart, and so are images
    if WIDE:
        return n.to(tl.int64), h.to(tl.int64), w.to(tl.int64)
    else:
        return n.to(tl.int32), h.to(tl.int32), w.to(tl.int32)


@triton.jit
def gathered(
    x_ptr, n, h, w, inside, channel, tap, real, H, W, x_n, x_c, x_h, x_w,
    KW: tl.constexpr, BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr, TRANSPOSED: tl.constexpr, ONE_TAP: tl.constexpr, WIDE: tl.constexpr,
    NCHW: tl.constexpr,
):  # fmt: skip
    """x where each pixel (n, h, w) reads it for each channel and tap; 0 outside the image.

    With ONE_TAP ``tap`` is a number, the same for all channels, and where a pixel reads needs
    finding only once for all of them.
    """
    tap_h, tap_w = tap // KW, tap % KW
    if not ONE_TAP:
        h, tap_h = h[:, None], tap_h[None, :]
        w, tap_w = w[:, None], tap_w[None, :]
    from_h, inside_h = source(h, tap_h, BEFORE_H, STRIDE_H, DILATION_H, H, TRANSPOSED)
    from_w, inside_w = source(w, tap_w, BEFORE_W, STRIDE_W, DILATION_W, W, TRANSPOSED)
    if WIDE:
        channel = channel.to(tl.int64)
    if ONE_TAP:
        at = (n * x_n + from_h * x_h + from_w * x_w)[:, None] + (channel * x_c)[None, :]
        mask = (inside & inside_h & inside_w)[:, None] & real[None, :]
    else:
        at = (n * x_n)[:, None] + (channel * x_c)[None, :] + from_h * x_h + from_w * x_w
        mask = inside_h & inside_w & inside[:, None] & real[None, :]
    if NCHW:
        at = tl.max_contiguous(at, [2, 1])
    return tl.load(x_ptr + at, mask=mask, other=0.0)


@triton.jit
def channels_and_taps(k, CHANNELS, TAPS: tl.constexpr, TAPS_FIRST: tl.constexpr):
    """What term number ``k`` multiplies: what lies side by side in memory comes in turn."""
    if TAPS_FIRST:
        return k // TAPS, k % TAPS
    else:
        return k % CHANNELS, k // CHANNELS


@triton.jit
def conv2d_gather_kernel(
    x_ptr, weight_ptr, bias_ptr, addend_ptr, y_ptr, M, CHANNELS_OUT, CHANNELS_IN, H, W, OUT_H,
    OUT_W, x_n, x_c, x_h, x_w, y_n, y_c, y_h, y_w, weight_out, weight_in, weight_tap,
    weight_group,
    KW: tl.constexpr, TAPS: tl.constexpr, BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr, TRANSPOSED: tl.constexpr, TAPS_FIRST: tl.constexpr,
    ONE_TAP: tl.constexpr, NCHW: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr, ACTIVATION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(2)
    tile = tl.program_id(0)
    if WIDE:
        group = group.to(tl.int64)
        tile = tile.to(tl.int64)
    row = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    out = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    if WIDE:
        out = out.to(tl.int64)
    inside = row < M
    n, h, w = pixels_of(row, OUT_H * OUT_W, OUT_W, WIDE)
    x_group = x_ptr + group * CHANNELS_IN * x_c
    weight_column = out * weight_out + group * weight_group
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    small = total
    K = CHANNELS_IN * TAPS
    for start in range(0, K, BLOCK_K):
        if ONE_TAP:
            # Triton 3.6 does not see from a remainder that these lie side by side.
            channel = tl.multiple_of(start % CHANNELS_IN, BLOCK_K) + tl.arange(0, BLOCK_K)
            tap = start // CHANNELS_IN
            real = channel < CHANNELS_IN
        else:
            k = start + tl.arange(0, BLOCK_K)
            channel, tap = channels_and_taps(k, CHANNELS_IN, TAPS, TAPS_FIRST)
            real = k < K
        x = gathered(
            x_group, n, h, w, inside, channel, tap, real, H, W, x_n, x_c, x_h, x_w, KW, BEFORE_H,
            BEFORE_W, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, TRANSPOSED, ONE_TAP, WIDE,
            NCHW,
        )  # fmt: skip
        if WIDE:
            channel = channel.to(tl.int64)
            tap = tap.to(tl.int64)
        at = (channel * weight_in + tap * weight_tap)[:, None] + weight_column[None, :]
        mask = real[:, None] & (out < CHANNELS_OUT)[None, :]
        weight = tl.load(weight_ptr + at, mask=mask, other=0.0)
        if UPCAST:
            x = x.to(ACC)
            weight = weight.to(ACC)
        total, small = add_product(total, small, x, weight, ACC, PRECISION)
    total = sum_of(total, small, PRECISION)
    channel = group * CHANNELS_OUT + out
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + channel, mask=out < CHANNELS_OUT, other=0.0).to(ACC)
        total += bias[None, :]
    at = (n * y_n + h * y_h + w * y_w)[:, None] + (channel * y_c)[None, :]
    if NCHW:
        at = tl.max_contiguous(at, [2, 1])
    mask = inside[:, None] & (out < CHANNELS_OUT)[None, :]
    if addend_ptr is not None:
        total += tl.load(addend_ptr + at, mask=mask, other=0.0).to(ACC)
    total = activate(total, ACTIVATION)
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=mask)
