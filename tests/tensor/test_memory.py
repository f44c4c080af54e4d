"""Memory goes with the last name of a graph, with the garbage collector off."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Iterator

import pytest

import tinybn as tb
from tinybn import nn

DEPTH = 2000


@pytest.fixture(autouse=True)
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def chain(device, backward):
    """A deep graph over 4 kB tensors, with every kind of layer that we have at its top."""
    x = tb.ones(8, 128, device=device, requires_grad=True)
    y = x
    for _ in range(DEPTH):
        y = y.tanh()  # saves its result
    norm = nn.BatchNorm1d(128, device=device)
    y = nn.functional.dropout(norm(y).relu(), 0.5)
    target = tb.zeros(8, dtype=tb.int64, device=device)
    loss = nn.functional.cross_entropy(y[:, ::2].reshape(8, 64), target)
    if backward:
        loss.backward()


@pytest.mark.parametrize("backward", [True, False])
def test_host_memory_returns(backward):
    chain("cpu", backward)  # what the first run keeps: caches, code, free lists
    tracemalloc.start()
    try:
        chain("cpu", backward)
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(3):
            chain("cpu", backward)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - before > DEPTH * 4096  # the graph was there
    # One graph is 16 MB; the allowance is a fiftieth of one tensor of each op.
    assert after - before < DEPTH * 4096 / 50


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [True, False])
def test_device_memory_returns(backward):
    import cupy

    chain("cuda", backward)
    pool = cupy.get_default_memory_pool()
    before = pool.used_bytes()
    for _ in range(3):
        chain("cuda", backward)
    assert pool.used_bytes() == before
