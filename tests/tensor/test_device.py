"""Devices: names, defaults, moving; the GPU's share runs where there is one."""

from __future__ import annotations

import contextlib
import copy
import pickle

import numpy as np
import pytest

import tinybn as tb
from tests.tensor.tensor_cases import DTYPES, FLOATS
from tinybn.errors import ArgumentError, DeviceError, DTypeError, ShapeError, TapeError
from tinybn.tensor import device as device_module
from tinybn.tensor import tape
from tinybn.tensor.device import Device, as_device


def test_device_names():
    assert str(as_device("cpu")) == "cpu" and as_device("cpu:0") == "cpu"
    assert Device("cuda", 1) == Device("cuda", 1) and str(Device("cuda", 1)) == "cuda:1"
    assert as_device(Device("cpu")) == Device("cpu")
    assert as_device("cpu") != "nowhere" and as_device("cpu") != 3
    assert len({Device("cpu"), Device("cpu"), Device("cuda")}) == 2
    for wrong in ("gpu", "cuda:x", "cpu:1", ""):
        with pytest.raises(ArgumentError, match="not known"):
            as_device(wrong)


def test_default_device():
    assert tb.default_device() == "cpu"  # set by tests/conftest.py
    assert tb.zeros(2).device == "cpu" and tb.tensor([1.0]).device == "cpu"
    tb.set_default_device(None)
    assert tb.default_device().type == ("cuda" if tb.cuda_available() else "cpu")


def test_what_is_on_another_gpu_runs_there(monkeypatch):
    # Stands in for a second GPU: all arrays are on GPU 1 and CuPy's current one is 0.
    current = [0]

    @contextlib.contextmanager
    def use(device):
        current.append(device.index)
        yield
        current.pop()

    def elsewhere(array):
        return None if current[-1] == 1 else Device("cuda", 1)

    monkeypatch.setattr(tape, "elsewhere", elsewhere)
    monkeypatch.setattr(tape, "use", use)
    seen = []

    class Watched(tape.Op):
        @staticmethod
        def forward(ctx, x):
            seen.append(current[-1])
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            seen.append(current[-1])
            return (grad * 2,)

    x = tb.ones(2, requires_grad=True)
    x.register_hook(lambda g: g * 1)
    y = tape.apply(Watched, x) + x
    y.retain_grad()
    y.sum().backward()
    assert seen == [1, 1] and current == [0]
    assert x.grad.tolist() == [3, 3] and y.grad.tolist() == [1, 1]


def test_a_second_gpu_is_noticed(monkeypatch):
    class Memory:
        device_id = 1

    class FakeArray:
        data = Memory()

    array, asked = FakeArray(), []
    monkeypatch.setattr(device_module.gpu, "current_device", lambda: asked.append(1) or 0)
    monkeypatch.setattr(device_module, "_several_gpus", lambda: False)
    assert device_module.elsewhere(array) is None and not asked  # one GPU: nothing to ask
    monkeypatch.setattr(device_module, "_several_gpus", lambda: True)
    assert device_module.elsewhere(array) == Device("cuda", 1)
    assert device_module.elsewhere(np.ones(2)) is None
    monkeypatch.setattr(device_module.gpu, "current_device", lambda: 1)
    assert device_module.elsewhere(array) is None
    monkeypatch.setattr(device_module.gpu, "is_cupy", lambda a: a is array)
    assert device_module.device_of(array) is device_module.device_of(array)


def test_to_on_the_cpu():
    x = tb.ones(2, requires_grad=True)
    assert x.to("cpu") is x and x.cpu() is x and x.to(x.device) is x
    assert x.to(tb.float32) is x and x.to("float32") is x
    y = x.to("cpu", tb.float16)
    assert y.dtype == tb.float16
    assert x.to(dtype=tb.float64, device="cpu").dtype == tb.float64
    assert x.to(tb.zeros(1, dtype=tb.int64)).dtype == tb.int64
    for name, dtype in [
        ("float", tb.float32), ("half", tb.float16), ("bfloat16", tb.bfloat16),
        ("double", tb.float64), ("int", tb.int32), ("long", tb.int64), ("bool", tb.bool_),
    ]:  # fmt: skip
        assert getattr(x, name)().dtype == dtype
    with pytest.raises(DTypeError):
        x.to("nowhere")


