"""Graphs in files: the same bits from every op and dtype, and one clear error for each fault."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tinybn as tb
from tests.graph.networks import Net, images, recipes
from tinybn import graph as G
from tinybn import nn
from tinybn.errors import ArgumentError, DataError, StateError, TinyBNError
from tinybn.graph import loading, op_json
from tinybn.graph.lower import PLAIN
from tinybn.graph.ops import ACTIVATIONS
from tinybn.graph.runtime_op import Constant
from tinybn.kernels.windows import windows
from tinybn.tensor import archive
from tinybn.tensor.device import CPU
from tinybn.tensor.ops import elementwise, join, reduce

DTYPES = [tb.float16, tb.bfloat16, tb.float32, tb.float64]
devices = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def t(*shape, dtype=tb.float32, device="cpu", seed=0):
    values = np.random.default_rng(seed).uniform(0.5, 1.5, shape)
    return tb.Tensor(values.astype(dtype), device=device)


def bits(*tensors):
    return [(x.dtype, x.shape, x.numpy().tobytes()) for x in tensors]


def results(graph, *inputs):
    """What forward gives twice (the second time by a replay), as bits."""
    found = []
    for _ in range(2):
        y = graph.forward(*inputs)
        found += bits(*(y if isinstance(y, tuple) else (y,)))
    return found


def again(graph, path):
    graph.save(path)
    return G.load(path, device=graph.device)


@devices
@pytest.mark.parametrize("name", ["mlp", "cnn", "resnet8"])
def test_compiled_models_give_the_same_bits(name, device, tmp_path):
    tb.manual_seed(0)
    model = getattr(nn.models, name)().to(device).eval()
    x = tb.randn(3, 1, 28, 28, device=device)
    graph = tb.graph.compile(model, x)
    other = again(graph, tmp_path / "graph.safetensors")
    assert results(graph, x) == results(other, x)
    assert results(graph, x[:1]) == results(other, x[:1])
    assert str(graph) == str(other) and other.outputs == graph.outputs


OPS = {  # by name an op and the shapes of its inputs
    "linear": (G.LinearRuntimeOp(4, 3), [(2, 4)]),
    "finished linear": (
        G.LinearRuntimeOp(4, 3, False, activation="gelu", residual=True), [(2, 4), (2, 3)]),
    "conv": (G.Conv2dRuntimeOp(2, 4, 3, padding="same", dilation=2, groups=2), [(2, 2, 5, 6)]),
    "conv windows": (
        G.Conv2dRuntimeOp(2, 4, windows((2, 3), 1, (0, 1), 1), bias=False), [(2, 2, 5, 6)]),
    "max pool": (G.MaxPool2dRuntimeOp(2, ceil_mode=True), [(2, 2, 5, 6)]),
    "average pool": (G.AvgPool2dRuntimeOp((3, 2), 2, 1, divisor_override=5), [(2, 2, 5, 6)]),
    **{name: (G.ActivationRuntimeOp(name), [(2, 4)]) for name in ACTIVATIONS},
    "flatten": (G.FlattenRuntimeOp(), [(2, 2, 3)]),
    "reshape": (G.FlattenRuntimeOp((3, -1)), [(2, 2, 3)]),
    "power": (G.TapeRuntimeOp(elementwise.Pow, (0, Constant(2.5))), [(2, 4)]),
    "half": (G.TapeRuntimeOp(elementwise.Mul, (Constant(np.float32(0.1)), 0)), [(2, 4)]),
    "scale": (
        G.TapeRuntimeOp(elementwise.Mul, (0, "s"), {"s": G.Slot((4,), True, tb.float64)}),
        [(2, 4)]),
    "cast": (G.TapeRuntimeOp(elementwise.Cast, dtype=tb.bfloat16), [(2, 4)]),
    "join": (G.TapeRuntimeOp(join.Concatenate, (0, 1, 0), axis=1), [(2, 4), (2, 3)]),
    "sum": (G.TapeRuntimeOp(reduce.Sum, axes=(1,), keepdims=True), [(2, 4)]),
    "add": (G.AddRuntimeOp(), [(2, 4), (2, 4)]),
    "mean": (G.MeanRuntimeOp((2, 3)), [(2, 4, 3, 3)]),
    "softmax": (G.SoftmaxRuntimeOp(-1, log=True), [(2, 4)]),
    "batch norm": (G.BatchNormRuntimeOp(4, 1e-3, affine=False, residual=True), [(2, 4), (2, 4)]),
    "in training": (G.BatchNormRuntimeOp(4, momentum=None, training=True), [(2, 4)]),
    "statistics": (G.BatchNormStatsRuntimeOp(4, momentum=0.3), [(2, 4)]),
    "inference": (G.BatchNorm2dNchwInferenceRuntimeOp(4), [(2, 4, 3, 3)]),
    "normalize": (G.BatchNormNormalizeRuntimeOp(4), [(2, 4), (8,)]),
}  # fmt: skip


def alone(name, dtype, device="cpu", train=False):
    """A graph of one op with values of its own, and inputs for it."""
    op, shapes = OPS[name]
    graph = G.RuntimeGraph(
        *(f"x{i}" for i in range(len(shapes))), dtype=dtype, device=device, train=train
    )
    graph.add(op, *graph.inputs)
    graph.load_state_dict({
        key: np.int64(3) if value.dtype == tb.int64 else t(*value.shape, seed=i)
        for i, (key, value) in enumerate(graph.state_dict().items())
    })  # fmt: skip
    return graph, [t(*shape, dtype=dtype, device=device, seed=9) for shape in shapes]


@devices
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: dtype.name)
@pytest.mark.parametrize("name", OPS)
def test_each_op_gives_the_same_bits(name, dtype, device, tmp_path):
    graph, inputs = alone(name, dtype, device)
    other = again(graph, tmp_path / "graph.safetensors")
    assert other.dtype == graph.dtype
    assert bits(*other.state_dict().values()) == bits(*graph.state_dict().values())
    assert results(graph, *inputs) == results(other, *inputs)
    assert bits(*other.state_dict().values()) == bits(*graph.state_dict().values())


CONSTANTS = [
    True, 2**70, -0.0, float("inf"), float("nan"), "edge", None, (1, (2.5, None)),
    *(dtype.type(0.1) for dtype in DTYPES), np.int32(-1), np.int64(2**62), np.bool_(True),
    tb.bfloat16,
]  # fmt: skip


@pytest.mark.parametrize("value", CONSTANTS, ids=repr)
def test_a_constant_keeps_its_type_and_value(value):
    op = G.TapeRuntimeOp(elementwise.Mul, (0, Constant(value)), option=value)
    text = json.loads(json.dumps(op_json.as_json(op, "node")))
    other = op_json.from_json(text["op"], text["arguments"], "node")
    for found in (other.operands[1].value, other.options["option"]):
        assert type(found) is type(value) and repr(found) == repr(value)


def test_a_loss_with_weights_of_its_classes(tmp_path):
    graph = G.RuntimeGraph("x", "target", train=True, device="cpu")
    graph.add(G.CrossEntropyRuntimeOp(4, reduction="sum", label_smoothing=0.1), "x", "target")
    graph.load_state_dict({"CrossEntropy0.weight": t(4)})
    given = t(3, 4), tb.tensor([0, 3, 1], device="cpu")
    assert results(graph, *given) == results(again(graph, tmp_path / "loss"), *given)


def test_every_op_of_the_package_is_tried():
    tried = {type(op).__name__ for op, _ in OPS.values()} | {"CrossEntropyRuntimeOp"}
    assert tried == {name for name in G.__all__ if name.endswith("RuntimeOp")} - {"RuntimeOp"}
    assert set(op_json.KINDS) == tried
    assert op_json.tape_ops().items() >= {op.__name__: op for op in PLAIN}.items()


@settings(max_examples=20, deadline=None)
@given(recipe=recipes, extra=st.booleans())
def test_drawn_networks_give_the_same_bits(recipe, extra, tmp_path_factory):
    x = tb.Tensor(images(np.random.default_rng(0), 3, np.float32, "contiguous"), device="cpu")
    graph = tb.graph.compile(Net(recipe._replace(extra=extra)).to("cpu").eval(), x)
    other = again(graph, tmp_path_factory.mktemp("graphs") / "graph.safetensors")
    assert results(graph, x) == results(other, x)
    assert (other.notes, other.several) == (graph.notes, graph.several)


@devices
def test_a_graph_goes_on_training_as_it_would_have(device, tmp_path):
    tb.manual_seed(0)
    model = nn.models.mlp(hidden=(8,)).to(device)
    x, dy = t(6, 1, 28, 28, device=device), t(6, 10, device=device, seed=1)
    graph = tb.graph.compile(model, x, train=True)
    graph.parameters()[0].requires_grad = False
    other = again(graph, tmp_path / "graph.safetensors")
    for one in (graph, other):
        learning = [p for p in one.parameters() if p.requires_grad]
        one.optimizer = nn.optim.SGD(learning, lr=0.1, momentum=0.9)
    for _ in range(4):
        for one in (graph, other):
            one.optimizer.zero_grad()
        assert bits(graph.forward(x)) == bits(other.forward(x))
        for one in (graph, other):
            one.backward(dy)
            one.optimizer.step()
        assert bits(*other.state_dict().values()) == bits(*graph.state_dict().values())
    assert [p.requires_grad for p in other.parameters()] == [
        p.requires_grad for p in graph.parameters()
    ]


def test_a_shared_weight_stays_shared(tmp_path):
    weight = nn.Parameter(t(4, 4))
    graph = G.RuntimeGraph(train=True, device="cpu")
    op = G.LinearRuntimeOp(4, 4, bias=False)
    for source, name in (("x", "one"), ("one", "two")):
        graph.add(op, source, name=name, parameters={"weight": weight})
    other = again(graph, tmp_path / "graph.safetensors")
    assert list(archive.read(tmp_path / "graph.safetensors")[0]) == ["one.weight"]
    (parameter,) = other.parameters()
    assert all(node.parameters["weight"] is parameter for node in other.nodes)


def test_the_file_is_safetensors_that_others_read(tmp_path):
    graph, _ = alone("linear", tb.float32)
    graph.save(tmp_path / "graph.safetensors")
    state = tb.load(tmp_path / "graph.safetensors", device="cpu")
    assert {key: bits(v) for key, v in state.items()} == {
        key: bits(v) for key, v in graph.state_dict().items()
    }


class Foreign(G.LinearRuntimeOp):
    """Not tinybn's."""


