"""Activations and residual connections in BatchNorm's kernels, and every family of the plan.

Expected values are float64 mathematics, worked out here. A result is a few rounded steps of
numbers no larger than ``scale``; sums over n rows err by n·ε of the sum of absolute values.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import CPU, CPU_PARTS, INTERPRET, all_engines
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.kernels import gpu
from tinybn.kernels.arrays import BFLOAT16
from tinybn.kernels.batch_norm.objects import BatchNormBackward, BatchNormForward
from tinybn.kernels.batch_norm.plan import make_plan
from tinybn.testing import epsilon

erf = np.vectorize(math.erf, otypes=[np.float64])
FUNCTIONS = {
    None: (lambda z: z, np.ones_like),
    "relu": (lambda z: np.maximum(z, 0), lambda z: (z > 0).astype(np.float64)),
    "silu": (
        lambda z: z / (1 + np.exp(-z)),
        lambda z: (1 + np.exp(-z) + z * np.exp(-z)) / (1 + np.exp(-z)) ** 2,
    ),
    "gelu": (
        lambda z: z * (1 + erf(z / math.sqrt(2))) / 2,
        lambda z: (1 + erf(z / math.sqrt(2))) / 2 + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi),
    ),
}


def draw(shape, dtype, layout, seed):
    """x, dy, addend, weight and bias; ReLU's kink is nowhere near."""
    rng = np.random.default_rng(seed)
    x, dy, addend = (rng.normal(size=shape).astype(dtype) for _ in range(3))
    if layout == "channels_last" and len(shape) > 2:
        x, dy, addend = (
            np.moveaxis(np.ascontiguousarray(np.moveaxis(a, 1, -1)), -1, 1) for a in (x, dy, addend)
        )
    weight, bias = rng.normal(1, 0.2, shape[1]), rng.normal(0, 0.2, shape[1])
    return x, dy, addend, weight.astype(np.float32), bias.astype(np.float32)


def expected(x, dy, addend, weight, bias, activation, statistics=None):
    """y, z and the four gradients."""
    x, dy = x.astype(np.float64), dy.astype(np.float64)
    axes, one = (0, *range(2, x.ndim)), (-1, *(1,) * (x.ndim - 2))
    weight, bias = (a.astype(np.float64).reshape(one) for a in (weight, bias))
    if statistics is None:
        mean, var = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    else:
        mean, var = (a.astype(np.float64).reshape(one) for a in statistics)
    rstd = 1 / np.sqrt(var + 1e-5)
    x_hat = (x - mean) * rstd
    z = x_hat * weight + bias + (0 if addend is None else addend.astype(np.float64))
    g = dy * FUNCTIONS[activation][1](z)
    dx = g
    if statistics is None:
        dx = g - g.mean(axes, keepdims=True) - x_hat * (g * x_hat).mean(axes, keepdims=True)
    sums = (g * x_hat).sum(axes), g.sum(axes)
    return FUNCTIONS[activation][0](z), z, (weight * rstd * dx, *sums, g)


def bound(dtype, rows):
    """16 roundings in float32, sums over ``rows`` terms, and one rounding to ``dtype``."""
    return 2 * epsilon(dtype) + (16 + 2 * rows) * epsilon(np.float32)


