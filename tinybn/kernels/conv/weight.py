"""The gradient of a convolution's weight: a product whose sum runs over all pixels.

dweight[o, (c, tap)] = Σ dy[o, p]·x[(c, tap), p]. There are few results and long sums, so the
pixels are cut into parts, each a program's; the caller adds the parts up in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def conv2d_weight_kernel(
    dy_ptr, x_ptr, partial_ptr, M, CHANNELS_OUT, CHANNELS_IN, H, W, OUT_H, OUT_W,
    x_n, x_c, x_h, x_w, dy_n, dy_c, dy_h, dy_w, part_rows, part_size, tiles_k,
    KW: tl.constexpr, TAPS: tl.constexpr, BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    part = tl.program_id(1)
    group = tl.program_id(2)
    out = tile // tiles_k * BLOCK_M + tl.arange(0, BLOCK_M)
    k = tile % tiles_k * BLOCK_N + tl.arange(0, BLOCK_N)
    K = CHANNELS_IN * TAPS
    tap = k % TAPS
    shift_h = tap // KW * DILATION_H - BEFORE_H
    shift_w = tap % KW * DILATION_W - BEFORE_W
    x_channel = group * CHANNELS_IN + k // TAPS
    dy_channel = group * CHANNELS_OUT + out
    if WIDE:
        x_channel = x_channel.to(tl.int64)
        dy_channel = dy_channel.to(tl.int64)
    pixels = OUT_H * OUT_W
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    first = part * part_rows
    for start in range(first, tl.minimum(first + part_rows, M), BLOCK_K):
        row = start + tl.arange(0, BLOCK_K)
        inside = (row < M) & (row < first + part_rows)
        n = row // pixels
        h = row % pixels // OUT_W
        w = row % OUT_W
        if WIDE:
            n = n.to(tl.int64)
        at = (n * dy_n + h * dy_h + w * dy_w)[None, :] + (dy_channel * dy_c)[:, None]
        mask = inside[None, :] & (out < CHANNELS_OUT)[:, None]
        left = tl.load(dy_ptr + at, mask=mask, other=0.0)
        from_h = (h * STRIDE_H)[:, None] + shift_h[None, :]
        from_w = (w * STRIDE_W)[:, None] + shift_w[None, :]
        mask = (from_h >= 0) & (from_h < H) & (from_w >= 0) & (from_w < W)
        mask = mask & inside[:, None] & (k < K)[None, :]
        at = (n * x_n)[:, None] + (x_channel * x_c)[None, :] + from_h * x_h + from_w * x_w
        right = tl.load(x_ptr + at, mask=mask, other=0.0)
        if UPCAST:
            left = left.to(ACC)
            right = right.to(ACC)
        total = tl.dot(left, right, total, input_precision=PRECISION, out_dtype=ACC)
    at = ((group * CHANNELS_OUT + out) * K)[:, None] + k[None, :]
    mask = (out < CHANNELS_OUT)[:, None] & (k < K)[None, :]
    target = partial_ptr + part.to(tl.int64) * part_size + at
    tl.store(target, total.to(partial_ptr.dtype.element_ty), mask=mask)
