"""Settings of a thread that a context, or a decorated function, has otherwise for a while."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import Callable, Generator
from typing import Any, TypeVar

from ..errors import DTypeError

F = TypeVar("F", bound=Callable[..., Any])


class _Entered(threading.local):
    def __init__(self) -> None:
        # For each context that this thread is inside of, by id, what to go back to.
        self.before: dict[int, list[Any]] = {}


_entered = _Entered()


class Mode:
    """A context, or decorator; a subclass gives :meth:`_switch` and :meth:`_restore`.

    One object may be entered many times, inside itself too, and by several threads.
    """

    def _switch(self) -> Any:
        """Change this thread's setting; return what it was."""
        raise NotImplementedError

    def _restore(self, before: Any) -> None:
        """Make this thread's setting again what :meth:`_switch` returned."""
        raise NotImplementedError

    def __enter__(self) -> None:
        _entered.before.setdefault(id(self), []).append(self._switch())

    def __exit__(self, *exception: Any) -> None:
        left = _entered.before[id(self)]
        self._restore(left.pop())
        if not left:
            del _entered.before[id(self)]

    def __call__(self, function: F) -> F:
        """``function``, run in this mode; of a generator function, each step is.

        Raises:
            DTypeError: for an async function, whose steps mix with those of others.
        """
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise DTypeError("an async function cannot be decorated; use the context inside it")
        if inspect.isgeneratorfunction(function):

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                return self._each_step(function(*args, **kwargs))

        else:

            @functools.wraps(function)
            def wrapper(*args: Any, **kwargs: Any) -> Any:
                with self:
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
