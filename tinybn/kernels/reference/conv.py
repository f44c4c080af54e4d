"""Convolution: products of windows with filters, as one matrix product for some samples.

y[n, o, i, j] = bias[o] + Σ weight[o, c, k, l]·x[n, c, i·s + k·d − p, j·s + l·d − p] over the
channels c of o's group and the filter's taps k, l; x is 0 in the padding (Dumoulin and Visin 2016,
https://arxiv.org/abs/1603.07285, chapter 2). Sums are in the accumulation dtype.

BLAS has threads of its own, so the parts are taken one after another. Where windows lie and what
lies under them is in grid.py.
"""

from __future__ import annotations

import numpy as np

from ..arrays import accumulation_dtype
from ..windows import Windows
from .grid import Grid
from .matmul import finish
from .parts import in_parts

Array = np.ndarray

PART_BYTES = 2**22  # of the matrices of some samples: those of all do not fit into a cache


def _filters(weight: Array, groups: int, wide: np.dtype) -> Array:
    """weight [O, C/g, KH, KW] as matrices [groups, O/g, C/g·taps]."""
    return weight.reshape(groups, weight.shape[0] // groups, -1).astype(wide, copy=False)


def _parts(samples: int, weight: Array, groups: int, grid: Grid, wide: np.dtype) -> list[slice]:
    """Samples whose matrices of windows and of y take PART_BYTES."""
    rows = groups * weight[0].size + weight.shape[0]
    return in_parts(samples, max(1, PART_BYTES // (rows * grid.windows_per_image * wide.itemsize)))


def conv2d_forward(
    x: Array, weight: Array, bias: Array | None, y: Array, *, windows: Windows, groups: int,
    addend: Array | None = None, activation: str | None = None,
) -> None:  # fmt: skip
    """y = activation(weight ⋆ x + bias + addend), [N, O, OH, OW], of x [N, C, H, W]."""
    wide = accumulation_dtype(x.dtype)
    filters = _filters(weight, groups, wide)
    grid = Grid(windows, x.shape[2:], y.shape[2:])
    with np.errstate(all="ignore"):
        for part in _parts(len(x), weight, groups, grid, wide):
            product = filters @ grid.patches(x[part], groups)
            if bias is not None:
                product += bias.astype(wide, copy=False).reshape(groups, -1, 1)
            results = grid.results(product, part.stop - part.start)
            if addend is None and activation is None:
                y[part] = results
            else:
                added = None if addend is None else addend[part]
                finish(results, None, added, activation, y[part])


def conv2d_backward_input(
    dy: Array, weight: Array, dx: Array, *, windows: Windows, groups: int
) -> None:
    """dx[m] = Σ weight[o, c, k, l]·dy[n, o, i, j] over all windows whose tap k, l lies on m."""
    wide = accumulation_dtype(dy.dtype)
    filters = _filters(weight, groups, wide).swapaxes(1, 2)
    grid = Grid(windows, dx.shape[2:], dy.shape[2:])
    finite = np.isfinite(filters).all()
    with np.errstate(all="ignore"):
        for part in _parts(len(dx), weight, groups, grid, wide):
            product = filters @ grid.gradients(dy[part], groups)
            if not finite:
                product = grid.without_crossing(product)
            grid.add_patches(product, dx[part])


def conv2d_backward_weight(
    dy: Array, x: Array, dweight: Array, *, windows: Windows, groups: int
) -> None:
    """dweight[o, c, k, l] = Σ dy[n, o, i, j]·x[n, c, …] over all samples and windows."""
    grid = Grid(windows, x.shape[2:], dy.shape[2:])
    with np.errstate(all="ignore"):
        total = _weight_gradient(dy, x, dweight, grid, groups, finite=True)
        wrong = ~np.isfinite(total)
        if wrong.any():
            again = _weight_gradient(dy, x, dweight, grid, groups, finite=False)
            np.copyto(total, again, where=wrong)
        dweight[...] = total.reshape(dweight.shape)


def _weight_gradient(
    dy: Array, x: Array, dweight: Array, grid: Grid, groups: int, finite: bool
) -> Array:
    """The gradient as matrices [groups, O/g, C/g·taps] in the accumulation dtype.

    ``finite`` is whether windows across the zeros, times 0, are 0: x has neither ∞ nor NaN.
    """
    wide = accumulation_dtype(dy.dtype)
    total = np.zeros((groups, dweight.shape[0] // groups, dweight[0].size), wide)
    for part in _parts(len(x), dweight, groups, grid, wide):
        patches = grid.patches(x[part], groups)
        if not finite:
            patches = grid.without_crossing(patches)
        total += grid.gradients(dy[part], groups) @ patches.swapaxes(1, 2)
    return total
