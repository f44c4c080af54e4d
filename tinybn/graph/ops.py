"""The RuntimeOps of layers: each names an operation of the tape, its operands and parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import kernels
from ..arguments import integer, integers, number, switch
from ..errors import ArgumentError, ArgumentTypeError, ShapeError
from ..kernels.arrays import Array
from ..kernels.checks import check_activation
from ..kernels.windows import Windows, windows
from ..tensor.ops import activation, elementwise, reduce, shape, softmax, unary
from ..tensor.ops._operands import promoted
from ..tensor.ops.batch_norm import BatchNormFrozen, BatchNormTraining
from ..tensor.ops.conv import Conv2d
from ..tensor.ops.cross_entropy import CrossEntropy
from ..tensor.ops.matmul import Linear
from ..tensor.ops.pool import AvgPool2d, MaxPool2d
from ..tensor.tape import Node, Op
from .runtime_op import Operand, RuntimeOp, Slot

Size = int | tuple[int, int]


class _FinishedLinear(Op):
    """y = activation(x·weightᵀ + bias + residual) in one launch; inference alone."""

    @staticmethod
    def forward(
        ctx: Node, x: Array, weight: Array, bias: Array | None, residual: Array | None = None, *,
        activation: str | None, out: Array | None = None,
    ) -> Array:  # fmt: skip
        x, weight, bias = promoted(x, weight, bias)
        flat = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        rows, shape = (len(flat), len(weight)), (*x.shape[:-1], len(weight))
        if residual is not None and residual.shape != shape:
            raise ShapeError(f"the residual has shape {residual.shape}; wanted {shape}")
        y = kernels.matmul(
            flat, weight.T, bias, addend=None if residual is None else residual.reshape(rows),
            activation=activation, out=None if out is None else out.reshape(rows),
        )  # fmt: skip
        return y.reshape(shape)


class _FinishedConv2d(Op):
    """y = activation(weight ⋆ x + bias + residual) in one launch; inference alone."""

    @staticmethod
    def forward(
        ctx: Node, x: Array, weight: Array, bias: Array | None, residual: Array | None = None, *,
        windows: Windows, groups: int, activation: str | None, out: Array | None = None,
    ) -> Array:  # fmt: skip
        x, weight, bias = promoted(x, weight, bias)
        return kernels.conv2d_forward(
            x, weight, bias, windows=windows, groups=groups, addend=residual,
            activation=activation, out=out,
        )  # fmt: skip


class _Product(RuntimeOp):
    """A product with weight and bias, which a residual and an activation may finish.

    What finishes it (others say: its epilogue) is done to its sums before they are written.
    """

    takes_out = True
    finished: type[Op]

    def __init__(
        self, weight: tuple[int, ...], bias: bool, activation: str | None, residual: bool,
        **options: Any,
    ) -> None:  # fmt: skip
        check_activation(activation)
        bias, residual = switch("bias", bias), switch("residual", residual)
        slots = {"weight": Slot(weight)} | ({"bias": Slot(weight[:1])} if bias else {})
        operands: list[Operand] = [0, "weight", "bias" if bias else None]
        if activation is not None or residual:
            self.op = self.finished  # type: ignore[misc]
            self.has_backward = False
            options["activation"] = activation
            operands += [1] if residual else []
            self.inputs = 2 if residual else 1
        super().__init__(slots, operands, **options)


class LinearRuntimeOp(_Product):
    """y = activation(x·weightᵀ + bias + residual): [..., in] to [..., out].

    Args:
        in_features, out_features: the sizes of the last axis.
        bias: whether there is one.
        activation: None, ``"relu"``, ``"silu"`` or ``"gelu"``.
        residual: whether a second input, of y's shape, is added before the activation.

    With an activation or residual it has no backward. Slots: weight [out, in], bias [out].
    """

    op = Linear
    finished = _FinishedLinear

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True, *,
        activation: str | None = None, residual: bool = False,
    ) -> None:  # fmt: skip
        sizes = integer("out_features", out_features, 1), integer("in_features", in_features, 1)
        super().__init__(sizes, bias, activation, residual)


class Conv2dRuntimeOp(_Product):
    """y = activation(weight ⋆ x + bias + residual): [N, C, H, W] to [N, O, OH, OW].

    Args:
        in_channels, out_channels: C and O.
        kernel_size: of the filters, or their :class:`Windows`, which say the next three too.
        stride, padding, dilation, groups, bias: as of ``nn.Conv2d``.
        activation, residual: as of :class:`LinearRuntimeOp`.

    Slots: weight [O, C/groups, KH, KW], bias [O].
    """

    op = Conv2d
    finished = _FinishedConv2d

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size | Windows,
        stride: Size = 1, padding: Size | str = 0, dilation: Size = 1, groups: int = 1,
        bias: bool = True, *, activation: str | None = None, residual: bool = False,
    ) -> None:  # fmt: skip
        in_channels = integer("in_channels", in_channels, 1)
        out_channels = integer("out_channels", out_channels, 1)
        groups = integer("groups", groups, 1)
        if in_channels % groups or out_channels % groups:
            raise ArgumentError(
                f"{in_channels} channels to {out_channels} in {groups} groups; wanted both to be "
                "multiples of the groups"
            )
        slid = _slid(kernel_size, stride, padding, dilation)
        super().__init__(
            (out_channels, in_channels // groups, *slid.kernel), bias, activation, residual,
            windows=slid, groups=groups,
        )  # fmt: skip

    def describe(self) -> str:
        shown = f"{_text(self.options['windows'])}, groups={self.options['groups']}"
        finish = self.options.get("activation")
        return f"{shown}, activation={finish}" if finish else shown


class MaxPool2dRuntimeOp(RuntimeOp):
    """The largest element of each window. Arguments: ``nn.MaxPool2d``, or Windows."""

    op = MaxPool2d
    takes_out = True

    def __init__(
        self, kernel_size: Size | Windows, stride: Size | None = None, padding: Size = 0,
        dilation: Size = 1, ceil_mode: bool = False,
    ) -> None:  # fmt: skip
        slid = _slid(kernel_size, stride, padding, dilation)
        super().__init__(windows=slid, ceil_mode=bool(ceil_mode))

    def describe(self) -> str:
        return _text(self.options["windows"])


class AvgPool2dRuntimeOp(RuntimeOp):
    """The mean of each window. Arguments: ``nn.AvgPool2d``, or Windows."""

    op = AvgPool2d
    takes_out = True

    def __init__(
        self, kernel_size: Size | Windows, stride: Size | None = None, padding: Size = 0,
        ceil_mode: bool = False, count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> None:  # fmt: skip
        super().__init__(
            windows=_slid(kernel_size, stride, padding, 1), ceil_mode=bool(ceil_mode),
            count_include_pad=bool(count_include_pad), divisor_override=divisor_override,
        )  # fmt: skip

    def describe(self) -> str:
        return _text(self.options["windows"])


ACTIVATIONS: dict[str, type[Op]] = {
    "relu": activation.ReLU,
    "silu": activation.SiLU,
    "gelu": activation.GELU,
    "gelu_tanh": activation.GELUTanh,
    "sigmoid": activation.Sigmoid,
    "tanh": unary.Tanh,
}


class ActivationRuntimeOp(RuntimeOp):
    """An activation by name: relu, silu, gelu, gelu_tanh, sigmoid or tanh.

    Raises:
        ArgumentError: for another name.
    """

    def __init__(self, activation: str) -> None:
        if activation not in ACTIVATIONS:
            raise ArgumentError(
                f"activation is {activation!r}; wanted one of {', '.join(ACTIVATIONS)}"
            )
        super().__init__()
        self.activation = activation
        self.op = ACTIVATIONS[activation]  # type: ignore[misc]
        self.takes_out = activation == "relu"  # type: ignore[misc]

    def describe(self) -> str:
        return self.activation


class FlattenRuntimeOp(RuntimeOp):
    """[N, …] to [N, *shape]: images to rows, unless ``shape`` says otherwise.

    Args:
        shape: of one sample of the result, () for a number; one size may be −1.
    """

    op = shape.Reshape

    def __init__(self, shape: Sequence[int] = (-1,)) -> None:
        super().__init__()
        self.shape = integers("shape", shape, -1)

    def keywords(self, inputs: Sequence[Array], parameters: Mapping[str, Array]) -> dict[str, Any]:
        (x,) = inputs
        if -1 not in self.shape:
            return {"shape": (len(x), *self.shape)}
        rest = int(np.prod([n for n in self.shape if n != -1]))
        found = int(np.prod(x.shape[1:])) // max(rest, 1)
        return {"shape": (len(x), *(found if n == -1 else n for n in self.shape))}


class TapeRuntimeOp(RuntimeOp):
    """Any operation of the tape that treats all samples of a batch alike, such as Mul or Exp.

    Args:
        op: its class in ``tensor.ops``.
        operands: as :attr:`RuntimeOp.operands`; a :class:`Constant` is passed as it is.
        slots: the Tensors among the operands that are no inputs.
        options: keywords of ``op.forward``.
    """

    def __init__(
        self, op: type[Op], operands: Sequence[Any] = (0,),
        slots: Mapping[str, Slot] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        if not (isinstance(op, type) and issubclass(op, Op)):
            raise ArgumentTypeError(f"op is {op!r}; wanted a class of tinybn.tensor.ops")
        super().__init__(slots, operands, **options)
        self.op = op  # type: ignore[misc]
        self.inputs = len({of for of in operands if isinstance(of, int)})

    @property
    def name(self) -> str:
        return self.op.__name__


class AddRuntimeOp(TapeRuntimeOp):
    """The sum of two inputs of one shape, such as a residual connection's."""

    def __init__(self) -> None:
        super().__init__(elementwise.Add, (0, 1))


