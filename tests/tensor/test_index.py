"""Indexing: reading, writing and gathering against NumPy, gradients, repeats, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensor.tensor_cases import (
    DTYPES,
    EPS,
    FLOATS,
    few,
    gradient_of,
    laid_out,
    layouts,
    leaf,
    normal,
    plain,
    seeds,
    shapes,
    some,
)
from tinybn.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from tinybn.tensor import dtypes
from tinybn.tensor.gradcheck import gradcheck
from tinybn.tensor.ops import index as module
from tinybn.tensor.ops._rows import add_rows, sum_runs
from tinybn.tensor.ops.index import getitem, resolve, setitem, take_along_axis

pytestmark = pytest.mark.filterwarnings("error")


def slices(size: int):
    ends = st.one_of(st.none(), st.integers(-size - 1, size + 1))
    steps = st.one_of(st.none(), st.sampled_from((1, 2, -1, -2)))
    return st.builds(slice, ends, ends, steps)


@st.composite
def indices(draw, shape):
    """Any index that NumPy takes: ints, slices, None, ..., masks and integer arrays, mixed."""
    places = draw(st.sampled_from(((), (1,), (3,), (2, 3), (2, 1))))
    parts: list = []
    axis = 0
    while axis < len(shape):
        kinds = ["slice", "slice", "array", "mask"] + (["int"] if shape[axis] else [])
        kind = draw(st.sampled_from(kinds))
        if kind == "slice":
            parts.append(draw(slices(shape[axis])))
        elif kind == "int":
            parts.append(draw(st.integers(-shape[axis], shape[axis] - 1)))
        elif kind == "array" and shape[axis] and places:
            within = st.integers(-shape[axis], shape[axis] - 1)
            n = int(np.prod(places))
            values = np.array(draw(st.lists(within, min_size=n, max_size=n))).reshape(places)
            form = draw(st.sampled_from(("tensor", "list", "array", "int32")))
            parts.append(
                plain(values) if form == "tensor" else values.tolist() if form == "list"
                else values.astype(np.int32) if form == "int32" else values
            )  # fmt: skip
        elif kind == "mask" and not any(hasattr(p, "dtype") or isinstance(p, list) for p in parts):
            n = draw(st.integers(1, len(shape) - axis))
            mask = normal(shape[axis : axis + n], draw(seeds), np.dtype(bool))
            parts.append(plain(mask) if draw(st.booleans()) else mask)
            axis += n - 1
            places = ()  # its number of places fits no array but of one element
        else:
            parts.append(slice(None))
        axis += 1
        if draw(st.integers(0, 3)) == 0:
            parts.append(None)
    cut = draw(st.integers(0, len(parts)))
    if draw(st.booleans()):
        parts = parts[:cut]
        # (NumPy lets an empty mask stand at an axis of another size, where ... may move it.)
        masked = any(hasattr(p, "dtype") and p.dtype == dtypes.bool_ for p in parts)
        if draw(st.booleans()) and not masked:
            parts.insert(draw(st.integers(0, len(parts))), Ellipsis)
    if any(isinstance(p, list) for p in parts) or len(parts) != 1 or draw(st.booleans()):
        return tuple(parts)
    return parts[0]


def for_numpy(index):
    """The same index without Tensors."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(p.data if hasattr(p, "requires_grad") else p for p in parts)


@st.composite
def cases(draw):
    shape, seed, layout = draw(shapes(empty=True, most=60)), draw(seeds), draw(layouts)
    x = normal(shape, seed)
    return x, layout, draw(indices(shape))


def fits(x, index):
    """Whether NumPy takes the index too (an Ellipsis may move an array to a shorter axis)."""
    try:
        x[for_numpy(index)]
    except IndexError:
        return False
    return True


@given(case=cases())
@some
def test_reading(case):
    x, layout, index = case
    y = laid_out(x, layout)
    if not fits(y, index):
        with pytest.raises((IndexOutOfRange, ShapeError)):
            getitem(plain(y), index)
        return
    got, want = getitem(plain(y), index), np.asarray(y[for_numpy(index)])
    assert got.shape == want.shape and np.array_equal(got.data, want)
    if x.size and not module.is_advanced(resolve(y, index)) and want.size:
        assert np.shares_memory(got.data, y)
    if x.size:
        assert gradcheck(lambda t: getitem(t, index), leaf(x, layout))
    else:
        t = leaf(x)
        getitem(t, index).backward(plain(np.ones(want.shape)))
        assert t.grad.shape == x.shape


