"""BatchNorm's forward pass in training: statistics and y in one launch.

A unit of work is one part of the rows of BLOCK_C channels. A program reduces
its unit to a mean and a variance, tells them to the programs that hold the
channel's other parts (``exchange.py``), and applies the statistics of all
parts. Where the unit's tiles stay in registers between the two (``HOLD``),
memory is read once and written once. Where they are too many they are read
again, last ones first, since L2 may still have them. ``plan.py`` chooses.

Each part subtracts x₀, the channel's first value, then its own mean, which is
found twice: a second sum corrects the first (the corrected two-pass algorithm
of Chan, Golub and LeVeque 1983, doi:10.1080/00031305.1983.10483115, equations
1.7 and 2.1b for merging). In a part of K tiles the mean subtracted is that of
the first LOADED, whose square distance from the part's is at most K variances. Each
term is divided by the count before it is added, so that no sum overflows
where its result does not. In float32 a variance above 3.4e38 does; y is then 0. Values
further apart than the largest number, 3.4e38, give NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..activations import activate
from ..common import rsqrt_rounded
from .exchange import collect, collect_merged, next_tag, publish, publish_merged
from .tiles import (
    load_column,
    load_tiles,
    store_column,
    sum_both,
    tile_mask,
    tile_offsets,
)  # fmt: skip


@triton.jit
def finite_or_zero(x):
    return tl.where(tl.abs(x) < float("inf"), x, 0.0)


@triton.jit
def partial_statistics(
    x_ptr, loaded, pivot, start, end, channels, C, S: tl.constexpr,
    stride_n: tl.constexpr, stride_c: tl.constexpr, stride_s: tl.constexpr, tiles, zero, nil,
    FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, HOLD: tl.constexpr,
    LOADED: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """mean − pivot and variance of rows ``start`` to ``end``; ``loaded`` are their first tiles."""
    share = 1.0 / tl.minimum(end - start, LOADED * BLOCK_R).to(ACC)
    total = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for i in tl.static_range(LOADED):
        mask = tile_mask(start + i * BLOCK_R, end, channels, C, BLOCK_R)
        total += tl.where(mask, (loaded[i].to(ACC) - pivot[None, :]) * share, 0.0)
    centre = tl.sum(total, 0)

    share = 1.0 / (end - start).to(ACC)
    # nil and zero are 0, but not to the compiler: it would keep the differences, masks and
    # offsets of the first use in registers for the second one, which has no room for them.
    pivot += nil
    again = start + zero * 16
    shift = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    square = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for i in tl.static_range(LOADED):
        mask = tile_mask(again + i * BLOCK_R, end, channels, C, BLOCK_R)
        d = tl.where(mask, (loaded[i].to(ACC) - pivot[None, :]) - centre[None, :], 0.0)
        shift += d * share
        square += (d * share) * d
    if not HOLD:
        for k in range(LOADED, tiles, LOADED):
            more = load_tiles(
                x_ptr, start + k * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s,
                FLAT, WIDE, LOADED, BLOCK_R,
            )  # fmt: skip
            for i in tl.static_range(LOADED):
                mask = tile_mask(start + (k + i) * BLOCK_R, end, channels, C, BLOCK_R)
                d = tl.where(mask, (more[i].to(ACC) - pivot[None, :]) - centre[None, :], 0.0)
                shift += d * share
                square += (d * share) * d
    correction, variance = sum_both(shift, square)
    # Where the squares overflowed the variance is ∞, not ∞ − ∞; rounding may make it negative.
    less = variance - correction * correction
    variance = tl.where(variance == float("inf"), variance, tl.where(less < 0.0, 0.0, less))
    correction = tl.where(tl.abs(centre) < float("inf"), correction, 0.0)  # ∞ stays ∞
    return centre + correction, variance


@triton.jit
def merged_statistics(
    slots_ptr, first_slot, parts, plane, tag, part_rows, rows,
    TAGGED: tl.constexpr, ACC: tl.constexpr, MERGE_C: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """The channels' means − pivot and variances from those of their parts, in their order."""
    share = 1.0 / rows.to(ACC)
    mean = tl.zeros([MERGE_C], ACC)
    variance = tl.zeros([MERGE_C], ACC)
    seen = 0.0 * share
    for base in range(0, parts, CHUNK):
        part = base + tl.arange(0, CHUNK)
        at = (first_slot + tl.arange(0, MERGE_C))[None, :] * parts + part[:, None]
        there = (at >= 0) & (part < parts)[:, None]
        centre, spread = collect(slots_ptr, at, plane, tag, there, TAGGED)
        count = tl.where(part < parts, tl.minimum(rows - part * part_rows, part_rows), 0)
        weight = (count.to(ACC) * share)[:, None]
        of_chunk = tl.sum(weight * centre, 0)
        rest = rows - base * part_rows
        among = tl.where(base + CHUNK < parts, CHUNK * part_rows, rest).to(ACC) * share
        d = tl.where(weight > 0.0, centre - (of_chunk / among)[None, :], 0.0)
        variance += tl.sum(weight * (spread + d * d), 0)
        if base > 0:
            apart = of_chunk / among - mean / seen
            variance += apart * apart * (seen * among / (seen + among))
        mean += of_chunk
        seen += among
    return mean, variance


