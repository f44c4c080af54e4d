"""What is recorded once and run again: pictures of the tape, captured steps, runtime graphs."""

from .batch_norm_ops import (
    BatchNorm2dNchwInferenceRuntimeOp,
    BatchNormNormalizeRuntimeOp,
    BatchNormStatsRuntimeOp,
)
from .capture import CapturedStep, capture
from .compile import compile
from .dot import to_dot
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
from .runtime_graph import RuntimeGraph, load
from .runtime_op import RuntimeOp, Slot

__all__ = [
    "ActivationRuntimeOp", "AddRuntimeOp", "AvgPool2dRuntimeOp",
    "BatchNorm2dNchwInferenceRuntimeOp", "BatchNormNormalizeRuntimeOp", "BatchNormRuntimeOp",
    "BatchNormStatsRuntimeOp", "CapturedStep", "Conv2dRuntimeOp", "CrossEntropyRuntimeOp",
    "FlattenRuntimeOp", "LinearRuntimeOp", "MaxPool2dRuntimeOp", "MeanRuntimeOp", "Profile",
    "RuntimeGraph", "RuntimeOp", "Slot", "SoftmaxRuntimeOp", "TapeRuntimeOp", "capture", "compile",
    "load", "to_dot",
]  # fmt: skip
