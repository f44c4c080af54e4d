"""Where programs leave sums for each other: device memory that outlives a launch.

Tagged slots (``exchange.py``) must start as zeros and then see the same
launches, so each plan has slots of its own on each stream. A launch that is
being captured gets slots of its own too, zeroed by the graph at every replay:
the graph may be replayed on any stream.
"""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np

from .. import gpu
from ..arrays import Array, accumulation_dtype, namespace

_tagged: dict[tuple, Array] = {}


def slots(x: Array, words: int, tagged: bool, plan: Hashable) -> Array:
    """``words`` slots on x's device, zeros at first where they are ``tagged``."""
    xp = namespace(x)
    if not tagged or not gpu.is_cupy(x):
        return xp.empty(words, np.int64 if tagged else accumulation_dtype(x.dtype))
    stream = xp.cuda.get_current_stream()
    if gpu.capturing(stream):
        return xp.zeros(words, np.int64)
    key = (x.data.device_id, stream.ptr, plan)
    found = _tagged.get(key)
    if found is None:
        found = _tagged[key] = xp.zeros(words, np.int64)
    return found
