"""Whether operations are recorded on the tape: a switch for each thread."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ..errors import DTypeError

F = TypeVar("F", bound=Callable[..., Any])


class _Mode(threading.local):
    def __init__(self) -> None:
        self.enabled = True
        # For each context that this thread is inside of, by id, what to go back to.
        self.before: dict[int, list[bool]] = {}


_mode = _Mode()


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded now."""
    return _mode.enabled


class GradMode:
    """A context, or decorator, in which this thread records or does not.

    One object may be entered many times, inside itself too, and by several threads.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = bool(enabled)

    def __enter__(self) -> None:
        _mode.before.setdefault(id(self), []).append(_mode.enabled)
        _mode.enabled = self.enabled

    def __exit__(self, *exception: Any) -> None:
        left = _mode.before[id(self)]
        _mode.enabled = left.pop()
        if not left:
            del _mode.before[id(self)]

    def __call__(self, function: F) -> F:
        """``function``, run in this mode; of a generator function, each step is.

        Raises:
            DTypeError: for an async function, whose steps mix with those of others.
        """
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise DTypeError("an async function cannot be decorated; use the context inside it")
        mode = GradMode(self.enabled)
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return mode._each_step(function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with mode:
                    return function(*args, **kwargs)

        return wrapper  # type: ignore[return-value]

    def _each_step(self, steps: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """``steps`` with this mode inside each of them and the caller's between."""
        advance: Callable[[], Any] = functools.partial(next, steps)
        while True:
            try:
                with self:
                    value = advance()
            except StopIteration as stop:
                return stop.value
            try:
                sent = yield value
            except GeneratorExit:
                with self:
                    steps.close()
                raise
            except BaseException as error:
                advance = functools.partial(steps.throw, error)
            else:
                advance = functools.partial(steps.send, sent)


class set_grad_enabled(GradMode):
    """Record in this thread (True) or not (False), from the call on.

    As a plain statement it holds until the next one. As a context it goes back at
    the end to what was before the call, and as a decorator it holds in the calls alone.
    """

    def __init__(self, enabled: bool) -> None:
        super().__init__(enabled)
        self._first: bool | None = _mode.enabled  # to go back to from the first block
        _mode.enabled = self.enabled

    def __enter__(self) -> None:
        if self._first is not None:
            _mode.enabled, self._first = self._first, None
        super().__enter__()

    def __call__(self, function: F) -> F:
        """As :meth:`GradMode.__call__`."""
        if self._first is not None:
            _mode.enabled, self._first = self._first, None
        return super().__call__(function)


def no_grad() -> GradMode:
    """A context, or decorator, in which this thread records nothing: ``with tb.no_grad(): …``."""
    return GradMode(False)


def enable_grad() -> GradMode:
    """A context, or decorator, in which this thread records again inside ``no_grad``."""
    return GradMode(True)