class Doubled(elementwise.Add):
    """Not tinybn's."""


@pytest.mark.parametrize(
    "op, message",
    [
        (Foreign(4, 4), "node only is Foreign"),
        (G.TapeRuntimeOp(Doubled, (0, 0)), "op of node only is .*Doubled"),
        (G.TapeRuntimeOp(elementwise.Mul, (0, Constant(2j))), "operands of node only is 2j"),
    ],
    ids=["op", "tape", "constant"],
)
def test_what_no_file_can_hold(op, message, tmp_path):
    graph = G.RuntimeGraph(device="cpu")
    graph.add(op, "x", name="only")
    with pytest.raises(ArgumentError, match=message):
        graph.save(tmp_path / "graph")
    assert not list(tmp_path.iterdir())


def test_a_graph_that_cannot_run_is_not_saved(tmp_path):
    graph = G.RuntimeGraph(device="cpu")
    graph.add(G.AddRuntimeOp(), "x", "later", name="only")
    with pytest.raises(ArgumentError, match="later"):
        graph.save(tmp_path / "graph")
    with pytest.raises(ArgumentError, match="no folder"):
        alone("linear", tb.float32)[0].save(tmp_path / "none" / "graph")
    assert not list(tmp_path.iterdir())


# Faults


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """The arrays and the structure of a file."""
    graph = G.RuntimeGraph(device="cpu")
    conv = graph.add(G.Conv2dRuntimeOp(1, 2, 3, activation="relu"), "x", name="conv")
    flat = graph.add(G.FlattenRuntimeOp(), conv, name="flat")
    half = graph.add(G.TapeRuntimeOp(elementwise.Mul, (0, Constant(0.5))), flat, name="half")
    graph.add(G.LinearRuntimeOp(8, 2), half, name="linear")
    path = tmp_path_factory.mktemp("graphs") / "graph"
    graph.save(path)
    arrays, metadata = archive.read(path)
    return arrays, json.loads(metadata["tinybn.graph"])


