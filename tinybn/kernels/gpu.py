"""What the host asks of the GPU: is there one, how much memory, which stream.

Beside ``launch`` the only one that knows ``cupy.cuda``. CuPy is imported
by the first call that needs it, never by ``import tinybn``.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

from ..errors import DeviceError, MissingDependency

ON_NO_GPU = 2  # multiprocessors of the interpreter: enough to cut sums into parts
_NOTHING: contextlib.AbstractContextManager = contextlib.nullcontext()


def cupy() -> ModuleType:
    """Import CuPy, or raise MissingDependency with the one line that installs it."""
    try:
        import cupy
    except ImportError as error:
        raise MissingDependency(
            'device "cuda" needs CuPy and Triton: pip install "tinybn[cuda13]" '
            '(or "tinybn[cuda12]" for a CUDA 12 driver)'
        ) from error
    return cupy


def is_cupy(array: Any) -> bool:
    """Whether ``array`` is a CuPy array; never imports CuPy to find out."""
    module = sys.modules.get("cupy")
    # A CuPy that is being imported by another thread has no ndarray yet, and made no array.
    return module is not None and isinstance(array, getattr(module, "ndarray", ()))


@functools.lru_cache(maxsize=1)
def why_unavailable() -> str | None:
    """One line saying why CUDA cannot be used here, or None when it can."""
    for package in ("cupy", "triton"):
        if importlib.util.find_spec(package) is None:
            return f'{package} is not installed: pip install "tinybn[cuda13]"'
    try:
        count = cupy().cuda.runtime.getDeviceCount()
    except Exception as error:  # CuPy raises its own runtime error types for a missing driver
        reason = str(error).strip() or type(error).__name__
        return f"no usable NVIDIA driver ({reason.splitlines()[0]})"
    return None if count else "the NVIDIA driver reports no GPU"


def require() -> ModuleType:
    """Return CuPy where a GPU can be used.

    Raises:
        DeviceError: with the reason, where it cannot.
    """
    reason = why_unavailable()
    if reason is not None:
        raise DeviceError(f'device "cuda" is not available: {reason}')
    return cupy()


def device_count() -> int:
    """The number of CUDA devices, 0 where CUDA cannot be used."""
    return 0 if why_unavailable() else cupy().cuda.runtime.getDeviceCount()


def current_device() -> int:
    """The index of CuPy's current device."""
    return require().cuda.runtime.getDevice()


def on_device(index: int) -> contextlib.AbstractContextManager:
    """A context in which CuPy allocates and launches on device ``index``."""
    cuda = cupy().cuda
    return _NOTHING if cuda.runtime.getDevice() == index else cuda.Device(index)


@functools.cache
def calls() -> SimpleNamespace:
    """CuPy's functions that a call made again and again uses, without looking them up each time.

    Attributes:
        device: the current device's index.
        stream: the current stream.
        alloc: memory from the current pool, by bytes.
        array: CuPy's array class.
        capturing: whether launches on the stream of this handle go into a graph.
    """
    module = cupy()
    return SimpleNamespace(
        device=module.cuda.runtime.getDevice, stream=module.cuda.get_current_stream,
        alloc=module.cuda.alloc, array=module.ndarray,
        capturing=module.cuda.runtime.streamIsCapturing,
    )  # fmt: skip


@contextlib.contextmanager
def on_stream(stream: Any) -> Iterator[None]:
    """CuPy's ``stream`` is the current one inside.

    CuPy's own context would afterwards forget a stream that the user made current by ``use()``.
    """
    before = calls().stream()
    try:
        with stream:
            yield
    finally:
        before.use()


def new_stream() -> Any:
    """A CuPy stream that waits for no other."""
    return cupy().cuda.Stream(non_blocking=True)


def enter(index: int) -> None:
    """Make device ``index``, and its CUDA context, this thread's current one."""
    cupy().cuda.runtime.setDevice(index)


@functools.cache
def processors(index: int) -> int:
    """The number of multiprocessors of device ``index``."""
    return require().cuda.runtime.getDeviceProperties(index)["multiProcessorCount"]


def processors_of(array: Any) -> int:
    """The multiprocessors that run kernels on ``array``; ON_NO_GPU where it is NumPy's."""
    return processors(array.data.device_id) if is_cupy(array) else ON_NO_GPU


def capturing(stream: Any) -> bool:
    """Whether what is launched on CuPy's ``stream`` now goes into a graph."""
    return calls().capturing(stream.ptr)


def device_name(index: int = 0) -> str:
    """The GPU's name, such as ``NVIDIA H200``."""
    return require().cuda.runtime.getDeviceProperties(index)["name"].decode()


def free_memory() -> int:
    """Bytes that the current device and CuPy's pool can still give out."""
    module = require()
    free, _ = module.cuda.runtime.memGetInfo()
    return free + module.get_default_memory_pool().free_bytes()


class Reading:
    """A copy of a small array on its way to the host, behind what is queued before it.

    Args:
        array: on the current device.
        note: what goes with the values.
    """

    def __init__(self, array: Any, note: Any) -> None:
        cuda = cupy().cuda
        stream = calls().stream()
        self._note = note
        self._memory = cuda.alloc_pinned_memory(array.nbytes)
        self._host = np.frombuffer(self._memory, array.dtype, array.size)
        array.data.copy_to_host_async(self._memory.ptr, array.nbytes, stream)
        self._arrived = stream.record(cuda.Event(disable_timing=True))

    def value(self) -> tuple[np.ndarray, Any] | None:
        """The values and the note, or None where they are not there yet; never waits."""
        return (self._host.copy(), self._note) if self._arrived.done else None

    def wait(self) -> None:
        """Until the copy has arrived: its memory must not be given out again before."""
        self._arrived.synchronize()
