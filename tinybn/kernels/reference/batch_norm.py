"""BatchNorm (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167).

x is [N, C] or [N, C, …], and the statistics of a channel run over all other axes. All is worked
out in float64, in place, for a few samples at a time.
"""

from __future__ import annotations

import math

import numpy as np

from ..arrays import keep
from .activations import ACTIVATIONS
from .parts import in_parts, on_all_cores

Array = np.ndarray

PART_BYTES = 2**21  # of float64 for one part of the samples: some such arrays stay in the cache


def _samples_a_part(x: Array) -> int:
    """How many samples are worked on at a time."""
    sample_bytes = math.prod(x.shape[1:]) * np.dtype(np.float64).itemsize
    return min(len(x), max(1, PART_BYTES // max(1, sample_bytes)))


def _parts(x: Array) -> list[slice]:
    """The samples, a few at a time."""
    return in_parts(len(x), _samples_a_part(x))


def _axes(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _column(values: Array | None, x: Array, default: float = 0.0) -> Array | float:
    """A [C] array in float64, shaped so that it broadcasts along ``x``'s channels.

    Where parts are of several samples it is written out for a whole one: NumPy's loops then run
    over all of a sample, not over a channel at a time, in half the time.
    """
    if values is None:
        return default
    column = values.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))
    if _samples_a_part(x) <= 1:
        return column
    sample = np.empty_like(x[0], np.float64)
    sample[...] = column
    return sample


def _count(x: Array) -> int:
    return x.size // x.shape[1]


def _sum_of_products(a: Array, b: Array) -> Array:
    """Σ a·b of each channel, without an array of the products."""
    axes = list(range(a.ndim))
    return np.einsum(a, axes, b, axes, [1])


def batch_norm_stats_forward(
    x: Array,
    running_mean: Array | None,
    running_var: Array | None,
    mean: Array,
    rstd: Array,
    residual: Array | None,
    *,
    eps: float,
    momentum: float,
) -> None:
    """Mean and 1/sqrt(var + eps) of each channel (the paper's algorithm 1, lines 1 and 2).

    ``residual`` gets what rounding to ``mean``'s dtype took from the mean. The
    variance divides by n; the running variance takes n/(n−1) of it.
    """
    n = _count(x)

    def moments(part: slice) -> tuple[float, Array, Array]:
        spread = x[part].astype(np.float64)
        count = _count(spread)
        centre = spread.sum(axis=_axes(x)) / count
        spread -= _column(centre, x)
        return float(count), centre, _sum_of_products(spread, spread)

    with np.errstate(all="ignore"):
        counts, centres, squares = map(np.array, zip(*on_all_cores(moments, _parts(x))))
        exact = counts @ centres / n
        # The squares within the parts, and between them (Chan, Golub and LeVeque 1979).
        var = (squares.sum(axis=0) + counts @ np.square(centres - exact)) / n
        mean[...] = exact
        rstd[...] = 1 / np.sqrt(var + eps)
        if residual is not None:
            residual[...] = exact - mean
        if running_mean is not None and running_var is not None:
            running_mean[...] = (1 - momentum) * running_mean.astype(np.float64) + momentum * exact
            unbiased = var * (n / (n - 1))
            running_var[...] = (1 - momentum) * running_var.astype(np.float64) + momentum * unbiased


def _scale(z: Array, scale: Array | float, shift: Array | float, addend: Array | None) -> None:
    """z, which is x − mean, becomes what the activation is given."""
    z *= scale
    z += shift
    if addend is not None:
        z += addend.astype(np.float64, copy=False)


def _activated(
    x: Array,
    addend: Array | None,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    rstd: Array,
    residual: Array | None,
    y: Array,
    sign: Array | None,
    activation: str | None,
) -> None:
    """y = activation(x̂·weight + bias + addend); ``sign`` is where its argument is not at most 0."""
    centre = _column(mean, x) + _column(residual, x)
    scale, shift = _column(rstd, x) * _column(weight, x, 1.0), _column(bias, x)

    def work(part: slice) -> None:
        z = x[part].astype(np.float64)
        z -= centre
        _scale(z, scale, shift, None if addend is None else addend[part])
        if sign is not None:
            np.logical_not(z <= 0, out=sign[part])
        y[part] = ACTIVATIONS[activation][0](z)

    with np.errstate(all="ignore"):
        on_all_cores(work, _parts(x))


def batch_norm_normalize_forward(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    rstd: Array,
    residual: Array | None,
    y: Array,
) -> None:
    """y = (x − mean)·rstd·weight + bias (algorithm 1, lines 3 and 4)."""
    _activated(x, None, weight, bias, mean, rstd, residual, y, None, None)


def batch_norm_forward(
    x: Array,
    addend: Array | None,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array | None,
    running_var: Array | None,
    tracked: Array | None,
    y: Array,
    sign: Array | None,
    mean: Array,
    rstd: Array,
    residual: Array | None,
    *,
    eps: float,
    momentum: float | Array,
    activation: str | None,
) -> None:
    """Statistics as above and y = activation((x − mean)·rstd·weight + bias + addend).

    ``tracked``, 0-d, goes up by one; ``sign`` gets where the activation's argument is positive
    or NaN.
    """
    batch_norm_stats_forward(
        x, running_mean, running_var, mean, rstd, residual, eps=eps, momentum=float(momentum)
    )
    if tracked is not None:
        tracked += 1
    _activated(x, addend, weight, bias, mean, rstd, residual, y, sign, activation)


def batch_norm_forward_inference(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    y: Array,
    *,
    eps: float,
    addend: Array | None = None,
    activation: str | None = None,
) -> None:
    """y = activation((x − running_mean)/sqrt(running_var + eps)·weight + bias + addend)."""
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt(running_var.astype(np.float64) + eps)
    _activated(x, addend, weight, bias, running_mean, rstd, None, y, None, activation)


# The same mathematics; the kernel of this name is for [N, C, H, W] alone.
batch_norm_2d_nchw_forward_inference = batch_norm_forward_inference


def batch_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    rstd: Array,
    residual: Array | None,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
    *,
    bias: Array | None = None,
    addend: Array | None = None,
    sign: Array | None = None,
    daddend: Array | None = None,
    activation: str | None = None,
) -> None:
    """Gradients where mean and rstd are the batch's own (section 3 of the paper, simplified).

    With x̂ = (x − mean)·rstd over n values and g the gradient of what the
    activation was given: dbias = Σ g, dweight = Σ g·x̂, daddend = g,
    dx = weight·rstd·(g − dbias/n − x̂·dweight/n).
    """
    _backward(
        dy, x, weight, mean, rstd, residual, dx, dweight, dbias, bias, addend, sign, daddend,
        activation, constant=False,
    )  # fmt: skip


