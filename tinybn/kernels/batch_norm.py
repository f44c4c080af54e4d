"""BatchNorm's Triton kernels and the objects that launch them.

A tensor is [N, C, S] (see ``layout.py``); a tile is BLOCK_R rows, the values of
one channel, by BLOCK_C channels, with more of it along the axis that is
contiguous in memory. One program reduces BLOCK_C channels over all their rows
in a fixed order, so the same input gives the same bits.

The mean is found twice: a first pass sums x − x₀, with x₀ the channel's first
value, a second sums x − mean and its square around what the first found. The
second sum corrects the first, and no large numbers are subtracted (the
corrected two-pass algorithm of Chan, Golub and LeVeque 1983,
doi:10.1080/00031305.1983.10483115, equations 1.7 and 2.1). Each term is
divided by n before it is added, so that no sum overflows where its result
does not. In float32 a variance above 3.4e38 does; y is then 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl

from .arrays import Array, accumulation_dtype
from .common import KernelObject, accumulator, power_of_two, rsqrt_rounded, scalar
from .launch import Launcher
from .layout import Channels

TILE = 2048  # float32 values of a tensor that a program holds at once: 16 a thread


@triton.jit
def row_block(start, channels, C, rows, BLOCK_R: tl.constexpr):
    """Rows from ``start`` on, and the mask of the tile that lies inside the tensor."""
    r = start + tl.arange(0, BLOCK_R)
    return r, (r < rows)[:, None] & (channels < C)[None, :]


@triton.jit
def offsets(r, channels, S, stride_n, stride_c, stride_s, FLAT: tl.constexpr, WIDE: tl.constexpr):
    """Element offsets of the tile of rows ``r`` and ``channels``."""
    if WIDE:
        r = r.to(tl.int64)
        channels = channels.to(tl.int64)
    if FLAT:
        return r[:, None] * stride_s + channels[None, :] * stride_c
    else:
        along_rows = (r // S) * stride_n + (r % S) * stride_s
        return along_rows[:, None] + channels[None, :] * stride_c


@triton.jit
def load_column(pointer, channels, C, ACC: tl.constexpr):
    """One value a channel."""
    return tl.load(pointer + channels, mask=channels < C, other=0.0).to(ACC)


@triton.jit
def centre_and_scale(
    mean_ptr, scale_ptr, residual_ptr, channels, C, eps,
    FROM_VARIANCE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The two parts of the mean, and the reciprocal standard deviation (or it from a variance)."""
    mean = load_column(mean_ptr, channels, C, ACC)
    rstd = load_column(scale_ptr, channels, C, ACC)
    if FROM_VARIANCE:
        rstd = rsqrt_rounded(rstd + eps)
    residual = tl.zeros_like(mean)
    if residual_ptr is not None:
        residual = load_column(residual_ptr, channels, C, ACC)
    return mean, residual, rstd


@triton.jit
def update_running(pointer, channels, C, keep, momentum, value, ACC: tl.constexpr):
    """running ← keep·running + momentum·value, with keep = 1 − momentum, in running's precision."""
    old = tl.load(pointer + channels, mask=channels < C, other=0.0)
    if old.dtype != tl.float64:
        old = old.to(ACC)
    new = keep * old + momentum * value
    tl.store(pointer + channels, new.to(pointer.dtype.element_ty), mask=channels < C)


