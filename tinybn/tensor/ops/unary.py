"""Functions of one tensor, element by element: exponentials, roots, angles, rounding.

float16 and bfloat16 are computed in float32 and rounded once; integers and
booleans give float64 where the function is not itself one of integers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import DTypeError
from ...kernels.arrays import Array, namespace
from ..dtypes import bool_, is_float
from ..tape import Node, Op, apply
from ._operands import Operand, as_tensor, narrow, wide

if TYPE_CHECKING:
    from ..tensor import Tensor

Grads = tuple[Array | None, ...]


class Neg(Op):
    """y = −x."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        return -x

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        return (-grad,)


class Abs(Op):
    """y = |x|; dx = dy sign(x), which is 0 at 0."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        return abs(x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (x,) = ctx.saved
        return (grad * namespace(x).sign(x),)


class Square(Op):
    """y = x²; dx = 2 x dy."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        return x * x

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (x,) = ctx.saved
        return (grad * (x + x),)


class Step(Op):
    """A function that is constant between jumps (``name`` of NumPy's): the gradient is 0."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, name: str) -> Array:
        function = getattr(namespace(x), name)
        return narrow(function(wide(x)), x) if is_float(x.dtype) else function(x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        return (namespace(grad).zeros_like(grad),)


class Exp(Op):
    """y = e^x; dx = dy y."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        y = narrow(namespace(x).exp(wide(x)), x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (y,) = ctx.saved
        return (grad * y,)


class Expm1(Op):
    """y = e^x − 1, right near 0; dx = dy (y + 1)."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        y = narrow(namespace(x).expm1(wide(x)), x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (y,) = ctx.saved
        return (grad * (y + 1),)


class Log(Op):
    """y = log x; dx = dy / x."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        return narrow(namespace(x).log(wide(x)), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (x,) = ctx.saved
        return (grad / x,)


class Log1p(Op):
    """y = log(1 + x), right near 0; dx = dy / (1 + x)."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        return narrow(namespace(x).log1p(wide(x)), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (x,) = ctx.saved
        return (wide(grad) / (1 + wide(x)),)


class Sqrt(Op):
    """y = √x; dx = dy / (2 y)."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        y = narrow(namespace(x).sqrt(wide(x)), x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (y,) = ctx.saved
        return (grad / (y + y),)


class Rsqrt(Op):
    """y = 1 / √x; dx = −dy y / (2 x)."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        y = narrow(1 / namespace(x).sqrt(wide(x)), x)
        ctx.save(x, y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        x, y = (wide(v) for v in ctx.saved)
        return (wide(grad) * (y / (-2 * x)),)


class Reciprocal(Op):
    """y = 1 / x; dx = −dy y²."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        y = narrow(1 / wide(x), x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (y,) = ctx.saved
        return (-grad * y * y,)


class Sin(Op):
    """y = sin x; dx = dy cos x."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        return narrow(namespace(x).sin(wide(x)), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (x,) = ctx.saved
        return (wide(grad) * namespace(x).cos(wide(x)),)


class Cos(Op):
    """y = cos x; dx = −dy sin x."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        return narrow(namespace(x).cos(wide(x)), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (x,) = ctx.saved
        return (-wide(grad) * namespace(x).sin(wide(x)),)


class Tanh(Op):
    """y = tanh x; dx = dy (1 − y²)."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        y = narrow(namespace(x).tanh(wide(x)), x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        y = wide(ctx.saved[0])
        return (wide(grad) * ((1 - y) * (1 + y)),)


def neg(x: Operand) -> Tensor:
    """−x, of x's dtype. Raises DTypeError for bool."""
    x = as_tensor(x, "neg")
    if x.dtype == bool_:
        raise DTypeError("neg of a bool tensor is not defined; wanted numbers, or ~x")
    return apply(Neg, x)


def abs_(x: Operand) -> Tensor:
    """|x|, of x's dtype; the gradient at 0 is 0."""
    return apply(Abs, as_tensor(x, "abs"))


def square(x: Operand) -> Tensor:
    """x · x, of x's dtype."""
    return apply(Square, as_tensor(x, "square"))


def sign(x: Operand) -> Tensor:
    """−1, 0 or 1, of x's dtype; NaN stays NaN. The gradient is 0."""
    x = as_tensor(x, "sign")
    return x.clone() if x.dtype == bool_ else apply(Step, x, name="sign")


def floor(x: Operand) -> Tensor:
    """The largest whole number ≤ x, of x's dtype. The gradient is 0."""
    return _rounding("floor", x)


def ceil(x: Operand) -> Tensor:
    """The smallest whole number ≥ x, of x's dtype. The gradient is 0."""
    return _rounding("ceil", x)


def round(x: Operand) -> Tensor:
    """The nearest whole number, ties to the even one, of x's dtype. The gradient is 0."""
    return _rounding("rint", x)


def exp(x: Operand) -> Tensor:
    """e to the power x."""
    return apply(Exp, as_tensor(x, "exp"))


def expm1(x: Operand) -> Tensor:
    """e to the power x, less 1, with no cancellation near 0."""
    return apply(Expm1, as_tensor(x, "expm1"))


def log(x: Operand) -> Tensor:
    """The natural logarithm; −∞ at 0, NaN below."""
    return apply(Log, as_tensor(x, "log"))


def log1p(x: Operand) -> Tensor:
    """The natural logarithm of 1 + x, with no cancellation near 0."""
    return apply(Log1p, as_tensor(x, "log1p"))


def sqrt(x: Operand) -> Tensor:
    """The square root; NaN below 0. The gradient at 0 is ∞."""
    return apply(Sqrt, as_tensor(x, "sqrt"))


def rsqrt(x: Operand) -> Tensor:
    """1 / √x; ∞ at 0, NaN below."""
    return apply(Rsqrt, as_tensor(x, "rsqrt"))


def reciprocal(x: Operand) -> Tensor:
    """1 / x; integers give float64."""
    return apply(Reciprocal, as_tensor(x, "reciprocal"))


def sin(x: Operand) -> Tensor:
    """The sine of x in radians."""
    return apply(Sin, as_tensor(x, "sin"))


def cos(x: Operand) -> Tensor:
    """The cosine of x in radians."""
    return apply(Cos, as_tensor(x, "cos"))


def tanh(input: Operand) -> Tensor:
    """The hyperbolic tangent of each element."""
    return apply(Tanh, as_tensor(input, "tanh"))


def _rounding(name: str, x: Operand) -> Tensor:
    x = as_tensor(x, name)
    return apply(Step, x, name=name) if is_float(x.dtype) else x.clone()
