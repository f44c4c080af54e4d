"""From the first BatchNorm kernel that comes to mind to tinybn's, in four steps.

    python -m examples.batchnorm_steps

Forward pass in training of a C-contiguous float32 x, [N, C] or [N, C, H, W], seen as
[N, C, S]. docs/batchnorm.md tells the story and has the times. With a GPU every step is
checked against float64 and timed; without one it is checked in Triton's interpreter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl

import tinybn as tb
from tinybn import kernels
from tinybn.kernels import gpu

EPS = 1e-5
TILE = 2048  # elements that a program loads at once
SHAPES = ((4096, 512), (65536, 256), (64, 256, 56, 56))


@triton.jit
def tile(rows, channels, end, C, S):
    """Offsets and mask of some rows of some channels: row r is sample r // S, position r % S."""
    at = (rows // S * C * S + rows % S)[:, None] + (channels * S)[None, :]
    return at, (rows < end)[:, None] & (channels < C)[None, :]


# Step 1: one program a channel, sums of x and of x².


@triton.jit
def sums_kernel(
    x_ptr, mean_ptr, var_ptr, rows, C, S, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for start in range(0, rows, BLOCK_R):
        at, mask = tile(start + tl.arange(0, BLOCK_R), channels, rows, C, S)
        x = tl.load(x_ptr + at, mask=mask, other=0.0)
        total += x
        square += x * x
    mean = tl.sum(total, 0) / rows
    tl.store(mean_ptr + channels, mean, mask=channels < C)
    tl.store(var_ptr + channels, tl.sum(square, 0) / rows - mean * mean, mask=channels < C)


@triton.jit
def normalize(
    x_ptr, y_ptr, weight_ptr, bias_ptr, mean, var, channels, start, end, C, S, eps,
    BLOCK_R: tl.constexpr,
):  # fmt: skip
    inside = channels < C
    scale = tl.load(weight_ptr + channels, mask=inside, other=0.0) / tl.sqrt(var + eps)
    shift = tl.load(bias_ptr + channels, mask=inside, other=0.0)
    for first in range(start, end, BLOCK_R):
        at, mask = tile(first + tl.arange(0, BLOCK_R), channels, end, C, S)
        x = tl.load(x_ptr + at, mask=mask, other=0.0)
        tl.store(y_ptr + at, (x - mean[None, :]) * scale[None, :] + shift[None, :], mask=mask)


@triton.jit
def normalize_kernel(
    x_ptr, y_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, rows, C, S, eps,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean = tl.load(mean_ptr + channels, mask=channels < C, other=0.0)
    var = tl.load(var_ptr + channels, mask=channels < C, other=0.0)
    normalize(x_ptr, y_ptr, weight_ptr, bias_ptr, mean, var, channels, 0, rows, C, S, eps, BLOCK_R)


# Step 2: the variance from differences to the mean, and one launch.


@triton.jit
def moments(x_ptr, channels, start, end, C, S, BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr):
    """Mean, and sum of squared differences to it, of rows ``start`` to ``end``."""
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for first in range(start, end, BLOCK_R):
        at, mask = tile(first + tl.arange(0, BLOCK_R), channels, end, C, S)
        total += tl.load(x_ptr + at, mask=mask, other=0.0)
    mean = tl.sum(total, 0) / (end - start)
    square = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    for first in range(start, end, BLOCK_R):
        at, mask = tile(first + tl.arange(0, BLOCK_R), channels, end, C, S)
        d = tl.where(mask, tl.load(x_ptr + at, mask=mask, other=0.0) - mean[None, :], 0.0)
        square += d * d
    return mean, tl.sum(square, 0)


@triton.jit
def channel_kernel(
    x_ptr, y_ptr, weight_ptr, bias_ptr, rows, C, S, eps,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean, square = moments(x_ptr, channels, 0, rows, C, S, BLOCK_R, BLOCK_C)
    normalize(
        x_ptr, y_ptr, weight_ptr, bias_ptr, mean, square / rows, channels, 0, rows, C, S, eps,
        BLOCK_R,
    )  # fmt: skip


# Step 4: several programs a channel, which merge each other's results in a second launch.


@triton.jit
def parts_kernel(
    x_ptr, means_ptr, squares_ptr, rows, part_rows, C, S,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    part = tl.program_id(1)
    start = part * part_rows
    end = tl.minimum(start + part_rows, rows)
    mean, square = moments(x_ptr, channels, start, end, C, S, BLOCK_R, BLOCK_C)
    tl.store(means_ptr + part * C + channels, mean, mask=channels < C)
    tl.store(squares_ptr + part * C + channels, square, mask=channels < C)


@triton.jit
def merge_kernel(
    x_ptr, y_ptr, means_ptr, squares_ptr, weight_ptr, bias_ptr, rows, part_rows, C, S, eps,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    channels = tl.program_id(0) * BLOCK_C + tl.arange(0, BLOCK_C)
    mean = tl.zeros([BLOCK_C], tl.float32)
    square = tl.zeros([BLOCK_C], tl.float32)
    for part in range(tl.num_programs(1)):
        # Chan, Golub and LeVeque 1983, equation 2.1b, in the parts' order.
        seen = (part * part_rows).to(tl.float32)
        count = tl.minimum(rows - part * part_rows, part_rows).to(tl.float32)
        at = part * C + channels
        apart = tl.load(means_ptr + at, mask=channels < C, other=0.0) - mean
        square += tl.load(squares_ptr + at, mask=channels < C, other=0.0)
        square += apart * apart * (seen * count / (seen + count))
        mean += apart * (count / (seen + count))
    start = tl.program_id(1) * part_rows
    normalize(
        x_ptr, y_ptr, weight_ptr, bias_ptr, mean, square / rows, channels, start,
        tl.minimum(start + part_rows, rows), C, S, eps, BLOCK_R,
    )  # fmt: skip


sums, normalizing, whole, parted, merging = (
    kernels.Launcher(kernel)
    for kernel in (sums_kernel, normalize_kernel, channel_kernel, parts_kernel, merge_kernel)
)


def _sizes(x: Any, block_c: int) -> dict[str, Any]:
    n, c, *spatial = x.shape
    s = math.prod(spatial)
    block_c = block_c if s == 1 else 1  # else it is positions that are neighbours in memory
    return dict(rows=n * s, C=c, S=s, BLOCK_R=TILE // block_c, BLOCK_C=block_c)


def _like(x: Any) -> Any:
    return (gpu.cupy() if gpu.is_cupy(x) else np).empty_like(x)


def _columns(x: Any, count: int) -> Sequence[Any]:
    module = gpu.cupy() if gpu.is_cupy(x) else np
    return module.empty((count, x.shape[1]), np.float32)


def step_1(x: Any, weight: Any, bias: Any) -> Any:
    """One program a channel; variance as the mean of squares less the squared mean."""
    y, sizes = _like(x), _sizes(x, 1)
    mean, var = _columns(x, 2)
    grid = (sizes["C"],)
    sums(grid, x_ptr=x, mean_ptr=mean, var_ptr=var, **sizes)
    normalizing(
        grid, x_ptr=x, y_ptr=y, mean_ptr=mean, var_ptr=var, weight_ptr=weight, bias_ptr=bias,
        eps=np.float32(EPS), **sizes,
    )  # fmt: skip
    return y


def _whole(x: Any, weight: Any, bias: Any, block_c: int) -> Any:
    y, sizes = _like(x), _sizes(x, block_c)
    whole(
        (triton.cdiv(sizes["C"], sizes["BLOCK_C"]),), x_ptr=x, y_ptr=y, weight_ptr=weight,
        bias_ptr=bias, eps=np.float32(EPS), **sizes,
    )  # fmt: skip
    return y


def step_2(x: Any, weight: Any, bias: Any) -> Any:
    """One program a channel and one launch; variance from differences to the mean."""
    return _whole(x, weight, bias, 1)


def step_3(x: Any, weight: Any, bias: Any) -> Any:
    """One program for 32 neighbouring channels of [N, C]: whole lines of memory."""
    return _whole(x, weight, bias, 32)


def step_4(x: Any, weight: Any, bias: Any, programs: int = 1024) -> Any:
    """About 1024 programs, whatever the number of channels; two launches."""
    y, sizes = _like(x), _sizes(x, 32)
    tiles = triton.cdiv(sizes["C"], sizes["BLOCK_C"])
    parts = max(1, min(programs // tiles, sizes["rows"] // sizes["BLOCK_R"]))
    part_rows = triton.cdiv(sizes["rows"], parts)
    parts = triton.cdiv(sizes["rows"], part_rows)
    partial = _columns(x, 2 * parts)
    means, squares = partial[:parts], partial[parts:]
    shared = dict(means_ptr=means, squares_ptr=squares, part_rows=part_rows, **sizes)
    parted((tiles, parts), x_ptr=x, **shared)
    merging(
        (tiles, parts), x_ptr=x, y_ptr=y, weight_ptr=weight, bias_ptr=bias, eps=np.float32(EPS),
        **shared,
    )  # fmt: skip
    return y


def library(x: Any, weight: Any, bias: Any) -> Any:
    """tinybn: x stays in registers where it fits, and one launch wherever that is faster."""
    return kernels.batch_norm_forward(x, weight, bias, eps=EPS).y


STEPS: tuple[Callable[..., Any], ...] = (step_1, step_2, step_3, step_4, library)


def error(y: np.ndarray, x: np.ndarray) -> float:
    """The largest difference to float64 mathematics, with weight 1 and bias 0."""
    x = x.astype(np.float64)
    axes = (0, *range(2, x.ndim))
    want = x - x.mean(axes, keepdims=True)
    want /= np.sqrt((want * want).mean(axes, keepdims=True) + EPS)
    return float(np.abs(y - want).max())


def draw(shape: tuple[int, ...], mean: float = 0.0, deviation: float = 1.0) -> np.ndarray:
    """Random float32 numbers."""
    return np.random.default_rng(0).normal(mean, deviation, shape).astype(np.float32)


def main() -> None:
    """Check all steps; with a GPU, time them."""
    print("largest error where the mean is 0 and 100 times the deviation")
    for step in STEPS:
        errors = []
        for mean in (0.0, 100.0):
            x = draw((64, 8, 3, 5), mean)
            with tb.interpret():
                y = step(x, np.ones(8, np.float32), np.zeros(8, np.float32))
            errors.append(error(y, x))
        print(f"  {step.__name__:8} {errors[0]:.0e}  {errors[1]:.0e}  {step.__doc__}")
    if gpu.why_unavailable():
        print(f"no times: {gpu.why_unavailable()}")
        return
    print(f"µs on {gpu.device_name()}")
    for shape in SHAPES:
        times = ", ".join(f"{name} {us:.1f}" for name, us in measure(shape).items())
        print(f"  {'x'.join(map(str, shape))}: {times}")


def measure(shape: tuple[int, ...]) -> dict[str, float]:
    """Median microseconds of each step, replayed from a CUDA graph with a cold L2 cache."""
    from benchmarks.timing import Timer

    timer = Timer()
    host = draw(shape)
    x, one, zero = (
        gpu.cupy().asarray(a)
        for a in (host, np.ones(shape[1], np.float32), np.zeros(shape[1], np.float32))
    )
    jobs = {}
    for step in STEPS:
        assert error(step(x, one, zero).get(), host) < 1e-3
        jobs[step.__name__] = timer.capture(lambda step=step: {"y": step(x, one, zero)})
    return timer.medians(jobs, 25)


if __name__ == "__main__":
    main()
