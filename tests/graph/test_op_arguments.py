"""What a RuntimeOp is made with is checked where it is made."""

from __future__ import annotations

import numpy as np
import pytest

from tinybn import graph as G
from tinybn.errors import ArgumentError

NO_SIZES = (0, -1, 2.5, "3", True, None)
NO_RATES = (-0.1, 1.5, float("nan"), "a", True)
ROWS = [
    (G.LinearRuntimeOp, dict(in_features=2, out_features=3), dict(
        in_features=NO_SIZES, out_features=NO_SIZES, bias=("yes", 2), activation=("tanh", 3),
    )),
    (G.Conv2dRuntimeOp, dict(in_channels=2, out_channels=4, kernel_size=3), dict(
        in_channels=NO_SIZES, out_channels=NO_SIZES, kernel_size=NO_SIZES, groups=(3, *NO_SIZES),
    )),
    (G.MaxPool2dRuntimeOp, dict(kernel_size=2), dict(kernel_size=NO_SIZES)),
    (G.AvgPool2dRuntimeOp, dict(kernel_size=2), dict(kernel_size=NO_SIZES)),
    (G.ActivationRuntimeOp, dict(activation="relu"), dict(activation=("swish", None, 3))),
    (G.BatchNormRuntimeOp, dict(features=2), dict(
        features=NO_SIZES, eps=(-1.0, "a", True), momentum=NO_RATES, activation=("tanh",),
    )),
    (G.BatchNormStatsRuntimeOp, dict(features=2), dict(
        features=NO_SIZES, eps=(-1.0, "a", True), momentum=(None, *NO_RATES),
    )),
    (G.BatchNormNormalizeRuntimeOp, dict(features=2), dict(features=NO_SIZES, affine=("no",))),
    (G.BatchNorm2dNchwInferenceRuntimeOp, dict(features=2), dict(
        features=NO_SIZES, eps=(-1.0, "a", True),
    )),
]  # fmt: skip
CASES = [
    pytest.param(make, good, {name: value}, id=f"{make.__name__}-{name}-{value!r}")
    for make, good, bad in ROWS
    for name, values in bad.items()
    for value in values
]


@pytest.mark.parametrize(("make", "good", "bad"), CASES)
def test_an_op_refuses(make, good, bad):
    make(**good)
    with pytest.raises(ArgumentError, match="wanted"):
        make(**{**good, **bad})


@pytest.mark.parametrize("make", [G.BatchNormStatsRuntimeOp, G.BatchNormNormalizeRuntimeOp])
def test_sizes_may_be_numpys(make):
    assert {slot.shape for slot in make(np.int64(5)).slots.values()} == {(5,)}
