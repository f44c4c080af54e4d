"""Pooling layers."""

from __future__ import annotations

from ..arguments import switch
from ..kernels.pool.functions import check_divisor
from ..kernels.windows import adaptive_output, pooling
from ..tensor import Tensor
from .functional import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from .module import Module

Size = int | tuple[int, int]


class MaxPool2d(Module):
    """The largest element of each window.

    Args: as of :func:`tinybn.nn.functional.max_pool2d`.

    Raises:
        ArgumentError: for windows that do not fit, or switches that are no bools.
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        dilation: Size = 1,
        ceil_mode: bool = False,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.dilation = padding, dilation
        self.ceil_mode = switch("ceil_mode", ceil_mode)
        pooling(kernel_size, stride, padding, dilation)  # raises for what does not fit

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C, OH, OW]."""
        return max_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.dilation, self.ceil_mode
        )

    def extra_repr(self) -> str:
        return (
            f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}, "
            f"dilation={self.dilation}, ceil_mode={self.ceil_mode}"
        )


class AvgPool2d(Module):
    """The mean of each window.

    Args: as of :func:`tinybn.nn.functional.avg_pool2d`.

    Raises:
        ArgumentError: for windows that do not fit, or switches that are no bools.
    """

    def __init__(
        self,
        kernel_size: Size,
        stride: Size | None = None,
        padding: Size = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:
        super().__init__()
        self.kernel_size = kernel_size
        self.stride = kernel_size if stride is None else stride
        self.padding, self.ceil_mode = padding, switch("ceil_mode", ceil_mode)
        self.count_include_pad = switch("count_include_pad", count_include_pad)
        self.divisor_override = check_divisor(divisor_override)
        pooling(kernel_size, stride, padding)  # raises for what does not fit

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C, OH, OW]."""
        return avg_pool2d(
            input, self.kernel_size, self.stride, self.padding, self.ceil_mode,
            self.count_include_pad, self.divisor_override,
        )  # fmt: skip

    def extra_repr(self) -> str:
        return f"kernel_size={self.kernel_size}, stride={self.stride}, padding={self.padding}"


class AdaptiveAvgPool2d(Module):
    """Means of windows that share the image out.

    Args:
        output_size: as of :func:`tinybn.nn.functional.adaptive_avg_pool2d`.

    Raises:
        ArgumentError: for another output_size.
    """

    def __init__(self, output_size: int | tuple[int | None, int | None]) -> None:
        super().__init__()
        adaptive_output(output_size, (1, 1))  # raises for what is none
        self.output_size = output_size

    def forward(self, input: Tensor) -> Tensor:
        """[N, C, H, W] to [N, C, OH, OW]."""
        return adaptive_avg_pool2d(input, self.output_size)

    def extra_repr(self) -> str:
        return f"output_size={self.output_size}"


class GlobalAvgPool(AdaptiveAvgPool2d):
    """The mean of each channel's image: [N, C, H, W] to [N, C, 1, 1]."""

    def __init__(self) -> None:
        super().__init__(1)
