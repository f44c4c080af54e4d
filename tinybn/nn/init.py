"""Initial values, drawn from the device's generator: ``tb.manual_seed`` decides them.

Each function fills a tensor in place, unrecorded, and returns it.
"""

from __future__ import annotations

import math

from ..errors import ArgumentError, ShapeError
from ..tensor import Tensor, no_grad, rand, randn

_GAINS = {
    "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0, "sigmoid": 1.0,
    "tanh": 5 / 3, "relu": math.sqrt(2), "selu": 3 / 4,
}  # fmt: skip


def constant_(tensor: Tensor, val: float) -> Tensor:
    """Fill with ``val``."""
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
        ArgumentError: unless a ≤ b.
    """
    if not a <= b:
        raise ArgumentError(f"a is {a} and b {b}; wanted a at most b")
    with no_grad():
        drawn = rand(*tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return tensor.copy_(drawn * (b - a) + a)


def normal_(tensor: Tensor, mean: float = 0.0, std: float = 1.0) -> Tensor:
    """Draw from the normal distribution.

    Raises:
        ArgumentError: for a negative ``std``.
    """
    if not std >= 0:
        raise ArgumentError(f"std is {std}; wanted at least 0")
    with no_grad():
        drawn = randn(*tensor.shape, dtype=tensor.dtype, device=tensor.device)
        return tensor.copy_(drawn * std + mean)


def xavier_uniform_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Uniform within ±gain·sqrt(6/(fan_in + fan_out)) (Glorot and Bengio 2010, equation 16).

    Raises:
        ShapeError: for fewer than two axes.
    """
    bound = gain * math.sqrt(6 / sum(_fans(tensor)))
    return uniform_(tensor, -bound, bound)


def xavier_normal_(tensor: Tensor, gain: float = 1.0) -> Tensor:
    """Normal with deviation gain·sqrt(2/(fan_in + fan_out)) (Glorot and Bengio 2010).

    Raises:
        ShapeError: for fewer than two axes.
    """
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
        ArgumentError: for another name.
    """
    if nonlinearity == "leaky_relu":
        return math.sqrt(2 / (1 + (0.01 if param is None else param) ** 2))
    if nonlinearity not in _GAINS:
        raise ArgumentError(
            f"nonlinearity is {nonlinearity!r}; wanted {', '.join(_GAINS)} or leaky_relu"
        )
    return _GAINS[nonlinearity]


def _kaiming(tensor: Tensor, a: float, mode: str, nonlinearity: str) -> float:
    if mode not in ("fan_in", "fan_out"):
        raise ArgumentError(f"mode is {mode!r}; wanted 'fan_in' or 'fan_out'")
    fan = _fans(tensor)[mode == "fan_out"]
    return calculate_gain(nonlinearity, a) / math.sqrt(fan)


def _fans(tensor: Tensor) -> tuple[int, int]:
    """How many inputs an output has, and outputs an input: weights are [out, in, positions …]."""
    if tensor.ndim < 2 or tensor.size == 0:
        raise ShapeError(
            f"a tensor of shape {tensor.shape} has no fan; wanted [out, in, …] without zeros"
        )
    positions = math.prod(tensor.shape[2:])
    return tensor.shape[1] * positions, tensor.shape[0] * positions
