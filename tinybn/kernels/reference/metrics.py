"""What is counted of a batch while a model trains."""

from __future__ import annotations

import numpy as np

from ..arrays import accumulation_dtype

Array = np.ndarray


def add_metrics(logits: Array, target: Array, loss: Array, sums: Array) -> None:
    """sums[0] += N·loss, sums[1] += how many rows of logits are largest at their target.

    Of equal logits the first counts, and NaN is larger than any number.
    """
    sums[0] += len(logits) * loss.astype(np.float64)
    wide = logits.astype(accumulation_dtype(logits.dtype), copy=False)
    sums[1] += np.count_nonzero(wide.argmax(axis=1) == target)