@triton.jit
def batch_norm_stats_kernel(
    x_ptr, running_mean_ptr, running_var_ptr, mean_ptr, rstd_ptr, residual_ptr,
    rows, C, S, stride_n, stride_c, stride_s, eps, share, momentum, keep, unbias,
    FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channels < C
    first_row = x_ptr + channels.to(tl.int64) * stride_c
    pivot = tl.load(first_row, mask=inside, other=0.0).to(ACC)
    pivot = tl.where(tl.abs(pivot) < float("inf"), pivot, 0.0)
    total = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for start in range(0, rows, BLOCK_R):
        r, mask = row_block(start, channels, C, rows, BLOCK_R)
        at = offsets(r, channels, S, stride_n, stride_c, stride_s, FLAT, WIDE)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC)
        total += tl.where(mask, (x - pivot[None, :]) * share, 0.0)
    first = pivot + tl.sum(total, 0)

    shift = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    square = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for start in range(0, rows, BLOCK_R):
        r, mask = row_block(start, channels, C, rows, BLOCK_R)
        at = offsets(r, channels, S, stride_n, stride_c, stride_s, FLAT, WIDE)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC)
        d = tl.where(mask, x - first[None, :], 0.0)
        shift += d * share
        square += (d * share) * d
    correction = tl.sum(shift, 0)
    correction = tl.where(tl.abs(first) < float("inf"), correction, 0.0)  # ∞ stays ∞
    mean_square = tl.sum(square, 0)
    # Where the squares overflowed the variance is ∞, not ∞ − ∞.
    var = tl.where(mean_square == float("inf"), mean_square, mean_square - correction * correction)
    var = tl.where(var < 0.0, 0.0, var)  # rounding; unlike maximum it keeps NaN
    mean = first + correction
    residual = correction - (mean - first)

    tl.store(mean_ptr + channels, mean.to(mean_ptr.dtype.element_ty), mask=inside)
    rstd = rsqrt_rounded(var + eps)
    tl.store(rstd_ptr + channels, rstd.to(rstd_ptr.dtype.element_ty), mask=inside)
    if residual_ptr is not None:
        tl.store(residual_ptr + channels, residual.to(residual_ptr.dtype.element_ty), mask=inside)
    if running_mean_ptr is not None:
        update_running(running_mean_ptr, channels, C, keep, momentum, mean, ACC)
        update_running(running_var_ptr, channels, C, keep, momentum, var * unbias, ACC)


@triton.jit
def batch_norm_normalize_kernel(
    x_ptr, weight_ptr, bias_ptr, mean_ptr, scale_ptr, residual_ptr, y_ptr,
    rows, C, S, stride_n, stride_c, stride_s, eps,
    FROM_VARIANCE: tl.constexpr, FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    # One grid axis for both tilings: the others end at 65,535 programs.
    channel_tiles = tl.cdiv(C, BLOCK_C)
    channels = (tl.program_id(0) % channel_tiles) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean, residual, rstd = centre_and_scale(
        mean_ptr, scale_ptr, residual_ptr, channels, C, eps, FROM_VARIANCE, ACC
    )
    tile = tl.program_id(0) // channel_tiles
    if WIDE:
        tile = tile.to(tl.int64)
    start = tile * BLOCK_R
    r, mask = row_block(start, channels, C, rows, BLOCK_R)
    at = offsets(r, channels, S, stride_n, stride_c, stride_s, FLAT, WIDE)
    x = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC)
    y = ((x - mean[None, :]) - residual[None, :]) * rstd[None, :]
    if weight_ptr is not None:
        y = y * load_column(weight_ptr, channels, C, ACC)[None, :]
    if bias_ptr is not None:
        y = y + load_column(bias_ptr, channels, C, ACC)[None, :]
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def batch_norm_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, mean_ptr, scale_ptr, residual_ptr, dx_ptr, dweight_ptr, dbias_ptr,
    rows, C, S, stride_n, stride_c, stride_s, eps,
    FROZEN: tl.constexpr, FLAT: tl.constexpr, WIDE: tl.constexpr, ACC: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    inside = channels < C
    mean, residual, rstd = centre_and_scale(
        mean_ptr, scale_ptr, residual_ptr, channels, C, eps, FROZEN, ACC
    )
    sum_dy = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    sum_dy_x_hat = tl.zeros([BLOCK_R, BLOCK_C], ACC)
    for start in range(0, rows, BLOCK_R):
        r, mask = row_block(start, channels, C, rows, BLOCK_R)
        at = offsets(r, channels, S, stride_n, stride_c, stride_s, FLAT, WIDE)
        dy = tl.load(dy_ptr + at, mask=mask, other=0.0).to(ACC)
        x = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC)
        x_hat = ((x - mean[None, :]) - residual[None, :]) * rstd[None, :]
        sum_dy += dy
        sum_dy_x_hat += tl.where(mask, dy * x_hat, 0.0)  # 0·∞ of a masked row is no term
    dbias = tl.sum(sum_dy, 0)
    dweight = tl.sum(sum_dy_x_hat, 0)
    if dbias_ptr is not None:
        tl.store(dbias_ptr + channels, dbias.to(dbias_ptr.dtype.element_ty), mask=inside)
    if dweight_ptr is not None:
        tl.store(dweight_ptr + channels, dweight.to(dweight_ptr.dtype.element_ty), mask=inside)

    if dx_ptr is not None:
        scale = rstd
        if weight_ptr is not None:
            scale = scale * load_column(weight_ptr, channels, C, ACC)
        for start in range(0, rows, BLOCK_R):
            r, mask = row_block(start, channels, C, rows, BLOCK_R)
            at = offsets(r, channels, S, stride_n, stride_c, stride_s, FLAT, WIDE)
            dx = tl.load(dy_ptr + at, mask=mask, other=0.0).to(ACC)
            if not FROZEN:
                x = tl.load(x_ptr + at, mask=mask, other=0.0).to(ACC)
                x_hat = ((x - mean[None, :]) - residual[None, :]) * rstd[None, :]
                dx = dx - (dbias / rows)[None, :] - x_hat * (dweight / rows)[None, :]
            tl.store(dx_ptr + at, (dx * scale[None, :]).to(dx_ptr.dtype.element_ty), mask=mask)


