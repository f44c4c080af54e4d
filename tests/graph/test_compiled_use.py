"""A compiled graph in a user's hands: what it takes, what it keeps, and what it says of itself."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import DTypeError, GraphError, OrderError, ShapeError, StateError, TapeError
from tinybn.graph import BatchNormStatsRuntimeOp, LinearRuntimeOp, RuntimeGraph


def draw(*shape, dtype=np.float32):
    values = np.random.default_rng(len(shape)).standard_normal(shape)
    return tb.Tensor(values.astype(np.float32)).to(tb.float32 if dtype is np.float32 else dtype)


def net():
    """Trained for long: its BatchNorm has statistics, scale and shift of its own."""
    tb.manual_seed(3)
    model = nn.Sequential(
        nn.Linear(20, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3), nn.Softmax(1)
    )
    with tb.no_grad():
        model[1].running_mean.copy_(draw(8))
        model[1].running_var.copy_(draw(8).square() + 0.5)
        model[1].weight.copy_(draw(8) + 2)
    return model.eval()


def test_images_of_another_size_are_refused_and_not_pooled_wrongly():
    model = nn.models.resnet8((2, 3), in_channels=1).eval()
    graph = tb.graph.compile(model, draw(3, 1, 8, 8))
    for size in ((8, 9), (4, 4), (16, 16)):
        with pytest.raises(ShapeError, match=r"x has shape .*; the graph is for \[N, 1, 8, 8\]"):
            graph.forward(draw(3, 1, *size))
    with pytest.raises(DTypeError, match="x has dtype float64; the graph is for float32"):
        graph.forward(draw(3, 1, 8, 8, dtype=tb.float64))
    assert graph.forward(draw(5, 1, 8, 8)).shape == (5, 10)


def test_more_training_leaves_an_inference_graph_as_it_was():
    model, x = net(), draw(6, 20)
    graph = tb.graph.compile(model, x)
    before = graph.forward(x).numpy()
    with tb.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            tensor.mul_(2)
    assert np.array_equal(graph.forward(x).numpy(), before)


def test_tied_parameters_stay_one_in_the_copy():
    layer = nn.Linear(4, 4)
    graph = tb.graph.compile(nn.Sequential(layer, nn.ReLU(), layer), draw(3, 4))
    assert len(graph.parameters()) == 2


@pytest.mark.parametrize("written", ["input", "weight"])
@pytest.mark.parametrize("flatten", [False, True])
def test_a_write_between_forward_and_backward_is_refused_as_on_the_tape(written, flatten):
    layer = nn.Linear(4, 2)
    model = nn.Sequential(nn.Flatten(), layer) if flatten else layer
    x = draw(3, 2, 2) if flatten else draw(3, 4)
    graph = tb.graph.compile(lambda x: model(x).sum(), x, train=True)
    given = x.clone().requires_grad_() if written == "weight" else x.clone()
    graph.forward(given)
    with tb.no_grad():
        (given if written == "input" else layer.weight).mul_(0)
    with pytest.raises(TapeError, match="written in place"):
        graph.backward()
    assert layer.weight.grad is None


def test_compiling_leaves_nothing_to_go_back_from():
    layer = nn.Linear(4, 2)
    graph = tb.graph.compile(lambda x: layer(x).sum(), draw(3, 4), train=True)
    with pytest.raises(OrderError):
        graph.backward()
    with pytest.raises(TypeError, match="train is 'yes'; wanted True or False"):
        tb.graph.compile(layer, draw(3, 4), train="yes")


@pytest.mark.parametrize(
    "function",
    [
        lambda q: q[:, 1:] * 2,
        lambda q: q.reshape(-1, 20)[:, :1].squeeze(1).reshape(-1, 1, 1) * q,
        lambda q: q[:, [2, 0]],
        lambda q: q @ q.transpose(1, 2),
        lambda q: nn.functional.softmax(q @ q.swapaxes(-1, -2), 2) @ q,
        lambda q: q.cumsum(axis=1) % 3,
        lambda q: nn.functional.adaptive_avg_pool2d(q.unsqueeze(1), (2, 3)),
    ],
    ids=["slice", "number", "gather", "transposed", "attention", "cumsum", "adaptive"],
)  # fmt: skip
@pytest.mark.parametrize("train", [False, True])
def test_what_treats_samples_alike_runs_in_a_graph(tmp_path, function, train):
    layer = nn.Linear(5, 5)
    model = lambda x: (function(layer(x)) * 1.5).mean(axis=1)  # noqa: E731
    x = draw(3, 4, 5)
    graph = tb.graph.compile(model, x, train=train)
    for n in (3, 1, 6):
        other = draw(n, 4, 5)
        with tb.no_grad():
            assert np.array_equal(graph.forward(other).numpy(), model(other).numpy())
    if train:
        dy = draw(*graph.forward(x).shape)
        graph.backward(dy)
        ours, layer.weight.grad = layer.weight.grad, None
        model(x).backward(dy)
        assert np.array_equal(ours.numpy(), layer.weight.grad.numpy())


def test_a_graph_with_a_slice_is_saved_with_what_it_takes(tmp_path):
    model = lambda x: x[:, 1:, ..., ::2] * 2  # noqa: E731
    graph = tb.graph.compile(model, draw(3, 4, 5))
    graph.save(tmp_path / "graph.safetensors")
    loaded = tb.graph.load(tmp_path / "graph.safetensors")
    x = draw(2, 4, 5)
    assert np.array_equal(loaded.forward(x).numpy(), model(x).numpy())
    with pytest.raises(ShapeError, match=r"\[N, 4, 5\]"):
        loaded.forward(draw(2, 4, 6))


@pytest.mark.parametrize("dtype", [tb.float16, tb.bfloat16, tb.float32, tb.float64])
def test_batchnorm_is_folded_in_every_dtype(dtype):
    model = net()
    model[0].to(dtype)
    model[3].to(dtype)
    x = draw(64, 20, dtype=dtype)
    graph = tb.graph.compile(model, x)
    assert graph.notes == [] and "BatchNorm" not in str(graph)
    with tb.no_grad():
        expected = net().to(tb.float64)(x.to(tb.float64)).numpy()
    # Two products of weights rounded to the dtype, and softmax, whose slope is at most 1: a dozen
    # roundings of logits that are below 8.
    got = graph.forward(x).numpy().astype(np.float64)
    assert abs(got - expected).max() < 12 * 8 * float(tb.testing.epsilon(np.dtype(dtype)))


def test_a_variance_near_zero_is_not_folded_and_the_graph_says_so():
    model, x = net(), draw(16, 20)
    with tb.no_grad():
        model[1].running_var.fill_(0)
        model[1].running_mean.copy_(model[0](x).mean(axis=0))
        model[1].eps = 1e-12
        model[0].bias.add_(1e4)
        model[1].running_mean.add_(1e4)
    graph = tb.graph.compile(model, x)
    assert "BatchNorm2 is not folded into Linear1" in str(graph) or graph.notes
    names = [node.name for node in graph.nodes]
    assert all(word in names for note in graph.notes for word in (note.split()[0],))


def test_dropout_is_not_sent_in_a_circle():
    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    with pytest.raises(GraphError, match=r"Sequential\.1: Dropout runs as in training; .*eval"):
        tb.graph.compile(model, draw(3, 4))
    with pytest.raises(GraphError, match=r"Sequential\.1: Dropout draws anew.*capture"):
        tb.graph.compile(model, draw(3, 4), train=True)


def test_parameters_without_values():
    graph = RuntimeGraph("x", train=True)
    graph.add(LinearRuntimeOp(4, 2), "x", name="first")
    graph.add(LinearRuntimeOp(2, 2, bias=False), "first", name="second")
    for call in (graph.forward, graph.results, graph.profile):
        with pytest.raises(
            StateError, match="first.weight, first.bias, second.weight have no values yet"
        ):
            call(draw(3, 4))
    with tb.no_grad():
        for tensor in graph.parameters():
            tensor.fill_(1)
    assert graph.forward(draw(3, 4)).shape == (3, 2)


def test_what_a_graph_says_of_itself():
    graph = RuntimeGraph("x")
    assert repr(graph) == "RuntimeGraph(x -> , 0 nodes)"
    assert "It cannot run: the graph has no nodes" in str(graph)
    graph.add(BatchNormStatsRuntimeOp(2), "y", name='"quoted"')
    assert "reads 'y', which is neither" in str(graph)
    assert '"\\"quoted\\"" [label="\\"quoted\\"\\nBatchNormStats' in graph.to_dot()
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    compiled = tb.graph.compile(model, draw(3, 2, 2))
    assert [node.name for node in compiled.nodes] == ["Flatten0", "Linear1", "Linear2"]
    assert repr(compiled) == "RuntimeGraph(x -> Linear2, 3 nodes)"
