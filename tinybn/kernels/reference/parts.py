"""A few samples at a time, on all cores.

What is worked out between reading an array and writing another takes most of its time to reach
memory, unless it stays in a core's cache: so samples are taken in parts. How many make a part does
not depend on the cores, and what parts return is in their order: the same input gives the same
bits on any number of cores.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np

if TYPE_CHECKING:
    from concurrent.futures import ThreadPoolExecutor

Result = TypeVar("Result")

_pool: ThreadPoolExecutor | None = None
_making = threading.Lock()


def _cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _forget_pool() -> None:
    """A forked process has none of its parent's threads."""
    global _pool, _making
    _pool, _making = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def in_parts(samples: int, few: int) -> list[slice]:
    """The samples, ``few`` at a time."""
    return [slice(start, min(start + few, samples)) for start in range(0, samples, few)]


def on_all_cores(work: Callable[[slice], Result], parts: Sequence[slice]) -> list[Result]:
    """``work`` of every part, in order, without NumPy's warnings.

    Threads do run at once, since NumPy lets go of the interpreter's lock while it computes.

    Args:
        work: takes a part; what it writes to must be that part's own, and it must not come here
            again: all threads might wait for each other.
        parts: from :func:`in_parts`.
    """
    left, lock = iter(range(len(parts))), threading.Lock()

    def next_part() -> int | None:
        with lock:
            return next(left, None)

    def take() -> dict[int, Result]:
        """Work on parts as long as there are any; a thread that is held up takes fewer."""
        done = {}
        try:
            with np.errstate(all="ignore"):  # each thread has its own
                while (number := next_part()) is not None:
                    done[number] = work(parts[number])
        except BaseException:
            while next_part() is not None:
                pass  # nobody begins another part
            raise
        return done

    helpers = min(_cores(), len(parts)) - 1
    others = []
    # Once the main thread has ended Python starts no others: then this one does all.
    with contextlib.suppress(RuntimeError):
        for _ in range(helpers):
            others.append(_threads().submit(take))
    try:
        done = take()
    finally:
        # One that has not begun finds nothing left; the others still write to the outputs.
        begun = [other for other in others if not other.cancel()]
        if begun:
            from concurrent.futures import wait

            wait(begun)
    for other in begun:
        done |= other.result()
    return [done[number] for number in range(len(parts))]


def _threads() -> ThreadPoolExecutor:
    """The threads beside the caller's, started when first needed."""
    from concurrent.futures import ThreadPoolExecutor  # which takes long to import

    global _pool
    with _making:
        if _pool is None:
            _pool = ThreadPoolExecutor(max(1, _cores() - 1), thread_name_prefix="tinybn")
        return _pool
