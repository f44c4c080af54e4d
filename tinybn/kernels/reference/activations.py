"""The activations that kernels apply in passing, in NumPy."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import keep
from ..special import erf

Array = np.ndarray


def _sigmoid(z: Array) -> Array:
    return 1 / (1 + np.exp(-z))


def _gelu_slope(z: Array) -> Array:
    density = np.exp(-z * z / 2) / np.sqrt(2 * np.pi)
    return (1 + erf(z / np.sqrt(2))) / 2 + z * density


def _silu_slope(z: Array) -> Array:
    return _sigmoid(z) * (1 + z * (1 - _sigmoid(z)))


def _bounded(z: Array) -> Array:
    return np.clip(z, -1e4, 1e4)  # beyond, SiLU and GELU are straight lines; ∞·0 is NaN


# y(z), and from dy and z the gradient of z, of what is applied in passing; the formulas'
# sources are in kernels/activations.py.
ACTIVATIONS: dict[str | None, tuple[Callable, Callable]] = {
    None: (lambda z: z, lambda dy, z: dy),
    "relu": (lambda z: np.maximum(z, 0.0), lambda dy, z: keep(~(z <= 0), dy)),
    "silu": (
        lambda z: np.where(z < -1e4, -0.0, z * _sigmoid(z)),
        lambda dy, z: dy * _silu_slope(_bounded(z)),
    ),
    "gelu": (
        lambda z: np.where(z < -1e4, -0.0, z * (1 + erf(z / np.sqrt(2))) / 2),
        lambda dy, z: dy * _gelu_slope(_bounded(z)),
    ),
}