def batch_norm_2d_nchw_backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array,
    running_var: Array,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
    *,
    eps: float,
    bias: Array | None = None,
    addend: Array | None = None,
    sign: Array | None = None,
    daddend: Array | None = None,
    activation: str | None = None,
) -> None:
    """Gradients where the statistics are constants: dx = weight·rstd·g."""
    with np.errstate(all="ignore"):
        rstd = 1 / np.sqrt(running_var.astype(np.float64) + eps)
    _backward(
        dy, x, weight, running_mean, rstd, None, dx, dweight, dbias, bias, addend, sign, daddend,
        activation, constant=True,
    )  # fmt: skip


def _backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    rstd: Array,
    residual: Array | None,
    dx: Array | None,
    dweight: Array | None,
    dbias: Array | None,
    bias: Array | None,
    addend: Array | None,
    sign: Array | None,
    daddend: Array | None,
    activation: str | None,
    *,
    constant: bool,
) -> None:
    """The gradients, where the statistics are constants or the batch's own."""
    rstd = rstd.astype(np.float64)
    centre = _column(mean, x) + _column(residual, x)
    scale, shift = _column(rstd, x) * _column(weight, x, 1.0), _column(bias, x)

    def gradients(part: slice) -> tuple[Array, Array]:
        """x − mean, and the gradient of what the activation was given."""
        centred = x[part].astype(np.float64)
        centred -= centre
        g = dy[part]
        if sign is not None:
            g = keep(sign[part], g)
        g = g.astype(np.float64)
        if sign is None and activation is not None:
            z = centred.copy()
            _scale(z, scale, shift, None if addend is None else addend[part])
            g = ACTIVATIONS[activation][1](g, z)
        return centred, g

    def sums(part: slice) -> tuple[Array, Array]:
        centred, g = gradients(part)
        if daddend is not None:
            daddend[part] = g
        return g.sum(axis=_axes(x)), _sum_of_products(g, centred)

    with np.errstate(all="ignore"):
        sum_g, sum_g_centred = np.sum(on_all_cores(sums, _parts(x)), axis=0)
        sum_g_x_hat = rstd * sum_g_centred
        if dbias is not None:
            dbias[...] = sum_g
        if dweight is not None:
            dweight[...] = sum_g_x_hat
        if dx is None:
            return
        if not constant:
            n = _count(x)
            share, slope = _column(sum_g, x) / n, _column(rstd * sum_g_x_hat, x) / n

        def work(part: slice) -> None:
            # Computing these again is cheaper than storing them.
            centred, g = gradients(part)
            if not constant:
                g -= share
                centred *= slope
                g -= centred
            g *= scale
            dx[part] = g

        on_all_cores(work, _parts(x))
