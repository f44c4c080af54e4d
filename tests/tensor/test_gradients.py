"""Every differentiable function of tinybn.tensor against central differences, from one table.

The table is held to the code by introspection: a public function of
``tinybn.tensor.ops``, or an Op class anywhere in ``tinybn.tensor``, that no
entry reaches fails the last two tests.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from tests.tensor.tensor_cases import EPS, FLOATS, as64
from tinybn.tensor import Tensor, float64, ops
from tinybn.tensor.gradcheck import gradcheck
from tinybn.tensor.ops import (
    activation,
    batch_norm,
    conv,
    cross_entropy,
    dropout,
    elementwise,
    index,
    join,
    matmul,
    pool,
    reduce,
    shape,
    softmax,
    unary,
)
from tinybn.tensor.random import manual_seed
from tinybn.tensor.tape import Node, Op

# (The attribute ``tinybn.tensor`` is the function; the package has the same name.)
PACKAGE = importlib.import_module("tinybn.tensor")
for found in pkgutil.walk_packages(PACKAGE.__path__, "tinybn.tensor."):
    importlib.import_module(found.name)  # so that __subclasses__ knows all ops


@dataclass(frozen=True)
class Entry:
    """One function with the inputs at which its gradient is checked.

    Attributes:
        name: of the public function, ``module.function``; or of what a Tensor does itself.
        fn: takes the inputs.
        shapes: of the inputs.
        low, high: the inputs' values, uniform between these.
    """

    name: str
    fn: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...] = ((3, 5),)
    low: float = -2.0
    high: float = 2.0

    def inputs(self, dtype: Any = float64, device: str = "cpu") -> list[Any]:
        rng = np.random.default_rng(len(self.name))
        values = [rng.uniform(self.low, self.high, s) for s in self.shapes]
        return [Tensor(v, dtype, device, requires_grad=True) for v in values]


def one(module: Any, name: str, low: float = -2.0, high: float = 2.0, **keywords: Any) -> Entry:
    """An entry for a function of one tensor."""
    title = f"{module.__name__.rpartition('.')[2]}.{name}"
    return Entry(title, lambda x: getattr(module, name)(x, **keywords), low=low, high=high)


def two(module: Any, name: str, low: float = -2.0, high: float = 2.0) -> Entry:
    """An entry for a function of two tensors, one of them broadcast."""
    title = f"{module.__name__.rpartition('.')[2]}.{name}"
    return Entry(title, getattr(module, name), ((3, 1), (2, 3, 4)), low, high)


def beside(x: Any, values: Any) -> Any:
    """A constant tensor on x's device."""
    return Tensor(np.asarray(values), device=x.device)


def where(x: Any) -> Any:
    return beside(x, [0, 2, 2, -1]), slice(None, None, -2)


def mask(x: Any) -> Any:
    return beside(x, np.arange(15).reshape(3, 5) % 2 == 0)


def frozen(x: Any, weight: Any, bias: Any) -> Any:
    kind = "float64" if x.dtype == float64 else "float32"
    mean = beside(x, [0.5, -1.0, 0.25]).astype(kind)
    var = beside(x, [0.5, 1.0, 2.0]).astype(kind)
    return batch_norm.batch_norm(x, mean, var, weight, bias)


def write_in_place(x: Any, value: Any) -> Any:
    y = x * 1.0
    y[1:] = value
    return y


def overwrite(x: Any, value: Any) -> Any:
    y = x * 1.0
    return y.copy_(value)


def dropped(x: Any) -> Any:
    manual_seed(0)  # the same mask each time
    return dropout.dropout(x, 0.5)


