"""The optimisers' steps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import accumulation_dtype

Array = np.ndarray


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
                _store(b, buffers[i])
                g = g + momentum * b if nesterov else b
            p -= lr * g
            _store(p, param)


def _store(wide: Array, array: Array) -> None:
    """Write what was worked out in the accumulation dtype, unless that was the array's own."""
    if wide is not array:
        array[...] = wide


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
