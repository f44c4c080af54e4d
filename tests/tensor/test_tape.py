"""The tape: gradients along every shape of graph, versions, hooks, memory."""

from __future__ import annotations

import gc
import threading
import weakref

import numpy as np
import pytest

import tinybn as tb
from tinybn.errors import DTypeError, ShapeError, TapeError
from tinybn.tensor.tape import Node, Op, apply


def leaf(*values: float) -> tb.Tensor:
    return tb.tensor(list(values), dtype=tb.float64, device="cpu", requires_grad=True)


def scalar(value: float) -> tb.Tensor:
    return tb.tensor(value, dtype=tb.float64, device="cpu", requires_grad=True)


def test_diamond():
    a = scalar(1.0)
    b = a + a
    c = b + b
    c.backward()
    assert a.grad.item() == 4


def test_two_paths_through_one_node():
    x = scalar(2.0)
    y = 3 * x
    z = 2 * y + 5 * y
    z.backward()
    assert x.grad.item() == 21


def test_the_same_tensor_as_both_operands():
    x = scalar(3.0)
    (x * x).backward()
    assert x.grad.item() == 6
    x.grad = None
    (x / x).backward()
    assert x.grad.item() == 0
    x.grad = None
    (x - x).backward()
    assert x.grad.item() == 0


def test_a_gradient_passed_on_unchanged_is_not_written_into():
    # Add hands the same array to both parents; adding into it for one would
    # change the other's gradient.
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    s = a + b
    out = s + a * 10 + b * 100
    upstream = tb.tensor([1.0, 1.0], dtype=tb.float64)
    out.backward(upstream)
    assert a.grad.tolist() == [11, 11]
    assert b.grad.tolist() == [101, 101]
    assert upstream.tolist() == [1, 1]


def test_leaf_gradients_share_no_memory():
    a, b = leaf(1.0, 2.0), leaf(3.0, 4.0)
    (a + b).sum().backward()
    a.grad.zero_()
    assert b.grad.tolist() == [1, 1]


def test_gradients_accumulate_over_backwards():
    x = leaf(1.0, 2.0)
    (x * 2).sum().backward()
    first = x.grad
    (x * 3).sum().backward()
    assert x.grad.tolist() == [5, 5]
    assert first.tolist() == [2, 2]  # another name for the old gradient keeps its value


def test_backward_of_a_leaf_itself():
    x = leaf(5.0)
    x.backward()
    x.backward()
    assert x.grad.tolist() == [2]


def test_only_what_requires_a_gradient_gets_one():
    x, constant = leaf(1.0), tb.tensor([2.0], dtype=tb.float64)
    y = x * constant
    y.backward()
    assert constant.grad is None and x.grad.tolist() == [2]
    assert not (constant * constant).requires_grad
    assert (constant * constant).is_leaf


def test_second_backward_raises_and_retain_graph_allows_it():
    x = scalar(2.0)
    y = x * x
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.item() == 8
    with pytest.raises(TapeError, match="retain_graph=True"):
        y.backward()
    with pytest.raises(RuntimeError):
        (y + 1).backward()


def test_backward_that_raises_changes_no_gradient():
    x, w = scalar(2.0), scalar(3.0)
    shared = x * x
    shared.backward()
    before = x.grad.item()
    with pytest.raises(TapeError):
        (w * shared).backward()
    assert x.grad.item() == before and w.grad is None


def test_backward_checks_the_gradient():
    x = leaf(1.0, 2.0)
    y = x * 2
    with pytest.raises(TapeError, match="one element"):
        y.backward()
    with pytest.raises(ShapeError, match=r"\(3,\)"):
        y.backward(tb.zeros(3, dtype=tb.float64))
    with pytest.raises(DTypeError, match="float32"):
        y.backward(tb.zeros(2, dtype=tb.float32))
    with pytest.raises(TapeError, match="nothing was recorded"):
        tb.zeros(1).backward()
    y.backward(np.array([1.0, 10.0]))
    assert x.grad.tolist() == [2, 20]


