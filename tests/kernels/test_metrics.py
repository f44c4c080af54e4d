"""Losses and right answers added up where the model is."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import all_engines
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError
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

    def both(*arrays):
        kernels.add_metrics(*arrays)
        kernels.add_metrics(*arrays)
        return arrays[-2:]

    start = np.array([0.5]), np.array([2**40])
    total, right = engine.run(both, logits, target, loss, *start)
    answers = sum(answer(row) == t for row, t in zip(logits.astype(float), target))
    assert right.tolist() == [2**40 + 2 * answers]
    # Two additions of a product, each rounded once.
    want = 0.5 + 2 * rows * float(loss)
    assert abs(total[0] - want) <= 4 * 2.0**-53 * (0.5 + 4 * rows * abs(float(loss)))


Z, T, L = np.zeros((3, 4), np.float32), np.arange(3), np.ones((), np.float32)
S, R = np.zeros(1), np.zeros(1, np.int64)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((Z.astype(int), T, L, S, R), DTypeError),
        ((Z, T.astype(float), L, S, R), DTypeError),
        ((Z, T, L.astype(int), S, R), DTypeError),
        ((Z, T, L, S.astype(np.float32), R), DTypeError),
        ((Z, T, L, S, S), DTypeError),
        ((Z, T, L, S, np.zeros((), np.int64)), ShapeError),
        ((Z, T[:2], L, S, R), ShapeError),
        ((Z[:, :0], T, L, S, R), ShapeError),
        ((Z, T, np.zeros(3, np.float32), S, R), ShapeError),
        ((Z, T, L, np.zeros(2), R), ShapeError),
    ],
)
def test_bad_arguments(arguments, error):
    with pytest.raises(error):
        kernels.add_metrics(*arguments)


@pytest.mark.parametrize("which", [0, 1])
def test_sums_that_cannot_be_written(which):
    sums = [np.zeros(1), np.zeros(1, np.int64)]
    sums[which].flags.writeable = False
    with pytest.raises(ArgumentError, match="read-only"):
        kernels.add_metrics(Z, T, L, *sums)
    assert not any(array.any() for array in sums)
