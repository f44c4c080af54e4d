"""Compile, cache, launch and interpret Triton kernels.

With ``gpu.py``, which asks for devices, this package alone knows Triton's and
CuPy's internals. Triton 3.6 to 3.9.
"""

from .arguments import ON_HOST, pointer
from .interpreter import interpret, interpreting
from .launcher import Launcher
from .options import DEFAULT, Binary, Options
from .prepared import Prepared

__all__ = [
    "DEFAULT", "ON_HOST", "Binary", "Launcher", "Options", "Prepared", "interpret",
    "interpreting", "pointer",
]  # fmt: skip
