"""A step that is being recorded for a CUDA graph, and what launches in it do differently.

A graph replays launches with the arguments that they had. So what differs from step to step (a
learning rate, a random generator's offset) is read by recorded kernels from memory of the
device, and an *action* on the host writes it there before each replay; the host's own state
(step counts, schedules) goes on by actions too. Memory that must be zero at first, or that the
host fills once, is made beside the graph and kept as long as it.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from ..errors import CaptureError
from . import gpu
from .arrays import Array

First = TypeVar("First")
Second = TypeVar("Second")

MOST = 1024  # numbers that differ from step to step
WORDS = 2  # of 8 bytes a number: 16-byte alignment, whatever the number of those before it


class Recording:
    """What a step leaves behind for its replays.

    Attributes:
        capturing: whether launches go into a graph; else the step is a rehearsal, which runs.
        kept: what the graph needs to stay alive.
    """

    def __init__(self, capturing: bool) -> None:
        self.capturing = capturing
        self.kept: list[Any] = []
        self._leaves: dict[int, tuple[Any, Any]] = {}
        self._actions: list[Callable[[], None]] = []
        self._guards: list[Callable[[], bool]] = []
        self._same: list[tuple[Any, str, Any]] = []
        self._used = 0
        self._side: Any = None
        if capturing:
            self._host = np.zeros(WORDS * MOST, np.int64)
            self._device = self.zeros(WORDS * MOST, np.int64)

    def side(self) -> Any:
        """A second stream to record on."""
        if self._side is None:
            self._side = gpu.new_stream()
        return self._side

    def on_replay(self, action: Callable[[], None]) -> None:
        """Call ``action`` before each replay, after those given earlier."""
        if self.capturing:
            self._actions.append(action)

    def guard(self, holds: Callable[[], bool]) -> None:
        """The graph is good only as long as ``holds`` is true before a replay."""
        if self.capturing:
            self._guards.append(holds)

    def unchanged(self, owner: Any, *names: str) -> None:
        """The graph is good only as long as these attributes are the objects that they are now."""
        if self.capturing:
            self._same += [(owner, name, getattr(owner, name)) for name in names]

    def leaf(self, tensor: Any) -> None:
        """Note that ``tensor.grad`` is about to get a gradient, which each replay gives it too."""
        if self.capturing and id(tensor) not in self._leaves:
            before = tensor.grad
            self._leaves[id(tensor)] = tensor, before
            if before is not None:
                self.kept.append(before)
                self.unchanged(tensor, "grad")

    def set_gradients(self) -> None:
        """Give the leaves the gradients that they had after recording; a replay has made them."""
        for tensor, grad in self._leaves.values():
            if tensor.grad is not grad:
                tensor.grad = grad

    def finish(self) -> None:
        """The step has been recorded: its leaves' gradients are what replays will make."""
        self._leaves = {key: (leaf, leaf.grad) for key, (leaf, _) in self._leaves.items()}

    def is_good(self) -> bool:
        """Whether all is as it was when the step was recorded."""
        for owner, name, value in self._same:  # a loop: a replay waits for it
            if getattr(owner, name) is not value:
                return False
        return all(holds() for holds in self._guards)

    def number(self, value: np.generic) -> tuple[Array, Callable[[np.generic], None]]:
        """One element of device memory that holds ``value``, and what writes others to it.

        Raises:
            CaptureError: for more of them than there is room for.
        """
        if not self.capturing:
            return gpu.cupy().full(1, value, value.dtype), _nothing
        if self._used == MOST:
            raise CaptureError(f"a step has more than {MOST} numbers that differ from one to the "
                               "next; wanted fewer")  # fmt: skip
        at = WORDS * self._used
        self._used += 1
        place = self._host[at : at + 1].view(value.dtype)[:1]
        place[0] = value

        def write(other: np.generic) -> None:
            place[0] = other

        return self._device[at : at + 1].view(value.dtype)[:1], write

    def numbers(self, arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Callable]:
        """A launch's ``arguments`` with its scalars on the device, and what writes others there."""
        places = {k: self.number(v) for k, v in arguments.items() if isinstance(v, np.generic)}

        def write(others: Mapping[str, Any]) -> None:
            for name, (_, write_one) in places.items():
                write_one(others[name])

        return {**arguments, **{name: place for name, (place, _) in places.items()}}, write

    def live(
        self, values: tuple[int, ...], again: Callable[[], tuple[int, ...]]
    ) -> tuple[Array, ...]:
        """int64 on the device that hold ``values``, and in each replay those of ``again()``."""
        places = [self.number(np.int64(value)) for value in values]

        def renew() -> None:
            for (_, write), value in zip(places, again()):
                write(np.int64(value))

        self.on_replay(renew)
        return tuple(place for place, _ in places)

    def zeros(self, size: int, dtype: Any) -> Array:
        """Device memory that is 0 before the first replay, and kept."""
        return self.upload(np.zeros(size, dtype))

    def upload(self, array: np.ndarray) -> Array:
        """A copy on the device, made now and not at each replay, and kept."""
        cupy = gpu.cupy()
        if not self.capturing:
            return cupy.asarray(array)
        stream = gpu.new_stream()
        # A stream of its own gets memory that the graph does not use: memory that was free while
        # it was recorded is what its launches before this one work with, in each replay.
        with gpu.on_stream(stream):
            copy = cupy.asarray(array)
        stream.synchronize()
        self.kept.append(copy)
        return copy

    def overwrite(self, copy: Array, array: np.ndarray) -> None:
        """Make what :meth:`upload` returned a copy of another array of its shape, contiguous."""
        stream = gpu.new_stream()
        copy.data.copy_from_host_async(array.ctypes.data, array.nbytes, stream)
        stream.synchronize()

    def act(self) -> None:
        """Do what comes before a replay."""
        for action in self._actions:
            action()

    def numbers_to_send(self) -> tuple[np.ndarray, Array]:
        """What :meth:`number` has given out: the values, which actions renew, and where they go."""
        used = WORDS * self._used
        return self._host[:used], self._device[:used]


