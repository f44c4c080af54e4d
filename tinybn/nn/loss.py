"""Losses as modules; the formulas are in ``loss_functions``."""

from __future__ import annotations

from ..arguments import choice, integer, number
from ..errors import DTypeError, ShapeError
from ..tensor import Tensor
from ..tensor.dtypes import is_float
from ..tensor.ops._operands import check_optional_tensors
from ..tensor.ops.cross_entropy import REDUCTIONS
from . import functional as F
from .module import Module


class _Loss(Module):
    def __init__(self, reduction: str) -> None:
        super().__init__()
        self.reduction = choice("reduction", reduction, REDUCTIONS)

    def extra_repr(self) -> str:
        return f"reduction={self.reduction!r}"


def _class_weight(weight: Tensor | None) -> Tensor | None:
    """Return ``weight``, [C] and floating, or None."""
    _factors(weight=weight)
    if weight is not None and weight.ndim != 1:
        raise ShapeError(f"weight has shape {weight.shape}; wanted (C,), one for each class")
    return weight


def _factors(**given: Tensor | None) -> None:
    """Raise DTypeError unless each is a floating Tensor or None."""
    check_optional_tensors(**given)
    for name, factor in given.items():
        if factor is not None and not is_float(factor.dtype):
            raise DTypeError(f"{name} has dtype {factor.dtype.name}; wanted a floating dtype")


class CrossEntropyLoss(_Loss):
    """Cross-entropy of softmax(input) with class numbers or probabilities.

    Args:
        weight: [C], a buffer that moves with the module, or None.
        ignore_index, reduction, label_smoothing: see
            :func:`tinybn.nn.functional.cross_entropy`.

    Raises:
        ArgumentError: for another reduction, a label_smoothing outside 0 to 1, or an
            ignore_index that is no integer.
        DTypeError, ShapeError: for another weight.
    """

    weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", _class_weight(weight))
        self.ignore_index = integer("ignore_index", ignore_index)
        self.label_smoothing = number("label_smoothing", label_smoothing, least=0, most=1)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits [N, C] and class numbers [N] to a scalar, or [N] without reduction."""
        return F.cross_entropy(
            input,
            target,
            self.weight,
            ignore_index=self.ignore_index,
            reduction=self.reduction,
            label_smoothing=self.label_smoothing,
        )

    def extra_repr(self) -> str:
        return (
            f"ignore_index={self.ignore_index}, {super().extra_repr()}, "
            f"label_smoothing={self.label_smoothing}"
        )


class NLLLoss(_Loss):
    """Negative log-likelihood; see :func:`tinybn.nn.functional.nll_loss`.

    Raises:
        ArgumentError: for another reduction, or an ignore_index that is no integer.
        DTypeError, ShapeError: for another weight.
    """

    weight: Tensor | None

    def __init__(
        self, weight: Tensor | None = None, *, ignore_index: int = -100, reduction: str = "mean"
    ) -> None:
        super().__init__(reduction)
        self.register_buffer("weight", _class_weight(weight))
        self.ignore_index = integer("ignore_index", ignore_index)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Log-probabilities [N, C] and class numbers [N] to a scalar, or [N]."""
        return F.nll_loss(
            input, target, self.weight, ignore_index=self.ignore_index, reduction=self.reduction
        )


class MSELoss(_Loss):
    """Mean squared error; see :func:`tinybn.nn.functional.mse_loss`.

    Raises:
        ArgumentError: for another reduction.
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Two tensors of one shape to a scalar, or that shape."""
        return F.mse_loss(input, target, reduction=self.reduction)


class BCEWithLogitsLoss(_Loss):
    """Binary cross-entropy; see :func:`tinybn.nn.functional.binary_cross_entropy_with_logits`.

    Raises:
        ArgumentError: for another reduction.
        DTypeError: for factors that are no floating Tensors.
    """

    weight: Tensor | None
    pos_weight: Tensor | None

    def __init__(
        self,
        weight: Tensor | None = None,
        *,
        reduction: str = "mean",
        pos_weight: Tensor | None = None,
    ) -> None:
        super().__init__(reduction)
        _factors(weight=weight, pos_weight=pos_weight)
        self.register_buffer("weight", weight)
        self.register_buffer("pos_weight", pos_weight)

    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        """Logits and probabilities of one shape to a scalar, or that shape."""
        return F.binary_cross_entropy_with_logits(
            input, target, self.weight, reduction=self.reduction, pos_weight=self.pos_weight
        )
