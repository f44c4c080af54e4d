"""Indexing: reading, writing and gathering against NumPy, gradients, repeats, errors."""

from __future__ import annotations

import operator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensor.index_cases import (
    for_numpy,
    indices,
    places_of,
    spoiled,
    summed_to,
    written,
)
from tests.tensor.tensor_cases import (
    DTYPES,
    EPS,
    FLOATS,
    LAYOUTS,
    gradient_of,
    laid_out,
    layouts,
    leaf,
    many,
    normal,
    plain,
    seeds,
    shapes,
    some,
)
from tinybn.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError, TinyBNError
from tinybn.tensor import dtypes
from tinybn.tensor.ops import index as module
from tinybn.tensor.ops._index import resolve
from tinybn.tensor.ops.index import getitem, setitem, take_along_axis

pytestmark = pytest.mark.filterwarnings("error")


@st.composite
def cases(draw):
    shape = draw(shapes(min_dims=0, max_dims=4, empty=True, most=60))
    return normal(shape, draw(seeds)), draw(layouts), draw(indices(shape))


@st.composite
def values(draw, shape):
    """A value, in some layout, that broadcasts to ``shape``."""
    kept = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in shape)
    kept = kept[draw(st.integers(0, len(kept))) if draw(st.booleans()) else 0 :]
    if len(kept) == len(shape) and draw(st.integers(0, 3)) == 0:
        kept = (1, *kept)  # which NumPy takes off
    return laid_out(normal(kept, draw(seeds)), draw(layouts))


@given(case=cases(), seed=seeds)
@many
def test_reading(case, seed):
    x, layout, index = case
    y = laid_out(x, layout)
    t = leaf(x, layout)
    got, want = t[index], np.asarray(y[for_numpy(index)])
    assert got.shape == want.shape and np.array_equal(got.data, want)
    if want.size and not resolve(y, index).arrays:
        assert np.shares_memory(got.data, t.data)
    elif resolve(y, index).arrays:
        assert not np.shares_memory(got.data, t.data)
    upstream, dx = normal(want.shape, seed), np.zeros(x.shape)
    got.backward(plain(upstream))
    np.add.at(dx.reshape(-1), places_of(x.shape, index), upstream)
    # At most as many additions as there are elements, in another order.
    bound = want.size * EPS[dtypes.float64] * np.abs(upstream).sum()
    assert t.grad.shape == x.shape and np.all(np.abs(t.grad.data - dx) <= bound)


@given(case=cases(), data=st.data())
@many
def test_writing(case, data):
    x, layout, index = case
    y = laid_out(x, layout)
    places = places_of(x.shape, index)
    value = data.draw(values(places.shape))
    want, stays = written(y, places, value)
    before = y.copy()
    t, v = leaf(x, layout), leaf(value)
    got = setitem(t, index, v)
    assert np.array_equal(got.data, want) and np.array_equal(y, before)
    _check_gradients(got, t, v, places, stays, data.draw(seeds))

    # In place, recorded and not, and by the way that CuPy takes.
    t, v = leaf(y.copy()), leaf(value)
    changed = t.clone()
    changed[index] = v
    assert np.array_equal(changed.data, want)
    _check_gradients(changed, t, v, places, stays, data.draw(seeds))
    changed = plain(y.copy())
    changed[index] = plain(value)
    assert np.array_equal(changed.data, want)
    resolved = resolve(y, index)
    if resolved.arrays:
        again = y.copy()
        module.write_last(again, resolved, value[(0,) * max(value.ndim - places.ndim, 0)])
        assert np.array_equal(again, want)

    number = plain(y.copy())
    number[index] = 2
    filled, _ = written(y, places, np.array(2.0))
    assert np.array_equal(number.data, filled)
    assert np.array_equal(setitem(plain(y), index, 2).data, filled)


