"""Linear, Flatten and Identity."""

from __future__ import annotations

import math
from typing import Any

from ..arguments import integer, switch
from ..tensor import Tensor, zeros
from ..tensor.device import Device
from ..tensor.dtypes import float32
from .functional import linear
from .init import uniform_
from .module import Module
from .parameter import Parameter


class Linear(Module):
    """y = x·weightᵀ + bias.

    Both are drawn uniformly from ±1/sqrt(in_features), PyTorch's default (He et
    al. 2015, https://arxiv.org/abs/1502.01852, with a = sqrt(5)).

    Args:
        in_features: the size of the input's last axis.
        out_features: the size of the result's.
        bias: whether to add one.
        device, dtype: of the parameters; float32 where not given.

    Attributes:
        weight: [out_features, in_features].
        bias: [out_features], or None.

    Raises:
        ArgumentError: for sizes that are no integers of at least 1, or a bias that is no bool.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: str | Device | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_features = integer("in_features", in_features, 1)
        self.out_features = integer("out_features", out_features, 1)
        biased = switch("bias", bias)
        place: dict[str, Any] = {"dtype": float32 if dtype is None else dtype, "device": device}
        self.weight = Parameter(zeros(self.out_features, self.in_features, **place))
        added = Parameter(zeros(self.out_features, **place)) if biased else None
        self.register_parameter("bias", added)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        bound = 1 / math.sqrt(self.in_features)
        for param in self.parameters(recurse=False):
            uniform_(param, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """[…, in_features] to […, out_features]; float64 inputs give float64.

        Raises:
            DTypeError: for integers; ``input.float()``, of images divided by 255, is floating.
        """
        return linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"bias={self.bias is not None}"
        )


class Flatten(Module):
    """Join the axes from ``start_dim`` to ``end_dim`` into one: images to rows.

    Raises:
        ArgumentError: for axes that are no integers.
    """

    def __init__(self, start_dim: int = 1, end_dim: int = -1) -> None:
        super().__init__()
        self.start_dim, self.end_dim = integer("start_dim", start_dim), integer("end_dim", end_dim)

    def forward(self, input: Tensor) -> Tensor:
        """[N, …] to [N, the rest], with the defaults."""
        return input.flatten(self.start_dim, self.end_dim)

    def extra_repr(self) -> str:
        return f"start_dim={self.start_dim}, end_dim={self.end_dim}"


class Identity(Module):
    """Returns its input; stands where a layer may be left out."""

    def forward(self, input: Tensor) -> Tensor:
        """The input itself."""
        return input
