"""Run a Triton kernel without a GPU, on NumPy arrays, through Triton's interpreter."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from .arguments import describe, integer_type

interpreter_lock = threading.RLock()  # it keeps the running program's grid in globals


class _Choice(threading.local):
    interpret = False


_choice = _Choice()


def interpreting() -> bool:
    """Whether kernels on NumPy arrays run in Triton's interpreter in this thread."""
    return _choice.interpret or os.environ.get("TRITON_INTERPRET") == "1"


@contextlib.contextmanager
def interpret() -> Iterator[None]:
    """A context in which ops on CPU tensors run the Triton kernels, interpreted.

    For this thread. Slow (0.1 ms a line); it shows that a kernel is right.
    ``TRITON_INTERPRET=1`` in the environment does the same for a whole process,
    which then cannot compile.
    """
    before = _choice.interpret
    _choice.interpret = True
    try:
        yield
    finally:
        _choice.interpret = before


def run_interpreted(
    fn: Any, names: Sequence[str], constexprs: frozenset, grid: tuple[int, ...], values: list
) -> None:
    """Run every program of ``grid`` in turn, in Python.

    Triton chooses interpreter or compiler once, when a kernel is decorated. We
    choose at each call: for its duration ``triton.language`` is patched as the
    interpreter patches it, and calls from one jitted function to another run
    the interpreter's rewrite of the callee.
    """
    import triton.language as tl
    from triton.runtime import interpreter
    from triton.runtime.jit import JITFunction

    language = SimpleNamespace(__globals__={"tl": tl, "core": tl.core})
    builder = interpreter.interpreter_builder
    with interpreter_lock, np.errstate(all="ignore"):
        scope = interpreter._patch_lang(language)
        try:
            for kind in (JITFunction, interpreter.InterpretedFunction):
                scope.set_attr(kind, "__call__", lambda f, *a, **k: _rewritten(f.fn)(*a, **k))
            # Triton 3.6 turns one-element arrays into ints in a way that NumPy 2.4 refuses.
            scope.set_attr(tl.tensor, "__index__", lambda t: int(t.handle.data.item()))
            scope.set_attr(interpreter.InterpreterBuilder, "cast_impl", _cast)
            arguments = {
                name: value if name in constexprs or value is None else _as_tensor(value)
                for name, value in zip(names, values)
            }
            program = _rewritten(fn.fn)
            x, y, z = (*grid, 1, 1)[:3]
            builder.set_grid_dim(x, y, z)
            for index in np.ndindex(x, y, z):
                builder.set_grid_idx(*index)
                program(**arguments)
        finally:
            scope.restore()


def _rewritten(function: Callable) -> Callable:
    from triton.runtime.interpreter import InterpretedFunction

    return InterpretedFunction(function).rewrite()


def _as_tensor(value: Any) -> Any:
    """An argument as the interpreter's scalar: a pointer, an integer or a float."""
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    if isinstance(value, int):
        kind = integer_type(value)
        data = np.array([value], np.int32 if kind == "i32" else np.int64)
    else:
        (kind, _), argument, _ = describe(value)
        data = np.array([argument], np.uint64 if isinstance(value, np.ndarray) else None)
    dtype = tl.str_to_ty(kind, None)
    return tl.core.tensor(TensorHandle(data, dtype), dtype)


def _cast(builder: Any, source: Any, target: Any) -> Any:
    """The interpreter's cast, with bfloat16 rounded to nearest even; it truncates.

    The interpreter keeps bfloat16 as its 16 bits.
    """
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle, _get_np_dtype

    data, dtype = source.data, target.scalar
    if source.dtype.scalar == tl.bfloat16:
        data = data.view(ml_dtypes.bfloat16)
    if dtype == tl.bfloat16:
        return TensorHandle(data.astype(ml_dtypes.bfloat16).view(np.uint16), dtype)
    return TensorHandle(data.astype(_get_np_dtype(target)), dtype)
