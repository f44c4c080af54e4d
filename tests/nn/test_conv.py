"""Conv2d, pooling layers and the CNN: what PyTorch's users rely on."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, DTypeError, ShapeError


def test_conv2d_starts_uniform_within_one_over_root_of_the_terms():
    tb.manual_seed(0)
    layer = nn.Conv2d(8, 32, (3, 5), groups=2)
    assert layer.weight.shape == (32, 4, 3, 5) and layer.bias.shape == (32,)
    bound = 1 / np.sqrt(4 * 15)
    w = layer.weight.detach().numpy()
    assert 0.97 * bound <= np.abs(w).max() <= bound
    assert nn.Conv2d(1, 1, 1, bias=False).bias is None


def test_conv2d_of_known_numbers():
    layer = nn.Conv2d(1, 1, 2, stride=2, padding=1)
    layer.load_state_dict({"weight": tb.Tensor([[[[1.0, 2], [3, 4]]]]), "bias": tb.Tensor([0.5])})
    x = tb.arange(9, dtype=tb.float32).reshape(1, 1, 3, 3)
    np.testing.assert_array_equal(layer(x).detach().numpy()[0, 0], [[0.5, 11.5], [30.5, 67.5]])


@pytest.mark.parametrize("padding", ["same", "valid", 2, (0, 1)])
def test_images_alone_and_in_batches(padding):
    layer = nn.Conv2d(3, 4, (3, 4), padding=padding, dilation=(1, 2))
    x = tb.randn(2, 3, 9, 11)
    y = layer(x)
    if padding == "same":
        assert y.shape == (2, 4, 9, 11)
    np.testing.assert_allclose(layer(x[1]).detach().numpy(), y[1].detach().numpy(), atol=1e-6)


def test_pooling_of_known_numbers():
    x = tb.arange(25, dtype=tb.float32).reshape(1, 5, 5)
    np.testing.assert_array_equal(nn.MaxPool2d(2)(x).numpy(), [[[6, 8], [16, 18]]])
    ceil = nn.MaxPool2d(2, ceil_mode=True)(x)
    np.testing.assert_array_equal(ceil.numpy(), [[[6, 8, 9], [16, 18, 19], [21, 23, 24]]])
    np.testing.assert_array_equal(nn.AvgPool2d(2)(x).numpy(), [[[3, 5], [13, 15]]])
    np.testing.assert_array_equal(nn.GlobalAvgPool()(x).numpy(), [[[12]]])
    wide = nn.AdaptiveAvgPool2d((2, None))(x).numpy()
    np.testing.assert_allclose(wide[0, :, 0], [5, 15], rtol=1e-6)
    uneven = nn.AdaptiveAvgPool2d(3)(x).numpy()[0]
    # Rows 0–1, 1–3 and 3–4, by the floor and the ceiling of i·5/3.
    np.testing.assert_allclose(uneven, np.add.outer([2.5, 10, 17.5], [0.5, 2, 3.5]), rtol=1e-6)


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda: nn.Conv2d(3, 4, 3, groups=2), ArgumentError, "multiples of groups"),
        (lambda: nn.Conv2d(3, 4, 0), ArgumentError, "kernel_size is 0"),
        (lambda: nn.Conv2d(3, 4, 3, padding_mode="circular"), ArgumentError, "circular"),
        (lambda: nn.Conv2d(3, 4, 3, 2, "same"), ArgumentError, "stride 1"),
        (lambda: nn.Conv2d(3, 4, 3)(tb.ones(2, 2, 5, 5)), ShapeError, "weight"),
        (lambda: nn.Conv2d(3, 4, 3)(tb.ones(5, 5)), ShapeError, "wanted \\[N, C"),
        (lambda: nn.Conv2d(3, 4, 3)(tb.ones(2, 3, 5, 5, dtype=tb.int64)), DTypeError, "int64"),
        (lambda: nn.MaxPool2d(2)(tb.ones(5, 5)), ShapeError, "wanted \\[N, C"),
        (lambda: nn.models.cnn(image=2), ArgumentError, "halved"),
        (lambda: nn.models.cnn(image=28.0), ArgumentError, "image is 28.0"),
        (lambda: nn.models.cnn(channels=3), ArgumentError, "channels is 3"),
    ],
)
def test_what_does_not_fit_raises(call, error, words):
    with pytest.raises(error, match=words):
        call()


def test_precision_is_one_of_three():
    assert tb.get_float32_matmul_precision() == "high"
    tb.set_float32_matmul_precision("medium")
    assert tb.get_float32_matmul_precision() == "medium"
    tb.set_float32_matmul_precision("high")
    with pytest.raises(ArgumentError, match="'fast'"):
        tb.set_float32_matmul_precision("fast")
