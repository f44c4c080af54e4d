"""The activation functions of neural networks.

float16 and bfloat16 are computed in float32 and rounded once. No input, however
large, overflows on the way.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ...arguments import choice, number
from ...errors import ArgumentError
from ...kernels.arrays import Array, keep, namespace
from ...kernels.special import erfc
from ..tape import Node, Op, apply
from ._operands import Operand, as_tensor, narrow, wide

if TYPE_CHECKING:
    from ..tensor import Tensor

Grads = tuple[Array | None, ...]

GELUS = ("none", "tanh")  # exact, and the paper's approximation

# From these distances on, σ and Φ are 0 or 1 in float64. Bringing x back to them
# changes no finite result and keeps ∞ · 0 from making a NaN.
_FAR = 800.0
_FAR_NORMAL = 40.0


class ReLU(Op):
    """y = max(x, 0); dx = dy where x > 0, and 0 at 0."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, out: Array | None = None) -> Array:
        y = namespace(x).maximum(x, x.dtype.type(0), out=out)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        (y,) = ctx.saved
        return (keep(y != 0, grad),)


class Sigmoid(Op):
    """y = 1 / (1 + e^−x); dx = dy y (1 − y)."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        y = narrow(_sigmoid(wide(x)), x)
        ctx.save(y)
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        y = wide(ctx.saved[0])
        return (wide(grad) * (y * (1 - y)),)


class SiLU(Op):
    """y = x σ(x); dx = dy σ(x) (1 + x (1 − σ(x)))."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        x_wide = _above(wide(x), -_FAR)
        return narrow(x_wide * _sigmoid(x_wide), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        x = _within(wide(ctx.saved[0]), _FAR)
        return (wide(grad) * (_sigmoid(x) * (1 + x * _sigmoid(-x))),)


class Softplus(Op):
    """y = log(1 + e^(βx)) / β, and x itself where βx > threshold; dx = dy σ(βx)."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, beta: float, threshold: float) -> Array:
        ctx.save(x, beta, threshold)
        xp = namespace(x)
        x_wide = wide(x)
        z = beta * x_wide
        # log(1 + e^z) = max(z, 0) + log(1 + e^−|z|), where nothing overflows.
        soft = (xp.maximum(z, z.dtype.type(0)) + xp.log1p(xp.exp(-abs(z)))) / beta
        return narrow(xp.where(z > threshold, x_wide, soft), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        x, beta, threshold = ctx.saved
        z = beta * wide(x)
        slope = _sigmoid(z)
        return (wide(grad) * namespace(x).where(z > threshold, slope.dtype.type(1), slope),)


class GELU(Op):
    """y = x Φ(x), Φ the normal distribution; dx = dy (Φ(x) + x φ(x)).

    Hendrycks and Gimpel, Gaussian Error Linear Units, 2016.
    """

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        x_wide = _above(wide(x), -_FAR_NORMAL)
        return narrow(x_wide * _normal_cdf(x_wide), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        x = _within(wide(ctx.saved[0]), _FAR_NORMAL)
        density = namespace(x).exp(-0.5 * x * x) * (1 / math.sqrt(2 * math.pi))
        return (wide(grad) * (_normal_cdf(x) + x * density),)


class GELUTanh(Op):
    """y = x (1 + tanh u) / 2 with u = √(2/π) (x + 0.044715 x³), the same paper's approximation."""

    @staticmethod
    def forward(ctx: Node, x: Array) -> Array:
        ctx.save(x)
        x_wide = _above(wide(x), -_FAR_NORMAL)
        return narrow(x_wide * _sigmoid(2 * _gelu_argument(x_wide)), x)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> Grads:
        x = _within(wide(ctx.saved[0]), _FAR_NORMAL)
        # (1 + tanh u) / 2 is σ(2u), whose slope is 2 u' σ(2u) σ(−2u).
        u = _gelu_argument(x)
        s = _sigmoid(2 * u)
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * x * x)
        return (wide(grad) * (s + 2 * x * slope * s * _sigmoid(-2 * u)),)


def _above(x: Array, low: float) -> Array:
    return namespace(x).maximum(x, x.dtype.type(low))


def _within(x: Array, far: float) -> Array:
    return namespace(x).minimum(_above(x, -far), x.dtype.type(far))


def _sigmoid(x: Array) -> Array:
    # Only e^−|x| is ever taken: it is at most 1. The two forms are the same number.
    xp = namespace(x)
    e = xp.exp(-abs(x))
    return xp.where(x >= 0, x.dtype.type(1), e) / (1 + e)


def _normal_cdf(x: Array) -> Array:
    # erfc, not 1 + erf, which would lose all digits of the left tail.
    return 0.5 * erfc(x * -math.sqrt(0.5))


def _gelu_argument(x: Array) -> Array:
    return math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)


def relu(input: Operand) -> Tensor:
    """max(input, 0), of input's dtype; NaN stays NaN. The gradient at 0 is 0."""
    return apply(ReLU, as_tensor(input, "relu"))


def sigmoid(input: Operand) -> Tensor:
    """1 / (1 + e^−input), between 0 and 1."""
    return apply(Sigmoid, as_tensor(input, "sigmoid"))


def silu(input: Operand) -> Tensor:
    """input · sigmoid(input), also called swish.

    Source: Elfwing et al. 2017, https://arxiv.org/abs/1702.03118.
    """
    return apply(SiLU, as_tensor(input, "silu"))


def softplus(input: Operand, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + e^(beta · input)) / beta, a smooth relu; input where beta · input > threshold.

    Raises:
        ArgumentError: for beta = 0.
    """
    beta, threshold = number("beta", beta), number("threshold", threshold, infinite=True)
    if beta == 0:
        raise ArgumentError("beta is 0; wanted another number")
    return apply(Softplus, as_tensor(input, "softplus"), beta=beta, threshold=threshold)


def gelu(input: Operand, approximate: str = "none") -> Tensor:
    """input · Φ(input), Φ being the normal distribution function.

    Args:
        approximate: ``"none"`` for Φ itself, ``"tanh"`` for the paper's approximation.

    Raises:
        ArgumentError: for another ``approximate``.

    Source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.
    """
    choice("approximate", approximate, GELUS)
    return apply(GELU if approximate == "none" else GELUTanh, as_tensor(input, "gelu"))
