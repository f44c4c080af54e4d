"""Writing in place: values, versions, gradients, and everything that must be refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinybn as tb
from tinybn.errors import DTypeError, IndexOutOfRange, ShapeError, TapeError
from tinybn.tensor.tape import Version


def values(*shape: int) -> np.ndarray:
    return np.arange(1.0, 1.0 + np.prod(shape)).reshape(shape)


def leaf(*shape: int) -> tb.Tensor:
    return tb.tensor(values(*shape), device="cpu", requires_grad=True)


def check_kept(change, x: tb.Tensor, error: type[Exception], match: str | None = None) -> None:
    before, version = x.data.copy(), x._version.value
    with pytest.raises(error, match=match):
        change(x)
    np.testing.assert_array_equal(x.data, before)
    assert x._version.value == version


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
@given(
    columns=st.sampled_from([1, 3]),
    dtype=st.sampled_from([tb.float16, tb.bfloat16, tb.float32, tb.float64]),
    scalar=st.booleans(),
)
def test_arithmetic_equals_the_out_of_place_form(name, columns, dtype, scalar):
    x = tb.tensor(values(2, 3), dtype=dtype)
    other = 2.5 if scalar else tb.tensor(values(columns) + 0.5, dtype=dtype)
    expected = getattr(x, name)(other)
    memory, version = x.data, x._version.value
    same = getattr(x, f"{name}_")(other)
    assert same is x and x.data is memory and x._version.value == version + 1
    assert x.dtype == dtype
    np.testing.assert_array_equal(x.data, expected.data)


def test_operators_write_in_place():
    x = tb.tensor([8.0, 6.0])
    same, memory = x, x.data
    x += 2
    x -= 1
    x *= 4
    x /= 2
    assert x is same and x.data is memory and x.tolist() == [18, 14]
    with pytest.raises(TypeError):
        x += "a"


def test_fill_zero_copy_clamp():
    x = tb.tensor(values(2, 2))
    assert x.clamp_(2, 3).tolist() == [[2, 2], [3, 3]]
    assert x.clamp_(max=tb.tensor([1.0, 9.0], dtype=tb.float64)).tolist() == [[1, 2], [1, 3]]
    assert x.fill_(7).tolist() == [[7, 7], [7, 7]]
    assert x.copy_(tb.tensor([1, 2])).tolist() == [[1, 2], [1, 2]]
    assert x.copy_(np.float32(3)).tolist() == [[3, 3], [3, 3]]
    assert x.zero_().tolist() == [[0, 0], [0, 0]]
    assert x._version.value == 6
    assert tb.tensor([True]).zero_().tolist() == [False]
    assert tb.tensor(1.0).fill_(2).item() == 2


def test_setitem_forms():
    x = tb.tensor(values(3, 3))
    x[0] = 0
    x[1, ::2] = [10, 20]
    x[x > 15] = -1
    x[[2, 2], [0, 1]] = tb.tensor([5.0, 6.0])
    assert x.tolist() == [[0, 0, 0], [10, 5, -1], [5, 6, 9]]
    assert x._version.value == 4


def test_writing_a_view_writes_the_base():
    x = tb.tensor(values(4))
    view = x[1:3]
    view *= 10
    assert x.tolist() == [1, 20, 30, 4]
    assert x._version is view._version and x._version.value == 1


def test_memory_read_and_written_at_once():
    x = tb.tensor(values(3, 3))
    x += x.T
    np.testing.assert_array_equal(x.data, values(3, 3) + values(3, 3).T)
    x = tb.tensor(values(5))
    x[1:] = x[:-1]
    assert x.tolist() == [1, 1, 2, 3, 4]
    x = tb.tensor(values(5))
    x[:-1].copy_(x[1:])
    assert x.tolist() == [2, 3, 4, 5, 5]
    x = tb.tensor(values(4))
    x -= x
    assert x.tolist() == [0, 0, 0, 0]
    x = tb.tensor(values(4))
    x /= x[1]
    assert x.tolist() == [0.5, 1, 1.5, 2]


# Gradients


def test_recorded_writes_chain():
    x = leaf(3)
    y = x * 2
    memory = y.data
    y += 1
    y *= y
    assert y.data is memory
    y.sum().backward()
    # y = (2x + 1)², dy/dx = 4 (2x + 1)
    np.testing.assert_array_equal(x.grad.data, 4 * (2 * values(3) + 1))


@pytest.mark.parametrize("name", ["add_", "sub_", "mul_", "div_"])
def test_gradients_of_recorded_arithmetic(name):
    rng = np.random.default_rng(0)
    x = tb.tensor(rng.uniform(1, 2, (2, 3)), requires_grad=True)
    w = tb.tensor(rng.uniform(1, 2, 3), requires_grad=True)
    assert tb.gradcheck(lambda x, w: getattr(x * 1.0, name)(w), [x, w])


def test_gradients_of_recorded_copy_fill_clamp_setitem():
    x, w = leaf(2, 3), tb.tensor([5.0, 6.0, 7.0], dtype=tb.float64, requires_grad=True)
    y = x * 2
    y.copy_(w)
    y.sum().backward()
    assert x.grad is None and w.grad.tolist() == [2, 2, 2]  # nothing of x is left in y

    y = x * 2
    y.fill_(3.0)
    y.sum().backward()
    assert x.grad is None

    y = x * 2
    y.clamp_(3, 9)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.data, [[0, 2, 2], [2, 0, 0]])

    x.grad = w.grad = None
    y = x * 2
    y[0] = w * 10
    y[1, 2] = 0.0
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.data, [[0, 0, 0], [2, 2, 0]])
    np.testing.assert_array_equal(w.grad.data, [10, 10, 10])


def test_rows_filled_one_by_one_into_a_plain_tensor():
    w = leaf(3)
    out = tb.zeros(4, 3, dtype=tb.float64)
    for i in range(4):
        out[i] = w * i
    assert out.requires_grad and not out.is_leaf
    out.sum().backward()
    assert w.grad.tolist() == [6, 6, 6]


def test_an_element_read_and_written_back():
    x = leaf(3)
    y = x * 1
    y[0] = y[0] + y[1]  # the views are gone when the write happens
    y.sum().backward()
    assert x.grad.tolist() == [1, 2, 1]


VIEWS = {
    "row": lambda y: y[0],
    "column": lambda y: y[:, 1],
    "part": lambda y: y[1:, ::2],
    "reversed": lambda y: y[::-1, 1],
    "transposed": lambda y: y.T[0],
    "reshaped": lambda y: y.reshape(6)[2:5],
    "empty": lambda y: y[:0],
    "element": lambda y: y[1, 2],
}


@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("name", ["add_", "mul_", "copy_"])
def test_a_view_written_in_place_changes_the_base(view, name):
    rng = np.random.default_rng(1)
    x = tb.tensor(rng.uniform(1, 2, (2, 3)), requires_grad=True)
    w = tb.tensor(1.5, dtype=tb.float64, requires_grad=True)

    def written(x, w):
        y = x * x
        part = VIEWS[view](y)
        other = y[1]
        getattr(part, name)(w)
        return y * 2, part * 3, other.exp()

    assert tb.gradcheck(written, [x, w])
    recorded = written(x, w)
    with tb.no_grad():
        plain = written(x, w)
    for a, b in zip(recorded, plain, strict=True):
        np.testing.assert_array_equal(a.data, b.data)


def test_augmented_items():
    x = leaf(3)
    y = x * 2
    y[0] += 10
    y[1:] *= y[:2].clone()
    y[0] -= x[1]
    y[1] /= 4.0
    assert y.tolist() == [10, 12, 24]

    def augmented(x):
        y = x * 2
        y[0] += 10
        y[1:] *= y[:2].clone()
        y[0] -= x[1]
        y[1] /= 4.0
        y[y > 11] *= 3.0
        return y

    assert tb.gradcheck(augmented, [leaf(3)])


def test_the_base_written_while_a_view_is_alive():
    x = leaf(4)
    y = x * 1
    view = y[:2]
    y *= 3
    view += y[2:]
    assert view.tolist() == [12, 18] and y.tolist() == [12, 18, 9, 12]
    (y.sum() + 10 * view.sum()).backward()
    assert x.grad.tolist() == [33, 33, 36, 36]
    base = tb.zeros(4, dtype=tb.float64)
    x.grad = None
    base[:2] += x[:2] * 5
    base.sum().backward()
    assert x.grad.tolist() == [5, 5, 0, 0]


def test_retain_grad_follows_a_base_whose_view_is_written():
    x = leaf(3)
    y = x * 1
    y.retain_grad()
    y[0] *= 5
    (y * 2).sum().backward()
    assert y.grad.tolist() == [2, 2, 2] and x.grad.tolist() == [10, 2, 2]


def test_a_saved_value_under_a_written_view_raises_at_backward():
    y = leaf(3) * 1
    z = (y * y).sum()
    y[0] += 1
    with pytest.raises(TapeError, match="Mul"):
        z.backward()


def test_the_old_value_is_kept_for_its_own_gradient():
    x, w = leaf(2), leaf(2)
    y = x * 1
    y *= w  # the gradient of w needs y as it was
    y.sum().backward()
    np.testing.assert_array_equal(w.grad.data, values(2))


def test_retain_grad_follows_the_tensor():
    x = leaf(2)
    y = x * 1
    y.retain_grad()
    y *= 3
    (y * 5).sum().backward()
    assert y.grad.tolist() == [5, 5] and x.grad.tolist() == [15, 15]


def test_a_write_that_drops_the_gradient_graph_in_no_grad():
    x = leaf(2)
    with tb.no_grad():
        x -= 1
        x[0] = 9
    assert x.tolist() == [9, 1] and x.is_leaf and x.requires_grad


# What is refused, with nothing changed


def test_a_leaf_that_requires_a_gradient():
    x = leaf(2)
    check_kept(lambda x: x.add_(1), x, TapeError, "leaf")
    check_kept(lambda x: x.zero_(), x, TapeError, "leaf")
    check_kept(lambda x: x.clamp_(0), x, TapeError, "leaf")
    check_kept(lambda x: x.__setitem__(0, 1.0), x, RuntimeError, "leaf")


def test_a_view_of_a_leaf_or_one_without_a_graph_is_refused():
    w = leaf(4)
    check_kept(lambda v: v.add_(1), w[:2], TapeError, "view of a leaf")
    y = leaf(4) * 1
    with tb.no_grad():
        view = y[:2]
    check_kept(lambda y: y.add_(1), y, TapeError, r"y\[0\] = y\[0\] \+ 1")
    check_kept(lambda v: v.add_(y[2:]), view, TapeError, "without recording")
    y = (leaf(4) * 1)[::-1]
    view = y[:2]  # no tensor alive holds all the memory in C order
    check_kept(lambda v: v.add_(1), view, TapeError, r"y\[0\] = y\[0\] \+ 1")


def test_views_forget_tensors_that_are_gone():
    version, x = Version(), tb.zeros(2)
    version.add_view(x)
    version.add_view(x)
    assert version.others(x) == []
    other = tb.zeros(2)
    version.add_view(other)
    assert version.others(x)[0] is other and version.others(other)[0] is x
    del other
    assert version.others(x) == []


def test_dtypes_that_do_not_fit():
    whole = tb.tensor([1, 2])
    check_kept(lambda x: x.add_(0.5), whole, DTypeError, "float64.*int64")
    check_kept(lambda x: x.div_(2), whole, TypeError, "float64.*int64")
    check_kept(lambda x: x.fill_(1.5), whole, DTypeError)
    check_kept(lambda x: x.copy_(tb.tensor([1.0, 2.0])), whole, DTypeError, "float32.*int64")
    check_kept(lambda x: x.__setitem__(0, 1.5), whole, DTypeError)
    check_kept(lambda x: x.mul_(2), tb.tensor([True]), DTypeError, "int64.*bool")
    check_kept(lambda x: x.sub_(True), tb.tensor([True]), DTypeError, "bool")
    assert whole.add_(True).tolist() == [2, 3]
    assert tb.tensor([1.0], dtype=tb.float16).add_(tb.tensor([1.0], dtype=tb.float64)).item() == 2


def test_shapes_that_do_not_fit():
    x = tb.tensor(values(2, 3))
    check_kept(lambda x: x.add_(tb.zeros(4)), x, ShapeError, r"\(4,\)")
    check_kept(lambda x: x.add_(tb.zeros(5, 2, 3)), x, ShapeError, r"\(5, 2, 3\)")
    check_kept(lambda x: x.copy_(tb.zeros(2, 2, 3)), x, ValueError)
    check_kept(lambda x: x.__setitem__(0, tb.zeros(2)), x, ShapeError, r"\(2,\)")
    check_kept(lambda x: x.__setitem__(5, 0.0), x, IndexOutOfRange, "5")
    row = tb.zeros(1, 3)
    check_kept(lambda r: r.mul_(tb.zeros(2, 3)), row, ShapeError)


def test_read_only_memory():
    array = np.arange(3.0)
    array.flags.writeable = False
    x = tb.from_dlpack(array)
    check_kept(lambda x: x.add_(1), x, TapeError, "read-only")
    check_kept(lambda x: x.__setitem__(0, 1.0), x, TapeError, "read-only")
    assert (x + 1).tolist() == [1, 2, 3]
    assert x.clone().add_(1).tolist() == [1, 2, 3]
