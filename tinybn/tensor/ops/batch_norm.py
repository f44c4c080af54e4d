"""BatchNorm on tensors: two ops with two gradients.

In training the statistics are functions of the input, and its gradient runs
through them. With frozen statistics they are constants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import kernels
from ...kernels import Passing
from ...kernels.arrays import accumulation_dtype, namespace
from ...kernels.checks import (
    check_channels,
    check_eps,
    check_input,
    check_momentum,
    check_pair,
    check_passing,
)
from ..autocast import autocast_like
from ..dtypes import is_float
from ..tape import Array, Node, Op, apply
from ._operands import check_optional_tensors, check_tensors, not_floating

if TYPE_CHECKING:
    from ..tensor import Tensor


class BatchNormTraining(Op):
    """y = activation((x − mean(x))/sqrt(var(x) + eps)·weight + bias + residual)."""

    @staticmethod
    def forward(
        ctx: Node,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        addend: Array | None = None,
        *,
        running_mean: Array | None,
        running_var: Array | None,
        momentum: float | None,
        eps: float,
        tracked: Array | None = None,
        activation: str | None = None,
        out: Array | None = None,
    ) -> Array:
        if x.size == 0:  # an empty batch has no statistics, and changes none
            check_input(x)
            columns = dict(running_mean=running_mean, running_var=running_var)
            check_channels(x, weight=weight, bias=bias, **columns)
            check_eps(eps)
            if momentum is not None:
                check_momentum(momentum)
            check_passing(x, addend, activation)
            zeros = namespace(x).zeros((3, x.shape[1]), accumulation_dtype(x.dtype))
            nothing = kernels.Statistics.of(zeros)
            ctx.save(x, weight, nothing, None, None, None, activation)
            return x.copy()
        y, statistics, sign = kernels.batch_norm_forward(
            x, weight, bias, running_mean, running_var, num_batches_tracked=tracked,
            addend=addend, activation=activation, eps=eps, momentum=momentum, out=out,
        )  # fmt: skip
        # For ReLU the sign of what it is given suffices; others need all of it again.
        again = activation is not None and sign is None
        ctx.save(
            x, weight, statistics, bias if again else None, addend if again else None, sign,
            activation,
        )  # fmt: skip
        return y

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, statistics, *passing = ctx.saved
        return kernels.batch_norm_gradients(
            grad, x, weight, statistics, Passing(*passing), ctx.needs
        )


class BatchNormFrozen(Op):
    """The same with running_mean and running_var for the statistics, which are constants."""

    @staticmethod
    def forward(
        ctx: Node,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        running_mean: Array,
        running_var: Array,
        addend: Array | None = None,
        *,
        eps: float,
        activation: str | None = None,
        out: Array | None = None,
    ) -> Array:
        again = activation is not None
        ctx.save(
            x, weight, running_mean, running_var, eps, bias if again else None,
            addend if again else None, None, activation,
        )  # fmt: skip
        return kernels.batch_norm_forward_inference(
            x, weight, bias, running_mean, running_var, addend=addend, activation=activation,
            eps=eps, out=out,
        )  # fmt: skip

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, running_mean, running_var, eps, *passing = ctx.saved
        dx, dweight, dbias, daddend = kernels.batch_norm_frozen_backward(
            grad, x, weight, running_mean, running_var, eps=eps, passing=Passing(*passing),
            needs=(*ctx.needs[:3], ctx.needs[5]),
        )  # fmt: skip
        return dx, dweight, dbias, None, None, daddend


def batch_norm(
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float | None = 0.1,
    eps: float = 1e-5,
    *,
    residual: Tensor | None = None,
    activation: str | None = None,
    num_batches_tracked: Tensor | None = None,
) -> Tensor:
    """Normalise each channel of ``input`` to mean 0 and variance 1, then scale and shift.

    Args:
        input: [N, C], [N, C, L], [N, C, H, W] or [N, C, D, H, W], any float dtype.
        running_mean, running_var: [C]; used where not ``training``, else updated
            in place: running ← (1 − momentum)·running + momentum·batch, the
            variance with n/(n−1). None: the batch's statistics, in training or not.
        weight, bias: [C], or None for 1 and 0.
        training: normalise by the batch's statistics.
        momentum: the weight of this batch in the running statistics; None, with
            num_batches_tracked, averages all batches.
        eps: added to the variance.
        residual: of input's shape and dtype (under autocast it is cast to that), added to the
            result before the activation.
        activation: None, ``"relu"``, ``"silu"`` or ``"gelu"`` (exact), applied last. Both are
            done by BatchNorm's own kernels, forward and backward.
        num_batches_tracked: 0-d int64, goes up by one where the running statistics change.

    Returns:
        A tensor of input's shape, dtype and memory layout. Statistics are
        float32 for float16, bfloat16 and float32, float64 for float64. An empty
        batch gives an empty result and changes no statistics.
        Where a channel's variance passes the largest float32, 3.4e38, its running
        variance is ∞, and on a GPU its result ``bias``.

    Raises:
        ShapeError: for shapes that do not fit, or one value a channel where
            batch statistics are used.
        DTypeError, DeviceError, ArgumentError: for arguments that do not fit.

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167.
    """
    check_tensors(input=input)
    check_optional_tensors(
        running_mean=running_mean, running_var=running_var, weight=weight, bias=bias,
        residual=residual, num_batches_tracked=num_batches_tracked,
    )  # fmt: skip
    check_pair(running_mean, running_var)
    if not is_float(input.dtype):
        raise not_floating("input", input)
    residual = autocast_like(residual, input)
    if not training and running_mean is not None:
        return apply(
            BatchNormFrozen, input, weight, bias, running_mean, running_var, residual,
            eps=eps, activation=activation,
        )  # fmt: skip
    tracked = None if running_mean is None else num_batches_tracked
    updated = [t for t in (running_mean, running_var, tracked) if t is not None]
    result = apply(
        BatchNormTraining, input, weight, bias, residual,
        running_mean=None if running_mean is None else running_mean.data,
        running_var=None if running_var is None else running_var.data,
        tracked=None if tracked is None else tracked.data,
        momentum=momentum, eps=eps, activation=activation,
    )  # fmt: skip
    if input.size:
        for tensor in updated:
            tensor._version.value += 1
    return result
