"""Where programs leave sums for each other: device memory that outlives a launch.

Tagged slots (``exchange.py``) must start as zeros and then see the same
launches, so each plan has slots of its own on each stream. A launch that is
being captured gets slots of its own too, zeroed by the graph at every replay:
the graph may be replayed on any stream.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import numpy as np

from .. import gpu
from ..arrays import Array, accumulation_dtype

STREAMS = 64  # that have slots of one plan at the same time
PER_THREAD_STREAM = 2  # cudaStreamPerThread: one name for as many streams as threads


class Workspace:
    """The slots of one plan of one kernel.

    Args:
        words: how many.
        tagged: whether they start as zeros and are kept.
    """

    def __init__(self, words: int, tagged: bool) -> None:
        self._words, self._tagged = words, tagged
        self._kept: dict[tuple, Array] = {}

    def slots(self, x: Array) -> Array:
        """Slots for a launch on x's device, and there on the current stream."""
        if gpu.is_cupy(x):
            return self.on_stream(x.data.device_id, gpu.calls().stream(), x.dtype)
        return self._new(np, x.dtype)

    def on_stream(self, device: int, stream: Any, dtype: np.dtype) -> Array:
        """Slots for a launch on CuPy's ``stream``, the current one of ``device``."""
        if not self._tagged or gpu.capturing(stream):
            return self._new(gpu.cupy(), dtype)
        owner = threading.get_ident() if stream.ptr == PER_THREAD_STREAM else None
        key = (device, stream.ptr, owner)
        found = self._kept.get(key)
        if found is None:
            if len(self._kept) >= STREAMS:
                self._kept.clear()  # CuPy gives the memory only to what a stream runs later
            found = self._kept[key] = self._new(gpu.cupy(), dtype)
        return found

    def _new(self, xp: Any, dtype: np.dtype) -> Array:
        if self._tagged:
            return xp.zeros(self._words, np.int64)
        return xp.empty(self._words, accumulation_dtype(dtype))


@functools.lru_cache(maxsize=1024)
def workspace(kernel: str, plan: Any, words: int, tagged: bool) -> Workspace:
    """The slots of ``plan`` of ``kernel``: tags go up in step only if no other plan writes them."""
    return Workspace(words, tagged)
