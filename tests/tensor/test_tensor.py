"""The Tensor class: making it, looking at it, turning it into other things."""

from __future__ import annotations

import copy
import math
import operator
import pickle
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinybn as tb
from tests.tensor.tensor_cases import DTYPES, FLOATS
from tinybn.errors import (
    ArgumentError,
    DTypeError,
    IndexOutOfRange,
    ShapeError,
    StateError,
    TapeError,
)
from tinybn.tensor.random import Generator, default_generator

# Making


@pytest.mark.parametrize(
    ("data", "dtype"),
    [
        (1.5, tb.float32),
        (3, tb.int64),
        (True, tb.bool_),
        ([1.5, 2], tb.float32),
        ([[1, 2], [3, 4]], tb.int64),
        ([True, False], tb.bool_),
        ([], tb.float32),
        (np.float64(1.5), tb.float64),
        ([np.float64(1.5)], tb.float64),
        (np.ones(2, np.float64), tb.float64),
        ([np.ones(2, np.float64)], tb.float64),
        (np.ones(2, np.int32), tb.int32),
        (np.ones(2, ml_dtypes.bfloat16), tb.bfloat16),
        (range(3), tb.int64),
    ],
    ids=repr,
)
def test_dtype_of_new_tensors(data, dtype):
    assert tb.Tensor(data).dtype == dtype
    assert tb.tensor(data).dtype == dtype


def test_wanted_dtype_keeps_all_digits():
    assert tb.tensor(0.1, dtype=tb.float64).item() == 0.1
    assert tb.tensor([0.1], dtype="float64").item() == 0.1
    assert tb.tensor([1, 2], dtype=tb.float16).dtype == tb.float16
    assert tb.tensor([0.1], dtype=np.float32).item() == np.float32(0.1)
    assert tb.tensor(2**62 + 1).item() == 2**62 + 1
    assert tb.tensor(np.array([1, 255], np.uint8), dtype=tb.float32).tolist() == [1, 255]


def test_data_is_copied():
    array = np.ones(3)
    x = tb.tensor(array)
    array[0] = 9
    assert x.tolist() == [1, 1, 1]
    y = tb.Tensor(x)
    y[0] = 5
    assert x.tolist() == [1, 1, 1]
    assert tb.Tensor.wrap(array).data is array
    assert tb.as_tensor(array).data is array
    assert tb.as_tensor(x) is x
    assert tb.as_tensor(x, dtype=tb.float16).dtype == tb.float16


def test_copy_of_a_tensor_that_requires_a_gradient_is_a_leaf():
    x = tb.tensor([1.0], requires_grad=True)
    assert tb.Tensor(x * 2).is_leaf and not tb.Tensor(x).requires_grad


@pytest.mark.parametrize(
    "data", [np.ones(2, np.uint8), np.ones(2, complex), ["a"], "text", None, {}]
)
def test_dtypes_that_are_not_supported(data):
    with pytest.raises(DTypeError, match="supported|data type"):
        tb.Tensor(data)


def test_text_and_objects_are_not_cast():
    for data in ("1.5", ["1"], None, object(), 1j):
        with pytest.raises(TypeError):
            tb.Tensor(data, dtype=tb.float32)


def test_ragged_data():
    with pytest.raises(ShapeError, match="rectangular"):
        tb.tensor([[1.0], [2.0, 3.0]])


def test_requires_grad():
    assert tb.ones(2, requires_grad=True).requires_grad
    with pytest.raises(DTypeError, match="int64"):
        tb.tensor([1], requires_grad=True)
    x = tb.tensor([1])
    with pytest.raises(TypeError):
        x.requires_grad = True
    assert not x.requires_grad
    y = tb.ones(2).requires_grad_()
    assert y.requires_grad
    y.requires_grad = False
    z = tb.ones(2, requires_grad=True) * 2
    with pytest.raises(TapeError, match="detach"):
        z.requires_grad = False
    z.requires_grad = True


