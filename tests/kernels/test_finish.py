"""Products and convolutions finished in one launch: an addend, an activation, memory given.

The bound is that of a sum of as many terms as the product has, the bias and the addend with it,
through an activation whose slope is at most 1.13 (tests/kernels/test_matmul.py says why).
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import CPU, CPU_PARTS, CUDA, INTERPRET
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.kernels.windows import windows
from tinybn.testing import FLOAT_DTYPES, LAYOUTS, epsilon, fill, lay_out

ACTIVATIONS = {
    None: lambda z: z,
    "relu": lambda z: np.maximum(z, 0),
    "silu": lambda z: z / (1 + np.exp(-z)),
    "gelu": lambda z: z / 2 * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
}
engines = pytest.mark.parametrize(
    ("engine", "examples"),
    [
        pytest.param(CPU, 80, id="cpu"),
        pytest.param(CPU_PARTS, 40, id="cpu_parts"),
        pytest.param(INTERPRET, 12, id="interpret"),
        pytest.param(CUDA, 80, id="cuda", marks=pytest.mark.gpu),
    ],
)
finishes = st.fixed_dictionaries({
    "bias": st.booleans(), "addend": st.sampled_from((None, *LAYOUTS)),
    "activation": st.sampled_from(tuple(ACTIVATIONS)),
    "out": st.sampled_from((None, *LAYOUTS)), "layout": st.sampled_from(LAYOUTS),
    "dtype": st.sampled_from(FLOAT_DTYPES), "seed": st.integers(0, 2**16),
})  # fmt: skip


def wide(array):
    return 0.0 if array is None else array.astype(np.float64)


def check(engine, function, operands, product, shape, terms, finish):
    """Run ``function`` on the engine; ``product`` is of float64 operands, and of their sizes."""
    rng, dtype = np.random.default_rng(finish["seed"] + 1), np.dtype(finish["dtype"])

    def drawn(layout, size=shape):
        return None if layout is None else lay_out(fill(rng, size, dtype, "normal"), layout)

    addend, out = drawn(finish["addend"]), drawn(finish["out"])
    if out is not None:
        out[...] = np.nan  # whatever lies there
    bias = operands[2]
    before = [None if a is None else a.copy() for a in (*operands, addend)]
    places = None if out is None else engine.put(out)
    with engine.active():
        got = function(
            *(engine.put(a) for a in operands), addend=engine.put(addend),
            activation=finish["activation"], out=places,
        )  # fmt: skip
    assert places is None or got is places
    y = engine.get(got).astype(np.float64)
    for a, b in zip((*operands, addend), before):
        assert a is None or np.array_equal(a, b), "an input was changed"
    column = wide(bias).reshape(-1, 1, 1) if bias is not None and len(shape) == 4 else wide(bias)
    z = product(wide(operands[0]), wide(operands[1])) + column + wide(addend)
    sizes = (
        product(abs(wide(operands[0])), abs(wide(operands[1]))) + abs(column) + abs(wide(addend))
    )
    want = ACTIVATIONS[finish["activation"]](z)
    near = epsilon(accumulation_dtype(dtype))
    bound = 1.13 * (terms + 6) * near * sizes + 8 * near * abs(z) + epsilon(dtype) * abs(want)
    bound = bound + (2.0**-24 if dtype == np.float16 else 1e-38 if dtype != np.float64 else 0)
    assert y.shape == want.shape and (abs(y - want) <= bound).all(), (abs(y - want) / bound).max()


@engines
def test_products(engine, examples):
    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(*(st.sampled_from(s) for s in ((1, 7, 33), (1, 16, 65), (1, 31, 300))), finishes)
    def checked(m, n, k, finish):
        rng, dtype = np.random.default_rng(finish["seed"]), np.dtype(finish["dtype"])
        a, b = (lay_out(fill(rng, s, dtype, "normal"), finish["layout"]) for s in ((m, k), (k, n)))
        bias = fill(rng, (n,), dtype, "normal") if finish["bias"] else None
        check(engine, kernels.matmul, (a, b, bias), np.matmul, (m, n), k, finish)

    checked()


@engines
def test_convolutions(engine, examples):
    slid = windows(3, (1, 2), 1, 1)

    def product(x, weight, groups):
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
        seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))[:, :, :, ::2]
        parts = zip(np.split(seen, groups, 1), np.split(weight, groups))
        return np.concatenate([np.einsum("nchwij,ocij->nohw", s, w) for s, w in parts], 1)

    @settings(max_examples=examples, deadline=None, derandomize=True)
    @given(
        st.integers(1, 3), st.sampled_from((2, 4)), st.sampled_from((2, 6)), st.integers(3, 6),
        st.sampled_from((1, 2)), finishes,
    )  # fmt: skip
    def checked(n, channels, out, size, groups, finish):
        rng, dtype = np.random.default_rng(finish["seed"]), np.dtype(finish["dtype"])
        x = lay_out(fill(rng, (n, channels, size, size), dtype, "normal"), finish["layout"])
        weight = fill(rng, (out, channels // groups, 3, 3), dtype, "normal")
        bias = fill(rng, (out,), dtype, "normal") if finish["bias"] else None
        check(
            engine, lambda *a, **k: kernels.conv2d_forward(*a, windows=slid, groups=groups, **k),
            (x, weight, bias), lambda a, b: product(a, b, groups),
            (n, out, size, (size + 1) // 2), 9 * channels // groups, finish,
        )  # fmt: skip

    checked()


@engines
def test_memory_that_overlaps_an_input(engine, examples):
    """The result is as if it had been written elsewhere."""
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((16, 16)).astype(np.float32) for _ in range(2))
    with engine.active():
        want = engine.get(kernels.matmul(engine.put(a), engine.put(b)))
        for number in range(2):
            given = [engine.put(a.copy()), engine.put(b.copy())]
            assert np.array_equal(engine.get(kernels.matmul(*given, out=given[number])), want)


FAULTS = {
    "addend's shape": (ShapeError, dict(addend=np.zeros((3, 1), np.float32))),
    "addend's dtype": (DTypeError, dict(addend=np.zeros((3, 2)))),
    "activation": (ArgumentError, dict(activation="tanh")),
    "out's shape": (ShapeError, dict(out=np.zeros((2, 3), np.float32))),
    "out's dtype": (DTypeError, dict(out=np.zeros((3, 2)))),
}


@pytest.mark.parametrize("name", FAULTS)
def test_what_does_not_fit(name):
    kind, options = FAULTS[name]
    with pytest.raises(kind):
        kernels.matmul(np.ones((3, 4), np.float32), np.ones((4, 2), np.float32), **options)
