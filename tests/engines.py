"""The engines as test parameters: how to get arrays in and out, and how to switch one on."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tinybn import kernels
from tinybn.kernels import gpu
from tinybn.kernels.reference import batch_norm, conv, pool


@dataclass(frozen=True)
class Engine:
    """``put`` moves a NumPy array (or None) there, ``get`` brings one back."""

    name: str

    def put(self, array: np.ndarray | None) -> Any:
        if array is None or self.name != "cuda":
            return array
        return _to_gpu(array)

    def get(self, array: Any) -> np.ndarray | None:
        return _to_host(array) if gpu.is_cupy(array) else array

    def active(self) -> contextlib.AbstractContextManager:
        if self.name == "cpu_parts":
            return _one_sample_at_a_time()
        return kernels.interpret() if self.name == "interpret" else contextlib.nullcontext()

    def run(self, function: Callable, *arrays: Any, **options: Any) -> Any:
        """Call ``function`` on the engine, with arrays taken there and back."""
        moved = [self.put(a) if isinstance(a, np.ndarray) else a for a in arrays]
        options = {k: self.put(v) if isinstance(v, np.ndarray) else v for k, v in options.items()}
        with self.active():
            result = function(*moved, **options)
        if isinstance(result, tuple):
            return tuple(self.get(r) for r in result)
        return self.get(result)


@contextlib.contextmanager
def _one_sample_at_a_time() -> Iterator[None]:
    """The CPU engine as large batches have it: in many parts."""
    with (
        mock.patch.object(batch_norm, "PART_BYTES", 1),
        mock.patch.object(conv, "PART_BYTES", 1),
        mock.patch.object(pool, "PART_BYTES", 1),
    ):
        yield


def _to_gpu(array: np.ndarray) -> Any:
    """A copy on the GPU with the same strides, so that its layout is tested there too."""
    import cupy

    base = array
    while isinstance(base.base, np.ndarray):
        base = base.base
    owner = cupy.asarray(np.ascontiguousarray(base).reshape(-1).view(np.uint8))
    if not base.flags.c_contiguous:
        return cupy.asarray(array)
    start = array.ctypes.data - base.ctypes.data
    return cupy.ndarray(array.shape, array.dtype, owner.data + start, array.strides)


def _to_host(array: Any) -> np.ndarray:
    """A copy in host memory with the axes in the same order there: ``get`` makes all C-order."""
    order = sorted(range(array.ndim), key=lambda axis: -array.strides[axis])
    return array.transpose(order).get().transpose(np.argsort(order))


CPU, INTERPRET, CUDA = Engine("cpu"), Engine("interpret"), Engine("cuda")
CPU_PARTS = Engine("cpu_parts")

# The reference is what the kernels are compared with: only the kernels' engines are tested here.
kernel_engines = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(INTERPRET, id="interpret"),
        pytest.param(CUDA, id="cuda", marks=pytest.mark.gpu),
    ],
)
all_engines = pytest.mark.parametrize(
    "engine",
    [
        pytest.param(CPU, id="cpu"),
        pytest.param(CPU_PARTS, id="cpu_parts"),
        pytest.param(INTERPRET, id="interpret"),
        pytest.param(CUDA, id="cuda", marks=pytest.mark.gpu),
    ],
)
