"""Where programs leave sums and counts for each other: device memory that outlives a launch.

Tagged slots (``exchange.py``) must start as zeros and then see the same
launches, so each plan has slots of its own on each stream. A launch that is
being captured gets slots of its own too: ``graph.capture`` keeps them, zeroed once;
in a graph that the user captures they are zeroed at every replay.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from . import gpu, recording
from .arrays import Array, accumulation_dtype, namespace

STREAMS = 64  # that have zeros of one kind at the same time
FEWEST_COUNTERS = 4096
PER_THREAD_STREAM = 2  # cudaStreamPerThread: one name for as many streams as threads


class _Zeros:
    """Memory that starts as zeros and then belongs to the launches of one stream, in turn."""

    def __init__(self, dtype: Any) -> None:
        self._dtype = dtype
        self._kept: dict[tuple, Array] = {}

    def on_stream(self, device: int, stream: Any, size: int) -> Array:
        """``size`` of them or more, for a launch on CuPy's ``stream`` of ``device``."""
        recorded = recording.current()
        if recorded is not None and recorded.capturing:
            return recorded.zeros(size, self._dtype)
        if gpu.capturing(stream):
            return gpu.cupy().zeros(size, self._dtype)
        owner = threading.get_ident() if stream.ptr == PER_THREAD_STREAM else None
        key = (device, stream.ptr, owner)
        found = self._kept.get(key)
        if found is None or found.size < size:
            if len(self._kept) >= STREAMS:
                self._kept.clear()  # CuPy gives the memory only to what a stream runs later
            found = self._kept[key] = gpu.cupy().zeros(size, self._dtype)
        return found


class Workspace:
    """The slots of one plan of one kernel.

    Args:
        words: how many.
        tagged: whether they start as zeros and are kept.
    """

    def __init__(self, words: int, tagged: bool) -> None:
        self._words = words
        self._zeros = _Zeros(np.int64) if tagged else None

    def slots(self, x: Array) -> Array:
        """Slots for a launch on x's device, and there on the current stream."""
        if gpu.is_cupy(x):
            return self.on_stream(x.data.device_id, gpu.calls().stream(), x.dtype)
        if self._zeros is not None:
            return np.zeros(self._words, np.int64)
        return np.empty(self._words, accumulation_dtype(x.dtype))

    def on_stream(self, device: int, stream: Any, dtype: np.dtype) -> Array:
        """Slots for a launch on CuPy's ``stream``, the current one of ``device``."""
        if self._zeros is not None:
            return self._zeros.on_stream(device, stream, self._words)
        return gpu.cupy().empty(self._words, accumulation_dtype(dtype))


@functools.lru_cache(maxsize=1024)
def workspace(kernel: str, plan: Any, words: int, tagged: bool) -> Workspace:
    """The slots of ``plan`` of ``kernel``: tags go up in step only if no other plan writes them."""
    return Workspace(words, tagged)


_counters = _Zeros(np.int32)


def counters(x: Array, size: int) -> Array:
    """Zeros for a launch on arrays like ``x``, whose programs count them up and set them back."""
    if not gpu.is_cupy(x):
        return np.zeros(size, np.int32)
    stream = gpu.calls().stream()
    return _counters.on_stream(x.data.device_id, stream, max(size, FEWEST_COUNTERS))


def room_for_parts(x: Array, programs: int, results: int) -> dict[str, Array]:
    """The arguments of a launch whose programs leave ``results`` sums each to be added up."""
    partial = namespace(x).empty(programs * results, accumulation_dtype(x.dtype))
    return dict(partial_ptr=partial, arrived_ptr=counters(x, programs))


NO_PARTS: dict[str, None] = dict(partial_ptr=None, arrived_ptr=None)
