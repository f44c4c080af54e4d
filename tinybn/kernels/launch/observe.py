"""Who looks on at launches: to list them, to time them, or to hold them back.

``engines`` and the launcher ask whether somebody does; nobody pays more than that question.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from ..arrays import is_array
from .options import Options


class Extent(NamedTuple):
    """What is left of an array when its memory is gone."""

    shape: tuple[int, ...]
    dtype: Any
    nbytes: int


class Launch(NamedTuple):
    """One launch, or on the CPU engine one call of a reference function.

    Attributes:
        kernel: the name of the Triton function, or of the function in ``reference``.
        arguments: by name for a kernel, by place and name for a function.
        grid: programs along each axis; () for a function.
        options: how a kernel is compiled and launched; None for a function.
        packed: what a kernel's compiled entry is passed, in order; () for a function.
    """

    kernel: str
    arguments: Mapping[Any, Any]
    grid: tuple[int, ...] = ()
    options: Options | None = None
    packed: tuple[Any, ...] = ()

    @property
    def bytes(self) -> int:
        """Of the arrays that it is given, each counted once: at least what it reads and writes."""
        given = self.arguments.values()
        arrays = {id(a): a.nbytes for a in given if is_array(a) or isinstance(a, Extent)}
        return sum(arrays.values())

    def without_memory(self) -> Launch:
        """The same with an :class:`Extent` for each array, so that it keeps none alive."""
        extents = {
            id(a): Extent(a.shape, a.dtype, a.nbytes)
            for a in self.arguments.values()
            if is_array(a)
        }
        return self._replace(
            arguments={k: extents.get(id(a), a) for k, a in self.arguments.items()}
        )


class Observer:
    """Notes each launch in ``launches`` and lets it happen, or with ``dry`` does not."""

    def __init__(self, dry: bool = False) -> None:
        self.launches: list[Launch] = []
        self._dry = dry

    def see(self, launch: Launch, run: Callable[[], None]) -> None:
        """Called instead of ``run()``, which does it."""
        self.launches.append(launch)
        if not self._dry:
            run()


class _Thread(threading.local):
    observer: Observer | None = None


_thread = _Thread()


def current() -> Observer | None:
    """Who looks on in this thread, if anybody."""
    return _thread.observer


@contextlib.contextmanager
def under(observer: Observer) -> Iterator[Observer]:
    """``observer`` sees the launches of this thread inside."""
    before, _thread.observer = _thread.observer, observer
    try:
        yield observer
    finally:
        _thread.observer = before
