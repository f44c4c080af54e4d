"""BatchNorm on tensors: two ops with two gradients.

In training the statistics are functions of the input, and its gradient runs
through them. With frozen statistics they are constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import kernels
from ...errors import ArgumentError
from ...kernels.functional.checks import check_channels, check_input, check_pair
from ..tape import Array, Node, Op, apply
from ._operands import check_tensors

if TYPE_CHECKING:
    from ..tensor import Tensor


class BatchNormTraining(Op):
    """y = (x − mean(x))/sqrt(var(x) + eps)·weight + bias, updating the running statistics."""

    @staticmethod
    def forward(
        ctx: Node,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        *,
        running_mean: Array | None,
        running_var: Array | None,
        momentum: float,
        eps: float,
    ) -> Array:
        if x.size == 0:  # an empty batch has no statistics, and changes none
            ctx.save(x, weight, None, None, None)
            return x.copy()
        mean, rstd, residual = kernels.batch_norm_statistics(
            x, running_mean, running_var, eps=eps, momentum=momentum
        )
        ctx.save(x, weight, mean, rstd, residual)
        return kernels.batch_norm_normalize_forward(x, weight, bias, mean, rstd, residual=residual)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, mean, rstd, residual = ctx.saved
        return kernels.batch_norm_backward(
            grad, x, weight, mean, rstd, residual=residual, needs=ctx.needs
        )


class BatchNormFrozen(Op):
    """y = (x − running_mean)/sqrt(running_var + eps)·weight + bias, with constant statistics."""

    @staticmethod
    def forward(
        ctx: Node,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        running_mean: Array,
        running_var: Array,
        *,
        eps: float,
    ) -> Array:
        ctx.save(x, weight, running_mean, running_var, eps)
        return kernels.batch_norm_forward_inference(
            x, weight, bias, running_mean, running_var, eps=eps
        )

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, running_mean, running_var, eps = ctx.saved
        gradients = kernels.batch_norm_frozen_backward(
            grad, x, weight, running_mean, running_var, eps=eps, needs=ctx.needs[:3]
        )
        return (*gradients, None, None)


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each channel of ``input`` to mean 0 and variance 1, then scale and shift.

    Args:
        input: [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W], any float dtype.
        running_mean, running_var: [C]; used where not ``training``, else updated
            in place: running ← (1 − momentum)·running + momentum·batch, the
            variance with n/(n−1). None: the batch's statistics, in training or not.
        weight, bias: [C], or None for 1 and 0.
        training: normalise by the batch's statistics.
        momentum: the weight of this batch in the running statistics.
        eps: added to the variance.

    Returns:
        A tensor of input's shape, dtype and memory layout. Statistics are
        float32 for float16, bfloat16 and float32, float64 for float64. An empty
        batch gives an empty result and changes no statistics.

    Raises:
        ShapeError: for shapes that do not fit, or one value a channel where
            batch statistics are used.
        DTypeError, DeviceError, ArgumentError: for arguments that do not fit.

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
    """
    columns = {
        "weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var
    }  # fmt: skip
    given = {name: column for name, column in columns.items() if column is not None}
    check_tensors(input=input, **given)
    if momentum is None:
        raise ArgumentError("momentum is None; wanted 0 to 1 (a layer turns None into 1/k)")
    check_input(input.data, "input")
    check_channels(input.data, **{name: column.data for name, column in given.items()})
    check_pair(running_mean, running_var)
    if not training and running_mean is not None:
        return apply(
            BatchNormFrozen, input, weight, bias, running_mean, running_var, eps=float(eps)
        )
    result = apply(
        BatchNormTraining,
        input,
        weight,
        bias,
        running_mean=None if running_mean is None else running_mean.data,
        running_var=None if running_var is None else running_var.data,
        momentum=float(momentum),
        eps=float(eps),
    )
    if running_mean is not None and running_var is not None and input.size:
        running_mean._version.value += 1
        running_var._version.value += 1
    return result
