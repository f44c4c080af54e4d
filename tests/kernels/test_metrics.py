"""Losses and right answers added up where the model is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import all_engines
from tinybn import kernels
from tinybn.errors import DTypeError, ShapeError
from tinybn.testing import FLOAT_DTYPES, SIZES


def answer(row):
    """The first of the largest by a plain walk; NaN is the largest."""
    best = 0
    for c, value in enumerate(row):
        if row[best] != row[best]:
            break
        if value != value or value > row[best]:
            best = c
    return best


@all_engines
@settings(max_examples=30)
@given(
    rows=st.sampled_from(SIZES[:14]), classes=st.sampled_from([1, 2, 10, 33, 5000]),
    dtype=st.sampled_from(FLOAT_DTYPES), index=st.sampled_from([np.int32, np.int64]),
    hard=st.sampled_from(["", "ties", "nan", "inf"]), seed=st.integers(0, 99),
)  # fmt: skip
def test_sums_of_two_batches(engine, rows, classes, dtype, index, hard, seed):
    rng = np.random.default_rng(seed)
    logits = rng.standard_normal((rows, classes))
    if hard == "ties":
        logits = rng.integers(0, 2, logits.shape).astype(float)
    elif hard:
        logits[rng.random(logits.shape) < 0.3] = {"nan": np.nan, "inf": -np.inf}[hard]
    logits = logits.astype(dtype)
    target = rng.integers(-1, classes + 1, rows).astype(index)
    loss = np.array(rng.standard_normal(), dtype)

    def both(logits, target, loss, sums):
        kernels.add_metrics(logits, target, loss, sums)
        kernels.add_metrics(logits, target, loss, sums)
        return sums

    sums = engine.run(both, logits, target, loss, np.array([0.5, 1.0]))
    right = sum(answer(row) == t for row, t in zip(logits.astype(float), target))
    assert sums[1] == 1 + 2 * right
    # Two additions of a product, each rounded once.
    want = 0.5 + 2 * rows * float(loss)
    assert abs(sums[0] - want) <= 4 * 2.0**-53 * (0.5 + 4 * rows * abs(float(loss)))


Z, T, L = np.zeros((3, 4), np.float32), np.arange(3), np.ones((), np.float32)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((Z.astype(int), T, L, np.zeros(2)), DTypeError),
        ((Z, T.astype(float), L, np.zeros(2)), DTypeError),
        ((Z, T, L.astype(int), np.zeros(2)), DTypeError),
        ((Z, T, L, np.zeros(2, np.float32)), DTypeError),
        ((Z, T[:2], L, np.zeros(2)), ShapeError),
        ((Z[:, :0], T, L, np.zeros(2)), ShapeError),
        ((Z, T, np.zeros(3, np.float32), np.zeros(2)), ShapeError),
        ((Z, T, L, np.zeros(3)), ShapeError),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error):
        kernels.add_metrics(*arguments)
