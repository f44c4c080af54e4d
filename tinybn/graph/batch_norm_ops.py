"""BatchNorm as a graph of its parts: statistics, then normalising; and inference on images.

The two nodes of training are one layer taken apart, to be looked at and timed:

    x ──┬── BatchNormStats ── [2·C] ──┐
        └─────────────────── BatchNormNormalize ── y
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .. import kernels
from ..arguments import integer, number, switch
from ..errors import ShapeError
from ..kernels.arrays import Array, accumulation_dtype, namespace
from ..tensor.tape import Node, Op
from .runtime_op import RuntimeOp, Slot


class _Stats(Op):
    """Each channel's mean and 1/sqrt(var + eps), packed; no gradient runs back through it.

    What rounding takes from a float32 mean shows where the mean is far larger than the spread,
    so the packed numbers are float64.
    """

    @staticmethod
    def forward(
        ctx: Node, x: Array, *, running_mean: Array | None, running_var: Array | None,
        eps: float, momentum: float,
    ) -> Array:  # fmt: skip
        mean, rstd, residual = kernels.batch_norm_statistics(
            x, running_mean, running_var, eps=eps, momentum=momentum
        )
        packed = namespace(x).empty(2 * x.shape[1], np.float64)
        namespace(x).add(mean, residual, out=packed[: x.shape[1]], dtype=np.float64)
        packed[x.shape[1] :] = rstd
        return packed


class _Normalize(Op):
    """y = (x − mean)·rstd·weight + bias; its gradient is that of BatchNorm in training."""

    @staticmethod
    def forward(
        ctx: Node, x: Array, packed: Array, weight: Array | None, bias: Array | None, *,
        out: Array | None = None,
    ) -> Array:  # fmt: skip
        channels = x.shape[1]
        if packed.shape != (2 * channels,):
            raise ShapeError(
                f"the statistics have shape {packed.shape}; wanted ({2 * channels},), means and "
                f"then reciprocal standard deviations of the channels of x {x.shape}"
            )
        wide = accumulation_dtype(x.dtype)
        mean = packed[:channels].astype(wide)
        residual = (packed[:channels] - mean).astype(wide)
        rstd = packed[channels:].astype(wide)
        ctx.save(x, weight, mean, rstd, residual)
        return kernels.batch_norm_normalize_forward(
            x, weight, bias, mean, rstd, residual=residual, out=out
        )

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, mean, rstd, residual = ctx.saved
        need_x, _, need_weight, need_bias = ctx.needs
        dx, dweight, dbias = kernels.batch_norm_backward(
            grad, x, weight, mean, rstd, residual=residual, needs=(need_x, need_weight, need_bias)
        )
        return dx, None, dweight, dbias


class _NchwInference(Op):
    """y = (x − running_mean)·rstd·weight + bias on images; the statistics are constants."""

    @staticmethod
    def forward(
        ctx: Node, x: Array, weight: Array, bias: Array, running_mean: Array, running_var: Array, *,
        eps: float, out: Array | None = None,
    ) -> Array:  # fmt: skip
        ctx.save(x, weight, running_mean, running_var, eps)
        return kernels.batch_norm_2d_nchw_forward_inference(
            x, weight, bias, running_mean, running_var, eps=eps, out=out
        )

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        x, weight, running_mean, running_var, eps = ctx.saved
        gradients = kernels.batch_norm_frozen_backward(
            grad, x, weight, running_mean, running_var, eps=eps, needs=ctx.needs[:3]
        )
        return *gradients, None, None


class BatchNormStatsRuntimeOp(RuntimeOp):
    """[N, C, …] to its statistics, packed as [2·C]: means, then reciprocal standard deviations.

    They are float64: a float32 mean alone would lose digits of values whose mean is far larger
    than their spread. Gradients do not run through this node; those of BatchNorm in training,
    whose statistics depend on x, are :class:`BatchNormNormalizeRuntimeOp`'s.

    Args:
        features: C.
        eps: added to the variance.
        momentum: the weight of this batch in the running statistics.

    Slots: running_mean and running_var [C], updated in place by each forward.

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 1.
    """

    op = _Stats
    has_backward = False

    def __init__(self, features: int, eps: float = 1e-5, momentum: float = 0.1) -> None:
        channel = (integer("features", features, 1),)
        slots = {n: Slot(channel, False) for n in ("running_mean", "running_var")}
        super().__init__(
            slots, (0,), eps=number("eps", eps, least=0),
            momentum=number("momentum", momentum, least=0, most=1),
        )  # fmt: skip

    def keywords(self, inputs: Sequence[Array], parameters: Mapping[str, Array]) -> dict[str, Any]:
        return self.options | dict(parameters)


class BatchNormNormalizeRuntimeOp(RuntimeOp):
    """x and its packed statistics to y = (x − mean)·rstd·weight + bias.

    Its backward gives dx, dweight and dbias of BatchNorm in *training*, where the statistics
    are functions of x: dx = weight·rstd·(dy − dbias/n − x̂·dweight/n).

    Args:
        features: C.
        affine: whether there are weight and bias.

    Slots: weight and bias [C].

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, section 3.
    """

    op = _Normalize
    inputs = 2
    takes_out = True

    def __init__(self, features: int, affine: bool = True) -> None:
        channel = (integer("features", features, 1),)
        names = ("weight", "bias") if switch("affine", affine) else ()
        columns = names or (None, None)
        super().__init__({n: Slot(channel) for n in names}, (0, 1, *columns))


class BatchNorm2dNchwInferenceRuntimeOp(RuntimeOp):
    """[N, C, H, W] normalised by running statistics, which are constants, also in backward.

    Args:
        features: C.
        eps: added to the running variance.

    Slots: weight, bias, running_mean and running_var [C].

    Source: Ioffe and Szegedy 2015, https://arxiv.org/abs/1502.03167, algorithm 2, line 11.
    """

    op = _NchwInference
    takes_out = True

    def __init__(self, features: int, eps: float = 1e-5) -> None:
        channel = (integer("features", features, 1),)
        slots = {"weight": Slot(channel), "bias": Slot(channel)}
        slots |= {n: Slot(channel, False) for n in ("running_mean", "running_var")}
        super().__init__(slots, (0, *slots), eps=number("eps", eps, least=0))