@triton.jit
def merge_unit(
    slots_ptr, tag, unit, rows, parts, part_rows, units, TAGGED: tl.constexpr, ACC: tl.constexpr,
    BLOCK_C: tl.constexpr, MERGE_C: tl.constexpr, CHUNK: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """MERGE_C channels' statistics, by one of their programs for all."""
    part = unit % parts
    if part * MERGE_C < BLOCK_C:
        first_slot = (unit // parts) * BLOCK_C + part * MERGE_C
        mean, variance = merged_statistics(
            slots_ptr, first_slot, parts, units * BLOCK_C, tag, part_rows, rows, TAGGED, ACC,
            MERGE_C, CHUNK,
        )  # fmt: skip
        publish_merged(
            slots_ptr, first_slot, units, parts, mean, variance, tag, TAGGED, BLOCK_C, MERGE_C,
            COPIES,
        )  # fmt: skip


@triton.jit
def load_running(pointer, channels, C, part, ACC: tl.constexpr):
    """Running statistics, in their own precision if that is the wider; for part 0 alone."""
    old = tl.load(pointer + channels, mask=tl.where(part == 0, channels, C) < C, other=0.0)
    if old.dtype != tl.float64:
        old = old.to(ACC)
    return old


@triton.jit
def write_normalized(
    y_ptr, addend_ptr, sign_ptr, at, mask, x, mean, scale, shift,
    ACC: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    z = (x.to(ACC) - mean[None, :]) * scale[None, :] + shift[None, :]
    if addend_ptr is not None:
        z += tl.load(addend_ptr + at, mask=mask, other=0.0).to(ACC)
    if sign_ptr is not None:
        # As ReLU's own gradient has it: NaN counts as positive.
        tl.store(sign_ptr + at, (z <= 0.0) == 0, mask=mask)
    y = activate(z, ACTIVATION).to(y_ptr.dtype.element_ty)
    # Nobody reads y here: let it leave L2 before x does.
    tl.store(y_ptr + at, y, mask=mask, eviction_policy="evict_first")


@triton.jit
def channel_pivot(x_ptr, channels, C, stride_c: tl.constexpr, ACC: tl.constexpr):
    first_row = x_ptr + channels.to(tl.int64) * stride_c
    return finite_or_zero(tl.load(first_row, mask=channels < C, other=0.0).to(ACC))


@triton.jit
def reduce_unit(
    x_ptr, slots_ptr, tag, unit, rows, C, S: tl.constexpr, stride_n: tl.constexpr,
    stride_c: tl.constexpr, stride_s: tl.constexpr, parts, part_rows, tiles, units, zero, nil,
    FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, HOLD: tl.constexpr,
    SPLIT: tl.constexpr, TAGGED: tl.constexpr, LOADED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The unit's first tiles, mean − pivot and variance, which are also told to the others."""
    channels = (unit // parts) * BLOCK_C + tl.arange(0, BLOCK_C)
    part = unit % parts
    start = part * part_rows
    end = tl.minimum(start + part_rows, rows)
    loaded = load_tiles(
        x_ptr, start, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE, LOADED,
        BLOCK_R,
    )  # fmt: skip
    pivot = channel_pivot(x_ptr, channels, C, stride_c, ACC)
    mean, variance = partial_statistics(
        x_ptr, loaded, pivot, start, end, channels, C, S, stride_n, stride_c, stride_s,
        tiles, zero, nil, FLAT, WIDE, ACC, HOLD, LOADED, BLOCK_R, BLOCK_C,
    )  # fmt: skip
    if SPLIT:
        publish(
            slots_ptr, channels * parts + part, units * BLOCK_C, mean, variance, tag,
            channels >= 0, TAGGED,
        )  # fmt: skip
    return loaded, mean, variance


@triton.jit
def apply_unit(
    x_ptr, addend_ptr, weight_ptr, bias_ptr, y_ptr, sign_ptr, mean_ptr, rstd_ptr, residual_ptr,
    running_mean_ptr, running_var_ptr, tracked_ptr, slots_ptr, tag, unit, held, mean, variance,
    rows, C, S: tl.constexpr, stride_n: tl.constexpr, stride_c: tl.constexpr,
    stride_s: tl.constexpr, parts, part_rows, tiles, units, zero, eps, momentum, keep, unbias,
    FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, ACTIVATION: tl.constexpr,
    HOLD: tl.constexpr, SPLIT: tl.constexpr, TAGGED: tl.constexpr, LOADED: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, MERGE_C: tl.constexpr,
    CHUNK: tl.constexpr, COPIES: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """y of the unit, from the tiles ``held`` or from memory; and the channel's statistics."""
    channel_tile = unit // parts
    part = unit % parts
    channels = channel_tile * BLOCK_C + tl.arange(0, BLOCK_C)
    start = part * part_rows
    end = tl.minimum(start + part_rows, rows)
    # Whatever memory must give is asked for before the wait.
    pivot = channel_pivot(x_ptr, channels, C, stride_c, ACC)
    weight = tl.full([BLOCK_C], 1.0, ACC)
    bias = tl.zeros([BLOCK_C], ACC)
    if weight_ptr is not None:
        weight = load_column(weight_ptr, channels, C, ACC)
    if bias_ptr is not None:
        bias = load_column(bias_ptr, channels, C, ACC)
    if running_mean_ptr is not None:
        old_mean = load_running(running_mean_ptr, channels, C, part, ACC)
        old_var = load_running(running_var_ptr, channels, C, part, ACC)
    if SPLIT:
        if MERGE_C < BLOCK_C:
            mean, variance = collect_merged(
                slots_ptr, channels, units, parts, part, tag, TAGGED, BLOCK_C, COPIES, THREADS
            )
        else:
            mean, variance = merged_statistics(
                slots_ptr, channel_tile * BLOCK_C, parts, units * BLOCK_C, tag, part_rows, rows,
                TAGGED, ACC, BLOCK_C, CHUNK,
            )  # fmt: skip
    # pivot + mean in two parts (Knuth's two-sum): rounded, and what rounding took.
    centre = pivot + mean
    back = centre - pivot
    residual = finite_or_zero((pivot - (centre - back)) + (mean - back))
    rstd = rsqrt_rounded(variance + eps)
    if y_ptr is not None:
        scale = rstd * weight
        # What rounding took from the mean goes into the shift.
        shift = bias - residual * scale
        again = start + zero * 16  # as in partial_statistics
        if HOLD:
            for i in tl.static_range(LOADED):
                at, mask = tile_offsets(
                    again + i * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s,
                    FLAT, WIDE, BLOCK_R,
                )  # fmt: skip
                write_normalized(
                    y_ptr, addend_ptr, sign_ptr, at, mask, held[i], centre, scale, shift,
                    ACC, ACTIVATION,
                )  # fmt: skip
        else:
            for k in range(0, tiles, LOADED):
                # The last read come first: caches may still have them.
                first = again + (tiles - LOADED - k) * BLOCK_R
                loaded = load_tiles(
                    x_ptr, first, end, channels, C, S, stride_n, stride_c, stride_s, FLAT, WIDE,
                    LOADED, BLOCK_R,
                )  # fmt: skip
                for i in tl.static_range(LOADED):
                    at, mask = tile_offsets(
                        first + i * BLOCK_R, end, channels, C, S, stride_n, stride_c, stride_s,
                        FLAT, WIDE, BLOCK_R,
                    )  # fmt: skip
                    write_normalized(
                        y_ptr, addend_ptr, sign_ptr, at, mask, loaded[i], centre, scale, shift,
                        ACC, ACTIVATION,
                    )  # fmt: skip
    if part == 0:
        store_column(mean_ptr, centre, channels, C)
        store_column(rstd_ptr, rstd, channels, C)
        if residual_ptr is not None:
            store_column(residual_ptr, residual, channels, C)
        if running_mean_ptr is not None:
            new_mean = keep * old_mean + momentum * centre
            store_column(running_mean_ptr, new_mean, channels, C)
            new_var = keep * old_var + momentum * (variance * unbias)
            store_column(running_var_ptr, new_var, channels, C)
        if tracked_ptr is not None:
            if channel_tile == 0:
                tl.store(tracked_ptr, tl.load(tracked_ptr) + 1)


@triton.jit
def batch_norm_forward_kernel(
    x_ptr, addend_ptr, weight_ptr, bias_ptr, y_ptr, sign_ptr, mean_ptr, rstd_ptr, residual_ptr,
    running_mean_ptr, running_var_ptr, tracked_ptr, slots_ptr,
    rows, C, S: tl.constexpr, stride_n: tl.constexpr, stride_c: tl.constexpr,
    stride_s: tl.constexpr, parts, part_rows, tiles, units, zero, nil,
    eps, momentum_ptr, momentum, keep, unbias,
    FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr, ACTIVATION: tl.constexpr,
    REDUCE: tl.constexpr, MERGE: tl.constexpr, APPLY: tl.constexpr, HOLD: tl.constexpr,
    SPLIT: tl.constexpr, TAGGED: tl.constexpr, LOADED: tl.constexpr, BLOCK_R: tl.constexpr,
    BLOCK_C: tl.constexpr, MERGE_C: tl.constexpr, CHUNK: tl.constexpr, COPIES: tl.constexpr,
    THREADS: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    programs = tl.num_programs(0)
    if momentum_ptr is not None:
        momentum = tl.load(momentum_ptr).to(momentum.dtype)
        keep = 1 - momentum
    tag = 0
    if TAGGED:
        tag = next_tag(slots_ptr, (first // parts) * BLOCK_C * parts + first % parts)
    mean = tl.zeros([BLOCK_C], ACC)
    variance = mean
    for unit in range(first, units, programs):
        if REDUCE:
            loaded, mean, variance = reduce_unit(
                x_ptr, slots_ptr, tag, unit, rows, C, S, stride_n, stride_c, stride_s, parts,
                part_rows, tiles, units, zero, nil, FLAT, WIDE, ACC, HOLD, SPLIT, TAGGED,
                LOADED, BLOCK_R, BLOCK_C,
            )  # fmt: skip
        if MERGE:
            merge_unit(
                slots_ptr, tag, unit, rows, parts, part_rows, units, TAGGED, ACC, BLOCK_C, MERGE_C,
                CHUNK, COPIES,
            )  # fmt: skip
        if APPLY:
            apply_unit(
                x_ptr, addend_ptr, weight_ptr, bias_ptr, y_ptr, sign_ptr, mean_ptr, rstd_ptr,
                residual_ptr, running_mean_ptr, running_var_ptr, tracked_ptr, slots_ptr, tag, unit,
                loaded if HOLD else (), mean, variance, rows, C, S, stride_n, stride_c, stride_s,
                parts, part_rows, tiles, units, zero, eps, momentum, keep, unbias, FLAT, WIDE, ACC,
                ACTIVATION, HOLD, SPLIT, TAGGED, LOADED, BLOCK_R, BLOCK_C, MERGE_C, CHUNK, COPIES,
                THREADS,
            )  # fmt: skip
