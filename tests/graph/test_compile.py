"""Compiled graphs against the tape, bit for bit in training, and against float64 in inference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinybn as tb
from tests import engines
from tests.graph.networks import LAYOUTS, Exact, Net, assert_within, images, recipes
from tinybn import nn
from tinybn.testing import FLOAT_DTYPES

F = nn.functional
inputs = st.tuples(st.sampled_from(FLOAT_DTYPES), st.sampled_from(LAYOUTS), st.integers(0, 2**16))


def drawn(count):
    """A test of drawn networks."""
    return settings(max_examples=count, deadline=None, derandomize=True)


def put(array, device, requires_grad=False):
    """A Tensor with the array's memory layout."""
    tensor = tb.Tensor.wrap(engines.CUDA.put(array) if device == "cuda" else array)
    tensor.requires_grad = requires_grad
    return tensor


def loss_of(net):
    return lambda x, t: F.cross_entropy(net(x).astype(tb.float32), t)


def made(recipe, dtype, device, training):
    net = Net(recipe).to(dtype).to(device)
    return net.train() if training else net.eval()


def assert_same_state(got, want, message):
    for (name, a), (_, b) in zip(got.state_dict().items(), want.state_dict().items()):
        assert np.array_equal(a.numpy(), b.numpy(), equal_nan=True), (message, name)
    for (name, a), (_, b) in zip(got.named_parameters(), want.named_parameters()):
        assert (a.grad is None) == (b.grad is None), (message, name)
        if a.grad is not None:
            same = np.array_equal(a.grad.numpy(), b.grad.numpy(), equal_nan=True)
            assert same, (message, f"{name}.grad")


def check_training(recipe, dtype, layout, seed, device, sizes=(4, 3, 4, 4, 3, 4, 4)):
    """Train by the graph and by the tape, the batches of several sizes; all bits are the same."""
    nets = [made(recipe, dtype, device, True) for _ in range(2)]
    rng = np.random.default_rng(seed)
    batches = [
        (images(rng, n, dtype, layout), rng.integers(0, 5, n), images(rng, n, dtype, layout))
        for n in sizes
    ]
    example = [put(batches[0][0], device), tb.Tensor(batches[0][1], device=device)]
    graph = tb.graph.compile(loss_of(nets[0]), example, train=True)
    assert_same_state(*nets, "compiling")
    optimizers = [nn.optim.SGD(net.parameters(), lr=0.01, momentum=0.9) for net in nets]
    forwards = [graph.forward, loss_of(nets[1])]
    for number, (x, t, other) in enumerate(batches):
        losses, gradients = [], []
        for forward, optimizer in zip(forwards, optimizers):
            optimizer.zero_grad()
            for repeat in range(1 + number % 2):  # every other step adds up two
                leaf = put(other if repeat else x, device, requires_grad=True)
                plain = number % 3 == 0
                given = leaf.detach() if plain else leaf
                loss = forward(given, tb.Tensor(t, device=device))
                losses.append(loss.detach().numpy().copy())
                if forward == graph.forward:
                    graph.backward()
                else:
                    loss.backward()
                gradients.append(None if plain else leaf.grad.numpy())
            optimizer.step()
        half = len(losses) // 2
        for a, b in zip(losses[:half] + gradients[:half], losses[half:] + gradients[half:]):
            assert (a is None) == (b is None)
            assert a is None or np.array_equal(a, b, equal_nan=True), number
        assert_same_state(*nets, number)


def check_inference(recipe, dtype, layout, seed, device, sizes=(4, 1, 4, 6, 1, 4)):
    """Run the graph on batches of several sizes in turn: within rounding, and the same again."""
    net = made(recipe, dtype, device, False)
    rng = np.random.default_rng(seed)
    x = images(rng, max(sizes), dtype, layout)
    graph = tb.graph.compile(net, put(x[:4], device))
    exact, first = Exact(net, dtype), {}
    for n in sizes:
        given = put(x[:n], device)
        outputs = graph.forward(given)
        outputs = [y.numpy().copy() for y in (outputs if recipe.extra else [outputs])]
        apart = graph.results(given)
        for name, y in zip(graph.outputs, outputs):
            own = tb.Tensor(apart[name]).numpy() if device == "cpu" else apart[name].get()
            assert np.array_equal(y, own, equal_nan=True), "memory was reused while it was needed"
        for y, want in zip(outputs, exact(x[:n])):
            assert_within(y, want, f"batch of {n}")
        for y, before in zip(outputs, first.setdefault(n, outputs)):
            assert np.array_equal(y, before)


@drawn(60)
@given(recipes, inputs)
def test_training_is_the_tapes_to_the_last_bit(recipe, given_as):
    check_training(recipe, *given_as, "cpu")


@drawn(60)
@given(recipes, inputs, st.booleans())
def test_inference_is_exact_up_to_rounding(recipe, given_as, extra):
    check_inference(recipe._replace(extra=extra), *given_as, "cpu")


@pytest.mark.gpu
@drawn(15)
@given(recipes, inputs)
def test_training_on_a_gpu(recipe, given_as):
    """Sizes come often enough to be rehearsed, recorded and replayed, in turns."""
    check_training(recipe, *given_as, "cuda", sizes=(4, 3) * 6)


@pytest.mark.gpu
@drawn(15)
@given(recipes, inputs, st.booleans())
def test_inference_on_a_gpu(recipe, given_as, extra):
    check_inference(recipe._replace(extra=extra), *given_as, "cuda", sizes=(4, 1) * 5)


@drawn(4)
@given(recipes, inputs)
def test_interpreted(recipe, given_as):
    recipe = recipe._replace(steps=recipe.steps[:3])
    with tb.interpret():
        check_training(recipe, *given_as, "cpu", sizes=(3, 2, 3))
        check_inference(recipe, *given_as, "cpu", sizes=(4, 1, 4))
