"""What is counted of a batch while a model trains."""

from __future__ import annotations

import numpy as np

from ..arrays import accumulation_dtype

Array = np.ndarray


def add_metrics(logits: Array, target: Array, loss: Array, total: Array, right: Array) -> None:
    """total += N·loss, right += how many rows of logits are largest at their target.

    Of equal logits the first counts, and NaN is larger than any number.
    """
    total += len(logits) * loss.astype(np.float64)
    wide = logits.astype(accumulation_dtype(logits.dtype), copy=False)
    right += np.count_nonzero(wide.argmax(axis=1) == target)
