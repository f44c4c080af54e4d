"""Devices: ``"cpu"`` (NumPy arrays) and ``"cuda"`` (CuPy arrays)."""

from __future__ import annotations

import contextlib
import functools
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import numpy as np

from ..errors import ArgumentError, DeviceError
from ..kernels import gpu


@dataclass(frozen=True)
class Device:
    """Where a tensor's memory is.

    Attributes:
        type: ``"cpu"`` or ``"cuda"``.
        index: the GPU's number, 0 for the CPU.
    """

    type: str
    index: int = 0

    def __str__(self) -> str:
        return self.type if self.type == "cpu" else f"cuda:{self.index}"

    def __repr__(self) -> str:
        return f"device({str(self)!r})"

    def __eq__(self, other: object) -> bool:
        if isinstance(other, str):
            try:
                other = as_device(other)
            except (ArgumentError, DeviceError):
                return False
        return isinstance(other, Device) and (self.type, self.index) == (other.type, other.index)

    def __hash__(self) -> int:
        return hash(str(self))  # as the string's that it equals


CPU = Device("cpu")
_default: Device | None = None


def cuda_available() -> bool:
    """Whether a GPU, its driver, CuPy and Triton are all there."""
    return gpu.why_unavailable() is None


def default_device() -> Device:
    """The device of new tensors: the one set, else the GPU where found, else the CPU."""
    if _default is not None:
        return _default
    return Device("cuda", gpu.current_device()) if cuda_available() else CPU


def set_default_device(device: str | Device | None) -> None:
    """Make ``device`` the device of new tensors; None returns to the automatic choice.

    Raises:
        ArgumentError: for a name that is no device.
        DeviceError: for ``"cuda"`` where CUDA is not available.
    """
    global _default
    _default = None if device is None else as_device(device)


def as_device(device: str | Device | None) -> Device:
    """Return ``device`` (``"cpu"``, ``"cuda"``, ``"cuda:1"`` …) as a Device; None is the default.

    Raises:
        ArgumentError: for a name that is no device.
        DeviceError: for a GPU that is not there.
    """
    if device is None:
        return default_device()
    if isinstance(device, Device):
        return device
    kind, _, number = str(device).partition(":")
    if kind == "cpu" and number in ("", "0"):
        return CPU
    if kind == "cuda" and (number == "" or number.isdecimal()):
        gpu.require()
        index = int(number) if number else gpu.current_device()
        if index >= gpu.device_count():
            raise DeviceError(f'device "{device}" is not there: {gpu.device_count()} GPU found')
        return Device("cuda", index)
    raise ArgumentError(f'device {device!r} is not known; wanted "cpu", "cuda" or "cuda:N"')


def device_of(array: Any) -> Device:
    """The device that holds a NumPy or CuPy array."""
    # Not array.device, which makes a CuPy Device at each call.
    return _cuda(array.data.device_id) if gpu.is_cupy(array) else CPU


@functools.cache
def _cuda(index: int) -> Device:
    return Device("cuda", index)


@functools.cache
def _several_gpus() -> bool:
    return gpu.device_count() > 1


def elsewhere(array: Any) -> Device | None:
    """The GPU of ``array`` where CuPy's current one is another, else None.

    CuPy allocates and launches on its current GPU, whatever the arrays are on.
    """
    if isinstance(array, np.ndarray) or not _several_gpus():
        return None
    index = array.data.device_id
    return None if index == gpu.current_device() else _cuda(index)


def array_module(device: Device) -> ModuleType:
    """NumPy for the CPU, CuPy for a GPU."""
    return np if device.type == "cpu" else gpu.require()


def use(device: Device) -> contextlib.AbstractContextManager:
    """A context in which new arrays are made on ``device``."""
    return contextlib.nullcontext() if device.type == "cpu" else gpu.on_device(device.index)
