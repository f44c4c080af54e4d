"""Sums over a pass through a data set, kept where the model is."""

from __future__ import annotations

import numpy as np

from ...errors import ShapeError
from ..arrays import Array, contiguous
from ..engines import implementation
from .checks import check_array, check_float, check_same_place
from .cross_entropy import check_logits


def add_metrics(logits: Array, target: Array, loss: Array, sums: Array) -> None:
    """Add a batch to ``sums``: N times its mean loss, and how many of its N answers are right.

    An answer is the class of the largest logit; of equal ones the first counts, and NaN is
    larger than any number.

    Args:
        logits: [N, C], floating.
        target: [N], int32 or int64 class numbers; any other number is never right.
        loss: [], floating, the mean of the batch.
        sums: [2], float64, added to in place.

    Raises:
        ShapeError, DTypeError, DeviceError: for arguments that do not fit; nothing is added then.
    """
    check_logits(logits, target)
    check_float(loss, "loss")
    check_array(sums, "sums", (np.dtype("float64"),), "float64")
    for array, name in ((loss, "loss"), (sums, "sums")):
        check_same_place(logits, array, name)
    if loss.shape != () or sums.shape != (2,) or not sums.flags.c_contiguous:
        raise ShapeError(f"loss has shape {loss.shape} and sums {sums.shape}; wanted () and (2,)")
    if len(logits):
        implementation("add_metrics", logits)(contiguous(logits), contiguous(target), loss, sums)
