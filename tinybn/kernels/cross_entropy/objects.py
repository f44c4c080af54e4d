"""Triton kernels of the fused softmax and cross-entropy.

A row of logits is read in blocks of BLOCK_C classes, twice: for its maximum,
then for the sum of exp(z − max). Blocks are added up side by side and reduced
once, after the loop. The probabilities are never written: the
backward kernel makes them again from the logits and two numbers a row. The
maximum and the logarithm of the sum stay apart, since adding the logarithm to
a maximum of 1e10 would lose it. The last program to finish divides the sum of the rows' losses
by that of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ..arrays import Array, accumulation_dtype
from ..common import KernelObject, accumulator, power_of_two, scalar
from ..launch import Launcher
from ..workspace import counters

TILE = 2048  # logits a program holds at once


@triton.jit
def load_logits(ptr, rows, classes, N, C, fill, ACC: tl.constexpr):
    """A tile of logits, ``fill`` outside, and the mask of what is inside."""
    mask = (rows < N)[:, None] & (classes < C)[None, :]
    at = rows.to(tl.int64)[:, None] * C + classes[None, :]
    return tl.load(ptr + at, mask=mask, other=fill).to(ACC), mask, at


@triton.jit
def load_class_weights(weight_ptr, classes, C, ACC: tl.constexpr):
    """Weights of a block of classes, 1 without class weights, 0 outside."""
    if weight_ptr is not None:
        return tl.load(weight_ptr + classes, mask=classes < C, other=0.0).to(ACC)
    else:
        return (classes < C).to(ACC)


@triton.jit
def load_target(target_ptr, weight_ptr, rows, N, C, ignore_index, ACC: tl.constexpr):
    """Each row's class (0 where ignored or out of range), its weight, and two flags."""
    inside = rows < N
    target = tl.load(target_ptr + rows, mask=inside, other=0)
    kept = inside & (target != ignore_index)
    valid = kept & (target >= 0) & (target < C)
    picked = tl.where(valid, target, 0)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + picked, mask=valid, other=0.0).to(ACC)
    else:
        weight = valid.to(ACC)
    return picked, weight, kept, valid


