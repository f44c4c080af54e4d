"""Functions of networks under PyTorch's names, argument order and keywords.

An argument of PyTorch's that is missing here, such as ``inplace``, raises
TypeError. Where PyTorch keeps long-deprecated arguments in the middle
(``size_average``, ``reduce``), those after them are keywords only.
"""

from __future__ import annotations

from ..arguments import integer
from ..errors import ArgumentError, DTypeError, IndexOutOfRange
from ..kernels import recording
from ..kernels.arrays import namespace
from ..tensor import Tensor, watch
from ..tensor.dtypes import int32, int64
from ..tensor.ops import activation as _activation
from ..tensor.ops import matmul as _matmul
from ..tensor.ops import softmax as _softmax
from ..tensor.ops import unary as _unary
from ..tensor.ops._operands import check_tensors
from ..tensor.ops.batch_norm import batch_norm
from ..tensor.ops.conv import conv2d
from ..tensor.ops.dropout import dropout
from ..tensor.ops.pool import adaptive_avg_pool2d, avg_pool2d, max_pool2d
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


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """input·weightᵀ + bias: [..., in] with weight [out, in] and bias [out] to [..., out].

    float64 beside float32 computes and gives float64, as in NumPy.

    Raises:
        ShapeError, DeviceError: for tensors that do not fit.
        DTypeError: for an input of integers and a floating weight.
    """
    return _matmul.linear(input, weight, bias)


def relu(input: Tensor) -> Tensor:
    """max(input, 0), element by element; NaN stays NaN."""
    return _activation.relu(input)


def gelu(input: Tensor, approximate: str = "none") -> Tensor:
    """input·Φ(input), Φ the normal distribution function; ``"tanh"`` approximates it.

    Raises:
        ArgumentError: for another ``approximate``.

    Source: Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415.
    """
    return _activation.gelu(input, approximate)


def silu(input: Tensor) -> Tensor:
    """input·sigmoid(input) (Elfwing et al. 2017, https://arxiv.org/abs/1702.03118)."""
    return _activation.silu(input)


def tanh(input: Tensor) -> Tensor:
    """The hyperbolic tangent of each element."""
    return _unary.tanh(input)


def sigmoid(input: Tensor) -> Tensor:
    """1/(1 + exp(−input)), element by element."""
    return _activation.sigmoid(input)


def softplus(input: Tensor, beta: float = 1.0, threshold: float = 20.0) -> Tensor:
    """log(1 + exp(beta·input))/beta, and input itself where beta·input is above ``threshold``.

    Raises:
        ArgumentError: for beta = 0.
    """
    return _activation.softplus(input, beta, threshold)


def softmax(input: Tensor, dim: int) -> Tensor:
    """exp(input) over its sum along axis ``dim``; of input's shape and dtype.

    Raises:
        DTypeError: for an input that is not floating.
        IndexOutOfRange: for an axis that is not there.
    """
    return _softmax.softmax(input, dim)


def log_softmax(input: Tensor, dim: int) -> Tensor:
    """log of the softmax along axis ``dim``, computed without leaving the logarithm.

    Raises as :func:`softmax`.
    """
    return _softmax.log_softmax(input, dim)


def one_hot(target: Tensor, num_classes: int = -1) -> Tensor:
    """Class numbers [...] as int64 rows [..., C] with a single 1.

    Args:
        target: int32 or int64, at least 0.
        num_classes: C; −1 for the largest class number plus 1.

    Raises:
        DTypeError: for other dtypes.
        IndexOutOfRange: for a number outside 0 to C − 1. In a captured step it gives zeros.
        ArgumentError: for a C that is no integer, or below 0 where there are no class numbers.
    """
    check_tensors(target=target)
    if target.dtype not in (int32, int64):
        raise DTypeError(f"target has dtype {target.dtype.name}; wanted int32 or int64")
    watch.read(target, "one_hot")
    classes = integer("num_classes", num_classes)
    if classes < 0 and target.size == 0:
        raise ArgumentError(f"num_classes is {classes} and target is empty; wanted the number")
    if classes == -1:
        classes = int(target.data.max()) + 1
    if classes < 0 or not recording.capturing():  # to look at them would be a host read
        outside = (target.data < 0) | (target.data >= classes)
        if bool(outside.any()):
            raise IndexOutOfRange(
                f"num_classes is {num_classes} and target holds classes {int(target.data.min())} "
                f"to {int(target.data.max())}; wanted them from 0 to num_classes - 1"
            )
    xp = namespace(target.data)
    hot = target.data[..., None] == xp.arange(classes)
    return Tensor.wrap(hot.astype(int64))
