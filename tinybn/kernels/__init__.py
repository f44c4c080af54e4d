"""BatchNorm and its companions on NumPy and CuPy arrays, and the kernels behind them.

The functions (``batch_norm_stats_forward`` …) run on the engine that their
arrays and ``interpret()`` choose. Behind each is a kernel object of the same
name in CamelCase (``BatchNormStatsForward`` …), which is built with its tile
sizes and can be compiled for a GPU that is not there. Triton is imported when
the first of them is asked for.
"""

from typing import Any

from .batch_norm.functions import (
    BatchNormResult,
    batch_norm_2d_nchw_forward_inference,
    batch_norm_forward,
    batch_norm_forward_inference,
    batch_norm_normalize_forward,
    batch_norm_statistics,
    batch_norm_stats_forward,
)
from .batch_norm.gradients import (
    Passing,
    batch_norm_2d_nchw_backward,
    batch_norm_backward,
    batch_norm_frozen_backward,
    batch_norm_gradients,
)
from .conv.functions import conv2d_backward_input, conv2d_backward_weight, conv2d_forward
from .cross_entropy.functions import (
    CrossEntropyRows,
    cross_entropy_backward,
    cross_entropy_forward,
)
from .engines import OBJECTS, kernel_class
from .images.functions import gather_images
from .launch import Launcher, interpret
from .metrics.functions import add_metrics
from .optimizers.functions import adam_step, sgd_step
from .pool.functions import (
    avg_pool2d_backward,
    avg_pool2d_forward,
    max_pool2d_backward,
    max_pool2d_forward,
)
from .precision import get_float32_matmul_precision, set_float32_matmul_precision
from .product.functions import linear_backward, matmul
from .random.functions import dropout, random_normal, random_uniform, random_words
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
    "Launcher",
    "get_float32_matmul_precision",
    "interpret",
    "set_float32_matmul_precision",
    *OBJECTS,
]


def __getattr__(name: str) -> Any:
    if name in OBJECTS:
        return kernel_class(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
