"""The ops on arrays, as users call them: check the arguments, make the outputs, run.

Every function takes NumPy or CuPy arrays and returns arrays of the same
library on the same device. Nothing is written before the checks have passed.
"""

from .backward import (
    Passing,
    batch_norm_2d_nchw_backward,
    batch_norm_backward,
    batch_norm_frozen_backward,
    batch_norm_gradients,
)
from .batch_norm import (
    BatchNormResult,
    batch_norm_2d_nchw_forward_inference,
    batch_norm_forward,
    batch_norm_forward_inference,
    batch_norm_normalize_forward,
    batch_norm_statistics,
    batch_norm_stats_forward,
)
from .conv import conv2d_backward_input, conv2d_backward_weight, conv2d_forward
from .cross_entropy import (
    CrossEntropyRows,
    cross_entropy_backward,
    cross_entropy_forward,
)
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
from .random import dropout, random_normal, random_uniform, random_words
from .repeat import Statistics

__all__ = [
    "BatchNormResult",
    "CrossEntropyRows",
    "Passing",
    "Statistics",
    "adam_step",
    "add_metrics",
    "avg_pool2d_backward",
    "avg_pool2d_forward",
    "batch_norm_2d_nchw_backward",
    "batch_norm_2d_nchw_forward_inference",
    "batch_norm_backward",
    "batch_norm_forward",
    "batch_norm_forward_inference",
    "batch_norm_frozen_backward",
    "batch_norm_gradients",
    "batch_norm_normalize_forward",
    "batch_norm_statistics",
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
    "random_normal",
    "random_uniform",
    "random_words",
    "sgd_step",
]
