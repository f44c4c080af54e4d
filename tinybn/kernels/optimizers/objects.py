"""Triton kernels of the optimisers: one launch updates many tensors.

The kernel gets a table of addresses, a row for each role (parameter, gradient,
state) and a column for each tensor, and a list of tiles: which tensor a
program works on, and from which element.

Sums of products are written as fused multiply-adds: left to the compiler, it may fuse another
product where a captured step reads its numbers from memory, and round differently.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import triton
import triton.language as tl

from .. import recording
from ..arrays import Array, namespace
from ..common import KernelObject, accumulator, scalar, value_of
from ..gpu import is_cupy
from ..launch import ON_HOST, Launcher, pointer

BLOCK = 1024

_ELEMENT = {
    "float16": tl.float16, "bfloat16": tl.bfloat16, "float32": tl.float32, "float64": tl.float64,
}  # fmt: skip


@triton.jit
def tile_of(tiles_ptr, sizes_ptr, BLOCK: tl.constexpr):
    """The tensor this program works on, its elements and which of them exist."""
    tensor = tl.load(tiles_ptr + 2 * tl.program_id(0))
    i = tl.load(tiles_ptr + 2 * tl.program_id(0) + 1) + tl.arange(0, BLOCK)
    return tensor, i, i < tl.load(sizes_ptr + tensor)


@triton.jit
def load_from(table_ptr, role, tensors, tensor, i, mask, TYPE: tl.constexpr, ACC: tl.constexpr):
    """The pointers into one role's array, and the values there."""
    address = tl.load(table_ptr + role * tensors + tensor)
    at = address.to(tl.pointer_type(TYPE)) + i
    return at, tl.load(at, mask=mask, other=0.0).to(ACC)


