"""Optimisers: weight decay, momentum, missing gradients.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import assert_close, assert_golden, assert_same, case
from tinybn import nn

P = [1, -2, 3]
GRADIENTS = [[1e-8, 0.5, -2], [2e-8, -0.25, 1], [-1e-8, 0.125, 4]]
DECAYS = "pytorch/pytorch#38767, pytorch/pytorch#48793"

ROWS = [
    case("OP-02", DECAYS, "Adam", dict(weight_decay=0.5), m.adam, dict(decay=0.5),
         [0.900000002, -1.900000002, 3.099999998, 0.800412231626, -1.80554488115, 3.03986215712,
          0.701586277792, -1.71008653023, 2.96226809108]),
    case("OP-02", DECAYS, "AdamW", dict(weight_decay=0.5), m.adam, dict(decay=0.5, decoupled=True),
         [0.9, -1.999999998, 2.9499999995, 0.795872010536, -1.92663370139, 2.82913370332,
          0.731470149197, -1.86434493011, 2.64194383933]),
    case("OP-03", "ml-explore/mlx#440", "SGD", dict(weight_decay=0.5), m.sgd, dict(decay=0.5),
         [0.949999999, -1.95, 3.05, 0.90249999705, -1.8275, 2.7975, 0.857374998197, -1.748625,
          2.257625]),
    case("OP-05", "ml-explore/mlx#87, kozistr/pytorch_optimizer#516", "SGD",
         dict(momentum=0.9, nesterov=True), m.sgd, dict(momentum=0.9, nesterov=True),
         [0.9999999981, -2.095, 3.38, 0.99999999349, -2.088, 3.352, 0.999999993041, -2.12795,
          2.6568]),
]  # fmt: skip


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize(("name", "options", "formula", "arguments", "golden"), ROWS)
def test_steps(engine, name, options, formula, arguments, golden, dtype):
    p = nn.Parameter(np.array(P, dtype))
    optimizer = getattr(nn.optim, name)([p], lr=0.1, **options)
    want = formula(P, GRADIENTS, 0.1, **arguments)
    assert_golden(want, golden)
    for gradient, after in zip(GRADIENTS, want):
        p.grad = tb.Tensor(np.array(gradient, dtype))
        optimizer.step()
        assert_close(p, after, rtol=1e-6 if dtype == np.float32 else 1e-14, atol=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        case("OP-06", "KellerJordan/Muon#54, pytorch/pytorch#150610", name, options)
        for name, options in (
            ("SGD", {}), ("SGD", dict(momentum=0.9)), ("Adam", {}), ("AdamW", {}),
        )
    ],
)  # fmt: skip
def test_a_parameter_without_a_gradient_stays(engine, name, options):
    still, moved = (nn.Parameter(np.float32(P)) for _ in range(2))
    optimizer = getattr(nn.optim, name)([still, moved], lr=0.1, weight_decay=0.5, **options)
    for _ in range(3):
        moved.grad = tb.full((3,), 4.0)
        optimizer.step()
    assert_same(still, P)
    assert still not in optimizer.state
    assert moved[0].item() < P[0]
