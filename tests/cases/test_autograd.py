"""The tape: shared nodes, broadcasting, indices, dtypes and modes.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tinybn as tb
from tests.cases.rows import F, assert_close, assert_same, case
from tinybn import nn
from tinybn.errors import DTypeError


def leaf(values):
    return tb.Tensor(np.float32(values), requires_grad=True)


def chain(a):
    b = a + a
    return b + b


def sum_of_two(x):
    y = 3 * x
    return 2 * y + 5 * y


SHARED = "sebgao/cTensor#5, TrenTorch/TrenTorch#182, karpathy/micrograd#64"


@pytest.mark.parametrize(
    ("function", "at", "derivative"),
    [
        case("AG-01", SHARED, chain, 1.0, 2 * 2),
        case("AG-01", SHARED, lambda x: 2 * x * (x * 1) + x * x, 1.0, 2 * 2 + 2),
        case("AG-01", SHARED, sum_of_two, 2.0, 3 * (2 + 5)),
    ],
)
def test_a_node_used_twice_counts_once_for_each_use(engine, function, at, derivative):
    x = leaf(at)
    function(x).backward()
    assert_same(x.grad, np.float32(derivative))


@pytest.mark.parametrize("at", [case("AG-03", "karpathy/micrograd#102", 3.0)])
def test_a_second_backward_adds_to_leaves_alone(engine, at):
    x = leaf(at)
    for times in (1, 2):
        square = x * x
        (2 * square).backward()
        assert_same(x.grad, np.float32(times * 4 * at))


@pytest.mark.parametrize("at", [case("AG-03", "karpathy/micrograd#102", 3.0)])
def test_a_retained_graph_run_again(engine, at):
    x = leaf(at)
    y = x * x
    z = 2 * y
    y.retain_grad()
    z.backward(retain_graph=True)
    z.backward()
    assert_same(x.grad, np.float32(2 * 4 * at))


@pytest.mark.parametrize(
    "gradient", [case("AG-03", "karpathy/micrograd#102", np.array([1, 2], np.float32))]
)
@pytest.mark.parametrize("read_only", [False, True])
def test_the_gradient_given_to_backward_is_never_added_to(engine, gradient, read_only):
    given = gradient.copy()
    given.flags.writeable = not read_only
    upstream, x = tb.Tensor.wrap(engine.put(given)), leaf([0, 0])
    for times in (1, 2, 3):
        (x * 1).backward(upstream)
        x.reshape(2).backward(upstream)
        assert_same(x.grad, 2 * times * gradient)
        assert_same(upstream, gradient)


BROADCAST = ("pytorch/pytorch#1787, deeplearning4j/nd4j#2424, HomericIntelligence/Odyssey#2080, "
             "raskr/rust-autograd#38")  # fmt: skip


def summed_to(gradient, shape):
    """The sum over the axes along which an operand of ``shape`` was repeated."""
    gradient = gradient.sum(tuple(range(gradient.ndim - len(shape))))
    repeated = tuple(i for i, size in enumerate(shape) if size == 1)
    return gradient.sum(repeated, keepdims=True)


@pytest.mark.parametrize(
    ("a", "b", "multiply", "golden_a", "golden_b"),
    [
        case("AG-05", BROADCAST, F((3, 1), 1, 1, 8), F((1, 4), 2, 1, 16), True,
             [16] * 3, [6] * 4),
        case("AG-05", BROADCAST, np.float32(2), F((5, 4), 3, 1, 8), True, [70], [2] * 20),
        case("AG-05", BROADCAST, F((2, 1, 3), 3, 1, 16), np.ones(3, np.float32), False,
             [1] * 6, [2] * 3),
        case("AG-05", BROADCAST, F((2, 1, 3), 3, 1, 16), F((4, 3), 1, 0, 12), True,
             [18, 22, 26] * 2, [11, 17, 7] * 4),
    ],
)  # fmt: skip
def test_broadcast_gradients_have_the_operands_shapes(engine, a, b, multiply, golden_a, golden_b):
    x, y = leaf(a), leaf(b)
    (x * y if multiply else x + y).sum().backward()
    whole = np.ones(np.broadcast_shapes(a.shape, b.shape))
    a, b = np.float64(a), np.float64(b)
    for tensor, own, other, golden in ((x, a, b, golden_a), (y, b, a, golden_b)):
        want = summed_to(whole * other if multiply else whole, own.shape)
        assert tensor.grad.shape == own.shape
        assert_close(tensor.grad, want)
        # Of axes that repeat, all entries are the same: the sums over them are.
        np.testing.assert_allclose(want.reshape(-1), golden)


@pytest.mark.parametrize(
    ("index", "factor", "golden"),
    [
        case("AG-08", "HIPS/autograd#136, HIPS/autograd#263, pytorch/pytorch#3844", *row)
        for row in (
            ([0, 0, 2], [3, 4, 4], [7, 0, 4]),
            ([-1, 2, -3], [3, 4, 4], [4, 0, 7]),
            ([[1, 1], [1, 1]], [[1, 2], [3, 4]], [0, 10, 0]),
        )
    ],
)
def test_repeated_indices_add_up(engine, index, factor, golden):
    x = leaf([10, 20, 30])
    (x[index] * tb.Tensor(np.float32(factor))).sum().backward()
    want = np.zeros(3)
    np.add.at(want, np.array(index), np.float64(factor))
    assert_same(x.grad, want)
    assert want.tolist() == golden


@pytest.mark.parametrize(
    "values",
    [
        case("AG-09", "tinygrad/tinygrad#9723, pytorch/pytorch#53466, pytorch/pytorch#37680",
             [1, 2, 3]),
    ],
)  # fmt: skip
def test_integers_need_no_gradients(engine, values):
    with pytest.raises(DTypeError, match="floating"):
        tb.Tensor(values, requires_grad=True)
    with pytest.raises(DTypeError, match="floating"):
        nn.Parameter(np.array(values))
    x = tb.Tensor(values)
    with pytest.raises(DTypeError, match="floating"):
        x.requires_grad = True
    y = leaf(values)
    assert not y.argmax().requires_grad and not (y > 1).requires_grad
    assert not y.long().requires_grad
    assert not x.requires_grad


@pytest.mark.parametrize(
    "lr",
    [
        case("AG-11", "dlsyscourse/hw2#11, google/flax#924, google-deepmind/optax#1405",
             np.float64(0.1)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_scalars_do_not_widen_parameters_gradients_and_state(engine, lr, optimizer):
    layer = nn.Linear(2, 2)
    step = getattr(nn.optim, optimizer)(layer.parameters(), lr=lr)
    y = (layer(tb.ones(3, 2)) * 2 + 0.5 - 1 / 3) / (1 + 1)
    loss = sum(row.mean() for row in (y[0], y[1]))
    assert y.dtype == loss.dtype == np.float32
    # NumPy's numbers and 0-d arrays have a dtype, which counts as in NumPy; gradients go back.
    loss = sum((loss * np.float64(2), np.array(0.5) * y.sum())) + np.array(1.0)
    assert loss.dtype == np.float64
    loss.backward()
    step.step()
    kept = [*layer.parameters(), *(p.grad for p in layer.parameters())]
    kept += [v for s in step.state.values() for v in s.values() if isinstance(v, tb.Tensor)]
    assert {t.dtype for t in kept} == {np.dtype("float32")}
    step.zero_grad(set_to_none=False)
    assert all(p.grad.dtype == np.float32 for p in layer.parameters())


@pytest.mark.parametrize(
    "at", [case("AG-12", "pytorch/pytorch#20528, kyutai-labs/pocket-tts#16", 3.0)]
)
def test_no_grad_is_a_threads_own(at):
    found = []

    def work():
        x = tb.Tensor(np.float32(at), requires_grad=True)
        y = x * x
        found.append((tb.is_grad_enabled(), y.requires_grad))
        y.backward()
        found.append(x.grad.item())
        with tb.no_grad():
            started.set()
            leave.wait(10)

    started, leave = threading.Event(), threading.Event()
    with tb.no_grad():
        thread = threading.Thread(target=work)
        thread.start()
        assert started.wait(10) and not tb.is_grad_enabled()
    assert tb.is_grad_enabled()  # though the thread is in no_grad still
    leave.set()
    thread.join()
    assert found == [(True, True), 2 * at]
    with pytest.raises(ZeroDivisionError), tb.no_grad():
        raise ZeroDivisionError
    assert tb.is_grad_enabled()


@pytest.mark.parametrize(
    ("x", "g", "golden"),
    [
        case("AG-14", "pytorch/pytorch#10729, pytorch/pytorch#68425", [1, -1, 2], [1, 3, 0.5],
             [1, 0, 0.5]),
    ],
)  # fmt: skip
def test_where_sends_nothing_to_the_other_branch(engine, x, g, golden):
    t, factor = leaf(x), tb.Tensor(np.float32(g))
    tb.where(t > 0, t * factor, 0).sum().backward()
    want = np.where(np.array(x) > 0, g, 0)
    assert_same(t.grad, want)
    assert want.tolist() == golden


@pytest.mark.parametrize("x", [case("AG-14", "pytorch/pytorch#68425", [0.0, 4.0])])
def test_where_gives_exact_zeros_upstream_of_what_it_does_not_take(engine, x):
    """0·∞ is NaN for the chain rule, as in PyTorch: a guarded argument is the way around."""
    t = leaf(x)
    tb.where(t > 0, t.sqrt(), 0.0).sum().backward()
    assert np.isnan(t.grad.numpy()[0]) and t.grad.numpy()[1] == 0.25
    guarded = leaf(x)
    tb.where(guarded > 0, tb.where(guarded > 0, guarded, 1.0).sqrt(), 0.0).sum().backward()
    assert_same(guarded.grad, [0.0, 0.25])
