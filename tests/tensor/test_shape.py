"""Shapes, joining and cutting: values against NumPy, views, gradients, errors."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tensor.tensor_cases import (
    DTYPES,
    as64,
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
from tinybn.tensor.ops import join, shape

pytestmark = pytest.mark.filterwarnings("error")


def check(fn, want: np.ndarray, x: np.ndarray, layout: str, *, view: bool = True) -> None:
    """Value, sharing of memory and gradient of ``fn`` at ``x`` laid out so."""
    got = fn(plain(laid_out(x, layout)))
    assert got.shape == want.shape and np.array_equal(got.data, want)
    if view and x.size:
        source = laid_out(x, layout)
        assert np.shares_memory(fn(plain(source)).data, source)
    if x.size:
        assert gradcheck(fn, leaf(x, layout))
    else:
        t = leaf(x, layout)
        fn(t).backward(plain(np.zeros(want.shape)))
        assert t.grad.shape == x.shape


@st.composite
def drawn(draw, **options):
    """A shape, its values as laid out, and the layout."""
    size, seed, layout = draw(shapes(empty=True, **options)), draw(seeds), draw(layouts)
    x = normal(size, seed)
    return x, laid_out(x, layout), layout


@given(case=drawn(min_dims=0), data=st.data())
@some
def test_reshape(case, data):
    x, y, layout = case
    target = [1, *data.draw(st.permutations(y.shape))]
    if y.size and data.draw(st.booleans()):
        target[data.draw(st.integers(0, len(target) - 1))] = -1
    want = y.reshape(target)
    check(lambda t: shape.reshape(t, *target), want, x, layout, view=np.shares_memory(want, y))
    assert shape.reshape(plain(y), tuple(target)).shape == want.shape


@given(case=drawn(), data=st.data())
@some
def test_axes_in_another_order(case, data):
    x, y, layout = case
    order = data.draw(st.permutations(range(y.ndim)))
    signed = [a - y.ndim if data.draw(st.booleans()) else a for a in order]
    check(lambda t: shape.permute(t, *signed), y.transpose(order), x, layout)
    check(shape.transpose, y.T, x, layout)
    if y.ndim != 2:
        check(lambda t: shape.transpose(t, signed), y.transpose(order), x, layout)
    a, b = (data.draw(st.integers(-y.ndim, y.ndim - 1)) for _ in range(2))
    check(lambda t: shape.swapaxes(t, a, b), y.swapaxes(a, b), x, layout)
    check(lambda t: shape.moveaxis(t, a, b), np.moveaxis(y, a, b), x, layout)
    n = data.draw(st.integers(0, y.ndim))
    there = tuple(data.draw(st.permutations(range(y.ndim)))[:n])
    source = tuple(order[:n])
    check(lambda t: shape.moveaxis(t, source, there), np.moveaxis(y, source, there), x, layout)


def test_transpose_with_two_axes_swaps_as_in_pytorch():
    x = plain(np.zeros((2, 3, 4)))
    assert shape.transpose(x, 0, 1).shape == (3, 2, 4)
    assert shape.transpose(x, (0, -1)).shape == (4, 3, 2)
    assert shape.transpose(plain(np.zeros((2, 3))), 0, 1).shape == (2, 3)  # NumPy's permutation


@given(case=drawn(min_dims=0), data=st.data())
@some
def test_axes_of_size_one(case, data):
    x, y, layout = case
    at = data.draw(st.integers(-y.ndim - 1, y.ndim))
    check(lambda t: shape.expand_dims(t, at), np.expand_dims(y, at), x, layout)
    check(lambda t: shape.unsqueeze(t, at), np.expand_dims(y, at), x, layout)
    check(lambda t: shape.expand_dims(t, (0, -1)), np.expand_dims(y, (0, -1)), x, layout)
    check(shape.squeeze, np.squeeze(y), x, layout)
    ones = tuple(i for i, n in enumerate(y.shape) if n == 1)
    check(lambda t: shape.squeeze(t, ones), np.squeeze(y, ones), x, layout)


@given(case=drawn(min_dims=0), data=st.data())
@some
def test_flatten(case, data):
    x, y, layout = case
    ends = (0, 0)
    if y.ndim:
        ends = sorted(data.draw(st.tuples(*[st.integers(0, y.ndim - 1)] * 2)))
    start, end = ends
    middle = int(np.prod(y.shape[start : end + 1]))
    want = y.reshape(*y.shape[:start], middle, *y.shape[end + 1 :]) if y.ndim else y.reshape(1)
    check(lambda t: shape.flatten(t, start, end), want, x, layout, view=np.shares_memory(want, y))
    assert shape.flatten(plain(y)).shape == (y.size,)


@given(case=drawn(min_dims=0, most=40), data=st.data())
@some
def test_expand(case, data):
    x, y, layout = case
    lead = data.draw(st.lists(st.integers(0, 2), max_size=2))
    sizes = [*lead, *(data.draw(st.sampled_from((1, 2, 3))) if n == 1 else n for n in y.shape)]
    want = np.broadcast_to(y, sizes)
    fn = shape.broadcast_to if data.draw(st.booleans()) else shape.expand
    check(lambda t: fn(t, sizes), want, x, layout, view=want.size > 0)
    kept = [*lead, *(-1 for _ in y.shape)]
    assert shape.expand(plain(y), *kept).shape == (*lead, *y.shape)


@given(case=drawn(max_dims=2), data=st.data())
@some
def test_concatenate_and_stack(case, data):
    x, _, layout = case
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    others = [x]
    for n in data.draw(st.lists(st.integers(0, 3), max_size=2)):
        others.append(
            normal(tuple(n if i == axis % x.ndim else s for i, s in enumerate(x.shape)), n)
        )
    laid = [laid_out(o, layout) if o.size else o for o in others]
    got = join.concatenate([plain(a) for a in laid], axis)
    assert np.array_equal(got.data, np.concatenate(laid, axis))
    assert np.array_equal(join.cat([plain(a) for a in laid], axis).data, got.data)
    leaves = [leaf(o, layout if o.size else "contiguous") for o in others]
    assert gradcheck(lambda *ts: join.concatenate(ts, axis), leaves)
    place = data.draw(st.integers(-x.ndim - 1, x.ndim))
    same = [laid_out(x, layout), 2 * x]
    assert np.array_equal(join.stack([plain(a) for a in same], place).data, np.stack(same, place))
    assert gradcheck(lambda a, b: join.stack((a, b), place), [leaf(x, layout), leaf(2 * x)])


def test_stack_of_scalars_and_one_tensor_twice():
    x = leaf(np.array(2.0))
    assert gradcheck(lambda a: join.stack([a, a * 3, a]), x)
    y = leaf(normal((2, 3), 0))
    assert gradcheck(lambda a: join.concatenate([a, a], 1), y)


@given(case=drawn(), data=st.data())
@some
def test_split_and_chunk(case, data):
    x, y, layout = case
    axis = data.draw(st.integers(-y.ndim, y.ndim - 1))
    length = y.shape[axis]
    size = data.draw(st.integers(1, 5))
    want = np.split(y, range(size, length, size), axis)
    got = shape_of_parts(join.split(plain(y), size, axis), want)
    assert isinstance(got, tuple)
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=3)))
    sizes = np.diff([0, *cuts, length]).tolist()
    shape_of_parts(join.split(plain(y), sizes, axis), np.split(y, cuts, axis))
    step = -(-length // size) or 1
    shape_of_parts(join.chunk(plain(y), size, axis), np.split(y, range(step, length, step), axis))
    if y.size:
        assert gradcheck(lambda t: join.split(t, size, axis), leaf(x, layout))
        assert np.shares_memory(join.split(plain(y), size, axis)[0].data, y)


def shape_of_parts(got, want):
    assert [p.shape for p in got] == [p.shape for p in want]
    assert all(np.array_equal(p.data, w) for p, w in zip(got, want, strict=True))
    return got


@given(case=drawn(min_dims=1, most=40), data=st.data())
@some
def test_pad(case, data):
    x, y, layout = case
    width = st.integers(0, 2)
    pairs = data.draw(
        st.one_of(
            width,
            st.tuples(width, width),
            st.lists(st.tuples(width, width), min_size=y.ndim, max_size=y.ndim),
        )
    )
    want = np.pad(y, pairs, constant_values=7)
    check(lambda t: join.pad(t, pairs, value=7), want, x, layout, view=False)
    assert join.pad(plain(np.array(3.0)), 2).shape == ()


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_dtypes_are_kept(dtype):
    x = plain(normal((2, 3), 0, dtype))
    for y in (
        shape.reshape(x, 6), shape.transpose(x), shape.expand(x, 2, 2, 3), join.pad(x, 1),
        join.concatenate([x, x]), join.stack([x, x]), join.split(x, 1)[0],
    ):  # fmt: skip
        assert y.dtype == dtype
    assert as64(join.pad(x, 1, value=1))[0, 0] == 1


def test_joined_dtypes_are_promoted():
    a = plain(np.ones(2, np.float32))
    for dtype, want in ((dtypes.float64, "float64"), (dtypes.bfloat16, "float32"),
                        (dtypes.int64, "float64"), (dtypes.bool_, "float32")):  # fmt: skip
        b = plain(np.ones(2, dtype))
        assert join.concatenate([a, b]).dtype.name == join.stack([a, b]).dtype.name == want
    half = plain(np.ones(2, np.float16))
    assert join.concatenate([half, plain(np.ones(2, dtypes.bfloat16))]).dtype == np.float32
    low, high = leaf(np.ones(2, np.float16)), leaf(np.ones(2))
    gradients = gradient_of(lambda *t: join.stack(t), low, high, upstream=np.ones((2, 2)))
    assert [g.dtype for g in gradients] == [np.float16, np.float64]


def test_low_precision_expand_gradient_adds_up_in_float32():
    x = leaf(np.ones(1, np.float16))
    (dx,) = gradient_of(lambda t: shape.expand(t, 4096), x, upstream=np.ones(4096))
    assert dx == 4096  # a float16 running sum would stop at 2048


def test_views_are_seen_by_the_version_counter():
    x = plain(np.zeros((2, 3)))
    for view in (
        shape.reshape(x, 6),
        shape.transpose(x),
        shape.squeeze(x),
        shape.expand(x, 1, 2, 3),
    ):
        assert view._version is x._version


ZEROS = plain(np.zeros((2, 3)))


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda: shape.reshape(ZEROS, 4), ShapeError, r"shape \(2, 3\) has 6 elements .* \(4,\)"),
        (lambda: shape.reshape(ZEROS, -1, -1), ShapeError, "cannot take shape"),
        (lambda: shape.reshape(ZEROS, -2, -3), ShapeError, "cannot take shape"),
        (lambda: shape.reshape(ZEROS, 4, -1), ShapeError, "cannot take shape"),
        (lambda: shape.reshape(plain(np.zeros((0, 3))), 0, -1), ShapeError, "cannot take shape"),
        (lambda: shape.reshape(ZEROS, 2.0, 3), ArgumentError, "integer"),
        (lambda: shape.flatten(ZEROS, 1, 0), ArgumentError, "start"),
        (lambda: shape.flatten(ZEROS, 2), IndexOutOfRange, "axis 2"),
        (lambda: shape.squeeze(ZEROS, 0), ShapeError, "must be 1"),
        (lambda: shape.expand_dims(ZEROS, 4), IndexOutOfRange, "axis 4"),
        (lambda: shape.expand_dims(ZEROS, (0, 0)), ArgumentError, "twice"),
        (lambda: shape.permute(ZEROS, 0), ShapeError, "got 1 axes"),
        (lambda: shape.permute(ZEROS, 0, 0), ArgumentError, "twice"),
        (lambda: shape.transpose(ZEROS, 0, 5), IndexOutOfRange, "axis 5"),
        (lambda: shape.moveaxis(ZEROS, (0, 1), 0), ArgumentError, "2 axes to 1 places"),
        (lambda: shape.moveaxis(ZEROS, (0, 0), (0, 1)), ArgumentError, "twice"),
        (lambda: shape.expand(ZEROS, 3), ShapeError, r"\(2, 3\) cannot be expanded"),
        (lambda: shape.expand(ZEROS, 4, 3), ShapeError, r"\(2, 3\) cannot be expanded"),
        (lambda: shape.expand(ZEROS, -1, 2, 3), ShapeError, "cannot be expanded"),
        (lambda: join.concatenate([]), ArgumentError, "no tensors"),
        (lambda: join.concatenate([ZEROS, plain(np.zeros((2, 4)))]), ShapeError, r"\(2, 4\)"),
        (lambda: join.concatenate([ZEROS, plain(np.zeros(3))]), ShapeError, r"\(3,\)"),
        (lambda: join.concatenate([plain(np.zeros(()))]), ShapeError, "use stack"),
        (lambda: join.concatenate([ZEROS], 2), IndexOutOfRange, "axis 2"),
        (lambda: join.concatenate(["a"]), DTypeError, "str"),
        (lambda: join.stack([ZEROS, plain(np.zeros((3, 2)))]), ShapeError, r"\(3, 2\)"),
        (lambda: join.stack([ZEROS], 3), IndexOutOfRange, "axis 3"),
        (lambda: join.split(ZEROS, 0), ArgumentError, "at least 1"),
        (lambda: join.split(ZEROS, [1, 2]), ArgumentError, "add up"),
        (lambda: join.chunk(ZEROS, 0), ArgumentError, "at least 1"),
        (lambda: join.pad(ZEROS, -1), ArgumentError, "at least 0"),
        (lambda: join.pad(ZEROS, 1.5), ArgumentError, "integers"),
        (lambda: join.pad(ZEROS, [(1, 1)] * 3), ShapeError, "pair for each axis"),
        (lambda: join.pad(ZEROS, 1, mode="edge"), ArgumentError, "edge"),
        (lambda: join.pad(ZEROS, 1, constant_values=1), TypeError, "constant_values"),
    ],
)
def test_errors(call, error, message):
    with pytest.raises(error, match=message):
        call()


@few
@given(case=drawn(max_dims=2))
def test_inputs_are_not_written(case):
    x, _, _ = case
    before = x.copy()
    t = leaf(x)
    join.pad(join.concatenate([t, t]), 1)
    assert np.array_equal(t.data, before)
