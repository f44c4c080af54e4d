"""BatchNorm and its companions on NumPy and CuPy arrays, and the kernels behind them.

The functions (``batch_norm_stats_forward`` …) run on the engine that their
arrays and ``interpret()`` choose. Behind each is a kernel object of the same
name in CamelCase (``BatchNormStatsForward`` …), which is built with its tile
sizes and can be compiled for a GPU that is not there. Triton is imported when
the first of them is asked for.
"""

from typing import Any

from . import functional
from .engines import KERNELS, kernel_class
from .functional import *  # noqa: F403
from .launch import Launcher, interpret
from .precision import get_float32_matmul_precision, set_float32_matmul_precision

_OBJECTS = {attribute: name for name, (_, attribute) in KERNELS.items()}

__all__ = [
    *functional.__all__,
    "Launcher",
    "get_float32_matmul_precision",
    "interpret",
    "set_float32_matmul_precision",
    *_OBJECTS,
]


def __getattr__(name: str) -> Any:
    if name in _OBJECTS:
        return kernel_class(_OBJECTS[name])
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
