"""BatchNorm's forward functions, and what the tape needs beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import ArgumentError, ShapeError, StatisticsError
from .. import gpu, layout
from ..arrays import Array, accumulation_dtype, namespace
from ..checks import (
    check_array,
    check_channels,
    check_eps,
    check_input,
    check_momentum,
    check_nchw,
    check_out,
    check_pair,
    check_passing,
    check_same_place,
    check_writable,
)
from ..engines import engine_of, implementation
from ..repeat import Repeats, Statistics, Template
from ..results import contiguous_or_none, result_in, taken_as_they_are, written


def _check_training(
    x: Array, running_mean: Array | None, running_var: Array | None, eps: float,
    momentum: float | None,
) -> None:  # fmt: skip
    check_input(x)
    check_eps(eps)
    check_pair(running_mean, running_var)
    check_channels(x, running_mean=running_mean, running_var=running_var)
    if momentum is not None:
        check_momentum(momentum)
    check_writable(running_mean, "running_mean")
    check_writable(running_var, "running_var")
    if x.size // max(x.shape[1], 1) <= 1:
        raise StatisticsError(
            f"x has shape {x.shape}, {x.size // max(x.shape[1], 1)} value a channel; wanted more "
            "than one, since batch statistics of one value are its value and 0"
        )


def _check_count(x: Array, num_batches_tracked: Array | None, momentum: float | None) -> None:
    if num_batches_tracked is None:
        if momentum is None:
            raise ArgumentError(
                "momentum is None without num_batches_tracked; wanted 0 to 1, or None to average "
                "as many batches as were tracked"
            )
        return
    check_array(num_batches_tracked, "num_batches_tracked", (np.dtype(np.int64),), "int64")
    check_same_place(x, num_batches_tracked, "num_batches_tracked")
    check_writable(num_batches_tracked, "num_batches_tracked")
    if num_batches_tracked.shape != ():
        raise ShapeError(f"num_batches_tracked has shape {num_batches_tracked.shape}; wanted ()")


class BatchNormResult(NamedTuple):
    """What :func:`batch_norm_forward` returns.

    Attributes:
        y: of x's shape, dtype and layout.
        statistics: mean, rstd and residual, [C] each; see :func:`batch_norm_statistics`.
        sign: where the activation was given a positive number, as bools of x's shape, with which
            backward needs neither bias nor addend; only for ReLU with an addend, or on the CPU,
            where reading it is faster than working that number out again. Else None.
    """

    y: Array
    statistics: Statistics
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
    momentum: float | None = 0.1,
    out: Array | None = None,
) -> BatchNormResult:
    """BatchNorm in training at once: statistics, running statistics and y.

    y = activation((x − mean)·rstd·weight + bias + addend).

    Args:
        x: as for :func:`batch_norm_stats_forward`.
        weight, bias: [C], or None for 1 and 0.
        running_mean, running_var, eps: as for :func:`batch_norm_stats_forward`.
        momentum: likewise, or None for 1/(num_batches_tracked + 1), the average of all batches.
        num_batches_tracked: 0-d int64, goes up by one.
        addend: of x's shape and dtype, such as a residual connection's.
        activation: None, ``"relu"``, ``"silu"`` or ``"gelu"`` (exact).
        out: an array of x's shape and dtype for y.

    Raises:
        ShapeError: for a shape that does not fit, or only one value a channel.
        DTypeError, DeviceError, ArgumentError: for other arguments that do not fit.

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1.
    """
    columns: Sequence[Array | None]
    columns = (weight, bias, running_mean, running_var, num_batches_tracked)
    key, again = _forwards.find((x, addend), columns, eps, momentum, activation, out is None)
    if again is not None:
        return again(x, addend)
    _check_training(x, running_mean, running_var, eps, momentum)
    check_channels(x, weight=weight, bias=bias)
    _check_count(x, num_batches_tracked, momentum)
    check_passing(x, addend, activation)
    if out is not None:
        check_out(out, x, x.shape, x.dtype)
    regular = out is None and taken_as_they_are(x, (addend,), columns)
    x = layout.dense(x)
    if addend is not None:
        addend = layout.in_layout_of(addend, x)
    columns = [contiguous_or_none(column) for column in columns]
    share = float(momentum) if momentum is not None else _equal_share(num_batches_tracked)
    options = dict(eps=float(eps), momentum=share, activation=activation)
    kernel = implementation("batch_norm_forward", x)
    if key is not None and regular and momentum is not None:
        call = _Forward(kernel, x, addend, columns, options)
        _forwards.keep(key, columns, call)
        return call(x, addend)
    y, sign, statistics = _results(x, addend, activation, out)
    kernel(x, addend, *columns, y, sign, *statistics, **options)
    if running_mean is not None and running_var is not None:
        written(columns[2], running_mean)
        written(columns[3], running_var)
    return BatchNormResult(written(y, out), Statistics.of(statistics), sign)


def _results(
    x: Array, addend: Array | None, activation: str | None, out: Array | None = None
) -> tuple[Array, Array | None, Array]:
    """Where forward writes y (to ``out`` where it can), sign and [3, C] statistics."""
    needs_sign = activation == "relu" and (addend is not None or engine_of(x) == "cpu")
    sign = layout.like(x, np.dtype(bool)) if needs_sign else None
    statistics = namespace(x).empty((3, x.shape[1]), accumulation_dtype(x.dtype))
    return result_in(out, layout.like(x), x, addend), sign, statistics


def _equal_share(num_batches_tracked: Array) -> Array:
    """The weight with which running statistics are the average of all batches, as a 0-d array.

    On a GPU the host need not know it.
    """
    return namespace(num_batches_tracked).asarray(1.0 / (num_batches_tracked + 1.0))


class _Forward:
    """A forward call on a GPU, prepared for tensors like these and for these columns."""

    def __init__(
        self, kernel: Any, x: Array, addend: Array | None, columns: Sequence[Array | None],
        options: dict[str, Any],
    ) -> None:  # fmt: skip
        y, sign, statistics = _results(x, addend, options["activation"])
        self._y, self._sign = Template(y), None if sign is None else Template(sign)
        self._alloc, self._nbytes = gpu.calls().alloc, statistics.nbytes
        self._channels, self._dtype = x.shape[1], statistics.dtype
        self._row = statistics.strides[0]
        self._launch = kernel.prepare(x, addend, *columns, y, sign, *statistics, **options)

    def __call__(self, x: Array, addend: Array | None) -> BatchNormResult:
        y, sign, row = self._y(), None, self._row
        memory = self._alloc(self._nbytes)
        mean = memory.ptr
        if addend is None:
            self._launch(x.data.ptr, y.data.ptr, mean, mean + row, mean + 2 * row)
        else:
            tensors = [x, addend, y]
            if self._sign is not None:
                sign = self._sign()
                tensors.append(sign)
            self._launch(*(t.data.ptr for t in tensors), mean, mean + row, mean + 2 * row)
        return BatchNormResult(y, Statistics(self._channels, self._dtype, memory), sign)


_forwards = Repeats()


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
    check_momentum(momentum)
    _check_training(x, running_mean, running_var, eps, momentum)
    xp, wide = namespace(x), accumulation_dtype(x.dtype)
    mean, rstd, residual = (xp.empty(x.shape[1], wide) for _ in range(3))
    running = [contiguous_or_none(running_mean), contiguous_or_none(running_var)]
    run = implementation("batch_norm_stats_forward", x)
    run(layout.dense(x), *running, mean, rstd, residual, eps=float(eps), momentum=float(momentum))
    if running_mean is not None and running_var is not None:
        written(running[0], running_mean)
        written(running[1], running_var)
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
        if not isinstance(out, (tuple, list)) or len(out) != 2:
            raise ArgumentError("out must be a pair of arrays, for mean and rstd")
        for array in out:
            check_out(array, x, x.shape[1:2], accumulation_dtype(x.dtype))
    mean, rstd, _ = batch_norm_statistics(x, running_mean, running_var, eps=eps, momentum=momentum)
    if out is None:
        return mean, rstd
    return written(mean, out[0]), written(rstd, out[1])


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
    y = result_in(out, layout.like(x), x)
    columns = [contiguous_or_none(a) for a in (weight, bias, mean, rstd, residual)]
    if x.size:
        implementation("batch_norm_normalize_forward", x)(x, *columns, y)
    return written(y, out)


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
    columns = (weight, bias, running_mean, running_var)
    key, again = _inferences.find((x, addend), columns, eps, activation, out is None)
    if again is not None:
        return again(x, addend)
    check_passing(x, addend, activation)
    y = _inference(
        "batch_norm_forward_inference", x, weight, bias, running_mean, running_var, eps, out,
        addend, activation,
    )  # fmt: skip
    if key is not None and x.size and out is None and taken_as_they_are(x, (addend,), columns):
        _inferences.keep(key, columns, _Inference(x, addend, columns, eps, activation))
    return y


class _Inference:
    """An inference call on a GPU, prepared for tensors like these and for these columns."""

    def __init__(
        self, x: Array, addend: Array | None, columns: Sequence[Array | None], eps: float,
        activation: str | None,
    ) -> None:  # fmt: skip
        y = layout.like(x)
        self._y = Template(y)
        kernel: Any = implementation("batch_norm_forward_inference", x)
        self._launch = kernel.prepare(
            x, *columns, y, eps=float(eps), addend=addend, activation=activation
        )

    def __call__(self, x: Array, addend: Array | None) -> Array:
        y = self._y()
        self._launch(*[a.data.ptr for a in (x, addend, y) if a is not None])
        return y


_inferences = Repeats()


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
    y = result_in(out, layout.like(x), x, addend)
    columns = [contiguous_or_none(a) for a in (weight, bias, running_mean, running_var)]
    if x.size:
        implementation(name, x)(x, *columns, y, eps=float(eps), **passing)
    return written(y, out)