@triton.jit
def sgd_kernel(
    table_ptr, tiles_ptr, sizes_ptr, tensors, lr, momentum, share, weight_decay,
    DECAY: tl.constexpr, MOMENTUM: tl.constexpr, NESTEROV: tl.constexpr, MAXIMIZE: tl.constexpr,
    FIRST: tl.constexpr,
    TYPE: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor, i, mask = tile_of(tiles_ptr, sizes_ptr, BLOCK)
    p_at, p = load_from(table_ptr, 0, tensors, tensor, i, mask, TYPE, ACC)
    _, g = load_from(table_ptr, 1, tensors, tensor, i, mask, TYPE, ACC)
    if MAXIMIZE:
        g = -g
    if DECAY:  # 0·∞ would be NaN
        g = tl.fma(value_of(weight_decay), p, g)
    if MOMENTUM:
        momentum = value_of(momentum)
        b_at, b = load_from(table_ptr, 2, tensors, tensor, i, mask, TYPE, ACC)
        if FIRST:
            b = g
        else:
            b = tl.fma(momentum, b, value_of(share) * g)
        tl.store(b_at, b.to(TYPE), mask=mask)
        if NESTEROV:
            g = tl.fma(momentum, b, g)
        else:
            g = b
    tl.store(p_at, tl.fma(-value_of(lr), g, p).to(TYPE), mask=mask)


@triton.jit
def adam_kernel(
    table_ptr, tiles_ptr, sizes_ptr, tensors, step_size, root_correction, beta1, rest1,
    beta2, rest2, eps, decay, DECAY: tl.constexpr, DECOUPLED: tl.constexpr, MAXIMIZE: tl.constexpr,
    TYPE: tl.constexpr, ACC: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    tensor, i, mask = tile_of(tiles_ptr, sizes_ptr, BLOCK)
    p_at, p = load_from(table_ptr, 0, tensors, tensor, i, mask, TYPE, ACC)
    _, g = load_from(table_ptr, 1, tensors, tensor, i, mask, TYPE, ACC)
    m_at, m = load_from(table_ptr, 2, tensors, tensor, i, mask, TYPE, ACC)
    v_at, v = load_from(table_ptr, 3, tensors, tensor, i, mask, TYPE, ACC)
    if MAXIMIZE:
        g = -g
    if DECAY:
        if DECOUPLED:
            p = p * (1.0 - value_of(decay))
        else:
            g = tl.fma(value_of(decay), p, g)
    m = tl.fma(value_of(beta1), m, value_of(rest1) * g)
    v = tl.fma(value_of(beta2), v, value_of(rest2) * g * g)
    tl.store(m_at, m.to(TYPE), mask=mask)
    tl.store(v_at, v.to(TYPE), mask=mask)
    root_correction = value_of(root_correction)
    eps = value_of(eps)
    if ACC == tl.float64:
        root = tl.sqrt(v)
        ratio = m / (root / root_correction + eps)
    else:
        root = tl.sqrt_rn(v)
        ratio = tl.div_rn(m, tl.div_rn(root, root_correction) + eps)
    tl.store(p_at, tl.fma(-value_of(step_size), ratio, p).to(TYPE), mask=mask)


@functools.lru_cache(maxsize=64)
def _tables(
    xp: Any, device: int, addresses: tuple[tuple[int, ...], ...], sizes: tuple[int, ...], block: int
) -> tuple[Array, Array, Array]:
    """The table of addresses, the tiles and the sizes, as arrays on the device.

    Kept, because a training step finds its parameters at the same addresses
    each time, and mostly its gradients too.
    """
    tiles = [(t, start) for t, size in enumerate(sizes) for start in range(0, size, block)]
    arrays = (np.array(addresses, np.int64), np.array(tiles, np.int64), np.array(sizes, np.int64))
    return tuple(recording.upload(xp, a) for a in arrays)


class _OptimizerKernel(KernelObject):
    """Args: block: elements a program updates, a power of two."""

    example_shape = (2,)  # how many tensors

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block

    def _launches(self, *roles: Sequence[Array]) -> Iterator[tuple[np.dtype, int, dict[str, Any]]]:
        """For each dtype among the parameters: the number of tiles, and the shared arguments."""
        columns: dict[np.dtype, list[tuple[Array, ...]]] = defaultdict(list)
        for column in zip(*roles):
            if column[0].size:
                columns[column[0].dtype].append(column)
        for dtype, group in columns.items():
            first = group[0][0]
            addresses = tuple(tuple(pointer(a) for a in role) for role in zip(*group))
            sizes = tuple(column[0].size for column in group)
            device = first.data.device_id if is_cupy(first) else ON_HOST
            arrays = _tables(namespace(first), device, addresses, sizes, self.block)
            recording.keep_alive(arrays)  # others may push them out of the cache
            table, tiles, size = arrays
            yield dtype, len(tiles), self._shared(table, tiles, size, len(group), dtype)

    def _run(
        self, roles: Sequence[Sequence[Array]], options: Callable[..., dict[str, Any]],
        numbers: dict[str, Any],
    ) -> Callable[..., None]:  # fmt: skip
        """Launch; what is returned gives a recorded step's replays other numbers."""
        recorded = recording.current()
        writers = []
        for dtype, tiles, shared in self._launches(*roles):
            arguments = options(dtype, **numbers)
            if recorded is not None:
                arguments, write = recorded.numbers(arguments)
                writers.append((dtype, write))
            self.launcher((tiles,), **shared, **arguments)

        def again(**numbers: Any) -> None:
            for dtype, write in writers:
                write(options(dtype, **numbers))

        return again

    def _shared(self, table, tiles, sizes, tensors, dtype) -> dict[str, Any]:
        return dict(
            table_ptr=table, tiles_ptr=tiles, sizes_ptr=sizes, tensors=tensors,
            TYPE=_ELEMENT[dtype.name], BLOCK=self.block, **accumulator(dtype),
        )  # fmt: skip

    def _example(self, dtype: np.dtype, shape: tuple[int, ...]) -> dict[str, Any]:
        table = np.zeros((4, *shape), np.int64)
        return self._shared(table, table, table, shape[0], dtype)


class SgdStep(_OptimizerKernel):
    """SGD with momentum on many tensors. Arguments: ``reference.sgd_step``.

    Returns what, called with other numbers, writes them for the next replay of a recorded step.
    """

    launcher = Launcher(sgd_kernel)

    @staticmethod
    def _options(
        dtype, buffered, lr, momentum, dampening, weight_decay, nesterov, maximize, first_step
    ):
        return dict(
            lr=scalar(lr, dtype), momentum=scalar(momentum, dtype),
            share=scalar(1 - dampening, dtype), weight_decay=scalar(weight_decay, dtype),
            DECAY=weight_decay != 0, MOMENTUM=buffered, NESTEROV=nesterov, MAXIMIZE=maximize,
            FIRST=first_step,
        )  # fmt: skip

    def __call__(
        self, params: Sequence[Array], grads: Sequence[Array], buffers: Sequence[Array] | None,
        **numbers: Any,
    ) -> Callable[..., None]:  # fmt: skip
        roles = (params, grads) if buffers is None else (params, grads, buffers)
        options = functools.partial(self._options, buffered=buffers is not None)
        return self._run(roles, options, numbers)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        options = self._options(dtype, True, 0.1, 0.9, 0.0, 0.0, True, False, False)
        return {**self._example(dtype, shape), **options}


class AdamStep(_OptimizerKernel):
    """Adam or AdamW on many tensors. Arguments: ``reference.adam_step``; returns as SgdStep."""

    launcher = Launcher(adam_kernel)

    @staticmethod
    def _options(dtype, step, lr, beta1, beta2, eps, weight_decay, decoupled, maximize):
        return dict(
            step_size=scalar(lr / (1 - beta1**step), dtype),
            root_correction=scalar((1 - beta2**step) ** 0.5, dtype),
            beta1=scalar(beta1, dtype), rest1=scalar(1 - beta1, dtype),
            beta2=scalar(beta2, dtype), rest2=scalar(1 - beta2, dtype), eps=scalar(eps, dtype),
            decay=scalar(lr * weight_decay if decoupled else weight_decay, dtype),
            DECAY=weight_decay != 0, DECOUPLED=decoupled, MAXIMIZE=maximize,
        )  # fmt: skip

    def __call__(
        self, params: Sequence[Array], grads: Sequence[Array], exp_avgs: Sequence[Array],
        exp_avg_sqs: Sequence[Array], **numbers: Any,
    ) -> Callable[..., None]:  # fmt: skip
        return self._run((params, grads, exp_avgs, exp_avg_sqs), self._options, numbers)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        options = self._options(dtype, 2, 0.1, 0.9, 0.999, 1e-8, 0.1, True, False)
        return {**self._example(dtype, shape), **options}
