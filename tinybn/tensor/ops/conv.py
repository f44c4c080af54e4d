"""Convolution of images as one differentiable op."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import kernels
from ...errors import ShapeError
from ...kernels.recording import side_by_side
from ...kernels.windows import Windows, windows
from ..autocast import autocast_low
from ..dtypes import is_float
from ..tape import Array, Node, Op, apply
from ._operands import (
    check_devices,
    check_optional_tensors,
    check_tensors,
    not_floating,
    promoted,
)
from ._sums import total

if TYPE_CHECKING:
    from ..tensor import Tensor


class Conv2d(Op):
    """y = weight slid over x, + bias; all three gradients are products of the same kind."""

    @staticmethod
    def forward(
        ctx: Node, x: Array, weight: Array, bias: Array | None, *, windows: Windows, groups: int,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        given = [a for a in (x, weight, bias) if a is not None]
        need_x, need_weight, _ = ctx.needs
        ctx.save(
            x if need_weight else None, weight if need_x else None, x.shape, weight.shape,
            [a.dtype for a in given], windows, groups,
        )  # fmt: skip
        return kernels.conv2d_forward(
            *promoted(x, weight, bias), windows=windows, groups=groups, out=out
        )

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, x_shape, weight_shape, dtypes, windows, groups = ctx.saved
        options: dict[str, Any] = dict(windows=windows, groups=groups)

        def of_input() -> Array:
            wide = weight.astype(grad.dtype, copy=False)
            dx = kernels.conv2d_backward_input(grad, wide, x_shape, **options)
            return dx.astype(dtypes[0], copy=False)

        def of_weight() -> Array:
            wide = x.astype(grad.dtype, copy=False)
            dweight = kernels.conv2d_backward_weight(grad, wide, weight_shape, **options)
            return dweight.astype(dtypes[1], copy=False)

        dx = dweight = None
        if weight is not None and x is not None:  # each alone leaves much of a GPU idle
            dx, dweight = side_by_side(of_input, of_weight)
        elif weight is not None:
            dx = of_input()
        elif x is not None:
            dweight = of_weight()
        dbias = total(grad, (0, 2, 3), dtype=dtypes[2]) if ctx.needs[2] else None
        return dx, dweight, dbias


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | tuple[int, int] = 1,
    padding: int | tuple[int, int] | str = 0,
    dilation: int | tuple[int, int] = 1,
    groups: int = 1,
) -> Tensor:
    """Filters slid over images: y[n, o] = bias[o] + Σ_c weight[o, c] ⋆ input[n, c].

    Args:
        input: [N, C, H, W] or [C, H, W], floating.
        weight: [O, C/groups, KH, KW].
        bias: [O], or None.
        stride: from one window to the next.
        padding: zeros around the image; ``"valid"`` for none, ``"same"`` for as many as give a
            result of the image's size (with stride 1).
        dilation: from one tap to the next.
        groups: how many sets of channels have filters of their own.

    Returns:
        [N, O, OH, OW], or [O, OH, OW], of the promoted dtype and in input's memory layout, with
        OH = (H + padding − dilation·(KH − 1) − 1)/stride + 1, rounded down.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.

    Source: Dumoulin and Visin 2016, https://arxiv.org/abs/1603.07285, chapter 2.
    """
    check_tensors(input=input, weight=weight)
    check_optional_tensors(bias=bias)
    check_devices("conv2d", *(t for t in (input, weight, bias) if t is not None))
    for name, tensor in (("input", input), ("weight", weight), ("bias", bias)):
        if tensor is not None and not is_float(tensor.dtype):
            raise not_floating(name, tensor)
    if input.ndim not in (3, 4) or weight.ndim != 4:
        raise ShapeError(
            f"input has shape {input.shape} and weight {weight.shape}; wanted [N, C, H, W] or "
            "[C, H, W], and [O, C/groups, KH, KW]"
        )
    slid = windows(weight.shape[2:], stride, padding, dilation, "the size of weight")
    batch = input if input.ndim == 4 else input.unsqueeze(0)
    y = apply(Conv2d, *autocast_low(batch, weight, bias), windows=slid, groups=groups)
    return y if input.ndim == 4 else y.squeeze(0)
