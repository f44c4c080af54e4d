"""Losses as functions, under PyTorch's names: what ``functional`` gives.

Losses of float16 and bfloat16 are computed in float32; they and their gradients are
rounded once, at the end.
"""

from __future__ import annotations

import math
from typing import Any

from ..arguments import choice, integer, number
from ..errors import DeviceError, DTypeError, IndexOutOfRange, ShapeError
from ..kernels import recording
from ..kernels.arrays import accumulation_dtype
from ..tensor import Tensor, where
from ..tensor.autocast import autocast_float32
from ..tensor.dtypes import float32, float64, int32, int64, is_float
from ..tensor.ops._operands import (
    check_optional_tensors,
    check_tensors,
    not_floating,
    result_dtype,
)
from ..tensor.ops.activation import softplus
from ..tensor.ops.cross_entropy import REDUCTIONS, check_target_shape
from ..tensor.ops.cross_entropy import cross_entropy as _class_cross_entropy
from ..tensor.ops.index import take_along_axis
from ..tensor.ops.softmax import log_softmax


def cross_entropy(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
    label_smoothing: float = 0.0,
) -> Tensor:
    """Cross-entropy of softmax(input) with class numbers, or with class probabilities.

    With class numbers (an integer target) it is one fused kernel; see
    :func:`tinybn.tensor.ops.cross_entropy.cross_entropy`. With probabilities q
    (a floating target of input's shape) each loss is −Σ_c w_c·q_c·log p_c, and the
    mean divides by the number of losses.

    Args:
        input: logits, [C], [N, C] or [N, C, d1, …].
        target: class numbers of input's shape without C, or probabilities of input's shape.
        weight: [C], or None for ones.
        ignore_index: class numbers of this value count for nothing; not used with probabilities.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        label_smoothing: ε, 0 to 1: the target becomes (1 − ε)·target + ε/C.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError, IndexOutOfRange: for what does not fit.

    Source: Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7.
    """
    check_tensors(target=target)
    if not is_float(target.dtype):
        return _class_cross_entropy(input, target, weight, ignore_index, reduction, label_smoothing)
    choice("reduction", reduction, REDUCTIONS)
    integer("ignore_index", ignore_index)
    label_smoothing = number("label_smoothing", label_smoothing, least=0, most=1)
    if target.ndim < input.ndim:
        raise ShapeError(
            f"target of shape {target.shape} is floating and so class probabilities; wanted "
            f"input's shape {input.shape} (class numbers are integers: target.long())"
        )
    _check_same(input, target)
    if input.ndim == 0:
        raise ShapeError("input has no dimensions; wanted logits [C], [N, C] or [N, C, d1, …]")
    axis = 0 if input.ndim == 1 else 1
    classes = input.shape[axis]
    _check_class_weights(weight, classes, input)
    dtype, input, target, weight = _widened(input, target, weight)
    smooth = target * (1 - label_smoothing) + label_smoothing / classes
    if weight is not None:
        smooth = smooth * weight.reshape(-1, *(1,) * (input.ndim - axis - 1))
    losses = -(smooth * log_softmax(input, axis)).sum(axis=axis)
    return _reduce(losses, reduction).astype(dtype)


