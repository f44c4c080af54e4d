"""Optimisers: SGD, Adam and AdamW, as PyTorch defines them.

All tensors of a parameter group are updated by one kernel call. Options are
Python numbers, so that nothing is promoted: a parameter, its gradient and its
state keep one dtype.
"""

from ..utils import clip_grad_norm_, clip_grad_value_
from .adam import Adam, AdamW
from .optimizer import Optimizer
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "clip_grad_norm_", "clip_grad_value_"]
