"""Compiling, caching and launching; and the interpreter chosen at call time."""

from __future__ import annotations

import threading

import ml_dtypes
import numpy as np
import pytest

pytest.importorskip("triton")

import triton
import triton.language as tl

from tests.engines import kernel_engines
from tinybn import kernels
from tinybn.errors import DeviceError, LaunchError
from tinybn.kernels.engines import engine_of
from tinybn.kernels.launch import Launcher


@triton.jit
def twice(x):
    return x + x


@triton.jit
def double_kernel(x_ptr, y_ptr, bias_ptr, n, scale, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < n, other=0.0).to(tl.float32)
    y = twice(x) * scale
    if bias_ptr is not None:
        y += tl.load(bias_ptr)
    tl.store(y_ptr + i, y.to(y_ptr.dtype.element_ty), mask=i < n)


@triton.jit
def loop_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        total += tl.load(x_ptr + i, mask=i < n, other=0.0)
    tl.store(y_ptr, tl.sum(total, 0))


@triton.jit
def broken_kernel(x_ptr, n, BLOCK: tl.constexpr):
    tl.store(x_ptr + tl.arange(0, BLOCK), undefined_name)  # noqa: F821


double = Launcher(double_kernel)


def run_double(x, y, bias=None, n=None, scale=0.5):
    n = y.size if n is None else n
    double(
        (triton.cdiv(y.size, 16),), x_ptr=x, y_ptr=y, bias_ptr=bias, n=n,
        scale=np.float32(scale), BLOCK=16,
    )  # fmt: skip
    return y


@kernel_engines
@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16, np.float64])
@pytest.mark.parametrize("n", [1, 15, 16, 17, 100])
def test_arguments_of_each_kind(engine, dtype, n):
    x = np.arange(n).astype(dtype)
    y = engine.run(run_double, x, np.full(n, -1, dtype), np.ones(1, np.float32))
    np.testing.assert_array_equal(y.astype(float), np.arange(n) + 1)


@kernel_engines
def test_unaligned_views_and_none(engine):
    storage = np.arange(40, dtype=np.float32)
    y = engine.run(lambda x, y: run_double(x[3:36], y), storage, np.zeros(33, np.float32))
    np.testing.assert_array_equal(y, storage[3:36])
    y = engine.run(lambda x, y: run_double(x[4:37], y), storage, np.zeros(33, np.float32))
    np.testing.assert_array_equal(y, storage[4:37])


@kernel_engines
def test_loop_with_a_bound_known_at_run_time(engine):
    def run(x, y):
        Launcher(loop_kernel)((1,), x_ptr=x, y_ptr=y, n=x.size, BLOCK=16)
        return y

    for n in (1, 16, 77):
        assert engine.run(run, np.ones(n, np.float32), np.zeros(1, np.float32))[0] == n


@kernel_engines
def test_an_empty_grid_launches_nothing(engine):
    assert engine.run(run_double, np.ones(0, np.float32), np.ones(0, np.float32)).size == 0


def test_bfloat16_is_rounded_to_nearest_even_in_the_interpreter():
    x = np.array([1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20, 1e38, np.nan], np.float32)
    with kernels.interpret():
        y = run_double(x, np.zeros(5, ml_dtypes.bfloat16))
    np.testing.assert_array_equal(y.astype(float), x.astype(ml_dtypes.bfloat16).astype(float))


def test_the_interpreter_is_chosen_for_a_thread_and_left_again():
    x = np.ones(3, np.float32)
    seen = []
    with kernels.interpret():
        assert engine_of(x) == "interpret"
        other = threading.Thread(target=lambda: seen.append(engine_of(x)))
        other.start()
        other.join()
    assert seen == ["cpu"] and engine_of(x) == "cpu"
    # Triton's language is as it was: the same kernel still compiles.
    assert kernels.Philox().compile("sm_90").registers > 0


def test_interpreting_in_several_threads_at_once():
    x = np.arange(64, dtype=np.float32)
    results = [np.zeros(64, np.float32) for _ in range(4)]

    def work(i):
        with kernels.interpret():
            run_double(x * i, results[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, y in enumerate(results):
        np.testing.assert_array_equal(y, x * i)


def test_compiling_while_another_thread_interprets(tmp_path, monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))  # so that it does compile
    stop, x, y = threading.Event(), np.ones(16, np.float32), np.zeros(16, np.float32)

    def work():
        with kernels.interpret():
            while not stop.is_set():
                run_double(x, y)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for rows in (8, 16, 32):
            assert kernels.BatchNormBackward(rows).compile("sm_90").registers > 0
    finally:
        stop.set()
        thread.join()


def test_a_kernel_that_does_not_compile_raises_launch_error():
    arguments = {"x_ptr": np.zeros(16, np.float32), "n": 16, "BLOCK": 16}
    with pytest.raises(LaunchError, match="broken_kernel"):
        Launcher(broken_kernel).compile("sm_90", arguments)


@pytest.mark.gpu
def test_arrays_on_different_devices_raise():
    import cupy

    with pytest.raises(DeviceError, match="x_ptr on the CPU; wanted cuda:0"):
        run_double(np.ones(4, np.float32), cupy.ones(4, cupy.float32))


@pytest.mark.gpu
def test_launches_on_the_current_stream_and_can_be_captured():
    import cupy

    stream = cupy.cuda.Stream(non_blocking=True)
    x, y = cupy.ones(1000, cupy.float32), cupy.zeros(1000, cupy.float32)
    run_double(x, y)  # compiled before the capture
    cupy.cuda.get_current_stream().synchronize()
    with stream:
        stream.begin_capture()
        run_double(x, y, scale=1.0)
        graph = stream.end_capture()
        x[...] = 5
        y[...] = 0
        graph.launch()
        stream.synchronize()
    assert (y == 10).all()


@pytest.mark.gpu
def test_work_queued_on_a_stream_of_its_own_stays_in_order():
    import cupy

    rng = np.random.default_rng(0)
    x = rng.standard_normal((4096, 1024)).astype(np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        moved = cupy.asarray(x)
        for _ in range(50):  # keeps the stream busy while the next launches are queued
            moved = moved * 1.0
        mean, rstd = kernels.batch_norm_stats_forward(moved)
        y = kernels.batch_norm_normalize_forward(moved, None, None, mean, rstd)
        got = y.get(stream=stream)
    want = (x - x.astype(float).mean(0)) / np.sqrt(x.astype(float).var(0) + 1e-5)
    np.testing.assert_allclose(got, want, atol=1e-5)
