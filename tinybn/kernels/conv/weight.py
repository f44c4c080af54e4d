"""The gradient of a convolution's weight: a product whose sum runs over all pixels.

dweight[o, (c, tap)] = Σ dy[o, p]·x[(c, tap), p]. There are few results and long sums, so the
pixels are cut into parts, each a program's, which are added up in their order.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..product.addition import add_product, sum_of
from ..product.tiles import add_parts
from .gather import channels_and_taps, gathered, pixels_of


@triton.jit
def conv2d_weight_kernel(
    dy_ptr, x_ptr, dweight_ptr, partial_ptr, arrived_ptr, M, CHANNELS_OUT, CHANNELS_IN, H, W,
    OUT_H, OUT_W, x_n, x_c, x_h, x_w, dy_n, dy_c, dy_h, dy_w, parts, part_rows, tiles_k,
    KW: tl.constexpr, TAPS: tl.constexpr, BEFORE_H: tl.constexpr, BEFORE_W: tl.constexpr,
    STRIDE_H: tl.constexpr, STRIDE_W: tl.constexpr, DILATION_H: tl.constexpr,
    DILATION_W: tl.constexpr, TAPS_FIRST: tl.constexpr,
    ONE_TAP: tl.constexpr, NCHW: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0) // parts
    part = tl.program_id(0) % parts
    group = tl.program_id(1)
    out = tile // tiles_k * BLOCK_M + tl.arange(0, BLOCK_M)
    start = tile % tiles_k * BLOCK_N
    k = start + tl.arange(0, BLOCK_N)
    real = k < CHANNELS_IN * TAPS
    if ONE_TAP:
        channel = start % CHANNELS_IN + tl.arange(0, BLOCK_N)
        tap = start // CHANNELS_IN
    else:
        channel, tap = channels_and_taps(k, CHANNELS_IN, TAPS, TAPS_FIRST)
    dy_channel = group * CHANNELS_OUT + out
    if WIDE:
        group = group.to(tl.int64)
        dy_channel = dy_channel.to(tl.int64)
    x_group = x_ptr + group * CHANNELS_IN * x_c
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    small = total
    first = part * part_rows
    for start in range(first, tl.minimum(first + part_rows, M), BLOCK_K):
        row = start + tl.arange(0, BLOCK_K)
        inside = row < M
        n, h, w = pixels_of(row, OUT_H * OUT_W, OUT_W, WIDE)
        at = (n * dy_n + h * dy_h + w * dy_w)[:, None] + (dy_channel * dy_c)[None, :]
        if NCHW:
            at = tl.max_contiguous(at, [2, 1])
        mask = inside[:, None] & (out < CHANNELS_OUT)[None, :]
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0)
        x = gathered(
            x_group, n, h, w, inside, channel, tap, real, H, W, x_n, x_c, x_h, x_w, KW, BEFORE_H,
            BEFORE_W, STRIDE_H, STRIDE_W, DILATION_H, DILATION_W, False, ONE_TAP, WIDE, NCHW,
        )  # fmt: skip
        if UPCAST:
            dy = dy.to(ACC)
            x = x.to(ACC)
        total, small = add_product(total, small, tl.trans(dy), x, ACC, PRECISION)
    total = sum_of(total, small, PRECISION)
    mask = (out < CHANNELS_OUT)[:, None] & real[None, :]
    if parts > 1:
        program = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        total, last = add_parts(total, partial_ptr, arrived_ptr, program - part, part, parts)
        mask = (out < tl.where(last, CHANNELS_OUT, 0))[:, None] & real[None, :]
    at = dy_channel[:, None] * (CHANNELS_IN * TAPS) + (channel * TAPS + tap)[None, :]
    tl.store(dweight_ptr + at, total.to(dweight_ptr.dtype.element_ty), mask=mask)
