"""Softmax and cross-entropy of rows of logits, forward and backward."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...arguments import integer, number
from ...errors import IndexOutOfRange, ShapeError
from .. import recording
from ..arrays import Array, accumulation_dtype, contiguous, namespace
from ..checks import check_array, check_float, check_same_place
from ..engines import implementation

INTEGERS = (np.dtype("int32"), np.dtype("int64"))


class CrossEntropyRows(NamedTuple):
    """What the forward pass found for each of N rows.

    Attributes:
        loss: [N], the row's loss, 0 where its target is ignored.
        weight: [N], the weight of its target's class, 0 where ignored.
        row_max, log_sum: [N]; log softmax is (logits − row_max) − log_sum.
        mean: 0-d in the logits' dtype, the sum of ``loss`` over that of ``weight``; None where
            it was not asked for.
        divisor: 0-d, the sum of ``weight``, or None.
    """

    loss: Array
    weight: Array
    row_max: Array
    log_sum: Array
    mean: Array | None = None
    divisor: Array | None = None


def cross_entropy_forward(
    logits: Array,
    target: Array,
    weight: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
    mean: bool = False,
) -> CrossEntropyRows:
    """The cross-entropy of each row's softmax with its target.

    loss = −(1 − ε)·w_t·log p_t − ε/C·Σ_c w_c·log p_c with ε = label_smoothing.

    Args:
        logits: [N, C], floating.
        target: [N], int32 or int64: a class from 0 to C − 1, or ``ignore_index``.
        weight: [C], floating, or None for ones.
        ignore_index: the target of rows that do not count; may be a class.
        label_smoothing: ε, from 0 to 1.
        mean: whether the mean loss is wanted too; NaN where no target counts.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.
        IndexOutOfRange: for a target that is no class (found on the device; on
            CUDA this waits for the kernel). In a captured step its loss is NaN instead.

    Source: Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7.
    """
    check_logits(logits, target, weight, label_smoothing)
    xp, wide = namespace(logits), accumulation_dtype(logits.dtype)
    rows = logits.shape[0]
    found = CrossEntropyRows(
        *(xp.empty(rows, wide) for _ in range(4)),
        *((xp.empty((), logits.dtype), xp.empty((), wide)) if mean else ()),
    )
    # In a recorded step a look at it would be a host read; a loss of NaN tells there.
    invalid = None if recording.capturing() else xp.zeros(1, np.int32)
    target = contiguous(target)
    if rows:
        implementation("cross_entropy_forward", logits)(
            contiguous(logits), target,
            None if weight is None else contiguous(weight),
            found.loss, found.weight, found.row_max, found.log_sum, found.mean, found.divisor,
            invalid,
            ignore_index=integer("ignore_index", ignore_index),
            label_smoothing=float(label_smoothing),
        )  # fmt: skip
    elif found.mean is not None and found.divisor is not None:  # a sum of nothing over 0
        found.mean[...], found.divisor[...] = np.nan, 0
    if invalid is not None and int(invalid[0]):
        classes = logits.shape[1]
        outside = ((target < 0) | (target >= classes)) & (target != ignore_index)
        raise IndexOutOfRange(
            f"target holds class {int(target[outside][0])}; wanted 0 to {classes - 1}, or "
            f"ignore_index {ignore_index}"
        )
    return found


def cross_entropy_backward(
    grad: Array,
    logits: Array,
    target: Array,
    weight: Array | None,
    found: CrossEntropyRows,
    divisor: Array | None = None,
    *,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Array:
    """The gradient of the logits, [N, C] in their dtype.

    Args:
        grad: the gradient of each row's loss, [N], or [1] for all rows.
        logits, target, weight, ignore_index, label_smoothing: as forward had them.
        found: what forward returned.
        divisor: what ``grad`` is divided by, [] or [1] in the dtype of ``found``, or None.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit.
    """
    check_logits(logits, target, weight, label_smoothing)
    check_float(grad, "grad")
    check_same_place(logits, grad, "grad")
    if grad.shape not in ((1,), logits.shape[:1]):
        raise ShapeError(f"grad has shape {grad.shape}; wanted {logits.shape[:1]} or (1,)")
    if divisor is not None:
        check_array(divisor, "divisor", (found.loss.dtype,), str(found.loss.dtype))
        check_same_place(logits, divisor, "divisor")
        if divisor.shape not in ((), (1,)):
            raise ShapeError(f"divisor has shape {divisor.shape}; wanted () or (1,)")
    xp = namespace(logits)
    logits = contiguous(logits)
    dlogits = xp.empty_like(logits)
    if logits.shape[0]:
        implementation("cross_entropy_backward", logits)(
            contiguous(grad), divisor, logits, contiguous(target),
            None if weight is None else contiguous(weight),
            found.row_max, found.log_sum, dlogits,
            ignore_index=integer("ignore_index", ignore_index),
            label_smoothing=float(label_smoothing),
        )  # fmt: skip
    return dlogits


def check_logits(
    logits: Array, target: Array, weight: Array | None = None, label_smoothing: float = 0.0
) -> None:
    """Raise unless logits [N, C], target [N] and weight [C] belong together."""
    check_float(logits, "logits")
    check_array(target, "target", INTEGERS, "int32 or int64 class numbers")
    if logits.ndim != 2 or logits.shape[1] == 0 or target.shape != logits.shape[:1]:
        raise ShapeError(
            f"logits have shape {logits.shape} and target {target.shape}; wanted [N, C] and [N] "
            "with at least one class"
        )
    check_same_place(logits, target, "target")
    if weight is not None:
        check_float(weight, "weight")
        if weight.shape != logits.shape[1:]:
            raise ShapeError(
                f"weight has shape {weight.shape}; wanted ({logits.shape[1]},), one for each class"
            )
        check_same_place(logits, weight, "weight")
    number("label_smoothing", label_smoothing, least=0, most=1)