@given(case=cases(), data=st.data())
@some
def test_adding_in_place(case, data):
    x, _, index = case
    places = places_of(x.shape, index)
    kept = tuple(1 if data.draw(st.booleans()) else n for n in places.shape)
    value = normal(kept, data.draw(seeds))
    want, stays = written(x, places, x.reshape(-1)[places] + value)
    changed = plain(x.copy())
    changed[index] += plain(value)
    assert np.array_equal(changed.data, want)
    t, v = leaf(x), leaf(value)
    changed = t.clone()
    changed[index] += v
    assert np.array_equal(changed.data, want)
    upstream = normal(x.shape, data.draw(seeds))
    changed.backward(plain(upstream))
    _check_value_gradient(v, upstream, places, stays)
    assert np.array_equal(t.grad.data, upstream)  # a place gets what it held, plus the value


def _check_gradients(result, t, v, places, stays, seed):
    upstream = normal(t.shape, seed)
    result.backward(plain(upstream))
    dx = upstream.flatten()
    dx[places.reshape(-1)] = 0
    assert np.array_equal(t.grad.data, dx.reshape(t.shape))
    _check_value_gradient(v, upstream, places, stays)


def _check_value_gradient(v, upstream, places, stays):
    terms = np.where(stays, upstream.reshape(-1)[places], 0.0)
    dv = summed_to(terms, v.shape)
    bound = terms.size * EPS[dtypes.float64] * np.abs(terms).sum()
    assert v.grad.shape == v.shape and np.all(np.abs(v.grad.data - dv) <= bound)


@given(data=st.data())
@many
def test_illegal_indices(data):
    shape = data.draw(shapes(min_dims=0, empty=True, most=60))
    index = data.draw(spoiled(shape))
    x = normal(shape, 0)
    try:
        want = x[for_numpy(index)]
    except (IndexError, ValueError, TypeError):
        want = None
    try:
        got = getitem(plain(x), index)
    except TinyBNError:
        # Where nothing is picked NumPy looks at no bounds and takes a mask of no elements.
        assert want is None or want.size == 0
        y = plain(x.copy())
        for write in (lambda: setitem(y, index, 1.0), lambda: operator.setitem(y, index, 1.0)):
            with pytest.raises(TinyBNError):
                write()
        assert np.array_equal(y.data, x)
    else:
        assert want is not None and np.array_equal(got.data, want) and got.shape == want.shape


A = np.array([0, 2])


@pytest.mark.parametrize(
    "index, shape",
    [
        ((slice(None), A, ..., 0), (2, 3)),  # dots of no axes stand between too
        ((A, ..., 0, slice(None)), (2, 4)),
        ((A, ..., 0), (2, 4)),
        ((0, ..., A, slice(None)), (2, 4)),
        ((slice(None), A, 0, ...), (3, 2)),
        ((..., A, 0), (3, 2)),
        ((slice(None), A, None, 0), (2, 3, 1)),
        ((slice(None), plain(A), ..., plain(np.array(0))), (2, 3)),
        ((slice(None), True, 0), (3, 1, 4)),
        ((slice(None), True, ..., 0), (1, 3, 4)),
        (True, (1, 3, 4, 4)),
        (False, (0, 3, 4, 4)),
        (np.array(True), (1, 3, 4, 4)),
        ((A, plain(np.array(False)), slice(1)), None),
        (((0, 1),), (2, 4, 4)),
        ((0, range(3)), (3, 4)),
    ],
)
def test_where_the_gathered_axes_go(index, shape):
    x = normal((3, 4, 4), 0)
    if shape is None:
        with pytest.raises(ShapeError):
            getitem(plain(x), index)
        return
    got = getitem(plain(x), index)
    assert got.shape == shape and np.array_equal(got.data, x[for_numpy(index)])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@given(case=cases(), data=st.data())
@some
def test_the_same_on_a_gpu(dtype, case, data):
    x, layout, index = case
    values64 = [x, data.draw(values(places_of(x.shape, index).shape)), normal(x.shape, 0)]
    results = []
    for device in ("cpu", "cuda"):
        x, value, upstream = (v.astype(dtype) for v in values64)
        parts = index if isinstance(index, tuple) else (index,)
        there = tuple(p.to(device) if hasattr(p, "requires_grad") else p for p in parts)
        t = leaf(x, layout).detach().to(device)
        v = plain(value).to(device)
        t.requires_grad = v.requires_grad = True
        read = t[there]
        read.backward(plain(np.ones(read.shape, dtype)).to(device))
        read_grad, t.grad = t.grad, None
        changed = t.clone()
        changed[there] = v
        changed.backward(plain(upstream).to(device))
        plainly = t.detach().clone()
        plainly[there] = v.detach()
        results.append([read, read_grad, changed, t.grad, plainly])
        # Summed up to v's shape in another order there.
        results[-1].append(v.grad if v.shape == read.shape else v)
    for on_cpu, on_gpu in zip(*results, strict=True):
        assert np.array_equal(on_cpu.detach().numpy(), on_gpu.detach().numpy())


