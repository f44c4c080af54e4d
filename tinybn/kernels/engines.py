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

# The ops of each family, whose kernel objects are in its ``objects.py`` under the same names in
# CamelCase.
FAMILIES = {
    "batch_norm": (
        "batch_norm_forward",
        "batch_norm_stats_forward",
        "batch_norm_normalize_forward",
        "batch_norm_forward_inference",
        "batch_norm_backward",
        "batch_norm_2d_nchw_forward_inference",
        "batch_norm_2d_nchw_backward",
    ),
    "conv": ("conv2d_forward", "conv2d_backward_input", "conv2d_backward_weight"),
    "pool": (
        "max_pool2d_forward",
        "max_pool2d_backward",
        "avg_pool2d_forward",
        "avg_pool2d_backward",
    ),
    "cross_entropy": ("cross_entropy_forward", "cross_entropy_backward"),
    "product": ("matmul", "linear_backward"),
    "random": ("philox", "dropout"),
    "images": ("gather_images",),
    "metrics": ("add_metrics",),
    "feed": ("fetch",),
    "optimizers": ("sgd_step", "adam_step"),
}


def _camel_case(op: str) -> str:
    return "".join(word.capitalize() for word in op.split("_"))


OBJECTS = {_camel_case(op): family for family, ops in FAMILIES.items() for op in ops}


def kernel_class(name: str) -> type:
    """The class of the kernel object ``name``; imports its file, and Triton.

    Raises:
        MissingDependency: where Triton is not installed.
    """
    if importlib.util.find_spec("triton") is None:
        raise MissingDependency(
            'the kernels need Triton: pip install "tinybn[test]" to interpret or compile them, '
            '"tinybn[cuda13]" to run them on a GPU'
        )
    return getattr(importlib.import_module(f"{__package__}.{OBJECTS[name]}.objects"), name)


@functools.cache
def _kernel(op: str) -> Callable:
    return kernel_class(_camel_case(op))()


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