@all_engines
@settings(max_examples=25)
@given(
    shape=st.sampled_from(
        [
            (2, 1),
            (7, 5),
            (33, 64),
            (4, 3, 7, 7),
            (2, 9, 13, 13),
            (5, 8, 4),
            (1, 4, 3, 3),
            (3, 1, 8, 9),
        ]
    ),
    layout=st.sampled_from(["contiguous", "channels_last"]),
    dtype=st.sampled_from([np.float32, BFLOAT16, np.float16]),
    activation=st.sampled_from(list(FUNCTIONS)),
    joined=st.booleans(),
    frozen=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_activation_and_residual(engine, shape, layout, dtype, activation, joined, frozen, seed):
    x, dy, addend, weight, bias = draw(shape, dtype, layout, seed)
    addend = addend if joined else None
    rng = np.random.default_rng(seed)
    statistics = None
    if frozen:
        statistics = rng.normal(size=shape[1]), rng.uniform(0.5, 2, shape[1])
        statistics = tuple(a.astype(np.float32) for a in statistics)
    y, z, gradients = expected(x, dy, addend, weight, bias, activation, statistics)

    def run(x, dy, addend, weight, bias, *statistics):
        if statistics:
            got = kernels.batch_norm_forward_inference(
                x, weight, bias, *statistics, addend=addend, activation=activation
            )
            passing = kernels.Passing(bias, addend, None, activation)
            back = kernels.batch_norm_frozen_backward(
                dy, x, weight, *statistics, passing=passing, needs=(True,) * 4
            )
            return (got, *back)
        result = kernels.batch_norm_forward(x, weight, bias, addend=addend, activation=activation)
        kept = joined or engine in (CPU, CPU_PARTS)
        assert (result.sign is not None) == (kept and activation == "relu")
        passing = kernels.Passing(bias, addend, result.sign, activation)
        back = kernels.batch_norm_gradients(dy, x, weight, result.statistics, passing, (True,) * 4)
        return (result.y, *back)

    got_y, dx, dweight, dbias, daddend = engine.run(
        run, x, dy, addend, weight, bias, *(statistics or ())
    )
    rows = x.size // shape[1]
    # The spread of n = 2 values can be far below their size: rstd enlarges x's rounding.
    spread = x.astype(np.float64).std((0, *range(2, x.ndim))).min() if not frozen else 1.0
    tolerance = bound(dtype, rows) * max(1.0, 1 / (spread + 3e-3)) ** 2
    if activation == "relu" and np.abs(z).min() < 10 * tolerance:
        return  # at the kink, rounding chooses the side
    assert got_y.dtype == x.dtype and dx.strides == x.strides
    for got, want in zip((got_y, dx, dweight, dbias, daddend), (y, *gradients), strict=True):
        scale = 4 + np.abs(want).max() + np.abs(dy.astype(np.float64)).max()
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=tolerance * scale)


# The families of plan.py need sizes that hypothesis would seldom draw: a resident tile, one split
# over programs in registers, and one that streams; contiguous channels and runs that are not
# aligned; the last part, tile and channel tile not full.
FAMILIES = [
    ((64, 48), "contiguous"), ((5000, 3), "contiguous"), ((40_000, 5), "contiguous"),
    ((9, 2, 40, 40), "contiguous"), ((300, 3, 13, 13), "contiguous"),
    ((11, 1, 101, 101), "contiguous"),
    ((30, 24, 28, 28), "channels_last"), ((3, 130, 9, 9), "channels_last"),
]  # fmt: skip


