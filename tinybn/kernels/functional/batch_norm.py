"""The six BatchNorm functions, and what the tape needs beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...errors import ArgumentError, ShapeError
from .. import layout
from ..arrays import Array, accumulation_dtype, contiguous, namespace
from ..engines import implementation
from ..reference import ACTIVATIONS
from .checks import (
    check_channels,
    check_eps,
    check_input,
    check_nchw,
    check_out,
    check_pair,
    check_same_place,
    check_writable,
)


def _contiguous(array: Array | None) -> Array | None:
    return None if array is None else contiguous(array)


def _written(result: Array, out: Array | None) -> Array:
    """``out`` with ``result`` in it, or ``result`` where no ``out`` was given."""
    if out is None or out is result:
        return result
    out[...] = result
    return out


def _result_like(x: Array, out: Array | None, *inputs: Array) -> Array:
    """Where a kernel writes: ``out`` itself if it lies as ``x`` does, apart from all inputs."""
    if out is None or out.strides != x.strides:
        return layout.like(x)
    overlaps = any(namespace(x).may_share_memory(out, a) for a in (x, *inputs))
    return layout.like(x) if overlaps else out


def _check_training(
    x: Array, running_mean: Array | None, running_var: Array | None, eps: float, momentum: float
) -> None:
    check_input(x)
    check_eps(eps)
    check_pair(running_mean, running_var)
    check_channels(x, running_mean=running_mean, running_var=running_var)
    if not 0 <= momentum <= 1:
        raise ArgumentError(f"momentum is {momentum}; wanted 0 to 1")
    check_writable(running_mean, "running_mean")
    check_writable(running_var, "running_var")
    if x.size // max(x.shape[1], 1) <= 1:
        raise ShapeError(
            f"x has shape {x.shape}, {x.size // max(x.shape[1], 1)} value a channel; wanted more "
            "than one, since batch statistics of one value are its value and 0"
        )


def _check_passing(x: Array, addend: Array | None, activation: str | None) -> None:
    """What is applied in passing: an addend of x's shape, an activation by name."""
    if activation not in ACTIVATIONS:
        names = ", ".join(repr(name) for name in ACTIVATIONS)
        raise ArgumentError(f"activation is {activation!r}; wanted one of {names}")
    if addend is None:
        return
    check_input(addend, "addend")
    check_same_place(x, addend, "addend")
    if addend.shape != x.shape or addend.dtype != x.dtype:
        raise ShapeError(
            f"addend is {addend.dtype} {addend.shape}; wanted that of x, {x.dtype} {x.shape}"
        )


class Passing(NamedTuple):
    """What a forward pass applied after BatchNorm, for :func:`batch_norm_backward`.

    Attributes:
        bias: [C] or None, as forward had it.
        addend: as forward had it; not read where ``sign`` is given.
        sign: from :class:`BatchNormResult`.
        activation: its name, or None.
    """

    bias: Array | None
    addend: Array | None
    sign: Array | None
    activation: str | None


class BatchNormResult(NamedTuple):
    """What :func:`batch_norm_forward` returns.

    Attributes:
        y: of x's shape, dtype and layout.
        mean, rstd, residual: [C]; see :func:`batch_norm_statistics`.
        sign: where the activation was given a positive number, as bools of x's shape; only
            for ReLU with an addend, else None: backward then needs neither.
    """

    y: Array
    mean: Array
    rstd: Array
    residual: Array
    sign: Array | None