@pytest.mark.skipif(tb.cuda_available(), reason="there is a GPU")
def test_a_missing_gpu_is_said_so():
    for fails in (
        lambda: tb.zeros(2, device="cuda"),
        lambda: tb.ones(2).cuda(),
        lambda: tb.ones(2).to("cuda:0"),
        lambda: tb.set_default_device("cuda"),
    ):
        with pytest.raises(DeviceError, match="not available"):
            fails()
    x = tb.ones(1)
    cls, state = x.__reduce__()[:2]
    with pytest.raises(DeviceError, match="not available"):
        cls(state[0], state[1], "cuda:0", False)  # what unpickling a GPU's tensor does


# On the GPU


def both(values, dtype=tb.float32, **options):
    return [tb.tensor(values, dtype=dtype, device=d, **options) for d in ("cpu", "cuda")]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_gpu_round_trip(dtype):
    x = tb.tensor([[1, 0], [1, 1]], dtype=dtype, device="cuda")
    assert x.device.type == "cuda" and x.dtype == dtype
    assert x.cpu().device == "cpu" and x.cpu().tolist() == x.tolist() == [[1, 0], [1, 1]]
    assert x.numpy().dtype == dtype and np.asarray(x).tolist() == x.tolist()
    assert x.data_ptr() and "cuda" in repr(x)
    with pytest.raises(ValueError):
        np.array(x, copy=False)
    for y in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), x.clone()):
        assert y.device == x.device and y.dtype == dtype and y.tolist() == x.tolist()


@pytest.mark.gpu
def test_gpu_gradients_go_back_through_moves():
    x = tb.tensor([1.0, 2.0], device="cpu", requires_grad=True)
    (x.cuda() * 3).sum().backward()
    assert x.grad.device == "cpu" and x.grad.tolist() == [3, 3]


@pytest.mark.gpu
def test_gpu_mixed_devices_are_refused():
    a, b = both([1.0, 2.0])
    with pytest.raises(DeviceError, match="cpu.*cuda:0"):
        a + b
    with pytest.raises(DeviceError, match="cuda:0.*cpu"):
        tb.maximum(b, a)
    with pytest.raises(DeviceError):
        a += b
    with pytest.raises(DeviceError):
        b[0] = a[0]
    assert (b + np.ones(2, np.float32)).device == b.device  # plain arrays come along
    assert (b + [1.0, 1.0]).tolist() == [2, 3]
    assert b.copy_(a * 5).tolist() == [5, 10]
    with pytest.raises(DeviceError):
        b.grad = a


