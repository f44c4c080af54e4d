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


def windows(x, size: int, stride: int, padding: int = 0, fill: float = 0.0):
    """[N, C, H, W] as [N, C, OH, OW, size, size], and the numbers of the elements in each.

    Elements of the padding, which are ``fill``, have number −1.
    """
    n, c, h, w = np.shape(x)
    around = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    values = np.pad(wide(x), around, constant_values=fill)
    numbers = np.pad(np.arange(n * c * h * w).reshape(n, c, h, w), around, constant_values=-1)
    cut = tuple(
        np.lib.stride_tricks.sliding_window_view(a, (size, size), (2, 3))[:, :, ::stride, ::stride]
        for a in (values, numbers)
    )
    return cut


def scattered(shape, numbers, values) -> np.ndarray:
    """Zeros of ``shape`` with ``values`` added to the elements of these numbers."""
    total = np.zeros(int(np.prod(shape)))
    np.add.at(total, numbers.reshape(-1), wide(values).reshape(-1))
    return total.reshape(shape)


def max_pool(x, dy, size: int, stride: int, padding: int = 0):
    """y, and dx: each window's gradient goes to its first largest element."""
    values, numbers = windows(x, size, stride, padding, -np.inf)
    flat = values.reshape(*values.shape[:4], -1)
    inside = numbers.reshape(flat.shape) >= 0
    # Among −∞ everywhere an element of the image comes before one of the padding.
    order = np.lexsort((np.broadcast_to(np.arange(flat.shape[-1]), flat.shape), ~inside, -flat))
    first = order[..., :1]
    y = np.take_along_axis(flat, first, -1)[..., 0]
    winners = np.take_along_axis(numbers.reshape(flat.shape), first, -1)[..., 0]
    return y, scattered(np.shape(x), winners, dy * np.ones(y.shape))


def adaptive_avg_pool(x, dy, out: int):
    """y and dx of [N, C, H, H] to [N, C, out, out]: window i is rows ⌊i·H/out⌋ to ⌈(i + 1)·H/out⌉.

    Each window is averaged, and its gradient shared out, by itself.
    """
    x, side = wide(x), np.shape(x)[-1]
    cuts = [slice(i * side // out, -(-(i + 1) * side // out)) for i in range(out)]
    y, dx = np.zeros((*x.shape[:2], out, out)), np.zeros(x.shape)
    for i, rows in enumerate(cuts):
        for j, columns in enumerate(cuts):
            window = x[:, :, rows, columns]
            y[:, :, i, j] = window.mean((2, 3))
            share = wide(dy)[:, :, i, j] / (window.shape[2] * window.shape[3])
            dx[:, :, rows, columns] += share[:, :, None, None]
    return y, dx


def conv(x, weight, bias=0.0, dy=None, stride: int = 1, padding: int = 0, groups: int = 1):
    """y, and where dy is given (y's shape, or a function of y) dx, dweight and dbias too."""
    weight = wide(weight)
    size = weight.shape[-1]
    n, channels = np.shape(x)[:2]
    values, numbers = windows(x, size, stride, padding)
    out_h, out_w = values.shape[2:4]
    grouped = values.reshape(n, groups, channels // groups, out_h, out_w, size, size)
    filters = weight.reshape(groups, -1, *weight.shape[1:])
    y = np.einsum("ngchwij,gocij->ngohw", grouped, filters)
    y = y.reshape(n, weight.shape[0], out_h, out_w)
    y = y + wide(bias).reshape(-1, 1, 1)
    if dy is None:
        return y
    dy = wide(dy(y) if callable(dy) else dy)
    upstream = dy.reshape(n, *filters.shape[:2], out_h, out_w)
    dweight = np.einsum("ngchwij,ngohw->gocij", grouped, upstream).reshape(weight.shape)
    back = np.einsum("ngohw,gocij->ngchwij", upstream, filters).reshape(values.shape)
    inside = numbers >= 0
    return y, scattered(np.shape(x), numbers[inside], back[inside]), dweight, dy.sum((0, 2, 3))


def log_softmax(z) -> np.ndarray:
    z = wide(z)
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


def cross_entropy(z, target, weight=None, ignore=-100, reduction="mean", smoothing=0.0):
    """The loss of rows of logits, and its gradient (that of the sum for reduction none)."""
    log_p = log_softmax(z)
    rows, classes = log_p.shape
    w = np.ones(classes) if weight is None else wide(weight)
    loss, dz, divisor = np.zeros(rows), np.zeros((rows, classes)), 0.0
    for i, t in enumerate(target):
        if t == ignore:
            continue
        share = smoothing / classes * w
        share[t] += (1 - smoothing) * w[t]  # loss = −Σ share·log p
        loss[i] = -(share * log_p[i]).sum()
        dz[i] = np.exp(log_p[i]) * share.sum() - share
        divisor += w[t]
    if reduction == "none":
        return loss, dz
    if reduction == "sum":
        return loss.sum(), dz
    return (loss.sum() / divisor, dz / divisor) if divisor else (np.nan, np.zeros_like(dz))


def sgd(p, grads, lr, momentum=0.0, decay=0.0, nesterov=False):
    """The parameter after each step (Sutskever et al. 2013; L2 decay is part of the gradient)."""
    p, buffer, steps = wide(p), None, []
    for g in grads:
        g = wide(g) + decay * p
        if momentum:
            buffer = g if buffer is None else momentum * buffer + g
            g = g + momentum * buffer if nesterov else buffer
        p = p - lr * g
        steps.append(p)
    return np.array(steps)


def adam(p, grads, lr, decay=0.0, decoupled=False, betas=(0.9, 0.999), eps=1e-8):
    """The parameter after each step (Kingma and Ba 2014; Loshchilov and Hutter 2017)."""
    p, first, second, steps = wide(p), 0.0, 0.0, []
    for step, g in enumerate(grads, 1):
        g = wide(g) + (0.0 if decoupled else decay * p)
        if decoupled:
            p = p - lr * decay * p
        first = betas[0] * first + (1 - betas[0]) * g
        second = betas[1] * second + (1 - betas[1]) * g * g
        root = np.sqrt(second / (1 - betas[1] ** step))
        p = p - lr * first / (1 - betas[0] ** step) / (root + eps)
        steps.append(p)
    return np.array(steps)
