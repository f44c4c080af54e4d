"""Models, ready to train."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ..errors import ArgumentError
from .activation import ReLU
from .batchnorm import BatchNorm1d, BatchNorm2d
from .container import Sequential
from .conv import Conv2d
from .linear import Flatten, Linear
from .module import Module
from .pooling import MaxPool2d


def mlp(in_features: int = 784, hidden: Sequence[int] = (512, 512), classes: int = 10) -> Module:
    """Flatten, then Linear, BatchNorm and ReLU for each hidden size, then Linear.

    Args:
        in_features: the elements of one input; 784 for MNIST's 28×28.
        hidden: the sizes of the hidden layers.
        classes: the number of logits.

    Returns:
        A Sequential that takes [N, …] to logits [N, classes].

    Raises:
        ArgumentError: for a size that is no whole number of at least 1.
    """
    if not _are_sizes(hidden, in_features, classes):
        raise ArgumentError(
            f"mlp is given in_features {in_features!r}, hidden {hidden!r} and classes {classes!r}; "
            "wanted whole numbers of at least 1, of hidden a sequence"
        )
    layers: list[Module] = [Flatten()]
    for size in hidden:
        layers += [Linear(in_features, size), BatchNorm1d(size), ReLU()]
        in_features = size
    return Sequential(*layers, Linear(in_features, classes))


def _are_sizes(sequence: Any, *singles: Any) -> bool:
    """Whether all are whole numbers of at least 1, the first a sequence of them."""
    try:
        return all(operator.index(size) >= 1 for size in (*sequence, *singles))
    except TypeError:
        return False


def cnn(channels: Sequence[int] = (32, 64), classes: int = 10, image: int = 28) -> Module:
    """3×3 Conv2d, BatchNorm, ReLU and a 2×2 MaxPool2d for each width, then Linear.

    Args:
        channels: of the convolutions' results.
        classes: the number of logits.
        image: height and width of the one-channel images; 28 for MNIST.

    Returns:
        A Sequential that takes [N, 1, image, image] to logits [N, classes].

    Raises:
        ArgumentError: for a size that is no whole number of at least 1, or images too small
            to be halved so often.
    """
    if not _are_sizes(channels, classes, image):
        raise ArgumentError(
            f"cnn is given channels {channels!r}, classes {classes!r} and image {image!r}; wanted "
            "whole numbers of at least 1, of channels a sequence"
        )
    layers: list[Module] = []
    before, size = 1, image
    for width in channels:
        # BatchNorm subtracts the mean, and with it any bias.
        convolution = Conv2d(before, width, 3, padding=1, bias=False)
        layers += [convolution, BatchNorm2d(width), ReLU(), MaxPool2d(2)]
        before, size = width, size // 2
    if size < 1:
        raise ArgumentError(
            f"images of {image}×{image} are halved {len(channels)} times; wanted larger ones"
        )
    return Sequential(*layers, Flatten(), Linear(before * size * size, classes))