def batch_norm_forward(
    x: Array,
    weight: Array | None = None,
    bias: Array | None = None,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    *,
    num_batches_tracked: Array | None = None,
    addend: Array | None = None,
    activation: str | None = None,
    eps: float = 1e-5,
    momentum: float = 0.1,
) -> BatchNormResult:
    """BatchNorm in training at once: statistics, running statistics and y.

    y = activation((x − mean)·rstd·weight + bias + addend).

    Args:
        x: as for :func:`batch_norm_stats_forward`.
        weight, bias: [C], or None for 1 and 0.
        running_mean, running_var, eps, momentum: as for :func:`batch_norm_stats_forward`.
        num_batches_tracked: 0-d int64, goes up by one.
        addend: of x's shape and dtype, such as a residual connection's.
        activation: None, ``"relu"``, ``"silu"`` or ``"gelu"`` (exact).

    Raises:
        ShapeError: for a shape that does not fit, or only one value a channel.
        DTypeError, DeviceError, ArgumentError: for other arguments that do not fit.

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1.
    """
    _check_training(x, running_mean, running_var, eps, momentum)
    check_channels(x, weight=weight, bias=bias)
    _check_passing(x, addend, activation)
    xp, wide = namespace(x), accumulation_dtype(x.dtype)
    x = layout.dense(x)
    if addend is not None:
        addend = layout.in_layout_of(addend, x)
    y = layout.like(x)
    needs_sign = addend is not None and activation == "relu"
    sign = layout.like(x, np.dtype(bool)) if needs_sign else None
    mean, rstd, residual = xp.empty((3, x.shape[1]), wide)
    running = [_contiguous(running_mean), _contiguous(running_var)]
    implementation("batch_norm_forward", x)(
        x, addend, _contiguous(weight), _contiguous(bias), *running, num_batches_tracked, y, sign,
        mean, rstd, residual, eps=float(eps), momentum=float(momentum), activation=activation,
    )  # fmt: skip
    if running_mean is not None and running_var is not None:
        _written(running[0], running_mean)
        _written(running[1], running_var)
    return BatchNormResult(y, mean, rstd, residual, sign)


def batch_norm_statistics(
    x: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    *,
    eps: float = 1e-5,
    momentum: float = 0.1,
) -> tuple[Array, Array, Array]:
    """:func:`batch_norm_stats_forward` with a third result, what rounding took from the mean.

    mean + residual is the mean in twice the precision, so that normalising
    values whose mean is far larger than their spread loses nothing. Raises as it does.
    """
    _check_training(x, running_mean, running_var, eps, momentum)
    xp, wide = namespace(x), accumulation_dtype(x.dtype)
    mean, rstd, residual = (xp.empty(x.shape[1], wide) for _ in range(3))
    running = [_contiguous(running_mean), _contiguous(running_var)]
    run = implementation("batch_norm_stats_forward", x)
    run(layout.dense(x), *running, mean, rstd, residual, eps=float(eps), momentum=float(momentum))
    if running_mean is not None and running_var is not None:
        _written(running[0], running_mean)
        _written(running[1], running_var)
    return mean, rstd, residual


def batch_norm_stats_forward(
    x: Array,
    running_mean: Array | None = None,
    running_var: Array | None = None,
    *,
    eps: float = 1e-5,
    momentum: float = 0.1,
    out: tuple[Array, Array] | None = None,
) -> tuple[Array, Array]:
    """Mean and reciprocal standard deviation of each channel over all other axes.

    Args:
        x: [N, C] to [N, C, D, H, W], floating; C-contiguous or channels-last
            memory is read as it is, any other is copied once.
        running_mean, running_var: [C], updated in place, or both None:
            running ← (1 − momentum)·running + momentum·batch, the variance
            with n/(n−1).
        eps: added to the biased variance.
        momentum: weight of this batch, 0 to 1.
        out: two [C] arrays to write the results to.

    Returns:
        (mean, rstd), each [C], float32 (float64 for float64): rstd = 1/sqrt(var + eps).

    Raises:
        ShapeError: for a shape that is none of these, or only one value a channel.
        DTypeError, DeviceError, ArgumentError: for other arguments that do not fit.

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1.
    """
    check_input(x)
    if out is not None:
        for array in out:
            check_out(array, x, x.shape[1:2], accumulation_dtype(x.dtype))
    mean, rstd, _ = batch_norm_statistics(x, running_mean, running_var, eps=eps, momentum=momentum)
    if out is None:
        return mean, rstd
    return _written(mean, out[0]), _written(rstd, out[1])


