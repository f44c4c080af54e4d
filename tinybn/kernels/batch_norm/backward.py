"""BatchNorm's backward pass: dx, dweight and dbias in one launch.

The units and their exchange are the forward pass's, with tiles of x and dy.
With g = dy·activation′(z): dbias = Σ g, dweight = Σ g·x̂ and dx =
weight·rstd·(g − dbias/n − x̂·dweight/n) (Ioffe and Szegedy 2015, section 3,
simplified). Where the statistics are constants (``FROZEN``) dx = weight·rstd·g,
which needs no sum.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..activations import activation_backward
from .exchange import collect, collect_merged, next_tag, publish, publish_merged
from .tiles import (
    centre_and_rstd,
    load_tiles,
    scale_and_shift,
    store_column,
    sum_both,
    tile_offsets,
)  # fmt: skip


@triton.jit
def upstream(
    dy, x_hat, addend_ptr, sign_ptr, at, mask, weight, bias,
    ACC: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """The gradient of z = x̂·weight + bias (+ addend), where y = activation(z)."""
    g = dy.to(ACC)
    if sign_ptr is not None:
        g = tl.where(tl.load(sign_ptr + at, mask=mask, other=0) != 0, g, 0.0)
    elif ACTIVATION is not None:
        z = x_hat * weight[None, :] + bias[None, :]
        if addend_ptr is not None:
            z += tl.load(addend_ptr + at, mask=mask, other=0.0).to(ACC)
        # z of a masked row is nothing, and may overflow.
        g = tl.where(mask, activation_backward(g, z, ACTIVATION), 0.0)
    return g


@triton.jit
def gradient_of_output(
    dy, x, mean, rstd, offset, addend_ptr, sign_ptr, at, mask, weight, bias,
    ACC: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """g and x̂ of a tile; x̂ = (x − mean)·rstd + offset."""
    x_hat = (x.to(ACC) - mean[None, :]) * rstd[None, :] + offset[None, :]
    g = upstream(dy, x_hat, addend_ptr, sign_ptr, at, mask, weight, bias, ACC, ACTIVATION)
    return g, x_hat


@triton.jit
def merged_sums(
    slots_ptr, first_slot, parts, plane, tag,
    TAGGED: tl.constexpr, ACC: tl.constexpr, MERGE_C: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Σ g and Σ g·x̂ of the channels from those of their parts, in their order."""
    sum_g = tl.zeros([MERGE_C], ACC)
    sum_g_x_hat = tl.zeros([MERGE_C], ACC)
    for base in range(0, parts, CHUNK):
        part = base + tl.arange(0, CHUNK)
        at = (first_slot + tl.arange(0, MERGE_C))[None, :] * parts + part[:, None]
        there = (at >= 0) & (part < parts)[:, None]
        first, second = collect(slots_ptr, at, plane, tag, there, TAGGED)
        of_chunk, of_chunk_x_hat = sum_both(first, second)
        sum_g += of_chunk
        sum_g_x_hat += of_chunk_x_hat
    return sum_g, sum_g_x_hat


