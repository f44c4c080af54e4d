"""What may happen between calls of a graph: dtypes, errors, writes in place, copies, threads."""

from __future__ import annotations

import copy
import pickle
import threading

import numpy as np
import pytest

import tinybn as tb
from tinybn import graph, nn
from tinybn.errors import ArgumentError, DTypeError, OrderError, TapeError
from tinybn.graph import ActivationRuntimeOp, LinearRuntimeOp, RuntimeGraph

F = nn.functional
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
MODELS = {
    "linear": lambda: nn.Sequential(nn.Flatten(), nn.Linear(36, 5), nn.ReLU(), nn.Linear(5, 3)),
    "mlp": lambda: nn.models.mlp(36, (7, 5), 3),
    "cnn": lambda: nn.models.cnn((3, 4), 3, image=6),
    "no products": lambda: nn.Sequential(nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Tanh()),
}


def images(seed, batch=4, device="cpu", dtype=np.float32):
    values = np.random.default_rng(seed).standard_normal((batch, 1, 6, 6))
    return tb.Tensor(values.astype(dtype), device=device)


def made(name, train=False, device="cpu"):
    """A model, and its graph, which has run on one shape so often that it is replayed."""
    tb.manual_seed(3)
    model = MODELS[name]().to(device)
    with tb.no_grad():
        model(images(0, 8, device))  # statistics
    model.train(train)
    compiled = graph.compile(model, images(1, device=device), train=train)
    for seed in range(4):
        compiled.forward(images(seed, device=device))
    return model, compiled


def on_tape(model, x):
    with tb.no_grad():
        return model(x).numpy()


def assert_close(got, want):
    """Within the roundings of eight layers of sums of at most 36 products, in float32."""
    assert np.abs(got - want).max() <= 8 * 6 * 2.0**-23 * np.abs(want).max()


@devices
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_parameters_of_another_dtype_count_for_shapes_seen_before(dtype, device):
    """Those of training are the model's own; a graph for inference holds copies."""
    model, compiled = made("linear", True, device)
    model.to(getattr(tb, dtype))
    for seed in range(4):
        x = images(seed, device=device)
        got, want = compiled.forward(x), model(x)
        assert got.dtype == want.dtype
        assert_close(got.numpy(), want.detach().numpy())
        compiled.backward(tb.ones_like(got))
        gradients = [p.grad.numpy() for p in model.parameters()]
        model.zero_grad()
        want.sum().backward()
        for parameter, gradient in zip(model.parameters(), gradients):
            assert parameter.grad.dtype == gradient.dtype
            assert np.array_equal(parameter.grad.numpy(), gradient)
        model.zero_grad()


def promoting(x):
    """A model whose operations depend on the dtype."""
    return tb.where(tb.Tensor(np.bool_(True)), x, 0 * x)


