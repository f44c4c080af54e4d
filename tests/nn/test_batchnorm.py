"""The BatchNorm layers: statistics, modes, state, and errors that change nothing.

The inputs that broke other frameworks are in ``tests/cases``.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import tinybn as tb
from tests.cases.rows import G1 as DY
from tests.cases.rows import X1 as X
from tests.cases.rows import F as numbers
from tinybn import nn
from tinybn.errors import ArgumentError, ShapeError
from tinybn.testing import FLOAT_DTYPES, check_gradients, epsilon

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def exact(x, dy, weight, bias, eps=1e-5):
    """y, dx, dweight, dbias of training BatchNorm in float64, as textbooks have it."""
    axes = (0, *range(2, x.ndim))
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    w, b = (np.reshape(v, (-1, *(1,) * (x.ndim - 2))) for v in (weight, bias))
    mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    x_hat = (x - mean) / np.sqrt(var + eps)
    centred = dy - dy.mean(axes, keepdims=True)
    centred -= x_hat * (dy * x_hat).mean(axes, keepdims=True)
    dx = w / np.sqrt(var + eps) * centred
    return x_hat * w + b, dx, (dy * x_hat).sum(axes), dy.sum(axes)


@DEVICES
def test_training_forward_backward_and_running_statistics(device):
    layer = nn.BatchNorm2d(3, device=device)
    weight, bias = np.array([1.5, -0.5, 2.0]), np.array([0.25, 1.0, -3.0])
    layer.load_state_dict({"weight": weight, "bias": bias}, strict=False)
    x = tb.Tensor(X, device=device, requires_grad=True)
    y = layer(x)
    y.backward(tb.Tensor(DY, device=device))
    want = exact(X, DY, weight, bias)
    for got, expected in zip((y.detach(), x.grad, layer.weight.grad, layer.bias.grad), want):
        np.testing.assert_allclose(got.numpy(), expected, rtol=1e-5, atol=1e-5)
    wide = X.astype(np.float64)
    n = 20
    np.testing.assert_allclose(
        layer.running_mean.numpy(), 0.1 * wide.mean((0, 2, 3)), rtol=1e-5, atol=1e-7
    )
    np.testing.assert_allclose(
        layer.running_var.numpy(), 0.9 + 0.1 * wide.var((0, 2, 3)) * n / (n - 1), rtol=1e-6
    )
    assert layer.num_batches_tracked.item() == 1


@DEVICES
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_low_precision_input_keeps_float32_statistics(device, dtype):
    layer = nn.BatchNorm1d(4, device=device).to(dtype)
    wide = tb.float64 if dtype == tb.float64 else tb.float32
    tensors = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
    assert all(t.dtype == wide for t in tensors)
    x = np.random.default_rng(0).standard_normal((8, 4)).astype(dtype)
    t = tb.Tensor(x, device=device, requires_grad=True)
    y = layer(t)
    y.sum().backward()
    assert (y.dtype, t.grad.dtype, layer.weight.grad.dtype) == (dtype, dtype, wide)
    want, *_ = exact(x, x, np.ones(4), np.zeros(4))
    got = y.detach().numpy().astype(np.float64)
    # One rounding to the dtype, and a sum of 8 terms in the accumulator.
    bound = epsilon(dtype) * np.abs(want) + 48 * epsilon(wide) * (1 + np.abs(want))
    assert (np.abs(got - want) <= bound).all()


def test_a_large_mean_with_a_small_spread():
    x = (1e4 + 2.0**-7 * np.arange(-8, 8)).astype(np.float32)[:, None]
    y = nn.BatchNorm1d(1, eps=1e-12)(tb.Tensor(x)).detach().numpy()
    wide = x.astype(np.float64)
    np.testing.assert_allclose(
        y, (wide - wide.mean()) / np.sqrt(wide.var() + 1e-12), rtol=8 * epsilon(np.float32)
    )


@pytest.mark.parametrize("momentum", [0.0, 0.5, 1.0])
def test_momentum_changes_the_running_statistics_alone(momentum):
    layer, usual = nn.BatchNorm2d(3, momentum=momentum), nn.BatchNorm2d(3)
    x = tb.Tensor(X)
    np.testing.assert_array_equal(layer(x).detach().numpy(), usual(x).detach().numpy())
    mean, var = X.astype(float).mean((0, 2, 3)), X.astype(float).var((0, 2, 3), ddof=1)
    np.testing.assert_allclose(layer.running_mean.numpy(), momentum * mean, rtol=1e-5, atol=1e-7)
    want = (1 - momentum) + momentum * var
    np.testing.assert_allclose(layer.running_var.numpy(), want, rtol=1e-6)


def test_momentum_none_averages_all_batches():
    layer = nn.BatchNorm1d(1, momentum=None)
    batches = [np.array([[0.0], [2.0]]), np.array([[4.0], [8.0]]), np.array([[1.0], [1.0]])]
    for batch in batches:
        layer(tb.Tensor(batch.astype(np.float32)))
    assert layer.running_mean.item() == pytest.approx(np.mean([1, 6, 1]))
    assert layer.running_var.item() == pytest.approx(np.mean([2, 8, 0]))


def test_eval_uses_the_running_statistics_and_their_gradient():
    layer = nn.BatchNorm2d(3)
    state = {
        "weight": [1.5, -0.5, 2.0], "bias": [0.25, 1.0, -3.0], "running_mean": [0.5, -1.0, 2.0],
        "running_var": [4.0, 0.25, 9.0], "num_batches_tracked": 7,
    }  # fmt: skip
    layer.load_state_dict({k: np.array(v) for k, v in state.items()})
    layer.eval()
    x = tb.Tensor(X, requires_grad=True)
    y = layer(x)
    y.backward(tb.Tensor(DY))
    w, b, m, v = (np.reshape(state[k], (3, 1, 1)) for k in list(state)[:4])
    rstd = 1 / np.sqrt(v + 1e-5)
    np.testing.assert_allclose(y.detach().numpy(), (X - m) * rstd * w + b, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(x.grad.numpy(), DY * rstd * w, rtol=1e-5, atol=1e-7)
    assert layer.num_batches_tracked.item() == 7


@DEVICES
@pytest.mark.parametrize("activation", [None, "relu"])
def test_an_empty_batch_changes_nothing(device, activation):
    layer = nn.BatchNorm1d(5, device=device)
    x = tb.ones(0, 5, 9, requires_grad=True, device=device)
    y = layer(x, activation=activation)
    y.backward(tb.ones_like(y))
    assert y.shape == x.grad.shape == (0, 5, 9)
    np.testing.assert_array_equal(layer.weight.grad.numpy(), np.zeros(5))
    np.testing.assert_array_equal(layer.bias.grad.numpy(), np.zeros(5))
    np.testing.assert_array_equal(layer.running_mean.numpy(), np.zeros(5))
    assert layer.num_batches_tracked.item() == 0


def test_an_empty_batch_is_checked_too():
    layer, x = nn.BatchNorm1d(5), tb.ones(0, 5)
    with pytest.raises(ArgumentError, match="activation is 'tanh'"):
        layer(x, activation="tanh")
    with pytest.raises(ValueError, match="addend is"):
        layer(x, residual=tb.ones(2, 5))
    layer.eps = -1.0
    with pytest.raises(ArgumentError, match="eps is -1"):
        layer(x)


def test_freeze_is_sticky():
    model = nn.Sequential(nn.BatchNorm1d(2))
    layer = model[0]
    x = tb.Tensor(np.array([[1, 2], [3, 6]], np.float32))
    layer(x)
    mean = layer.running_mean.numpy().copy()
    layer.freeze()
    model.eval()
    frozen = model(x).detach().numpy()
    model.train()
    np.testing.assert_array_equal(model(x).detach().numpy(), frozen)
    np.testing.assert_array_equal(layer.running_mean.numpy(), mean)
    assert layer.num_batches_tracked.item() == 1 and "frozen" in repr(model)
    layer.unfreeze()
    assert np.abs(model(x).detach().numpy() - frozen).max() > 0.1
    with pytest.raises(ArgumentError, match="track_running_stats"):
        nn.BatchNorm1d(2, track_running_stats=False).freeze()


def test_without_running_statistics():
    layer = nn.BatchNorm2d(3, track_running_stats=False)
    assert layer.running_mean is None and list(layer.state_dict()) == ["weight", "bias"]
    trained = layer(tb.Tensor(X)).detach().numpy()
    np.testing.assert_array_equal(layer.eval()(tb.Tensor(X)).detach().numpy(), trained)
    layer.reset_running_stats()


def test_tracking_switched_off_later_uses_the_batch_and_updates_nothing():
    layer = nn.BatchNorm1d(2)
    layer.track_running_stats = False
    x = tb.Tensor([[1.0, 5.0], [3.0, 9.0]])
    np.testing.assert_allclose(layer(x).detach().numpy(), [[-1, -1], [1, 1]], atol=1e-5)
    assert layer.num_batches_tracked.item() == 0 and layer.running_mean.tolist() == [0, 0]
    np.testing.assert_allclose(layer.eval()(x).detach().numpy(), x.numpy(), atol=1e-4)


@pytest.mark.parametrize("interpreted", [False, True])
def test_read_only_running_statistics_raise_before_anything_changes(interpreted):
    mean, var = np.zeros(2, np.float32), np.ones(2, np.float32)
    var.setflags(write=False)
    with tb.interpret() if interpreted else tb.enable_grad():
        with pytest.raises(ValueError, match="running_var is read-only"):
            nn.functional.batch_norm(
                tb.Tensor([[1.0, 5.0], [3.0, 9.0]]), tb.as_tensor(mean), tb.as_tensor(var),
                training=True,
            )  # fmt: skip
    assert mean.tolist() == [0, 0] and var.tolist() == [1, 1]


def test_arguments_of_the_wrong_kind():
    with pytest.raises(TypeError, match="input is ndarray; wanted a Tensor"):
        nn.functional.batch_norm(X, None, None, training=True)
    with pytest.raises(TypeError, match="BatchNorm2d was given a NumPy array; wanted a Tensor"):
        nn.BatchNorm2d(3)(X)
    with pytest.raises(TypeError, match="weight is ndarray; wanted a Tensor"):
        nn.functional.batch_norm(tb.Tensor(X), None, None, np.ones(3), training=True)
    with pytest.raises(ArgumentError, match="momentum is None"):
        nn.functional.batch_norm(tb.Tensor(X), None, None, training=True, momentum=None)


def test_without_affine():
    layer = nn.BatchNorm2d(3, affine=False)
    x = tb.Tensor(X, requires_grad=True)
    y = layer(x)
    y.backward(tb.Tensor(DY))
    want_y, want_dx, *_ = exact(X, DY, np.ones(3), np.zeros(3))
    np.testing.assert_allclose(y.detach().numpy(), want_y, atol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), want_dx, atol=1e-5)
    assert list(layer.parameters()) == []


def test_channels_last_input_and_any_layout_of_the_gradient():
    x = np.moveaxis(numbers((3, 2, 2, 4), 7, 3, 16, 4, -1.5), -1, 1)
    dy = numbers((3, 4, 2, 2), 5, 1, 8, 4, -1)
    layer = nn.BatchNorm2d(4)
    t = tb.Tensor.wrap(x)
    t.requires_grad = True
    y = layer(t)
    y.backward(tb.Tensor(dy))
    want_y, want_dx, want_dw, _ = exact(x, dy, np.ones(4), np.zeros(4))
    np.testing.assert_allclose(y.detach().numpy(), want_y, atol=1e-5)
    np.testing.assert_allclose(t.grad.numpy(), want_dx, atol=1e-5)
    np.testing.assert_allclose(layer.weight.grad.numpy(), want_dw, atol=1e-5)
    assert np.moveaxis(y.data, 1, -1).flags.c_contiguous


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d, (5, 2)), (nn.BatchNorm1d, (3, 2, 4)), (nn.BatchNorm2d, (2, 2, 3, 2)),
     (nn.BatchNorm3d, (2, 2, 1, 3, 2))],
)  # fmt: skip
@pytest.mark.parametrize("training", [True, False])
def test_gradients_agree_with_finite_differences(layer, shape, training):
    rng = np.random.default_rng(0)

    def fn(x, weight, bias):
        mean, var = tb.zeros(2, dtype=tb.float64), tb.ones(2, dtype=tb.float64) * 2
        return nn.functional.batch_norm(x, mean, var, weight, bias, training)

    check_gradients(fn, [rng.standard_normal(s) for s in (shape, (2,), (2,))])
    assert layer(2)(tb.randn(*shape)).shape == shape


def test_deepcopy_and_pickle_are_independent():
    layer = nn.BatchNorm1d(2)
    x = tb.Tensor(np.array([[1, 2], [3, 6]], np.float32))
    layer(x)
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        copied(x)
        assert copied.num_batches_tracked.item() == 2 and layer.num_batches_tracked.item() == 1
        assert not np.shares_memory(copied.running_mean.data, layer.running_mean.data)


def test_statistics_overwritten_before_backward_raise():
    layer = nn.BatchNorm1d(2).eval()
    x = tb.randn(3, 2, requires_grad=True)
    y = layer(x)
    layer.train()(tb.randn(4, 2))
    with pytest.raises(RuntimeError, match="BatchNormFrozen"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("layer", "shape"),
    [(nn.BatchNorm1d(3), (4,)), (nn.BatchNorm1d(3), (4, 2)), (nn.BatchNorm1d(3), (2, 3, 1, 1)),
     (nn.BatchNorm2d(3), (2, 3, 4)), (nn.BatchNorm3d(3), (2, 3, 4, 4))],
)  # fmt: skip
def test_wrong_shapes_raise_before_anything_changes(layer, shape):
    with pytest.raises(ShapeError, match="wanted \\[N, 3"):
        layer(tb.ones(*shape))
    assert layer.num_batches_tracked.item() == 0


@pytest.mark.parametrize(
    "arguments", [{"num_features": 0}, {"eps": -1.0}, {"momentum": 1.5}, {"eps": float("nan")}]
)
def test_bad_constructor_arguments(arguments):
    with pytest.raises(ArgumentError):
        nn.BatchNorm1d(**{"num_features": 3, **arguments})


def test_unknown_keyword_is_a_type_error():
    with pytest.raises(TypeError):
        nn.BatchNorm2d(3, moment=0.1)
    with pytest.raises(TypeError):
        nn.functional.batch_norm(tb.ones(2, 2), None, None, train=True)


@DEVICES
def test_interpreted_kernels_train_as_the_reference_does(device):
    if device == "cuda":
        pytest.skip("the interpreter takes CPU tensors")
    results = []
    for interpreted in (False, True):
        layer = nn.BatchNorm1d(3)
        x = tb.Tensor(numbers((4, 3), 7, 3, 16, 4, -1.5), requires_grad=True)
        context = tb.interpret() if interpreted else tb.enable_grad()
        with context:
            y = layer(x)
            y.backward(tb.Tensor(numbers((4, 3), 5, 1, 8, 4, -1)))
        results.append((y.detach().numpy(), x.grad.numpy(), layer.running_var.numpy()))
    for got, want in zip(*results):
        np.testing.assert_allclose(got, want, atol=1e-6)
