"""The Triton kernel that adds a batch's loss and right answers up on the device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ..arrays import Array
from ..common import KernelObject, accumulator, power_of_two
from ..launch import Launcher

TILE = 4096
BEYOND = tl.constexpr(2**31 - 1)  # the class of none


@triton.jit
def add_metrics_kernel(
    logits_ptr, target_ptr, loss_ptr, total_ptr, right_ptr, N, C, ACC: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = row < N
    best = tl.full([BLOCK_N], float("-inf"), ACC)
    winner = tl.full([BLOCK_N], BEYOND, tl.int32)
    unknown = tl.full([BLOCK_N], BEYOND, tl.int32)  # the first that is NaN, which is the largest
    for start in range(0, C, BLOCK_C):
        c = (start + tl.arange(0, BLOCK_C))[None, :]
        mask = inside[:, None] & (c < C)
        at = row.to(tl.int64)[:, None] * C + c
        z = tl.load(logits_ptr + at, mask=mask, other=float("-inf")).to(ACC)
        nan = mask & (z != z)
        unknown = tl.minimum(unknown, tl.min(tl.where(nan, c, BEYOND), 1))
        z = tl.where(nan, float("-inf"), z)
        most = tl.max(z, 1)
        first = tl.min(tl.where(mask & (z == most[:, None]), c, BEYOND), 1)
        better = (most > best) | (winner == BEYOND)
        winner = tl.where(better, first, winner)
        best = tl.where(better, most, best)
    winner = tl.where(unknown < BEYOND, unknown, winner)
    target = tl.load(target_ptr + row, mask=inside, other=-1)
    right = tl.sum((inside & (winner == target)).to(tl.int32), 0)
    tl.atomic_add(right_ptr, right.to(tl.int64))  # whole numbers: the same in any order
    if tl.program_id(0) == 0:
        tl.store(total_ptr, tl.load(total_ptr) + tl.load(loss_ptr).to(tl.float64) * N)


class AddMetrics(KernelObject):
    """Sums of losses and of right answers. Arguments: ``reference.add_metrics``.

    Args:
        tile: elements of a tile, a power of two.
    """

    launcher = Launcher(add_metrics_kernel)
    example_shape = (64, 10)

    def __init__(self, tile: int = TILE) -> None:
        self.tile = tile

    def _arguments(
        self, logits: Array, target: Array, loss: Array, total: Array, right: Array
    ) -> dict[str, Any]:
        n, c = logits.shape
        block_c = power_of_two(c, self.tile)
        return dict(
            logits_ptr=logits, target_ptr=target, loss_ptr=loss, total_ptr=total, right_ptr=right,
            N=n, C=c,
            BLOCK_N=power_of_two(n, self.tile // block_c), BLOCK_C=block_c,
            **accumulator(logits.dtype),
        )  # fmt: skip

    def __call__(
        self, logits: Array, target: Array, loss: Array, total: Array, right: Array
    ) -> None:
        arguments = self._arguments(logits, target, loss, total, right)
        self.launcher((triton.cdiv(arguments["N"], arguments["BLOCK_N"]),), **arguments)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        target = np.zeros(shape[0], np.int64)
        loss, total, right = np.zeros((), dtype), np.zeros(1), np.zeros(1, np.int64)
        return self._arguments(np.zeros(shape, dtype), target, loss, total, right)
