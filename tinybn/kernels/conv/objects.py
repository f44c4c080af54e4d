"""The kernel objects of convolution: their tiles, and what a launch is passed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import triton

from .. import gpu
from ..arrays import Array, accumulation_dtype, namespace
from ..common import MOST_ALONG_AXIS, KernelObject, accumulator, power_of_two, tile_for_axis
from ..launch import Launcher, Options
from ..layout import image_steps, needs_wide_offsets, steps
from ..precision import precision_of
from ..windows import Windows, by_axis
from ..workspace import NO_PARTS, room_for_parts
from .gather import conv2d_gather_kernel
from .weight import conv2d_weight_kernel

SMALLEST = 16  # side of a tile that tensor cores multiply
PART_ROWS = 256  # pixels that are worth a program of their own
WARPS = 12  # of a weight's gradient, on each multiprocessor: they wait for memory in turn


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

    def _tiles(
        self, rows: int, columns: int, terms: int, dtype: np.dtype, most: tuple[int, int, int]
    ) -> dict[str, int]:
        """At most ``most``, no larger than the product; float64 takes twice the room."""
        wide = accumulation_dtype(dtype).itemsize // 4
        return dict(
            BLOCK_M=self.block_m or max(SMALLEST, power_of_two(rows, most[0])),
            BLOCK_N=self.block_n or max(SMALLEST, tile_for_axis(columns, most[1] // wide)),
            BLOCK_K=self.block_k or max(SMALLEST, power_of_two(terms, most[2])),
        )

    def _shared(self, windows: Windows, *arrays: Array) -> dict[str, Any]:
        """The arguments that all kernels take alike."""
        dtype = arrays[0].dtype
        return dict(
            KW=windows.kernel[1], TAPS=windows.taps,
            **by_axis(BEFORE=windows.before, STRIDE=windows.stride, DILATION=windows.dilation),
            WIDE=needs_wide_offsets(*arrays),
            # The interpreter cannot multiply bfloat16; float64 has one precision.
            UPCAST=not gpu.is_cupy(arrays[0]), PRECISION=precision_of(dtype), **accumulator(dtype),
        )  # fmt: skip


class _GatherKernel(_ConvKernel):
    launcher = Launcher(conv2d_gather_kernel)

    def _arguments(
        self, x: Array, weight: Array, bias: Array | None, y: Array, windows: Windows, groups: int,
        transposed: bool, addend: Array | None = None, activation: str | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        n, channels_out, *out = y.shape
        channels_out, channels_in = channels_out // groups, x.shape[1] // groups
        taps, rows = windows.taps, n * out[0] * out[1]
        most = (64, 64, 128 // x.dtype.itemsize)
        tiles = self._tiles(rows, channels_out, channels_in * taps, x.dtype, most)
        order = _order(x, channels_in, tiles["BLOCK_K"])
        # [groups, O/groups, C/groups, taps]; the gradient of the input sums over O.
        filters = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], taps)
        if transposed:
            filters = filters.swapaxes(1, 2)
        if order["ONE_TAP"]:  # whose terms are read side by side
            filters = namespace(x).ascontiguousarray(filters.transpose(0, 3, 1, 2))
            filters = filters.transpose(0, 2, 3, 1)
        group, of_out, of_in, of_tap = steps(filters)
        return dict(
            x_ptr=x, weight_ptr=filters, bias_ptr=bias, addend_ptr=addend, y_ptr=y, M=rows,
            CHANNELS_OUT=channels_out, CHANNELS_IN=channels_in, H=x.shape[2], W=x.shape[3],
            OUT_H=out[0], OUT_W=out[1], **image_steps("x", x), **image_steps("y", y),
            weight_out=of_out, weight_in=of_in, weight_tap=of_tap, weight_group=group,
            TRANSPOSED=transposed, ACTIVATION=activation,
            **self._shared(windows, x, y, weight), **order, **tiles,
        )  # fmt: skip

    def _run(self, count: int, groups: int, arguments: dict[str, Any]) -> None:
        """Launch ``count`` of the groups."""
        if count < groups:  # whose own size says nothing of how far apart they lie
            arguments["WIDE"] = True
        grid = (
            triton.cdiv(arguments["M"], arguments["BLOCK_M"]),
            triton.cdiv(arguments["CHANNELS_OUT"], arguments["BLOCK_N"]),
            count,
        )
        self.launcher(grid, _options(arguments), **arguments)

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        arguments = {**self.example(dtype, shape), "UPCAST": False}
        return [(arguments, _options(arguments))]


class Conv2dForward(_GatherKernel):
    """y = activation(weight ⋆ x + bias + addend). Arguments: ``reference.conv2d_forward``.

    addend lies as y.
    """

    def __call__(
        self, x: Array, weight: Array, bias: Array | None, y: Array, *, windows: Windows,
        groups: int, addend: Array | None = None, activation: str | None = None,
    ) -> None:  # fmt: skip
        arrays = (x, 1), (weight, 0), (bias, 0), (y, 1), (addend, 1)
        for count, (of_x, filters, shift, of_y, added) in _launches_of(groups, *arrays):
            arguments = self._arguments(
                of_x, filters, shift, of_y, windows, count, False, added, activation
            )
            self._run(count, groups, arguments)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, weight, bias, y, windows = _example(dtype, shape)
        return self._arguments(x, weight, bias, y, windows, 1, False, y, "gelu")


class Conv2dBackwardInput(_GatherKernel):
    """The gradient of x. Takes the arguments of ``reference.conv2d_backward_input``."""

    def __call__(
        self, dy: Array, weight: Array, dx: Array, *, windows: Windows, groups: int
    ) -> None:
        arrays = (dy, 1), (weight, 0), (dx, 1)
        for count, (of_dy, filters, of_dx) in _launches_of(groups, *arrays):
            arguments = self._arguments(of_dy, filters, None, of_dx, windows, count, True)
            self._run(count, groups, arguments)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        x, weight, _, y, windows = _example(dtype, shape)
        return self._arguments(y, weight, None, x, windows, 1, True)


class Conv2dBackwardWeight(_ConvKernel):
    """The gradient of weight. Takes the arguments of ``reference.conv2d_backward_weight``."""

    launcher = Launcher(conv2d_weight_kernel)

    def _arguments(
        self, dy: Array, x: Array, dweight: Array, windows: Windows, groups: int
    ) -> tuple[tuple[int, int], dict[str, Any]]:
        """The grid, and the arguments but for where the parts' sums go."""
        n, channels_out, *out = dy.shape
        channels_out, channels_in = channels_out // groups, x.shape[1] // groups
        rows, terms = n * out[0] * out[1], channels_in * windows.taps
        most = (64, 32, 32 if terms > SMALLEST else 128)
        precision = precision_of(x.dtype)
        if precision == "tf32x3":
            most = (32, 32, 32 if terms > SMALLEST else 64)  # larger ones were slower
        tiles = self._tiles(channels_out, terms, rows, x.dtype, most)
        tiles_k = triton.cdiv(terms, tiles["BLOCK_N"])
        count = triton.cdiv(channels_out, tiles["BLOCK_M"]) * tiles_k
        warps = _weight_options({**tiles, "PRECISION": precision}).warps
        programs = WARPS // warps * gpu.processors_of(x)
        parts = max(1, min(programs // (count * groups), rows // PART_ROWS))
        part_rows = triton.cdiv(triton.cdiv(rows, parts), tiles["BLOCK_K"]) * tiles["BLOCK_K"]
        parts = triton.cdiv(rows, part_rows)
        return (count * parts, groups), dict(
            dy_ptr=dy, x_ptr=x, dweight_ptr=dweight, M=rows, CHANNELS_OUT=channels_out,
            CHANNELS_IN=channels_in, H=x.shape[2], W=x.shape[3], OUT_H=out[0], OUT_W=out[1],
            **image_steps("x", x), **image_steps("dy", dy), parts=parts, part_rows=part_rows,
            tiles_k=tiles_k, **self._shared(windows, x, dy, dweight),
            **_order(x, channels_in, tiles["BLOCK_N"]), **tiles,
        )  # fmt: skip

    def __call__(
        self, dy: Array, x: Array, dweight: Array, *, windows: Windows, groups: int
    ) -> None:
        arrays = (dy, 1), (x, 1), (dweight, 0)
        for count, (of_dy, of_x, filters) in _launches_of(groups, *arrays):
            grid, arguments = self._arguments(of_dy, of_x, filters, windows, count)
            if arguments["WIDE"] or count < groups:
                # Pixels times parts pass 32 bits where offsets do.
                arguments |= dict(WIDE=True, part_rows=np.int64(arguments["part_rows"]))
            room: Mapping[str, Any] = NO_PARTS
            if arguments["parts"] > 1:
                results = arguments["BLOCK_M"] * arguments["BLOCK_N"]
                room = room_for_parts(x, grid[0] * count, results)
            self.launcher(grid, _weight_options(arguments), **arguments, **room)

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        x, weight, _, y, windows = _example(dtype, shape)
        _, arguments = self._arguments(y, x, weight, windows, 1)
        arguments |= dict(UPCAST=False, **room_for_parts(x, 1, 1))
        return [(arguments, _weight_options(arguments))]


def _launches_of(groups: int, *arrays: tuple[Array | None, int]) -> Iterator[tuple[int, list[Any]]]:
    """How many groups each launch has, and its parts of the arrays along the axes given.

    A grid takes MOST_ALONG_AXIS of them, so that there is one launch nearly always.
    """
    if groups <= MOST_ALONG_AXIS:
        yield groups, [array for array, _ in arrays]
        return
    for first in range(0, groups, MOST_ALONG_AXIS):
        end = min(first + MOST_ALONG_AXIS, groups)
        parts = []
        for array, axis in arrays:
            if array is not None:
                each = array.shape[axis] // groups
                channels = slice(first * each, end * each)
                array = array[channels] if axis == 0 else array[:, channels]
            parts.append(array)
        yield end - first, parts


def _order(x: Array, channels: int, block: int) -> dict[str, bool]:
    """In which order x is read: tap by tap where tiles allow, else by what lies side by side."""
    one_tap = channels % block == 0
    nchw = image_steps("x", x)["x_c"] != 1
    return dict(
        ONE_TAP=one_tap, TAPS_FIRST=not one_tap and (nchw or channels == 1), NCHW=nchw
    )  # fmt: skip


def _options(arguments: Mapping[str, Any], warps: int = 4) -> Options:
    """As many of the warps as the tile has work for.

    With 168 registers three programs of four warps run on a multiprocessor; some need more.
    """
    work = arguments["BLOCK_M"] * arguments["BLOCK_N"] // 128
    if arguments["PRECISION"] == "tf32x3" and work <= 8:
        warps = 2
    return Options(warps=max(1, min(warps, work)), registers=168, lifted=255)


def _weight_options(arguments: Mapping[str, Any]) -> Options:
    """Larger fragments a warp where each is split in three parts: fewer are split twice."""
    return _options(arguments, 2 if arguments["PRECISION"] == "tf32x3" else 4)


def _example(dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Any, ...]:
    """x of ``shape``, 32 filters of 3×3, and all that goes with them."""
    n, c, h, w = shape
    windows = Windows((3, 3), (1, 1), (1, 1), (1, 1), (1, 1))
    zeros = [np.zeros(s, dtype) for s in (shape, (32, c, 3, 3), (32,), (n, 32, h, w))]
    return *zeros, windows
