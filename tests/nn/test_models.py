"""The residual network against its formula, written with one op at a time."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def norm(layer, x):
    """BatchNorm by its definition, with the batch's statistics."""
    mean = x.mean(axis=(0, 2, 3), keepdims=True)
    var = ((x - mean) ** 2).mean(axis=(0, 2, 3), keepdims=True)
    weight, bias = (p.reshape(1, -1, 1, 1) for p in (layer.weight, layer.bias))
    return (x - mean) / (var + layer.eps).sqrt() * weight + bias


def plain(model, x):
    """He et al. 2015, figure 2, block by block."""
    relu = nn.functional.relu
    x = relu(norm(model.bn1, model.conv1(x)))
    for block in model.layers:
        shortcut = x
        if block.downsample is not None:
            shortcut = norm(block.downsample[1], block.downsample[0](x))
        y = relu(norm(block.bn1, block.conv1(x)))
        x = relu(norm(block.bn2, block.conv2(y)) + shortcut)
    return x.mean(axis=(2, 3)) @ model.fc.weight.T + model.fc.bias


@DEVICES
def test_resnet8_is_its_formula(device):
    tb.manual_seed(0)
    model = nn.models.resnet8((3, 5, 4), classes=6, in_channels=2).to(tb.float64).to(device)
    x = tb.Tensor(np.random.default_rng(0).standard_normal((7, 2, 9, 10)), device=device)
    target = tb.Tensor(np.arange(7) % 6, device=device)
    found = []
    for forward in (model, lambda x: plain(model, x)):
        model.zero_grad()
        logits = forward(x)
        nn.functional.cross_entropy(logits, target).backward()
        found.append([logits.detach().numpy(), *(p.grad.numpy() for p in model.parameters())])
    for got, want in zip(*found, strict=True):
        # float64 through nine BatchNorms, each of which may magnify a rounding of 2⁻⁵³.
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-11)


def test_resnet8_is_that_of_the_paper():
    model = nn.models.resnet8(in_channels=3)
    strides = [block.conv1.stride for block in model.layers]
    assert strides == [(1, 1), (2, 2), (2, 2)]
    # Layers with weights, the shortcuts not counted: 6n + 2 for n = 1.
    names = [n for n, p in model.named_parameters() if p.ndim > 1 and "downsample" not in n]
    assert len(names) == 8
    assert model(tb.ones((2, 3, 32, 32))).shape == (2, 10)
    assert model.layers[0].downsample is None


@DEVICES
@pytest.mark.parametrize("amp", [None, tb.bfloat16])
def test_resnet8_learns(device, amp):
    tb.manual_seed(0)
    rng = np.random.default_rng(0)
    labels = np.arange(64) % 2
    images = rng.standard_normal((64, 1, 8, 8)).astype(np.float32) + labels[:, None, None, None]
    loader = tb.data.DataLoader((images, labels), 16, device=device)
    model = nn.models.resnet8((4, 4, 4), classes=2).to(device)
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    trainer = nn.Trainer(model, optimizer, progress=False, amp=amp)
    history = trainer.fit(loader, 6)
    assert history[-1]["loss"] < 0.2 * history[0]["loss"]
    assert all(p.grad.dtype == np.float32 for p in model.parameters())


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: nn.models.resnet8(()), r"channels is \(\)"),
        (lambda: nn.models.resnet8((3, 0)), "channels"),
        (lambda: nn.models.resnet8(classes=1.5), "classes is 1.5"),
        (lambda: nn.models.resnet8(in_channels=0), "in_channels is 0"),
        (lambda: nn.models.BasicBlock(3, 4, 0), "stride is 0"),
    ],
)
def test_sizes_that_do_not_fit(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()
