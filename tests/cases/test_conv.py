"""Convolution: groups, strides, kernels that are not contiguous, empty batches.

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


def whole(shape, first=0):
    """first, first + 1, … in float32."""
    return np.arange(first, first + np.prod(shape), dtype=np.float32).reshape(shape)


ONE = np.zeros((1, 4, 1, 1), np.float32)
ONE[0, 3] = 1
ZEROS = np.zeros(4, np.float32)

ROWS = [
    case("CV-02", "tracel-ai/burn#1891, pytorch/pytorch#51430",
         whole((1, 4, 4, 4)), whole((4, 1, 3, 3)), whole(4), np.ones_like,
         dict(stride=2, padding=1, groups=4),
         dict(y=[73, 154, 279, 438, 1124, 1763], dx=[4, 8, 4, 5, 8, 16, 8, 10],
              dw=[5, 10, 12, 10, 20, 24, 18, 36, 40, 21], db=[4, 4, 4, 4])),
    case("CV-03", "pytorch/pytorch#19912",
         ONE, np.ones((16, 2, 1, 1), np.float32), None, np.ones_like, dict(groups=2),
         dict(y=[0] * 8 + [1] * 8)),
    case("CV-04", "huggingface/candle#3735, pytorch/pytorch#1246",
         whole((1, 2, 3, 3), 1), whole((2, 2, 2, 2), 1).swapaxes(0, 1), None, lambda y: 2 * y, {},
         dict(y=[548, 600, 704, 756, 788, 872, 1040, 1124],
              dx=[8976, 21568, 12864, 26128, 60848, 35264, 18784, 42544, 24032, 30352],
              # Of the kernel before the axes are swapped, whose second block this is not.
              dw=[16688, 21904, 32336, 37552])),
    case("CV-05", "pytorch/pytorch#26214, FluxML/NNlib.jl#763, tensorflow/tensorflow#14657",
         np.zeros((0, 2, 5, 5), np.float32), whole((4, 2, 3, 3)), ZEROS, np.ones_like, {},
         dict(dw=[0] * 72, db=[0] * 4)),
    case("CV-07", "sebgao/cTensor#3",
         np.ones((3, 1, 4, 4), np.float32), np.ones((2, 1, 3, 3), np.float32), ZEROS[:2],
         np.ones_like, {}, dict(dw=[12] * 18, db=[12, 12])),
]  # fmt: skip


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("x", "weight", "bias", "upstream", "options", "golden"), ROWS)
def test_conv2d(engine, x, weight, bias, upstream, options, golden, channels_last):
    if channels_last:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    t, w = (tb.Tensor.wrap(engine.put(a)) for a in (x, weight))
    t.requires_grad = w.requires_grad = True
    b = None if bias is None else tb.Tensor(bias, requires_grad=True)
    want, dx, dw, db = m.conv(x, weight, 0.0 if bias is None else bias, dy=upstream, **options)
    y = nn.functional.conv2d(t, w, b, **options)
    y.backward(tb.Tensor(upstream(want).astype(np.float32)))
    assert_close(y, want)
    assert_close(t.grad, dx)
    assert_close(w.grad, dw)
    if b is not None:
        assert_same(b.grad, db)
    for name, numbers in golden.items():
        assert_golden(dict(y=want, dx=dx, dw=dw, db=db)[name], numbers)
    assert want.shape[0] == x.shape[0]  # CV-05: an empty batch gives (0, 4, 3, 3)