def test_tensor_operators_use_these():
    x = plain(np.arange(6.0).reshape(2, 3))
    assert x[1, [0, 2]].tolist() == [3, 5]
    x[:, 0] = 9
    x[[0, 0], 1] = plain(np.array([7.0, 8.0]))
    assert x.tolist() == [[9, 8, 2], [9, 4, 5]]


def test_the_last_value_stays_and_takes_the_gradient():
    x, value = leaf(np.zeros(3)), leaf(np.array([1.0, 2, 3]))
    where = [0, 2, 0]
    assert setitem(x, (where,), value).data.tolist() == [3, 0, 2]
    dx, dv = gradient_of(
        lambda a, v: setitem(a, (where,), v), x, value, upstream=np.array([10.0, 20, 30])
    )
    assert dx.tolist() == [0, 20, 0] and dv.tolist() == [0, 30, 10]


def test_repeated_indices_add_up():
    x = leaf(np.zeros((3, 2)))
    (dx,) = gradient_of(
        lambda t: getitem(t, ([2, 0, 2, -1],)), x, upstream=np.arange(8.0).reshape(4, 2)
    )
    assert dx.tolist() == [[2, 3], [0, 0], [0 + 4 + 6, 1 + 5 + 7]]


def test_an_index_may_be_written_before_backward():
    x, where = leaf(np.zeros((3, 1))), plain(np.array([[0]]))
    for read in (lambda: getitem(x, (where,)), lambda: take_along_axis(x, where, 0)):
        x.grad, y = None, read()
        where.fill_(2)
        y.backward(plain(np.ones(y.shape)))
        assert x.grad.tolist() == [[1], [0], [0]]
        where.fill_(0)


def test_low_precision_repeats_add_up_in_float32():
    for dtype in FLOATS[:2]:
        x = leaf(np.zeros(1, dtype))
        (dx,) = gradient_of(lambda t: getitem(t, (np.zeros(4096, int),)), x, upstream=np.ones(4096))
        assert dx.astype(float) == 4096


@st.composite
def gathers(draw):
    shape = list(draw(shapes(empty=True, most=60)))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    other = [1 if draw(st.integers(0, 3)) == 0 else n for n in shape]
    size = shape[axis]
    other[axis] = draw(st.integers(0, 4 if size else 0))
    where = np.random.default_rng(draw(seeds)).integers(-size, max(size, 1), other)
    for i in range(len(shape)):
        if i != axis % len(shape) and draw(st.integers(0, 3)) == 0:
            shape[i] = 1  # as the indices may be stretched, so may x
    where = where.astype(draw(st.sampled_from((np.int32, np.int64))))
    return tuple(shape), axis, laid_out(where, draw(st.sampled_from(LAYOUTS[:4]))), draw(layouts)


@given(case=gathers(), seed=seeds)
@some
def test_take_along_axis(case, seed):
    shape, axis, where, layout = case
    t = leaf(normal(shape, seed), layout)
    got = take_along_axis(t, plain(where), axis)
    want = np.take_along_axis(t.data, where, axis)
    assert got.shape == want.shape and np.array_equal(got.data, want)
    places = np.arange(t.size).reshape(shape)
    upstream, dx = normal(want.shape, seed), np.zeros(t.size)
    got.backward(plain(upstream))
    np.add.at(dx, np.take_along_axis(places, where, axis), upstream)
    bound = want.size * EPS[dtypes.float64] * np.abs(upstream).sum()
    assert np.all(np.abs(t.grad.data - dx.reshape(shape)) <= bound)


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_dtypes_are_kept(dtype):
    x = plain(normal((3, 4), 0, dtype))
    for index in (0, (0, 0), slice(1), ([0, 1],), (x.data > 0,)):
        assert getitem(x, index).dtype == dtype
        assert setitem(x, index, 1).dtype == dtype
    assert take_along_axis(x, plain(np.zeros((3, 1), int)), 1).dtype == dtype