class _Thread(threading.local):
    recording: Recording | None = None


_thread = _Thread()


def current() -> Recording | None:
    """The recording that this thread is in, if any."""
    return _thread.recording


@contextlib.contextmanager
def under(recording: Recording) -> Iterator[Recording]:
    """Record what this thread does."""
    before = _thread.recording
    _thread.recording = recording
    try:
        yield recording
    finally:
        _thread.recording = before


def side_by_side(first: Callable[[], First], second: Callable[[], Second]) -> tuple[First, Second]:
    """What both return; in a recorded graph they are branches that run at the same time.

    Neither may use what the other makes, and the caller holds what both read until both have
    returned: memory freed before could be given out again while a branch still reads it.
    """
    recorded = _thread.recording
    if recorded is None or not recorded.capturing:
        return first(), second()
    main, side = gpu.calls().stream(), recorded.side()
    side.wait_event(main.record())
    with gpu.on_stream(side):
        one = first()
    two = second()
    main.wait_event(side.record())
    return one, two


def capturing() -> bool:
    """Whether this thread's launches go into a graph, so that nothing may be read."""
    return _thread.recording is not None and _thread.recording.capturing


def keep_alive(used: Any) -> None:
    """Keep what a launch reads alive as long as the graph, where one is recorded."""
    if _thread.recording is not None:
        _thread.recording.kept.append(used)


def check_host_read(what: str, array: Array) -> None:
    """Raise CaptureError for a read of the GPU's memory in a recorded step: a replay reads not."""
    if _thread.recording is not None and gpu.is_cupy(array):
        raise CaptureError(
            f"{what} reads from the GPU in a captured step; wanted the step to return the Tensor, "
            "to be read after it"
        )


def check_copy(array: Array, target: Any) -> None:
    """Raise CaptureError for a copy between host and GPU in a recorded step."""
    check_host_read(f"a copy to {target}", array)
    if _thread.recording is not None:
        raise CaptureError(
            f"a copy from the CPU to {target} in a captured step would be made once, not in each "
            "replay; wanted the Tensor to be an argument, or to be there before"
        )


def upload(xp: Any, array: np.ndarray) -> Array:
    """``array`` in xp's memory; beside the graph where a step is recorded."""
    recording = _thread.recording
    return xp.asarray(array) if recording is None or xp is np else recording.upload(array)


def _nothing(_: np.generic) -> None:
    """A rehearsal is not replayed."""