def test_creation():
    assert tb.zeros(2, 3).tolist() == [[0] * 3] * 2
    assert tb.ones((2,)).dtype == tb.float32
    assert tb.empty(2, 0).shape == (2, 0)
    assert tb.zeros().shape == () and tb.zeros(()).shape == ()
    assert tb.full((2,), 3).dtype == tb.int64 and tb.full(2, 0.5).tolist() == [0.5, 0.5]
    assert tb.eye(2, 3).tolist() == [[1, 0, 0], [0, 1, 0]]
    assert tb.arange(3).tolist() == [0, 1, 2] and tb.arange(3).dtype == tb.int64
    assert tb.arange(1, 2, 0.25).tolist() == [1, 1.25, 1.5, 1.75]
    assert tb.arange(3.0).dtype == tb.float32 and tb.arange(3, dtype=tb.float16).dtype == tb.float16
    assert tb.arange(3, 0, -1).tolist() == [3, 2, 1]
    assert tb.linspace(0, 1, 5).tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert tb.zeros(2, dtype=tb.bfloat16).dtype == tb.bfloat16
    for wrong in ((-1,), (1.5,), ("a",)):
        with pytest.raises(ShapeError, match="shape"):
            tb.zeros(*wrong)
    with pytest.raises(ArgumentError):
        tb.arange(0, 3, 0)
    with pytest.raises(ArgumentError):
        tb.linspace(0, 1, -1)
    with pytest.raises(DTypeError):
        tb.zeros(2, dtype="uint8")


def test_creation_like_another():
    x = tb.ones(2, 3, dtype=tb.float16)
    for like in (tb.zeros_like, tb.ones_like, tb.empty_like, tb.rand_like, tb.randn_like):
        y = like(x)
        assert (y.shape, y.dtype, y.device) == (x.shape, x.dtype, x.device)
        assert like(x, dtype=tb.float64).dtype == tb.float64
    assert tb.full_like(x, 2).tolist() == [[2] * 3] * 2
    assert tb.zeros_like(x).tolist() == [[0] * 3] * 2


# Random numbers


def test_the_same_seed_gives_the_same_numbers():
    tb.manual_seed(7)
    first = [tb.rand(5), tb.randn(5), tb.randint(100, size=(5,)), tb.randperm(5)]
    tb.manual_seed(7)
    again = [tb.rand(5), tb.randn(5), tb.randint(100, size=(5,)), tb.randperm(5)]
    for a, b in zip(first, again, strict=True):
        assert a.tolist() == b.tolist()
    assert tb.rand(5).tolist() != first[0].tolist()
    tb.manual_seed(8)
    assert tb.rand(5).tolist() != first[0].tolist()


def test_random_distributions():
    tb.manual_seed(0)
    n = 20_000
    uniform, normal = tb.rand(n).numpy(), tb.randn(n).numpy()
    # Standard errors: of the mean σ/√n, of the variance about 1.4 σ²/√n; five of each.
    assert abs(uniform.mean() - 0.5) < 5 * math.sqrt(1 / 12 / n)
    assert uniform.min() >= 0 and uniform.max() < 1
    assert abs(normal.mean()) < 5 / math.sqrt(n)
    assert abs(normal.var() - 1) < 5 * math.sqrt(2 / n)
    assert np.abs(normal).max() > 3
    whole = tb.randint(2, 5, (n,)).numpy()
    assert set(whole) == {2, 3, 4}
    assert sorted(tb.randperm(50).tolist()) == list(range(50))
    for dtype in FLOATS:
        assert tb.randn(3, dtype=dtype).dtype == dtype
        assert (tb.rand(1000, dtype=dtype) < 1).all()
    for wrong in (lambda: tb.randint(3, 3), lambda: tb.randperm(-1)):
        with pytest.raises(ArgumentError):
            wrong()
    with pytest.raises(DTypeError, match="int64"):
        tb.rand(2, dtype=tb.int64)


def test_generator_state():
    generator = Generator("cpu", seed=3)
    assert generator.reserve(5) == (3, 0)  # five numbers use two counters of four
    assert generator.reserve(4) == (3, 2)
    assert generator.reserve(0) == (3, 3)
    state = generator.get_state()
    assert state == {"seed": 3, "offset": 3}
    expected = [generator.next_seed() for _ in range(3)]
    assert len(set(expected)) == 3 and all(0 <= s < 2**63 for s in expected)
    other = Generator("cpu")
    other.set_state(state)
    assert [other.next_seed() for _ in range(3)] == expected
    assert generator.manual_seed(3).offset == 0
    tb.rand(8, generator=generator)
    assert generator.offset == 2
    for wrong in (-1, 2**63, 1.5, True, "a"):
        with pytest.raises(ArgumentError, match="seed"):
            generator.manual_seed(wrong)
    with pytest.raises(StateError, match="offset"):
        generator.set_state({"seed": 1})
    assert "offset=2" in repr(generator)


