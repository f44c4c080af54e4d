"""What cannot be made a graph is one GraphError with the module's path; what can, can."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, DTypeError, GraphError

F = nn.functional


class Inner(nn.Module):
    """A layer, and a function of it and the input."""

    def __init__(self, function):
        super().__init__()
        self.fc, self.bn = nn.Linear(4, 4), nn.BatchNorm1d(4)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


class Outer(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.inner = Inner(function)

    def forward(self, x):
        return self.inner(x)


def x(n=3):
    return tb.Tensor(np.random.default_rng(n).standard_normal((n, 4)).astype(np.float32))


def inplace(s, x):
    y = s.fc(x)
    y += 1
    return y


def item(s, x):
    y = s.fc(x)
    y[0] = 0
    return y


def counts(s, x):
    s.bn.running_mean.add_(1)
    return s.fc(x)


REFUSED = {  # by what the message says
    "item()": lambda s, x: x * x.sum().item(),
    "int()": lambda s, x: x * int(x.sum()),
    "tolist()": lambda s, x: x * x.sum().tolist(),
    "numpy()": lambda s, x: x * float(x.numpy().sum()),
    "NumPy": lambda s, x: x * float(np.asarray(x).sum()),
    "greater reads": lambda s, x: s.fc(x) if x.sum() > 0 else s.fc(x) * 2,
    "less_equal reads": lambda s, x: tb.where(x <= 0, x, s.fc(x)),
    "equal reads": lambda s, x: s.fc(x) if 3 in x else s.fc(x * 2),
    "isnan reads": lambda s, x: tb.where(tb.isnan(x), 0.0, x),
    "argmax reads": lambda s, x: s.fc(x) * x.argmax(1, keepdims=True),
    "any reads": lambda s, x: s.fc(x) * x.any(),
    "floor_divide reads": lambda s, x: s.fc(x // 2),
    "one_hot reads": lambda s, x: F.one_hot(x.astype(tb.int64), 9).sum(2) + x,
    "add_ writes in place": inplace,
    "item assignment writes in place": item,
    r"add_ writes in place to a tensor of shape \(4,\)": counts,
    "Expand is not known to graphs; wanted some of Abs, ": lambda s, x: s.fc(x).expand(3, 4),
    "changes the first axis": lambda s, x: s.fc(x).reshape(-1),
    "Dropout": lambda s, x: F.dropout(x, 0.5, training=True),
    "a weight that depends on the input": lambda s, x: F.linear(x, s.fc(x)),
}
OUTSIDE = {  # found after the model's code has run
    "returns Parameter": lambda s, x: s.fc.weight,
    "returns Tensor": lambda s, x: x,
    "returns dict": lambda s, x: {"a": s.fc(x)},
    "returns float": lambda s, x: 3.0,
    "returns tuple": lambda s, x: (s.fc(x), (x,)),
    "returns nothing": lambda s, x: (),
    "another result than it on a batch of 1": lambda s, x: s.fc(x) * len(x),
    r"takes no batch of 1, .*\(node Conc": lambda s, x: tb.cat([s.fc(x), tb.ones(len(x), 2)], 1),
    "result than it on a batch of 1;": lambda s, x: s.fc(x) if len(x) > 1 else s.fc(2 * x),
    "another result": lambda s, x: s.fc(x) + tb.randn(4),
}


@pytest.mark.parametrize("train", [False, True])
@pytest.mark.parametrize("message", REFUSED)
def test_what_is_refused_names_the_module(message, train):
    model = Outer(REFUSED[message])
    model.train(train)
    before = {name: t.numpy() for name, t in model.state_dict().items()}
    with pytest.raises(GraphError, match=rf"^Outer\.inner: .*{message}".replace("()", r"\(\)")):
        tb.graph.compile(model, x(), train=train)
    for name, value in model.state_dict().items():
        assert np.array_equal(value.numpy(), before[name]), name
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.parametrize("message", OUTSIDE)
def test_what_is_found_afterwards_names_the_model(message):
    with pytest.raises(GraphError, match=f"Outer.*{message}"):
        tb.graph.compile(Outer(OUTSIDE[message]).eval(), x())


def test_training_mode_is_refused_for_inference():
    model = Outer(lambda s, x: s.bn(s.fc(x)))
    with pytest.raises(GraphError, match=r"Outer\.inner\.bn: .*eval"):
        tb.graph.compile(model, x())
    mean = model.inner.bn.running_mean.numpy()
    assert np.array_equal(mean, np.zeros(4)) and model.inner.bn.num_batches_tracked.item() == 0


def test_statistics_of_a_result_that_is_not_used():
    """The tape updates them, and a graph would not."""
    model = Outer(lambda s, x: (s.bn(x), s.fc(x))[1])
    with pytest.raises(GraphError, match="Outer updates running statistics"):
        tb.graph.compile(model, x(), train=True)
    assert model.inner.bn.num_batches_tracked.item() == 0
    graph = tb.graph.compile(model.eval(), x())
    assert len(graph.nodes) == 1


@pytest.mark.parametrize(
    "weight",
    [lambda s: s.fc.weight * 2, lambda s: s.fc.weight @ s.fc.weight, lambda s: s.fc.weight.T],
    ids=["product", "matmul", "view"],
)
def test_weights_that_are_computed(weight):
    """Constants in inference; a graph that trains would lose their gradients."""
    model = Outer(lambda s, x: F.linear(x, weight(s)))
    graph = tb.graph.compile(model.eval(), x())
    for n in (2, 3, 5):
        with tb.no_grad():
            assert np.array_equal(graph.forward(x(n)).numpy(), model(x(n)).numpy())
    with pytest.raises(GraphError, match=r"^Outer\.inner: .*parameters alone"):
        tb.graph.compile(model, x(), train=True)


BROADCAST = {
    "row": lambda s, x: s.fc(x) + x.mean(1, keepdims=True),
    "before": lambda s, x: x.mean(1, keepdims=True) + s.fc(x),
    "wider": lambda s, x: s.fc(x) + x.astype(tb.float64),
    "activated": lambda s, x: F.relu(s.fc(x) + x.mean(1, keepdims=True)),
    "normalised": lambda s, x: F.relu(s.bn(s.fc(x)) + x.mean(1, keepdims=True)),
    "itself": lambda s, x: (lambda y: y + y)(s.fc(x)),
    "thrice": lambda s, x: (lambda y: F.relu(y + y) * y)(s.bn(s.fc(x))),
    "residual of itself": lambda s, x: (lambda y: s.bn(y, residual=y, activation="relu"))(s.fc(x)),
    "twice returned": lambda s, x: (lambda y: (y, F.relu(y), y))(s.fc(x)),
    "a list of one": lambda s, x: [s.fc(x)],
    "wide input": lambda s, x: F.relu(F.linear(x.astype(tb.float64), s.fc.weight, s.fc.bias)),
    "narrow input": lambda s, x: F.relu(F.linear(x.astype(tb.float16), s.fc.weight, s.fc.bias)),
}


@pytest.mark.parametrize("name", BROADCAST)
def test_sums_that_are_not_joined_and_tensors_used_twice(name):
    model = Outer(BROADCAST[name]).eval()
    graph = tb.graph.compile(model, x())
    for n in (1, 3, 6):
        with tb.no_grad():
            want, got = model(x(n)), graph.forward(x(n))
        assert isinstance(got, tuple) == isinstance(want, (tuple, list))
        for a, b in zip(*((y if graph.several else (y,)) for y in (got, want))):
            assert a.dtype == b.dtype
            # Four sums of at most 10 numbers, joined or not, of a size of at most 10.
            assert np.abs(a.numpy() - b.numpy()).max() <= 4 * 10 * 10 * 2.0**-23


@pytest.mark.parametrize(("variance", "noted"), [(1.0, False), (1e-12, True), (0.0, True)], ids=str)
def test_batch_norm_is_folded_where_that_is_as_exact(variance, noted):
    """Where values and mean are alike and the spread is tiny, the folded product cancels."""
    tb.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, eps=1e-14)).eval()
    with tb.no_grad():
        model[1].running_var.fill_(variance)
        model[1].running_mean.copy_(model[0](x()).mean(0))
        if noted:
            model[0].weight.fill_(1e-7)
            model[0].bias.fill_(100.0)
            model[1].running_mean.fill_(100.0)
    graph = tb.graph.compile(model, x())
    assert (len(graph.nodes), len(graph.notes)) == ((2, 1) if noted else (1, 0))
    assert (
        not noted or "is not folded into Linear0" in graph.notes[0] and graph.notes[0] in str(graph)
    )
    with tb.no_grad():
        want = model(x()).numpy()
    assert np.abs(graph.forward(x()).numpy() - want).max() <= 64 * 2.0**-23 * np.abs(want).max()


@pytest.mark.parametrize("train", [False, True])
def test_weights_of_classes_that_depend_on_the_input(train):
    labels = tb.tensor([0, 1, 2])
    with pytest.raises(GraphError, match="CrossEntropy has a weight that depends on the input"):
        tb.graph.compile(
            lambda x, t: F.cross_entropy(x, t, x.exp().sum(0)), [x(), labels], train=train
        )


def test_arguments():
    with pytest.raises(ArgumentError, match="function"):
        tb.graph.compile(3, x())
    for example in (3, None, [], np.ones((2, 4)), tb.zeros(0, 4), tb.tensor(1.0), [x(), 3]):
        with pytest.raises(DTypeError, match="example is not"):
            tb.graph.compile(nn.ReLU(), example)


def test_a_function_names_the_module_of_the_model_that_it_closes_over():
    model = Outer(lambda s, x: s.fc(x) * x.sum().item())
    with pytest.raises(GraphError, match=r"^<lambda>\.model\.inner: item\(\)"):
        tb.graph.compile(lambda x: model(x).sum(), x())
