"""Models, ready to train."""

from __future__ import annotations

from collections.abc import Sequence

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
    """
    layers: list[Module] = [Flatten()]
    for size in hidden:
        layers += [Linear(in_features, size), BatchNorm1d(size), ReLU()]
        in_features = size
    return Sequential(*layers, Linear(in_features, classes))