def test_manual_seed_reaches_the_default_generator():
    generator = default_generator("cpu")
    tb.manual_seed(11)
    assert default_generator("cpu") is generator
    assert generator.get_state() == {"seed": 11, "offset": 0}


# Looking


def test_attributes():
    x = tb.tensor([[1.0, 2.0, 3.0]], dtype=tb.float64)
    assert (x.shape, x.ndim, x.size, x.dtype, str(x.device)) == ((1, 3), 2, 3, tb.float64, "cpu")
    assert x.T.shape == (3, 1) and x.is_contiguous() and not tb.ones(2, 3).T.is_contiguous()
    assert x.data_ptr() == x.data.ctypes.data
    assert x.grad is None and x.is_leaf


def test_grad_is_checked():
    x = tb.zeros(2, requires_grad=True)
    x.grad = tb.ones(2)
    x.grad = None
    with pytest.raises(ShapeError, match=r"\(3,\).*\(2,\)"):
        x.grad = tb.ones(3)
    with pytest.raises(DTypeError, match="float64"):
        x.grad = tb.ones(2, dtype=tb.float64)
    with pytest.raises(DTypeError, match="ndarray"):
        x.grad = np.ones(2)
    assert x.grad is None


def test_data_can_be_replaced_by_its_like():
    x = tb.zeros(2)
    x.data = np.ones(2, np.float32)
    assert x.tolist() == [1, 1]
    x.data = tb.zeros(2)
    assert isinstance(x.data, np.ndarray)
    with pytest.raises(ShapeError):
        x.data = np.ones(3, np.float32)
    with pytest.raises(ShapeError):
        x.data = np.ones(2)
    with pytest.raises(DTypeError):
        x.data = [1.0, 2.0]


@pytest.mark.parametrize(
    ("x", "text"),
    [
        (lambda: tb.tensor([1.0, 2.5]), "tensor([1. , 2.5])"),
        (lambda: tb.tensor(3), "tensor(3)"),
        (lambda: tb.tensor([True]), "tensor([ True])"),
        (lambda: tb.tensor([1.5], dtype=tb.bfloat16), "tensor([1.5], dtype=bfloat16)"),
        (lambda: tb.zeros(0), "tensor([], dtype=float32)"),
        (lambda: tb.tensor([1.0], requires_grad=True), "tensor([1.], requires_grad=True)"),
        (lambda: tb.tensor([1.0], requires_grad=True) * 2, "tensor([2.], op=Mul)"),
    ],
)
def test_repr(x, text):
    assert repr(x()) == text


def test_format():
    assert f"{tb.tensor(1.234):.2f}" == "1.23"
    assert f"{tb.tensor(3):03d}" == "003"
    assert f"{tb.tensor([1.0])}" == "tensor([1.])"
    with pytest.raises(ShapeError):
        f"{tb.tensor([1.0, 2.0]):.2f}"


# Python's protocols


def test_numbers_from_tensors():
    one = tb.tensor([2.5])
    assert one.item() == 2.5 and float(one) == 2.5 and int(one) == 2 and bool(one)
    assert type(tb.tensor(1.0, dtype=tb.bfloat16).item()) is float
    assert type(tb.tensor(1).item()) is int and type(tb.tensor(True).item()) is bool
    assert operator.index(tb.tensor(3)) == 3 and [10, 20][tb.tensor(1)] == 20
    assert not tb.tensor(0.0) and tb.tensor(math.nan)
    assert math.isnan(float(tb.tensor(math.nan)))
    two = tb.ones(2)
    for fails in (two.item, lambda: float(two), lambda: int(two), lambda: bool(two)):
        with pytest.raises(ShapeError, match=r"\(2,\)"):
            fails()
    for empty in (lambda: bool(tb.zeros(0)), lambda: tb.zeros(0).item()):
        with pytest.raises(ShapeError):
            empty()
    with pytest.raises(DTypeError, match="float32"):
        operator.index(one)


def test_sequences():
    x = tb.tensor([[1, 2], [3, 4]])
    assert len(x) == 2 and [row.tolist() for row in x] == [[1, 2], [3, 4]]
    assert x.tolist() == [[1, 2], [3, 4]]
    assert 3 in x and 5 not in x
    with pytest.raises(IndexOutOfRange):
        x[2]
    scalar = tb.tensor(1)
    with pytest.raises(TypeError):
        len(scalar)
    with pytest.raises(TypeError):
        iter(scalar)


