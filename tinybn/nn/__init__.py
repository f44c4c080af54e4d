"""Layers, losses, optimisers and the training loop, under PyTorch's names."""

from typing import TYPE_CHECKING

from .._lazy import lazily
from . import functional, init, models
from .activation import GELU, Dropout, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from .batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .container import ModuleList, Sequential
from .conv import Conv2d
from .linear import Flatten, Identity, Linear
from .loss import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss, NLLLoss
from .module import Module
from .parameter import Parameter
from .pooling import AdaptiveAvgPool2d, AvgPool2d, GlobalAvgPool, MaxPool2d

if TYPE_CHECKING:
    from . import amp, optim, schedule
    from .checkpoint import check_writable, load, save
    from .trainer import Trainer
    from .utils import clip_grad_norm_, clip_grad_value_

_HOMES = {
    "Trainer": "trainer",
    "amp": "amp",
    "check_writable": "checkpoint",
    "clip_grad_norm_": "utils",
    "clip_grad_value_": "utils",
    "load": "checkpoint",
    "optim": "optim",
    "save": "checkpoint",
    "schedule": "schedule",
}  # loaded when first used
__getattr__, __dir__ = lazily(__name__, _HOMES)

__all__ = [
    "AdaptiveAvgPool2d",
    "AvgPool2d",
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "Conv2d",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "GELU",
    "GlobalAvgPool",
    "Identity",
    "Linear",
    "LogSoftmax",
    "MSELoss",
    "MaxPool2d",
    "Module",
    "ModuleList",
    "NLLLoss",
    "Parameter",
    "ReLU",
    "Sequential",
    "SiLU",
    "Sigmoid",
    "Softmax",
    "Tanh",
    "Trainer",
    "amp",
    "check_writable",
    "clip_grad_norm_",
    "clip_grad_value_",
    "functional",
    "init",
    "load",
    "models",
    "optim",
    "save",
    "schedule",
]