def batch_norm_normalize_forward(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    mean: Array,
    rstd: Array,
    *,
    residual: Array | None = None,
    out: Array | None = None,
) -> Array:
    """y = (x − mean)·rstd·weight + bias, channel by channel.

    Args:
        x: as for :func:`batch_norm_stats_forward`.
        weight, bias: [C], or None for 1 and 0.
        mean, rstd: [C].
        residual: [C], added to the mean; see :func:`batch_norm_statistics`.
        out: an array of x's shape and dtype to write to.

    Returns:
        y, with x's shape, dtype and memory layout.

    Raises:
        ShapeError, DTypeError, DeviceError: for arguments that do not fit x.

    Source: Ioffe and Szegedy 2015, algorithm 1.
    """
    check_input(x)
    check_channels(x, weight=weight, bias=bias, mean=mean, rstd=rstd, residual=residual)
    if out is not None:
        check_out(out, x, x.shape, x.dtype)
    x = layout.dense(x)
    y = _result_like(x, out)
    columns = [_contiguous(a) for a in (weight, bias, mean, rstd, residual)]
    if x.size:
        implementation("batch_norm_normalize_forward", x)(x, *columns, y)
    return _written(y, out)


def batch_norm_forward_inference(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    *,
    addend: Array | None = None,
    activation: str | None = None,
    eps: float = 1e-5,
    out: Array | None = None,
) -> Array:
    """y = activation((x − running_mean)/sqrt(running_var + eps)·weight + bias + addend).

    ``addend`` and ``activation`` as for :func:`batch_norm_forward`; other
    arguments, result and errors as for :func:`batch_norm_normalize_forward`.

    Source: Ioffe and Szegedy 2015, algorithm 2, line 11.
    """
    _check_passing(x, addend, activation)
    return _inference(
        "batch_norm_forward_inference", x, weight, bias, running_mean, running_var, eps, out,
        addend, activation,
    )  # fmt: skip


def batch_norm_2d_nchw_forward_inference(
    x: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    *,
    eps: float = 1e-5,
    out: Array | None = None,
) -> Array:
    """:func:`batch_norm_forward_inference` for [N, C, H, W] alone."""
    check_nchw(x)
    return _inference(
        "batch_norm_2d_nchw_forward_inference", x, weight, bias, running_mean, running_var, eps, out
    )


def _inference(
    name, x, weight, bias, running_mean, running_var, eps, out, addend=None, activation=None
):
    check_input(x)
    check_eps(eps)
    check_channels(x, weight=weight, bias=bias, running_mean=running_mean, running_var=running_var)
    if out is not None:
        check_out(out, x, x.shape, x.dtype)
    x = layout.dense(x)
    passing = {}
    if addend is not None or activation is not None:
        addend = None if addend is None else layout.in_layout_of(addend, x)
        passing = {"addend": addend, "activation": activation}
    y = _result_like(x, out, *([] if addend is None else [addend]))
    columns = [_contiguous(a) for a in (weight, bias, running_mean, running_var)]
    if x.size:
        implementation(name, x)(x, *columns, y, eps=float(eps), **passing)
    return _written(y, out)


