"""The host's side of ``fetch.py``: what replays of a graph get, slot by slot of a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from .. import gpu, recording
from ..arrays import Array
from ..engines import implementation

SLOTS = 64  # replays that may be waiting
HALF = SLOTS // 2
COLUMNS = 8  # int64 of a job, of which five are used; the rest fills a sector of memory
CHUNK = 8192  # bytes that a job copies at most, but for the numbers' and where jobs are MOST_JOBS
MOST_JOBS = 2048


class Feed:
    """Memory that a recorded graph finds filled anew in each replay.

    The host may be as many replays ahead of the GPU as the ring has slots; then it waits.

    Args:
        recorded: of the graph, whose numbers are sent too.
        targets: arrays of the graph's device, filled from others with the same bytes.
    """

    def __init__(self, recorded: recording.Recording, targets: Sequence[Array]) -> None:
        self._recorded, self._inputs = recorded, len(targets)
        # Whole steps of 16 bytes, the widest that a thread copies at once.
        chunk = max(CHUNK, -(-sum(t.nbytes for t in targets) // MOST_JOBS // 16) * 16)
        jobs = [
            (0, place, start, target.data.ptr + start, min(chunk, target.nbytes - start))
            for place, target in enumerate(targets) for start in range(0, target.nbytes, chunk)
        ]  # fmt: skip
        self._rows = np.zeros((len(jobs) + 1, COLUMNS), np.int64)  # the numbers' is the last
        if jobs:
            self._rows[:-1, :5] = jobs
        self._jobs = recorded.upload(self._rows)
        self._fetch = implementation("fetch", self._jobs)
        self._ring = recorded.zeros(3, np.int64)
        self._inbox = recorded.zeros(recording.WORDS * recording.MOST + len(targets) + 1, np.int64)
        self._turn = 0

    def record(self) -> None:
        """Launch the kernels, as the first of the graph that is being recorded."""
        self._fetch(self._ring, self._jobs, self._inbox)

    def open(self) -> None:
        """Make the ring, once the graph is recorded and all its numbers are known."""
        self._numbers, target = self._recorded.numbers_to_send()
        first = len(self._numbers)  # word of the addresses
        words = first + self._inputs
        words += words % 2  # slots of whole 16 bytes
        cuda = gpu.cupy().cuda
        # Not of CuPy's pool, which would give it out again while replays still read it.
        self._memory = cuda.PinnedMemory(max(1, SLOTS * words * 8))
        pointer = cuda.PinnedMemoryPointer(self._memory, 0)
        self._slots = list(np.frombuffer(pointer, np.int64, SLOTS * words).reshape(SLOTS, words))
        self._rows[:-1, 1] += first
        self._rows[-1, :5] = self._inbox.data.ptr, 0, 0, target.data.ptr, self._numbers.nbytes
        self._recorded.overwrite(self._jobs, self._rows)
        self._recorded.overwrite(self._ring, np.array([self._memory.ptr, words, 0]))
        self._taken = [cuda.Event(disable_timing=True) for _ in range(2)]  # each half's slots

    def fill(self, arrays: Sequence[Array]) -> None:
        """Write the next replay's slot: the numbers as they are now, and where the inputs are."""
        half, within = divmod(self._turn, HALF)
        if within == 0 and half >= 2:
            self._taken[half % 2].synchronize()
        slot, first = self._slots[self._turn % SLOTS], len(self._numbers)
        if first:
            slot[:first] = self._numbers
        for place, array in enumerate(arrays, first):
            slot[place] = array.data.ptr

    def launched(self, stream: Any) -> None:
        """A replay that takes the slot has been queued on CuPy's ``stream``."""
        half, within = divmod(self._turn, HALF)
        if within == HALF - 1:
            stream.record(self._taken[half % 2])
        self._turn += 1
