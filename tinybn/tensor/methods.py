"""The methods of Tensor that compute: one line each, the work is in ``ops``."""

# mypy: disable-error-code="misc"
# (Every method's self is a Tensor: Tensor alone inherits from this class.)

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .conversion import Conversions
from .operators import Operators
from .ops import (
    activation,
    compare,
    elementwise,
    join,
    matmul,
    reduce,
    shape,
    softmax,
    unary,
)
from .ops._operands import Operand

if TYPE_CHECKING:
    from .tensor import Tensor

Axis = int | tuple[int, ...] | None


class TensorMethods(Operators, Conversions):
    """What Tensor inherits; each method is the documented function of that name in ``ops``."""

    __slots__ = ()

    # Element by element; each is the function of the same name in ops

    def exp(self: Tensor) -> Tensor:
        """e to the power of each element."""
        return unary.exp(self)

    def expm1(self: Tensor) -> Tensor:
        """exp(self) − 1, right near 0."""
        return unary.expm1(self)

    def log(self: Tensor) -> Tensor:
        """The natural logarithm."""
        return unary.log(self)

    def log1p(self: Tensor) -> Tensor:
        """log(1 + self), right near 0."""
        return unary.log1p(self)

    def sqrt(self: Tensor) -> Tensor:
        """The square root."""
        return unary.sqrt(self)

    def rsqrt(self: Tensor) -> Tensor:
        """1 / √self."""
        return unary.rsqrt(self)

    def reciprocal(self: Tensor) -> Tensor:
        """1 / self."""
        return unary.reciprocal(self)

    def square(self: Tensor) -> Tensor:
        """self · self."""
        return unary.square(self)

    def softmax(self: Tensor, axis: int = -1) -> Tensor:
        """exp(self) / Σ exp(self) along ``axis``."""
        return softmax.softmax(self, axis)

    def log_softmax(self: Tensor, axis: int = -1) -> Tensor:
        """The logarithm of softmax along ``axis``."""
        return softmax.log_softmax(self, axis)

    def abs(self: Tensor) -> Tensor:
        """The absolute value."""
        return unary.abs_(self)

    def neg(self: Tensor) -> Tensor:
        """−self."""
        return unary.neg(self)

    def sign(self: Tensor) -> Tensor:
        """−1, 0 or 1."""
        return unary.sign(self)

    def floor(self: Tensor) -> Tensor:
        """The largest whole number not above."""
        return unary.floor(self)

    def ceil(self: Tensor) -> Tensor:
        """The smallest whole number not below."""
        return unary.ceil(self)

    def round(self: Tensor) -> Tensor:
        """The nearest whole number, ties to even."""
        return unary.round(self)

    def sin(self: Tensor) -> Tensor:
        """The sine."""
        return unary.sin(self)

    def cos(self: Tensor) -> Tensor:
        """The cosine."""
        return unary.cos(self)

    def tanh(self: Tensor) -> Tensor:
        """The hyperbolic tangent."""
        return unary.tanh(self)

    def sigmoid(self: Tensor) -> Tensor:
        """1 / (1 + e^−self)."""
        return activation.sigmoid(self)

    def relu(self: Tensor) -> Tensor:
        """max(self, 0)."""
        return activation.relu(self)

    def isnan(self: Tensor) -> Tensor:
        """Whether each element is NaN."""
        return compare.isnan(self)

    def isinf(self: Tensor) -> Tensor:
        """Whether each element is infinite."""
        return compare.isinf(self)

    def isfinite(self: Tensor) -> Tensor:
        """Whether each element is finite."""
        return compare.isfinite(self)

    def add(self: Tensor, other: Operand) -> Tensor:
        """self + other."""
        return elementwise.add(self, other)

    def sub(self: Tensor, other: Operand) -> Tensor:
        """self − other."""
        return elementwise.sub(self, other)

    def mul(self: Tensor, other: Operand) -> Tensor:
        """self · other."""
        return elementwise.mul(self, other)

    def div(self: Tensor, other: Operand) -> Tensor:
        """self / other."""
        return elementwise.div(self, other)

    def pow(self: Tensor, exponent: Operand) -> Tensor:
        """self to the power ``exponent``."""
        return elementwise.pow(self, exponent)

    def maximum(self: Tensor, other: Operand) -> Tensor:
        """The larger of the two."""
        return elementwise.maximum(self, other)

    def minimum(self: Tensor, other: Operand) -> Tensor:
        """The smaller of the two."""
        return elementwise.minimum(self, other)

    def clip(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """self limited to [min, max]."""
        return elementwise.clip(self, min, max)

    clamp = clip

    def where(self: Tensor, condition: Operand, other: Operand) -> Tensor:
        """self where ``condition`` holds, else other."""
        return elementwise.where(condition, self, other)

    def clone(self: Tensor) -> Tensor:
        """A differentiable copy in memory of its own."""
        return elementwise.clone(self)

    def contiguous(self: Tensor) -> Tensor:
        """This tensor if its memory is in C order, else a copy that is."""
        return self if self.is_contiguous() else elementwise.clone(self, order="C")

    # Reductions

    def sum(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The sum over ``axis``."""
        return reduce.sum(self, axis, keepdims)

    def mean(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The arithmetic mean over ``axis``."""
        return reduce.mean(self, axis, keepdims)

    def var(
        self: Tensor, axis: Axis = None, *, correction: float = 1, keepdims: bool = False
    ) -> Tensor:
        """The variance over ``axis``, unbiased unless ``correction=0``."""
        return reduce.var(self, axis, correction=correction, keepdims=keepdims)

    def std(
        self: Tensor, axis: Axis = None, *, correction: float = 1, keepdims: bool = False
    ) -> Tensor:
        """The standard deviation over ``axis``, the root of :meth:`var`."""
        return reduce.std(self, axis, correction=correction, keepdims=keepdims)

    def max(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The largest element over ``axis``."""
        return reduce.max(self, axis, keepdims)

    def min(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """The smallest element over ``axis``."""
        return reduce.min(self, axis, keepdims)

    def argmax(self: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first largest element along ``axis``."""
        return reduce.argmax(self, axis, keepdims)

    def argmin(self: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        """The index of the first smallest element along ``axis``."""
        return reduce.argmin(self, axis, keepdims)

    def any(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether an element over ``axis`` is not 0."""
        return reduce.any(self, axis, keepdims)

    def all(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Whether all elements over ``axis`` are not 0."""
        return reduce.all(self, axis, keepdims)

    def cumsum(self: Tensor, axis: int | None = None) -> Tensor:
        """The running sum along ``axis``."""
        return reduce.cumsum(self, axis)

    def logsumexp(self: Tensor, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """log Σ exp(self) over ``axis``, without overflow."""
        return softmax.logsumexp(self, axis, keepdims)

    # Shape and products

    @property
    def T(self: Tensor) -> Tensor:
        """The axes in reverse order, as a view."""
        return shape.transpose(self)

    def reshape(self: Tensor, *sizes: Any) -> Tensor:
        """The same elements in another shape; one size may be −1."""
        return shape.reshape(self, *sizes)

    view = reshape

    def flatten(self: Tensor, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes from ``start_dim`` to ``end_dim`` made into one."""
        return shape.flatten(self, start_dim, end_dim)

    def squeeze(self: Tensor, axis: Axis = None) -> Tensor:
        """Without the axes of size 1."""
        return shape.squeeze(self, axis)

    def unsqueeze(self: Tensor, axis: int) -> Tensor:
        """With a new axis of size 1."""
        return shape.unsqueeze(self, axis)

    def permute(self: Tensor, *axes: Any) -> Tensor:
        """The axes in the order given."""
        return shape.permute(self, *axes)

    def transpose(self: Tensor, *axes: Any) -> Tensor:
        """Two axes exchanged, or all of them in the order given (none: reversed)."""
        # (0, 1) of a matrix is PyTorch's exchange, not NumPy's order of all axes.
        return shape.swapaxes(self, *axes) if len(axes) == 2 else shape.transpose(self, *axes)

    def swapaxes(self: Tensor, axis1: int, axis2: int) -> Tensor:
        """Two axes exchanged."""
        return shape.swapaxes(self, axis1, axis2)

    def moveaxis(
        self: Tensor, source: int | Sequence[int], destination: int | Sequence[int]
    ) -> Tensor:
        """Axes moved to new places."""
        return shape.moveaxis(self, source, destination)

    def expand(self: Tensor, *sizes: Any) -> Tensor:
        """Broadcast to a shape, as a view; −1 keeps a size."""
        return shape.expand(self, *sizes)

    def broadcast_to(self: Tensor, sizes: Sequence[int]) -> Tensor:
        """Broadcast to a shape, as a view."""
        return shape.broadcast_to(self, sizes)

    def split(self: Tensor, size: int | Sequence[int], axis: int = 0) -> tuple[Tensor, ...]:
        """Pieces of ``size`` along ``axis``."""
        return join.split(self, size, axis)

    def chunk(self: Tensor, chunks: int, axis: int = 0) -> tuple[Tensor, ...]:
        """At most ``chunks`` equal pieces along ``axis``."""
        return join.chunk(self, chunks, axis)

    def matmul(self: Tensor, other: Operand) -> Tensor:
        """The matrix product self @ other."""
        return matmul.matmul(self, other)
