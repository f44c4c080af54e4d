"""BatchNorm's backward functions, and what the tape needs beside them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ...errors import ShapeError
from .. import layout
from ..arrays import Array, accumulation_dtype, namespace
from ..checks import (
    check_array,
    check_channels,
    check_eps,
    check_input,
    check_nchw,
    check_out,
    check_passing,
    check_same_place,
)
from ..engines import implementation
from ..repeat import Repeats, Statistics, Template
from ..results import contiguous_or_none, result_in, taken_as_they_are, written


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
    columns = [contiguous_or_none(a) for a in (weight, mean, rstd, residual)]
    return _backward("batch_norm_backward", dy, x, weight, columns, needs, out, passing)


def batch_norm_gradients(
    dy: Array,
    x: Array,
    weight: Array | None,
    statistics: Statistics,
    passing: Passing,
    needs: Sequence[bool],
) -> tuple[Array | None, ...]:
    """:func:`batch_norm_backward`, with ``passing``, from what forward returned."""
    needs = tuple(needs)
    columns = (weight, passing.bias)
    tensors = (dy, x, passing.addend, passing.sign)
    key, again = _backwards.find(tensors, columns, statistics.kind, needs, passing.activation)
    if again is None:
        mean, rstd, residual = statistics.arrays
        if key is None or not (
            x.size
            and any(needs)
            and taken_as_they_are(x, (dy, passing.addend, passing.sign), columns)
        ):
            return batch_norm_backward(
                dy, x, weight, mean, rstd, residual=residual, passing=passing, needs=needs
            )
        check_input(x)
        check_channels(x, weight=weight, mean=mean, rstd=rstd, residual=residual)
        _check_gradient(dy, x)
        _check_passed(x, passing)
        again = _Backward(dy, x, weight, statistics, passing, needs)
        _backwards.keep(key, columns, again)
    return again(*tensors, statistics)


class _Backward:
    """A backward call on a GPU, prepared for tensors like these and for these columns."""

    def __init__(
        self, dy: Array, x: Array, weight: Array | None, statistics: Statistics, passing: Passing,
        needs: Sequence[bool],
    ) -> None:  # fmt: skip
        results = _results(x, weight, needs)
        self._results = [None if array is None else Template(array) for array in results]
        dx, dweight, dbias, daddend = results
        self._row = statistics.arrays.strides[0]
        kernel: Any = implementation("batch_norm_backward", x)
        self._launch = kernel.prepare(
            dy, x, weight, *statistics.arrays, dx, dweight, dbias, bias=passing.bias,
            addend=None if passing.sign is not None else passing.addend, sign=passing.sign,
            daddend=daddend, activation=passing.activation,
        )  # fmt: skip

    def __call__(
        self, dy: Array, x: Array, addend: Array | None, sign: Array | None, statistics: Statistics
    ) -> tuple[Array | None, ...]:
        results = [None if make is None else make() for make in self._results]
        given = (dy, x, None if sign is not None else addend, sign)
        mean, row = statistics.address, self._row
        self._launch(
            *[t.data.ptr for t in given if t is not None], mean, mean + row, mean + 2 * row,
            *[t.data.ptr for t in results if t is not None],
        )  # fmt: skip
        return tuple(results)


_backwards = Repeats()


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
    columns = [contiguous_or_none(a) for a in (weight, running_mean, running_var)]
    return _backward(
        "batch_norm_2d_nchw_backward", dy, x, weight, columns, needs, out, passing, eps=float(eps)
    )


def _backward(name, dy, x, weight, columns, needs, out, passing, **options):
    _check_gradient(dy, x)
    if passing is not None:
        _check_passed(x, passing)
    if out is not None:
        check_out(out, x, x.shape, x.dtype)
    x = layout.dense(x)
    dy = layout.in_layout_of(dy, x)
    dx = result_in(out, layout.like(x), x, dy) if needs[0] else None
    _, dweight, dbias, daddend = _results(x, weight, (False, *needs[1:]))
    if passing is not None:
        sign = None if passing.sign is None else layout.in_layout_of(passing.sign, x)
        if passing.addend is None or passing.sign is not None:
            addend = None  # z is not computed again, or has no such term
        else:
            addend = layout.in_layout_of(passing.addend, x)
        options |= dict(
            bias=contiguous_or_none(passing.bias), addend=addend, sign=sign,
            daddend=daddend, activation=passing.activation,
        )  # fmt: skip
    if x.size and any(needs):
        implementation(name, x)(dy, x, *columns, dx, dweight, dbias, **options)
    gradients = (None if dx is None else written(dx, out), dweight, dbias)
    return gradients if passing is None else (*gradients, daddend)


def _check_gradient(dy: Array, x: Array) -> None:
    check_input(dy, "dy")
    if dy.shape != x.shape:
        raise ShapeError(f"dy has shape {dy.shape}; wanted that of x, {x.shape}")
    check_same_place(x, dy, "dy")


def _check_passed(x: Array, passing: Passing) -> None:
    check_channels(x, bias=passing.bias)
    check_passing(x, passing.addend, passing.activation)
    sign = passing.sign
    if sign is None:
        return
    check_array(sign, "sign", (np.dtype(bool),), "bool")
    check_same_place(x, sign, "sign")
    if sign.shape != x.shape:
        raise ShapeError(f"sign has shape {sign.shape}; wanted that of x, {x.shape}")


def _results(x: Array, weight: Array | None, needs: Sequence[bool]) -> tuple[Array | None, ...]:
    """Where backward writes dx, dweight, dbias and daddend, as far as it needs to."""
    kind = accumulation_dtype(x.dtype) if weight is None else weight.dtype
    xp = namespace(x)
    make = xp.empty if x.size else xp.zeros  # sums over nothing are 0
    dweight, dbias = (make(x.shape[1], kind) if need else None for need in needs[1:3])
    dx = layout.like(x) if needs[0] else None
    return dx, dweight, dbias, layout.like(x) if len(needs) > 3 and needs[3] else None