def written(path, arrays, structure):
    text = structure if isinstance(structure, str) else json.dumps(structure)
    archive.write(path, arrays, {"tinybn.graph": text})
    return path


FAULTS = {
    "newer": (DataError, "version 2; wanted at most 1", lambda a, s: s.update(version=2)),
    "no version": (DataError, "damaged", lambda a, s: s.pop("version")),
    "no node": (DataError, "damaged", lambda a, s: (a.clear(), s.update(nodes=[]))),
    "op": (
        DataError, "node conv is 'SystemRuntimeOp'",
        lambda a, s: s["nodes"][0].update(op="SystemRuntimeOp")),
    "base": (DataError, "node conv is", lambda a, s: s["nodes"][0].update(op="RuntimeOp")),
    "option": (
        DataError, "options speed; wanted some of in_channels",
        lambda a, s: s["nodes"][0]["arguments"].update(speed=1)),
    "no option": (
        DataError, "damaged", lambda a, s: s["nodes"][3]["arguments"].pop("in_features")),
    "tape": (
        DataError, "damaged", lambda a, s: s["nodes"][2]["arguments"].update(op={"op": "eval"})),
    "reads": (DataError, "nothing", lambda a, s: s["nodes"][1].update(inputs=["nothing"])),
    "outputs": (DataError, "nothing", lambda a, s: s.update(outputs=["nothing"])),
    "missing": (
        StateError, "conv lacks the tensors conv.weight", lambda a, s: a.pop("conv.weight")),
    "extra": (StateError, "no node has the tensors more", lambda a, s: a.update(more=np.ones(2))),
    "shape": (
        StateError, r"weight has shape \(3,\), wanted \(2, 8\)",
        lambda a, s: a.update({"linear.weight": np.ones(3)})),
    "slot": (
        StateError, "missing: bias", lambda a, s: s["nodes"][3]["parameters"].pop("bias")),
    "windows": (
        DataError, "damaged",
        lambda a, s: s["nodes"][0]["arguments"].update(kernel_size={"windows": [[1, 1]] * 4})),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_error(name, parts, tmp_path):
    kind, message, spoil = FAULTS[name]
    arrays, structure = copy.deepcopy(parts)
    spoil(arrays, structure)
    path = written(tmp_path / "graph", arrays, structure)
    with pytest.raises(kind, match=message) as caught:
        G.load(path, device="cpu")
    assert str(path) in str(caught.value) and type(caught.value) is kind


def places(value, way=()):
    """The ways to all parts of a JSON value."""
    yield way
    parts = value.items() if isinstance(value, dict) else ()
    for key, part in enumerate(value) if isinstance(value, list) else parts:
        yield from places(part, (*way, key))


OTHERS = (None, True, -1, 3, 2**70, 1e300, "x", [], [1], {}, {"op": "Add"}, {"number": ["F32", 1]})


def test_no_value_in_the_wrong_place_gets_past_load_and_forward(parts, tmp_path):
    """Each part of the structure in turn is another JSON value: tinybn's errors, or a result."""
    arrays, structure = parts
    x = t(2, 1, 4, 4)
    refused = 0
    for way in places(structure):
        for other in OTHERS:
            spoiled = copy.deepcopy({"": structure})
            target = spoiled
            for key in ("", *way)[:-1]:
                target = target[key]
            target[("", *way)[-1]] = other
            graph = None
            try:
                text = json.dumps(spoiled[""])
                graph = loading.loaded("file", arrays, {"tinybn.graph": text}, CPU)
                graph.forward(x)
            except TinyBNError as error:
                refused += 1
                assert graph is not None or isinstance(error, (DataError, StateError)), way
    assert refused > 100


@pytest.mark.parametrize("text", ["", "{", "[" * 100_000, '"x"', "[]", "NaN", '{"version": true}'])
def test_metadata_that_is_no_structure(text, parts, tmp_path):
    with pytest.raises(DataError):
        G.load(written(tmp_path / "graph", parts[0], text), device="cpu")


def test_files_that_are_no_graph_or_cut_short(parts, tmp_path):
    with pytest.raises(FileNotFoundError):
        G.load(tmp_path / "none", device="cpu")
    with pytest.raises(ArgumentError, match="device"):
        G.load(tmp_path / "none", device="gpu")
    tb.save(tmp_path / "state", {"weight": t(3)})
    with pytest.raises(DataError, match="holds no graph"):
        G.load(tmp_path / "state", device="cpu")
    whole = written(tmp_path / "graph", *parts).read_bytes()
    for length in [*range(0, len(whole), 97), len(whole) - 1]:
        (tmp_path / "cut").write_bytes(whole[:length])
        with pytest.raises(DataError, match="not a whole safetensors file"):
            G.load(tmp_path / "cut", device="cpu")
