"""Tiles of an activation: where their elements lie, and the columns of a channel.

A tensor is [N, C, S] (``layout.py``); a channel's values are its N·S rows. A
tile is BLOCK_R rows by BLOCK_C channels. Where channels are contiguous
(``FLAT``: [N, C] and channels-last) row r begins at r·stride_s; in NCHW the
rows of one channel come in runs of S, and S is a constant of the compiled
code, so that dividing by it is a multiplication.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..common import rsqrt_rounded


@triton.jit
def tile_mask(start, end, channels, C, BLOCK_R: tl.constexpr):
    """Which of BLOCK_R rows from ``start`` on lie before ``end``, and which channels in C."""
    return ((start + tl.arange(0, BLOCK_R)) < end)[:, None] & (channels < C)[None, :]


@triton.jit
def tile_offsets(
    start, end, channels, C, S: tl.constexpr,
    stride_n: tl.constexpr, stride_c: tl.constexpr, stride_s: tl.constexpr,
    FLAT: tl.constexpr, WIDE: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """Element offsets of BLOCK_R rows from ``start`` on, and the mask of those before ``end``."""
    r = start + tl.arange(0, BLOCK_R)
    mask = tile_mask(start, end, channels, C, BLOCK_R)
    if WIDE:
        r = r.to(tl.int64)
        channels = channels.to(tl.int64)
    if FLAT:
        along_rows = r * stride_s
    else:
        along_rows = r + (r // S) * (stride_n - S)
    return along_rows[:, None] + channels[None, :] * stride_c, mask


@triton.jit
def load_tiles(
    pointer, start, end, channels, C, S: tl.constexpr,
    stride_n: tl.constexpr, stride_c: tl.constexpr, stride_s: tl.constexpr,
    FLAT: tl.constexpr, WIDE: tl.constexpr, COUNT: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """COUNT tiles from row ``start`` on, asked for all at once."""
    loaded = ()
    for i in tl.static_range(COUNT):
        at, mask = tile_offsets(
            start + i * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE,
            BLOCK_R,
        )  # fmt: skip
        loaded = loaded + (tl.load(pointer + at, mask=mask, other=0.0),)  # type: ignore[assignment]
    return loaded


@triton.jit
def sum_both(first, second):
    """The sums of two tiles over their rows, by one exchange between the warps."""
    return tl.split(tl.sum(tl.join(first, second), 0))


@triton.jit
def load_column(pointer, channels, C, ACC: tl.constexpr):
    """One value a channel."""
    return tl.load(pointer + channels, mask=channels < C, other=0.0).to(ACC)


@triton.jit
def store_column(pointer, value, channels, C):
    tl.store(pointer + channels, value.to(pointer.dtype.element_ty), mask=channels < C)


@triton.jit
def scale_and_shift(weight_ptr, bias_ptr, residual, rstd, channels, C, ACC: tl.constexpr):
    """y = (x − mean)·scale + shift; what rounding took from the mean goes into the shift."""
    scale = rstd
    if weight_ptr is not None:
        scale = scale * load_column(weight_ptr, channels, C, ACC)
    shift = -residual * scale
    if bias_ptr is not None:
        shift += load_column(bias_ptr, channels, C, ACC)
    return scale, shift


@triton.jit
def centre_and_rstd(
    mean_ptr, scale_ptr, residual_ptr, channels, C, eps,
    FROM_VARIANCE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The mean in two parts, and the reciprocal standard deviation (or it from a variance)."""
    mean = load_column(mean_ptr, channels, C, ACC)
    rstd = load_column(scale_ptr, channels, C, ACC)
    if FROM_VARIANCE:
        rstd = rsqrt_rounded(rstd + eps)
    residual = tl.zeros_like(mean)
    if residual_ptr is not None:
        residual = load_column(residual_ptr, channels, C, ACC)
    return mean, residual, rstd
