"""Optimiser steps on lists of arrays, each list updated in one launch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...errors import ArgumentError, DeviceError, ShapeError
from ..arrays import Array, contiguous
from ..checks import check_array, check_float, check_writable, place, same_place
from ..engines import implementation

Again = Callable[..., None]


def sgd_step(
    params: Sequence[Array],
    grads: Sequence[Array],
    buffers: Sequence[Array] | None,
    *,
    lr: float,
    momentum: float = 0.0,
    dampening: float = 0.0,
    weight_decay: float = 0.0,
    nesterov: bool = False,
    maximize: bool = False,
    first_step: bool = False,
) -> Again | None:
    """One step of stochastic gradient descent on all ``params``, in place.

    g ← grad + weight_decay·p; b ← momentum·b + (1 − dampening)·g;
    p ← p − lr·(g + momentum·b) with nesterov, else p − lr·b.

    Args:
        params, grads: floating arrays of equal shapes and dtypes, on one device.
        buffers: the momentum buffers, updated too, or None for momentum 0.
        first_step: the buffers hold nothing yet: b ← g.

    Returns:
        On a GPU what is called with other numbers (by keyword, all of them) for the next replay,
        where the step is recorded.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: before anything is changed.

    Source: Sutskever et al. 2013, ICML, as PyTorch's SGD defines it.
    """
    if buffers is None and momentum:
        raise ArgumentError(f"momentum is {momentum} and buffers None; wanted a buffer a param")
    roles = {"grads": grads} if buffers is None else {"grads": grads, "buffers": buffers}
    if not _check(params, **roles):
        return None
    return implementation("sgd_step", params[0])(
        *_contiguous(params, grads), buffers, lr=float(lr), momentum=float(momentum),
        dampening=float(dampening), weight_decay=float(weight_decay), nesterov=bool(nesterov),
        maximize=bool(maximize), first_step=bool(first_step),
    )  # fmt: skip


def adam_step(
    params: Sequence[Array],
    grads: Sequence[Array],
    exp_avgs: Sequence[Array],
    exp_avg_sqs: Sequence[Array],
    *,
    step: int,
    lr: float,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled: bool = False,
    maximize: bool = False,
) -> Again | None:
    """One step of Adam (AdamW where ``decoupled``) on all ``params``, in place.

    Args:
        params, grads: floating arrays of equal shapes and dtypes, on one device.
        exp_avgs, exp_avg_sqs: the two moments, updated too.
        step: the number of this step, from 1.

    Returns:
        As :func:`sgd_step`.

    Raises:
        ShapeError, DTypeError, DeviceError, ArgumentError: before anything is changed.

    Source: Kingma and Ba 2014, https://arxiv.org/abs/1412.6980; Loshchilov and
    Hutter 2017, https://arxiv.org/abs/1711.05101.
    """
    if step < 1:
        raise ArgumentError(f"step is {step}; wanted 1 for the first step, 2 for the second, …")
    if not _check(params, grads=grads, exp_avgs=exp_avgs, exp_avg_sqs=exp_avg_sqs):
        return None
    return implementation("adam_step", params[0])(
        *_contiguous(params, grads), exp_avgs, exp_avg_sqs, step=int(step), lr=float(lr),
        beta1=float(beta1), beta2=float(beta2), eps=float(eps), weight_decay=float(weight_decay),
        decoupled=bool(decoupled), maximize=bool(maximize),
    )  # fmt: skip


def _contiguous(
    params: Sequence[Array], grads: Sequence[Array]
) -> tuple[Sequence[Array], list[Array]]:
    return params, [contiguous(g) for g in grads]


def _check(params: Sequence[Array], **roles: Sequence[Array]) -> bool:
    """Raise unless all lists belong together; False where there is nothing to do."""
    for name, arrays in roles.items():
        if len(arrays) != len(params):
            raise ShapeError(f"{len(arrays)} {name} for {len(params)} params; wanted one for each")
    for i, param in enumerate(params):
        check_float(param, f"param {i}")
        # Written in place as flat memory, and read at the same offsets.
        if not param.flags.c_contiguous:
            raise ShapeError(f"param {i} of shape {param.shape} is not contiguous; wanted it so")
        check_writable(param, f"param {i}")
        for name, arrays in roles.items():
            array = arrays[i]
            check_array(array, f"{name}[{i}]", (param.dtype,), str(param.dtype))
            if name != "grads":
                check_writable(array, f"{name}[{i}]")
            if array.shape != param.shape:
                raise ShapeError(f"{name}[{i}] has shape {array.shape}; wanted {param.shape}")
            if not same_place(array, params[0]):
                raise DeviceError(
                    f"{name}[{i}] is on {place(array)}; wanted {place(params[0])}, like the params"
                )
            if name != "grads" and not array.flags.c_contiguous:
                raise ShapeError(f"{name}[{i}] is not contiguous; wanted it so")
    return bool(params)
