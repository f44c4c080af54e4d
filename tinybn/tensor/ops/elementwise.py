"""Arithmetic, element by element: sums, products, quotients, powers, choices.

Functions of two operands broadcast as NumPy does, and their gradients are
summed back over the axes that were repeated (``unbroadcast``). Gradients at
points where there is none (ties of ``maximum``, ``0 ** 0``) are PyTorch's.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

import numpy as np

from ...errors import ArgumentError, DTypeError
from ...kernels.arrays import Array, keep, namespace
from .. import watch
from ..dtypes import as_dtype, bool_, is_float
from ..tape import Node, Op, apply, wrap
from ._operands import (
    Operand,
    as_tensor,
    beside_numbers,
    check_numbers,
    computed,
    is_scalar,
    module_of,
    number_operands,
    operands,
    raw,
    result_dtype,
    unbroadcast,
)

if TYPE_CHECKING:
    from ..tensor import Tensor

Grads = tuple[Array | None, ...]


class Add(Op):
    """y = a + b."""

    @staticmethod
    def forward(ctx: Node, a: Any, b: Any) -> Array:
        ctx.save(np.shape(a), np.shape(b))
        return computed(operator.add, a, b)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        a_shape, b_shape = ctx.saved
        return (
            unbroadcast(grad, a_shape) if ctx.needs[0] else None,
            unbroadcast(grad, b_shape) if ctx.needs[1] else None,
        )


class Sub(Op):
    """y = a − b."""

    @staticmethod
    def forward(ctx: Node, a: Any, b: Any) -> Array:
        ctx.save(np.shape(a), np.shape(b))
        return computed(operator.sub, a, b)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        a_shape, b_shape = ctx.saved
        return (
            unbroadcast(grad, a_shape) if ctx.needs[0] else None,
            -unbroadcast(grad, b_shape) if ctx.needs[1] else None,
        )


class Mul(Op):
    """y = a b; da = dy b, db = dy a. Each operand is kept only for the other's gradient."""

    @staticmethod
    def forward(ctx: Node, a: Any, b: Any) -> Array:
        need_a, need_b = ctx.needs
        ctx.save(a if need_b else None, b if need_a else None, np.shape(a), np.shape(b))
        return computed(operator.mul, a, b)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        a, b, a_shape, b_shape = ctx.saved
        grad, a, b = beside_numbers(grad, a, b)
        return (
            unbroadcast(grad * b, a_shape) if ctx.needs[0] else None,
            unbroadcast(grad * a, b_shape) if ctx.needs[1] else None,
        )


class Div(Op):
    """y = a / b; da = dy / b, db = −dy (a / b) / b."""

    @staticmethod
    def forward(ctx: Node, a: Any, b: Any) -> Array:
        ctx.save(a if ctx.needs[1] else None, b, np.shape(a), np.shape(b))
        return computed(operator.truediv, a, b)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        a, b, a_shape, b_shape = ctx.saved
        grad, a, b = beside_numbers(grad, a, b)
        return (
            unbroadcast(grad / b, a_shape) if ctx.needs[0] else None,
            # Two divisions, since b * b may overflow where the quotient does not.
            unbroadcast(-grad * ((a / b) / b), b_shape) if ctx.needs[1] else None,
        )


class Pow(Op):
    """y = a^b; da = dy b a^(b−1), db = dy y log a.

    da is 0 where b is 0, and db is 0 where a is 0 and b is not negative: the
    limits, where the formulas would give 0 · ∞.
    """

    @staticmethod
    def forward(ctx: Node, a: Any, b: Any) -> Array:
        y = computed(operator.pow, a, b)
        ctx.save(a, b, y if ctx.needs[1] else None)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        grad, a, b, y = beside_numbers(grad, *ctx.saved)
        xp = namespace(grad)
        da = db = None
        # What is chosen is the product, since of 0·∞ neither is the limit.
        if ctx.needs[0]:
            if is_scalar(b) and b == 0:
                product = xp.zeros_like(grad)
            else:
                product = grad * (b * a ** (b - 1))
                product = product if is_scalar(b) else keep(b != 0, product)
            da = unbroadcast(product, np.shape(a))
        if ctx.needs[1]:
            base = xp.asarray(a, dtype=y.dtype)
            product = keep((base != 0) | (b < 0), grad * (y * xp.log(base)))
            db = unbroadcast(product, np.shape(b))
        return da, db


