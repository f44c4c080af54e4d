"""Whether operations are recorded on the tape: a switch for each thread."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator


class _Mode(threading.local):
    enabled = True


_mode = _Mode()


def is_grad_enabled() -> bool:
    """Whether operations of this thread are recorded now."""
    return _mode.enabled


@contextlib.contextmanager
def set_grad_enabled(enabled: bool) -> Iterator[None]:
    """A context, or decorator, in which this thread records (True) or does not (False)."""
    before = _mode.enabled
    _mode.enabled = bool(enabled)
    try:
        yield
    finally:
        _mode.enabled = before


def no_grad() -> contextlib.AbstractContextManager[None]:
    """A context, or decorator, in which this thread records nothing: ``with tb.no_grad(): …``."""
    return set_grad_enabled(False)


def enable_grad() -> contextlib.AbstractContextManager[None]:
    """A context, or decorator, in which this thread records again inside ``no_grad``."""
    return set_grad_enabled(True)
