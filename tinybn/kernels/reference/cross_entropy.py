"""Softmax and cross-entropy (Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7)."""

from __future__ import annotations

import numpy as np

Array = np.ndarray


def cross_entropy_forward(
    logits: Array,
    target: Array,
    weight: Array | None,
    loss: Array,
    row_weight: Array,
    row_max: Array,
    log_sum: Array,
    mean: Array | None,
    divisor: Array | None,
    invalid: Array | None,
    *,
    ignore_index: int,
    label_smoothing: float,
) -> None:
    """Softmax and cross-entropy of each row of ``logits`` [N, C] in one pass.

    With p = softmax(z), class weights w and smoothing ε:
    loss = −(1 − ε)·w_t·log p_t − ε/C·Σ_c w_c·log p_c, 0 where t is ignored and
    NaN where it is no class (Szegedy et al. 2015, https://arxiv.org/abs/1512.00567, section 7).
    ``row_weight`` gets w_t, 0 where ignored; ``row_max`` and ``log_sum``, with
    log p = (z − row_max) − log_sum, are what backward needs. Where they are given, ``divisor``
    becomes Σ w_t, ``mean`` Σ loss / Σ w_t (0/0 is NaN), and ``invalid`` [1] 1 if a target is
    neither a class nor ignored.
    """
    rows, classes = logits.shape
    kept = target != ignore_index
    valid = kept & (target >= 0) & (target < classes)
    if invalid is not None:
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
        loss[...] = np.where(valid, total, np.where(kept, np.nan, 0.0))
    row_weight[...] = np.where(valid, w[picked], 0.0)
    row_max[...], log_sum[...] = m, log_total
    if mean is not None and divisor is not None:
        divisor[...] = row_weight.sum(dtype=np.float64)
        with np.errstate(all="ignore"):
            mean[...] = loss.sum(dtype=np.float64) / row_weight.sum(dtype=np.float64)


def cross_entropy_backward(
    grad: Array,
    divisor: Array | None,
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

    ``grad`` is [N], a row's share of the loss's gradient, or [1] for all rows; it is divided by
    ``divisor`` where that is given.
    """
    rows, classes = logits.shape
    grad = grad.astype(np.float64)
    if divisor is not None:
        grad = grad / divisor  # ignored rows get 0 all the same
    valid = target != ignore_index
    picked = np.where(valid, target, 0)
    w = np.ones(classes) if weight is None else weight.astype(np.float64)
    with np.errstate(all="ignore"):
        m, log_total = row_max.astype(np.float64), log_sum.astype(np.float64)
        p = np.exp(logits.astype(np.float64) - m[:, None] - log_total[:, None])
        w_t = (1 - label_smoothing) * w[picked]
        dz = p * w_t[:, None]
        if label_smoothing:  # 0·∞ of a class that no target names would be NaN
            dz += label_smoothing / classes * (p * w.sum() - w)
        dz[np.arange(rows), picked] -= w_t
        dlogits[...] = np.where(valid[:, None], dz * grad[:, None], 0.0)