class _BatchNormKernel(KernelObject):
    """Tile sizes shared by the BatchNorm kernels; None chooses them by the layout.

    Args:
        block_rows: BLOCK_R, a power of two.
        block_channels: BLOCK_C, a power of two.
    """

    def __init__(self, block_rows: int | None = None, block_channels: int | None = None) -> None:
        self.block_rows = block_rows
        self.block_channels = block_channels

    def _tiles(self, x: Array) -> dict[str, Any]:
        """A tensor's shape, strides and tile sizes, as the kernels name them."""
        c = Channels.of(x)
        # 32 channels at least where they are contiguous, so that a warp reads a full line;
        # else one. More where the rows do not fill the tile.
        least = 32 if c.stride_c == 1 else 1
        tile = self.tile * 4 // accumulation_dtype(x.dtype).itemsize
        most_channels = max(least, tile // power_of_two(c.rows, tile))
        block_c = self.block_channels or power_of_two(c.channels, most_channels)
        block_r = self.block_rows or power_of_two(c.rows, tile // block_c)
        return dict(
            rows=c.rows, C=c.channels, S=c.positions, stride_n=c.stride_n, stride_c=c.stride_c,
            stride_s=c.stride_s, FLAT=c.flat, WIDE=c.wide, BLOCK_R=block_r, BLOCK_C=block_c,
            **accumulator(x.dtype),
        )  # fmt: skip

    example_shape = (64, 64, 7, 7)
    tile = TILE

    def _arrays(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Array, Array]:
        """An activation and a per-channel array for :meth:`compile`."""
        return np.zeros(shape, dtype), np.zeros(shape[1], accumulation_dtype(dtype))


class BatchNormStatsForward(_BatchNormKernel):
    """Statistics of each channel, and the running statistics, in one launch.

    Reads x twice. Takes the arguments of ``reference.batch_norm_stats_forward``.
    """

    launcher = Launcher(batch_norm_stats_kernel)

    def _arguments(self, x, running_mean, running_var, mean, rstd, residual, eps, momentum):
        tiles = self._tiles(x)
        n = tiles["rows"]
        running = x.dtype if running_mean is None else running_mean.dtype
        return dict(
            x_ptr=x, running_mean_ptr=running_mean, running_var_ptr=running_var, mean_ptr=mean,
            rstd_ptr=rstd, residual_ptr=residual, eps=scalar(eps, x.dtype),
            share=scalar(1 / n, x.dtype),
            momentum=scalar(momentum, running), keep=scalar(1 - momentum, running),
            unbias=scalar(n / (n - 1) if n > 1 else 1.0, x.dtype), **tiles,
        )  # fmt: skip

    def __call__(
        self, x: Array, running_mean: Array | None, running_var: Array | None, mean: Array,
        rstd: Array, residual: Array | None, *, eps: float, momentum: float,
    ) -> None:  # fmt: skip
        arguments = self._arguments(
            x, running_mean, running_var, mean, rstd, residual, eps, momentum
        )
        self.launcher((triton.cdiv(arguments["C"], arguments["BLOCK_C"]),), **arguments)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        x, c = self._arrays(dtype, shape)
        return self._arguments(x, c, c, c, c, c, 1e-5, 0.1)


class BatchNormNormalizeForward(_BatchNormKernel):
    """y from x and its statistics; one read, one write, any number of programs.

    Takes the arguments of ``reference.batch_norm_normalize_forward``.
    """

    launcher = Launcher(batch_norm_normalize_kernel)
    from_variance = False

    def _arguments(self, x, weight, bias, mean, scale, residual, y, eps):
        return dict(
            x_ptr=x, weight_ptr=weight, bias_ptr=bias, mean_ptr=mean, scale_ptr=scale,
            residual_ptr=residual, y_ptr=y, eps=scalar(eps, x.dtype),
            FROM_VARIANCE=self.from_variance, **self._tiles(x),
        )  # fmt: skip

    def _launch(self, *arrays: Any) -> None:
        arguments = self._arguments(*arrays)
        channel_tiles = triton.cdiv(arguments["C"], arguments["BLOCK_C"])
        row_tiles = triton.cdiv(arguments["rows"], arguments["BLOCK_R"])
        self.launcher((channel_tiles * row_tiles,), **arguments)

    def __call__(
        self, x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array,
        residual: Array | None, y: Array,
    ) -> None:  # fmt: skip
        self._launch(x, weight, bias, mean, rstd, residual, y, 0.0)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        x, c = self._arrays(dtype, shape)
        return self._arguments(x, c, c, c, c, c, x, 1e-5)


class BatchNormForwardInference(BatchNormNormalizeForward):
    """y from x and running statistics. Arguments: ``reference.batch_norm_forward_inference``."""

    from_variance = True

    def __call__(  # type: ignore[override]
        self, x: Array, weight: Array | None, bias: Array | None, running_mean: Array,
        running_var: Array, y: Array, *, eps: float,
    ) -> None:  # fmt: skip
        self._launch(x, weight, bias, running_mean, running_var, None, y, eps)


class BatchNorm2dNchwForwardInference(BatchNormForwardInference):
    """Inference on [N, C, H, W] in either memory layout, under the name that graphs use."""


class BatchNormBackward(_BatchNormKernel):
    """dx, dweight and dbias where the statistics are the batch's; reads x and dy twice.

    Takes the arguments of ``reference.batch_norm_backward``.
    """

    launcher = Launcher(batch_norm_backward_kernel)
    frozen = False
    tile = TILE // 2  # of two tensors, each with a sum beside it; more spills registers

    def _arguments(self, dy, x, weight, mean, scale, residual, dx, dweight, dbias, eps):
        return dict(
            dy_ptr=dy, x_ptr=x, weight_ptr=weight, mean_ptr=mean, scale_ptr=scale,
            residual_ptr=residual, dx_ptr=dx, dweight_ptr=dweight, dbias_ptr=dbias,
            eps=scalar(eps, x.dtype), FROZEN=self.frozen, **self._tiles(x),
        )  # fmt: skip

    def _launch(self, *arrays: Any) -> None:
        arguments = self._arguments(*arrays)
        self.launcher((triton.cdiv(arguments["C"], arguments["BLOCK_C"]),), **arguments)

    def __call__(
        self, dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array,
        residual: Array | None, dx: Array | None, dweight: Array | None, dbias: Array | None,
    ) -> None:  # fmt: skip
        self._launch(dy, x, weight, mean, rstd, residual, dx, dweight, dbias, 0.0)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        x, c = self._arrays(dtype, shape)
        return self._arguments(x, x, c, c, c, c, x, c, c, 1e-5)


class BatchNorm2dNchwBackward(BatchNormBackward):
    """dx, dweight and dbias where the statistics are constants.

    Takes the arguments of ``reference.batch_norm_2d_nchw_backward``.
    """

    frozen = True

    def __call__(  # type: ignore[override]
        self, dy: Array, x: Array, weight: Array | None, running_mean: Array, running_var: Array,
        dx: Array | None, dweight: Array | None, dbias: Array | None, *, eps: float,
    ) -> None:  # fmt: skip
        self._launch(dy, x, weight, running_mean, running_var, None, dx, dweight, dbias, eps)