@triton.jit
def merge_unit(
    slots_ptr, tag, unit, parts, units, TAGGED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_C: tl.constexpr, MERGE_C: tl.constexpr, CHUNK: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """MERGE_C channels' sums, by one of their programs for all."""
    part = unit % parts
    if part * MERGE_C < BLOCK_C:
        first_slot = (unit // parts) * BLOCK_C + part * MERGE_C
        sum_g, sum_g_x_hat = merged_sums(
            slots_ptr, first_slot, parts, units * BLOCK_C, tag, TAGGED, ACC, MERGE_C, CHUNK
        )
        publish_merged(
            slots_ptr, first_slot, units, parts, sum_g, sum_g_x_hat, tag, TAGGED, BLOCK_C, MERGE_C,
            COPIES,
        )  # fmt: skip


@triton.jit
def write_gradient(
    dx_ptr, daddend_ptr, dy, x, mean, rstd, offset, addend_ptr, sign_ptr, at, mask, weight, bias,
    scale, of_one, of_x_hat, FROZEN: tl.constexpr, ACC: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    g, x_hat = gradient_of_output(
        dy, x, mean, rstd, offset, addend_ptr, sign_ptr, at, mask, weight, bias, ACC, ACTIVATION
    )
    if daddend_ptr is not None:
        tl.store(daddend_ptr + at, g.to(daddend_ptr.dtype.element_ty), mask=mask)
    if dx_ptr is not None:
        dx = g * scale[None, :]
        if not FROZEN:
            dx = x_hat * of_x_hat[None, :] + (dx + of_one[None, :])
        dx = dx.to(dx_ptr.dtype.element_ty)
        tl.store(dx_ptr + at, dx, mask=mask, eviction_policy="evict_first")


@triton.jit
def channel_columns(
    weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr, channels, C, eps,
    FROZEN: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """mean, rstd and offset, with x̂ = (x − mean)·rstd + offset; weight and bias."""
    mean, residual, rstd = centre_and_rstd(
        mean_ptr, scale_ptr, residual_ptr, channels, C, eps, FROZEN, ACC
    )
    weight, bias = scale_and_shift(
        weight_ptr, bias_ptr, tl.zeros_like(mean), tl.full(mean.shape, 1.0, ACC), channels, C, ACC
    )
    return mean, rstd, -residual * rstd, weight, bias


@triton.jit
def add_tile(
    sums, sums_x_hat, dy, x, mean, rstd, offset, weight, bias, addend_ptr, sign_ptr, at, mask,
    ACC: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    g, x_hat = gradient_of_output(
        dy, x, mean, rstd, offset, addend_ptr, sign_ptr, at, mask, weight, bias, ACC, ACTIVATION
    )
    # 0·∞ of a masked row is no term of the sum.
    return sums + g, sums_x_hat + tl.where(mask, g * x_hat, 0.0)


@triton.jit
def reduce_unit(
    dy_ptr, x_ptr, addend_ptr, sign_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr,
    slots_ptr, tag, unit, rows, C, S: tl.constexpr, stride_n: tl.constexpr, stride_c: tl.constexpr,
    stride_s: tl.constexpr, parts, part_rows, tiles, units, eps,
    FROZEN: tl.constexpr, FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    ACTIVATION: tl.constexpr, HOLD: tl.constexpr, SPLIT: tl.constexpr, TAGGED: tl.constexpr,
    LOADED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The unit's first tiles, Σ g and Σ g·x̂, which are also told to the others."""
    channels = (unit // parts) * BLOCK_C + tl.arange(0, BLOCK_C)
    part = unit % parts
    start = part * part_rows
    end = tl.minimum(start + part_rows, rows)
    loaded_dy = load_tiles(
        dy_ptr, start, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE, LOADED,
        BLOCK_R,
    )  # fmt: skip
    loaded_x = load_tiles(
        x_ptr, start, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE, LOADED,
        BLOCK_R,
    )  # fmt: skip
    mean, rstd, offset, weight, bias = channel_columns(
        weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr, channels, C, eps, FROZEN, ACC
    )
    sums = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    sums_x_hat = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for i in tl.static_range(LOADED):
        at, mask = tile_offsets(
            start + i * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE,
            BLOCK_R,
        )  # fmt: skip
        sums, sums_x_hat = add_tile(
            sums, sums_x_hat, loaded_dy[i], loaded_x[i], mean, rstd, offset, weight, bias,
            addend_ptr, sign_ptr, at, mask, ACC, ACTIVATION,
        )  # fmt: skip
    if not HOLD:
        for k in range(LOADED, tiles, LOADED):
            first = start + k * BLOCK_R
            more_dy = load_tiles(
                dy_ptr, first, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE,
                LOADED, BLOCK_R,
            )  # fmt: skip
            more_x = load_tiles(
                x_ptr, first, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE,
                LOADED, BLOCK_R,
            )  # fmt: skip
            for i in tl.static_range(LOADED):
                at, mask = tile_offsets(
                    first + i * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s,
                    FLAT, WIDE, BLOCK_R,
                )  # fmt: skip
                sums, sums_x_hat = add_tile(
                    sums, sums_x_hat, more_dy[i], more_x[i], mean, rstd, offset, weight, bias,
                    addend_ptr, sign_ptr, at, mask, ACC, ACTIVATION,
                )  # fmt: skip
    sum_g, sum_g_x_hat = sum_both(sums, sums_x_hat)
    if SPLIT:
        publish(
            slots_ptr, channels * parts + part, units * BLOCK_C, sum_g, sum_g_x_hat, tag,
            channels >= 0, TAGGED,
        )  # fmt: skip
    return loaded_dy, loaded_x, sum_g, sum_g_x_hat


@triton.jit
def apply_unit(
    dy_ptr, x_ptr, addend_ptr, sign_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr,
    dx_ptr, daddend_ptr, dweight_ptr, dbias_ptr, slots_ptr, tag, unit, held_dy, held_x,
    sum_g, sum_g_x_hat, rows, C, S: tl.constexpr, stride_n: tl.constexpr, stride_c: tl.constexpr,
    stride_s: tl.constexpr, parts, part_rows, tiles, units, zero, eps,
    FROZEN: tl.constexpr, FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    ACTIVATION: tl.constexpr, HOLD: tl.constexpr, SPLIT: tl.constexpr, TAGGED: tl.constexpr,
    LOADED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
    MERGE_C: tl.constexpr, CHUNK: tl.constexpr, COPIES: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """dx of the unit, from the tiles held or else from memory; dweight and dbias."""
    channel_tile = unit // parts
    part = unit % parts
    channels = channel_tile * BLOCK_C + tl.arange(0, BLOCK_C)
    start = part * part_rows
    end = tl.minimum(start + part_rows, rows)
    mean, rstd, offset, weight, bias = channel_columns(
        weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr, channels, C, eps, FROZEN, ACC
    )
    if SPLIT:
        if MERGE_C < BLOCK_C:
            sum_g, sum_g_x_hat = collect_merged(
                slots_ptr, channels, units, parts, part, tag, TAGGED, BLOCK_C, COPIES, THREADS
            )
        else:
            sum_g, sum_g_x_hat = merged_sums(
                slots_ptr, channel_tile * BLOCK_C, parts, units * BLOCK_C, tag, TAGGED, ACC,
                BLOCK_C, CHUNK,
            )  # fmt: skip
    scale = rstd * weight
    share = 1.0 / rows.to(ACC)
    of_one = -scale * (sum_g * share)
    of_x_hat = -scale * (sum_g_x_hat * share)
    again = start + zero * 16  # as in forward.partial_statistics
    if HOLD:
        for i in tl.static_range(LOADED):
            at, mask = tile_offsets(
                again + i * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s, FLAT,
                WIDE, BLOCK_R,
            )  # fmt: skip
            write_gradient(
                dx_ptr, daddend_ptr, held_dy[i], held_x[i], mean, rstd, offset, addend_ptr,
                sign_ptr, at, mask, weight, bias, scale, of_one, of_x_hat, FROZEN, ACC, ACTIVATION,
            )  # fmt: skip
    else:
        for k in range(0, tiles, LOADED):
            # The last read come first: caches may still have them.
            first = again + (tiles - LOADED - k) * BLOCK_R
            loaded_dy = load_tiles(
                dy_ptr, first, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE,
                LOADED, BLOCK_R,
            )  # fmt: skip
            loaded_x = load_tiles(
                x_ptr, first, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE,
                LOADED, BLOCK_R,
            )  # fmt: skip
            for i in tl.static_range(LOADED):
                at, mask = tile_offsets(
                    first + i * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s,
                    FLAT, WIDE, BLOCK_R,
                )  # fmt: skip
                write_gradient(
                    dx_ptr, daddend_ptr, loaded_dy[i], loaded_x[i], mean, rstd, offset,
                    addend_ptr, sign_ptr, at, mask, weight, bias, scale, of_one, of_x_hat,
                    FROZEN, ACC, ACTIVATION,
                )  # fmt: skip
    if part == 0:
        if dbias_ptr is not None:
            store_column(dbias_ptr, sum_g, channels, C)
        if dweight_ptr is not None:
            store_column(dweight_ptr, sum_g_x_hat, channels, C)


@triton.jit
def batch_norm_backward_kernel(
    dy_ptr, x_ptr, addend_ptr, sign_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr,
    dx_ptr, daddend_ptr, dweight_ptr, dbias_ptr, slots_ptr,
    rows, C, S: tl.constexpr, stride_n: tl.constexpr, stride_c: tl.constexpr,
    stride_s: tl.constexpr, parts, part_rows, tiles, units, zero, eps,
    FROZEN: tl.constexpr, FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    ACTIVATION: tl.constexpr, REDUCE: tl.constexpr, MERGE: tl.constexpr, APPLY: tl.constexpr,
    HOLD: tl.constexpr, SPLIT: tl.constexpr, TAGGED: tl.constexpr, LOADED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, MERGE_C: tl.constexpr, CHUNK: tl.constexpr,
    COPIES: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    tag = 0
    if TAGGED:
        tag = next_tag(slots_ptr, (first // parts) * BLOCK_C * parts + first % parts)
    sum_g = tl.zeros([BLOCK_C], ACC)
    sum_g_x_hat = sum_g
    for unit in range(first, units, programs):
        if REDUCE:
            loaded_dy, loaded_x, sum_g, sum_g_x_hat = reduce_unit(
                dy_ptr, x_ptr, addend_ptr, sign_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr,
                residual_ptr, slots_ptr, tag, unit, rows, C, S, stride_n, stride_c, stride_s,
                parts, part_rows, tiles, units, eps, FROZEN, FLAT, WIDE, ACC, ACTIVATION, HOLD,
                SPLIT, TAGGED, LOADED, BLOCK_R, BLOCK_C,
            )  # fmt: skip
        if MERGE:
            merge_unit(
                slots_ptr, tag, unit, parts, units, TAGGED, ACC, BLOCK_C, MERGE_C, CHUNK, COPIES
            )
        if APPLY:
            apply_unit(
                dy_ptr, x_ptr, addend_ptr, sign_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr,
                residual_ptr, dx_ptr, daddend_ptr, dweight_ptr, dbias_ptr, slots_ptr, tag, unit,
                loaded_dy if HOLD else (), loaded_x if HOLD else (), sum_g, sum_g_x_hat, rows, C,
                S, stride_n, stride_c, stride_s, parts, part_rows, tiles, units, zero, eps,
                FROZEN, FLAT, WIDE, ACC, ACTIVATION, HOLD, SPLIT, TAGGED, LOADED, BLOCK_R,
                BLOCK_C, MERGE_C, CHUNK, COPIES, THREADS,
            )  # fmt: skip
