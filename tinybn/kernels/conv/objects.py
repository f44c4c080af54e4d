"""The kernel objects of convolution: their tiles, and what a launch is passed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton

from .. import gpu
from ..arrays import Array, accumulation_dtype, namespace
from ..common import KernelObject, accumulator, power_of_two
from ..launch import Launcher, Options
from ..layout import image_steps, needs_wide_offsets
from ..precision import input_precision
from ..windows import Windows, by_axis
from .gather import conv2d_gather_kernel
from .weight import conv2d_weight_kernel

SMALLEST = 16  # side of a tile that tensor cores multiply
ON_NO_GPU = 2  # multiprocessors of the interpreter: enough for parts
PART_ROWS = 512  # pixels that are worth a program of their own


class _ConvKernel(KernelObject):
    """Tile sizes shared by the convolution kernels.

    Args:
        block_m, block_n, block_k: powers of two of at least 16 that fix the tiles.
    """

    example_shape = (8, 16, 14, 14)

    def __init__(
        self, block_m: int | None = None, block_n: int | None = None, block_k: int | None = None
    ) -> None:
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k

    def _tiles(self, rows: int, columns: int, terms: int, dtype: np.dtype) -> dict[str, int]:
        """As large as fit registers, no larger than the product; float64 takes twice the room."""
        wide = accumulation_dtype(dtype).itemsize // 4
        return dict(
            BLOCK_M=self.block_m or max(SMALLEST, power_of_two(rows, 64)),
            BLOCK_N=self.block_n or max(SMALLEST, power_of_two(columns, 64 // wide)),
            BLOCK_K=self.block_k or max(SMALLEST, power_of_two(terms, 64 // dtype.itemsize)),
        )

    def _shared(self, windows: Windows, *arrays: Array) -> dict[str, Any]:
        """The arguments that all kernels take alike."""
        dtype = arrays[0].dtype
        return dict(
            KW=windows.kernel[1], TAPS=windows.taps,
            **by_axis(BEFORE=windows.before, STRIDE=windows.stride, DILATION=windows.dilation),
            WIDE=needs_wide_offsets(*arrays),
            # The interpreter cannot multiply bfloat16; float64 has one precision.
            UPCAST=not gpu.is_cupy(arrays[0]), PRECISION=_precision(dtype), **accumulator(dtype),
        )  # fmt: skip


class _GatherKernel(_ConvKernel):
    launcher = Launcher(conv2d_gather_kernel)

    def _arguments(
        self, x: Array, weight: Array, bias: Array | None, y: Array, windows: Windows, groups: int,
        transposed: bool,
    ) -> dict[str, Any]:  # fmt: skip
        n, channels_out, *out = y.shape
        channels_out, channels_in = channels_out // groups, x.shape[1] // groups
        taps, rows = windows.taps, n * out[0] * out[1]
        # weight is [O, C/g, taps]; the gradient of the input sums over O.
        o, c = weight.shape[1] * taps, taps
        weight_out, weight_in = (c, o) if transposed else (o, c)
        x_steps = image_steps("x", x)
        return dict(
            x_ptr=x, weight_ptr=weight, bias_ptr=bias, y_ptr=y, M=rows, CHANNELS_OUT=channels_out,
            CHANNELS_IN=channels_in, H=x.shape[2], W=x.shape[3], OUT_H=out[0], OUT_W=out[1],
            **x_steps, **image_steps("y", y), weight_out=weight_out, weight_in=weight_in,
            weight_group=weight.size // groups, TRANSPOSED=transposed,
            TAPS_FIRST=x_steps["x_c"] != 1 or channels_in == 1,
            **self._shared(windows, x, y, weight),
            **self._tiles(rows, channels_out, channels_in * taps, x.dtype),
        )  # fmt: skip

    def _run(self, groups: int, arguments: Mapping[str, Any]) -> None:
        grid = (
            triton.cdiv(arguments["M"], arguments["BLOCK_M"]),
            triton.cdiv(arguments["CHANNELS_OUT"], arguments["BLOCK_N"]),
            groups,
        )
        self.launcher(grid, _options(arguments), **arguments)

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        arguments = {**self.example(dtype, shape), "UPCAST": False}
        return [(arguments, _options(arguments))]


class Conv2dForward(_GatherKernel):
    """y from x, weight and bias. Takes the arguments of ``reference.conv2d_forward``."""

    def __call__(
        self, x: Array, weight: Array, bias: Array | None, y: Array, *, windows: Windows,
        groups: int,
    ) -> None:  # fmt: skip
        self._run(groups, self._arguments(x, weight, bias, y, windows, groups, False))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, weight, bias, y, windows = _example(dtype, shape)
        return self._arguments(x, weight, bias, y, windows, 1, False)


class Conv2dBackwardInput(_GatherKernel):
    """The gradient of x. Takes the arguments of ``reference.conv2d_backward_input``."""

    def __call__(
        self, dy: Array, weight: Array, dx: Array, *, windows: Windows, groups: int
    ) -> None:
        self._run(groups, self._arguments(dy, weight, None, dx, windows, groups, True))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, weight, _, y, windows = _example(dtype, shape)
        return self._arguments(y, weight, None, x, windows, 1, True)


class Conv2dBackwardWeight(_ConvKernel):
    """The gradient of weight. Takes the arguments of ``reference.conv2d_backward_weight``."""

    launcher = Launcher(conv2d_weight_kernel)

    def _arguments(
        self, dy: Array, x: Array, dweight: Array, windows: Windows, groups: int, processors: int
    ) -> tuple[tuple[int, ...], dict[str, Any]]:
        """The grid, and the arguments but for where the parts' sums go."""
        n, channels_out, *out = dy.shape
        channels_out, channels_in = channels_out // groups, x.shape[1] // groups
        rows, terms = n * out[0] * out[1], channels_in * windows.taps
        tiles = self._tiles(channels_out, terms, rows, x.dtype)
        tiles_k = triton.cdiv(terms, tiles["BLOCK_N"])
        count = triton.cdiv(channels_out, tiles["BLOCK_M"]) * tiles_k
        parts = max(1, min(2 * processors // (count * groups), rows // PART_ROWS))
        part_rows = triton.cdiv(triton.cdiv(rows, parts), tiles["BLOCK_K"]) * tiles["BLOCK_K"]
        return (count, triton.cdiv(rows, part_rows), groups), dict(
            dy_ptr=dy, x_ptr=x, M=rows, CHANNELS_OUT=channels_out, CHANNELS_IN=channels_in,
            H=x.shape[2], W=x.shape[3], OUT_H=out[0], OUT_W=out[1],
            **image_steps("x", x), **image_steps("dy", dy),
            part_rows=part_rows, part_size=dweight.size, tiles_k=tiles_k,
            **self._shared(windows, x, dy), **tiles,
        )  # fmt: skip

    def __call__(
        self, dy: Array, x: Array, dweight: Array, *, windows: Windows, groups: int
    ) -> None:
        processors = gpu.processors(x.data.device_id) if gpu.is_cupy(x) else ON_NO_GPU
        grid, arguments = self._arguments(dy, x, dweight, windows, groups, processors)
        parts = grid[1]
        partial = dweight
        if parts > 1:
            wide = accumulation_dtype(x.dtype)
            partial = namespace(x).empty((parts, *dweight.shape), wide)
        self.launcher(grid, _options(arguments), partial_ptr=partial, **arguments)
        if parts > 1:
            dweight[...] = partial.sum(0)

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        x, weight, _, y, windows = _example(dtype, shape)
        _, arguments = self._arguments(y, x, weight, windows, 1, ON_NO_GPU)
        arguments |= dict(partial_ptr=weight, UPCAST=False)
        return [(arguments, _options(arguments))]


def _precision(dtype: np.dtype) -> str:
    return input_precision() if dtype == np.float32 else "ieee"


def _options(arguments: Mapping[str, Any]) -> Options:
    elements = arguments["BLOCK_M"] * arguments["BLOCK_N"]
    # Gathering needs many addresses: no ceiling below what a thread may have.
    return Options(warps=max(1, min(4, elements // 256)), registers=255)


def _example(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """x of ``shape``, 32 filters of 3×3, and all that goes with them."""
    n, c, h, w = shape
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    zeros = [np.zeros(s, dtype) for s in (shape, (32, c, 3, 3), (32,), (n, 32, h, w))]
    return *zeros, windows
