"""BatchNorm (Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167).

x is [N, C] or [N, C, …], and the statistics of a channel run over all other axes.
"""

from __future__ import annotations

import numpy as np

from ..activations import ACTIVATIONS

Array = np.ndarray


def _axes(x: Array) -> tuple[int, ...]:
    return (0, *range(2, x.ndim))


def _column(values: Array | None, x: Array, default: float = 0.0) -> Array | float:
    """A [C] array in float64, shaped so that it broadcasts along ``x``'s channels."""
    if values is None:
        return default
    return values.astype(np.float64).reshape(-1, *(1,) * (x.ndim - 2))


def _count(x: Array) -> int:
    return x.size // x.shape[1]


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
    with np.errstate(all="ignore"):
        x64 = x.astype(np.float64)
        exact = x64.mean(axis=_axes(x))
        var = np.square(x64 - _column(exact, x)).mean(axis=_axes(x))
        mean[...] = exact
        rstd[...] = 1 / np.sqrt(var + eps)
        if residual is not None:
            residual[...] = exact - mean
        if running_mean is not None and running_var is not None:
            running_mean[...] = (1 - momentum) * running_mean.astype(np.float64) + momentum * exact
            unbiased = var * (n / (n - 1))
            running_var[...] = (1 - momentum) * running_var.astype(np.float64) + momentum * unbiased


def _normalized(x: Array, mean: Array, rstd: Array, residual: Array | None) -> Array:
    centre = _column(mean, x) + _column(residual, x)
    return (x - centre) * _column(rstd, x)


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
    with np.errstate(all="ignore"):
        x_hat = _normalized(x, mean, rstd, residual)
        y[...] = x_hat * _column(weight, x, 1.0) + _column(bias, x)


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
    with np.errstate(all="ignore"):
        z = _normalized(x, mean, rstd, residual) * _column(weight, x, 1.0) + _column(bias, x)
        _activate(z, addend, y, sign, activation)


def _activate(
    z: Array, addend: Array | None, y: Array, sign: Array | None, activation: str | None
) -> None:
    if addend is not None:
        z = z + addend.astype(np.float64)
    if sign is not None:
        sign[...] = ~(z <= 0)
    y[...] = ACTIVATIONS[activation][0](z)


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
        x_hat = _normalized(x, running_mean, rstd, None)
        z = x_hat * _column(weight, x, 1.0) + _column(bias, x)
        _activate(z, addend, y, None, activation)


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
    n = _count(x)
    with np.errstate(all="ignore"):
        x_hat = _normalized(x, mean, rstd, residual)
        dy64 = _upstream(dy, x, x_hat, weight, bias, addend, sign, daddend, activation)
        sum_dy = dy64.sum(axis=_axes(x))
        sum_dy_x_hat = (dy64 * x_hat).sum(axis=_axes(x))
        if dbias is not None:
            dbias[...] = sum_dy
        if dweight is not None:
            dweight[...] = sum_dy_x_hat
        if dx is not None and dx.size:
            centred = dy64 - _column(sum_dy, x) / n - x_hat * _column(sum_dy_x_hat, x) / n
            dx[...] = _column(weight, x, 1.0) * _column(rstd, x) * centred


def _upstream(
    dy: Array,
    x: Array,
    x_hat: Array,
    weight: Array | None,
    bias: Array | None,
    addend: Array | None,
    sign: Array | None,
    daddend: Array | None,
    activation: str | None,
) -> Array:
    """The gradient of the activation's argument, and so of ``addend``."""
    g = dy.astype(np.float64)
    if sign is not None:
        g = np.where(sign, g, 0.0)
    elif activation is not None:
        z = x_hat * _column(weight, x, 1.0) + _column(bias, x)
        if addend is not None:
            z = z + addend.astype(np.float64)
        g = ACTIVATIONS[activation][1](g, z)
    if daddend is not None:
        daddend[...] = g
    return g


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
        x_hat = _normalized(x, running_mean, rstd, None)
        dy64 = _upstream(dy, x, x_hat, weight, bias, addend, sign, daddend, activation)
        if dbias is not None:
            dbias[...] = dy64.sum(axis=_axes(x))
        if dweight is not None:
            dweight[...] = (dy64 * x_hat).sum(axis=_axes(x))
        if dx is not None:
            dx[...] = _column(weight, x, 1.0) * _column(rstd, x) * dy64