class Remainder(Op):
    """y = a − b ⌊a / b⌋, which has the sign of b; da = dy, db = −dy ⌊a / b⌋."""

    @staticmethod
    def forward(ctx: Node, a: Any, b: Any) -> Array:
        need_b = ctx.needs[1]
        ctx.save(a if need_b else None, b if need_b else None, np.shape(a), np.shape(b))
        return computed(operator.mod, a, b)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        a, b, a_shape, b_shape = ctx.saved
        grad, a, b = beside_numbers(grad, a, b)
        return (
            unbroadcast(grad, a_shape) if ctx.needs[0] else None,
            unbroadcast(-grad * (a // b), b_shape) if ctx.needs[1] else None,
        )


class Extremum(Op):
    """The larger (``largest``) or smaller of a and b; at a tie each gets half the gradient."""

    @staticmethod
    def forward(ctx: Node, a: Any, b: Any, *, largest: bool) -> Array:
        ctx.save(a, b, largest)
        xp = module_of(a, b)
        return (xp.maximum if largest else xp.minimum)(a, b)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        a, b, largest = ctx.saved
        xp = namespace(grad)
        shared = xp.where(a == b, grad / grad.dtype.type(2), grad)
        lost_a, lost_b = (a < b, a > b) if largest else (a > b, a < b)
        return (
            unbroadcast(keep(~lost_a, shared), np.shape(a)) if ctx.needs[0] else None,
            unbroadcast(keep(~lost_b, shared), np.shape(b)) if ctx.needs[1] else None,
        )


class Clip(Op):
    """y = min(max(x, low), high); the gradient goes to x inside, ends included, else to the bound.

    Where low > high the result is high, and it takes the gradient.
    """

    @staticmethod
    def forward(ctx: Node, x: Array, low: Any, high: Any) -> Array:
        ctx.save(x, low, high)
        xp = namespace(x)
        y = x if low is None else xp.maximum(x, low)
        return y.copy() if high is None else xp.minimum(y, high)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        x, low, high = ctx.saved
        true = namespace(x).asarray(True)
        below = ~true if low is None else x < low
        above = ~true if high is None else x > high
        ordered = true if low is None or high is None else namespace(x).asarray(low <= high)
        inside = (true if low is None else x >= low) & (true if high is None else x <= high)
        return (
            unbroadcast(keep(inside, grad), x.shape) if ctx.needs[0] else None,
            unbroadcast(keep(below & ordered, grad), np.shape(low)) if ctx.needs[1] else None,
            unbroadcast(keep(above | ~ordered, grad), np.shape(high)) if ctx.needs[2] else None,
        )


class Where(Op):
    """y = a where the condition holds, else b; what was not chosen gets exactly 0."""

    @staticmethod
    def forward(ctx: Node, condition: Array, a: Any, b: Any, *, dtype: np.dtype) -> Array:
        ctx.save(condition, np.shape(a), np.shape(b))
        xp = namespace(condition)
        y = xp.where(condition, xp.asarray(a, dtype=dtype), xp.asarray(b, dtype=dtype))
        return y.astype(dtype, copy=False)  # CuPy's where gives float32 for bfloat16

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        condition, a_shape, b_shape = ctx.saved
        return (
            None,
            unbroadcast(keep(condition, grad), a_shape) if ctx.needs[1] else None,
            unbroadcast(keep(~condition, grad), b_shape) if ctx.needs[2] else None,
        )


class Cast(Op):
    """y = x in another dtype; the tape casts the gradient back."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, dtype: np.dtype) -> Array:
        return x.astype(dtype)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        return (grad,)


class Clone(Op):
    """y = x in memory of its own, laid out as x is ("K") or in C order ("C")."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, order: str) -> Array:
        return x.copy(order=order)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        return (grad,)


def add(a: Operand, b: Operand) -> Tensor:
    """a + b, broadcast; for booleans the logical or.

    A Python number takes the tensor's dtype. NumPy's numbers and 0-d arrays have one of
    their own: dtypes are promoted as in NumPy, and gradients have their operands'.

    Raises:
        DTypeError, DeviceError, ShapeError: as for every function of two operands, for an
            operand that is no number, tensors on two devices, shapes that do not broadcast.
    """
    return apply(Add, *number_operands("add", a, b))


def sub(a: Operand, b: Operand) -> Tensor:
    """a − b, broadcast.

    Raises:
        DTypeError: between booleans; also DeviceError and ShapeError as for :func:`add`.
    """
    a, b = number_operands("sub", a, b)
    if result_dtype(a, b) == bool_:
        raise DTypeError("sub of two bool operands is not defined; wanted numbers, or a ^ b")
    return apply(Sub, a, b)


def mul(a: Operand, b: Operand) -> Tensor:
    """a · b, broadcast; for booleans the logical and. Raises as :func:`add`."""
    return apply(Mul, *number_operands("mul", a, b))


def div(a: Operand, b: Operand) -> Tensor:
    """a / b, broadcast: true division, so that integers give float64. Raises as :func:`add`."""
    return apply(Div, *operands("div", a, b, exact=True))


def floor_divide(a: Operand, b: Operand) -> Tensor:
    """⌊a / b⌋, broadcast, with no gradient. Raises as :func:`add`."""
    a, b = number_operands("floor_divide", a, b)
    for x in (a, b):
        watch.read(x, "floor_divide")
    a, b = raw(a), raw(b)
    with np.errstate(all="ignore"):
        return wrap(computed(operator.floordiv, a, b))


def remainder(a: Operand, b: Operand) -> Tensor:
    """a modulo b with the sign of b, as Python's ``%``. Raises as :func:`add`."""
    return apply(Remainder, *number_operands("remainder", a, b))


def pow(a: Operand, b: Operand) -> Tensor:
    """a to the power b, broadcast.

    The gradient for a is 0 where b is 0; that for b is 0 where a is 0 and b ≥ 0,
    and NaN where a is negative.

    Raises:
        ArgumentError: for integers to a negative integer power.
        DTypeError, DeviceError, ShapeError: as for :func:`add`.
    """
    a, b = number_operands("pow", a, b)
    if not is_float(result_dtype(a, b)) and np.any(raw(b) < 0):
        raise ArgumentError("pow of integers to a negative integer power; wanted a floating base")
    return apply(Pow, a, b)


def maximum(a: Operand, b: Operand) -> Tensor:
    """The larger of a and b; NaN if either is. At a tie each gets half the gradient.

    Raises as :func:`add`.
    """
    return apply(Extremum, *number_operands("maximum", a, b, exact=False), largest=True)


def minimum(a: Operand, b: Operand) -> Tensor:
    """The smaller of a and b; NaN if either is. At a tie each gets half the gradient.

    Raises as :func:`add`.
    """
    return apply(Extremum, *number_operands("minimum", a, b, exact=False), largest=False)


def clip(x: Operand, min: Operand | None = None, max: Operand | None = None) -> Tensor:
    """x limited to [min, max]: numbers, tensors, or None for no bound; NaN stays NaN.

    Where min > max the result is max.

    Raises:
        ArgumentError: without any bound.
        DTypeError, DeviceError, ShapeError: as for :func:`add`.
    """
    bounds = [bound for bound in (min, max) if bound is not None]
    if not bounds:
        raise ArgumentError("clip needs min, max or both, but neither was given")
    x, *bounds = number_operands("clip", as_tensor(x, "clip"), *bounds, exact=False)
    low = None if min is None else bounds[0]
    return apply(Clip, x, low, None if max is None else bounds[-1])


def where(condition: Operand, a: Operand, b: Operand) -> Tensor:
    """a where ``condition`` (bool) holds, else b, all broadcast together.

    What is not taken has gradient 0. Where a function in it has an infinite slope there, 0·∞
    is NaN further up: give that function an argument that is safe, by another ``where``.

    Raises:
        DTypeError: for a condition that is not bool; also as for :func:`add`.
    """
    tensors = [v for v in (condition, a, b) if hasattr(v, "device") and hasattr(v, "requires_grad")]
    device = tensors[0].device if tensors else None
    condition = as_tensor(condition, "where", device)
    if condition.dtype != bool_:
        raise DTypeError(f"where needs a bool condition, but it is {condition.dtype.name}")
    if is_scalar(a) and is_scalar(b):
        a = as_tensor(a, "where", condition.device)
    _, a, b = operands("where", condition, a, b)
    check_numbers("where", a, b)
    return apply(Where, condition, a, b, dtype=result_dtype(a, b))


def cast(x: Operand, dtype: Any) -> Tensor:
    """x in ``dtype``; itself if it has it. The gradient is cast back.

    Raises:
        DTypeError: for a dtype that is not supported.
    """
    x, dtype = as_tensor(x, "cast"), as_dtype(dtype)
    return x if x.dtype == dtype else apply(Cast, x, dtype=dtype)


def clone(x: Operand, order: str = "K") -> Tensor:
    """A copy of x in memory of its own; the gradient passes through.

    Args:
        order: ``"K"`` keeps x's layout, ``"C"`` makes the last axis dense.
    """
    return apply(Clone, as_tensor(x, "clone"), order=order)