@pytest.mark.gpu
def test_gpu_dlpack_and_array_interface():
    import cupy

    array = cupy.arange(3.0)
    x = tb.from_dlpack(array)
    x[0] = 7
    assert array.tolist() == [7, 1, 2] and x.device.type == "cuda"
    assert tb.tensor(array).data is not array and tb.as_tensor(array).data is array
    assert cupy.from_dlpack(x).tolist() == [7, 1, 2]
    assert cupy.asarray(x).data.ptr == x.data_ptr()
    assert x.__dlpack_device__()[0] == 2
    assert x.__cuda_array_interface__["shape"] == (3,)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_gpu_agrees_with_the_cpu(dtype):
    from tests.tensor.test_elementwise import BINARY, UNARY

    rng = np.random.default_rng(0)
    # Both round the same mathematics; GPU functions are allowed a few units more.
    eps = {2: 2.0**-7, 4: 2.0**-20, 8: 2.0**-48}[dtype.itemsize]
    for name, (fn, _, (low, high)) in {**UNARY, **BINARY}.items():
        count = 1 if name in UNARY else 2
        values = [rng.uniform(low, high, (3, 5)).astype(dtype) for _ in range(count)]
        results = []
        for device in ("cpu", "cuda"):
            inputs = [tb.tensor(v, device=device, requires_grad=True) for v in values]
            y = fn(*inputs)
            y.backward(tb.ones_like(y))
            assert y.dtype == dtype and y.device.type == device
            results.append([y.detach(), *(t.grad for t in inputs)])
        for a, b in zip(*results, strict=True):
            a, b = (t.cpu().double().numpy() for t in (a, b))
            np.testing.assert_allclose(b, a, rtol=eps, atol=eps, err_msg=name)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_gpu_operations(dtype):
    for device in ("cpu", "cuda"):
        x = tb.tensor([1.0, 2.0, 3.0], dtype=dtype, device=device)
        for y in (x * 2.0, 2.0 * x, x + 1, 2.0**x, x**2, x / 3, 1 / x, x % 2.0, x // 2.0,
                  tb.maximum(x, 0.5), tb.where(x > 1.5, x, 0.5), tb.clip(x, 0.0, 1.0),
                  x.floor(), x.sign(), x.clone().add_(0.5)):  # fmt: skip
            assert y.dtype == dtype and y.device.type == device
        assert (x > 1.5).tolist() == [False, True, True]
        assert (x == x).tolist() == [True] * 3 and (x != 2).tolist() == [True, False, True]
        assert x.isnan().tolist() == [False] * 3 and x.isfinite().tolist() == [True] * 3
        assert tb.where(x > 1.5, x, 0.5).tolist() == [0.5, 2, 3]
        assert (x + tb.ones(3, dtype=tb.float32, device=device)).tolist() == [2, 3, 4]
        assert x.clip(1.5, 2.5).tolist() == [1.5, 2, 2.5]
        bias = tb.zeros(1, dtype=dtype, device=device, requires_grad=True)
        (bias + tb.ones(1024, dtype=dtype, device=device)).sum().backward()
        assert bias.grad.item() == 1024


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS, ids=lambda d: d.name)
def test_gpu_in_place(dtype):
    x = tb.tensor(np.arange(1.0, 10).reshape(3, 3), dtype=dtype, device="cuda")
    expected = x.cpu().double().numpy()
    x += x.T
    expected += expected.T
    np.testing.assert_array_equal(x.cpu().double().numpy(), expected)
    x[1:] = x[:-1]
    expected[1:] = expected[:-1].copy()
    np.testing.assert_array_equal(x.cpu().double().numpy(), expected)
    x *= 0.5
    x[0, 0] = 7.0
    x.clamp_(2, 6)
    expected *= 0.5
    expected[0, 0] = 7.0
    np.testing.assert_array_equal(x.cpu().double().numpy(), expected.clip(2, 6))
    big = tb.arange(100_000, dtype=tb.float32, device="cuda")
    big[1:] = big[:-1]
    assert big[-1].item() == 99_998 and big[50_000].item() == 49_999
    big += big[0]
    with pytest.raises(ShapeError):
        big += tb.ones(3, device="cuda")
    w = tb.ones(3, device="cuda", requires_grad=True)
    with pytest.raises(TapeError):
        w += 1
    y = w * 2
    y *= y
    y[0] = 0.0
    y.sum().backward()
    assert w.grad.tolist() == [0, 8, 8]


@pytest.mark.gpu
def test_gpu_random_numbers_and_creation():
    tb.manual_seed(5)
    a = tb.randn(1000, device="cuda")
    tb.manual_seed(5)
    assert a.tolist() == tb.randn(1000, device="cuda").tolist()
    for x in (tb.zeros(2, device="cuda"), tb.arange(3, device="cuda"), tb.eye(2, device="cuda"),
              tb.full(2, 1.5, device="cuda"), tb.randperm(4, device="cuda"),
              tb.linspace(0, 1, 3, device="cuda"), tb.ones_like(a)):  # fmt: skip
        assert x.device.type == "cuda"
    assert tb.full(2, 1.5, device="cuda").tolist() == [1.5, 1.5]
