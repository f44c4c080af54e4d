"""The kernel objects of matrix products: their tiles, parts, and what a launch is passed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import triton

from .. import gpu
from ..arrays import Array, accumulation_dtype
from ..common import KernelObject, accumulator, power_of_two
from ..launch import Launcher, Options
from ..layout import reach_wide, steps
from ..precision import precision_of
from ..workspace import NO_PARTS, room_for_parts
from .tiles import linear_backward_kernel, matmul_kernel

LARGE = 2**19  # results: tiles enough without small ones
SMALLEST = 16  # side of a tile that tensor cores multiply
FEWEST_TERMS = 64  # that are worth a part of their own


@dataclass(frozen=True)
class Split:
    """How a product of ``rows`` × ``columns`` results is shared out.

    Attributes:
        tiles: of the result.
        parts: programs a tile.
        part_k: terms a part, a multiple of the tile's.
    """

    tiles: int
    parts: int
    part_k: int

    @property
    def programs(self) -> int:
        return self.tiles * self.parts

    @property
    def slots(self) -> int:
        """Programs that leave their sums to be added up by another."""
        return self.programs if self.parts > 1 else 0


class _ProductKernel(KernelObject):
    """Tile sizes shared by the kernels.

    Args:
        block_m, block_n, block_k: powers of two of at least 16 that fix the tiles.
        parts: fixes how many programs share a tile.
        warps: fixes the warps of a program.
    """

    example_shape = (128, 64)
    bytes_k: ClassVar[int]  # of a row of a small product's tile along the sum

    def __init__(
        self, block_m: int | None = None, block_n: int | None = None, block_k: int | None = None,
        parts: int | None = None, warps: int | None = None,
    ) -> None:  # fmt: skip
        self.block_m, self.block_n, self.block_k = block_m, block_n, block_k
        self.parts, self.warps = parts, warps

    def _tiles(self, rows: int, columns: int, terms: int, dtype: np.dtype) -> dict[str, int]:
        """Large tiles read less; small ones are more programs, which small products need.

        Measured on an H200 by sizes of a small network; a product of float32's parts keeps
        three times the operands of one, and has more to do for each that it loads.
        """
        wide = accumulation_dtype(dtype).itemsize // 4
        large = rows * columns >= LARGE
        side_m, side_n = (64, 64) if large else self._small_sides(columns, precision_of(dtype))
        bytes_k = 128 if large else self.bytes_k
        return dict(
            BLOCK_M=self.block_m or max(SMALLEST, power_of_two(rows, side_m)),
            BLOCK_N=self.block_n or max(SMALLEST, power_of_two(columns, side_n // wide)),
            BLOCK_K=self.block_k or max(SMALLEST, power_of_two(terms, bytes_k // dtype.itemsize)),
        )

    def _small_sides(self, columns: int, precision: str) -> tuple[int, int]:
        return 64 if columns > 16 and precision != "tf32" else 32, 32

    def _split(
        self, rows: int, columns: int, terms: int, tiles: Mapping[str, int], processors: int
    ) -> Split:
        count = triton.cdiv(rows, tiles["BLOCK_M"]) * triton.cdiv(columns, tiles["BLOCK_N"])
        most = max(1, terms // FEWEST_TERMS)
        parts = self.parts or max(1, min(2 * processors // count, most))
        block = tiles["BLOCK_K"]
        part_k = triton.cdiv(triton.cdiv(terms, parts), block) * block
        return Split(count, triton.cdiv(terms, part_k), part_k)

    def _run(self, splits: Sequence[Split], arguments: dict[str, Any]) -> None:
        """Launch, with room for the parts' sums and the counts of those that have arrived."""
        programs = sum(split.programs for split in splits)
        slots = sum(split.slots for split in splits)
        room: Mapping[str, Any] = NO_PARTS
        if slots:
            x = arguments["a_ptr"] if "a_ptr" in arguments else arguments["dy_ptr"]
            room = room_for_parts(x, slots, arguments["BLOCK_M"] * arguments["BLOCK_N"])
        self.launcher((programs,), self._options(arguments), **arguments, **room)

    def _launches(
        self, x: Array, arguments: Mapping[str, Any]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        """The launch on a GPU with these arguments, with parts."""
        complete = {**arguments, "UPCAST": False, **room_for_parts(x, 1, 1)}
        return [(complete, self._options(complete))]

    def _options(self, arguments: Mapping[str, Any]) -> Options:
        elements = arguments["BLOCK_M"] * arguments["BLOCK_N"]
        return Options(warps=self.warps or max(1, min(4, elements // 256)), registers=255)

    def _shared(self, x: Array, wide: bool) -> dict[str, Any]:
        """The arguments that both kernels take alike."""
        return dict(
            WIDE=wide, UPCAST=not gpu.is_cupy(x),
            PRECISION=precision_of(x.dtype), **accumulator(x.dtype),
        )  # fmt: skip


class Matmul(_ProductKernel):
    """y = activation(a·b + bias + addend). Arguments: ``reference.matmul``.

    y and addend are contiguous.
    """

    launcher = Launcher(matmul_kernel)
    bytes_k = 256

    def _arguments(
        self, a: Array, b: Array, bias: Array | None, y: Array, addend: Array | None,
        activation: str | None,
    ) -> tuple[Split, dict[str, Any]]:  # fmt: skip
        (m, k), n = a.shape, b.shape[1]
        tiles = self._tiles(m, n, k, a.dtype)
        split = self._split(m, n, k, tiles, gpu.processors_of(a))
        (a_m, a_k), (b_k, b_n) = steps(a), steps(b)
        wide = reach_wide(m * n, m * abs(a_m) + k * abs(a_k), k * abs(b_k) + n * abs(b_n))
        return split, dict(
            a_ptr=a, b_ptr=b, bias_ptr=bias, addend_ptr=addend, y_ptr=y, M=m, N=n, K=k,
            parts=split.parts, part_k=split.part_k, a_m=a_m, a_k=a_k, b_k=b_k, b_n=b_n,
            ACTIVATION=activation, **self._shared(a, wide), **tiles,
        )  # fmt: skip

    def __call__(
        self, a: Array, b: Array, bias: Array | None, y: Array, addend: Array | None = None,
        activation: str | None = None,
    ) -> None:  # fmt: skip
        split, arguments = self._arguments(a, b, bias, y, addend, activation)
        self._run([split], arguments)

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        m, n = shape
        a, b, bias, y = (np.zeros(s, dtype) for s in ((m, 512), (n, 512), (n,), shape))
        return self._launches(a, self._arguments(a, b.T, bias, y, y, "gelu")[1])


class LinearBackward(_ProductKernel):
    """The gradients of x·weightᵀ + bias. Arguments: ``reference.linear_backward``.

    dy and weight are contiguous; an output that is None is not made.
    """

    launcher = Launcher(linear_backward_kernel)
    bytes_k = 128

    def _small_sides(self, columns: int, precision: str) -> tuple[int, int]:
        # Measured too; dyᵀ lies across its memory, and is split once for all of a tile's columns.
        return (32, 64) if precision == "tf32x3" else super()._small_sides(columns, precision)

    def _arguments(
        self, dy: Array, x: Array | None, weight: Array | None, dx: Array | None,
        dweight: Array | None, dbias: Array | None,
    ) -> tuple[list[Split], dict[str, Any]]:  # fmt: skip
        """How each gradient is shared out, and the arguments but for where parts' sums go."""
        rows, out = dy.shape
        inputs = 1
        if dx is not None:
            inputs = dx.shape[1]
        if dweight is not None:
            inputs = dweight.shape[1]
        processors = gpu.processors_of(dy)
        tiles = self._tiles(max(rows, out), inputs, min(rows, out), dy.dtype)
        none = Split(0, 1, 1)
        of_x = of_weight = of_bias = none
        if dx is not None:
            of_x = self._split(rows, inputs, out, tiles, processors)
        if dweight is not None:
            of_weight = self._split(out, inputs, rows, tiles, processors)
        if dbias is not None:
            rows_of = {**tiles, "BLOCK_M": 1, "BLOCK_K": tiles["BLOCK_M"]}
            of_bias = self._split(1, out, rows, rows_of, processors)
        x_n, x_i = (1, 1) if x is None else steps(x)
        wide = reach_wide(
            rows * out, rows * inputs, out * inputs, rows * abs(x_n) + inputs * abs(x_i)
        )
        return [of_x, of_weight, of_bias], dict(
            dy_ptr=dy, x_ptr=x, weight_ptr=weight, dx_ptr=dx, dweight_ptr=dweight,
            dbias_ptr=dbias, ROWS=rows, OUT=out, IN=inputs, x_programs=of_x.programs,
            x_parts=of_x.parts, x_part_k=of_x.part_k, weight_programs=of_weight.programs,
            weight_parts=of_weight.parts, weight_part_k=of_weight.part_k,
            weight_slot=of_x.slots, bias_parts=of_bias.parts, bias_part_k=of_bias.part_k,
            bias_slot=of_x.slots + of_weight.slots, x_n=x_n, x_i=x_i,
            **self._shared(dy, wide), **tiles,
        )  # fmt: skip

    def __call__(
        self, dy: Array, x: Array | None, weight: Array | None, dx: Array | None,
        dweight: Array | None, dbias: Array | None,
    ) -> None:  # fmt: skip
        self._run(*self._arguments(dy, x, weight, dx, dweight, dbias))

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        rows, out = shape
        dy, x, weight, bias = (np.zeros(s, dtype) for s in (shape, (rows, 512), (out, 512), (out,)))
        return self._launches(dy, self._arguments(dy, x, weight, x, weight, bias)[1])
