"""What the host writes for each replay, taken by the interpreted kernels; CuPy is stood in for."""

from __future__ import annotations

from types import SimpleNamespace
from unittest import mock

import numpy as np

from tinybn.kernels import gpu, interpret
from tinybn.kernels.feed.ring import CHUNK, HALF, SLOTS, Feed
from tinybn.kernels.recording import WORDS


class OnDevice(np.ndarray):
    """An array with its address where CuPy's have it."""

    @property
    def data(self):
        return SimpleNamespace(ptr=self.ctypes.data)


def on_device(values):
    return np.array(values).view(OnDevice)


class Recorded:
    """A recording of a graph that reads ``count`` numbers."""

    def __init__(self, count):
        self.values, self.place = np.zeros(WORDS * count, np.int64), self.zeros(WORDS * count)

    def zeros(self, size, dtype=np.int64):
        return on_device(np.zeros(size, dtype))

    def upload(self, array):
        return on_device(array)

    def overwrite(self, copy, array):
        copy[...] = array

    def numbers_to_send(self):
        return self.values, self.place


class Events:
    """CuPy's cuda: memory of the host, and events that note when they are recorded and awaited."""

    def __init__(self):
        self.log = []

    def PinnedMemory(self, size):
        buffer = np.zeros(size, np.uint8)
        return SimpleNamespace(buffer=buffer, ptr=buffer.ctypes.data)

    def PinnedMemoryPointer(self, memory, offset):
        return memory.buffer.data

    def Event(self, disable_timing):
        event = SimpleNamespace(number=None)
        event.synchronize = lambda: self.log.append(("waited for", event.number))
        return event

    def record(self, event):
        event.number = len([entry for entry in self.log if entry[0] == "recorded"])
        self.log.append(("recorded", event.number))


def test_each_replay_finds_its_own_inputs_and_numbers():
    """Also those after the ring's end, which wait until the slots' earlier replays are done."""
    cuda, recorded = Events(), Recorded(3)
    targets = [on_device(np.zeros(n, np.uint8)) for n in (CHUNK + 24, 5)]
    rng = np.random.default_rng(0)
    with mock.patch.object(gpu, "cupy", lambda: SimpleNamespace(cuda=cuda)), interpret():
        feed = Feed(recorded, targets)
        feed.open()
        for turn in range(SLOTS + HALF + 1):
            inputs = [on_device(rng.integers(0, 256, len(t), np.uint8)) for t in targets]
            recorded.values[:] = turn
            feed.fill(inputs)
            feed.record()
            feed.launched(cuda)
            assert all(np.array_equal(*pair) for pair in zip(targets, inputs))
            assert (recorded.place == turn).all()
    # The third half of the turns takes the first half's slots, and the fourth the second's.
    assert cuda.log == [
        ("recorded", 0), ("recorded", 1), ("waited for", 0), ("recorded", 2), ("waited for", 1),
    ]  # fmt: skip


def test_without_inputs_and_numbers_there_is_nothing_to_write():
    cuda = Events()
    with mock.patch.object(gpu, "cupy", lambda: SimpleNamespace(cuda=cuda)), interpret():
        feed = Feed(Recorded(0), [])
        feed.open()
        for _ in range(2):
            feed.fill([])
            feed.record()
            feed.launched(cuda)
    assert cuda.log == []
