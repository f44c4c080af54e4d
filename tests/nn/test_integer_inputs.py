"""Integers given to what computes with real numbers: an error that says what to call."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import DTypeError
from tinybn.nn import functional as F
from tinybn.testing import epsilon

IMAGES = np.arange(72).reshape(2, 1, 6, 6)
LAYERS = {
    "linear": (lambda: nn.Linear(6, 2), (4, 6)),
    "conv": (lambda: nn.Conv2d(1, 2, 3), (2, 1, 6, 6)),
    "batch norm": (lambda: nn.BatchNorm2d(1), (2, 1, 6, 6)),
    "frozen batch norm": (lambda: nn.BatchNorm1d(6).eval(), (4, 6)),
    "max pool": (lambda: nn.MaxPool2d(2), (2, 1, 6, 6)),
    "average pool": (lambda: nn.AvgPool2d(2), (2, 1, 6, 6)),
    "adaptive pool": (lambda: nn.AdaptiveAvgPool2d(1), (2, 1, 6, 6)),
    "dropout": (lambda: nn.Dropout(0.5), (4, 6)),
    "softmax": (lambda: lambda x: F.softmax(x, 1), (4, 6)),
    "log softmax": (lambda: lambda x: F.log_softmax(x, 1), (4, 6)),
    "nll loss": (lambda: lambda x: F.nll_loss(x, tb.arange(4)), (4, 6)),
    "mse loss": (lambda: lambda x: F.mse_loss(x, tb.zeros(4, 6)), (4, 6)),
    "cross entropy": (lambda: lambda x: F.cross_entropy(x, tb.arange(4)), (4, 6)),
}


@pytest.mark.parametrize("dtype", ["int32", "int64", "bool"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_error_names_what_to_call(name, dtype):
    make, shape = LAYERS[name]
    layer = make()
    x = tb.ones(*shape, dtype=dtype)
    with pytest.raises(DTypeError, match=rf"has dtype {dtype}; wanted .*\.float\(\)"):
        layer(x)
    layer(x.float())
    if isinstance(layer, nn.BatchNorm2d):
        assert layer.num_batches_tracked.item() == 1  # of the second alone


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_also_under_autocast(amp):
    for name in ("linear", "conv", "batch norm"):
        make, shape = LAYERS[name]
        with nn.amp.autocast(dtype=amp), pytest.raises(DTypeError, match=r"input\.float\(\)"):
            make()(tb.ones(*shape, dtype=tb.int64))


@pytest.mark.parametrize("dtype", [np.uint8, np.int8, np.int16, np.uint16])
def test_arrays_of_dtypes_that_no_tensor_has(dtype):
    for make in (tb.tensor, tb.as_tensor, tb.Tensor):
        with pytest.raises(DTypeError, match=f"{dtype.__name__} .*dtype=tb.float32"):
            make(IMAGES.astype(dtype))
        assert make(IMAGES.astype(dtype), dtype=tb.float32).tolist() == IMAGES.tolist()


def test_products_of_integers_stay_products_of_integers():
    x, w = tb.tensor([[1, 2], [3, 4]]), tb.tensor([[5, 6]])
    assert F.linear(x, w).dtype == tb.int64 and F.linear(x, w).tolist() == [[17], [39]]
    assert (x @ tb.ones(2, 1)).dtype == tb.float64  # NumPy's promotion


def test_float64_features_make_a_float32_layer_compute_in_float64():
    x, layer = np.random.default_rng(0).standard_normal((3, 4)), nn.Linear(4, 2)
    y = layer(tb.tensor(x, dtype=tb.float64))
    assert y.dtype == tb.float64 and layer.weight.dtype == tb.float32
    wide = [p.detach().numpy().astype(np.float64) for p in (layer.weight, layer.bias)]
    np.testing.assert_allclose(y.detach().numpy(), x @ wide[0].T + wide[1], rtol=0,
                               atol=8 * epsilon(np.float64) * 16)  # fmt: skip
    y.sum().backward()
    assert layer.weight.grad.dtype == tb.float32


def test_class_numbers_as_floats():
    with pytest.raises(ValueError, match=r"class numbers are integers: target\.long\(\)"):
        F.cross_entropy(tb.zeros(4, 3), tb.ones(4))
