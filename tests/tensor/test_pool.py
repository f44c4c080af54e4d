"""Adaptive pooling against its definition, window by window.

Sums run over rows, then over columns, and are divided and rounded once: the error of a sum of n
terms is at most n·ε of their absolute sum, with ε of the dtype in which they are added up.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.engines import CPU, CUDA
from tinybn import graph
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.tensor import Tensor
from tinybn.tensor.ops.pool import adaptive_avg_pool2d
from tinybn.testing import FLOAT_DTYPES, epsilon, lay_out

engines = pytest.mark.parametrize(
    "engine",
    [pytest.param(CPU, id="cpu"), pytest.param(CUDA, id="cuda", marks=pytest.mark.gpu)],
)


@st.composite
def cases(draw):
    size = [draw(st.integers(1, 12)) for _ in range(2)]
    output = tuple(draw(st.integers(1, 12)) for _ in range(2))
    dtype = draw(st.sampled_from(FLOAT_DTYPES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    n, c = draw(st.sampled_from((1, 2))), draw(st.sampled_from((1, 3)))
    x, dy = (rng.normal(1, 1, (n, c, *s)).astype(dtype) for s in (size, output))
    layouts = st.sampled_from(("contiguous", "channels_last", "reversed"))
    return lay_out(x, draw(layouts)), lay_out(dy, draw(layouts)), output


def bounds(size, output):
    """Along one axis: each window's first element, and the one after its last."""
    return [(i * size // output, -(-(i + 1) * size // output)) for i in range(output)]


@engines
@given(case=cases())
def test_means_and_their_gradients(engine, case):
    x, dy, output = case

    def run(x, dy):
        tensor = Tensor.wrap(x)
        tensor.requires_grad = True
        y = adaptive_avg_pool2d(tensor, output)
        y.backward(Tensor.wrap(dy))
        return y.data, tensor.grad.data

    y, dx = engine.run(run, x, dy)
    wide = x.astype(np.float64)
    want_y, size_y = np.empty(dy.shape), np.empty(dy.shape)
    want_dx, size_dx = np.zeros(x.shape), np.zeros(x.shape)
    for i, (top, bottom) in enumerate(bounds(x.shape[2], output[0])):
        for j, (left, right) in enumerate(bounds(x.shape[3], output[1])):
            window = np.s_[:, :, top:bottom, left:right]
            want_y[..., i, j] = wide[window].mean((2, 3))
            size_y[..., i, j] = np.abs(wide[window]).mean((2, 3))
            share = dy[..., i, j].astype(np.float64) / wide[window][0, 0].size
            want_dx[window] += share[..., None, None]
            size_dx[window] += np.abs(share)[..., None, None]
    for got, want, absolute, terms in ((y, want_y, size_y, x), (dx, want_dx, size_dx, dy)):
        bound = (sum(terms.shape[2:]) + 1) * epsilon(accumulation_dtype(x.dtype)) * absolute
        bound += 2 * epsilon(x.dtype) * np.abs(want) + np.finfo(np.float16).smallest_subnormal
        assert got.dtype == x.dtype
        assert (np.abs(got.astype(np.float64) - want) <= bound).all()


def test_the_input_s_layout_is_kept():
    x = lay_out(np.ones((2, 3, 5, 4), np.float32), "channels_last")
    for output in ((5, 4), (2, 3)):
        y = adaptive_avg_pool2d(Tensor.wrap(x), output)
        assert np.moveaxis(y.data, 1, -1).flags.c_contiguous
    assert adaptive_avg_pool2d(Tensor.wrap(x[0]), 3).shape == (3, 3, 3)
    assert adaptive_avg_pool2d(Tensor.wrap(x[:0]), 3).shape == (0, 3, 3, 3)


@pytest.mark.gpu
def test_a_captured_step_pools_each_new_input():
    run = graph.capture(lambda x: adaptive_avg_pool2d(x, (3, 5)))
    for seed in range(5):
        x = np.random.default_rng(seed).standard_normal((2, 3, 7, 8))
        got = run(Tensor(x, device="cuda")).numpy()
        np.testing.assert_allclose(got, adaptive_avg_pool2d(Tensor(x), (3, 5)).numpy(), atol=1e-14)
