"""Sums over a pass through a data set, kept where the model is."""

from __future__ import annotations

import numpy as np

from ...errors import ShapeError
from ..arrays import Array, contiguous
from ..checks import check_array, check_float, check_same_place, check_writable
from ..cross_entropy.functions import check_logits
from ..engines import implementation


def add_metrics(logits: Array, target: Array, loss: Array, total: Array, right: Array) -> None:
    """Add up a batch: N times its mean loss, and how many of its N answers are right.

    An answer is the class of the largest logit; of equal ones the first counts, and NaN is
    larger than any number.

    Args:
        logits: [N, C], floating.
        target: [N], int32 or int64 class numbers; any other number is never right.
        loss: [], floating, the mean of the batch.
        total: [1], float64: the sum of losses, added to in place.
        right: [1], int64: the right answers, added to in place.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: for arguments that do not fit, or sums
            that are read-only; nothing is added then.
    """
    check_logits(logits, target)
    check_float(loss, "loss")
    check_array(total, "total", (np.dtype("float64"),), "float64")
    check_array(right, "right", (np.dtype("int64"),), "int64")
    for array, name in ((loss, "loss"), (total, "total"), (right, "right")):
        check_same_place(logits, array, name)
    if loss.shape != () or total.shape != (1,) or right.shape != (1,):
        raise ShapeError(
            f"loss has shape {loss.shape}, total {total.shape} and right {right.shape}; wanted "
            "(), (1,) and (1,)"
        )
    check_writable(total, "total")
    check_writable(right, "right")
    if len(logits):
        implementation("add_metrics", logits)(
            contiguous(logits), contiguous(target), loss, total, right
        )
