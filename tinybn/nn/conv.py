"""Conv2d."""

from __future__ import annotations

import math
from typing import Any

from ..arguments import choice, integer, switch
from ..errors import ArgumentError
from ..kernels.windows import windows
from ..tensor import Tensor, zeros
from ..tensor.device import Device
from ..tensor.dtypes import float32
from .functional import conv2d
from .init import uniform_
from .module import Module
from .parameter import Parameter

Size = int | tuple[int, int]


class Conv2d(Module):
    """Filters slid over images, each giving a channel of the result.

    Weight and bias are drawn uniformly from ±1/sqrt(C/groups·KH·KW), PyTorch's default (He et
    al. 2015, https://arxiv.org/abs/1502.01852, with a = sqrt(5)).

    Args:
        in_channels, out_channels: C and O, multiples of ``groups``.
        kernel_size: KH and KW.
        stride, padding, dilation, groups: as in :func:`tinybn.nn.functional.conv2d`.
        bias: whether to add one.
        padding_mode: ``"zeros"``.
        device, dtype: of the parameters; float32 where not given.

    Attributes:
        weight: [O, C/groups, KH, KW].
        bias: [O], or None.

    Raises:
        ArgumentError: for sizes that do not fit, or a bias that is no bool.
    """

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Size,
        stride: Size = 1,
        padding: Size | str = 0,
        dilation: Size = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: str | Device | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.in_channels = integer("in_channels", in_channels, 1)
        self.out_channels = integer("out_channels", out_channels, 1)
        self.groups = integer("groups", groups, 1)
        if self.in_channels % self.groups or self.out_channels % self.groups:
            raise ArgumentError(
                f"Conv2d has {in_channels} channels in, {out_channels} out and {groups} groups; "
                "wanted multiples of groups"
            )
        choice("padding_mode", padding_mode, ("zeros",))
        slid = windows(kernel_size, stride, padding, dilation)
        biased = switch("bias", bias)
        self.kernel_size, self.stride, self.dilation = slid.kernel, slid.stride, slid.dilation
        self.padding = padding if isinstance(padding, str) else slid.before
        place: dict[str, Any] = {"dtype": float32 if dtype is None else dtype, "device": device}
        shape = (self.out_channels, self.in_channels // self.groups, *self.kernel_size)
        self.weight = Parameter(zeros(*shape, **place))
        added = Parameter(zeros(self.out_channels, **place)) if biased else None
        self.register_parameter("bias", added)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weight and bias anew."""
        bound = 1 / math.sqrt(self.weight.size // self.out_channels)
        for param in self.parameters(recurse=False):
            uniform_(param, -bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] or [C, H, W] to [N, O, OH, OW] or [O, OH, OW]."""
        return conv2d(
            input, self.weight, self.bias, self.stride, self.padding, self.dilation, self.groups
        )

    def extra_repr(self) -> str:
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, "
            f"stride={self.stride}"
        )
        for name, value, usual in (
            ("padding", self.padding, (0, 0)), ("dilation", self.dilation, (1, 1)),
            ("groups", self.groups, 1), ("bias", self.bias is not None, True),
        ):  # fmt: skip
            if value != usual:
                text += f", {name}={value!r}"
        return text