def test_tensors_are_hashed_by_identity():
    a, b = tb.ones(1), tb.ones(1)
    assert len({a, b, a}) == 2 and hash(a) != hash(b)
    assert {a: 1}[a] == 1


def test_numpy():
    x = tb.tensor([1.0, 2.0])
    x.numpy()[0] = 5
    assert x.tolist() == [5, 2]  # the same memory
    w = tb.ones(2, requires_grad=True)
    for fails in (w.numpy, lambda: np.asarray(w)):
        with pytest.raises(TapeError, match="detach"):
            fails()
    assert w.detach().numpy().tolist() == [1, 1]


def test_detach_shares_memory_and_leaves_the_tape():
    x = tb.ones(2, requires_grad=True)
    y = (x * 2).detach()
    assert y.is_leaf and not y.requires_grad
    z = x.detach()
    assert np.shares_memory(z.data, x.data) and z._version is x._version


def test_clone_contiguous_and_views():
    x = tb.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    y = x.clone()
    assert not np.shares_memory(x.data, y.data)
    y.sum().backward()
    assert x.grad.tolist() == [[1, 1], [1, 1]]
    assert x.contiguous() is x
    t = x.T.contiguous()
    assert t.is_contiguous() and t.tolist() == [[1, 3], [2, 4]]
    assert np.shares_memory(x.T.data, x.data) and x.T._version is x._version


# Copies of the object


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_pickle_and_deepcopy(dtype):
    x = tb.tensor([[1, 0], [1, 1]], dtype=dtype)
    if dtype in FLOATS:
        x.requires_grad = True
        x.grad = tb.ones_like(x)
    for y in (pickle.loads(pickle.dumps(x)), copy.deepcopy(x)):
        assert y.dtype == dtype and y.requires_grad == x.requires_grad
        assert y.tolist() == x.tolist() and not np.shares_memory(x.data, y.data)
    if dtype in FLOATS:
        assert copy.deepcopy(x).grad.tolist() == [[1, 1], [1, 1]]
        assert copy.deepcopy(x).grad is not x.grad


def test_deepcopy_keeps_shared_tensors_shared():
    x = tb.ones(1)
    a, b = copy.deepcopy([x, x])
    assert a is b


def test_inner_tensors_are_neither_pickled_nor_copied_deeply():
    y = tb.ones(1, requires_grad=True) * 2
    with pytest.raises(TapeError, match="leaf"):
        copy.deepcopy(y)
    with pytest.raises(TapeError, match="leaf"):
        pickle.dumps(y)


class Named(tb.Tensor):
    """A subclass with an attribute, as nn.Parameter may be."""


def test_subclasses_keep_their_class_and_attributes():
    x = Named([1.0], requires_grad=True)
    x.label = "weight"
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x))):
        assert type(y) is Named and y.label == "weight" and y.requires_grad
    assert type(x * 2) is tb.Tensor


# Every method is there


