"""The specification: every kernel's mathematics in NumPy, and the CPU engine.

Plain textbook formulas in float64, rounded once at the end to the outputs'
dtypes; dropout and the optimisers in the accumulation dtype. The Triton
kernels are held to these functions; these are held to finite differences and
to golden values worked out elsewhere. Each writes into the outputs that it is
given; their public forms, which check arguments and make the outputs, are in
``functional/``.

BatchNorm is Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167; x is
[N, C] or [N, C, …], and the statistics of a channel run over all other axes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .activations import ACTIVATIONS
from .arrays import accumulation_dtype

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


def cross_entropy_forward(
    logits: Array,
    target: Array,
    weight: Array | None,
    loss: Array,
    row_weight: Array,
    row_max: Array,
    log_sum: Array,
    invalid: Array,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    """Softmax and cross-entropy of each row of ``logits`` [N, C] in one pass.

    With p = softmax(z), class weights w and smoothing ε:
    loss = −(1 − ε)·w_t·log p_t − ε/C·Σ_c w_c·log p_c, and 0 where t is ignored
    (Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7).
    ``row_weight`` gets w_t, 0 where ignored; ``row_max`` and ``log_sum``, with
    log p = (z − row_max) − log_sum, are what backward needs; ``invalid`` [1]
    becomes 1 if a target is neither a class nor ignored.
    """
    rows, classes = logits.shape
    kept = target != ignore_index
    valid = kept & (target >= 0) & (target < classes)
    invalid[...] = np.any(kept & ~valid)
    picked = np.where(valid, target, 0)
    w = np.ones(classes) if weight is None else weight.astype(np.float64)
    with np.errstate(all="ignore"):
        z = logits.astype(np.float64)
        m = z.max(axis=1)
        m = np.where(np.isneginf(m), 0.0, m)  # a row of −inf alone has no probabilities: NaN
        log_total = np.log(np.exp(z - m[:, None]).sum(axis=1))
        log_p = z - m[:, None] - log_total[:, None]
        total = -(1 - label_smoothing) * w[picked] * log_p[np.arange(rows), picked]
        if label_smoothing:
            total -= label_smoothing / classes * (w * log_p).sum(axis=1)
        loss[...] = np.where(valid, total, 0.0)
    row_weight[...] = np.where(valid, w[picked], 0.0)
    row_max[...], log_sum[...] = m, log_total


def cross_entropy_backward(
    grad: Array,
    logits: Array,
    target: Array,
    weight: Array | None,
    row_max: Array,
    log_sum: Array,
    dlogits: Array,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    """dz_c = grad·(p_c·((1 − ε)·w_t + ε/C·Σw) − (1 − ε)·w_t·[c = t] − ε/C·w_c), 0 where ignored.

    ``grad`` is [N], a row's share of the loss's gradient, or [1] for all rows.
    """
    rows, classes = logits.shape
    valid = target != ignore_index
    picked = np.where(valid, target, 0)
    w = np.ones(classes) if weight is None else weight.astype(np.float64)
    share = label_smoothing / classes
    with np.errstate(all="ignore"):
        m, log_total = row_max.astype(np.float64), log_sum.astype(np.float64)
        p = np.exp(logits.astype(np.float64) - m[:, None] - log_total[:, None])
        w_t = (1 - label_smoothing) * w[picked]
        dz = p * (w_t + share * w.sum())[:, None] - share * w
        dz[np.arange(rows), picked] -= w_t
        dlogits[...] = np.where(valid[:, None], dz * grad.astype(np.float64)[:, None], 0.0)


_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_KEY_STEPS = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_32 = np.uint64(32)


def philox(out: Array, *, seed: int, offset: int, stream: int) -> None:
    """Philox-4x32-10 random words (Salmon et al. 2011, doi:10.1145/2063384.2063405).

    Element i of ``out`` (uint32, flat) is word i % 4 of the block with counter
    (low and high half of offset + i // 4, stream, 0) and key ``seed``.
    """
    blocks = -(-out.size // 4)
    index = np.arange(blocks, dtype=np.uint64) + np.uint64(offset)
    counter = [index & _LOW, index >> _32, np.full_like(index, stream), np.zeros_like(index)]
    key = [np.uint64(seed) & _LOW, np.uint64(seed) >> _32]
    for _ in range(10):
        product = [_MULTIPLIERS[0] * counter[0], _MULTIPLIERS[1] * counter[2]]
        counter = [
            (product[1] >> _32) ^ counter[1] ^ key[0],
            product[1] & _LOW,
            (product[0] >> _32) ^ counter[3] ^ key[1],
            product[0] & _LOW,
        ]
        key = [(key[0] + _KEY_STEPS[0]) & _LOW, (key[1] + _KEY_STEPS[1]) & _LOW]
    out[...] = np.stack(counter, axis=1).astype(np.uint32).reshape(-1)[: out.size]


def dropout(x: Array, y: Array, *, p: float, seed: int, offset: int) -> None:
    """y = x/(1 − p) with probability 1 − p, else 0 (Srivastava et al. 2014, JMLR 15:1929).

    Element i is kept where its Philox word, as a number in [0, 1) of 24 bits, is at least p.
    The same call on a gradient is the backward.
    """
    words = np.empty(x.size, np.uint32)
    philox(words, seed=seed, offset=offset, stream=0)
    kept = ((words >> np.uint32(8)) * 2.0**-24 >= p).reshape(x.shape)
    scale = 0.0 if p == 1 else 1 / (1 - p)
    y[...] = np.where(kept, x.astype(accumulation_dtype(x.dtype)) * scale, 0)


def sgd_step(
    params: Sequence[Array],
    grads: Sequence[Array],
    buffers: Sequence[Array] | None,
    *,
    lr: float,
    momentum: float,
    dampening: float,
    weight_decay: float,
    nesterov: bool,
    maximize: bool,
    first_step: bool,
) -> None:
    """Stochastic gradient descent with momentum, as PyTorch's SGD defines it.

    g ← grad + weight_decay·p; b ← momentum·b + (1 − dampening)·g, or g at the
    first step; p ← p − lr·(g + momentum·b) with nesterov (Sutskever et al.
    2013), else p − lr·b.
    """
    with np.errstate(all="ignore"):
        for i, (param, grad) in enumerate(zip(params, grads)):
            wide = accumulation_dtype(param.dtype)
            p, g = param.astype(wide, copy=False), grad.astype(wide, copy=False)
            g = -g if maximize else g
            if weight_decay:
                g = g + weight_decay * p
            if buffers is not None:
                b = buffers[i].astype(wide, copy=False)
                if first_step:
                    b[...] = g
                else:
                    b *= momentum
                    b += (1 - dampening) * g if dampening else g
                buffers[i][...] = b
                g = g + momentum * b if nesterov else b
            p -= lr * g
            param[...] = p


def adam_step(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    *,
    step: int,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    decoupled: bool,
    maximize: bool,
) -> None:
    """Adam (Kingma and Ba 2014, https://arxiv.org/abs/1412.6980, algorithm 1).

    ``decoupled`` decays the weights beside the gradient: AdamW (Loshchilov and
    Hutter 2017, https://arxiv.org/abs/1711.05101, algorithm 2).
    """
    step_size = lr / (1 - beta1**step)
    root_correction = (1 - beta2**step) ** 0.5
    with np.errstate(all="ignore"):
        for param, grad, first, second in zip(params, grads, exp_avgs, exp_avg_sqs):
            wide = accumulation_dtype(param.dtype)
            p, g = param.astype(wide, copy=False), grad.astype(wide, copy=False)
            g = -g if maximize else g
            if weight_decay:
                if decoupled:
                    p = p * (1 - lr * weight_decay)
                else:
                    g = g + weight_decay * p
            m = beta1 * first.astype(wide, copy=False) + (1 - beta1) * g
            v = beta2 * second.astype(wide, copy=False) + (1 - beta2) * np.square(g)
            first[...], second[...] = m, v
            param[...] = p - step_size * m / (np.sqrt(v) / root_correction + eps)
