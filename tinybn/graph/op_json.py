"""RuntimeOps as JSON: the name of the class, and the arguments that its constructor was given."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, DataError
from ..kernels.windows import Windows
from ..tensor.archive import DTYPES, NAMES
from ..tensor.ops import (
    activation,
    elementwise,
    index,
    join,
    matmul,
    pool,
    reduce,
    shape,
    softmax,
    unary,
)
from ..tensor.ops._index import Index
from ..tensor.tape import Op
from . import batch_norm_ops, ops
from .runtime_op import Constant, RuntimeOp, Slot

KINDS: dict[str, type[RuntimeOp]] = {
    name: value
    for module in (ops, batch_norm_ops)
    for name, value in vars(module).items()
    if name.endswith("RuntimeOp") and value is not RuntimeOp
}


def as_json(op: RuntimeOp, node: str) -> dict[str, Any]:
    """``op`` as JSON can hold it; ``node`` is its node's name.

    Raises:
        ArgumentError: for a class, or an argument, that is not tinybn's.
    """
    kind = type(op)
    if KINDS.get(kind.__name__) is not kind:
        raise ArgumentError(
            f"node {node} is {kind.__name__}; a file holds the RuntimeOps of tinybn.graph"
        )
    args, options = op.made_with
    given = _signature(kind).bind(*args, **options).arguments
    return {
        "op": kind.__name__,
        "arguments": {k: _encoded(v, f"{k} of node {node}") for k, v in given.items()},
    }


def from_json(name: str, arguments: Mapping[str, Any], node: str) -> RuntimeOp:
    """The op that :func:`as_json` was given.

    Raises:
        DataError: for a class or an option that this tinybn has not; for values that the class
            does not take whatever it raises.
    """
    if name not in KINDS:
        raise DataError(f"node {node} is {name!r}, which is no RuntimeOp of this tinybn")
    kind = KINDS[name]
    signature = _signature(kind)
    unknown = [key for key in arguments if key not in signature.parameters]
    if unknown:
        raise DataError(
            f"node {node} ({name}) has the options {', '.join(unknown)}; wanted some of "
            f"{', '.join(signature.parameters)}"
        )
    given = {key: _decoded(value) for key, value in arguments.items()}
    bound = inspect.BoundArguments(signature, given)
    return kind(*bound.args, **bound.kwargs)


def _signature(kind: type[RuntimeOp]) -> inspect.Signature:
    """Of a RuntimeOp's constructor."""
    whole = inspect.signature(kind.__init__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


@functools.cache
def tape_ops() -> dict[str, type[Op]]:
    """The tape's operations that an argument may name."""
    families = (
        activation, elementwise, index, join, matmul, pool, reduce, shape, softmax, unary,
    )  # fmt: skip
    return {
        value.__name__: value
        for family in families
        for value in vars(family).values()
        if isinstance(value, type) and issubclass(value, Op) and value.__module__ == family.__name__
    }


# What JSON lacks is an object of one key, its kind.


def _encoded(value: Any, what: str) -> Any:
    """An argument as JSON can hold it; ``what`` names it in the error."""
    if isinstance(value, np.generic) and value.dtype in NAMES:  # before float, which float64 is
        return {"number": [NAMES[value.dtype], value.item()]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    for kind, (type_, take_apart, _) in _KINDS.items():
        if isinstance(value, type_):
            return {kind: [_encoded(part, what) for part in take_apart(value)]}
    if isinstance(value, (tuple, list)):
        return [_encoded(part, what) for part in value]
    if isinstance(value, np.dtype) and value in NAMES:
        return {"dtype": NAMES[value]}
    if isinstance(value, Mapping):
        return {"dict": [[str(key), _encoded(item, what)] for key, item in value.items()]}
    if isinstance(value, type) and value in tape_ops().values():
        return {"op": value.__name__}
    raise ArgumentError(f"{what} is {value!r}, which a file cannot hold")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "number":
        return DTYPES[content[0]].type(content[1])
    if kind == "dtype":
        return DTYPES[content]
    if kind == "op":
        return tape_ops()[content]
    if kind == "dict":
        return {key: _decoded(item) for key, item in content}
    return _KINDS[kind][2](*map(_decoded, content))


def _windows(*pairs: tuple[int, int]) -> Windows:
    result = Windows(*pairs)
    for pair in pairs:
        if not (isinstance(pair, tuple) and [type(n) for n in pair] == [int, int]):
            raise ValueError(f"{pair!r} are no two numbers of windows")
    if min(*result.kernel, *result.stride, *result.dilation) < 1:
        raise ValueError(f"{result} have no element")
    return result


def _index(outer: Any, axes: Any, arrays: Any, first: Any) -> Index:
    if arrays or axes or first != 0 or not isinstance(outer, tuple):
        raise ValueError("an index with arrays; a file holds none")
    return Index(outer)


_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[..., Any]]] = {
    "windows": (
        Windows, lambda w: (w.kernel, w.stride, w.before, w.after, w.dilation), _windows,
    ),
    "slot": (Slot, tuple, Slot),
    "slice": (slice, lambda s: (s.start, s.stop, s.step), slice),
    "index": (Index, tuple, _index),
    "constant": (Constant, tuple, Constant),
}  # fmt: skip
