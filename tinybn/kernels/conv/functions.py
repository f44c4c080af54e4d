"""Convolution of images, and its gradients."""

from __future__ import annotations

from ...arguments import integer
from ...errors import ShapeError
from .. import layout
from ..arrays import Array, contiguous, namespace
from ..checks import check_finish, check_like, check_nchw, check_out
from ..engines import implementation
from ..results import contiguous_or_none, result_in, written
from ..windows import Windows


def conv2d_forward(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    *,
    windows: Windows,
    groups: int = 1,
    addend: Array | None = None,
    activation: str | None = None,
    out: Array | None = None,
) -> Array:
    """y[n, o] = bias[o] + Σ over channels c of o's group: weight[o, c] slid over x[n, c].

    With ``addend`` and ``activation`` it is activation(that + addend), rounded once.

    Args:
        x: [N, C, H, W], floating, C-contiguous or channels-last, which y is then too.
        weight: [O, C/groups, KH, KW] of x's dtype.
        bias: [O] of x's dtype, or None.
        windows: size, stride, padding and dilation of the filters; their size is weight's.
        groups: how many sets of channels have filters of their own.
        addend: of y's shape and dtype, such as a residual connection's, or None.
        activation: None, ``"relu"``, ``"silu"`` or ``"gelu"`` (exact).
        out: where y is written, [N, O, OH, OW] of x's dtype.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.

    Source: Dumoulin and Visin 2016, https://arxiv.org/abs/1603.07285, chapter 2.
    """
    check_nchw(x)
    check_like(x, "x", weight=weight)
    shape = _result_shape(x.shape, weight.shape, windows, groups)
    if bias is not None:
        check_like(x, "x", bias=bias)
        if bias.shape != weight.shape[:1]:
            raise ShapeError(f"bias has shape {bias.shape}; wanted {weight.shape[:1]}")
    check_finish(x, shape, addend, activation)
    if out is not None:
        check_out(out, x, shape, x.dtype)
    x = layout.dense(x)
    y = result_in(out, layout.image(x, shape), x, weight, bias, addend)
    if y.size:
        implementation("conv2d_forward", x)(
            x, contiguous(weight), contiguous_or_none(bias), y, windows=windows, groups=groups,
            addend=None if addend is None else layout.in_layout_of(addend, y),
            activation=activation,
        )  # fmt: skip
    return written(y, out)


def conv2d_backward_input(
    dy: Array, weight: Array, x_shape: tuple[int, ...], *, windows: Windows, groups: int = 1
) -> Array:
    """The gradient of x, in dy's memory layout.

    An infinite or NaN weight reaches the elements under its tap; on a GPU all others too, as NaN.

    Args:
        dy: [N, O, OH, OW], the gradient of y.
        weight, windows, groups: as forward had them.
        x_shape: (N, C, H, W).

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.
    """
    check_nchw(dy)
    check_like(dy, "dy", weight=weight)
    _check_gradient(dy, _result_shape(x_shape, weight.shape, windows, groups))
    dy = layout.dense(dy)
    dx = layout.image(dy, x_shape)
    if dy.size and dx.size:
        implementation("conv2d_backward_input", dy)(
            dy, contiguous(weight), dx, windows=windows, groups=groups
        )
    else:
        dx[...] = 0
    return dx


def conv2d_backward_weight(
    dy: Array, x: Array, weight_shape: tuple[int, ...], *, windows: Windows, groups: int = 1
) -> Array:
    """The gradient of weight.

    Args:
        dy: [N, O, OH, OW], the gradient of y.
        x, windows, groups: as forward had them.
        weight_shape: (O, C/groups, KH, KW).

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.
    """
    check_nchw(dy)
    check_nchw(x)
    check_like(dy, "dy", x=x)
    _check_gradient(dy, _result_shape(x.shape, weight_shape, windows, groups))
    x, dy = layout.dense(x), layout.dense(dy)
    dweight = namespace(x).empty(weight_shape, x.dtype)
    if dy.size and x.size:
        implementation("conv2d_backward_weight", x)(dy, x, dweight, windows=windows, groups=groups)
    else:
        dweight[...] = 0
    return dweight


def _result_shape(
    x_shape: tuple[int, ...], weight_shape: tuple[int, ...], windows: Windows, groups: int
) -> tuple[int, ...]:
    """The shape of y; raises unless all four belong together."""
    groups = integer("groups", groups, 1)
    images = len(x_shape) == len(weight_shape) == 4 and tuple(weight_shape[2:]) == windows.kernel
    if not images or x_shape[1] != groups * weight_shape[1] or weight_shape[0] % groups:
        raise ShapeError(
            f"x has shape {tuple(x_shape)}, weight {tuple(weight_shape)} and groups is {groups}; "
            f"wanted [N, C, H, W] and [O, C/groups, {windows.kernel[0]}, {windows.kernel[1]}], O a "
            "multiple of groups"
        )
    return x_shape[0], weight_shape[0], *windows.output((x_shape[2], x_shape[3]))


def _check_gradient(dy: Array, wanted: tuple[int, ...]) -> None:
    if dy.shape != wanted:
        raise ShapeError(f"dy has shape {dy.shape}; wanted that of y, {wanted}")