@triton.jit
def cross_entropy_forward_kernel(
    logits_ptr, target_ptr, weight_ptr, loss_ptr, row_weight_ptr, row_max_ptr, log_sum_ptr,
    mean_ptr, divisor_ptr, arrived_ptr, invalid_ptr, N, C, ignore_index, smoothing,
    SMOOTH: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
    BLOCK_MEAN: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < N
    highest_tile = tl.full([BLOCK_N, BLOCK_C], float("-inf"), ACC)
    for start in range(0, C, BLOCK_C):
        classes = start + tl.arange(0, BLOCK_C)
        z, _, _ = load_logits(logits_ptr, rows, classes, N, C, float("-inf"), ACC)
        highest_tile = tl.maximum(highest_tile, z)
    highest = tl.max(highest_tile, 1)
    highest = tl.where(highest == float("-inf"), 0.0, highest)  # −∞ − (−∞) is no distance

    total_tile = tl.zeros([BLOCK_N, BLOCK_C], ACC)
    weighted_tile = tl.zeros([BLOCK_N, BLOCK_C], ACC)  # w·(z − max)
    weights_tile = tl.zeros([BLOCK_C], ACC)
    for start in range(0, C, BLOCK_C):
        classes = start + tl.arange(0, BLOCK_C)
        z, mask, _ = load_logits(logits_ptr, rows, classes, N, C, float("-inf"), ACC)
        d = z - highest[:, None]
        total_tile += tl.exp(d)
        if SMOOTH:
            w = load_class_weights(weight_ptr, classes, C, ACC)
            weighted_tile += tl.where(mask, d * w[None, :], 0.0)
            weights_tile += w
    log_total = tl.log(tl.sum(total_tile, 1))

    picked, weight, kept, valid = load_target(target_ptr, weight_ptr, rows, N, C, ignore_index, ACC)
    z_target = tl.load(logits_ptr + rows.to(tl.int64) * C + picked, mask=valid, other=0.0).to(ACC)
    loss = (1.0 - smoothing) * weight * (log_total - (z_target - highest))
    if SMOOTH:
        weighted = tl.sum(weighted_tile, 1)
        loss += smoothing / C * (log_total * tl.sum(weights_tile, 0) - weighted)
    # A target that is no class has no loss; where nobody looks at invalid, NaN shows it.
    loss = tl.where(valid, loss, tl.where(kept, float("nan"), 0.0))
    tl.store(loss_ptr + rows, loss, mask=inside)
    tl.store(row_weight_ptr + rows, tl.where(valid, weight, 0.0), mask=inside)
    tl.store(row_max_ptr + rows, highest, mask=inside)
    tl.store(log_sum_ptr + rows, log_total, mask=inside)
    if invalid_ptr is not None:
        # Every program that finds a bad target stores the same value: no race matters.
        wrong = tl.sum((kept & (valid == 0)).to(tl.int32), 0)
        tl.store(invalid_ptr, 1, mask=wrong > 0)
    if mean_ptr is not None:
        tl.debug_barrier()  # all threads have stored before one of them counts the program in
        if tl.atomic_add(arrived_ptr, 1, sem="acq_rel") == tl.num_programs(0) - 1:
            store_mean(loss_ptr, row_weight_ptr, mean_ptr, divisor_ptr, N, ACC, BLOCK_MEAN)
            tl.store(arrived_ptr, 0)


@triton.jit
def store_mean(
    loss_ptr, row_weight_ptr, mean_ptr, divisor_ptr, N, ACC: tl.constexpr, BLOCK: tl.constexpr
):
    """Σ loss / Σ weight by one program: the same order of sums for the same N."""
    total = tl.zeros([BLOCK], ACC)
    divisor = tl.zeros([BLOCK], ACC)
    for start in range(0, N, BLOCK):
        i = start + tl.arange(0, BLOCK)
        # Not from L1, which does not see what other multiprocessors write.
        total += tl.load(loss_ptr + i, mask=i < N, other=0.0, cache_modifier=".cg")
        divisor += tl.load(row_weight_ptr + i, mask=i < N, other=0.0, cache_modifier=".cg")
    divisor = tl.sum(divisor, 0)
    tl.store(divisor_ptr, divisor)
    tl.store(mean_ptr, (tl.sum(total, 0) / divisor).to(mean_ptr.dtype.element_ty))


@triton.jit
def cross_entropy_backward_kernel(
    grad_ptr, divisor_ptr, logits_ptr, target_ptr, weight_ptr, row_max_ptr, log_sum_ptr,
    dlogits_ptr,
    N, C, grad_stride, ignore_index, smoothing,
    SMOOTH: tl.constexpr, ACC: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = rows < N
    picked, weight, _, valid = load_target(target_ptr, weight_ptr, rows, N, C, ignore_index, ACC)
    highest = tl.load(row_max_ptr + rows, mask=inside, other=0.0)
    log_total = tl.load(log_sum_ptr + rows, mask=inside, other=0.0)
    grad = tl.load(grad_ptr + rows * grad_stride, mask=inside, other=0.0).to(ACC)
    if divisor_ptr is not None:
        grad = grad / tl.load(divisor_ptr)  # ignored rows get 0 all the same
    weight = (1.0 - smoothing) * weight
    from_p = weight
    if SMOOTH:
        weights = tl.zeros([BLOCK_C], ACC)
        for start in range(0, C, BLOCK_C):
            weights += load_class_weights(weight_ptr, start + tl.arange(0, BLOCK_C), C, ACC)
        from_p = from_p + smoothing / C * tl.sum(weights, 0)
    for start in range(0, C, BLOCK_C):
        classes = start + tl.arange(0, BLOCK_C)
        z, mask, at = load_logits(logits_ptr, rows, classes, N, C, 0.0, ACC)
        dz = tl.exp((z - highest[:, None]) - log_total[:, None]) * from_p[:, None]
        dz -= tl.where(classes[None, :] == picked[:, None], weight[:, None], 0.0)
        if SMOOTH:
            w = load_class_weights(weight_ptr, classes, C, ACC)
            dz -= (smoothing / C * w)[None, :]
        dz = tl.where(valid[:, None], dz * grad[:, None], 0.0)
        tl.store(dlogits_ptr + at, dz.to(dlogits_ptr.dtype.element_ty), mask=mask)


class _CrossEntropyKernel(KernelObject):
    """Tile sizes of the two kernels.

    Args:
        block_classes: the most classes held at once, a power of two.
    """

    def __init__(self, block_classes: int = 1024) -> None:
        self.block_classes = block_classes

    def _shared(self, logits: Array, ignore_index: int, label_smoothing: float) -> dict[str, Any]:
        n, c = logits.shape
        block_c = power_of_two(c, self.block_classes)
        return dict(
            N=n, C=c, ignore_index=ignore_index, smoothing=scalar(label_smoothing, logits.dtype),
            SMOOTH=label_smoothing > 0, BLOCK_N=power_of_two(n, max(1, TILE // block_c // 16)),
            BLOCK_C=block_c, **accumulator(logits.dtype),
        )  # fmt: skip

    def _launch(self, arguments: Mapping[str, Any]) -> None:
        self.launcher((triton.cdiv(arguments["N"], arguments["BLOCK_N"]),), **arguments)

    example_shape = (64, 16)

    def _arrays(self, dtype: np.dtype, shape: tuple[int, ...]) -> tuple[Array, Array, Array, Array]:
        n, c = shape
        wide = accumulation_dtype(dtype)
        return np.zeros((n, c), dtype), np.zeros(n, np.int64), np.zeros(c, wide), np.zeros(n, wide)


class CrossEntropyForward(_CrossEntropyKernel):
    """The loss of each row. Arguments: ``reference.cross_entropy_forward``."""

    launcher = Launcher(cross_entropy_forward_kernel)

    def _arguments(
        self, logits, target, weight, loss, row_weight, row_max, log_sum, mean, divisor, invalid,
        index, smoothing,
    ):  # fmt: skip
        return dict(
            logits_ptr=logits, target_ptr=target, weight_ptr=weight, loss_ptr=loss,
            row_weight_ptr=row_weight, row_max_ptr=row_max, log_sum_ptr=log_sum, mean_ptr=mean,
            divisor_ptr=divisor, arrived_ptr=None if mean is None else counters(logits, 1),
            invalid_ptr=invalid, BLOCK_MEAN=power_of_two(len(logits), 1024),
            **self._shared(logits, index, smoothing),
        )  # fmt: skip

    def __call__(
        self, logits: Array, target: Array, weight: Array | None, loss: Array, row_weight: Array,
        row_max: Array, log_sum: Array, mean: Array | None, divisor: Array | None,
        invalid: Array | None, *, ignore_index: int, label_smoothing: float,
    ) -> None:  # fmt: skip
        self._launch(
            self._arguments(
                logits, target, weight, loss, row_weight, row_max, log_sum, mean, divisor,
                invalid, ignore_index, label_smoothing,
            )
        )  # fmt: skip

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        z, t, w, r = self._arrays(dtype, shape)
        mean = np.zeros((), dtype), np.zeros((), r.dtype)
        return self._arguments(z, t, w, r, r, r, r, *mean, np.zeros(1, np.int32), -100, 0.1)


class CrossEntropyBackward(_CrossEntropyKernel):
    """The gradient of the logits. Arguments: ``reference.cross_entropy_backward``."""

    launcher = Launcher(cross_entropy_backward_kernel)

    def _arguments(
        self, grad, divisor, logits, target, weight, row_max, log_sum, dlogits, index, smoothing
    ):
        return dict(
            grad_ptr=grad, divisor_ptr=divisor, logits_ptr=logits, target_ptr=target,
            weight_ptr=weight, row_max_ptr=row_max, log_sum_ptr=log_sum, dlogits_ptr=dlogits,
            grad_stride=0 if grad.size == 1 else 1, **self._shared(logits, index, smoothing),
        )  # fmt: skip

    def __call__(
        self, grad: Array, divisor: Array | None, logits: Array, target: Array,
        weight: Array | None, row_max: Array, log_sum: Array, dlogits: Array, *,
        ignore_index: int, label_smoothing: float,
    ) -> None:  # fmt: skip
        self._launch(
            self._arguments(
                grad, divisor, logits, target, weight, row_max, log_sum, dlogits, ignore_index,
                label_smoothing,
            )
        )  # fmt: skip

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        z, t, w, r = self._arrays(dtype, shape)
        return self._arguments(r, r, z, t, w, r, r, z, -100, 0.1)