def test_no_grad_records_nothing_and_is_a_decorator():
    x = scalar(2.0)
    with tb.no_grad():
        assert not (x * x).requires_grad
        with tb.enable_grad():
            assert (x * x).requires_grad
    assert tb.is_grad_enabled()

    @tb.no_grad()
    def double(value):
        return value * 2

    assert not double(x).requires_grad and tb.is_grad_enabled()
    with pytest.raises(ValueError), tb.no_grad():
        raise ValueError
    assert tb.is_grad_enabled()


def test_no_grad_holds_for_its_own_thread():
    x = scalar(2.0)
    seen = []
    with tb.no_grad():
        worker = threading.Thread(target=lambda: seen.append((x * x).requires_grad))
        worker.start()
        worker.join()
        assert not (x * x).requires_grad
    assert seen == [True]


def test_threads_differentiate_at_the_same_time():
    results = []

    def work(factor: float) -> None:
        x = scalar(1.0)
        y = x
        for _ in range(200):
            y = y + factor * x
        y.backward()
        results.append((factor, x.grad.item()))

    threads = [threading.Thread(target=work, args=(float(i),)) for i in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert sorted(results) == [(float(i), 1 + 200.0 * i) for i in range(4)]


# Versions


def test_writing_over_a_saved_input_raises_at_backward():
    x = leaf(1.0, 2.0)
    y = x * 2
    z = y * y
    with tb.no_grad():
        y += 1
    with pytest.raises(TapeError, match="Mul.*version 0.*version 1"):
        z.sum().backward()


def test_writing_over_a_saved_result_raises_at_backward():
    x = leaf(1.0, 2.0)
    y = x.exp()
    with tb.no_grad():
        y.zero_()
    with pytest.raises(TapeError, match="Exp"):
        y.sum().backward()


def test_writing_through_a_view_is_seen():
    x = leaf(1.0, 2.0)
    y = x * 2
    z = (y * y).sum()
    with tb.no_grad():
        y[0].fill_(7.0)
    with pytest.raises(TapeError, match="written in place"):
        z.backward()


def test_writing_through_detach_is_seen():
    x = leaf(1.0, 2.0)
    y = x * 2
    z = (y * y).sum()
    y.detach().zero_()
    with pytest.raises(TapeError, match="written in place"):
        z.backward()


def test_writing_over_what_backward_does_not_need_is_allowed():
    x = leaf(1.0, 2.0)
    y = x * 2
    z = (y + 5).sum()  # the gradient of a sum needs no values
    with tb.no_grad():
        y.zero_()
    z.backward()
    assert x.grad.tolist() == [2, 2]


def test_a_parameter_updated_between_forward_and_backward_raises():
    w, x = leaf(2.0), leaf(3.0)
    loss = (w * x).sum()
    with tb.no_grad():
        w -= 0.1
    with pytest.raises(TapeError):
        loss.backward()
    loss = (w * x).sum()
    loss.backward()
    assert x.grad.tolist() == pytest.approx([1.9])


# Hooks and retained gradients


def test_hook_on_an_inner_tensor_sees_the_whole_gradient_and_may_replace_it():
    x = scalar(1.0)
    y = x * 2
    seen = []

    def hook(gradient):
        seen.append(gradient.item())
        return gradient * 10

    handle = y.register_hook(hook)
    (y + 3 * y).backward(retain_graph=True)
    assert seen == [4] and x.grad.item() == 80
    handle.remove()
    handle.remove()
    x.grad = None
    (y + 3 * y).backward()
    assert x.grad.item() == 8


def test_hook_on_a_leaf_runs_once_with_the_sum():
    x = scalar(1.0)
    seen = []
    x.register_hook(lambda g: seen.append(g.item()))
    (x * 2 + x * 3 + x.exp() * 0).backward()
    assert seen == [5] and x.grad.item() == 5


def test_hooks_run_in_order_and_without_recording():
    x = scalar(1.0)
    states = []
    x.register_hook(lambda g: g + 1)
    x.register_hook(lambda g: g * 10)
    x.register_hook(lambda g: states.append(tb.is_grad_enabled()))
    (x * 1).backward()
    assert x.grad.item() == 20 and states == [False]


def test_hook_that_returns_the_wrong_shape():
    x = leaf(1.0, 2.0)
    x.register_hook(lambda g: g.sum())
    with pytest.raises(ShapeError, match="hook"):
        (x * 2).sum().backward()
    assert x.grad is None


def test_hook_result_is_not_shared_with_grad():
    x, mine = leaf(1.0), tb.tensor([5.0], dtype=tb.float64)
    x.register_hook(lambda g: mine)
    (x * 2).backward()
    x.grad.zero_()
    assert mine.tolist() == [5]


def test_hook_and_retain_grad_need_a_gradient():
    plain = tb.zeros(2)
    with pytest.raises(TapeError, match="register_hook"):
        plain.register_hook(lambda g: g)
    with pytest.raises(TapeError, match="retain_grad"):
        plain.retain_grad()


def test_retain_grad():
    x = scalar(2.0)
    y = x * 3
    y.retain_grad()
    x.retain_grad()  # a leaf has its gradient anyway
    (y * y).backward()
    assert y.grad.item() == 12 and x.grad.item() == 36
    plain = x * 3
    (plain * plain).backward()
    assert plain.grad is None


def test_retain_grad_does_not_keep_the_tensor_alive():
    x = scalar(2.0)
    y = x * 3
    y.retain_grad()
    gone = weakref.ref(y)
    z = y + 1
    del y
    assert gone() is None
    z.backward()
    assert x.grad.item() == 3


# Ops of one's own


def test_an_op_with_a_wrong_gradient_shape_is_named():
    class Wrong(Op):
        @staticmethod
        def forward(ctx: Node, x):
            return x * 2

        @staticmethod
        def backward(ctx: Node, grad):
            return (grad[:1],)

    with pytest.raises(ShapeError, match="Wrong"):
        apply(Wrong, leaf(1.0, 2.0)).sum().backward()


def test_a_gradient_of_another_dtype_is_cast_to_the_inputs():
    x = tb.tensor([1.0, 2.0], dtype=tb.float32, requires_grad=True)
    w = tb.tensor([3.0, 4.0], dtype=tb.float64, requires_grad=True)
    y = x * w
    assert y.dtype == tb.float64
    y.sum().backward()
    assert x.grad.dtype == tb.float32 and x.grad.tolist() == [3, 4]
    assert w.grad.dtype == tb.float64


def test_ops_with_integer_results_are_not_recorded():
    x = leaf(1.5)
    assert not x.astype(tb.int64).requires_grad
    assert not (x > 1).requires_grad


# Memory


def test_results_are_freed_as_soon_as_their_name_goes():
    gc.disable()
    try:
        x = leaf(1.0, 2.0)
        y = x.exp() * x
        z = y.sum()
        gone = [weakref.ref(y), weakref.ref(z), weakref.ref(z._node), weakref.ref(y._node)]
        z.backward()
        del y, z
        assert [ref() for ref in gone] == [None] * 4
        y = x.relu().sigmoid()
        gone = [weakref.ref(y), weakref.ref(y._node)]
        del y  # never sent backward
        assert [ref() for ref in gone] == [None] * 2
    finally:
        gc.enable()


def test_backward_frees_saved_arrays_though_the_result_is_kept():
    x = leaf(1.0, 2.0)
    y = x * 2
    inner = weakref.ref(y.data)
    z = (y * y).sum()
    del y
    assert inner() is not None
    z.backward()
    assert inner() is None


@pytest.mark.parametrize("send_back", [True, False])
def test_a_hundred_thousand_operations_deep(send_back):
    gc.disable()
    try:
        x = scalar(1.0)
        y = x
        first = None
        for _ in range(100_000):
            y = y + 1.0
            first = first or weakref.ref(y._node)
        if send_back:
            y.backward()
            assert x.grad.item() == 1
        del y  # no recursion, though each node holds the one before
        assert first() is None
    finally:
        gc.enable()
