"""Convolution as a matrix product whose left factor is gathered, not written (implicit GEMM).

Rows are the pixels of the result, columns its channels, and the sum runs over the taps and
channels of what is read. Forward, pixel p reads p·stride − before + tap·dilation. The gradient of
the input turns that around: pixel p reads the windows at (p + before − tap·dilation) / stride,
where stride divides it. Each group of channels is a product of its own.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def source(p, tap, SHIFT: tl.constexpr, STRIDE: tl.constexpr, DILATION: tl.constexpr, SIZE,
           TRANSPOSED: tl.constexpr):  # fmt: skip
    """Along one axis: where pixels ``p`` read for each ``tap``, and whether that is inside."""
    if TRANSPOSED:
        at = (p + SHIFT)[:, None] - (tap * DILATION)[None, :]
        window = at // STRIDE
        return window, (at >= 0) & (window * STRIDE == at) & (window < SIZE)
    else:
        at = (p * STRIDE - SHIFT)[:, None] + (tap * DILATION)[None, :]
        return at, (at >= 0) & (at < SIZE)


@triton.jit
def conv2d_gather_kernel(
    x_ptr, weight_ptr, bias_ptr, y_ptr, M, CHANNELS_OUT, CHANNELS_IN, H, W, OUT_H, OUT_W,
    x_n, x_c, x_h, x_w, y_n, y_c, y_h, y_w, weight_out, weight_in, weight_group,
    KW: tl.constexpr, TAPS: tl.constexpr, BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr, TRANSPOSED: tl.constexpr, TAPS_FIRST: tl.constexpr,
    WIDE: tl.constexpr, ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    group = tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    out = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    pixels = OUT_H * OUT_W
    n = row // pixels
    h = row % pixels // OUT_W
    w = row % OUT_W  # rows are OUT_W apart, and so are images
    if WIDE:
        n = n.to(tl.int64)
        group = group.to(tl.int64)
    x_row = n * x_n + group * CHANNELS_IN * x_c
    weight_column = out * weight_out + group * weight_group
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    K = CHANNELS_IN * TAPS
    for start in range(0, K, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        # What lies side by side in memory is read side by side: taps in NCHW, else channels.
        if TAPS_FIRST:
            channel = k // TAPS
            tap = k % TAPS
        else:
            channel = k % CHANNELS_IN
            tap = k // CHANNELS_IN
        from_h, inside_h = source(h, tap // KW, BEFORE_H, STRIDE_H, DILATION_H, H, TRANSPOSED)
        from_w, inside_w = source(w, tap % KW, BEFORE_W, STRIDE_W, DILATION_W, W, TRANSPOSED)
        mask = inside_h & inside_w & (row < M)[:, None] & (k < K)[None, :]
        if WIDE:
            from_h = from_h.to(tl.int64)
            channel = channel.to(tl.int64)
        at = x_row[:, None] + (channel * x_c)[None, :] + from_h * x_h + from_w * x_w
        left = tl.load(x_ptr + at, mask=mask, other=0.0)
        at = (channel * weight_in + tap)[:, None] + weight_column[None, :]
        mask = (k < K)[:, None] & (out < CHANNELS_OUT)[None, :]
        right = tl.load(weight_ptr + at, mask=mask, other=0.0)
        if UPCAST:
            left = left.to(ACC)
            right = right.to(ACC)
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=ACC)
    if bias_ptr is not None:
        at = group * CHANNELS_OUT + out
        total += tl.load(bias_ptr + at, mask=out < CHANNELS_OUT, other=0.0).to(ACC)[None, :]
    y_row = n * y_n + h * y_h + w * y_w
    at = y_row[:, None] + ((group * CHANNELS_OUT + out) * y_c)[None, :]
    mask = (row < M)[:, None] & (out < CHANNELS_OUT)[None, :]
    tl.store(y_ptr + at, total.to(y_ptr.dtype.element_ty), mask=mask)
