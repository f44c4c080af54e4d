"""Sequential and ModuleList."""

from __future__ import annotations

import contextlib
from collections import OrderedDict

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, IndexOutOfRange


def test_sequential_indexing():
    parts = [nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)]
    model = nn.Sequential(*parts)
    assert len(model) == 3 and list(model) == parts
    assert model[0] is parts[0] and model[-1] is parts[2]
    head = model[:2]
    assert isinstance(head, nn.Sequential) and list(head) == parts[:2]
    model[1] = nn.Tanh()
    assert isinstance(model[1], nn.Tanh)
    assert model.append(nn.Sigmoid()) is model
    assert model(tb.ones(4, 2)).shape == (4, 1)
    assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
    with pytest.raises(IndexOutOfRange, match="-4 to 3"):
        model[4]
    with pytest.raises(TypeError, match="wanted a Module"):
        model[0] = 3


def test_sequential_of_names():
    model = nn.Sequential(OrderedDict(fc=nn.Linear(2, 2), act=nn.ReLU()))
    assert list(model.state_dict()) == ["fc.weight", "fc.bias"]
    assert model.fc is model[0]
    with pytest.raises(TypeError, match="wanted a Module"):
        nn.Sequential(nn.ReLU(), len)
    assert nn.Sequential()(3) == 3


def test_a_slice_keeps_names_and_what_is_appended_replaces_nothing():
    # The names are those of PyTorch 2.13: list(model[1:].state_dict()).
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    tail = model[1:]
    assert list(tail.state_dict()) == ["2.weight", "2.bias"]
    tail.append(nn.Tanh())
    assert [name for name, _ in tail.named_children()] == ["1", "2", "3"]
    assert tail[1] is model[2] and len(model) == 3
    with pytest.raises(TypeError, match="wanted a Module"):
        tail.append(None)
    assert len(tail) == 3


def test_module_list():
    layers = nn.ModuleList([nn.Linear(2, 2) for _ in range(2)])
    layers.append(nn.ReLU()).extend([nn.ReLU()])
    assert len(layers) == 4 and len(list(layers.parameters())) == 4
    assert isinstance(layers[1:], nn.ModuleList) and layers[1:][0] is layers[1]
    assert list(layers.state_dict())[0] == "0.weight"
    with pytest.raises(NotImplementedError):
        layers(1)
    with pytest.raises(TypeError, match="wanted a Module"):
        layers.extend([3])
    assert len(layers.extend(layers)) == 8


def test_mlp():
    tb.manual_seed(0)
    model = nn.models.mlp(6, (4, 3), 2)
    assert [type(layer).__name__ for layer in model] == [
        "Flatten", "Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d", "ReLU", "Linear",
    ]  # fmt: skip
    assert model(tb.randn(5, 1, 2, 3)).shape == (5, 2)
    assert len(nn.models.mlp(6, (), 2)) == 2
    # 784·512 + 512·512 + 512·10 weights, their 1034 biases, and 2 · 1024 for BatchNorm.
    assert sum(p.size for p in nn.models.mlp().parameters()) == 668672 + 1034 + 2048


@pytest.mark.parametrize(
    "arguments", [(0,), (2.5,), (4, 512), (4, (3, 0)), (4, (2.5,)), (4, "ab"), (4, (3,), 0)]
)
def test_mlp_of_sizes_that_cannot_be(arguments):
    with pytest.raises(ArgumentError, match="is .*; wanted .*at least 1"):
        nn.models.mlp(*arguments)


def test_append_takes_a_free_name_and_a_slice_keeps_names():
    model = nn.Sequential(OrderedDict([("1", nn.Linear(2, 2))])).append(nn.ReLU())
    assert len(model) == 2 and list(dict(model.named_children())) == ["1", "2"]
    model = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    assert list(model[2:].state_dict()) == ["2.weight", "2.bias"]


def test_a_fused_activation_is_the_modules_own():
    # Fused where kernels run; never where a module computes something of its own.
    class Doubled(nn.BatchNorm1d):
        def __call__(self, input):
            return super().__call__(input) * 2

    def same(modules):
        x = tb.Tensor(np.array([[1.0, -2.0], [3.0, 5.0], [0.0, 1.0]], np.float32))
        want = x
        for module in modules:
            want = module(want)
        for engine in (contextlib.nullcontext, tb.interpret):
            with engine():
                got = nn.Sequential(*modules)(x)
            np.testing.assert_allclose(got.detach().numpy(), want.detach().numpy(), atol=1e-6)

    for activation in (nn.ReLU(), nn.SiLU(), nn.GELU(), nn.GELU("tanh"), nn.Tanh()):
        same([nn.BatchNorm1d(2), activation])
    same([Doubled(2), nn.ReLU()])
    for changed in (0, 1):
        modules = [nn.BatchNorm1d(2), nn.ReLU()]
        modules[changed].forward = lambda input: input * 3 - 1
        same(modules)


def test_relu_joins_batch_norm_on_the_cpu_and_the_others_only_where_kernels_run():
    x = tb.randn(3, 2)
    for activation, on_cpu in ((nn.ReLU(), True), (nn.SiLU(), False), (nn.GELU(), False)):
        model = nn.Sequential(nn.BatchNorm1d(2), activation)
        assert (model(x)._node.op.__name__ == "BatchNormTraining") is on_cpu
        with tb.interpret():
            assert model(x)._node.op.__name__ == "BatchNormTraining"
