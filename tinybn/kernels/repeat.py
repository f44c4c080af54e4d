"""Calls made again: a second call like the first skips its checks, plan and preparation.

A training step makes the same calls on the same parameters, and their host cost is
what a small network's step costs. Only on a GPU; elsewhere no call is remembered.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from . import gpu
from .arrays import Array, contiguous
from .launch import observe

MOST = 4096  # calls remembered, more than a network has; then all are forgotten


class Repeats:
    """Prepared calls of one op.

    Tensors count by device, alignment, shape, strides and dtype. Columns (parameters and
    running statistics) count by identity, since they stay where they are from step to
    step; a call is forgotten when one of its columns goes.
    """

    def __init__(self) -> None:
        self._calls: dict[tuple, tuple[Callable, list[weakref.ref]]] = {}

    def find(
        self, tensors: Sequence[Array | None], columns: Sequence[Array | None], *options: Any
    ) -> tuple[tuple | None, Callable | None]:
        """The key of such a call, None where it cannot be remembered, and the call if it is."""
        if observe.current() is not None:
            return None, None  # who looks on at launches sees none that is prepared
        kinds: list[tuple | None] = []
        for tensor in tensors:
            if tensor is None:
                kinds.append(None)
            elif gpu.is_cupy(tensor):
                kinds.append(_kind(tensor))
            else:
                return None, None
        key = (gpu.calls().device(), *kinds, *map(id, columns), *options)
        try:
            found = self._calls.get(key)
        except TypeError:  # an option that cannot be hashed
            return None, None
        return key, None if found is None else found[0]

    def keep(self, key: tuple, columns: Sequence[Array | None], call: Callable) -> None:
        """Remember ``call`` until one of ``columns`` goes."""
        calls = self._calls
        if len(calls) >= MOST:
            calls.clear()
        refs = [
            weakref.ref(column, lambda _: calls.pop(key, None))
            for column in columns
            if column is not None
        ]
        calls[key] = (call, refs)


def _kind(array: Array) -> tuple:
    memory = array.data
    return memory.device_id, memory.ptr % 16, array.shape, array.strides, array.dtype


class Template:
    """Makes uninitialised GPU arrays like one, in a fraction of ``empty_like``'s time."""

    def __init__(self, array: Array) -> None:
        self._alloc, self._array = gpu.calls().alloc, gpu.calls().array
        self._nbytes, self._shape, self._dtype = array.nbytes, array.shape, array.dtype
        self._strides = () if array.flags.c_contiguous else (array.strides,)

    def __call__(self) -> Array:
        return self._array(self._shape, self._dtype, self._alloc(self._nbytes), *self._strides)


class Statistics:
    """mean, rstd and residual of one forward pass; see :func:`batch_norm_statistics`.

    They lie one after another in one block of memory, which becomes arrays where these
    are asked for.

    Args:
        channels, dtype: of each of the three.
        memory: what ``gpu.calls().alloc`` gave, or an array [3, C].
    """

    __slots__ = ("_channels", "_dtype", "_memory")

    def __init__(self, channels: int, dtype: np.dtype, memory: Any) -> None:
        self._channels, self._dtype, self._memory = channels, dtype, memory

    @classmethod
    def of(cls, arrays: Array) -> Statistics:
        """Those in an array [3, C]."""
        return cls(arrays.shape[1], arrays.dtype, contiguous(arrays))

    @property
    def arrays(self) -> Array:
        """[3, C]: mean, rstd and residual."""
        if not hasattr(self._memory, "shape"):
            self._memory = gpu.calls().array((3, self._channels), self._dtype, self._memory)
        return self._memory

    @property
    def kind(self) -> tuple:
        """What a prepared call depends on."""
        on_gpu = not isinstance(self._memory, np.ndarray)
        return self._channels, self._dtype, self.address % 16 if on_gpu else None

    @property
    def address(self) -> int:
        """Of the first mean, on a GPU."""
        memory = self._memory
        return (memory.data if hasattr(memory, "shape") else memory).ptr
