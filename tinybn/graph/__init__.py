"""What is recorded once and run again: pictures of the tape, captured steps, runtime graphs."""

from typing import TYPE_CHECKING

from .._lazy import lazily
from .capture import CapturedStep, capture

if TYPE_CHECKING:
    from .batch_norm_ops import (
        BatchNorm2dNchwInferenceRuntimeOp,
        BatchNormNormalizeRuntimeOp,
        BatchNormStatsRuntimeOp,
    )
    from .compiling import compile
    from .dot import to_dot
    from .loading import load
    from .ops import (
        ActivationRuntimeOp,
        AddRuntimeOp,
        AvgPool2dRuntimeOp,
        BatchNormRuntimeOp,
        Conv2dRuntimeOp,
        CrossEntropyRuntimeOp,
        FlattenRuntimeOp,
        LinearRuntimeOp,
        MaxPool2dRuntimeOp,
        MeanRuntimeOp,
        SoftmaxRuntimeOp,
        TapeRuntimeOp,
    )
    from .profile import Profile
    from .runtime_graph import RuntimeGraph
    from .runtime_op import RuntimeOp, Slot

_HOMES = {
    "BatchNorm2dNchwInferenceRuntimeOp": "batch_norm_ops",
    "BatchNormNormalizeRuntimeOp": "batch_norm_ops",
    "BatchNormStatsRuntimeOp": "batch_norm_ops",
    "compile": "compiling",
    "to_dot": "dot",
    "load": "loading",
    "ActivationRuntimeOp": "ops",
    "AddRuntimeOp": "ops",
    "AvgPool2dRuntimeOp": "ops",
    "BatchNormRuntimeOp": "ops",
    "Conv2dRuntimeOp": "ops",
    "CrossEntropyRuntimeOp": "ops",
    "FlattenRuntimeOp": "ops",
    "LinearRuntimeOp": "ops",
    "MaxPool2dRuntimeOp": "ops",
    "MeanRuntimeOp": "ops",
    "SoftmaxRuntimeOp": "ops",
    "TapeRuntimeOp": "ops",
    "Profile": "profile",
    "RuntimeGraph": "runtime_graph",
    "RuntimeOp": "runtime_op",
    "Slot": "runtime_op",
}  # loaded when first used
__getattr__, __dir__ = lazily(__name__, _HOMES)

__all__ = [
    "ActivationRuntimeOp", "AddRuntimeOp", "AvgPool2dRuntimeOp",
    "BatchNorm2dNchwInferenceRuntimeOp", "BatchNormNormalizeRuntimeOp", "BatchNormRuntimeOp",
    "BatchNormStatsRuntimeOp", "CapturedStep", "Conv2dRuntimeOp", "CrossEntropyRuntimeOp",
    "FlattenRuntimeOp", "LinearRuntimeOp", "MaxPool2dRuntimeOp", "MeanRuntimeOp", "Profile",
    "RuntimeGraph", "RuntimeOp", "Slot", "SoftmaxRuntimeOp", "TapeRuntimeOp", "capture", "compile",
    "load", "to_dot",
]  # fmt: skip
