"""Initial values, drawn from the device's generator: ``tb.manual_seed`` decides them.

Each function fills a tensor in place, unrecorded, and returns it.
"""

from __future__ import annotations

import math

from ..arguments import choice, number
from ..errors import ArgumentError, ShapeError
from ..tensor import Tensor, no_grad, rand, randn
from ..tensor.ops._operands import check_tensors

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "sigmoid": 1.0,
    "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4,
}  # fmt: skip


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with ``val``."""
    check_tensors(tensor=tensor)
    with no_grad():
        return tensor.fill_(val)


def zeros_(tensor: Tensor) -> Tensor:
    """Fill with 0."""
    return constant_(tensor, 0)


def ones_(tensor: Tensor) -> Tensor:
    """Fill with 1."""
    return constant_(tensor, 1)


def uniform_(tensor: Tensor, a: float = 0.0, b: float = 1.0) -> Tensor:
    """Draw uniformly from [a, b).

    Raises:
        ArgumentError: unless a ≤ b, both finite.
        DTypeError: for what is no floating Tensor.
    """
    check_tensors(tensor=tensor)
    a, b = number("a", a), number("b", b)
    if not a <= b:
        raise ArgumentError(f"a is {a} and b {b}; wanted a at most b")
    with no_grad():
        drawn = rand(*tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return tensor.copy_(drawn * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Draw from the normal distribution.

    Raises:
        ArgumentError: for a ``mean`` or ``std`` that is not finite, or a negative ``std``.
        DTypeError: for what is no floating Tensor.
    """
    check_tensors(tensor=tensor)
    mean, std = number("mean", mean), number("std", std, least=0)
    with no_grad():
        drawn = randn(*tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return tensor.copy_(drawn * std + mean)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform within ±gain·sqrt(6/(fan_in + fan_out)) (Glorot and Bengio 2010, equation 16).

    Raises:
        ShapeError: for fewer than two axes.
        ArgumentError: for a gain that is not finite, or negative.
    """
    bound = number("gain", gain, least=0) * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with deviation gain·sqrt(2/(fan_in + fan_out)) (Glorot and Bengio 2010).

    Raises:
        ShapeError: for fewer than two axes.
        ArgumentError: for a gain that is not finite, or negative.
    """
    gain = number("gain", gain, least=0)
    return normal_(tensor, 0.0, gain * math.sqrt(2 / sum(_fans(tensor))))


def kaiming_uniform_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Uniform within ±gain·sqrt(3/fan) (He et al. 2015, https://arxiv.org/abs/1502.01852).

    Args:
        a: the negative slope of the leaky ReLU that follows.
        mode: ``"fan_in"`` keeps the variance forward, ``"fan_out"`` backward.
        nonlinearity: what follows; see :func:`calculate_gain`.

    Raises:
        ShapeError: for fewer than two axes.
        ArgumentError: for another mode or nonlinearity.
    """
    bound = math.sqrt(3) * _kaiming(tensor, a, mode, nonlinearity)
    return uniform_(tensor, -bound, bound)


def kaiming_normal_(
    tensor: Tensor, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu"
) -> Tensor:
    """Normal with deviation gain/sqrt(fan); arguments and errors as :func:`kaiming_uniform_`."""
    return normal_(tensor, 0.0, _kaiming(tensor, a, mode, nonlinearity))


def calculate_gain(nonlinearity: str, param: float | None = None) -> float:
    """The factor that keeps a signal's size through ``nonlinearity``.

    1 for ``"linear"``, ``"conv1d"`` to ``"conv3d"`` and ``"sigmoid"``, 5/3 for
    ``"tanh"``, √2 for ``"relu"``, 3/4 for ``"selu"``, and sqrt(2/(1 + param²)) for
    ``"leaky_relu"`` with slope ``param``, 0.01 where None.

    Raises:
        ArgumentError: for another name, or a param that is no finite number.
    """
    slope = 0.01 if param is None else number("param", param)
    choice("nonlinearity", nonlinearity, (*_GAINS, "leaky_relu"))
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + slope**2))
    return _GAINS[nonlinearity]


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    choice("mode", mode, ("fan_in", "fan_out"))
    a = number("a", a)
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """How many inputs an output has, and outputs an input: weights are [out, in, positions …]."""
    check_tensors(tensor=tensor)
    if tensor.ndim < 2 or tensor.size == 0:
        raise ShapeError(
            f"a tensor of shape {tensor.shape} has no fan; wanted [out, in, …] without zeros"
        )
    positions = math.prod(tensor.shape[2:])
    return tensor.shape[1] * positions, tensor.shape[0] * positions