# Smooth functions are checked between -2 and 2; functions of positive numbers
# away from 0; functions with kinks at points that the seeds keep away from them.
TABLE = [
    *(one(activation, name) for name in ("relu", "sigmoid", "silu", "softplus", "gelu")),
    one(activation, "gelu", approximate="tanh"),
    one(activation, "softplus", beta=3.0, threshold=2.0),
    *(two(elementwise, name) for name in ("add", "sub", "mul", "maximum", "minimum")),
    two(elementwise, "div", 0.5), two(elementwise, "pow", 0.5), two(elementwise, "remainder", 1.1),
    Entry("elementwise.pow", lambda x: elementwise.pow(x, 3)),
    Entry("elementwise.pow", lambda x: elementwise.pow(2.0, x)),
    one(elementwise, "clip", min=-1.0, max=0.5),
    Entry("elementwise.clip", lambda x, a, b: elementwise.clip(x, a - 1, b + 1),
          ((5, 4), (4,), ())),
    Entry("elementwise.where", lambda a, b: elementwise.where(mask(a), a, b), ((3, 5), (5,))),
    one(elementwise, "clone"),
    *(one(unary, name) for name in (
        "neg", "abs_", "square", "sign", "floor", "ceil", "round", "exp", "expm1", "sin", "cos",
        "tanh",
    )),
    *(one(unary, name, 0.5) for name in ("log", "log1p", "sqrt", "rsqrt", "reciprocal")),
    *(one(reduce, name, axis=axis, keepdims=keepdims)
      for name in ("sum", "mean", "var", "std", "max", "min")
      for axis, keepdims in ((None, False), (0, True), ((1, 0), False), (-1, False))),
    one(reduce, "cumsum"), one(reduce, "cumsum", axis=1),
    *(one(softmax, name, dim=0) for name in ("softmax", "log_softmax")),
    one(softmax, "logsumexp", axis=0),
    Entry("shape.reshape", lambda x: shape.reshape(x, 5, -1)),
    one(shape, "flatten"), one(shape, "unsqueeze", axis=1), one(shape, "expand_dims", axis=(0, 2)),
    Entry("shape.squeeze", shape.squeeze, ((1, 3, 1),)),
    Entry("shape.permute", lambda x: shape.permute(x, 1, 2, 0), ((2, 3, 4),)),
    Entry("shape.transpose", lambda x: shape.transpose(x, 0, 2), ((2, 3, 4),)),
    Entry("shape.swapaxes", lambda x: shape.swapaxes(x, 0, -1), ((2, 3, 4),)),
    Entry("shape.moveaxis", lambda x: shape.moveaxis(x, 0, -1), ((2, 3, 4),)),
    Entry("shape.expand", lambda x: shape.expand(x, 2, -1, 4), ((3, 1),)),
    Entry("shape.broadcast_to", lambda x: shape.broadcast_to(x, (2, 3, 4)), ((3, 1),)),
    Entry("join.concatenate", lambda *x: join.concatenate(x, 1), ((3, 2), (3, 4))),
    Entry("join.cat", lambda *x: join.cat(x), ((3, 2), (1, 2))),
    Entry("join.stack", lambda *x: join.stack(x, 1), ((3, 2), (3, 2))),
    one(join, "split", size=2, axis=1), one(join, "chunk", chunks=2), one(join, "pad", pad_width=1),
    Entry("matmul.matmul", matmul.matmul, ((2, 3, 4), (4, 5))),
    Entry("matmul.matmul", matmul.matmul, ((1, 3, 4), (2, 4, 2))),
    Entry("matmul.matmul", matmul.matmul, ((4,), (4,))),
    Entry("matmul.linear", matmul.linear, ((3, 4), (2, 4), (2,))),
    Entry("index.getitem", lambda x: index.getitem(x, (slice(1, None), 2))),
    Entry("index.getitem", lambda x: index.getitem(x, where(x))),
    Entry("index.setitem", lambda x, v: index.setitem(x, where(x), v), ((3, 5), (4, 1))),
    Entry("index.take_along_axis",
          lambda x: index.take_along_axis(x, beside(x, [[1], [1], [4]]), 1)),
    Entry("Tensor.__setitem__", write_in_place, ((3, 5), (5,))),
    Entry("Tensor.copy_", overwrite, ((3, 5), (5,))),
]  # fmt: skip

# The network ops, beside their kernels' families.
NETWORK = [
    Entry("batch_norm.batch_norm",
          lambda x, w, b: batch_norm.batch_norm(x, None, None, w, b, training=True),
          ((5, 3), (3,), (3,))),
    Entry("batch_norm.batch_norm", frozen, ((2, 3, 2, 2), (3,), (3,))),
    Entry("conv.conv2d", lambda x, w, b: conv.conv2d(x, w, b, 2, 1, (1, 2), 2),
          ((2, 4, 5, 6), (6, 2, 3, 2), (6,))),
    Entry("conv.conv2d", lambda x, w: conv.conv2d(x, w, padding="same"), ((1, 4, 5), (2, 1, 2, 3))),
    Entry("pool.max_pool2d", lambda x: pool.max_pool2d(x, 3, 2, 1, ceil_mode=True),
          ((2, 2, 6, 5),)),
    Entry("pool.avg_pool2d", lambda x: pool.avg_pool2d(x, (2, 3), (1, 2), 1, True, False),
          ((2, 2, 6, 5),)),
    Entry("pool.adaptive_avg_pool2d", lambda x: pool.adaptive_avg_pool2d(x, (2, 3)),
          ((2, 2, 5, 7),)),
    Entry("cross_entropy.cross_entropy",
          lambda x: cross_entropy.cross_entropy(x, beside(x, [0, 4, 4]), label_smoothing=0.1)),
    Entry("dropout.dropout", dropped),
]  # fmt: skip

