"""Who looks on at the operations of a thread: ``graph.compile`` reads a model off them."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from .tape import Op
    from .tensor import Tensor


class Watcher(Protocol):
    """What is told of each operation, each value that is read, and each write in place."""

    def operation(
        self, op: type[Op], inputs: Sequence[Any], options: Mapping[str, Any], result: Tensor
    ) -> None:
        """``op`` was run on ``inputs`` with ``options`` and gave ``result``."""

    def read(self, tensor: Any, what: str) -> None:
        """The elements of ``tensor`` are about to be read by ``what``, such as ``item()``."""

    def write(self, tensor: Tensor, what: str) -> None:
        """The elements of ``tensor`` are about to be written in place by ``what``."""


class _Thread(threading.local):
    watcher: Watcher | None = None


_thread = _Thread()


def current() -> Watcher | None:
    """Who looks on in this thread, if anybody."""
    return _thread.watcher


@contextlib.contextmanager
def under(watcher: Watcher) -> Iterator[None]:
    """``watcher`` is told of what this thread does inside."""
    before, _thread.watcher = _thread.watcher, watcher
    try:
        yield
    finally:
        _thread.watcher = before


def read(tensor: Any, what: str) -> None:
    """Tell who looks on that ``tensor`` (or a number) is read by what is no operation."""
    if _thread.watcher is not None:
        _thread.watcher.read(tensor, what)


def write(tensor: Tensor, what: str) -> None:
    """Tell who looks on that ``tensor`` is written in place."""
    if _thread.watcher is not None:
        _thread.watcher.write(tensor, what)
