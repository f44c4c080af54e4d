"""Linear, Flatten, activations and Dropout."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError


def test_linear_is_x_times_weight_transposed_plus_bias():
    layer = nn.Linear(3, 2)
    x = np.arange(12, dtype=np.float32).reshape(2, 2, 3)
    want = x @ layer.weight.detach().numpy().T + layer.bias.detach().numpy()
    np.testing.assert_allclose(layer(tb.Tensor(x)).detach().numpy(), want, rtol=1e-6)
    assert nn.Linear(3, 2, bias=False).bias is None
    with pytest.raises(ValueError, match="4"):
        layer(tb.ones(5, 4))


def test_linear_starts_uniform_within_one_over_root_of_the_inputs():
    tb.manual_seed(0)
    layer = nn.Linear(120, 50)
    bound = 1 / np.sqrt(120)
    w, b = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    assert 0.97 * bound <= np.abs(w).max() <= bound and np.abs(b).max() <= bound
    # A uniform distribution's deviation is its bound over √3; 6000 draws: 1.3 % of error is 2 σ.
    assert w.std() == pytest.approx(bound / np.sqrt(3), rel=0.03)
    assert b.std() > 0.4 * bound


def test_the_seed_decides_the_weights():
    weights = []
    for _ in range(2):
        tb.manual_seed(3)
        weights.append(nn.Linear(4, 4).weight.detach().numpy().copy())
    np.testing.assert_array_equal(*weights)


def test_flatten_and_identity():
    x = tb.ones(2, 3, 4, 5)
    assert nn.Flatten()(x).shape == (2, 60)
    assert nn.Flatten(2)(x).shape == (2, 3, 20)
    assert nn.Flatten(0, 1)(x).shape == (6, 4, 5)
    assert nn.Identity()(x) is x


X = np.array([-3.0, -1.0, 0.0, 0.5, 2.0])


@pytest.mark.parametrize(
    ("layer", "want"),
    [
        (nn.ReLU(), np.maximum(X, 0)),
        (nn.SiLU(), X / (1 + np.exp(-X))),
        (nn.Tanh(), np.tanh(X)),
        (nn.Sigmoid(), 1 / (1 + np.exp(-X))),
        (nn.Softmax(0), np.exp(X) / np.exp(X).sum()),
        (nn.LogSoftmax(0), X - np.log(np.exp(X).sum())),
        # x·Φ(x), with Φ from a table of the normal distribution.
        (nn.GELU(), X * [0.0013498980, 0.1586552539, 0.5, 0.6914624613, 0.9772498681]),
        (
            nn.GELU("tanh"),
            X / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (X + 0.044715 * X**3))),
        ),
    ],
    ids=lambda v: repr(v) if isinstance(v, nn.Module) else "",
)
def test_activation(layer, want):
    y = layer(tb.Tensor(X))
    np.testing.assert_allclose(y.numpy(), want, rtol=1e-8, atol=1e-10)


def test_dropout_in_training_and_evaluation():
    tb.manual_seed(0)
    layer = nn.Dropout(0.25)
    x = tb.ones(100, 100, requires_grad=True)
    y = layer(x)
    kept = y.detach().numpy() > 0
    # 10,000 draws: five standard errors of a proportion.
    assert abs(kept.mean() - 0.75) < 5 * np.sqrt(0.75 * 0.25 / 10_000)
    np.testing.assert_allclose(y.detach().numpy()[kept], 4 / 3, rtol=1e-6)
    y.sum().backward()
    np.testing.assert_array_equal(x.grad.numpy(), y.detach().numpy())
    assert not np.array_equal(layer(x).detach().numpy(), y.detach().numpy())
    assert layer.eval()(x) is x
    tb.manual_seed(0)
    np.testing.assert_array_equal(layer.train()(x).detach().numpy(), y.detach().numpy())
    with pytest.raises(ArgumentError):
        nn.Dropout(1.5)
    assert (nn.Dropout(1.0)(x).detach().numpy() == 0).all()


def test_linear_keeps_float32_unless_told():
    layer = nn.Linear(2, 3)
    assert layer.weight.dtype == layer.bias.dtype == tb.float32
    assert nn.Linear(2, 3, dtype=tb.float64).bias.dtype == tb.float64
    with pytest.raises(ArgumentError):
        nn.Linear(0, 3)


@pytest.mark.parametrize("name", ["relu", "gelu", "silu", "tanh", "sigmoid", "softplus"])
def test_functions_take_pytorchs_names(name):
    function = getattr(nn.functional, name)
    assert function(input=tb.ones(2)).shape == (2,)
    with pytest.raises(TypeError):
        function(tb.ones(2), inplace=True)


def test_mlp():
    model = nn.models.mlp(in_features=6, hidden=(5, 4), classes=3)
    kinds = [type(m).__name__ for m in model]
    block = ["Linear", "BatchNorm1d", "ReLU"]
    assert kinds == ["Flatten", *block, *block, "Linear"]
    assert model(tb.randn(7, 1, 2, 3)).shape == (7, 3)
    assert all(t.dtype in (tb.float32, tb.int64) for t in model.state_dict().values())
