"""What BatchNorm takes, refuses, keeps and changes.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import gc

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import X1, F, array, assert_close, assert_same, case
from tinybn import kernels, nn
from tinybn.errors import ShapeError
from tinybn.tensor.tape import Node


def state_of(layer):
    return {name: array(tensor).copy() for name, tensor in layer.state_dict().items()}


def assert_state(layer, before):
    for name, values in state_of(layer).items():
        assert_same(values, before[name])


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        case("BN-04", "pytorch/pytorch#1381, pytorch/pytorch#4534, pytorch/pytorch#13223, "
             "karpathy/makemore#22", make, shape)
        for make, shape in (
            (lambda: nn.BatchNorm2d(3), (1, 3, 1, 1)), (lambda: nn.BatchNorm1d(4), (1, 4)),
            (lambda: nn.BatchNorm1d(4), (1, 4, 1)), (lambda: nn.BatchNorm3d(2), (1, 2, 1, 1, 1)),
            (lambda: nn.BatchNorm1d(4, momentum=None), (1, 4)),
        )
    ],
)  # fmt: skip
def test_one_value_a_channel(engine, layer, shape):
    layer, x = layer(), tb.zeros(shape)
    before = state_of(layer)
    with pytest.raises(ShapeError, match="more than one"):
        layer(x)
    assert_state(layer, before)
    assert_same(layer.eval()(x), np.zeros(shape))


@pytest.mark.parametrize("case_layer", [case("BN-06", "pytorch/pytorch#156051", nn.BatchNorm1d)])
def test_one_value_a_channel_in_evaluation_without_running_statistics(engine, case_layer):
    layer = case_layer(2, track_running_stats=False).eval()
    with pytest.raises(ValueError, match="batch statistics") as caught:
        layer(tb.ones(1, 2))
    assert "training" not in str(caught.value)  # this layer is not in training


@pytest.mark.parametrize(
    ("shape", "momentum"),
    [
        case("BN-08", "pytorch/pytorch#12013, pytorch/pytorch#8933", (0, 5, 9), 0.1),
        case("BN-08", "pytorch/pytorch#12013, pytorch/pytorch#8933", (0, 5), None),
        case("BN-08", "pytorch/pytorch#12013, pytorch/pytorch#8933", (3, 5, 0), 0.1),
    ],
)
def test_an_empty_batch(engine, shape, momentum):
    layer, x = nn.BatchNorm1d(5, momentum=momentum), tb.ones(shape, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape
    assert_same(layer.running_mean, np.zeros(5))
    assert_same(layer.running_var, np.ones(5))
    assert_same(layer.weight.grad, np.zeros(5))
    assert_same(layer.bias.grad, np.zeros(5))
    assert layer.num_batches_tracked.item() == 0  # as the layer's docstring has it
    assert layer.eval()(x).shape == shape


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("dtype", [tb.float16, tb.bfloat16])
@pytest.mark.parametrize(
    "affine",
    [case("BN-14", "NVIDIA/apex#133, chainer/chainer#6484", affine) for affine in (True, False)],
)
def test_half_input_with_float32_parameters(engine, affine, dtype, training):
    layer = nn.BatchNorm2d(3, affine=affine).train(training)
    x = tb.Tensor(X1.astype(dtype), requires_grad=True)
    y = layer(x)
    y.backward(tb.ones_like(y))
    assert y.dtype == x.grad.dtype == dtype
    kept = [layer.running_mean, layer.running_var]
    kept += [layer.weight, layer.bias, layer.weight.grad, layer.bias.grad] if affine else []
    assert all(tensor.dtype == tb.float32 for tensor in kept)
    statistics = {} if training else dict(mean=[0] * 3, var=[1] * 3)
    half_a_unit = 2.0**-11 if dtype == tb.float16 else 2.0**-8
    assert_close(y.float(), m.batch_norm(X1, **statistics), rtol=half_a_unit, atol=1e-6)


@pytest.mark.parametrize(
    "forwards",
    [
        case("BN-37", "pytorch/pytorch#20275, bayesiains/nflows#11, facebookresearch/synsin#20",
             200),
    ],
)  # fmt: skip
def test_running_statistics_keep_no_graph(engine, forwards):
    layer, x = nn.BatchNorm1d(3), tb.Tensor(F((4, 3), 5, 1, 8), requires_grad=True)

    def live():
        gc.collect()
        return sum(isinstance(o, Node) for o in gc.get_objects())

    layer(x)
    before = live()
    for _ in range(forwards if engine.name != "interpret" else 20):
        layer(x)
    assert live() == before
    for buffer in layer.buffers():
        assert buffer.is_leaf and not buffer.requires_grad


@pytest.mark.parametrize(
    "channels",
    [case("BN-43", "pytorch/pytorch#86590, pgniewko/gt-pyg#112, keras-team/keras#9522", 3)],
)
def test_freezing_parameters_freezes_no_statistics(engine, channels):
    model = nn.Sequential(nn.BatchNorm2d(channels)).requires_grad_(False)
    layer, x = model[0], tb.Tensor(X1)
    model(x)
    assert layer.num_batches_tracked.item() == 1
    assert_close(layer.running_mean, m.running([X1])[0])
    layer.eval()
    model(x)
    assert layer.num_batches_tracked.item() == 1
    model.train()  # which the docstring of train() says undoes a child's eval()
    model(x)
    assert layer.training and layer.num_batches_tracked.item() == 2
    layer.freeze()
    model.train()
    model(x)
    assert layer.num_batches_tracked.item() == 2


@pytest.mark.parametrize(
    ("layer", "shape", "fits"),
    [
        case("BN-53", "NVIDIA-AI-IOT/torch2trt#934, "
             "vacancy/Synchronized-BatchNorm-PyTorch#31", *row)
        for row in (
            (nn.BatchNorm1d, (3, 2), True), (nn.BatchNorm1d, (3, 2, 4), True),
            (nn.BatchNorm2d, (2, 2, 3), False), (nn.BatchNorm1d, (2, 3), False),
            (nn.BatchNorm1d, (2,), False), (nn.BatchNorm1d, (2, 2, 3, 3), False),
            (nn.BatchNorm3d, (2, 2, 3, 3), False), (nn.BatchNorm2d, (2, 3, 4, 2), False),
        )
    ],
)  # fmt: skip
def test_rank_and_channels(engine, layer, shape, fits):
    layer = layer(2)
    before = state_of(layer)
    if fits:
        assert layer(tb.ones(shape)).shape == shape
        return
    with pytest.raises(ShapeError, match=r"BatchNorm\dd\(2\) was given shape"):
        layer(tb.ones(shape))
    assert_state(layer, before)


@pytest.mark.gpu
@pytest.mark.parametrize(
    "shape",
    [
        case("BN-47", "triton-lang/triton#832, triton-lang/triton#1058, flagos-ai/FlagGems#327, "
             "flagos-ai/FlagGems#4156", (2, 1, 32768, 32769)),
    ],
)  # fmt: skip
def test_more_elements_than_32_bits_count(shape):
    import cupy

    x = cupy.zeros(shape, cupy.float16)  # 2³¹ + 65536 elements, 4.3 GB
    x[-1, -1, -1, -1] = 1
    zero, one = cupy.zeros(1, cupy.float32), cupy.ones(1, cupy.float32)
    y = kernels.batch_norm_forward_inference(x, None, None, zero, one, eps=0.0)
    assert float(y[-1, -1, -1, -1]) == 1 and int(cupy.count_nonzero(y)) == 1
    del y
    y = kernels.batch_norm_forward(x, None, None).y
    n = x.size
    last = (1 - 1 / n) / np.sqrt(1 / n * (1 - 1 / n) + 1e-5)
    assert abs(last - 316.2) < 0.1
    assert abs(float(y[-1, -1, -1, -1]) - last) <= 0.125  # half a unit of float16 at 316
    y[-1, -1, -1, -1] = 0
    assert float(abs(y).max()) < 1e-6  # and so nothing is NaN
    del x, y
    cupy.get_default_memory_pool().free_all_blocks()
