"""Triton kernels of the counter-based random generator, and of dropout on it.

Philox-4x32-10 turns a counter and a key into four random words with no state,
so any program makes its own, and dropout's backward makes its mask again
instead of reading it. Element i takes word i % 4 of counter offset + i // 4:
the tile sizes do not show in the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ..arrays import Array
from ..common import KernelObject, accumulator, scalar, value_of
from ..gpu import is_cupy
from ..launch import Launcher

BLOCKS = 256  # Philox blocks, of four words, a program


@triton.jit
def philox_words(seed, offset, stream, BLOCKS: tl.constexpr):
    """This program's 4·BLOCKS words, and the elements they belong to."""
    first = tl.program_id(0).to(tl.int64) * BLOCKS
    counter = value_of(offset) + first + tl.arange(0, BLOCKS)
    low = counter.to(tl.uint32)
    high = (counter >> 32).to(tl.uint32)
    zero = low * 0
    a, b, c, d = tl.philox(value_of(seed), low, high, zero + stream, zero)
    # join pairs along a new last axis: [[a, b], [c, d]] for each block, in order.
    words = tl.reshape(tl.join(tl.join(a, c), tl.join(b, d)), [4 * BLOCKS])
    return words, first * 4 + tl.arange(0, 4 * BLOCKS)


@triton.jit
def philox_kernel(out_ptr, n, seed, offset, stream, BLOCKS: tl.constexpr):
    words, i = philox_words(seed, offset, stream, BLOCKS)
    tl.store(out_ptr + i, words, mask=i < n)


@triton.jit
def dropout_kernel(
    x_ptr, y_ptr, n, seed, offset, p, scale, ACC: tl.constexpr, BLOCKS: tl.constexpr
):
    words, i = philox_words(seed, offset, 0, BLOCKS)
    # 24 bits: each is a float32 exactly, and none rounds up to 1.
    uniform = (words >> 8).to(tl.float32) * 5.9604644775390625e-08
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(ACC)
    y = tl.where(uniform >= p, x * scale, 0.0)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=i < n)


def counter(number: Any) -> Any:
    """A number as an argument; in a recorded step it is an array, read at each replay."""
    return number if is_cupy(number) else np.int64(number)


class _RandomKernel(KernelObject):
    """Args: blocks: Philox blocks, of four words, a program; a power of two."""

    def __init__(self, blocks: int = BLOCKS) -> None:
        self.blocks = blocks

    def _grid(self, n: int) -> tuple[int]:
        return (triton.cdiv(n, 4 * self.blocks),)


class Philox(_RandomKernel):
    """Random words. Arguments: ``reference.philox``."""

    launcher = Launcher(philox_kernel)

    def _arguments(self, out, seed, offset, stream):
        return dict(
            out_ptr=out,
            n=out.size,
            seed=counter(seed),
            offset=counter(offset),
            stream=stream,
            BLOCKS=self.blocks,
        )

    def __call__(self, out: Array, *, seed: int, offset: int, stream: int) -> None:
        self.launcher(self._grid(out.size), **self._arguments(out, seed, offset, stream))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        return self._arguments(np.zeros(shape, np.uint32), 2**40, 2**40, 0)


class Dropout(_RandomKernel):
    """Dropout, forward and backward. Arguments: ``reference.dropout``; contiguous arrays."""

    launcher = Launcher(dropout_kernel)

    def _arguments(self, x, y, p, seed, offset):
        return dict(
            x_ptr=x, y_ptr=y, n=x.size, seed=counter(seed), offset=counter(offset),
            p=np.float32(p), scale=scalar(0.0 if p == 1 else 1 / (1 - p), x.dtype),
            BLOCKS=self.blocks, **accumulator(x.dtype),
        )  # fmt: skip

    def __call__(self, x: Array, y: Array, *, p: float, seed: int, offset: int) -> None:
        self.launcher(self._grid(x.size), **self._arguments(x, y, p, seed, offset))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        x = np.zeros(shape, dtype)
        return self._arguments(x, x, 0.5, 2**40, 2**40)