@all_engines
@pytest.mark.parametrize(("shape", "layout"), FAMILIES)
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.float64])
def test_every_family(engine, shape, layout, dtype):
    check_training(engine, shape, layout, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_launch_of_its_own_merges_the_sums_of_many_parts(dtype, monkeypatch):
    monkeypatch.setattr(gpu, "ON_NO_GPU", 20)
    shape = (20_000, 3)
    for kernel in (BatchNormForward(), BatchNormBackward()):
        plan = kernel.plan(np.zeros(shape, dtype))
        assert plan.merging and not plan.together
    check_training(INTERPRET, shape, "contiguous", dtype)


def check_training(engine, shape, layout, dtype):
    """Both passes and the running statistics against float64."""
    x, dy, _, weight, bias = draw(shape, np.float64, layout, 1)
    x = (x * 3 + 5).astype(dtype)
    y, _, gradients = expected(x, dy, None, weight, bias, None)
    count = np.zeros((), np.int64)

    def run(x, dy, weight, bias, running_mean, running_var, count):
        result = kernels.batch_norm_forward(
            x, weight, bias, running_mean, running_var, num_batches_tracked=count
        )
        mean, rstd, residual = result.statistics.arrays
        back = kernels.batch_norm_backward(dy, x, weight, mean, rstd, residual=residual)
        return (result.y, *back, running_mean, running_var, count)

    dy = dy.astype(dtype)
    _, _, gradients = expected(x, dy, None, weight, bias, None)
    zeros = np.zeros(shape[1], np.float32)
    results = engine.run(run, x, dy, weight, bias, zeros, zeros + 1, count)
    got_y, dx, dweight, dbias, running_mean, running_var, tracked = results
    rows = x.size // shape[1]
    kept = np.float64 if dtype == np.float64 else np.float32
    few = 2 * epsilon(dtype) + 32 * epsilon(kept)
    # Sums of n terms in trees, at most 64 added one after another; weight is float32 in all.
    for got, want, terms in ((got_y, y, 1), (dx, gradients[0], 1)):
        atol = (few + 64 * epsilon(kept)) * (4 + np.abs(want).max())
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=0, atol=terms * atol)
    total = np.abs(dy.astype(np.float64)).sum() / shape[1]
    for got, want in ((dweight, gradients[1]), (dbias, gradients[2])):
        atol = 256 * epsilon(kept) * 4 * total + 2 * epsilon(np.float32) * np.abs(want).max()
        np.testing.assert_allclose(got, want, rtol=0, atol=atol)
    axes = (0, *range(2, x.ndim))
    exact = x.astype(np.float64)
    np.testing.assert_allclose(running_mean, 0.1 * exact.mean(axes), rtol=64 * epsilon(np.float32))
    unbiased = exact.var(axes) * rows / (rows - 1)
    np.testing.assert_allclose(running_var, 0.9 + 0.1 * unbiased, rtol=64 * epsilon(np.float32))
    assert tracked == 1


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(5000, 3), (64, 256, 28, 28), (9, 2, 40, 40)])
def test_a_graph_replayed_and_calls_on_other_streams_agree(shape):
    import cupy

    rng = np.random.default_rng(3)
    x = cupy.asarray(rng.normal(size=shape).astype(np.float32))
    dy = cupy.asarray(rng.normal(size=shape).astype(np.float32))

    def step():
        result = kernels.batch_norm_forward(x, activation="silu")
        passing = kernels.Passing(None, None, None, "silu")
        mean, rstd, residual = result.statistics.arrays
        back = kernels.batch_norm_backward(
            dy, x, None, mean, rstd, residual=residual, passing=passing
        )
        return result.y, back[0]

    want = [a.get() for a in step()]
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    cupy.cuda.get_current_stream().synchronize()
    results = []
    for _ in range(20):  # the streams' launches overlap
        for stream in streams:
            with stream:
                results.append(step())
    cupy.cuda.runtime.deviceSynchronize()
    pool = cupy.cuda.MemoryPool()
    with streams[0], cupy.cuda.using_allocator(pool.malloc):
        streams[0].begin_capture()
        captured = step()
        graph = streams[0].end_capture()
        for stream in (streams[0], streams[1]):
            for _ in range(3):
                for array in captured:
                    array.fill(float("nan"))
                streams[0].synchronize()
                graph.launch(stream)
                stream.synchronize()
                for got, value in zip(captured, want, strict=True):
                    np.testing.assert_array_equal(got.get(), value)
    for result in results:
        for got, value in zip(result, want, strict=True):
            np.testing.assert_array_equal(got.get(), value)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(300, 3, 13, 13), (5000, 3), (40_000, 16), (50, 4, 40, 41)])
