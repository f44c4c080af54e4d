"""The host's side of ``fetch.py``: what replays of a graph get, slot by slot of a ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import gpu, recording
from .arrays import Array

MOST_JOBS = 2048  # by which larger copies are shared out


class Feed:
    """Memory that a recorded graph finds filled anew in each replay.

    The host may be as many replays ahead of the GPU as the ring has slots; then it waits.

    Args:
        recorded: of the graph, whose numbers are sent too.
        targets: arrays of the graph's device, filled from others with the same bytes.
    """

    def __init__(self, recorded: recording.Recording, targets: Sequence[Array]) -> None:
        from .fetch import CHUNK, COLUMNS, SLOTS, Fetch  # imports Triton

        self._recorded, self._slots, self._fetch = recorded, SLOTS, Fetch()
        # Whole steps of 16 bytes, the widest that a thread copies at once.
        chunk = max(CHUNK, -(-sum(t.nbytes for t in targets) // MOST_JOBS // 16) * 16)
        jobs = [
            (0, place, start, target.data.ptr + start, min(chunk, target.nbytes - start))
            for place, target in enumerate(targets) for start in range(0, target.nbytes, chunk)
        ]  # fmt: skip
        self._rows = np.zeros((len(jobs) + 1, COLUMNS), np.int64)  # the numbers' is the last
        if jobs:
            self._rows[:-1, :5] = jobs
        self._inputs = len(targets)
        self._jobs = recorded.upload(self._rows)
        self._place = recorded.zeros(3, np.int64)
        self._inbox = recorded.zeros(recording.WORDS * recording.MOST + len(targets) + 1, np.int64)
        self._turn = 0

    def record(self) -> None:
        """Launch the kernels, as the first of the graph that is being recorded."""
        self._fetch(self._place, self._jobs, self._inbox)

    def open(self) -> None:
        """Make the ring, once the graph is recorded and all its numbers are known."""
        values, target = self._recorded.numbers_to_send()
        words = len(values) + self._inputs
        words += words % 2  # slots of whole 16 bytes
        cuda = gpu.cupy().cuda
        # Not of CuPy's pool, which would give it out again while replays still read it.
        self._memory = cuda.PinnedMemory(max(1, self._slots * words * 8))
        pointer = cuda.PinnedMemoryPointer(self._memory, 0)
        ring = np.frombuffer(pointer, np.int64, self._slots * words)
        self._ring = list(ring.reshape(self._slots, words))
        self._values, self._first = values, len(values)
        self._rows[:-1, 1] += self._first
        self._rows[-1, :5] = self._inbox.data.ptr, 0, 0, target.data.ptr, values.nbytes
        self._recorded.overwrite(self._jobs, self._rows)
        self._recorded.overwrite(self._place, np.array([self._memory.ptr, words, 0]))
        self._halves = [cuda.Event(disable_timing=True) for _ in range(2)]

    def fill(self, arrays: Sequence[Array]) -> None:
        """Write the next replay's slot: the numbers as they are now, and where the inputs are."""
        turn, half = self._turn, self._slots // 2
        if turn % half == 0 and turn >= self._slots:
            self._halves[turn // half % 2].synchronize()  # all that took this half's slots
        slot = self._ring[turn % self._slots]
        if self._first:
            slot[: self._first] = self._values
        for place, array in enumerate(arrays, self._first):
            slot[place] = array.data.ptr

    def launched(self, stream: Any) -> None:
        """A replay that takes the slot has been queued on CuPy's ``stream``."""
        self._turn += 1
        halves, rest = divmod(self._turn, self._slots // 2)
        if rest == 0:
            stream.record(self._halves[(halves - 1) % 2])
