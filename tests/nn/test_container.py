"""Sequential and ModuleList."""

from __future__ import annotations

from collections import OrderedDict

import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import IndexOutOfRange


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
