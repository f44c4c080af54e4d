"""Writing into a tensor's memory: ``+=``, ``copy_``, ``t[index] = value`` and their kin.

Without recording the memory is written directly. While recording, the new
value is computed beside it as an ordinary differentiable operation, copied
into the memory, and the tensor takes that operation's node as its own; tensors
that share the memory get nodes that read the new value (``ops/_views``). Either
way the version counter tells nodes that saved the old value that it is gone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError, ShapeError, TapeError
from ..kernels.arrays import Array, accumulation_dtype, namespace
from ..kernels.gpu import is_cupy
from . import watch
from .dtypes import bool_, is_float
from .grad_mode import is_grad_enabled
from .ops import elementwise, index
from .ops._index import resolve
from .ops._operands import (
    as_tensor,
    check_devices,
    check_fits,
    is_scalar,
    number_operands,
    raw,
    result_dtype,
    unbroadcast,
)
from .ops._views import Place, Region, Written, place_in
from .tape import Node, Op, apply, is_tensor, shares_memory, wrap

if TYPE_CHECKING:
    from .tensor import Tensor


class Overwrite(Op):
    """y = value, broadcast to x and in its dtype; nothing of x remains, so dx is 0."""

    @staticmethod
    def forward(ctx: Node, x: Array, value: Any) -> Array:
        ctx.save(np.shape(value))
        xp = namespace(x)
        return xp.broadcast_to(xp.asarray(value, dtype=x.dtype), x.shape).copy()

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        return None, unbroadcast(grad, ctx.saved[0]) if ctx.needs[1] else None


def arithmetic(target: Tensor, name: str, ufunc: str, other: Any) -> Tensor:
    """``target`` op= ``other`` for the operation ``name`` of ops.elementwise.

    Raises:
        TapeError: for a leaf that requires a gradient, or memory that a view shares, while
            recording.
        DTypeError: if the result's dtype cannot be written into the target's.
        ShapeError, DeviceError: for an operand that does not fit the target.
    """
    method = f"{name}_"
    _, other = number_operands(method, target, other)
    result = result_dtype(target, other)
    if name == "div" and not is_float(result):
        result = np.dtype("float64")
    if name == "sub" and result == bool_:
        raise DTypeError("sub of two bool operands is not defined; wanted numbers, or a ^ b")
    _check(method, target, result, np.shape(other))
    if _recorded(target, other):
        function = getattr(elementwise, name)
        return _replace(target, lambda x: function(x, x if other is target else other))
    if is_scalar(other) and accumulation_dtype(target.dtype) != target.dtype:
        other = getattr(elementwise, name)(target, other)  # in float32, rounded once
        return overwrite(target, method, other)
    value = _unshared(other, target)
    with np.errstate(all="ignore"):
        write = getattr(namespace(target.data), ufunc)
        write(target.data, value, out=target.data, casting="unsafe")  # checked above
    target._version.value += 1
    return target


def overwrite(target: Tensor, name: str, value: Any) -> Tensor:
    """Make all elements of ``target`` those of ``value`` (a number, or what broadcasts).

    A Tensor on another device is copied over. Raises as :func:`arithmetic`.
    """
    if not is_scalar(value):
        value = as_tensor(value, name, target.device).to(target.device)
    else:
        check_fits(name, value, target.dtype)
    _check(name, target, _dtype(value, target), np.shape(value))
    if _recorded(target, value):
        return _replace(target, lambda x: apply(Overwrite, x, value))
    value = _unshared(value, target)
    with np.errstate(all="ignore"):
        target.data[...] = value
    target._version.value += 1
    return target


def clamp(target: Tensor, low: Any, high: Any) -> Tensor:
    """Limit ``target`` to [low, high] in its own memory. Raises as :func:`arithmetic`."""
    bounds = [bound for bound in (low, high) if bound is not None]
    _, *ready = number_operands("clamp_", target, *bounds)
    shapes = [np.shape(bound) for bound in ready]
    _check("clamp_", target, result_dtype(target, *ready), *shapes)
    if _recorded(target, *ready):
        return _replace(target, lambda x: elementwise.clip(x, low, high))
    return overwrite(target, "clamp_", elementwise.clip(target, low, high))


def setitem(target: Tensor, where: Any, value: Any) -> None:
    """``target[where] = value``.

    Raises:
        IndexOutOfRange, ArgumentError: for an index that does not fit.
        TapeError, DTypeError, ShapeError, DeviceError: as :func:`arithmetic`.
    """
    if not is_scalar(value):
        value = as_tensor(value, "item assignment", target.device)
        check_devices("item assignment", target, value)
    else:
        check_fits("item assignment", value, target.dtype)
    _check("item assignment", target, _dtype(value, target))
    resolved = resolve(target.data, where)
    value = index.fitting(target.data, resolved, value)
    if _recorded(target, value):
        _replace(target, lambda x: apply(index.SetItem, x, value, index=resolved))
        return
    with np.errstate(all="ignore"):
        index.write(target.data, resolved, _unshared(value, target))
    target._version.value += 1


def _dtype(value: Any, target: Tensor) -> np.dtype:
    """The dtype that writing ``value`` asks of the target; a Python number adapts to it."""
    return result_dtype(target, value) if is_scalar(value) else value.dtype


def _check(name: str, target: Tensor, dtype: np.dtype, *shapes: tuple[int, ...]) -> None:
    """Raise, before anything changes, unless the target can be written and takes the value."""
    watch.write(target, name)
    if _kind(dtype) > _kind(target.dtype):
        raise DTypeError(
            f"{name} cannot write {dtype.name} values into a tensor of {target.dtype.name}; "
            "convert one of them first"
        )
    for shape in shapes:
        if shape != target.shape and not _fits(shape, target.shape):
            raise ShapeError(
                f"{name} cannot write a value of shape {shape} into a tensor of shape "
                f"{target.shape}"
            )
    if isinstance(target.data, np.ndarray) and not target.data.flags.writeable:
        raise TapeError(
            f"{name} cannot write into a tensor whose memory is read-only; write into x.clone()"
        )
    if is_grad_enabled() and target.is_leaf and target.requires_grad:
        raise TapeError(
            f"{name} cannot change a leaf tensor that requires a gradient while operations are "
            "recorded; use no_grad() or work on x.clone()"
        )


def _kind(dtype: np.dtype) -> int:
    # NumPy's "same kind" rule: bool fits into int and int into float, not back.
    return 2 if is_float(dtype) else int(dtype != bool_)


def _fits(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False


def _recorded(target: Tensor, *values: Any) -> bool:
    wanted = target.requires_grad or any(is_tensor(v) and v.requires_grad for v in values)
    return is_grad_enabled() and wanted and is_float(target.dtype)


def _replace(target: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Record ``function`` of the target's old value and make its result the target's value.

    Tensors that share the memory get new nodes too, which tell of their new values.
    """
    base, places = _family(target)  # raises, before anything changes
    before = _old(target, target.data.copy(order="K"))  # what a node saves must outlive the write
    result = elementwise.cast(function(before), target.dtype)
    target.data[...] = result.data
    target._version.value += 1
    if base is not target:
        changed = apply(Written, _old(base, base.data), result, place=places.pop(id(target))[1])
        _rehang(base, changed)
    _rehang(target, result)
    for view, place in places.values():
        _rehang(view, apply(Region, base, place=place))
    return target


