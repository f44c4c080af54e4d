"""Textbook formulas in float64 NumPy, with nothing of tinybn in them."""

from __future__ import annotations

import numpy as np


def wide(values) -> np.ndarray:
    return np.asarray(values, np.float64)


def axes(x: np.ndarray) -> tuple[int, ...]:
    """All but the channel's."""
    return (0, *range(2, x.ndim))


def column(values, x: np.ndarray) -> np.ndarray:
    """[C] values (or one) so that they broadcast along x's channels."""
    return wide(values).reshape(-1, *(1,) * (x.ndim - 2))


def moments(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and biased variance of each channel."""
    x = wide(x)
    mean = x.mean(axes(x))
    return mean, np.square(x - column(mean, x)).mean(axes(x))


def batch_norm(x, weight=1.0, bias=0.0, eps=1e-5, mean=None, var=None) -> np.ndarray:
    """(x − mean)/sqrt(var + eps)·weight + bias, by the batch's statistics or those given."""
    if mean is None:
        mean, var = moments(x)
    x = wide(x)
    x_hat = (x - column(mean, x)) / np.sqrt(column(var, x) + eps)
    return x_hat * column(weight, x) + column(bias, x)


def batch_norm_gradients(dy, x, weight=1.0, eps=1e-5, mean=None, var=None):
    """dx, dweight and dbias; of given statistics, which are constants, dx is dy·weight·rstd."""
    frozen = mean is not None
    if not frozen:
        mean, var = moments(x)
    dy, x = wide(dy), wide(x)
    scale = 1 / np.sqrt(column(var, x) + eps)
    x_hat = (x - column(mean, x)) * scale
    dx = dy
    if not frozen:
        dx = dy - dy.mean(axes(x), keepdims=True)
        dx = dx - x_hat * (dy * x_hat).mean(axes(x), keepdims=True)
    return column(weight, x) * scale * dx, (dy * x_hat).sum(axes(x)), dy.sum(axes(x))


def running(batches, momentum=0.1) -> tuple[np.ndarray, np.ndarray]:
    """Running mean and variance, 0 and 1 at first, after these batches; n/(n−1) of the variance."""
    channels = batches[0].shape[1]
    running_mean, running_var = np.zeros(channels), np.ones(channels)
    for x in batches:
        mean, var = moments(x)
        n = x.size // channels
        running_mean = (1 - momentum) * running_mean + momentum * mean
        running_var = (1 - momentum) * running_var + momentum * var * n / (n - 1)
    return running_mean, running_var