@pytest.mark.parametrize("call", ["forward", "results", "profile"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("model", [promoting, nn.Linear(6, 2), lambda x: F.mse_loss(x, 0 * x)])
def test_a_compiled_graph_takes_the_dtypes_of_its_example(model, train, call):
    compiled = graph.compile(model, images(0), train=train)
    for dtype in (np.float16, np.float64, np.int64):
        with pytest.raises(DTypeError, match="x has dtype .*the graph is for float32"):
            getattr(compiled, call)(images(1, dtype=dtype))
    assert compiled.forward(images(2)).dtype == tb.float32


@devices
def test_no_backward_of_a_forward_whose_memory_one_that_failed_has_written_over(device):
    """Classes are checked when a graph runs, on the CPU; a BatchNorm's shapes before it."""
    net = MODELS["linear"]().to(device)
    target = tb.Tensor(np.array([0, 1, 2, 0]), device=device)
    compiled = graph.compile(
        lambda x, t: F.cross_entropy(net(x), t), [images(0, device=device), target], train=True
    )
    compiled.forward(images(1, device=device), target)
    with pytest.raises(ArgumentError):
        compiled.forward(images(2, device=device))  # refused beforehand: nothing has changed
    compiled.backward()
    compiled.forward(images(1, device=device), target)
    net.zero_grad()
    try:
        compiled.forward(images(2, device=device), target + 7)
    except tb.TinyBNError:
        with pytest.raises(OrderError, match="after a forward"):
            compiled.backward()
        assert all(p.grad is None for p in net.parameters())
    else:
        assert device == "cuda"


KEPT = {  # what is written, and whether the tape refuses the backward then
    "weight of the first": False,  # x wants no gradient
    "weight of the second": True,
    "bias": False,
    "x": True,
    "y": True,
}


@devices
@pytest.mark.parametrize("shapes_seen", [1, 4])
@pytest.mark.parametrize("runs", ["on the tape", "as a graph"])
@pytest.mark.parametrize("what", KEPT)
def test_a_write_between_forward_and_backward_is_refused_where_backward_reads_it(
    what, runs, shapes_seen, device
):
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3), nn.Sigmoid()).to(device)
    compiled = graph.compile(model, images(0, device=device), train=True)
    for seed in range(shapes_seen):
        x = images(seed, device=device)
        y = model(x) if runs == "on the tape" else compiled.forward(x)
    places = {
        "weight of the first": model[0].weight, "weight of the second": model[2].weight,
        "bias": model[2].bias, "x": x, "y": y.detach() if runs == "on the tape" else y,
    }  # fmt: skip
    gradient = tb.ones_like(y)
    with tb.no_grad():
        places[what].mul_(2)
    backward = y.backward if runs == "on the tape" else compiled.backward
    if KEPT[what]:
        with pytest.raises(TapeError, match="in place"):
            backward(gradient)
        assert all(p.grad is None for p in model.parameters())
    else:
        backward(gradient)
        assert all(p.grad is not None for p in model.parameters())


def test_what_a_frozen_parameter_would_have_needed_may_be_written():
    model = nn.Sequential(nn.Linear(6, 4), nn.ReLU(), nn.Linear(4, 3))
    compiled = graph.compile(model, images(0), train=True)
    model[0].requires_grad_(False)
    x = images(1)
    y = compiled.forward(x)
    x.mul_(2)
    model[2].weight.requires_grad_(True)
    compiled.backward(tb.ones_like(y))
    got = model[2].weight.grad.numpy()
    model.zero_grad()
    model(images(1)).sum().backward()
    assert np.array_equal(got, model[2].weight.grad.numpy())


@pytest.mark.parametrize("how", ["copied", "pickled"])
@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_a_copy_runs_in_memory_of_its_own(name, train, how):
    model, compiled = made(name, train)
    other = copy.deepcopy(compiled) if how == "copied" else pickle.loads(pickle.dumps(compiled))
    assert (other.notes, other.outputs) == (compiled.notes, compiled.outputs)
    for seed in range(4, 8):
        want = on_tape(model, images(seed))
        assert_close(other.forward(images(seed)).numpy(), want)
        assert_close(compiled.forward(images(seed)).numpy(), want)
    with tb.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0)
    assert_close(compiled.forward(images(9)).numpy(), on_tape(model, images(9)))


def test_threads_that_call_one_graph_take_turns():
    made_of = RuntimeGraph("x", device="cpu")
    for i in range(6):
        made_of.add(LinearRuntimeOp(64, 64), f"r{i - 1}" if i else "x", name=f"l{i}")
        made_of.add(ActivationRuntimeOp("relu"), f"l{i}", name=f"r{i}")
    eye = {f"l{i}.weight": np.eye(64, dtype=np.float32) for i in range(6)}
    made_of.load_state_dict(eye | {f"l{i}.bias": np.zeros(64, np.float32) for i in range(6)})
    wrong: list[int] = []

    def call(number):
        for step in range(150):
            x = np.full((256, 64), 1000 * number + step + 1, np.float32)
            if not np.array_equal(made_of.forward(tb.Tensor(x, device="cpu")).numpy(), x):
                wrong.append(number)

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
