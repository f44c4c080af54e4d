"""State dictionaries, copies and checkpoints.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import X1, F, array, assert_close, assert_same, case
from tinybn import nn
from tinybn.errors import StateError


def trained(forwards):
    """BatchNorm after so many batches."""
    layer = nn.BatchNorm2d(3)
    for _ in range(forwards):
        layer(tb.Tensor(X1))
    return layer


@pytest.mark.parametrize("forwards", [case("BN-21", "pytorch/pytorch#110361", 5)])
def test_a_partial_load_keeps_the_count(engine, forwards):
    layer = trained(forwards)
    layer.load_state_dict({}, strict=False)
    assert layer.num_batches_tracked.item() == forwards
    layer.load_state_dict({"weight": np.ones(3)}, strict=False)
    assert layer.num_batches_tracked.item() == forwards


@pytest.mark.parametrize(
    "forwards", [case("BN-42", "pytorch/pytorch#29015, pytorch/pytorch#54580", 1)]
)
def test_a_deep_copy_has_buffers_of_its_own(engine, forwards):
    layer = trained(forwards)
    before = {name: array(t).copy() for name, t in layer.state_dict().items()}
    copied = copy.deepcopy(layer)
    copied(tb.Tensor(X1))
    for name, tensor in layer.state_dict().items():
        assert_same(tensor, before[name])
        assert tensor.data_ptr() != copied.state_dict()[name].data_ptr()
    mean, var = m.running([X1] * (forwards + 1))
    assert_close(copied.running_mean, mean)
    assert_close(copied.running_var, var)
    assert copied.num_batches_tracked.item() == forwards + 1


@pytest.mark.parametrize("way", ["save", "pickle", "deepcopy"])
@pytest.mark.parametrize(
    "forwards", [case("BN-56", "mila-iqia/blocks#1188, patrick-kidger/equinox#944", 3)]
)
def test_a_stored_layer_gives_the_same_bits(engine, forwards, way, tmp_path):
    layer = trained(forwards)
    if way == "save":
        tb.save(tmp_path / "state.safetensors", layer.state_dict())
        again = nn.BatchNorm2d(3)
        again.load_state_dict(tb.load(tmp_path / "state.safetensors"))
    elif way == "pickle":
        again = pickle.loads(pickle.dumps(layer))
    else:
        again = copy.deepcopy(layer)
    assert again.num_batches_tracked.item() == forwards
    x = tb.Tensor(X1)
    assert_same(again.eval()(x), array(layer.eval()(x)))


@pytest.mark.parametrize(
    ("own", "given"),
    [
        case("SD-02", "pytorch/pytorch#165873, tinygrad/tinygrad#13538", *row)
        for row in (((), (32000,)), ((), (1,)), ((1,), ()), ((3,), (1,)), ((2, 3), (3,)))
    ],
)
def test_shapes_are_never_broadcast(engine, own, given):
    """Not even (1,) into a 0-d tensor, as the docstring of load_state_dict has it."""
    module = nn.Module()
    module.register_buffer("scale", tb.full(own, 7.0))
    with pytest.raises(StateError, match="scale has shape"):
        module.load_state_dict({"scale": np.arange(np.prod(given)).reshape(given)})
    assert_same(module.scale, np.full(own, 7.0))


@pytest.mark.parametrize(
    "key",
    [
        case("SD-03", "pytorch/pytorch#8430, pytorch/pytorch#8481, pytorch/pytorch#5881",
             "num_batches_tracked"),
    ],
)  # fmt: skip
def test_a_checkpoint_without_the_batch_counter(engine, key):
    """An error that lists the key, unless ``strict`` is False, as the docstring has it."""
    source, layer = trained(2), nn.BatchNorm2d(3)
    layer.num_batches_tracked.fill_(9)
    state = {name: t for name, t in source.state_dict().items() if name != key}
    before = array(layer.running_mean).copy()
    with pytest.raises(StateError, match=key):
        layer.load_state_dict(state)
    assert_same(layer.running_mean, before)
    assert layer.load_state_dict(state, strict=False).missing_keys == [key]
    assert layer.num_batches_tracked.item() == 9
    for name in state:
        assert_same(layer.state_dict()[name], array(state[name]))


@pytest.mark.parametrize(
    "lr",
    [
        case("SD-04", "pytorch/pytorch#34765, WenjieDu/PyPOTS#667, pytorch/tutorials#188", 0.5),
    ],
)  # fmt: skip
def test_a_state_dict_is_a_reference_and_its_deep_copy_is_not(engine, lr):
    layer = nn.Linear(2, 1)
    state = layer.state_dict()
    best, before = copy.deepcopy(state), array(layer.weight).copy()
    optimizer = nn.optim.SGD(layer.parameters(), lr=lr)
    layer(tb.ones(1, 2)).sum().backward()
    optimizer.step()
    assert_close(layer.weight, before - lr)
    assert_same(state["weight"], array(layer.weight))  # shared, as its docstring has it
    assert_same(best["weight"], before)


@pytest.mark.parametrize("x", [case("SD-06", "pytorch/pytorch#40859", F((2, 3), 5, 1, 8, 4))])
@pytest.mark.parametrize("move", [False, True])
def test_loading_keeps_the_parameters_that_an_optimizer_has(engine, x, move):
    layer = nn.Linear(3, 1)
    optimizer = nn.optim.SGD(layer.parameters(), lr=0.5)
    parameters = list(layer.parameters())
    weight = np.array([[1.0, 2.0, 3.0]])
    layer.load_state_dict({"weight": weight, "bias": np.zeros(1)})
    if move:
        layer.double()
    assert all(a is b for a, b in zip(layer.parameters(), parameters))
    layer(tb.Tensor(x, dtype=layer.weight.dtype)).sum().backward()
    optimizer.step()
    assert_close(layer.weight, weight - 0.5 * m.wide(x).sum(0))
    assert_close(layer.bias, [-0.5 * len(x)])
