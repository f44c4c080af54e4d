"""Sizes beyond CUDA's grids and 32-bit offsets, in every kernel that has tiles.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring. BN-46 and BN-47 themselves are with BatchNorm's cases; here
is the rest of their kind.
"""

from __future__ import annotations

import math
from unittest import mock

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import F, assert_close, assert_same, case
from tests.engines import CPU
from tinybn import kernels, nn
from tinybn.kernels import launch
from tinybn.kernels.arrays import namespace

LIMIT = 65_535  # programs along the second and the third axis of a grid
CHANNELS = "torch/cunn#298, LBANN/lbann#1610"
OFFSETS = ("triton-lang/triton#832, triton-lang/triton#1058, flagos-ai/FlagGems#327, "
           "flagos-ai/FlagGems#4156")  # fmt: skip


def half(*shape):
    return np.zeros(shape, np.float16)


def conv(x, weight, groups=1):
    x, weight = (tb.Tensor.wrap(a) for a in (x, weight))
    x.requires_grad = weight.requires_grad = True
    y = nn.functional.conv2d(x, weight, groups=groups)
    y.backward(tb.zeros_like(y))


def pool(function, x):
    x = tb.Tensor.wrap(x)
    x.requires_grad = True
    y = function(x, 2)
    y.backward(tb.zeros_like(y))


def batch_norm(x):
    x = tb.Tensor.wrap(x)
    x.requires_grad = True
    y = nn.functional.batch_norm(x, None, None, training=True)
    y.backward(tb.zeros_like(y))
    channel = np.ones(x.shape[1], np.float32)
    kernels.batch_norm_forward_inference(x.data, None, None, channel, channel)


def gather_images(side):
    images, labels = np.zeros((1, side, side), np.uint8), np.zeros(1, np.int64)
    kernels.gather_images(images, labels, labels, np.zeros(256, np.float32), 1)


def linear(x, weight):
    x, weight = (tb.Tensor.wrap(a) for a in (x, weight))
    x.requires_grad = weight.requires_grad = True
    y = nn.functional.linear(x, weight)
    y.backward(tb.zeros_like(y))


@pytest.mark.parametrize(
    "call",
    [
        case("BN-46", CHANNELS, call)
        for call in (
            lambda: batch_norm(half(3, LIMIT + 2)),
            lambda: batch_norm(half(2, LIMIT + 2, 1, 1)),
            lambda: batch_norm(half(LIMIT + 2, 2, 2)),
            lambda: conv(half(1, LIMIT + 2, 1, 1), half(LIMIT + 2, 1, 1, 1), LIMIT + 2),
            lambda: conv(half(1, 1, 1, 1), half(64 * LIMIT + 1, 1, 1, 1)),
            lambda: conv(half(1, 64 * LIMIT + 1, 1, 1), half(1, 64 * LIMIT + 1, 1, 1)),
            lambda: pool(nn.functional.max_pool2d, half(1, 1, 2, 128 * LIMIT + 2)),
            lambda: pool(nn.functional.avg_pool2d, half(1, 1, 2, 128 * LIMIT + 2)),
            lambda: pool(nn.functional.max_pool2d, half(1, 2, 2, 64 * LIMIT + 1).T.reshape(
                1, 2, 2, 64 * LIMIT + 1).transpose(0, 3, 1, 2)),
            lambda: gather_images(8192),
            lambda: linear(half(64 * LIMIT + 1, 1), half(1, 1)),
            lambda: linear(half(1, 1), half(64 * LIMIT + 1, 1)),
            lambda: linear(half(1, 64 * LIMIT + 1), half(1, 64 * LIMIT + 1)),
        )
    ],
)  # fmt: skip
def test_no_grid_is_larger_than_cuda_allows(call):
    grids = []
    with (
        mock.patch.object(launch.Launcher, "__call__", lambda _, grid, *a, **b: grids.append(grid)),
        tb.interpret(),
    ):
        call()
    assert grids
    for grid in grids:
        assert grid[0] < 2**31 and max(grid[1:], default=0) <= LIMIT, grid


DEPTHWISE = F((2, 7, 3, 4), 7, 3, 16, 4, -1.5), F((14, 1, 2, 2), 5, 1, 8, 4, -1)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(("x", "weight"), [case("BN-46", CHANNELS, *DEPTHWISE)])
def test_groups_in_several_launches(engine, x, weight, channels_last, monkeypatch):
    if engine is not CPU:
        from tinybn.kernels.conv import objects

        monkeypatch.setattr(objects, "MOST_ALONG_AXIS", 3)  # seven groups: three, three and one
    if channels_last:
        x = np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    t, w = tb.Tensor.wrap(engine.put(x)), tb.Tensor(weight, requires_grad=True)
    t.requires_grad = True
    b = tb.Tensor(np.arange(14, dtype=np.float32), requires_grad=True)
    y = nn.functional.conv2d(t, w, b, groups=7)
    dy = F(y.shape, 3, 1, 8, 4, -1)
    y.backward(tb.Tensor(dy))
    want = m.conv(x, weight, np.arange(14), dy=dy, groups=7)
    for got, exact in zip((y, t.grad, w.grad, b.grad), want):
        assert_close(got, exact)


@pytest.mark.parametrize("x", [case("BN-46", CHANNELS, F((1, 2, 2, 9), 7, 3, 16, 4, -1.5))])
def test_wide_tiles_where_columns_are_many(engine, x, monkeypatch):
    if engine is not CPU:
        from tinybn.kernels import common
        from tinybn.kernels.pool import objects

        monkeypatch.setattr(common, "MOST_ALONG_AXIS", 2)
        monkeypatch.setattr(objects, "MOST_COLUMNS", 2)
    t = tb.Tensor(x, requires_grad=True)
    y = nn.functional.max_pool2d(t, 2, 1)
    y.backward(tb.ones_like(y))
    want, dx = m.max_pool(x, 1.0, 2, 1)
    assert_same(y, want)
    assert_same(t.grad, dx)


