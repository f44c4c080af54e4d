"""Arguments that were raw errors or silent: one sentence, or made to work."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.tensor.test_interchange import Exporter
from tinybn.errors import ArgumentError, DTypeError, ShapeError, StateError, TapeError


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8", ">i4", ">i8"])
def test_bytes_in_the_other_order_are_swapped(dtype):
    array = np.arange(3).astype(dtype)
    native = np.dtype(dtype).newbyteorder("=")
    for x in (
        tb.tensor(array),
        tb.as_tensor(array),
        tb.tensor([array, array])[0],
        tb.add(array, 0),
    ):
        assert x.dtype == native and x.tolist() == [0, 1, 2]
    assert tb.tensor(array, dtype=tb.float32).dtype == tb.float32
    assert (tb.ones(3) * array).tolist() == [0, 1, 2]


def test_dlpack_of_a_dtype_that_numpy_cannot_take():
    class Refused(Exporter):
        def __dlpack__(self, **options):
            raise BufferError("no such dtype")

    with pytest.raises(DTypeError, match="from_dlpack.*no such dtype"):
        tb.from_dlpack(Refused(None))


def test_a_negative_stride_leaves_as_a_copy():
    for array in (np.arange(3.0)[::-1], np.arange(6.0).reshape(2, 3)[:, ::-1], np.ones(1)[::-1]):
        x = tb.from_dlpack(array)
        back = np.from_dlpack(x)
        np.testing.assert_array_equal(back, array)
        assert not np.shares_memory(back, array) and min(back.strides) >= 0
        with pytest.raises(ArgumentError, match="negative"):
            x.__dlpack__(copy=False)


@pytest.mark.parametrize("result", [1.0, np.ones(2), "x", [1.0, 2.0]])
def test_a_hook_that_returns_no_tensor(result):
    x = tb.ones(2, requires_grad=True)
    x.register_hook(lambda g: result)
    with pytest.raises(DTypeError, match=f"hook.*{type(result).__name__}"):
        (x * 2).sum().backward()
    assert x.grad is None


@pytest.mark.parametrize("dtype", [tb.float16, tb.bfloat16, tb.float32, tb.float64])
def test_backward_takes_python_numbers(dtype):
    for gradient in ([1.0, 2.0], [1, 2], (1, 2.0), [True, 2]):
        x = tb.ones(2, dtype=dtype, requires_grad=True)
        (x * 3).backward(gradient)
        assert x.grad.dtype == dtype and x.grad.tolist() == [3, 6]
    x = tb.tensor(1.0, dtype=dtype, requires_grad=True)
    (x * 3).backward(2)
    (x * 3).backward(1.0)
    assert x.grad.item() == 9
    with pytest.raises(ShapeError):
        tb.ones(2, dtype=dtype, requires_grad=True).backward(1.0)
    if dtype != tb.float64:  # an array says its dtype
        with pytest.raises(DTypeError):
            (x * 3).backward(np.float64(1.0))


@pytest.mark.parametrize(
    "state",
    [
        {"seed": 2, "offset": "x"}, {"seed": 2, "offset": 1.5}, {"seed": 2, "offset": True},
        {"seed": 2, "offset": -1}, {"seed": 2, "offset": None}, {"seed": 2}, None, 3,
        {"seed": "x", "offset": 1}, {"seed": -1, "offset": 1},
    ],
)  # fmt: skip
def test_a_generator_refuses_a_state_that_is_none(state):
    generator = tb.Generator("cpu", 7)
    before = generator.get_state()
    with pytest.raises((StateError, ArgumentError), match="state|seed"):
        generator.set_state(state)
    assert generator.get_state() == before
    generator.set_state({"seed": np.int64(2), "offset": np.int64(3)})
    assert generator.get_state() == {"seed": 2, "offset": 3}


@pytest.mark.parametrize(
    "call",
    [
        lambda: tb.arange(float("nan")), lambda: tb.arange(float("inf")),
        lambda: tb.arange(0, 1, float("nan")), lambda: tb.arange("a"),
        lambda: tb.arange(2**40, 2**40 + 2, dtype="int32"),
        lambda: tb.linspace(0, 1, 2.5), lambda: tb.linspace(0, 1, "a"),
        lambda: tb.linspace(0, 1, -1), lambda: tb.linspace("a", 1, 2),
        lambda: tb.randperm(2.5), lambda: tb.randint(0.5, 2), lambda: tb.randint(0, "a"),
        lambda: tb.randint(2**40, 2**41, (2,), dtype="int32"),
        lambda: tb.randint(-(2**31) - 1, 0, (2,), dtype="int32"),
        lambda: tb.randint(0, 2**31 + 1, (2,), dtype="int32"),
        lambda: tb.randint(0, 2**63 + 1), lambda: tb.randint(0, 3, (2,), dtype="bool"),
        lambda: tb.randint(0, 70_000, (2,), dtype="float16"),
    ],
)  # fmt: skip
def test_sequences_and_integers_refuse(call):
    with pytest.raises(ArgumentError):
        call()


def test_the_whole_range_of_a_dtype_is_allowed():
    assert tb.randint(-(2**31), 2**31, (2,), dtype="int32").dtype == tb.int32
    assert tb.randint(-(2**63), 2**63, (2,)).dtype == tb.int64
    assert set(tb.randint(0, 2, (20,), dtype="bool").tolist()) == {True, False}
    assert tb.randint(0, 9, (2,), dtype="bfloat16").dtype == tb.bfloat16
    assert tb.linspace(0, 1, np.int64(2)).tolist() == [0, 1]
    assert tb.arange(-3, -(2**31) - 1, -(2**31), dtype="int32").tolist() == [-3]


# Hooks


def test_a_leaf_hook_that_raises_leaves_every_gradient_alone():
    leaves = [tb.ones(2, requires_grad=True) for _ in range(3)]

    def fail(gradient):
        raise KeyError("hook")

    for i in range(3):
        handle = leaves[i].register_hook(fail)
        inner = leaves[0] + leaves[1]
        inner.retain_grad()
        with pytest.raises(KeyError):
            (inner + leaves[2]).sum().backward()
        assert [x.grad for x in (*leaves, inner)] == [None] * 4
        handle.remove()


@pytest.mark.parametrize("inner", [False, True])
def test_a_hook_that_writes_changes_its_own_gradient_alone(inner):
    a, b = (tb.ones(2, requires_grad=True) for _ in range(2))
    x, y = (a * 1, b * 1) if inner else (a, b)
    upstream = tb.ones(2)
    x.register_hook(lambda g: (g.mul_(10), None)[1])
    (x + y).backward(upstream)
    assert a.grad.tolist() == [10, 10] and b.grad.tolist() == [1, 1]
    assert upstream.tolist() == [1, 1]


def test_a_hook_that_writes_into_what_another_returned():
    x, mine = tb.ones(2, requires_grad=True), tb.tensor([5.0, 6.0])
    x.register_hook(lambda g: mine)
    x.register_hook(lambda g: (g.mul_(2), None)[1])
    x.register_hook(lambda g: (g.add_(1), None)[1])
    (x * 1).sum().backward()
    assert x.grad.tolist() == [11, 13] and mine.tolist() == [5, 6]


def test_a_hook_may_write_into_a_broadcast_gradient():
    x = tb.ones(3, requires_grad=True)
    x.register_hook(lambda g: (g.fill_(7), None)[1])
    x.sum().backward()
    assert x.grad.tolist() == [7, 7, 7]
    with pytest.raises(TapeError, match="nothing was recorded"):
        tb.ones(1).backward()
