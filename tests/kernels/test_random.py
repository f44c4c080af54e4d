"""The counter-based generator and dropout."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import all_engines, kernel_engines
from tinybn import kernels
from tinybn.errors import ArgumentError
from tinybn.testing import FLOAT_DTYPES, SIZES

LIKE = np.zeros(1, np.float32)


def philox_python(seed, offset, stream):
    """Salmon et al. 2011, figure 2, in Python integers: one block of four words."""
    low = 2**32 - 1
    counter = [offset & low, offset >> 32, stream, 0]
    key = [seed & low, seed >> 32]
    for _ in range(10):
        p0, p1 = 0xD2511F53 * counter[0], 0xCD9E8D57 * counter[2]
        counter = [
            (p1 >> 32) ^ counter[1] ^ key[0], p1 & low, (p0 >> 32) ^ counter[3] ^ key[1], p0 & low
        ]  # fmt: skip
        key = [(key[0] + 0x9E3779B9) & low, (key[1] + 0xBB67AE85) & low]
    return counter


SEEDS = st.one_of(st.sampled_from([0, 1, 2**32 - 1, 2**32, 2**63 - 1]), st.integers(0, 2**63 - 1))
OFFSETS = st.one_of(st.sampled_from([0, 2**32 - 2, 2**40]), st.integers(0, 2**60))


@all_engines
@settings(max_examples=25)
@given(n=st.sampled_from(SIZES), seed=SEEDS, offset=OFFSETS, stream=st.integers(0, 3))
def test_words(engine, n, seed, offset, stream):
    words = engine.run(lambda like: kernels.random_words(n, seed, offset, stream, like), LIKE)
    blocks = [philox_python(seed, offset + i, stream) for i in range(-(-n // 4))]
    assert words.tolist() == [w for block in blocks for w in block][:n]


@all_engines
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_uniform_and_normal_have_the_right_moments(engine, dtype):
    def draw(out):
        normal = out.copy()
        kernels.random_uniform(out, 1, 0)
        kernels.random_normal(normal, 1, 10_000)
        return out, normal

    n = 20_000
    uniform, normal = (a.astype(float) for a in engine.run(draw, np.zeros(n, dtype)))
    assert 0 <= uniform.min() and uniform.max() < 1
    # Five standard errors; bfloat16's 2⁻⁸ steps shift the uniform mean by half a step.
    assert abs(uniform.mean() - 0.5) < 5 / np.sqrt(12 * n) + 2.0**-9
    assert abs(normal.mean()) < 5 / np.sqrt(n)
    assert abs(normal.var() - 1) < 5 * np.sqrt(2 / n) + 2.0**-8
    assert np.isfinite(normal).all()


@kernel_engines
@settings(max_examples=25)
@given(
    n=st.sampled_from(SIZES),
    p=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    dtype=st.sampled_from(FLOAT_DTYPES),
    seed=SEEDS,
)
def test_dropout_kernel_keeps_what_the_reference_keeps(engine, n, p, dtype, seed):
    x = np.random.default_rng(0).standard_normal((n, 3)).astype(dtype)
    got = engine.run(kernels.dropout, x, p=p, seed=seed, offset=2**33)
    words = np.array([philox_python(seed, 2**33 + i, 0) for i in range(-(-x.size // 4))])
    kept = ((words.reshape(-1)[: x.size] >> 8) * 2.0**-24 >= p).reshape(x.shape)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    wide = np.float64 if dtype == np.float64 else np.float32
    want = np.where(kept, x.astype(wide) * wide(scale), wide(0)).astype(dtype)
    np.testing.assert_array_equal(got, want)


@all_engines
def test_dropout_of_a_transposed_array(engine):
    x = np.ones((40, 30), np.float32)
    a = engine.run(lambda x: kernels.dropout(x.T, p=0.5, seed=1, offset=0), x)
    b = engine.run(lambda x: kernels.dropout(x, p=0.5, seed=1, offset=0), np.ones_like(x.T))
    np.testing.assert_array_equal(a, b)


@all_engines
def test_dropout_of_a_scalar_is_a_scalar(engine):
    y = engine.run(kernels.dropout, np.array(2.0, np.float32), p=0.0, seed=0, offset=0)
    assert y.shape == () and y == 2


@pytest.mark.parametrize("p", [-0.1, 1.1, float("nan")])
def test_a_probability_outside_0_to_1_raises(p):
    with pytest.raises(ArgumentError, match="p is .*; wanted a number from 0 to 1"):
        kernels.dropout(LIKE, p=p, seed=0, offset=0)