def far_apart(*shape):
    """Zeros of more than 2³¹ elements, of which only what is written to takes memory."""
    assert math.prod(shape) >= 2**31
    return np.zeros(shape, np.float16)


def in_far_corners(xp, x, step):
    """Numbers at the corners of each image, which a convolution with this stride reads alone."""
    corners = F((x.shape[0], 1, 2, 2), 3, 1, 8)
    x[:, :, :: step[0], :: step[1]] = xp.asarray(corners)
    return corners


@pytest.mark.parametrize(
    "shape",
    [
        case("BN-47", OFFSETS, (5, 1, 16384, 32769)),
        case("BN-47", OFFSETS, (1, 1, 65537, 32769)),
    ],
)
def test_offsets_of_images(engine, shape):
    """Many samples, and one whose own rows lie further apart than 32 bits reach."""
    if engine is CPU:
        pytest.skip("NumPy counts in 64 bits")
    xp = namespace(engine.put(np.zeros(1)))
    x = far_apart(*shape) if xp is np else xp.zeros(shape, np.float16)
    step = shape[2] - 1, shape[3] - 1
    corners = in_far_corners(xp, x, step)
    t, w = tb.Tensor.wrap(x), tb.ones(1, 1, 1, 1, dtype=tb.float16, requires_grad=True)
    y = nn.functional.conv2d(t, w, stride=step)
    dy = F(y.shape, 5, 2, 8)
    y.backward(tb.Tensor(dy, dtype=tb.float16))
    assert_same(y, corners)
    assert_same(w.grad.reshape(()), (dy * corners).sum())
    for pool2d in (nn.functional.max_pool2d, nn.functional.avg_pool2d):
        assert_same(pool2d(t, 1, step), corners)


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [case("BN-47", OFFSETS, (1, 1, 65537, 32769))])
def test_offsets_of_a_convolutions_result(shape):
    import cupy

    x = cupy.zeros(shape, np.float16)
    x[0, 0, -1, -2:] = cupy.asarray([3, 5])
    t = tb.Tensor.wrap(x)
    w = tb.full((1, 1, 1, 1), 2.0, dtype=tb.float16, device="cuda", requires_grad=True)
    y = nn.functional.conv2d(t, w)
    assert y.data[0, 0, -1, -2:].tolist() == [6, 10]
    assert int(cupy.count_nonzero(y.data)) == 2
    y.backward(t)
    assert w.grad.item() == 3 * 3 + 5 * 5
    del x, t, y
    cupy.get_default_memory_pool().free_all_blocks()


@pytest.mark.parametrize("step", [case("BN-47", OFFSETS, 2**29)])
def test_offsets_of_matrices(engine, step):
    """Rows that lie far apart, as those of a slice of a large matrix do."""
    if engine is CPU:
        pytest.skip("NumPy counts in 64 bits")
    xp = namespace(engine.put(np.zeros(1)))
    large = far_apart(5, step) if xp is np else xp.zeros((5, step), np.float16)
    values, weight, dy = F((5, 4), 3, 1, 8), F((2, 4), 5, 1, 4), F((5, 2), 1, 1, 4)
    x = large[:, -4:]
    x[...] = xp.asarray(values)
    moved = [xp.asarray(a, np.float16) for a in (weight, dy)]
    y = kernels.matmul(x, moved[0].T)
    _, dweight, _ = kernels.linear_backward(moved[1], x, moved[0], (False, True, False))
    of_columns = kernels.matmul(moved[1].T, x)
    assert_same(y, m.wide(values) @ m.wide(weight).T)
    assert_same(dweight, m.wide(dy).T @ m.wide(values))
    assert_same(of_columns, m.wide(dy).T @ m.wide(values))


@pytest.mark.parametrize(
    ("kernel", "channels"),
    [
        case("BN-47", OFFSETS, kernel, channels)
        for kernel in ("Conv2dForward", "Conv2dBackwardInput", "Conv2dBackwardWeight")
        for channels in (3, 64)
    ],
)
def test_wide_offsets_compile(kernel, channels):
    from tinybn.kernels.conv import objects

    kernel = getattr(objects, kernel)()
    ((arguments, options),) = kernel.launches(np.dtype("float32"), (8, channels, 14, 14))
    arguments = {**arguments, "WIDE": True}
    if "part_rows" in arguments:
        arguments["part_rows"] = np.int64(arguments["part_rows"])
    assert kernel.launcher.compile("sm_90", arguments, options).assembly


@pytest.mark.parametrize(
    ("needs", "wide"),
    [
        case("BN-47", OFFSETS, (True, False, False), True),
        case("BN-47", OFFSETS, (False, True, False), True),
        case("BN-47", OFFSETS, (False, False, True), False),
    ],
)
def test_gradients_with_more_elements_than_32_bits_count(needs, wide):
    """Of inputs that are small: rows × inputs, or outputs × inputs, is what is large."""
    from tinybn.kernels.product.objects import LinearBackward

    many, inputs = 2**16, 2**15
    rows, out = (many, 4) if needs[0] else (4, many)
    dy, weight, x = half(rows, out), half(out, inputs), half(rows, inputs)
    dx = np.empty((rows, inputs), np.float16) if needs[0] else None
    dweight = np.empty((out, inputs), np.float16) if needs[1] else None
    arguments = LinearBackward()._arguments(
        dy, x if needs[1] else None, weight if needs[0] else None, dx, dweight, None
    )[1]
    assert arguments["WIDE"] == wide