def test_a_single_element_is_a_view():
    x = plain(np.zeros((2, 3)))
    one = getitem(x, (1, 2))
    assert one.shape == () and np.shares_memory(one.data, x.data) and one._version is x._version
    assert getitem(plain(np.array(3.0)), ()).data == 3
    assert getitem(plain(np.array(3.0)), (None, ...)).shape == (1,)


def test_empty_index_lists():
    x = leaf(np.ones((3, 2)))
    (dx,) = gradient_of(lambda t: getitem(t, ([],)), x, upstream=np.ones((0, 2)))
    assert getitem(x, []).shape == (0, 2) and not dx.any()
    assert np.array_equal(setitem(x, [], 5).data, x.data)


def test_an_overflowing_value_is_infinite_in_silence():
    x = plain(np.zeros(2, np.float16))
    assert setitem(x, 0, plain(np.array(1e6))).tolist() == [np.inf, 0]


X = plain(np.zeros((2, 3)))


@pytest.mark.parametrize(
    "index, error, message",
    [
        (2, IndexOutOfRange, "index 2 is out of range for axis 0 of size 2"),
        (-3, IndexOutOfRange, "index -3"),
        ((0, 3), IndexOutOfRange, "index 3 is out of range for axis 1 of size 3"),
        (([0, 5],), IndexOutOfRange, "index 5"),
        ((slice(None), [-4]), IndexOutOfRange, "index -4 is out of range for axis 1"),
        ((0, 0, 0), IndexOutOfRange, "3 indices given for a tensor of 2 dimensions"),
        (1.0, DTypeError, "float"),
        ("a", DTypeError, "str"),
        (([0.5],), DTypeError, "float64"),
        (np.array([2**64 - 1], np.uint64), IndexOutOfRange, "index 18446744073709551615 is out"),
        (slice(None, None, 0), ArgumentError, "step other than 0"),
        (slice(0.5, None), DTypeError, r"slice\(0.5, None, None\)"),
        (([0, 1], False), ShapeError, r"\(2,\).*\(0,\)"),
        (([5], []), IndexOutOfRange, "index 5"),  # which NumPy lets pass, as nothing is picked
        (np.zeros((0, 3), bool), ShapeError, r"mask of shape \(0, 3\)"),  # and this too
        ((plain(np.ones(2, np.float32)),), DTypeError, "float32"),
        (([[0], [0, 1]],), DTypeError, "rectangular"),
        ((np.ones(3, bool),), ShapeError, r"mask of shape \(3,\).*\(2,\)"),
        (([0, 1], [0, 1, 2]), ShapeError, r"\(2,\).*\(3,\)"),
        ((..., ...), ArgumentError, "only one"),
    ],
)
def test_wrong_indices(index, error, message):
    for call in (lambda: getitem(X, index), lambda: setitem(X, index, 0.0)):
        with pytest.raises(error, match=message):
            call()


def test_wrong_values():
    with pytest.raises(ShapeError, match=r"\(2,\) does not broadcast to \(3,\)"):
        setitem(X, 0, plain(np.zeros(2)))
    with pytest.raises(ShapeError, match="does not broadcast"):
        setitem(X, 0, plain(np.zeros((2, 3))))


@pytest.mark.parametrize(
    "where, axis, error",
    [
        (np.zeros((2, 1)), 1, DTypeError),
        (np.zeros(2, int), 0, ShapeError),
        (np.zeros((3, 1), int), 1, ShapeError),
        (np.full((2, 1), 3), 1, IndexOutOfRange),
        (np.full((2, 1), -4), 1, IndexOutOfRange),
        (np.zeros((2, 1), int), 2, IndexOutOfRange),
    ],
)
def test_wrong_gathers(where, axis, error):
    with pytest.raises(error):
        take_along_axis(X, plain(where), axis)
