"""RuntimeGraph: bad input changes nothing; state by name; what training and profiling leave."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import (
    ArgumentError,
    DeviceError,
    DTypeError,
    OrderError,
    ShapeError,
    StateError,
    TinyBNError,
)
from tinybn.graph import (
    ActivationRuntimeOp,
    AddRuntimeOp,
    BatchNormRuntimeOp,
    Conv2dRuntimeOp,
    CrossEntropyRuntimeOp,
    FlattenRuntimeOp,
    LinearRuntimeOp,
    MeanRuntimeOp,
    RuntimeGraph,
    SoftmaxRuntimeOp,
)

devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def t(*shape, dtype=np.float32, device="cpu", seed=0):
    values = np.random.default_rng(seed).standard_normal(shape)
    return tb.Tensor(values.astype(dtype), device=device)


def network(device="cpu", train=True):
    """Linear, BatchNorm, ReLU and a residual, with values of its own."""
    graph = RuntimeGraph(train=train, device=device)
    first = graph.add(LinearRuntimeOp(4, 4), "x", name="first")
    norm = graph.add(BatchNormRuntimeOp(4, training=train), first, name="norm")
    relu = graph.add(ActivationRuntimeOp("relu"), norm, name="relu")
    second = graph.add(LinearRuntimeOp(4, 4), relu, name="second")
    graph.add(AddRuntimeOp(), second, first, name="sum")
    graph.load_state_dict({
        key: np.abs(t(*value.shape, seed=i).numpy())
        for i, (key, value) in enumerate(graph.state_dict().items())
        if not key.endswith("tracked")
    } | ({"norm.num_batches_tracked": np.int64(0)} if train else {}))  # fmt: skip
    return graph


def left(graph):
    """All that calls may change, as bytes."""
    state = {key: value.numpy().tobytes() for key, value in graph.state_dict().items()}
    gradients = [None if p.grad is None else p.grad.numpy().tobytes() for p in graph.parameters()]
    return state, gradients, [node.name for node in graph.nodes], graph.outputs


def cycle(graph):
    graph.add(AddRuntimeOp(), "sum", "b", name="a")
    graph.add(ActivationRuntimeOp("relu"), "a", name="b")


BUILDING = {
    "name taken": (ArgumentError, "taken", lambda g: g.add(AddRuntimeOp(), "x", "x", name="norm")),
    "an input": (ArgumentError, "taken", lambda g: g.add(AddRuntimeOp(), "x", "x", name="x")),
    "empty name": (ArgumentError, "name", lambda g: g.add(AddRuntimeOp(), "x", "x", name="")),
    "dotted name": (ArgumentError, "name", lambda g: g.add(AddRuntimeOp(), "x", "x", name="a.b")),
    "too few inputs": (ArgumentError, "wanted 2", lambda g: g.add(AddRuntimeOp(), "x")),
    "no operation": (ArgumentError, "RuntimeOp", lambda g: g.add(nn.ReLU(), "x")),
    "output": (ArgumentError, "nothing", lambda g: g.output("nothing")),
    "outputs": (ArgumentError, "outputs", lambda g: g.output()),
    "missing, unknown and mis-shaped": (
        StateError, "missing: bias.*unknown: scale.*weight has shape",
        lambda g: g.add(LinearRuntimeOp(4, 4), "x", parameters={"weight": t(4, 3), "scale": t(1)}),
    ),
    "no Tensors": (
        StateError, "weight is ndarray.*bias is NoneType",
        lambda g: g.add(
            LinearRuntimeOp(4, 4), "x", parameters={"weight": np.ones((4, 4)), "bias": None}
        ),
    ),
    "state": (
        StateError, "first.weight has shape(.|\n)*missing: .*norm.weight(.|\n)*unexpected: other",
        lambda g: g.load_state_dict({"first.weight": t(3, 3), "first.bias": t(4), "other": t(1)}),
    ),
    "activation": (ArgumentError, "rel", lambda g: g.add(ActivationRuntimeOp("rel"), "x")),
    "end of a product": (
        ArgumentError, "rel", lambda g: g.add(LinearRuntimeOp(4, 4, activation="rel"), "x")),
    "groups": (ArgumentError, "groups", lambda g: g.add(Conv2dRuntimeOp(3, 4, 3, groups=2), "x")),
    "no groups": (ArgumentError, "groups", lambda g: Conv2dRuntimeOp(4, 4, 3, groups=0)),
}  # fmt: skip
RUNNING = {
    "too many inputs": (ArgumentError, "wanted x", lambda g: g.forward(t(3, 4), t(3, 4))),
    "an array": (DTypeError, "Tensor", lambda g: g.forward(np.ones((3, 4)))),
    "columns": (ShapeError, r"node first \(Linear\)", lambda g: g.forward(t(3, 5))),
    "axes": (ShapeError, "node norm", lambda g: g.forward(t(2, 3, 4, 4))),
    "one value a channel": (ShapeError, "node norm.*1 value", lambda g: g.forward(t(1, 4))),
    "no axis": (ShapeError, "node first", lambda g: g.forward(t())),
    "profile": (ShapeError, "node first", lambda g: g.profile(t(3, 5))),
    "repeats": (ArgumentError, "at least 1", lambda g: g.profile(t(3, 4), repeats=0)),
    "no forward": (OrderError, "after a forward", lambda g: g.backward(t(3, 4))),
}


@pytest.mark.parametrize("name", BUILDING | RUNNING)
def test_bad_input_changes_nothing(name):
    kind, message, call = (BUILDING | RUNNING)[name]
    graph = network()
    before = left(graph)
    with pytest.raises(kind, match=message):
        call(graph)
    assert left(graph) == before
    assert graph.forward(t(3, 4)).shape == (3, 4)


@pytest.mark.parametrize("gradient", [t(3, 5), t(3, 4, dtype=np.float64), None, "x"], ids=str)
def test_a_gradient_that_does_not_fit_changes_nothing(gradient):
    graph, fresh = network(), network()
    graph.forward(t(3, 4)), fresh.forward(t(3, 4))
    before = left(graph)
    with pytest.raises(TinyBNError):
        graph.backward(gradient)
    assert left(graph) == before
    graph.backward(t(3, 4)), fresh.backward(t(3, 4))  # the forward still counts
    assert left(graph) == left(fresh)
    with pytest.raises(OrderError):
        graph.backward(t(3, 4))


@pytest.mark.parametrize("dtype", [tb.float16, tb.bfloat16, tb.float32, tb.float64], ids=str)
def test_python_numbers_as_a_gradient_take_the_outputs_dtype(dtype):
    graph = RuntimeGraph(train=True, dtype=dtype)
    graph.add(ActivationRuntimeOp("relu"), "x")
    x = tb.Tensor([1.0, -2.0], dtype=dtype, requires_grad=True)
    graph.forward(x)
    graph.backward([3.0, 4.0])
    assert x.grad.dtype == dtype and x.grad.tolist() == [3.0, 0.0]


UNSOUND = {
    "cycle: a, b": cycle,
    "itself: a": lambda g: g.add(AddRuntimeOp(), "sum", "a", name="a"),
    "neither an input nor a node": lambda g: g.add(AddRuntimeOp(), "sum", "y", name="a"),
    "not connected": lambda g: (g.output("sum"), g.add(AddRuntimeOp(), "x", "x", name="a")),
}


@pytest.mark.parametrize("name", UNSOUND)
def test_graphs_that_cannot_run(name):
    graph = network()
    UNSOUND[name](graph)
    state = {key: value.numpy().tobytes() for key, value in graph.state_dict().items()}
    for call in (lambda: graph.forward(t(3, 4)), lambda: graph.profile(t(3, 4))):
        with pytest.raises(ArgumentError, match="cycle" if ":" in name else name):
            call()
    assert state == {key: value.numpy().tobytes() for key, value in graph.state_dict().items()}


OPS = {  # an op, and inputs that it does not take
    "flatten": (FlattenRuntimeOp((5, -1)), [t(2, 4)]),
    "flat numbers": (FlattenRuntimeOp(), [t()]),
    "sum": (AddRuntimeOp(), [t(2, 4), t(3, 4)]),
    "mean": (MeanRuntimeOp((2, 3)), [t(2, 4)]),
    "softmax": (SoftmaxRuntimeOp(3), [t(2, 4)]),
    "residual": (LinearRuntimeOp(4, 2, residual=True), [t(2, 4), t(4, 1)]),
    "convolution": (Conv2dRuntimeOp(3, 2, 3), [t(2, 4, 5, 5)]),
    "logits": (CrossEntropyRuntimeOp(), [t(2, 4), t(2)]),
    "classes": (CrossEntropyRuntimeOp(), [t(2, 4), tb.full((2,), 4, dtype=tb.int64)]),
}


@pytest.mark.parametrize("name", OPS)
def test_what_an_op_does_not_take_names_the_node(name):
    op, inputs = OPS[name]
    graph = RuntimeGraph(*(f"x{i}" for i in range(len(inputs))))
    graph.add(op, *graph.inputs, name="only")
    with pytest.raises(TinyBNError, match="node only" if name != "classes" else "class 4"):
        graph.forward(*inputs)


def test_names_inputs_and_dtypes_of_a_graph():
    for names in (("a", "a"), ("",), ("a.b",)):
        with pytest.raises(ArgumentError):
            RuntimeGraph(*names)
    with pytest.raises(DTypeError):
        RuntimeGraph(dtype=tb.int64)
    graph = RuntimeGraph("x", "unused")
    graph.add(ActivationRuntimeOp("relu"), "x")
    with pytest.raises(ArgumentError, match="unused"):
        graph.forward(t(2), t(2))
    with pytest.raises(ArgumentError, match="train"):
        network(train=False).backward(t(3, 4))


def test_state_goes_round():
    one, other = network(), network()
    one.forward(t(3, 4))
    assert other.load_state_dict(one.state_dict()) == ([], [])
    assert left(one) == left(other)
    assert np.array_equal(one.forward(t(5, 4)).numpy(), other.forward(t(5, 4)).numpy())


@devices
def test_profile_looking_and_results_change_nothing(device):
    """Also between a forward and its backward, whose saved values lie in planned memory."""
    seen = []
    for looks in (False, True):
        graph = network(device)
        for step in range(4):
            graph.forward(t(6, 4, seed=step, device=device))
            if looks:
                before = left(graph)
                rows = graph.profile(t(6, 4, seed=9, device=device), repeats=2).rows
                graph.profile(t(3, 4, seed=9, device=device), repeats=1)
                assert {row.node for row in rows} == {node.name for node in graph.nodes}
                assert all(row.microseconds >= 0 and row.bytes > 0 for row in rows)
                table, picture = str(graph), graph.to_dot()
                for node in graph.nodes:
                    assert node.name in table and f'"{node.name}"' in picture
                assert left(graph) == before
            graph.backward(t(6, 4, seed=step + 10, device=device))
        seen.append(left(graph))
    assert seen[0] == seen[1]


@devices
@pytest.mark.parametrize("kind", ["freeze", "thaw"])
def test_parameters_frozen_and_thawed_between_steps(kind, device):
    """a·b keeps b for a's gradient: where a begins to learn, b's memory must be its own."""

    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)
            self.rest = nn.Sequential(*(nn.Linear(4, 4) for _ in range(4)))

        def forward(self, x):
            return self.rest(self.a(x) * self.b(x))

    tb.manual_seed(0)
    models = [Product().to(device) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    for model in models:
        model.a.requires_grad_(kind == "freeze")
    graph = tb.graph.compile(models[0], t(3, 4, device=device), train=True)
    for step in range(10):
        if step == 5:
            for model in models:
                model.a.requires_grad_(kind == "thaw")
        x, dy = (t(3, 4, seed=step + k, device=device) for k in (0, 20))
        assert np.array_equal(graph.forward(x).numpy(), models[1](x).detach().numpy())
        for model in models:
            model.zero_grad()
        graph.backward(dy)
        models[1](x).backward(dy)
        for (name, a), b in zip(models[0].named_parameters(), models[1].parameters()):
            assert (a.grad is None) == (b.grad is None), (step, name)
            assert a.grad is None or np.array_equal(a.grad.numpy(), b.grad.numpy()), (step, name)


@devices
def test_one_weight_in_two_nodes(device):
    weight, bias = (nn.Parameter(t(*s, device=device)) for s in ((4, 4), (4,)))
    graph = RuntimeGraph(train=True, device=device)
    for source, name in (("x", "one"), ("one", "two")):
        graph.add(
            LinearRuntimeOp(4, 4), source, name=name, parameters=dict(weight=weight, bias=bias)
        )
    assert len(graph.parameters()) == 2 and len(graph.state_dict()) == 4
    x, dy = t(3, 4, seed=1, device=device), t(3, 4, seed=2, device=device)
    for _ in range(5):
        weight.grad = bias.grad = None
        graph.forward(x)
        graph.backward(dy)
        got = [p.grad.numpy() for p in (weight, bias)]
        weight.grad = bias.grad = None
        nn.functional.linear(nn.functional.linear(x, weight, bias), weight, bias).backward(dy)
        assert all(np.array_equal(a, p.grad.numpy()) for a, p in zip(got, (weight, bias)))


@devices
def test_steps_of_two_sizes_and_in_a_step_of_ones_own(device):
    """Replays, no_grad, a gradient of the input and the user's own recording, in any order."""
    graph, want = network(device), network(device)
    captured = tb.graph.capture(lambda x, dy: (graph.forward(x), graph.backward(dy))[0])
    kinds = ["plain"] * 5 + ["captured"] * 4 + ["no_grad", "plain", "leaf", "plain"] * 2
    for step, kind in enumerate(kinds):
        size = (6, 3)[step % 3 == 2]
        x, dy = (t(size, 4, seed=step + k, device=device) for k in (0, 50))
        for g in (graph, want):
            for p in g.parameters():
                p.grad = None
        x.requires_grad = kind == "leaf"
        if kind == "captured":
            y = captured(x, dy)
        elif kind == "no_grad":
            with tb.no_grad():
                y = graph.forward(x)
            graph.backward(dy)
        else:
            y = graph.forward(x)
            graph.backward(dy)
        got = y.numpy()
        # A graph of its own for each step is never replayed.
        alone = network(device)
        alone.load_state_dict(want.state_dict())
        assert np.array_equal(got, alone.forward(x.detach()).numpy()), (step, kind)
        alone.backward(dy)
        want.load_state_dict(alone.state_dict())
        for a, b in zip(graph.parameters(), alone.parameters()):
            assert np.array_equal(a.grad.numpy(), b.grad.numpy()), (step, kind)
        assert left(graph)[0] == left(want)[0], (step, kind)


@pytest.mark.gpu
def test_inputs_and_parameters_of_another_device():
    with pytest.raises(DeviceError):
        network().forward(t(3, 4, device="cuda"))
    with pytest.raises(StateError, match="weight is on cuda"):
        RuntimeGraph(device="cpu").add(
            LinearRuntimeOp(4, 4, bias=False), "x", parameters={"weight": t(4, 4, device="cuda")}
        )
