"""Gradients between ``loss.backward()`` and ``optimizer.step()``: clipping, clearing."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from ..arguments import number, switch
from ..errors import ArgumentError, ArgumentTypeError
from ..kernels.arrays import Array, namespace
from ..kernels.checks import check_writable
from ..tensor import Tensor
from ..tensor.device import use
from ..tensor.ops._operands import check_tensors


def clip_grad_norm_(
    parameters: Tensor | Iterable[Tensor],
    max_norm: float,
    norm_type: float = 2.0,
    error_if_nonfinite: bool = False,
) -> Tensor:
    """Scale all gradients by one factor so that their common norm is at most ``max_norm``.

    The factor is max_norm / (norm + 1e-6), at most 1, with the norm taken over
    all gradients as if they were one vector. Pascanu, Mikolov and Bengio 2012,
    https://arxiv.org/abs/1211.5063, algorithm 1.

    Args:
        parameters: one Tensor or several; those without a gradient are left out.
        max_norm: at least 0.
        norm_type: p of the p-norm, above 0; ``math.inf`` for the largest magnitude.
        error_if_nonfinite: raise if the norm is infinite or NaN, which waits for the device.

    Returns:
        The norm before scaling, 0-d float64 on the first gradient's device.

    Raises:
        ArgumentError: for a max_norm or norm_type outside these, a norm that is not
            finite, or a gradient in read-only memory; no gradient is changed then.
    """
    p = number("norm_type", norm_type, above=0, infinite=True)
    max_norm = number("max_norm", max_norm, least=0, infinite=True)
    error_if_nonfinite = switch("error_if_nonfinite", error_if_nonfinite)
    grads = _gradients(parameters)
    if not grads:
        return Tensor(np.float64(0.0))
    home = grads[0].device
    # No warnings of infinite norms, nor of ∞·0 from them.
    with use(home), np.errstate(all="ignore"):
        # A square of float32 may overflow, one of float64 made from it does not.
        parts = [Tensor.wrap(_power_sum(g.data, p)).to(home).data for g in grads]
        stacked = namespace(parts[0]).stack(parts)
        total = stacked.max() if p == math.inf else stacked.sum() ** (1 / p)
        if error_if_nonfinite and not bool(namespace(stacked).isfinite(total)):
            raise ArgumentError(
                f"the gradients' norm is {float(total)}; wanted a finite one (error_if_nonfinite)"
            )
        factor = Tensor.wrap(namespace(stacked).asarray((max_norm / (total + 1e-6)).clip(max=1.0)))
    for grad in grads:
        with use(grad.device), np.errstate(all="ignore"):
            # Assigned, so that the product is rounded once to the gradient's dtype.
            grad.data[...] = _wide(grad.data) * factor.to(grad.device).data
            grad._version.value += 1
    return Tensor.wrap(namespace(stacked).asarray(total))


def clip_grad_value_(parameters: Tensor | Iterable[Tensor], clip_value: float) -> None:
    """Limit every element of all gradients to [−clip_value, clip_value].

    Args:
        parameters: one Tensor or several; those without a gradient are left out.
        clip_value: at least 0.

    Raises:
        ArgumentError: for a negative clip_value, or a gradient in read-only memory; no
            gradient is changed then.
    """
    limit = number("clip_value", clip_value, least=0, infinite=True)
    for grad in _gradients(parameters):
        with use(grad.device), np.errstate(all="ignore"):
            grad.data[...] = _wide(grad.data).clip(-limit, limit)
            grad._version.value += 1


def clear_grad(param: Tensor, set_to_none: bool) -> None:
    """Remove a tensor's gradient, or fill it with 0; ArgumentError where that is read-only."""
    if set_to_none:
        param.grad = None
    elif param.grad is not None:
        check_writable(param.grad.data, "a gradient")
        param.grad.data[...] = 0
        param.grad._version.value += 1


def _gradients(parameters: Tensor | Iterable[Tensor]) -> list[Tensor]:
    """The gradients that there are, each of which can be written to."""
    try:
        tensors = [parameters] if isinstance(parameters, Tensor) else list(parameters)
    except TypeError:
        raise ArgumentTypeError(
            f"parameters is {parameters!r}; wanted a Tensor or several"
        ) from None
    for tensor in tensors:
        check_tensors(**{"one of parameters": tensor})
    grads = [t.grad for t in tensors if t.grad is not None]
    for grad in grads:
        check_writable(grad.data, "a gradient")
    return grads


def _wide(array: Array) -> Array:
    return array.astype(np.float64)


def _power_sum(grad: Array, p: float) -> Array:
    """Σ|g|^p in float64, or max|g| for an infinite p, 0-d."""
    xp = namespace(grad)
    magnitude = abs(_wide(grad))
    if p == math.inf:
        return xp.asarray(magnitude.max() if magnitude.size else 0.0)
    return xp.asarray((magnitude**p).sum())
