"""Models, ready to train."""

from __future__ import annotations

import operator
from collections.abc import Sequence

from ..errors import ArgumentError
from .activation import ReLU
from .batchnorm import BatchNorm1d
from .container import Sequential
from .linear import Flatten, Linear
from .module import Module


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
    try:
        sizes = [operator.index(size) for size in (in_features, *hidden, classes)]
    except TypeError:
        sizes = []
    if not sizes or min(sizes) < 1:
        raise ArgumentError(
            f"mlp is given in_features {in_features!r}, hidden {hidden!r} and classes {classes!r}; "
            "wanted whole numbers of at least 1, of hidden a sequence"
        )
    layers: list[Module] = [Flatten()]
    for size in hidden:
        layers += [Linear(in_features, size), BatchNorm1d(size), ReLU()]
        in_features = size
    return Sequential(*layers, Linear(in_features, classes))
