"""A launch that is made again and again, with all but some addresses laid out beforehand."""

from __future__ import annotations

import ctypes
import struct
import threading
from collections.abc import Sequence
from typing import Any

from .. import gpu
from .options import Options


class Prepared:
    """A launch on one device of which nothing changes but the addresses of some arrays.

    It goes straight to the driver, whose arguments lie ready in memory: a fraction of
    the host's time of a first launch. Any number of threads may call it.

    Args:
        device, function, shared: where the kernel is loaded, as what, and its shared memory.
        grid, options: as for a launch.
        arguments: each compiled argument's :mod:`struct` letter and value.
        varying: which of them a call gives anew.
    """

    def __init__(
        self, device: int, function: Any, shared: int, grid: tuple[int, ...], options: Options,
        arguments: Sequence[tuple[str, Any]], varying: Sequence[int],
    ) -> None:  # fmt: skip
        from cupy.cuda import driver

        self._device = device
        self._function = function  # keeps what is loaded
        cooperative = options.cooperative
        self._start = driver.launchCooperativeKernel if cooperative else driver.launchKernel
        x, y, z = (*grid, 1, 1)[:3]
        self._head = (function.ptr, x, y, z, options.warps * 32, 1, 1, shared)
        self._tail = () if cooperative else (0,)
        # Each argument has 8 bytes, those that vary first, and the driver a pointer to each.
        order = [*varying, *(i for i in range(len(arguments)) if i not in varying)]
        self._places = sorted(range(len(order)), key=order.__getitem__)
        fixed = [arguments[i] for i in order[len(varying) :]]
        self._fixed = b"".join(struct.pack("<" + letter, v).ljust(8, b"\0") for letter, v in fixed)
        self._pack = struct.Struct(f"<{len(varying)}Q").pack_into
        self._skipped = 8 * len(varying)
        self._free: list[tuple[Any, Any, int]] = []  # argument blocks that no thread uses now

    def _block(self) -> tuple[Any, Any, int]:
        values = ctypes.create_string_buffer(bytes(self._skipped) + self._fixed)
        start = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * len(self._places))(*(start + 8 * i for i in self._places))
        return values, pointers, ctypes.addressof(pointers)

    def __call__(self, stream: int, *addresses: int) -> None:
        """Launch on the CUDA stream ``stream``; this device must be the current one."""
        try:
            block = self._free.pop()
        except IndexError:
            block = self._block()
        self._pack(block[0], 0, *addresses)
        if _thread.device != self._device:
            gpu.enter(self._device)  # a thread that has only allocated from a pool has no context
            _thread.device = self._device
        self._start(*self._head, stream, block[2], *self._tail)
        self._free.append(block)


class _Thread(threading.local):
    device: int | None = None  # the last that it launched on


_thread = _Thread()