WRITES = [  # a view written in place, whose base and other views learn of it
    Entry("inplace.arithmetic", lambda x: augmented(x), ((2, 3),)),
]
ENTRIES = TABLE + NETWORK + WRITES


def augmented(x):
    y = x * 2
    row = y[1]
    y[:, 1] += 10.0
    return y, row.exp()


# What has no gradient by nature, and what the modules offer each other rather than the user.
NOT_DIFFERENTIABLE = {
    "elementwise.floor_divide", "elementwise.keep", "elementwise.cast",
    "reduce.argmax", "reduce.argmin", "reduce.any", "reduce.all",
    "cross_entropy.check_target_shape", "one_hot.one_hot",
    "index.write", "index.write_last", "index.fitting",
}  # fmt: skip
# Ops that change nothing but the device or the precision, which float64 on the CPU cannot show.
UNREACHED = {"ToDevice", "Cast"}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_gradient(entry):
    assert gradcheck(entry.fn, entry.inputs())


@pytest.mark.gpu
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_gradient_on_the_gpu(entry):
    assert gradcheck(entry.fn, entry.inputs(device="cuda"))


def results(entry: Entry, dtype: Any, device: str) -> list[np.ndarray]:
    """The outputs, and the gradients under a fixed upstream, in float64."""
    inputs = entry.inputs(dtype, device)
    made = entry.fn(*inputs)
    outputs = made if isinstance(made, tuple) else (made,)
    for y in outputs:
        upstream = np.linspace(-1, 2, y.size).reshape(y.shape)
        y.backward(Tensor(upstream, y.dtype, device), retain_graph=True)
    tensors = [*outputs, *(x.grad for x in inputs if x.grad is not None)]
    return [as64(t.detach().to("cpu")) for t in tensors]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS[:3], ids=lambda d: d.name)
@pytest.mark.parametrize("entry", [e for e in ENTRIES if e.fn is not dropped], ids=lambda e: e.name)
def test_the_gpu_agrees_with_the_cpu(entry, dtype):
    # The same formulas in the same accumulation dtype, some of them rounded at
    # each step in the dtype itself: a few eps of the largest value.
    pairs = zip(results(entry, dtype, "cuda"), results(entry, dtype, "cpu"), strict=True)
    for got, want in pairs:
        finite = np.isfinite(want)  # what overflows does so on both
        np.testing.assert_array_equal(got[~finite], want[~finite])
        largest = np.max(np.abs(want[finite]), initial=0)
        assert np.all(np.abs(got[finite] - want[finite]) <= 16 * EPS[dtype] * (1 + largest))


@pytest.mark.parametrize("dtype", FLOATS[:3], ids=lambda d: d.name)
@pytest.mark.parametrize("entry", ENTRIES, ids=lambda e: e.name)
def test_gradients_keep_the_dtype(entry, dtype):
    inputs = entry.inputs(dtype)
    made = entry.fn(*inputs)
    for y in made if isinstance(made, tuple) else (made,):
        y.backward(Tensor(np.ones(y.shape), y.dtype), retain_graph=True)
    reached = [x for x in inputs if x.grad is not None]  # nothing reaches what copy_ overwrites
    assert reached and all((x.grad.dtype, x.grad.shape) == (dtype, x.shape) for x in reached)


def ops_of(tensor: Any) -> set[str]:
    """The names of the ops in a tensor's graph."""
    names, waiting = set(), [tensor._node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Node):
            names.add(node.op.__name__)
            waiting.extend(node.parents)
    return names


def test_every_op_has_an_entry():
    defined = {op.__name__ for op in all_ops(Op) if op.__module__.startswith("tinybn.tensor")}
    reached = set()
    for entry in ENTRIES:
        result = entry.fn(*entry.inputs())
        for y in result if isinstance(result, tuple) else (result,):
            reached |= ops_of(y)
    assert defined - reached - UNREACHED == set()


def all_ops(base: type) -> set[type]:
    return {sub for cls in base.__subclasses__() for sub in {cls, *all_ops(cls)}}


def test_every_public_function_has_an_entry():
    defined = set()
    for found in pkgutil.iter_modules(ops.__path__):
        if found.name.startswith("_") or found.name == "compare":  # comparisons give booleans
            continue
        module = importlib.import_module(f"{ops.__name__}.{found.name}")
        for name, function in inspect.getmembers(module, inspect.isfunction):
            if function.__module__ == module.__name__ and not name.startswith("_"):
                defined.add(f"{found.name}.{name}")
    assert defined - {entry.name for entry in ENTRIES} - NOT_DIFFERENTIABLE == set()