@settings(max_examples=5)
@given(shape=hnp.array_shapes(min_dims=2, max_dims=2, max_side=4), seed=st.integers(0, 2**16))
def test_methods_are_the_functions(shape, seed):
    values = np.random.default_rng(seed).uniform(0.5, 2, shape)
    x = tb.tensor(values)
    for name in ("exp", "expm1", "log", "log1p", "sqrt", "sin", "cos", "tanh", "abs", "sign",
                 "floor", "ceil", "square", "reciprocal"):  # fmt: skip
        np.testing.assert_allclose(getattr(x, name)().data, getattr(np, name)(values), rtol=1e-14)
    for name in ("sum", "mean", "max", "min", "argmax", "argmin", "any", "all", "cumsum"):
        np.testing.assert_allclose(getattr(x, name)().data, getattr(np, name)(values), rtol=1e-14)
        np.testing.assert_allclose(
            getattr(x, name)(axis=1).data, getattr(np, name)(values, axis=1), rtol=1e-14
        )
    np.testing.assert_allclose(x.var(correction=0).data, values.var(), rtol=1e-9, atol=1e-14)
    np.testing.assert_allclose(x.std(0, correction=0).data, values.std(0), rtol=1e-7, atol=1e-14)
    np.testing.assert_allclose(x.rsqrt().data, values**-0.5, rtol=1e-14)
    np.testing.assert_allclose(x.neg().data, -values)
    np.testing.assert_allclose(x.logsumexp().data, np.log(np.exp(values).sum()), rtol=1e-13)
    np.testing.assert_allclose(x.softmax(0).sum(0).data, np.ones(shape[1]), rtol=1e-13)
    np.testing.assert_allclose(x.log_softmax().exp().data, x.softmax().data, rtol=1e-13)
    np.testing.assert_allclose((x @ x.T).data, values @ values.T, rtol=1e-13)
    np.testing.assert_allclose((values.T @ x).data, values.T @ values, rtol=1e-13)
    np.testing.assert_allclose(x.matmul(x.T).data, values @ values.T, rtol=1e-13)
    for got, wanted in [
        (x.add(1), values + 1), (x.sub(1), values - 1), (x.mul(2), values * 2),
        (x.div(2), values / 2), (x.pow(2), values**2), (x.maximum(1), np.maximum(values, 1)),
        (x.minimum(1), np.minimum(values, 1)), (x.relu(), values), (+x, values),
        (x.sigmoid(), 1 / (1 + np.exp(-values))), (x.reshape(-1), values.reshape(-1)),
        (x.view(-1, 1), values.reshape(-1, 1)), (x.flatten(), values.reshape(-1)),
        (x.unsqueeze(0), values[None]), (x.unsqueeze(0).squeeze(0), values),
        (x.permute(1, 0), values.T), (x.transpose(0, 1), values.T), (x.swapaxes(0, 1), values.T),
        (x.moveaxis(0, 1), values.T), (x.expand(2, *shape), np.stack([values] * 2)),
        (x.broadcast_to((2, *shape)), np.stack([values] * 2)), (x.split(1)[0], values[:1]),
        (x.chunk(shape[0])[-1], values[-1:]),
    ]:  # fmt: skip
        np.testing.assert_allclose(got.data, wanted, rtol=1e-14)


# The package


def run_python(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_loads_nothing_heavy():
    code = (
        "import sys, tinybn; "
        "print([m for m in ('triton', 'cupy', 'pooch', 'tqdm', 'safetensors', 'torch', "
        "'tinybn.nn', 'tinybn.data', 'tinybn.graph') if m in sys.modules])"
    )
    assert run_python(code) == "[]"


def test_all_names_are_there():
    missing = [
        name
        for name in tb.__all__
        if name not in ("nn", "data", "graph", "testing", "load", "save") and not hasattr(tb, name)
    ]
    assert missing == [] and set(tb.__all__) <= set(dir(tb))
    assert tb.kernels.__name__ == "tinybn.kernels"
    with pytest.raises(AttributeError, match="nothing_here"):
        _ = tb.nothing_here


@pytest.mark.parametrize(
    ("make", "want"),
    [
        (lambda **k: tb.zeros(3, **k), tb.float32),
        (lambda **k: tb.ones(3, **k), tb.float32),
        (lambda **k: tb.empty(3, **k), tb.float32),
        (lambda **k: tb.eye(3, **k), tb.float32),
        (lambda **k: tb.rand(3, **k), tb.float32),
        (lambda **k: tb.randn(3, **k), tb.float32),
        (lambda **k: tb.full((3,), 1.0, **k), tb.float32),
        (lambda **k: tb.full((3,), 1, **k), tb.int64),
        (lambda **k: tb.linspace(0, 1, 3, **k), tb.float32),
        (lambda **k: tb.arange(3, **k), tb.int64),
        (lambda **k: tb.arange(3.0, **k), tb.float32),
        (lambda **k: tb.randint(0, 3, (3,), **k), tb.int64),
        (lambda **k: tb.randperm(3, **k), tb.int64),
        (lambda **k: tb.Tensor([1.0], **k), tb.float32),
        (lambda **k: tb.as_tensor([1.0], **k), tb.float32),
        (lambda **k: tb.nn.Linear(2, 2, **k).weight, tb.float32),
        (lambda **k: tb.nn.BatchNorm1d(2, **k).weight, tb.float32),
        (lambda **k: tb.nn.Parameter([1.0], **k), tb.float32),
    ],
)
def test_dtype_none_is_the_default_and_never_float64(make, want):
    assert make().dtype == want and make(dtype=None).dtype == want
