"""Losses: ignored targets, weights and smoothing, large logits, bad labels.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import F, assert_close, assert_golden, assert_same, case
from tinybn import nn
from tinybn.errors import IndexOutOfRange

ALL_IGNORED = "pytorch/pytorch#116349, pytorch/pytorch#70348"

ROWS = [
    case("CE-01", ALL_IGNORED, F((3, 4), 5, 1, 8), [-100] * 3, {}, [np.nan], [0.0] * 12),
    case("CE-01", ALL_IGNORED, F((3, 4), 5, 1, 8), [-100] * 3, dict(reduction="sum"), [0.0],
         [0.0] * 12),
    case("CE-03", "pytorch/pytorch#69339, pytorch/pytorch#72056, pytorch/pytorch#91383",
         np.array([[1, 2], [3, 0.4]], np.float32), [-100, 1],
         dict(weight=[0.2, 0.3], smoothing=0.1), [2.54045061377],
         [0, 0, 0.882013886662, -0.882013886662]),
    case("CE-04", "pytorch/pytorch#15508, flagos-ai/FlagGems#73",
         F((6, 3), 5, 1, 8, 4), [0, 1, 255, 0, 1, 2], dict(ignore=255, reduction="none"),
         [1.81467232471, 0.564672324707, 0.0, 0.527975743855, 1.88818160241, 0.638181602412], []),
    case("CE-10", "pytorch/pytorch#63004",
         np.array([[0, 1, 1], [2, 1, 0]], np.float32), [1, 0], dict(ignore=0), [0.861994804058],
         [0.155362403497, -0.577681201748, 0.422318798252, 0, 0, 0]),
]  # fmt: skip


@pytest.mark.parametrize("fused", [True, False])
@pytest.mark.parametrize(("z", "target", "options", "golden", "golden_gradient"), ROWS)
def test_cross_entropy(engine, z, target, options, golden, golden_gradient, fused):
    logits, labels = tb.Tensor(z, requires_grad=True), tb.Tensor(target)
    weight = options.get("weight")
    arguments = dict(
        weight=None if weight is None else tb.Tensor(np.float32(weight)),
        ignore_index=options.get("ignore", -100), reduction=options.get("reduction", "mean"),
    )  # fmt: skip
    if fused:
        smoothing = options.get("smoothing", 0.0)
        loss = nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing, **arguments)
    elif "smoothing" in options:
        pytest.skip("nll_loss has no smoothing")
    else:
        log_p = nn.functional.log_softmax(logits, 1)
        loss = nn.functional.nll_loss(log_p, labels, **arguments)
    loss.backward(tb.ones_like(loss))
    want, dz = m.cross_entropy(z, target, **options)
    assert_close(loss, want)
    assert_close(logits.grad, dz)
    ignored = np.array(target) == options.get("ignore", -100)
    assert_same(logits.grad.numpy()[ignored], np.zeros_like(z[ignored]))
    np.testing.assert_allclose(np.reshape(want, -1), golden, rtol=1e-6)
    assert_golden(dz, golden_gradient)


@pytest.mark.parametrize(
    "z", [case("CE-06", "BasisResearch/dynestyx#183", np.full((1, 11), -1e10, np.float32))]
)
def test_huge_logits_keep_the_logarithm_of_the_sum(engine, z):
    want = m.log_softmax(z)
    assert_golden(want, [-2.3978952728] * 11)
    assert_close(nn.functional.log_softmax(tb.Tensor(z), 1), want, rtol=1e-6, atol=0)
    t = tb.Tensor(z, requires_grad=True)
    loss = nn.functional.cross_entropy(t, tb.Tensor([3]))
    loss.backward()
    assert_close(loss, -want[0, 3], rtol=1e-6, atol=0)
    assert_close(t.grad, np.exp(want) - np.eye(11)[[3]], rtol=1e-6)
    assert_close(nn.functional.softmax(tb.Tensor(z), 1), np.exp(want), rtol=1e-6, atol=0)


@pytest.mark.parametrize("loss", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize(
    ("label", "dtype"),
    [
        case("CE-07", "pytorch/pytorch#39769, pytorch/pytorch#12670, Theano/Theano#3042, "
             "tensorflow/tensorflow#3739, harvard-edge/cs249r_book#2040", label, dtype)
        for label in (-1, -4, 4) for dtype in (np.int32, np.int64)
    ],
)  # fmt: skip
def test_a_label_that_is_no_class(engine, loss, label, dtype):
    target = tb.Tensor(np.array([0, label], dtype))
    with pytest.raises(IndexOutOfRange, match=f"class {label}; wanted 0 to 3"):
        getattr(nn.functional, loss)(tb.zeros(2, 4), target)
