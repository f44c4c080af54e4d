"""README's table "What runs where": which functions launch kernels, forward and backward."""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import tinybn as tb
from tinybn.kernels import engines
from tinybn.nn import functional as F

T = np.array([0, 1])
CALLS = {
    "adaptive_avg_pool2d": (
        lambda x: F.adaptive_avg_pool2d(x.reshape(1, 2, 2, 2), 1),
        {"avg_pool2d_forward", "avg_pool2d_backward"},
    ),
    "avg_pool2d": (
        lambda x: F.avg_pool2d(x.reshape(1, 2, 2, 2), 2),
        {"avg_pool2d_forward", "avg_pool2d_backward"},
    ),
    "batch_norm": (
        lambda x: F.batch_norm(x, None, None, training=True),
        {"batch_norm_forward", "batch_norm_backward"},
    ),
    "conv2d": (
        lambda x: F.conv2d(x.reshape(1, 2, 2, 2), tb.ones((1, 2, 1, 1), requires_grad=True)),
        {"conv2d_forward", "conv2d_backward_input", "conv2d_backward_weight"},
    ),
    "cross_entropy": (
        lambda x: F.cross_entropy(x, tb.tensor(T)),
        {"cross_entropy_forward", "cross_entropy_backward"},
    ),
    "dropout": (lambda x: F.dropout(x, 0.5), {"dropout"}),
    "linear": (lambda x: F.linear(x, tb.ones((3, 4))), {"matmul", "linear_backward"}),
    "max_pool2d": (
        lambda x: F.max_pool2d(x.reshape(1, 2, 2, 2), 2),
        {"max_pool2d_forward", "max_pool2d_backward"},
    ),
    # Composed of tensor operations:
    "nll_loss": (lambda x: F.nll_loss(x, tb.tensor(T)), set()),
    "mse_loss": (lambda x: F.mse_loss(x, tb.ones((2, 4))), set()),
    "binary_cross_entropy_with_logits": (
        lambda x: F.binary_cross_entropy_with_logits(x, tb.ones((2, 4))),
        set(),
    ),
    "one_hot": (lambda x: x.sum() + F.one_hot(tb.tensor(T), 2).sum(), set()),
    **{
        name: (lambda x, name=name: getattr(F, name)(x), set())
        for name in ("gelu", "relu", "sigmoid", "silu", "softplus", "tanh")
    },
    **{
        name: (lambda x, name=name: getattr(F, name)(x, 1), set())
        for name in ("log_softmax", "softmax")
    },
}
OTHERS = {
    "cross_entropy with probabilities": (lambda x: F.cross_entropy(x, tb.ones((2, 4))), set()),
    "adaptive_avg_pool2d with windows of several sizes": (
        lambda x: F.adaptive_avg_pool2d(x.reshape(1, 1, 2, 4), (2, 3)),
        set(),
    ),
    "a product with one matrix": (lambda x: x @ tb.ones((4, 3)), {"matmul"}),
    "a product of two batches": (lambda x: x.reshape(2, 2, 2) @ tb.ones((2, 2, 2)), set()),
}


def test_every_function_has_an_entry():
    assert sorted(CALLS) == sorted(F.__all__)


@pytest.mark.parametrize("name", [*CALLS, *OTHERS])
def test_kernels_that_a_function_launches(name):
    pytest.importorskip("triton")
    call, wanted = {**CALLS, **OTHERS}[name]
    x = tb.tensor(np.arange(8.0, dtype=np.float32).reshape(2, 4) / 8, requires_grad=True)
    with mock.patch.object(engines, "_kernel", wraps=engines._kernel) as kernel, tb.interpret():
        call(x).sum().backward()
    assert {found.args[0] for found in kernel.call_args_list} == wanted
    assert x.grad is not None