class MeanRuntimeOp(TapeRuntimeOp):
    """The mean over ``axes``, such as (2, 3) for global average pooling."""

    def __init__(self, axes: tuple[int, ...], keepdims: bool = False) -> None:
        super().__init__(reduce.Mean, axes=tuple(axes), keepdims=bool(keepdims))


class SoftmaxRuntimeOp(TapeRuntimeOp):
    """Softmax along ``axis``, or with ``log`` its logarithm."""

    def __init__(self, axis: int, log: bool = False) -> None:
        super().__init__(softmax.LogSoftmax if log else softmax.Softmax, axis=axis)


class CrossEntropyRuntimeOp(RuntimeOp):
    """Cross-entropy of logits with class numbers, two inputs: ``nn.functional.cross_entropy``.

    Args:
        classes: with a number there is a slot ``weight`` [classes]; None for equal weights.
        ignore_index, reduction, label_smoothing: as there.
    """

    op = CrossEntropy
    inputs = 2

    def __init__(
        self, classes: int | None = None, *, ignore_index: int = -100, reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        weighted = classes is not None
        super().__init__(
            {"weight": Slot((classes,), learned=False)} if classes is not None else None,
            (0, 1, "weight" if weighted else None), ignore_index=ignore_index,
            reduction=reduction, label_smoothing=label_smoothing,
        )  # fmt: skip


class BatchNormRuntimeOp(RuntimeOp):
    """BatchNorm at once, in training or with frozen statistics, as ``nn.BatchNorm*`` runs it.

    Args:
        features: C.
        eps, momentum, affine: as of ``nn.BatchNorm2d``.
        training: normalise by the batch's statistics, and update the running ones.
        tracked: whether there are running statistics; without training there must be.
        activation, residual: as of :class:`LinearRuntimeOp`; both have a backward here.

    Slots: weight, bias, running_mean, running_var [C] and in training num_batches_tracked [].
    """

    takes_out = True

    def __init__(
        self, features: int, eps: float = 1e-5, momentum: float | None = 0.1, affine: bool = True,
        *, training: bool = False, tracked: bool = True, counted: bool = True,
        activation: str | None = None, residual: bool = False,
    ) -> None:  # fmt: skip
        check_activation(activation)
        self.op = BatchNormTraining if training else BatchNormFrozen  # type: ignore[misc]
        channel = (integer("features", features, 1),)
        eps = number("eps", eps, least=0)
        if momentum is not None:
            momentum = number("momentum", momentum, least=0, most=1)
        slots = {name: Slot(channel) for name in (("weight", "bias") if affine else ())}
        columns: list[Operand] = list(slots) or [None, None]
        if tracked:
            slots |= {n: Slot(channel, False) for n in ("running_mean", "running_var")}
        if training and tracked and counted:
            slots["num_batches_tracked"] = Slot((), False, np.dtype(np.int64))
        self.training = training
        operands = [0, *columns]
        if not training:
            operands += ["running_mean", "running_var"]
        self.inputs = 2 if residual else 1
        operands.append(1 if residual else None)
        options: dict[str, Any] = {"momentum": momentum} if training else {}
        super().__init__(slots, operands, eps=eps, activation=activation, **options)

    def keywords(self, inputs: Sequence[Array], parameters: Mapping[str, Array]) -> dict[str, Any]:
        if not self.training:
            return self.options
        return dict(
            self.options, running_mean=parameters.get("running_mean"),
            running_var=parameters.get("running_var"),
            tracked=parameters.get("num_batches_tracked"),
        )  # fmt: skip


def _slid(
    kernel_size: Size | Windows, stride: Size | None, padding: Size | str, dilation: Size
) -> Windows:
    if isinstance(kernel_size, Windows):
        return kernel_size
    return windows(kernel_size, kernel_size if stride is None else stride, padding, dilation)


def _text(slid: Windows) -> str:
    (h, w), (down, across) = slid.kernel, slid.stride
    return f"{h}×{w}, stride {down}×{across}, padding {slid.before}"
