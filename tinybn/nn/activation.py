"""Activations and Dropout as modules; the functions are in ``functional``."""

from __future__ import annotations

from ..arguments import choice, integer, number
from ..tensor import Tensor
from ..tensor.ops.activation import GELUS
from . import functional as F
from .module import Module


class ReLU(Module):
    """max(x, 0)."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element."""
        return F.relu(input)


class GELU(Module):
    """x·Φ(x) (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).

    Args:
        approximate: ``"none"``, or ``"tanh"`` for the paper's approximation.

    Raises:
        ArgumentError: for another.
    """

    def __init__(self, approximate: str = "none") -> None:
        super().__init__()
        self.approximate = choice("approximate", approximate, GELUS)

    def forward(self, input: Tensor) -> Tensor:
        """Element by element."""
        return F.gelu(input, approximate=self.approximate)

    def extra_repr(self) -> str:
        return f"approximate={self.approximate!r}"


class SiLU(Module):
    """x·sigmoid(x) (Elfwing et al. 2017, https://arxiv.org/abs/1702.03118)."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element."""
        return F.silu(input)


class Tanh(Module):
    """tanh(x)."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element."""
        return F.tanh(input)


class Sigmoid(Module):
    """1/(1 + exp(−x))."""

    def forward(self, input: Tensor) -> Tensor:
        """Element by element."""
        return F.sigmoid(input)


class _AlongAxis(Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = integer("dim", dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"


class Softmax(_AlongAxis):
    """exp(x) over its sum along axis ``dim``.

    Raises:
        ArgumentError: for a ``dim`` that is no integer.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Of the input's shape."""
        return F.softmax(input, self.dim)


class LogSoftmax(_AlongAxis):
    """log of the softmax along axis ``dim``.

    Raises:
        ArgumentError: for a ``dim`` that is no integer.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Of the input's shape."""
        return F.log_softmax(input, self.dim)


class Dropout(Module):
    """In training, 0 with probability ``p`` and x/(1 − p) otherwise; x in evaluation.

    Srivastava et al. 2014, JMLR 15:1929.

    Raises:
        ArgumentError: unless 0 ≤ p ≤ 1.
    """

    def __init__(self, p: float = 0.5) -> None:
        super().__init__()
        self.p = number("p", p, least=0, most=1)

    def forward(self, input: Tensor) -> Tensor:
        """Of the input's shape."""
        return F.dropout(input, self.p, self.training)

    def extra_repr(self) -> str:
        return f"p={self.p}"
