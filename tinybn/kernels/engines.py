"""The table of ops: one name, three engines.

| engine    | arrays | runs                                  |
|-----------|--------|---------------------------------------|
| cuda      | CuPy   | the Triton kernel, compiled           |
| cpu       | NumPy  | ``reference``                         |
| interpret | NumPy  | the same Triton kernel, interpreted   |

All three take the same arguments. The kernels' files import Triton, so they
are loaded when the first CUDA array or ``interpret()`` asks for one.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

from ..errors import MissingDependency
from . import reference
from .arrays import Array
from .gpu import is_cupy
from .launch import interpreting, observe

KERNELS = {
    "batch_norm_forward": ("batch_norm.objects", "BatchNormForward"),
    "batch_norm_stats_forward": ("batch_norm.objects", "BatchNormStatsForward"),
    "batch_norm_normalize_forward": ("batch_norm.objects", "BatchNormNormalizeForward"),
    "batch_norm_forward_inference": ("batch_norm.objects", "BatchNormForwardInference"),
    "batch_norm_backward": ("batch_norm.objects", "BatchNormBackward"),
    "batch_norm_2d_nchw_forward_inference": (
        "batch_norm.objects",
        "BatchNorm2dNchwForwardInference",
    ),
    "batch_norm_2d_nchw_backward": ("batch_norm.objects", "BatchNorm2dNchwBackward"),
    "conv2d_forward": ("conv.objects", "Conv2dForward"),
    "conv2d_backward_input": ("conv.objects", "Conv2dBackwardInput"),
    "conv2d_backward_weight": ("conv.objects", "Conv2dBackwardWeight"),
    "max_pool2d_forward": ("pool", "MaxPool2dForward"),
    "max_pool2d_backward": ("pool", "MaxPool2dBackward"),
    "avg_pool2d_forward": ("pool", "AvgPool2dForward"),
    "avg_pool2d_backward": ("pool", "AvgPool2dBackward"),
    "cross_entropy_forward": ("cross_entropy", "CrossEntropyForward"),
    "cross_entropy_backward": ("cross_entropy", "CrossEntropyBackward"),
    "matmul": ("product.objects", "Matmul"),
    "linear_backward": ("product.objects", "LinearBackward"),
    "philox": ("random", "Philox"),
    "dropout": ("random", "Dropout"),
    "gather_images": ("images", "GatherImages"),
    "add_metrics": ("metrics", "AddMetrics"),
    "fetch": ("fetch", "Fetch"),
    "sgd_step": ("optimizers", "SgdStep"),
    "adam_step": ("optimizers", "AdamStep"),
}


def kernel_class(name: str) -> type:
    """The kernel object class of the op ``name``; imports its file, and Triton.

    Raises:
        MissingDependency: where Triton is not installed.
    """
    module, attribute = KERNELS[name]
    if importlib.util.find_spec("triton") is None:
        raise MissingDependency(
            'the kernels need Triton: pip install "tinybn[test]" to interpret or compile them, '
            '"tinybn[cuda13]" to run them on a GPU'
        )
    return getattr(importlib.import_module(f"{__package__}.{module}"), attribute)


@functools.cache
def _kernel(name: str) -> Callable:
    return kernel_class(name)()


def engine_of(array: Array) -> str:
    """``"cuda"``, ``"cpu"`` or ``"interpret"``: what runs ops on this array in this thread."""
    if is_cupy(array):
        return "cuda"
    return "interpret" if interpreting() else "cpu"


def implementation(name: str, array: Array) -> Callable:
    """The function that does op ``name`` on arrays like ``array``."""
    if engine_of(array) != "cpu":
        return _kernel(name)
    function = getattr(reference, name)
    observer = observe.current()
    if observer is None:
        return function

    def seen(*args: Any, **options: Any) -> None:
        launch = observe.Launch(name, {**dict(enumerate(args)), **options})
        observer.see(launch, lambda: function(*args, **options))

    return seen
