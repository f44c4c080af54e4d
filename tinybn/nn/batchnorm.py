"""BatchNorm1d, BatchNorm2d and BatchNorm3d."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar

from ..arguments import integer, number, switch
from ..errors import ArgumentError, ShapeError
from ..kernels.arrays import accumulation_dtype
from ..tensor import Tensor, no_grad, ones, zeros
from ..tensor.device import Device
from ..tensor.dtypes import as_dtype, float32, int64
from .functional import batch_norm
from .module import Module
from .parameter import Parameter


class _BatchNorm(Module):
    """Normalise each channel by the batch's statistics, or in evaluation by running ones.

    y = (x − mean)/sqrt(var + eps)·weight + bias (Ioffe and Szegedy 2015,
    https://arxiv.org/abs/1502.03167).

    Args:
        num_features: C, the number of channels.
        eps: added to the variance, at least 0.
        momentum: the weight of a batch in the running statistics, 0 to 1; None
            for the plain average of all batches.
        affine: whether there are weight and bias.
        track_running_stats: whether to keep running statistics; without them
            the batch's are used in evaluation too.
        device, dtype: of the parameters and buffers, which are float32 (float64
            for float64) also where float16 or bfloat16 is asked for.

    Attributes:
        weight, bias: [C] parameters, 1 and 0 at first; None without ``affine``.
        running_mean, running_var: [C] buffers, 0 and 1 at first; None without
            ``track_running_stats``, and then not in the state_dict.
        num_batches_tracked: 0-d int64 buffer, how many batches they have seen.
        frozen: whether :meth:`freeze` was called.

    Raises:
        ArgumentError: for arguments outside these.

    An empty batch gives an empty result and changes no statistics.
    """

    _ndims: ClassVar[tuple[int, ...]]
    _wanted: ClassVar[str]
    weight: Parameter | None
    bias: Parameter | None
    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: str | Device | None = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.num_features = integer("num_features", num_features, 1)
        self.eps = number("eps", eps, least=0)
        self.momentum = None
        if momentum is not None:
            self.momentum = number("momentum", momentum, least=0, most=1)
        self.affine = switch("affine", affine)
        self.track_running_stats = switch("track_running_stats", track_running_stats)
        self.frozen = False
        kind = self._kept_dtype(float32 if dtype is None else as_dtype(dtype))
        place: dict[str, Any] = {"dtype": kind, "device": device}
        for name, make in (("weight", ones), ("bias", zeros)):
            param = Parameter(make(self.num_features, **place)) if self.affine else None
            self.register_parameter(name, param)
        tracked = self.track_running_stats
        self.register_buffer("running_mean", zeros(self.num_features, **place) if tracked else None)
        self.register_buffer("running_var", ones(self.num_features, **place) if tracked else None)
        count = zeros((), dtype=int64, device=device) if tracked else None
        self.register_buffer("num_batches_tracked", count)

    def _kept_dtype(self, dtype: Any) -> Any:
        # Low-precision activations keep their statistics and parameters in float32.
        return accumulation_dtype(dtype)

    def freeze(self) -> _BatchNorm:
        """Use the running statistics from now on and never update them, also after train().

        weight and bias go on learning; ``requires_grad_(False)`` stops them too.

        Raises:
            ArgumentError: where no running statistics are kept.
        """
        if not self.track_running_stats:
            raise ArgumentError(
                "freeze() needs running statistics; wanted track_running_stats=True"
            )
        self.frozen = True
        return self

    def unfreeze(self) -> _BatchNorm:
        """Undo :meth:`freeze`."""
        self.frozen = False
        return self

    def reset_running_stats(self) -> None:
        """Set the running mean to 0, the running variance to 1 and the count to 0."""
        if self.running_mean is not None and self.running_var is not None:
            self.running_mean.zero_()
            self.running_var.fill_(1)
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.zero_()

    def reset_parameters(self) -> None:
        """Reset the statistics, and set weight to 1 and bias to 0."""
        self.reset_running_stats()
        with no_grad():
            if self.weight is not None and self.bias is not None:
                self.weight.fill_(1)
                self.bias.zero_()

    def forward(
        self, input: Tensor, residual: Tensor | None = None, activation: str | None = None
    ) -> Tensor:
        """Normalise ``input``; the result has its shape, dtype and memory layout.

        ``residual`` and ``activation`` are added and applied after that by the same
        kernels; see :func:`nn.functional.batch_norm`.

        Raises:
            ShapeError: for other dimensions or channels, or one value a channel where the
                batch's statistics are used; nothing is changed then.
            DTypeError, DeviceError: for an input that does not fit.
        """
        if input.ndim not in self._ndims or input.shape[1] != self.num_features:
            raise ShapeError(
                f"{type(self).__name__}({self.num_features}) was given shape {input.shape}; "
                f"wanted {self._wanted.replace('C', str(self.num_features))}"
            )
        from_batch = (self.training and not self.frozen) or self.running_mean is None
        # track_running_stats may have been switched off since the buffers were made.
        updates = from_batch and self.running_mean is not None and self.track_running_stats
        given = updates or not from_batch
        return batch_norm(
            input,
            self.running_mean if given else None,
            self.running_var if given else None,
            self.weight,
            self.bias,
            training=from_batch,
            momentum=self.momentum if updates else 0.0,
            eps=self.eps,
            residual=residual,
            activation=activation,
            num_batches_tracked=self.num_batches_tracked if updates else None,
        )

    def extra_repr(self) -> str:
        shown = (
            f"{self.num_features}, eps={self.eps:g}, momentum={self.momentum}, "
            f"affine={self.affine}, track_running_stats={self.track_running_stats}"
        )
        return shown + ", frozen" if self.frozen else shown


class BatchNorm1d(_BatchNorm):
    __doc__ = f"[N, C] or [N, C, L]. {_BatchNorm.__doc__}"
    _ndims, _wanted = (2, 3), "[N, C] or [N, C, L]"


class BatchNorm2d(_BatchNorm):
    __doc__ = f"[N, C, H, W]. {_BatchNorm.__doc__}"
    _ndims, _wanted = (4,), "[N, C, H, W]"


class BatchNorm3d(_BatchNorm):
    __doc__ = f"[N, C, D, H, W]. {_BatchNorm.__doc__}"
    _ndims, _wanted = (5,), "[N, C, D, H, W]"


@contextlib.contextmanager
def trying_out(model: Module) -> Iterator[None]:
    """Within it a forward takes batch statistics as in training, and changes nothing.

    BatchNorm layers have the modes that ``model.train()`` gives them and update no running
    statistics; all other modules are in evaluation, where dropout draws no random numbers.
    """
    modules = list(model.modules())
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    modes = [module.training for module in modules]
    tracked = [norm.track_running_stats for norm in norms]
    try:
        model.train()
        for module in modules:
            module.training = module.training and isinstance(module, _BatchNorm)
        for norm in norms:
            # Past Module.__setattr__, after which captured steps would be recorded anew.
            vars(norm)["track_running_stats"] = False
        yield
    finally:
        for module, mode in zip(modules, modes):
            module.training = mode
        for norm, track in zip(norms, tracked):
            vars(norm)["track_running_stats"] = track
