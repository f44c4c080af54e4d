"""y where the statistics are known: one read, one write, any number of programs."""

from __future__ import annotations

import triton
import triton.language as tl

from .forward import write_normalized
from .tiles import centre_and_rstd, scale_and_shift, tile_offsets


@triton.jit
def batch_norm_normalize_kernel(
    x_ptr, addend_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr, y_ptr,
    rows, C, S: tl.constexpr, stride_n: tl.constexpr, stride_c: tl.constexpr,
    stride_s: tl.constexpr, channel_tiles, eps,
    FROM_VARIANCE: tl.constexpr, FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    ACTIVATION: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    # One grid axis for both tilings: the others end at 65,535 programs.
    channels = (tl.program_id(0) % channel_tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    tile = tl.program_id(0) // channel_tiles
    if WIDE:
        tile = tile.to(tl.int64)
    at, mask = tile_offsets(
        tile * BLOCK_R, rows, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE, BLOCK_R
    )
    x = tl.load(x_ptr + at, mask=mask, other=0.0)
    mean, residual, rstd = centre_and_rstd(
        mean_ptr, scale_ptr, residual_ptr, channels, C, eps, FROM_VARIANCE, ACC
    )
    # Not folded to x·scale + shift: that loses digits where the mean is large.
    scale, shift = scale_and_shift(weight_ptr, bias_ptr, residual, rstd, channels, C, ACC)
    write_normalized(y_ptr, addend_ptr, None, at, mask, x, mean, scale, shift, ACC, ACTIVATION)
