"""RuntimeOps: the halves of BatchNorm against float64, and what a dry run tells of launches."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.engines import CPU, CUDA, INTERPRET
from tinybn.graph import (
    BatchNorm2dNchwInferenceRuntimeOp,
    BatchNormNormalizeRuntimeOp,
    BatchNormStatsRuntimeOp,
    Conv2dRuntimeOp,
    LinearRuntimeOp,
    RuntimeGraph,
)
from tinybn.testing import LAYOUTS, assert_close, lay_out

EPS, MOMENTUM, CHANNELS = 1e-5, 0.1, 3
engines = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(CPU, id="cpu"),
        pytest.param(INTERPRET, id="interpret"),
        pytest.param(CUDA, id="cuda", marks=pytest.mark.gpu),
    ],
)


def images(layout, mean=0.0, dtype=np.float32, seed=0):
    rng = np.random.default_rng(seed)
    return lay_out((mean + rng.standard_normal((5, CHANNELS, 4, 6))).astype(dtype), layout)


def put(engine, array):
    return tb.Tensor.wrap(engine.put(array))


def state(graph):
    rng = np.random.default_rng(1)
    return {key: rng.uniform(0.5, 1.5, t.shape) for key, t in graph.state_dict().items()}


def column(a):
    return a.reshape(-1, 1, 1)


@engines
@pytest.mark.parametrize("mean", [0.0, 1e3])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_two_halves_are_batch_norm_in_training(engine, layout, mean):
    x, dy = images(layout, mean), images("contiguous", seed=2)
    graph = RuntimeGraph(train=True, device="cuda" if engine is CUDA else "cpu")
    graph.add(BatchNormStatsRuntimeOp(CHANNELS, EPS, MOMENTUM), "x", name="statistics")
    graph.add(BatchNormNormalizeRuntimeOp(CHANNELS), "x", "statistics", name="y")
    given = state(graph)
    graph.load_state_dict(given)
    leaf = put(engine, x)
    leaf.requires_grad = True
    with engine.active():
        y = graph.forward(leaf)
        graph.backward(put(engine, dy))
        packed = graph.results(leaf.detach())["statistics"]  # updates the statistics again
    wide, n = x.astype(np.float64), x.size // CHANNELS
    axes = (0, 2, 3)
    mean_, var = wide.mean(axes), wide.var(axes)
    rstd = 1 / np.sqrt(var + EPS)
    assert packed.shape == (2 * CHANNELS,)
    # A float32 and its residual: as exact as a sum of n deviations from it.
    assert np.abs(engine.get(packed)[:CHANNELS] - mean_).max() <= n * 2.0**-23
    assert_close(engine.get(packed)[CHANNELS:].astype(np.float32), rstd, terms=n, name="rstd")
    normal = (wide - column(mean_)) * column(rstd)
    weight, bias = given["y.weight"], given["y.bias"]
    assert_close(
        engine.get(y.data), normal * column(weight) + column(bias), terms=n, scale=8.0, name="y"
    )
    dweight, dbias = (dy * normal).sum(axes), dy.astype(np.float64).sum(axes)
    dx = column(weight * rstd) * (dy - column(dbias) / n - normal * column(dweight) / n)
    found = {key: graph.nodes[1].parameters[key].grad.numpy() for key in ("weight", "bias")}
    assert_close(found["weight"], dweight, terms=n, scale=2.0 * n, name="dweight")
    assert_close(found["bias"], dbias, terms=n, scale=2.0 * n, name="dbias")
    assert_close(leaf.grad.numpy(), dx, terms=n, scale=8.0, name="dx")
    running = given["statistics.running_mean"]
    for _ in range(2):
        running = (1 - MOMENTUM) * running + MOMENTUM * mean_
    got = graph.state_dict()["statistics.running_mean"].numpy()
    assert_close(got, running, terms=n, name="running mean")


@engines
def test_frozen_statistics_are_constants_in_backward(engine):
    x, dy = images("contiguous"), images("contiguous", seed=2)
    graph = RuntimeGraph(train=True, device="cuda" if engine is CUDA else "cpu")
    graph.add(BatchNorm2dNchwInferenceRuntimeOp(CHANNELS, EPS), "x", name="y")
    given = state(graph)
    graph.load_state_dict(given)
    leaf = put(engine, x)
    leaf.requires_grad = True
    with engine.active():
        y = graph.forward(leaf)
        graph.backward(put(engine, dy))
    weight, bias, mean, var = (given[f"y.{key}"] for key in graph.nodes[0].op.slots)
    rstd = 1 / np.sqrt(var + EPS)
    normal = (x.astype(np.float64) - column(mean)) * column(rstd)
    want = normal * column(weight) + column(bias)
    assert_close(engine.get(y.data), want, terms=4, scale=8.0, name="y")
    assert_close(leaf.grad.numpy(), dy * column(weight * rstd), terms=4, name="dx")
    learned = [p.grad.numpy() for p in graph.parameters()]
    for got, exact in zip(learned, ((dy * normal).sum((0, 2, 3)), dy.sum((0, 2, 3), np.float64))):
        assert_close(got, exact, terms=dy[:, 0].size, scale=4.0 * dy[:, 0].size)
    for key in ("running_mean", "running_var"):
        assert np.array_equal(
            graph.state_dict()[f"y.{key}"].numpy(), given[f"y.{key}"].astype("f4")
        )


OPS = {
    "linear": (LinearRuntimeOp(6, 4), (5, 6), (5, 4), "matmul"),
    "finished": (LinearRuntimeOp(6, 4, activation="relu"), (5, 6), (5, 4), "matmul"),
    "conv": (Conv2dRuntimeOp(3, 4, 3), (2, 3, 6, 6), (2, 4, 4, 4), "conv2d"),
    "bn": (BatchNorm2dNchwInferenceRuntimeOp(3), (2, 3, 6, 6), (2, 3, 6, 6), "batch_norm"),
    "statistics": (BatchNormStatsRuntimeOp(3), (2, 3, 6, 6), (6,), "batch_norm"),
}


@pytest.mark.parametrize("engine", [CPU, INTERPRET], ids=["cpu", "interpret"])
@pytest.mark.parametrize("name", OPS)
def test_a_dry_run_lists_launches_and_computes_nothing(name, engine):
    op, shape, result, kernel = OPS[name]
    x = np.full(shape, np.nan, np.float32)
    parameters = {key: np.full(slot.shape, 0.5, np.float32) for key, slot in op.slots.items()}
    for batch in (1, 7):
        with engine.active():
            run = op.dry_run(
                [x[:1].repeat(batch, 0)], parameters, [True] if op.has_backward else None
            )
        assert run.result.shape == (result if len(result) == 1 else (batch, *result[1:]))
        assert run.launches and all(kernel in launch.kernel for launch in run.launches)
        assert bool(run.backward_launches) == op.has_backward
        for launch in (*run.launches, *run.backward_launches):
            assert launch.bytes > 0
            assert bool(launch.grid) == bool(launch.packed) == (engine is INTERPRET)
            assert all(n >= 1 for n in launch.grid)
    assert all((a == 0.5).all() for a in parameters.values())
