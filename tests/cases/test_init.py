"""First values of parameters, and what a seed decides.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases.rows import array, assert_golden, assert_same, case
from tinybn import nn

DEFAULTS = ("pytorch/pytorch#15314, pytorch/pytorch#57109, pytorch/pytorch#58931, "
            "paiml/aprender#2167")  # fmt: skip


@pytest.mark.parametrize(
    ("make", "fan_in", "golden"),
    [
        case("IN-01", DEFAULTS, lambda: nn.Linear(120, 50), 120, 0.0912870929175),
        case("IN-01", DEFAULTS, lambda: nn.Conv2d(120, 100, (3, 8), groups=2), 120 // 2 * 3 * 8,
             0.0263523138347),
    ],
)  # fmt: skip
def test_uniform_within_one_over_the_root_of_the_fan(engine, make, fan_in, golden):
    tb.manual_seed(0)
    layers = [make() for _ in range(2)]
    bound = 1 / np.sqrt(fan_in)
    assert_golden(bound, golden)
    rounded = bound * (1 + 2.0**-23)
    for name in ("weight", "bias"):
        values = np.concatenate([array(getattr(layer, name)).reshape(-1) for layer in layers])
        largest = abs(values).max()
        assert 0.97 * bound <= largest <= rounded
    weights = np.concatenate([array(layer.weight).reshape(-1) for layer in layers])
    # A uniform deviation is 1/√3 of the bound; of n values it errs by 0.45/√n of itself.
    assert_golden(1 / np.sqrt(3), 0.57735026919)
    ratio = weights.astype(np.float64).std() / bound
    assert abs(ratio * np.sqrt(3) - 1) < 5 * 0.45 / np.sqrt(weights.size)
    # Both signs alike: the mean of n is 0 within 5 of its deviations.
    assert abs(weights.mean()) < 5 * bound / np.sqrt(3 * weights.size)


def batches(loader):
    return [array(x).copy() for x, _ in loader]


@pytest.mark.parametrize("of_loader", [False, True])
@pytest.mark.parametrize(
    "seed", [case("IN-02", "apache/mxnet#736, lmjohns3/theanets#72, ooples/AiDotNet#1819", 7)]
)
def test_a_seed_covers_weights_and_order(engine, seed, of_loader):
    def run():
        tb.manual_seed(seed)
        layer = nn.Linear(3, 4)
        data = np.arange(64, dtype=np.float32)[:, None], np.zeros(64, np.int64)
        loader = tb.data.DataLoader(data, 16, shuffle=True, seed=seed if of_loader else None)
        drop = nn.functional.dropout(tb.ones(64), 0.5)
        return array(layer.weight).copy(), array(drop), batches(loader), batches(loader)

    first, again = run(), run()
    for a, b in zip(first, again):
        for one, other in zip(np.atleast_1d(a), np.atleast_1d(b)):
            assert_same(one, other)
    *_, epoch, following = first
    assert not np.array_equal(epoch, following)
    assert_same(np.sort(np.ravel(epoch)), np.sort(np.ravel(following)))