def nll_loss(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """The negative log-likelihood −w_t·input_t of class numbers.

    Args:
        input: log-probabilities, [C], [N, C] or [N, C, d1, …].
        target: class numbers, int32 or int64, of input's shape without C.
        weight: [C], or None for ones.
        ignore_index: targets of this value count for nothing.
        reduction: ``"mean"`` (weighted, over targets not ignored), ``"sum"`` or ``"none"``.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for what does not fit.
        IndexOutOfRange: for a target that is no class. In a captured step its loss is NaN instead.
    """
    check_tensors(input=input, target=target)
    choice("reduction", reduction, REDUCTIONS)
    ignore_index = integer("ignore_index", ignore_index)
    if not is_float(input.dtype):
        raise not_floating("input", input)
    if target.dtype not in (int32, int64):
        raise DTypeError(f"target has dtype {target.dtype.name}; wanted int32 or int64")
    check_target_shape(input, target)
    _check_device(input, target, "target")
    axis = 0 if input.ndim == 1 else 1
    classes = input.shape[axis]
    _check_class_weights(weight, classes, input)
    kept = target != ignore_index
    picked = where(kept, target, 0)
    valid = None
    if not recording.capturing():
        _check_classes(picked, classes)
    else:  # to look at them would be a host read
        valid = (picked >= 0) & (picked < classes)
        picked = where(valid, picked, 0)
    taken = take_along_axis(input, picked.unsqueeze(axis), axis).squeeze(axis)
    input, weight = autocast_float32(input, weight)
    # Low-precision inputs are weighed and added up in float32, and rounded once.
    wide = accumulation_dtype(input.dtype)
    ones = kept.astype(wide)
    weights = ones
    if weight is not None:
        own = weight.detach().astype(wide)[picked.reshape(-1)].reshape(picked.shape)
        weights = where(kept, own, ones)
    losses = where(kept, -taken.astype(wide) * weights, ones)
    if valid is not None:
        losses = where(valid, losses, math.nan)
    if reduction == "mean":
        return (losses.sum() / weights.sum()).astype(input.dtype)
    return _reduce(losses, reduction).astype(input.dtype)


def mse_loss(
    input: Tensor,
    target: Tensor,
    *,
    reduction: str = "mean",
    weight: Tensor | None = None,
) -> Tensor:
    """(input − target)², element by element, then averaged, summed or left.

    Args:
        input, target: floating, of one shape.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        weight: a factor for each element, of input's shape; the mean divides by its sum.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for what does not fit.
    """
    choice("reduction", reduction, REDUCTIONS)
    _check_same(input, target)
    if weight is not None:
        _check_same(input, weight, "weight")
    dtype, input, target, weight = _widened(input, target, weight)
    losses = (input - target).square()
    if weight is not None:
        losses = losses * weight
    if weight is not None and reduction == "mean":
        return (losses.sum() / weight.sum()).astype(dtype)
    return _reduce(losses, reduction).astype(dtype)


def binary_cross_entropy_with_logits(
    input: Tensor,
    target: Tensor,
    weight: Tensor | None = None,
    *,
    reduction: str = "mean",
    pos_weight: Tensor | None = None,
) -> Tensor:
    """−(p_w·t·log σ(x) + (1 − t)·log(1 − σ(x))), in a form that does not overflow.

    It is (1 − t)·softplus(x) + p_w·t·softplus(−x).

    Args:
        input: logits x, floating.
        target: probabilities t, of input's shape.
        weight: a factor that broadcasts to input's shape.
        reduction: ``"mean"``, ``"sum"`` or ``"none"``.
        pos_weight: p_w, the weight of the positive part, broadcasts to input's shape.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for what does not fit.
    """
    choice("reduction", reduction, REDUCTIONS)
    _check_same(input, target)
    check_optional_tensors(weight=weight, pos_weight=pos_weight)
    for name, factor in (("weight", weight), ("pos_weight", pos_weight)):
        if factor is not None:
            _check_device(input, factor, name)
    dtype, input, target, weight, pos_weight = _widened(input, target, weight, pos_weight)
    # Each part by itself: in the usual (1 − t)·x + … a confident x cancels all digits.
    positive = target if pos_weight is None else target * pos_weight
    losses = (1 - target) * softplus(input, threshold=math.inf)
    losses = losses + positive * softplus(-input, threshold=math.inf)
    if weight is not None:
        losses = losses * weight
    if losses.shape != input.shape:
        raise ShapeError(
            f"weight or pos_weight enlarges input's shape {input.shape} to {losses.shape}; "
            "wanted one that broadcasts to it"
        )
    return _reduce(losses, reduction).astype(dtype)


def _reduce(losses: Tensor, reduction: str) -> Tensor:
    if reduction == "none":
        return losses
    return losses.mean() if reduction == "mean" else losses.sum()


def _widened(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The dtype of a loss of ``tensors``, and these in the dtype in which it is computed.

    Low-precision inputs are computed with in float32 to the end, so that the loss and each
    gradient are rounded once.
    """
    tensors = autocast_float32(*tensors)
    given = [t for t in tensors if t is not None]
    dtype = given[0].dtype
    if dtype in (float32, float64) and all(t.dtype == dtype for t in given):
        return dtype, *tensors
    dtype = result_dtype(*given)
    wide = accumulation_dtype(dtype)
    return dtype, *(None if t is None else t.astype(wide) for t in tensors)


def _check_device(input: Tensor, other: Tensor, name: str) -> None:
    if other.device != input.device:
        raise DeviceError(
            f"{name} is on {other.device} and input on {input.device}; wanted one device"
        )


def _check_same(input: Tensor, other: Tensor, name: str = "target") -> None:
    """Raise unless both are floating, of one shape and on one device."""
    check_tensors(**{"input": input, name: other})
    for tensor, called in ((input, "input"), (other, name)):
        if not is_float(tensor.dtype):
            raise not_floating(called, tensor)
    if input.shape != other.shape:
        raise ShapeError(
            f"input has shape {input.shape} and {name} {other.shape}; wanted equal shapes"
        )
    _check_device(input, other, name)


def _check_class_weights(weight: Tensor | None, classes: int, input: Tensor) -> None:
    if weight is None:
        return
    check_tensors(weight=weight)
    if not is_float(weight.dtype):
        raise DTypeError(f"weight has dtype {weight.dtype.name}; wanted a floating dtype")
    if weight.shape != (classes,):
        raise ShapeError(
            f"weight has shape {weight.shape}; wanted ({classes},), one for each class"
        )
    _check_device(input, weight, "weight")


def _check_classes(target: Tensor, classes: int) -> None:
    """Raise unless all class numbers are 0 to classes − 1."""
    outside = (target.data < 0) | (target.data >= classes)
    if bool(outside.any()):
        raise IndexOutOfRange(
            f"target holds class {int(target.data[outside][0])}; wanted 0 to {classes - 1}"
        )
