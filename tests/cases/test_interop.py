"""Arrays that come from elsewhere, and arrays on several devices.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases.rows import assert_same, case
from tinybn import nn
from tinybn.errors import DeviceError, TinyBNError
from tinybn.kernels import gpu

READ_ONLY = "numpy/numpy#20742, jax-ml/jax#40789"


class Exporter:
    """An object that is no array but speaks DLPack; with a stream, one that it wrote on."""

    def __init__(self, array, stream=None):
        self.array, self.stream = array, stream

    def __dlpack__(self, **options):
        if self.stream is None:
            return self.array.__dlpack__(**options)
        with self.stream:  # which the consumer's, in options, is made to wait for
            return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def set_item(x):
    x[0] = 5.0


def step(x):
    x.requires_grad = True
    x.grad = tb.ones(3, device="cpu")
    nn.optim.SGD([x], lr=0.1).step()


def load(x):
    module = nn.Module()
    module.register_buffer("x", x)
    module.load_state_dict({"x": np.ones(3)})


def running_mean(x):
    var = tb.ones(3, device="cpu")
    nn.functional.batch_norm(tb.ones(2, 3, device="cpu"), x, var, training=True)


def clip(x):
    other = tb.ones(3, device="cpu", requires_grad=True)
    other.grad = x
    nn.utils.clip_grad_norm_([other], 0.1)


def clip_values(x):
    other = tb.ones(3, device="cpu", requires_grad=True)
    other.grad = x
    nn.utils.clip_grad_value_(other, 0.1)


def clear(x):
    other = nn.Parameter(tb.ones(3, device="cpu"))
    other.grad = x
    nn.optim.SGD([other], lr=0.1).zero_grad(set_to_none=False)


def unscale(x):
    other = nn.Parameter(tb.ones(3, device="cpu"))
    other.grad = x
    scaler = nn.amp.GradScaler(device="cpu")
    scaler.scale(tb.ones(1, device="cpu"))
    scaler.unscale_(nn.optim.SGD([other], lr=0.1))


def accumulate(x):
    other = tb.ones(3, device="cpu", requires_grad=True)
    for _ in range(3):
        (other * 1).backward(x)
    other.grad.zero_()


WRITES = [
    lambda x: x.add_(1), lambda x: x.__imul__(2), lambda x: x.zero_(), lambda x: x.fill_(3),
    lambda x: x.copy_(tb.zeros(3, device="cpu")), set_item, lambda x: x[:2].zero_(), step, load,
    running_mean, clip, clip_values, clear, unscale, accumulate,
]  # fmt: skip


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("interpreted", [False, True])
@pytest.mark.parametrize(
    "take",
    [
        case("DL-01", READ_ONLY, take)
        for take in (
            tb.from_dlpack, lambda a: tb.from_dlpack(Exporter(a)), tb.as_tensor, tb.Tensor.wrap,
            lambda a: tb.tensor(a, device="cpu"),
        )
    ],
)  # fmt: skip
def test_a_read_only_array_is_never_changed(take, write, interpreted):
    source = np.array([3, 4, 12], np.float32)
    source.flags.writeable = False
    x = take(source)
    with tb.interpret() if interpreted else tb.enable_grad():
        try:
            write(x)
        except TinyBNError as error:
            assert "read-only" in str(error)
            assert np.shares_memory(x.data, source)
    assert source.tolist() == [3, 4, 12]


@pytest.mark.parametrize("take", [case("DL-01", READ_ONLY, tb.from_dlpack)])
def test_what_is_read_only_is_exported_so(take):
    source = np.arange(3, dtype=np.float32)
    source.flags.writeable = False
    x = take(source)
    assert not np.from_dlpack(x).flags.writeable
    assert not np.asarray(x).flags.writeable


@pytest.mark.gpu
@pytest.mark.parametrize("size", [case("DL-03", "dmlc/dlpack#57, cupy/cupy#8683", 2**24)])
def test_an_import_waits_for_what_the_producer_has_queued(size):
    import cupy

    producer, consumer = (cupy.cuda.Stream(non_blocking=True) for _ in range(2))
    with producer:
        x = cupy.zeros(size, cupy.float32)
        for _ in range(50):
            x += 1
    with consumer:
        t = tb.from_dlpack(Exporter(x, producer))
        last = t[-1].item()
        del x  # the importer keeps the memory
        with producer:
            others = [cupy.full(size, 7, cupy.float32) for _ in range(2)]
        producer.synchronize()
        assert last == 50 and float(t.max().item()) == 50 and float(t.min().item()) == 50
        del others
    with producer:
        y = tb.zeros(size, device="cuda")
        for _ in range(50):
            y += 1
        # The capsule is asked for on the stream that wrote.
        capsule = y.__dlpack__(stream=consumer.ptr)
    with consumer:
        assert float(cupy.from_dlpack(Capsule(capsule))[-1]) == 50


class Capsule:
    """A capsule that was made already."""

    def __init__(self, capsule):
        self.capsule = capsule

    def __dlpack__(self, **options):
        return self.capsule

    def __dlpack_device__(self):
        return 2, 0


SEVERAL = "cupy/cupy#1389, chainer/chainer#2141, jy-yuan/KIVI#24"
F = nn.functional
MIXED = [
    lambda a, b: a + b, lambda a, b: a @ b, lambda a, b: tb.where(a > 0, a, b),
    lambda a, b: tb.cat([a, b]), lambda a, b: tb.maximum(a, b),
    lambda a, b: F.linear(a, b), lambda a, b: F.linear(a, a, b[0]), lambda a, b: a[b[0].long()],
    lambda a, b: F.batch_norm(a, b[0], b[1]), lambda a, b: F.batch_norm(a, None, None, b[0]),
    lambda a, b: F.batch_norm(a, b[0], b[1], training=True),
    lambda a, b: F.cross_entropy(a, b[0].long()), lambda a, b: F.mse_loss(a, b),
    lambda a, b: F.cross_entropy(a, a[0].long(), b[0]),
    lambda a, b: F.conv2d(a.reshape(1, 1, 2, 2), b.reshape(1, 1, 2, 2)),
]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("first", ["cpu", "cuda"])
@pytest.mark.parametrize("call", [case("DL-04", SEVERAL, call) for call in MIXED])
def test_arrays_of_cpu_and_gpu_are_not_mixed(call, first):
    second = "cuda" if first == "cpu" else "cpu"
    a, b = tb.ones(2, 2, device=first), tb.ones(2, 2, device=second)
    with pytest.raises(DeviceError):
        call(a, b)
    assert_same(a, np.ones((2, 2)))
    assert_same(b, np.ones((2, 2)))


@pytest.mark.gpu
@pytest.mark.parametrize("current", [case("DL-04", SEVERAL, 0)])
def test_an_array_on_another_gpu_than_the_current_one(current):
    if gpu.device_count() < 2:
        pytest.skip("one GPU")
    import cupy

    with cupy.cuda.Device(1):
        x = tb.Tensor.wrap(cupy.arange(12, dtype=cupy.float32).reshape(4, 3))
    with cupy.cuda.Device(current):
        x.requires_grad = True
        layer = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)).to("cuda:1")
        y = F.relu(layer(x)).sum()
        y.backward()
        assert x.grad.device == y.device == "cuda:1"
        assert (x * 2)[1, 1].item() == 8
        with pytest.raises(DeviceError):
            x + tb.ones(4, 3, device="cuda:0")
