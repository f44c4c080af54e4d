"""The specification: every kernel's mathematics in NumPy, and the CPU engine.

Plain textbook formulas in float64, rounded once at the end to the outputs'
dtypes; products, convolutions, dropout and the optimisers in the accumulation dtype. The
Triton kernels are held to these functions; these are held to finite
differences and to golden values worked out elsewhere. Each writes into the
outputs that it is given; their public forms, which check arguments and make the
outputs, are each family's ``functions.py``.
"""

from .batch_norm import (
    batch_norm_2d_nchw_backward,
    batch_norm_2d_nchw_forward_inference,
    batch_norm_backward,
    batch_norm_forward,
    batch_norm_forward_inference,
    batch_norm_normalize_forward,
    batch_norm_stats_forward,
)
from .conv import conv2d_backward_input, conv2d_backward_weight, conv2d_forward
from .cross_entropy import cross_entropy_backward, cross_entropy_forward
from .images import gather_images
from .matmul import linear_backward, matmul
from .metrics import add_metrics
from .optimizers import adam_step, sgd_step
from .pool import (
    avg_pool2d_backward,
    avg_pool2d_forward,
    max_pool2d_backward,
    max_pool2d_forward,
)
from .random import dropout, philox

__all__ = [
    "add_metrics",
    "adam_step",
    "avg_pool2d_backward",
    "avg_pool2d_forward",
    "batch_norm_2d_nchw_backward",
    "batch_norm_2d_nchw_forward_inference",
    "batch_norm_backward",
    "batch_norm_forward",
    "batch_norm_forward_inference",
    "batch_norm_normalize_forward",
    "batch_norm_stats_forward",
    "conv2d_backward_input",
    "conv2d_backward_weight",
    "conv2d_forward",
    "cross_entropy_backward",
    "cross_entropy_forward",
    "dropout",
    "gather_images",
    "linear_backward",
    "matmul",
    "max_pool2d_backward",
    "max_pool2d_forward",
    "philox",
    "sgd_step",
]