def batch_norm_backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    mean: Array,
    rstd: Array,
    *,
    residual: Array | None = None,
    passing: Passing | None = None,
    needs: Sequence[bool] = (True, True, True),
    out: Array | None = None,
) -> tuple[Array | None, ...]:
    """Gradients of BatchNorm in training, where mean and rstd are functions of x.

    With x̂ = (x − mean)·rstd over the n values of a channel:
    dbias = Σ dy, dweight = Σ dy·x̂, dx = weight·rstd·(dy − dbias/n − x̂·dweight/n).

    Args:
        dy: the gradient of y, with x's shape.
        x, weight, mean, rstd, residual: as forward had them.
        passing: what forward applied in passing; then dy is the gradient of its result.
        needs: which of (dx, dweight, dbias), and with ``passing`` daddend, to compute.
        out: an array of x's shape and dtype for dx.

    Returns:
        (dx, dweight, dbias): x's shape, dtype and layout; [C] in weight's
        dtype, or float32 (float64 for float64) without one; with ``passing``
        a fourth, daddend. None where not needed.

    Raises:
        ShapeError, DTypeError, DeviceError: for arguments that do not fit x.

    Source: Ioffe and Szegedy 2015, section 3, simplified.
    """
    check_input(x)
    check_channels(x, weight=weight, mean=mean, rstd=rstd, residual=residual)
    columns = [_contiguous(a) for a in (weight, mean, rstd, residual)]
    return _backward("batch_norm_backward", dy, x, weight, columns, needs, out, passing)


def batch_norm_2d_nchw_backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array,
    running_var: Array,
    *,
    eps: float = 1e-5,
    out: Array | None = None,
) -> tuple[Array | None, Array | None, Array | None]:
    """Gradients of BatchNorm on [N, C, H, W] with frozen statistics, which are constants.

    dx = weight·rstd·dy with rstd = 1/sqrt(running_var + eps); dbias = Σ dy;
    dweight = Σ dy·(x − running_mean)·rstd. Arguments, results and errors as
    for :func:`batch_norm_backward`.
    """
    check_nchw(x)
    dx, dweight, dbias = batch_norm_frozen_backward(
        dy, x, weight, running_mean, running_var, eps=eps, out=out
    )
    return dx, dweight, dbias


def batch_norm_frozen_backward(
    dy: Array,
    x: Array,
    weight: Array | None,
    running_mean: Array,
    running_var: Array,
    *,
    eps: float = 1e-5,
    passing: Passing | None = None,
    needs: Sequence[bool] = (True, True, True),
    out: Array | None = None,
) -> tuple[Array | None, ...]:
    """:func:`batch_norm_2d_nchw_backward` for x of any shape that BatchNorm takes.

    ``passing`` and its gradient as for :func:`batch_norm_backward`.
    """
    check_input(x)
    check_eps(eps)
    check_channels(x, weight=weight, running_mean=running_mean, running_var=running_var)
    columns = [_contiguous(a) for a in (weight, running_mean, running_var)]
    return _backward(
        "batch_norm_2d_nchw_backward", dy, x, weight, columns, needs, out, passing, eps=float(eps)
    )


def _backward(name, dy, x, weight, columns, needs, out, passing, **options):
    check_input(dy, "dy")
    if dy.shape != x.shape:
        raise ShapeError(f"dy has shape {dy.shape}; wanted that of x, {x.shape}")
    check_same_place(x, dy, "dy")
    if out is not None:
        check_out(out, x, x.shape, x.dtype)
    xp = namespace(x)
    x = layout.dense(x)
    dy = layout.in_layout_of(dy, x)
    dx = _result_like(x, out, dy) if needs[0] else None
    kind = accumulation_dtype(x.dtype) if weight is None else weight.dtype
    make = xp.empty if x.size else xp.zeros  # sums over nothing are 0
    dweight, dbias = (make(x.shape[1], kind) if need else None for need in needs[1:3])
    daddend = None
    if passing is not None:
        if passing.addend is None or passing.sign is not None:
            addend = None  # z is not computed again, or has no such term
        else:
            addend = layout.in_layout_of(passing.addend, x)
        if len(needs) > 3 and needs[3]:
            daddend = layout.like(x)
        options |= dict(
            bias=_contiguous(passing.bias), addend=addend, sign=passing.sign, daddend=daddend,
            activation=passing.activation,
        )  # fmt: skip
    if x.size and any(needs):
        implementation(name, x)(dy, x, *columns, dx, dweight, dbias, **options)
    gradients = (None if dx is None else _written(dx, out), dweight, dbias)
    return gradients if passing is None else (*gradients, daddend)
