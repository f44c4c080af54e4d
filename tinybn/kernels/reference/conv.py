"""Convolution: products of windows with filters, as one matrix product a sample.

y[n, o, i, j] = bias[o] + Σ weight[o, c, k, l]·x[n, c, i·s + k·d − p, j·s + l·d − p] over the
channels c of o's group and the filter's taps k, l; x is 0 in the padding (Dumoulin and Visin 2016,
https://arxiv.org/abs/1603.07285, chapter 2). Sums are in the accumulation dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np

from ..arrays import accumulation_dtype
from ..windows import Windows
from .taps import add_taps, under_taps

Array = np.ndarray

PATCH_BYTES = 2**20  # of the windows that are written out at a time: they should stay in cache


def _patches(
    x: Array, windows: Windows, output: tuple[int, int], groups: int
) -> Iterator[tuple[slice, Array]]:
    """Some samples at a time, their windows as matrices [samples, groups, C/g·taps, OH·OW]."""
    wide = accumulation_dtype(x.dtype)
    n, c = x.shape[:2]
    rows, columns = c // groups * windows.taps, output[0] * output[1]
    few = max(1, PATCH_BYTES // max(1, groups * rows * columns * wide.itemsize))
    for start in range(0, n, few):
        part = slice(start, min(start + few, n))
        view = under_taps(x[part].astype(wide, copy=False), windows, output, 0)
        yield part, view.reshape(view.shape[0], groups, rows, columns)


def _filters(weight: Array, groups: int, wide: np.dtype) -> Array:
    """weight [O, C/g, KH, KW] as matrices [groups, O/g, C/g·taps]."""
    return weight.reshape(groups, weight.shape[0] // groups, -1).astype(wide, copy=False)


def conv2d_forward(
    x: Array, weight: Array, bias: Array | None, y: Array, *, windows: Windows, groups: int
) -> None:
    """y [N, O, OH, OW] of x [N, C, H, W]."""
    filters = _filters(weight, groups, accumulation_dtype(x.dtype))
    with np.errstate(all="ignore"):
        for part, patches in _patches(x, windows, y.shape[2:], groups):
            product = np.matmul(filters, patches).reshape(y[part].shape)
            if bias is not None:
                product += bias.astype(product.dtype, copy=False)[:, None, None]
            y[part] = product


def _at_tap(patches: Array, k: int, tap: int) -> Array:
    return patches[:, :, k, tap]


def conv2d_backward_input(
    dy: Array, weight: Array, dx: Array, *, windows: Windows, groups: int
) -> None:
    """dx[m] = Σ weight[o, c, k, l]·dy[n, o, i, j] over all windows whose tap k, l lies on m."""
    wide = accumulation_dtype(dy.dtype)
    filters = _filters(weight, groups, wide).swapaxes(1, 2)
    (n, c), output = dx.shape[:2], dy.shape[2:]
    with np.errstate(all="ignore"):
        few = max(1, PATCH_BYTES // max(1, filters[..., 0].size * dy[0, 0].size * wide.itemsize))
        for start in range(0, n, few):
            part = slice(start, min(start + few, n))
            grad = dy[part].astype(wide, copy=False)
            grad = grad.reshape(grad.shape[0], groups, -1, output[0] * output[1])
            patches = np.matmul(filters, grad)
            patches = patches.reshape(grad.shape[0], c, *windows.kernel, *output)
            add_taps(dx[part], windows, output, partial(_at_tap, patches))


def conv2d_backward_weight(
    dy: Array, x: Array, dweight: Array, *, windows: Windows, groups: int
) -> None:
    """dweight[o, c, k, l] = Σ dy[n, o, i, j]·x[n, c, …] over all samples and windows."""
    wide = accumulation_dtype(dy.dtype)
    total = np.zeros((groups, dweight.shape[0] // groups, dweight[0].size), wide)
    with np.errstate(all="ignore"):
        for part, patches in _patches(x, windows, dy.shape[2:], groups):
            grad = dy[part].astype(wide, copy=False)
            grad = grad.reshape(*patches.shape[:2], -1, patches.shape[-1])
            total += np.matmul(grad, patches.swapaxes(2, 3)).sum(0)
        dweight[...] = total.reshape(dweight.shape)
