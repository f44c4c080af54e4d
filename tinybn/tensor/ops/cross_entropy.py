"""Softmax and cross-entropy as one op: the probabilities are never written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ... import kernels
from ...arguments import choice, integer, number
from ...errors import ShapeError
from ...kernels.arrays import namespace
from ..autocast import autocast_float32
from ..dtypes import is_float
from ..tape import Array, Node, Op, apply
from ._operands import check_tensors, not_floating

if TYPE_CHECKING:
    from ..tensor import Tensor

ONE_PROGRAM = 2**15  # rows that one program adds up as fast as several launches do
REDUCTIONS = ("mean", "sum", "none")


class CrossEntropy(Op):
    """The cross-entropy of logits [N, C, …] with class numbers [N, …]."""

    @staticmethod
    def forward(
        ctx: Node,
        logits: Array,
        target: Array,
        weight: Array | None,
        *,
        ignore_index: int,
        reduction: str,
        label_smoothing: float,
    ) -> Array:
        rows = _classes_last(logits)
        options: dict[str, Any] = dict(ignore_index=ignore_index, label_smoothing=label_smoothing)
        by_one = reduction == "mean" and 0 < len(rows) <= ONE_PROGRAM
        found = kernels.cross_entropy_forward(
            rows, target.reshape(-1), weight, mean=by_one, **options
        )
        if reduction == "none":
            ctx.save(logits, target, weight, found, options, None)
            return found.loss.reshape(target.shape).astype(logits.dtype)
        if reduction == "sum":
            ctx.save(logits, target, weight, found, options, None)
            return found.loss.sum().astype(logits.dtype)
        mean, divisor = found.mean, found.divisor
        if mean is None:
            divisor = found.weight.sum()
            # Where all targets are ignored it is 0/0, NaN, as in PyTorch.
            mean = (found.loss.sum() / divisor).astype(logits.dtype)
        ctx.save(logits, target, weight, found, options, divisor)
        return mean

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        logits, target, weight, found, options, divisor = ctx.saved
        rows = _classes_last(logits)
        drows = kernels.cross_entropy_backward(
            grad.reshape(-1), rows, target.reshape(-1), weight, found, divisor, **options
        )
        return _classes_back(drows, logits), None, None


def _classes_last(logits: Array) -> Array:
    """[C] or [N, C, d1, …] as rows of classes."""
    if logits.ndim == 1:
        return logits[None]
    return namespace(logits).moveaxis(logits, 1, -1).reshape(-1, logits.shape[1])


def _classes_back(rows: Array, logits: Array) -> Array:
    """The reverse of :func:`_classes_last`."""
    if logits.ndim == 1:
        return rows[0]
    n, c, *positions = logits.shape
    return namespace(rows).moveaxis(rows.reshape(n, *positions, c), -1, 1)


def check_target_shape(input: Tensor, target: Tensor) -> None:
    """Raise ShapeError unless target has the shape of input, [C] or [N, C, …], without C."""
    shape = input.shape
    if input.ndim == 0 or target.shape != (*shape[:1], *shape[2:])[input.ndim == 1 :]:
        raise ShapeError(
            f"input has shape {shape} and target {target.shape}; wanted [C] and [], [N, C] and "
            "[N], or [N, C, d1, …] and [N, d1, …]"
        )


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of softmax(input) with class numbers, fused.

    Args:
        input: logits, [C], [N, C] or [N, C, d1, …], any float dtype.
        target: class numbers, int32 or int64, of input's shape without C.
        weight: [C], a weight for each class, or None for ones.
        ignore_index: targets of this value count for nothing.
        reduction: ``"mean"`` (weighted, over targets not ignored; NaN where all
            are), ``"sum"`` or ``"none"``.
        label_smoothing: ε, the share of the target spread evenly over the classes, 0 to 1.

    Returns:
        A scalar in input's dtype, or with ``"none"`` a tensor of target's shape.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.
        IndexOutOfRange: for a target that is neither a class nor ``ignore_index``.

    Source: Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7.
    """
    choice("reduction", reduction, REDUCTIONS)
    ignore_index = integer("ignore_index", ignore_index)
    label_smoothing = number("label_smoothing", label_smoothing, least=0, most=1)
    check_tensors(input=input, target=target, **({} if weight is None else {"weight": weight}))
    if not is_float(input.dtype):
        raise not_floating("input", input)
    check_target_shape(input, target)
    input, weight = autocast_float32(input, weight)
    return apply(
        CrossEntropy,
        input,
        target,
        weight,
        ignore_index=ignore_index,
        reduction=reduction,
        label_smoothing=label_smoothing,
    )
