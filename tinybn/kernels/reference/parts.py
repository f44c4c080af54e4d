"""A few samples at a time, on all cores.

What is worked out between reading an array and writing another takes most of its time to reach
memory, unless it stays in a core's cache: so samples are taken in parts. How many make a part does
not depend on the cores, and what parts return is in their order: the same input gives the same
bits on any number of cores.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")

_pool: ThreadPoolExecutor | None = None


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _forget_pool() -> None:
    """A forked process has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def in_parts(samples: int, few: int) -> list[slice]:
    """The samples, ``few`` at a time."""
    return [slice(start, min(start + few, samples)) for start in range(0, samples, few)]


def on_all_cores(work: Callable[[slice], Result], parts: Sequence[slice]) -> list[Result]:
    """``work`` of every part, in order, without NumPy's warnings.

    Threads do run at once, since NumPy lets go of the interpreter's lock while it computes.

    Args:
        work: takes a part; what it writes to must be that part's own.
        parts: from :func:`in_parts`.
    """
    left = iter(range(len(parts)))

    def take() -> dict[int, Result]:
        """Work on parts as long as there are any; a thread that is held up takes fewer."""
        with np.errstate(all="ignore"):  # each thread has its own
            return {number: work(parts[number]) for number in left}

    helpers = min(_cores(), len(parts)) - 1
    others = [_threads().submit(take) for _ in range(helpers)]
    done = take()
    for other in others:
        done |= other.result()
    return [done[number] for number in range(len(parts))]


def _threads() -> ThreadPoolExecutor:
    """The threads beside the caller's, started when first needed."""
    global _pool
    if _pool is None:
        _pool = ThreadPoolExecutor(max(1, _cores() - 1), thread_name_prefix="tinybn")
    return _pool
