"""Triton kernels that the cases launch: what of tinybn's device functions no op shows alone."""

from __future__ import annotations

import triton
import triton.language as tl

from tinybn.kernels.arrays import namespace
from tinybn.kernels.batch_norm.forward import merged_statistics
from tinybn.kernels.launch import Launcher


@triton.jit
def merge_kernel(slots_ptr, mean_ptr, var_ptr, parts, part_rows, rows, CHUNK: tl.constexpr):
    mean, variance = merged_statistics(
        slots_ptr, 0, parts, parts, 0, part_rows, rows, False, tl.float32, 1, CHUNK
    )
    tl.store(mean_ptr + tl.arange(0, 1), mean)
    tl.store(var_ptr + tl.arange(0, 1), variance)


merge = Launcher(merge_kernel)


def merge_parts(slots, rows, part_rows):
    """Mean and variance of one channel from those of its parts, ``slots`` [2, parts]."""
    xp = namespace(slots)
    mean, var = xp.empty(1, xp.float32), xp.empty(1, xp.float32)
    merge(
        (1,), slots_ptr=slots, mean_ptr=mean, var_ptr=var, parts=slots.shape[1],
        part_rows=part_rows, rows=rows, CHUNK=2,
    )  # fmt: skip
    return mean, var


@triton.jit
def copy_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y_ptr + i, tl.load(x_ptr + i, mask=i < n, other=0), mask=i < n)


copy = Launcher(copy_kernel)


@triton.jit
def reduce_kernel(x_ptr, sum_ptr, max_ptr, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    tl.store(sum_ptr, tl.sum(x, 0))
    x = tl.load(x_ptr + i, mask=i < n, other=float("-inf")).to(tl.float32)
    tl.store(max_ptr, tl.max(x, 0))


reduce = Launcher(reduce_kernel)


def sum_and_max(x, block):
    """Both in float32, by one program of ``block`` lanes."""
    xp = namespace(x)
    total, largest = xp.empty(1, xp.float32), xp.empty(1, xp.float32)
    reduce((1,), x_ptr=x, sum_ptr=total, max_ptr=largest, n=x.size, BLOCK=block)
    return total, largest
