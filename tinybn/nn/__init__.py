"""Layers, losses, optimisers and the training loop, under PyTorch's names."""

from . import functional, init, models, optim, schedule
from .activation import GELU, Dropout, LogSoftmax, ReLU, Sigmoid, SiLU, Softmax, Tanh
from .batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .checkpoint import check_writable, load, save
from .container import ModuleList, Sequential
from .linear import Flatten, Identity, Linear
from .loss import BCEWithLogitsLoss, CrossEntropyLoss, MSELoss, NLLLoss
from .module import Module
from .parameter import Parameter
from .trainer import Trainer
from .utils import clip_grad_norm_, clip_grad_value_

__all__ = [
    "BCEWithLogitsLoss",
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CrossEntropyLoss",
    "Dropout",
    "Flatten",
    "GELU",
    "Identity",
    "Linear",
    "LogSoftmax",
    "MSELoss",
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