def _old(tensor: Tensor, array: Array) -> Tensor:
    """A stand-in for ``tensor`` with its node of now."""
    stand_in = wrap(array)
    stand_in._node, stand_in._requires_grad = tensor._node, tensor._requires_grad
    return stand_in


def _rehang(tensor: Tensor, result: Tensor) -> None:
    """Give ``tensor`` the node of ``result``."""
    old, new = tensor._node, result._node
    if old is not None and old.retain is not None and new is not None:
        old.retain, new.retain = None, old.retain
    tensor._node, tensor._requires_grad = new, result._requires_grad


def _family(target: Tensor) -> tuple[Tensor, dict[int, tuple[Tensor, Place]]]:
    """The tensor whose memory holds that of all that share the target's, and their places in it.

    Raises:
        TapeError: if their gradients could not be kept right: one is a leaf that wants a
            gradient, only some are recorded, or none holds the memory of all in C order.
    """
    others = target._version.others(target)
    if not others:
        return target, {}
    if any(t.is_leaf and t.requires_grad for t in others):
        raise TapeError(
            "a view of a leaf that requires a gradient cannot be written in place while "
            "operations are recorded; use no_grad() or work on x.clone()"
        )
    recorded = sum(t.requires_grad for t in (target, *others))
    if 0 < recorded <= len(others) or (recorded == 0 and len(others) > 1):
        raise TapeError(
            "a recorded write in place into memory that another tensor shares which was made "
            "without recording would leave that one's gradient wrong; write y[0] = y[0] + 1, "
            "with no other view of y alive, or use the out-of-place form"
        )
    for base in (target, *others):
        members = [t for t in (target, *others) if t is not base]
        places = {id(t): (t, place_in(base.data, t.data)) for t in members}
        if all(place is not None for _, place in places.values()):
            return base, places  # type: ignore[return-value]
    raise TapeError(
        "a recorded write in place into memory that several tensors share needs one of them to "
        "hold all of it in C order, without repeats; write y[0] = y[0] + 1, with no other view "
        "of y alive, or use the out-of-place form"
    )


def _unshared(value: Any, target: Tensor) -> Any:
    """The array of ``value``, safe to read while the target is written."""
    array = raw(value)
    # NumPy sees overlapping memory itself; CuPy's kernels do not always.
    if is_cupy(array) and array is not target.data and shares_memory(array, target.data):
        return array.copy()
    return array