def test_programs_that_wait_see_all_sums_every_time(shape):
    import cupy

    rng = np.random.default_rng(5)
    x, dy = (cupy.asarray(rng.normal(size=shape).astype(np.float32)) for _ in range(2))
    first = None
    for _ in range(300):
        result = kernels.batch_norm_forward(x)
        mean, rstd, residual = result.statistics.arrays
        dx, *_ = kernels.batch_norm_backward(dy, x, None, mean, rstd, residual=residual)
        y = result.y
        if first is None:
            exact = x.get().astype(np.float64)
            axes = (0, *range(2, x.ndim))
            want = exact - exact.mean(axes, keepdims=True)
            want /= np.sqrt(exact.var(axes, keepdims=True) + 1e-5)
            np.testing.assert_allclose(y.get(), want, rtol=0, atol=64 * epsilon(np.float32))
            first = y, dx
        assert (y == first[0]).all() and (dx == first[1]).all()


@pytest.mark.parametrize("contiguous", [True, False])
@pytest.mark.parametrize("tensors", [1, 2])
def test_a_plan_covers_every_row_once_and_fits_the_gpu(contiguous, tensors):
    for rows in (2, 49, 128, 1000, 4096, 65_537, 1_000_003):
        for channels in (1, 3, 64, 100, 2048):
            for cooperative in (True, False):
                plan = make_plan(rows, channels, contiguous, 4, tensors, 132, cooperative)
                assert plan.parts * plan.part_rows >= rows > (plan.parts - 1) * plan.part_rows
                assert plan.tiles * plan.block_rows >= plan.part_rows
                assert plan.tiles % plan.loaded == 0
                assert plan.units * plan.block_channels >= channels * plan.parts
                if plan.parts > 1 and plan.together:
                    # All programs that wait for each other run at once.
                    threads = plan.warps * 32
                    each = 65_536 // (plan.registers * threads)
                    assert plan.programs <= 132 * min(each, 2048 // threads)
                    assert plan.programs >= plan.parts
                    assert (
                        plan.merge_channels * min(plan.parts, plan.block_channels)
                        >= plan.block_channels
                    )


def test_what_is_passed_is_checked():
    x = np.zeros((4, 3), np.float32)
    with pytest.raises(ArgumentError, match="relu"):
        kernels.batch_norm_forward(x, activation="tanh")
    with pytest.raises(ShapeError, match="addend"):
        kernels.batch_norm_forward(x, addend=x[:2])


@all_engines
def test_relu_passes_the_gradient_of_nan_with_and_without_a_residual(engine):
    # PyTorch's rule: dy where the argument is not at most 0.
    x = np.array([[np.nan], [1.0], [2.0], [-5.0]], np.float32)
    dy = np.ones_like(x)

    def run(x, dy, addend):
        result = kernels.batch_norm_forward(x, addend=addend, activation="relu")
        passing = kernels.Passing(None, addend, result.sign, "relu")
        needs = (True, True, True, addend is not None)
        _, _, dbias, _ = kernels.batch_norm_gradients(
            dy, x, None, result.statistics, passing, needs
        )
        return dbias, result.y

    for addend in (None, np.zeros_like(x)):
        dbias, y = engine.run(run, x, dy, addend)
        assert np.isnan(y).all() and dbias.tolist() == [4.0]


@all_engines
@pytest.mark.parametrize("activation", ["relu", "silu", "gelu"])
def test_infinities_have_the_activations_limits(engine, activation):
    x = np.array([[-np.inf], [np.inf], [-1.0], [1.0], [np.nan]], np.float32)
    zero, one = np.zeros(1, np.float32), np.ones(1, np.float32)

    def run(x, dy, mean, var):
        y = kernels.batch_norm_forward_inference(x, None, None, mean, var, activation=activation)
        passing = kernels.Passing(None, None, None, activation)
        back = kernels.batch_norm_frozen_backward(dy, x, None, mean, var, passing=passing)
        return y, back[0]

    y, dx = engine.run(run, x, np.ones_like(x), zero, one)
    assert y[:2, 0].tolist() == [0.0, np.inf] and np.isnan(y[4, 0])
    np.testing.assert_allclose(dx[:2, 0], [0.0, 1.0], atol=1e-5)  # rstd is 1/sqrt(1 + 1e-5)
    if activation == "relu":  # where it has no slope, an infinite gradient goes nowhere
        _, dx = engine.run(run, x, np.full_like(x, np.inf), zero, one)
        assert dx[:4, 0].tolist() == [0.0, np.inf, 0.0, np.inf]


@all_engines
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_rows_that_are_not_there_add_nothing(engine, activation):
    # Three rows in a tile of four; what the fourth would be overflows.
    x = np.full((3, 1), 2e36, np.float32)

    def run(x, weight, bias):
        result = kernels.batch_norm_forward(x, weight, bias, activation=activation)
        passing = kernels.Passing(bias, None, None, activation)
        dy, needs = x / x, (True, True, True, False)
        return kernels.batch_norm_gradients(dy, x, weight, result.statistics, passing, needs)[:3]

    weight, bias = np.array([3.0], np.float32), np.zeros(1, np.float32)
    dx, dweight, dbias = engine.run(run, x, weight, bias)
    assert not dx.any() and dweight.tolist() == [0.0] and dbias.tolist() == [1.5]


@all_engines
def test_a_read_only_count_is_refused_before_anything_changes(engine):
    if engine.name == "cuda":
        pytest.skip("CuPy arrays are never read-only")
    x, mean, var = np.eye(3, dtype=np.float32), np.zeros(3, np.float32), np.ones(3, np.float32)
    count = np.zeros((), np.int64)
    count.flags.writeable = False
    with engine.active(), pytest.raises(ArgumentError, match="num_batches_tracked is read-only"):
        kernels.batch_norm_forward(x, None, None, mean, var, num_batches_tracked=count)
    assert not mean.any() and count == 0


@all_engines
@pytest.mark.parametrize("momentum", [np.float32(0.5), np.int64(1), np.float64(0)])
def test_momentum_may_be_a_numpy_scalar(engine, momentum):
    x, zeros = np.eye(3, dtype=np.float32), np.zeros(3, np.float32)

    def run(x, mean, var):
        kernels.batch_norm_forward(x, None, None, mean, var, momentum=momentum)
        return mean

    np.testing.assert_allclose(engine.run(run, x, zeros, zeros + 1), float(momentum) / 3, rtol=1e-6)


def test_arguments_that_are_no_numbers_and_a_pair_that_is_none():
    x, mean, var = np.eye(3, dtype=np.float32), np.zeros(3, np.float32), np.ones(3, np.float32)
    for options, words in (
        (dict(momentum="a"), "momentum is 'a'"),
        (dict(momentum=None), "momentum is None"),
        (dict(eps=None), "eps is None"),
        (dict(out=(mean.copy(),)), "pair"),
    ):
        with pytest.raises(ArgumentError, match=words):
            kernels.batch_norm_stats_forward(x, mean, var, **options)
    assert not mean.any()


@all_engines
def test_what_forward_passed_on_is_checked(engine):
    x, dy, addend, weight, bias = draw((6, 3), np.float32, "contiguous", 0)

    def run(x, dy, addend, weight, bias, passing):
        result = kernels.batch_norm_forward(x, weight, bias)
        kernels.batch_norm_gradients(dy, x, weight, result.statistics, passing, (True,) * 4)

    Passing = kernels.Passing
    for passing, error, words in (
        (Passing(engine.put(bias[:2]), None, None, "silu"), ShapeError, "bias has shape"),
        (Passing(None, engine.put(addend[:2]), None, "silu"), ShapeError, "addend is"),
        (Passing(None, None, engine.put(addend[:2] > 0), "relu"), ShapeError, "sign has shape"),
        (Passing(None, None, engine.put(addend), "relu"), DTypeError, "sign has dtype"),
        (Passing(None, None, None, "tanh"), ArgumentError, "activation is 'tanh'"),
    ):
        with pytest.raises(error, match=words):
            engine.run(run, x, dy, addend, weight, bias, passing=passing)
