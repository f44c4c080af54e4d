"""Calls made again skip checks and preparation, and compute the same."""

from __future__ import annotations

import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import tinybn as tb
from tinybn import kernels, nn
from tinybn.kernels import gpu, repeat
from tinybn.kernels.batch_norm import functions as batch_norm
from tinybn.kernels.batch_norm import gradients as backward

X = np.random.default_rng(0).normal(3, 2, (6, 5, 4, 4)).astype(np.float32)


def exact(x):
    x = x.astype(np.float64)
    axes = (0, *range(2, x.ndim))
    mean, var = (f(x, axes, keepdims=True) for f in (np.mean, np.var))
    return (x - mean) / np.sqrt(var + 1e-5)


class Column:
    """Stands in for a parameter's array."""


def test_a_call_is_found_until_one_of_its_columns_goes(monkeypatch):
    # NumPy arrays stand in for a GPU's: their memory gets what CuPy's has.
    memory = SimpleNamespace(device_id=0, ptr=64)
    x, other = (SimpleNamespace(data=memory, shape=s, strides=(4,), dtype="f4") for s in (3, 5))
    monkeypatch.setattr(gpu, "is_cupy", lambda array: isinstance(array, SimpleNamespace))
    monkeypatch.setattr(gpu, "calls", lambda: SimpleNamespace(device=lambda: 0))
    calls, weight, bias = repeat.Repeats(), Column(), Column()
    key, found = calls.find((x, None), (weight, bias), 1e-5)
    assert found is None
    calls.keep(key, (weight, bias, None), len)
    assert calls.find((x, None), (weight, bias), 1e-5) == (key, len)
    for tensors, columns, eps in (
        ((other, None), (weight, bias), 1e-5),
        ((x, x), (weight, bias), 1e-5),
        ((x, None), (bias, weight), 1e-5),
        ((x, None), (weight, bias), 1e-4),
    ):
        assert calls.find(tensors, columns, eps)[1] is None
    assert calls.find((np.zeros(3), None), (weight, bias), 1e-5) == (None, None)
    assert calls.find((x, None), (weight, bias), []) == (None, None)
    del bias, columns
    gc.collect()
    assert not calls._calls


@pytest.mark.gpu
def test_training_again_uses_the_new_values(monkeypatch):
    layer = nn.BatchNorm2d(5, device="cuda")
    runs, kept = [], []
    for calls in (batch_norm._forwards, backward._backwards):
        keep = calls.keep
        monkeypatch.setattr(calls, "keep", lambda *a, keep=keep: (kept.append(a), keep(*a)))
    for shift in (0, 1, 100):
        x = tb.as_tensor(gpu.cupy().asarray(X + shift)).requires_grad_()
        y = layer(x, activation="relu")
        y.backward(tb.ones_like(y))
        runs.append((y.detach().numpy(), x.grad.numpy()))
        assert len(kept) == 2  # prepared by the first run, and found by the others
    for shift, (y, dx) in zip((0, 1, 100), runs):
        # x's own rounding, half an ulp of |x| ≤ 110, over a deviation of 2
        np.testing.assert_allclose(y, np.maximum(exact(X + shift), 0), atol=2e-5)
        x_hat = exact(X + shift)
        g = (x_hat > 0).astype(np.float64)
        mean_g, mean_gx = (a.mean((0, 2, 3), keepdims=True) for a in (g, g * x_hat))
        deviation = (X + shift).std((0, 2, 3), keepdims=True, dtype=np.float64)
        want = (g - mean_g - x_hat * mean_gx) / deviation
        off = np.abs(dx - want) > 2e-5
        assert not off[np.abs(x_hat) > 1e-3].any()  # elsewhere rounding may choose the side
    assert layer.num_batches_tracked.item() == 3
    mean = [(X + shift).mean((0, 2, 3), dtype=np.float64) for shift in (0, 1, 100)]
    want = 0.1 * (0.81 * mean[0] + 0.9 * mean[1] + mean[2])
    np.testing.assert_allclose(layer.running_mean.numpy(), want, rtol=1e-5)


@pytest.mark.gpu
def test_parameters_written_between_calls_are_read():
    layer = nn.BatchNorm2d(5, device="cuda").eval()
    x = tb.as_tensor(gpu.cupy().asarray(X))
    want = X / np.sqrt(1 + 1e-5)
    for scale in (1.0, 2.0, -3.0):
        with tb.no_grad():
            layer.weight.fill_(scale)
            np.testing.assert_allclose(layer(x).numpy(), scale * want, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
def test_threads_and_streams_share_prepared_launches():
    cupy = gpu.cupy()
    # Few channels of many rows: split over programs that wait for each other.
    values = np.random.default_rng(1).normal(3, 2, (5000, 3)).astype(np.float32)
    weight, bias = cupy.ones(3, np.float32), cupy.zeros(3, np.float32)
    wrong = []

    def work(shift):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            x = cupy.asarray(values * np.float32(1 + shift))
            want = cupy.asarray(exact(values * np.float32(1 + shift)))
            for _ in range(200):
                y = kernels.batch_norm_forward(x, weight, bias).y
                if not cupy.abs(y - want).max() < 2e-5:
                    wrong.append(shift)
            stream.synchronize()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.gpu
def test_a_call_with_bad_arguments_raises_again_and_again():
    x = tb.as_tensor(gpu.cupy().asarray(X))
    layer = nn.BatchNorm2d(5, device="cuda")
    layer(x)
    for _ in range(2):
        with pytest.raises(ValueError, match="eps"):
            nn.functional.batch_norm(
                x, layer.running_mean, layer.running_var, layer.weight, layer.bias, training=True,
                eps=-1.0,
            )  # fmt: skip
        with pytest.raises(ValueError, match="activation"):
            layer(x, activation=["relu"])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("momentum", [0.25, None])
def test_scalars_reach_the_prepared_kernel(dtype, momentum):
    # Each way in which a scalar lies among the arguments: float32, float64, int32.
    layer = nn.BatchNorm2d(5, momentum=momentum, eps=0.5, device="cuda", dtype=dtype)
    x = X.astype(dtype).astype(np.float64)
    for _ in range(2):
        y = layer(tb.as_tensor(gpu.cupy().asarray(X.astype(dtype))))
    centred = x - x.mean((0, 2, 3), keepdims=True)
    want = centred / np.sqrt(x.var((0, 2, 3), keepdims=True) + 0.5)
    np.testing.assert_allclose(
        y.detach().numpy().astype(np.float64), want, atol=8 * np.finfo(dtype).eps
    )
    kept = (1 - 0.75**2) if momentum else 1.0
    np.testing.assert_allclose(layer.running_mean.numpy(), kept * x.mean((0, 2, 3)), rtol=1e-5)
