"""The operators of Tensor and its writes in place: one line each, the work is elsewhere."""

# mypy: disable-error-code="misc"
# (Every method's self is a Tensor: Tensor alone inherits from this class.)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import inplace
from .ops import compare, elementwise, index, matmul, unary
from .ops._operands import Operand, is_operand

if TYPE_CHECKING:
    from .tensor import Tensor


class Operators:
    """An operator returns NotImplemented for an operand that it does not know."""

    __slots__ = ()

    # Arithmetic operators

    def __add__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.add(self, other) if is_operand(other) else NotImplemented

    def __radd__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.add(other, self) if is_operand(other) else NotImplemented

    def __sub__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.sub(self, other) if is_operand(other) else NotImplemented

    def __rsub__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.sub(other, self) if is_operand(other) else NotImplemented

    def __mul__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.mul(self, other) if is_operand(other) else NotImplemented

    def __rmul__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.mul(other, self) if is_operand(other) else NotImplemented

    def __truediv__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.div(self, other) if is_operand(other) else NotImplemented

    def __rtruediv__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.div(other, self) if is_operand(other) else NotImplemented

    def __floordiv__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.floor_divide(self, other) if is_operand(other) else NotImplemented

    def __rfloordiv__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.floor_divide(other, self) if is_operand(other) else NotImplemented

    def __mod__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.remainder(self, other) if is_operand(other) else NotImplemented

    def __rmod__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.remainder(other, self) if is_operand(other) else NotImplemented

    def __pow__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.pow(self, other) if is_operand(other) else NotImplemented

    def __rpow__(self: Tensor, other: Operand) -> Tensor:
        return elementwise.pow(other, self) if is_operand(other) else NotImplemented

    def __matmul__(self: Tensor, other: Operand) -> Tensor:
        return matmul.matmul(self, other) if is_operand(other) else NotImplemented

    def __rmatmul__(self: Tensor, other: Operand) -> Tensor:
        return matmul.matmul(other, self) if is_operand(other) else NotImplemented

    def __neg__(self: Tensor) -> Tensor:
        return unary.neg(self)

    def __pos__(self: Tensor) -> Tensor:
        return self

    def __abs__(self: Tensor) -> Tensor:
        return unary.abs_(self)

    # Comparison and logic

    def __eq__(self: Tensor, other: object) -> Tensor:  # type: ignore[override]
        return compare.equal(self, other) if is_operand(other) else NotImplemented

    def __ne__(self: Tensor, other: object) -> Tensor:  # type: ignore[override]
        return compare.not_equal(self, other) if is_operand(other) else NotImplemented

    def __lt__(self: Tensor, other: Operand) -> Tensor:
        return compare.less(self, other) if is_operand(other) else NotImplemented

    def __le__(self: Tensor, other: Operand) -> Tensor:
        return compare.less_equal(self, other) if is_operand(other) else NotImplemented

    def __gt__(self: Tensor, other: Operand) -> Tensor:
        return compare.greater(self, other) if is_operand(other) else NotImplemented

    def __ge__(self: Tensor, other: Operand) -> Tensor:
        return compare.greater_equal(self, other) if is_operand(other) else NotImplemented

    __hash__ = object.__hash__  # by identity: == compares the elements

    def __and__(self: Tensor, other: Operand) -> Tensor:
        return compare.bitwise_and(self, other) if is_operand(other) else NotImplemented

    __rand__ = __and__

    def __or__(self: Tensor, other: Operand) -> Tensor:
        return compare.bitwise_or(self, other) if is_operand(other) else NotImplemented

    __ror__ = __or__

    def __xor__(self: Tensor, other: Operand) -> Tensor:
        return compare.bitwise_xor(self, other) if is_operand(other) else NotImplemented

    __rxor__ = __xor__

    def __invert__(self: Tensor) -> Tensor:
        return compare.bitwise_not(self)

    # Indexing and writing in place

    def __getitem__(self: Tensor, where: Any) -> Tensor:
        return index.getitem(self, where)

    def __setitem__(self: Tensor, where: Any, value: Any) -> None:
        inplace.setitem(self, where, value)

    def add_(self: Tensor, other: Operand) -> Tensor:
        """self + other, in this tensor's memory."""
        return inplace.arithmetic(self, "add", "add", other)

    def sub_(self: Tensor, other: Operand) -> Tensor:
        """self − other, in this tensor's memory."""
        return inplace.arithmetic(self, "sub", "subtract", other)

    def mul_(self: Tensor, other: Operand) -> Tensor:
        """self · other, in this tensor's memory."""
        return inplace.arithmetic(self, "mul", "multiply", other)

    def div_(self: Tensor, other: Operand) -> Tensor:
        """self / other, in this tensor's memory."""
        return inplace.arithmetic(self, "div", "true_divide", other)

    def __iadd__(self: Tensor, other: Operand) -> Tensor:
        return self.add_(other) if is_operand(other) else NotImplemented

    def __isub__(self: Tensor, other: Operand) -> Tensor:
        return self.sub_(other) if is_operand(other) else NotImplemented

    def __imul__(self: Tensor, other: Operand) -> Tensor:
        return self.mul_(other) if is_operand(other) else NotImplemented

    def __itruediv__(self: Tensor, other: Operand) -> Tensor:
        return self.div_(other) if is_operand(other) else NotImplemented

    def copy_(self: Tensor, source: Operand) -> Tensor:
        """Write ``source``, broadcast, into this tensor's memory."""
        return inplace.overwrite(self, "copy_", source)

    def fill_(self: Tensor, value: float) -> Tensor:
        """Write ``value`` into every element."""
        return inplace.overwrite(self, "fill_", value)

    def zero_(self: Tensor) -> Tensor:
        """Write 0 into every element."""
        return inplace.overwrite(self, "zero_", False)

    def clamp_(self: Tensor, min: Operand | None = None, max: Operand | None = None) -> Tensor:
        """Limit every element to [min, max], in this tensor's memory."""
        return inplace.clamp(self, min, max)
