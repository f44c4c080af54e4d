"""The Triton kernels with which a graph fetches what the host has left for a replay.

Copies that the host queues before a graph take longer than small networks' layers: each is an
operation of its own, with a gap before and after. So the host writes addresses and numbers to a
slot of a ring in its own memory, which the GPU can read, and the graph begins with two kernels.
One program receives the slot, since each read of the host's memory takes a microsecond and waits
for the one before; many then copy what it says into place.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ..arrays import Array
from ..common import KernelObject
from ..launch import Launcher, Options
from .ring import COLUMNS, SLOTS

WORDS = 64  # that a program receives at once
RECEIVER = Options(warps=1)


@triton.jit
def receive_kernel(ring_ptr, inbox_ptr, SLOTS: tl.constexpr, BLOCK: tl.constexpr):
    """One program: the slot whose turn it is, to device memory; then it is the next one's turn."""
    words = tl.load(ring_ptr + 1)
    turn = tl.load(ring_ptr + 2)
    slot = (tl.load(ring_ptr) + turn * words * 8).to(tl.pointer_type(tl.int64))
    for start in range(0, words, BLOCK):
        i = start + tl.arange(0, BLOCK)
        # What the host wrote may not come from a cache that saw it before.
        tl.store(inbox_ptr + i, tl.load(slot + i, mask=i < words, volatile=True), mask=i < words)
    tl.debug_barrier()  # all threads have read whose turn it is
    tl.store(ring_ptr + 2, (turn + 1) % SLOTS)


@triton.jit
def copy_bytes(source, target, size, TYPE: tl.constexpr, BYTES: tl.constexpr, BLOCK: tl.constexpr):
    """``size`` bytes from one address to another, in elements of ``TYPE``, which divide all."""
    ALIGNED: tl.constexpr = 16 if BYTES > 1 else 1
    read = tl.multiple_of(source.to(tl.pointer_type(TYPE)), ALIGNED)
    write = tl.multiple_of(target.to(tl.pointer_type(TYPE)), ALIGNED)
    count = tl.multiple_of(size // BYTES, ALIGNED // BYTES)
    for start in range(0, count, BLOCK):
        i = start + tl.arange(0, BLOCK)
        tl.store(write + i, tl.load(read + i, mask=i < count), mask=i < count)


@triton.jit
def fetch_kernel(jobs_ptr, inbox_ptr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr):
    job = jobs_ptr + tl.program_id(0) * COLUMNS
    source = tl.load(job)
    target = tl.load(job + 3)
    size = tl.load(job + 4)
    if source == 0:
        source = tl.load(inbox_ptr + tl.load(job + 1)) + tl.load(job + 2)
    if (source | target | size) % 16 == 0:
        copy_bytes(source, target, size, tl.int64, 8, BLOCK)
    else:
        copy_bytes(source, target, size, tl.int8, 1, BLOCK)


class Fetch(KernelObject):
    """Receive the next slot of a ring, and do each job of a table with it.

    Args:
        block: elements of a step of a copy, a power of two.
    """

    launcher = Launcher(fetch_kernel)
    receiver = Launcher(receive_kernel)
    example_shape = (1,)

    def __init__(self, block: int = 1024) -> None:
        self.block = block

    def _arguments(self, jobs: Array, inbox: Array) -> dict[str, Any]:
        return dict(jobs_ptr=jobs, inbox_ptr=inbox, COLUMNS=COLUMNS, BLOCK=self.block)

    def __call__(self, ring: Array, jobs: Array, inbox: Array) -> None:
        """Launch both kernels.

        Args:
            ring: int64 [3]: the address of its first slot, the words (of 8 bytes) of one, and
                whose turn is next, 0 at first.
            jobs: int64 [n, COLUMNS]. Of each: the source's address, or 0 and then the word that
                holds it and bytes beyond it; the target's address; bytes.
            inbox: int64, of at least a slot's words.
        """
        self.receiver((1,), RECEIVER, ring_ptr=ring, inbox_ptr=inbox, SLOTS=SLOTS, BLOCK=WORDS)
        self.launcher((len(jobs),), **self._arguments(jobs, inbox))

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        return self._arguments(np.zeros((*shape, COLUMNS), np.int64), np.zeros(2, np.int64))
