"""Functions of networks under PyTorch's names, argument order and keywords.

An argument of PyTorch's that is missing here, such as ``inplace``, raises
TypeError. Where PyTorch keeps long-deprecated arguments in the middle
(``size_average``, ``reduce``), those after them are keywords only.
"""

from __future__ import annotations

from ..tensor.ops.activation import gelu, relu, sigmoid, silu, softplus
from ..tensor.ops.batch_norm import batch_norm
from ..tensor.ops.conv import conv2d
from ..tensor.ops.dropout import dropout
from ..tensor.ops.matmul import linear
from ..tensor.ops.one_hot import one_hot
from ..tensor.ops.pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
from ..tensor.ops.softmax import log_softmax, softmax
from ..tensor.ops.unary import tanh
from .loss_functions import (
    binary_cross_entropy_with_logits,
    cross_entropy,
    mse_loss,
    nll_loss,
)

__all__ = [
    "adaptive_avg_pool2d",
    "avg_pool2d",
    "batch_norm",
    "binary_cross_entropy_with_logits",
    "conv2d",
    "cross_entropy",
    "dropout",
    "gelu",
    "linear",
    "log_softmax",
    "max_pool2d",
    "mse_loss",
    "nll_loss",
    "one_hot",
    "relu",
    "sigmoid",
    "silu",
    "softmax",
    "softplus",
    "tanh",
]
