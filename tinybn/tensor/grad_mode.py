"""Whether operations are recorded on the tape: a switch for each thread."""

from __future__ import annotations

import threading

from .mode import F, Mode


class _Setting(threading.local):
    def __init__(self) -> None:
        self.enabled = True


_setting = _Setting()


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded now."""
    return _setting.enabled


class GradMode(Mode):
    """A context, or decorator, in which this thread records or does not.

    One object may be entered many times, inside itself too, and by several threads.
    """

    def __init__(self, enabled: bool) -> None:
        self.enabled = bool(enabled)

    def _switch(self) -> bool:
        before, _setting.enabled = _setting.enabled, self.enabled
        return before

    def _restore(self, before: bool) -> None:
        _setting.enabled = before


class set_grad_enabled(GradMode):
    """Record in this thread (True) or not (False), from the call on.

    As a plain statement it holds until the next one. As a context it goes back at
    the end to what was before the call, and as a decorator it holds in the calls alone.
    """

    def __init__(self, enabled: bool) -> None:
        super().__init__(enabled)
        self._first: bool | None = _setting.enabled  # to go back to from the first block
        _setting.enabled = self.enabled

    def __enter__(self) -> None:
        if self._first is not None:
            _setting.enabled, self._first = self._first, None
        super().__enter__()

    def __call__(self, function: F) -> F:
        """As :meth:`Mode.__call__`."""
        if self._first is not None:
            _setting.enabled, self._first = self._first, None
        return super().__call__(function)


def no_grad() -> GradMode:
    """A context, or decorator, in which this thread records nothing: ``with tb.no_grad(): …``."""
    return GradMode(False)


def enable_grad() -> GradMode:
    """A context, or decorator, in which this thread records again inside ``no_grad``."""
    return GradMode(True)