@given(case=cases(), data=st.data())
@some
def test_writing(case, data):
    x, layout, index = case
    y = laid_out(x, layout)
    if not fits(y, index):
        return
    shape = y[for_numpy(index)].shape
    kept = tuple(1 if data.draw(st.booleans()) else n for n in shape)
    value = normal(kept[data.draw(st.integers(0, len(kept))) :], data.draw(seeds))
    want = y.copy()
    want[for_numpy(index)] = value
    before = y.copy()
    got = setitem(plain(y), index, plain(value))
    assert np.array_equal(got.data, want) and np.array_equal(y, before)
    resolved = resolve(y, index)
    if module.is_advanced(resolved):  # the way CuPy takes
        again = y.copy()
        module.write_last(again, resolved, value)
        assert np.array_equal(again, want)
    if x.size and value.size:
        assert gradcheck(lambda t, v: setitem(t, index, v), [leaf(x, layout), leaf(value)])
    assert np.array_equal(
        setitem(plain(y), index, 2).data, np.where(want == want, _filled(y, index), 0)
    )


def _filled(y, index):
    result = y.copy()
    result[for_numpy(index)] = 2
    return result


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


@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
@given(
    n=st.sampled_from((0, 1, 2, 3, 7, 8, 9, 100)), height=st.sampled_from((1, 2, 5, 200)),
    width=st.sampled_from((0, 1, 3)), seed=seeds,
)  # fmt: skip
@few
def test_rows_are_added_up_in_both_ways(dtype, n, height, width, seed):
    numbers = np.random.default_rng(seed).integers(0, height, n)
    rows = normal((n, width), seed, dtype)
    want, total = np.zeros((height, width)), np.zeros((height, width))
    np.add.at(want, numbers, rows.astype(np.float64))
    np.add.at(total, numbers, np.abs(rows.astype(np.float64)))
    got = add_rows(numbers, rows, height)
    assert got.dtype == dtype
    # At most n additions in the accumulation dtype, then one rounding.
    bound = max(n, 1) * EPS[dtype if dtype == np.float64 else np.dtype("float32")] * total
    assert np.all(np.abs(got.astype(np.float64) - want) <= bound + EPS[dtype] * np.abs(want))
    if n:
        wide = rows.astype(np.float64)
        unique, sums = sum_runs(numbers, wide)  # the way CuPy takes
        assert np.array_equal(unique, np.unique(numbers))
        assert np.all(np.abs(sums - want[unique]) <= n * EPS[np.dtype("float64")] * total[unique])
        assert np.array_equal(sums, sum_runs(numbers, wide)[1])  # the same bits each time
        assert np.array_equal(wide, rows.astype(np.float64))  # not written


def test_low_precision_repeats_add_up_in_float32():
    for dtype in FLOATS[:2]:
        x = leaf(np.zeros(1, dtype))
        (dx,) = gradient_of(lambda t: getitem(t, (np.zeros(4096, int),)), x, upstream=np.ones(4096))
        assert dx.astype(float) == 4096


@st.composite
def gathers(draw):
    shape = draw(shapes(most=60))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    other = [1 if draw(st.integers(0, 3)) == 0 else n for n in shape]
    other[axis] = draw(st.integers(0, 4))
    size = shape[axis]
    where = np.random.default_rng(draw(seeds)).integers(-size, size, other)
    return shape, axis, where, draw(seeds), draw(layouts)


@given(case=gathers())
@some
def test_take_along_axis(case):
    shape, axis, where, seed, layout = case
    x = normal(shape, seed)
    y = laid_out(x, layout)
    got = take_along_axis(plain(y), plain(where.astype(np.int32)), axis)
    want = np.take_along_axis(y, where, axis)
    assert got.shape == want.shape and np.array_equal(got.data, want)
    assert gradcheck(lambda t: take_along_axis(t, plain(where), axis), leaf(x, layout))


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
        (True, DTypeError, "bool"),
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
