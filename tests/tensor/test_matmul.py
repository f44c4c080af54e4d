"""matmul and linear: NumPy's rules and values, dtypes, layouts, gradients, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensor.tensor_cases import (
    DTYPES,
    EPS,
    FLOATS,
    LAYOUTS,
    SIZES,
    as64,
    few,
    gradient_of,
    laid_out,
    layouts,
    leaf,
    normal,
    plain,
    seeds,
    some,
)
from tinybn import kernels
from tinybn.errors import DTypeError, ShapeError
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.kernels.reference.matmul import dense
from tinybn.tensor import dtypes
from tinybn.tensor.gradcheck import gradcheck
from tinybn.tensor.ops.matmul import linear, matmul

pytestmark = pytest.mark.filterwarnings("error")
sizes = st.sampled_from(SIZES)


@st.composite
def pairs(draw, empty: bool = False):
    """Two shapes that NumPy multiplies: vectors, matrices and broadcast batches."""
    size = st.one_of(sizes, st.just(0)) if empty else sizes
    m, k, n = draw(size), draw(size), draw(size)
    batch = draw(st.lists(st.sampled_from((1, 2, 3)), max_size=2))

    def side(matrix):
        kept = [1 if draw(st.booleans()) else b for b in batch]
        return (*kept[draw(st.integers(0, len(kept))) :], *matrix)

    a = (k,) if draw(st.booleans()) and draw(st.booleans()) else side((m, k))
    b = (k,) if draw(st.booleans()) and draw(st.booleans()) else side((k, n))
    return a, b


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@given(shapes=pairs(empty=True), seed=seeds, layout_a=layouts, layout_b=layouts)
@few
def test_values(dtype, shapes, seed, layout_a, layout_b):
    a, b = (normal(s, seed + i, dtype) for i, s in enumerate(shapes))
    if a.size and b.size:
        a, b = laid_out(a, layout_a), laid_out(b, layout_b)
    got = matmul(plain(a), plain(b))
    want = np.matmul(a.astype(np.float64), b.astype(np.float64))
    assert got.dtype == dtype and got.shape == want.shape
    if dtype == dtypes.bool_:
        assert np.array_equal(got.data, want > 0)
    elif dtype in FLOATS:
        # k products and additions, each off by half an eps of the sum of absolute
        # values so far (Higham 2002, section 3.1), then one rounding.
        total = np.matmul(np.abs(a.astype(np.float64)), np.abs(b.astype(np.float64)))
        bound = a.shape[-1] * EPS[accumulation_dtype(got.dtype)] * total
        assert np.all(np.abs(as64(got) - want) <= bound + EPS[dtype] / 2 * np.abs(want) + bound)
    else:
        assert np.array_equal(got.data, want)


@given(shapes=pairs(), seed=seeds, layout_a=layouts, layout_b=layouts)
@some
def test_gradients(shapes, seed, layout_a, layout_b):
    a, b = leaf(normal(shapes[0], seed), layout_a), leaf(normal(shapes[1], seed + 1), layout_b)
    assert gradcheck(matmul, [a, b])
    a.requires_grad = False  # only what is needed
    assert gradcheck(matmul, [a, b])


@given(shapes=pairs(empty=True), seed=seeds)
@few
def test_gradient_shapes_of_empties(shapes, seed):
    a, b = (leaf(normal(s, seed)) for s in shapes)
    y = matmul(a, b)
    y.backward(plain(np.ones(y.shape)))
    assert a.grad.shape == a.shape and b.grad.shape == b.shape


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=lambda d: d.name)
def test_low_precision_is_added_up_in_float32(dtype):
    a, b = leaf(np.ones((1, 4096), dtype)), leaf(np.ones((4096, 1), dtype))
    y = matmul(a, b)
    assert as64(y) == 4096 and y.dtype == dtype
    x, w, bias = (
        leaf(np.ones((4096, 1), dtype)),
        leaf(np.ones((1, 1), dtype)),
        leaf(np.ones(1, dtype)),
    )
    grads = gradient_of(linear, x, w, bias, upstream=np.ones((4096, 1)))
    assert [g.dtype for g in grads] == [dtype] * 3
    assert grads[1].astype(float) == 4096 and grads[2].astype(float) == 4096
    batch, vector = leaf(np.ones((4096, 1, 1), dtype)), leaf(np.ones((1, 1, 1), dtype))
    grads = gradient_of(matmul, batch, vector, upstream=np.ones((4096, 1, 1)))
    assert grads[1].astype(float) == 4096


def test_promotion():
    x = {d.name: plain(np.ones((2, 2), d)) for d in DTYPES}
    for a, b, want in (
        ("float32", "float64", "float64"), ("float16", "bfloat16", "float32"),
        ("bfloat16", "float32", "float32"), ("int32", "float32", "float64"),
        ("int32", "int64", "int64"), ("bool", "int32", "int32"),
    ):  # fmt: skip
        assert matmul(x[a], x[b]).dtype.name == want == linear(x[b], x[a]).dtype.name
    low, high = leaf(np.ones((2, 2), np.float16)), leaf(np.ones((2, 2)))
    grads = gradient_of(matmul, low, high, upstream=np.ones((2, 2)))
    assert [g.dtype for g in grads] == [np.float16, np.float64]


@given(
    lead=st.lists(sizes, max_size=2), sizes=st.tuples(sizes, sizes), seed=seeds, layout=layouts,
    bias=st.booleans(),
)  # fmt: skip
@some
def test_linear(lead, sizes, seed, layout, bias):
    n_in, n_out = sizes
    lead = lead if np.prod(lead, dtype=int) <= 16 else lead[:1]
    x = leaf(normal((*lead, n_in), seed), layout)
    weight = leaf(normal((n_out, n_in), seed + 1), layout)
    rest = [leaf(normal(n_out, seed + 2))] if bias else []
    got = linear(x, weight, *rest)
    want = x.data @ weight.data.T + (rest[0].data if bias else 0)
    assert got.shape == want.shape and np.allclose(got.data, want, rtol=0, atol=1e-13)
    assert gradcheck(linear, [x, weight, *rest])


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_linear_rounds_once(dtype):
    x, w, b = (normal(s, i, dtype) for i, s in enumerate(((64, 33), (17, 33), (17,))))
    got = linear(plain(x), plain(w), plain(b))
    x, w, b = (a.astype(np.float64) for a in (x, w, b))
    bound = 35 * EPS[accumulation_dtype(got.dtype)] * (np.abs(x) @ np.abs(w).T + np.abs(b))
    want = x @ w.T + b
    assert got.dtype == dtype
    assert np.all(np.abs(as64(got) - want) <= bound + EPS[dtype] / 2 * np.abs(want) + bound)


def test_linear_computes_only_what_is_needed(monkeypatch):
    needed = []
    original = kernels.linear_backward
    monkeypatch.setattr(
        kernels, "linear_backward", lambda *a: needed.append((a[1:3], a[3])) or original(*a)
    )
    x, w, b = plain(normal((4, 3), 0)), leaf(normal((2, 3), 1)), leaf(normal(2, 2))
    y = linear(x, w, b)
    y.backward(plain(np.ones((4, 2))))
    ((saved, needs),) = needed
    assert needs == (False, True, True) and saved[1] is None  # the input wants no gradient
    assert w.grad is not None and b.grad is not None and x.grad is None


def test_blas_is_given_dense_matrices_and_transposes_as_they_are():
    x = normal((2, 8, 5), 0)
    for same in (x, x.swapaxes(1, 2), x[:, :, :3], x[:, 1:4], x[::-1]):
        assert dense(same) is same
    for layout in LAYOUTS[2:4]:
        awkward = laid_out(normal((6, 5), 0), layout)
        assert dense(awkward).flags.c_contiguous
    assert dense(np.broadcast_to(np.ones(3), (4, 3))).flags.c_contiguous


def test_infinities_leak_no_warning():
    x = plain(np.array([[np.inf, 1e38]], np.float32))
    y = matmul(x, plain(np.array([[0.0, 1], [10, 10]], np.float32)))
    assert np.isnan(y.data[0, 0]) and y.data[0, 1] == np.inf


@pytest.mark.parametrize("a, b", [
    ((2, 3), (2, 3)), ((3,), (2,)), ((2, 3), (2,)), ((3,), (2, 3)), ((), (2,)), ((2,), ()),
    ((2, 3, 4), (3, 4, 5)),
])  # fmt: skip
def test_shapes_that_do_not_fit(a, b):
    with pytest.raises(ShapeError) as error:
        matmul(plain(np.zeros(a)), plain(np.zeros(b)))
    assert str(a) in str(error.value) and str(b) in str(error.value)


def test_linear_errors():
    x, w = plain(np.zeros((2, 3))), plain(np.zeros((4, 3)))
    with pytest.raises(ShapeError, match=r"\(2, 3\).*\(3, 4\)"):
        linear(x, plain(np.zeros((3, 4))))
    with pytest.raises(ShapeError, match=r"bias \(3,\).*\(4,\)"):
        linear(x, w, plain(np.zeros(3)))
    with pytest.raises(ShapeError):
        linear(plain(np.zeros(())), w)
    with pytest.raises(DTypeError, match="str"):
        matmul("a", w)
