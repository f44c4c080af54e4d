"""Where a Module's tensors are, and of which dtype."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from ..arguments import integer
from ..errors import DTypeError
from ..tensor import Tensor
from ..tensor.device import Device, as_device
from ..tensor.dtypes import as_dtype, is_float
from .parameter import move

Self = TypeVar("Self", bound="Movable")


class Movable:
    """The part of :class:`Module` that moves it to other devices and dtypes."""

    def modules(self) -> Iterator[Any]:
        """This module and all below it; Module defines it."""
        raise NotImplementedError

    def to(self: Self, *args: Any, device: str | Device | None = None, dtype: Any = None) -> Self:
        """Move parameters, buffers and gradients to a device, a floating dtype, or both.

        ``m.to("cuda")``, ``m.to(tb.float16)``, ``m.to("cuda", tb.float16)``, ``m.to(tensor)``.
        The parameters stay the same objects, so that an optimiser made before keeps
        working. A dtype changes floating tensors only, and BatchNorm layers keep
        float32 where float16 or bfloat16 is asked for.

        Returns:
            self.

        Raises:
            DTypeError: for a dtype that is not floating, or what is neither a device nor a dtype.
            DeviceError, ArgumentError: for a device that is not there; nothing is moved then.
        """
        for arg in args:
            if isinstance(arg, Tensor):
                device, dtype = arg.device, arg.dtype
            elif isinstance(arg, Device) or str(arg).partition(":")[0] in ("cpu", "cuda"):
                device = arg
            elif arg is not None:
                dtype = arg
        place = None if device is None else as_device(device)
        kind = None if dtype is None else as_dtype(dtype)
        if kind is not None and not is_float(kind):
            raise DTypeError(f"a module's dtype is floating, not {kind.name}")
        for module in self.modules():
            own = kind if kind is None else module._kept_dtype(kind)
            for _, tensor in module._own_tensors():
                move(tensor, place, own if is_float(tensor.dtype) else None)
        return self

    def _kept_dtype(self, dtype: Any) -> Any:
        """The dtype that this module's own tensors get where ``dtype`` is asked for."""
        return dtype

    def cpu(self: Self) -> Self:
        """The same as ``to("cpu")``."""
        return self.to("cpu")

    def cuda(self: Self, device: int | str | Device | None = None) -> Self:
        """The same as ``to("cuda")``, or to the GPU of number ``device``."""
        if device is None or isinstance(device, (str, Device)):
            return self.to(device=device or "cuda")
        return self.to(device=f"cuda:{integer('device', device, 0)}")

    def float(self: Self) -> Self:
        """The same as ``to(tb.float32)``."""
        return self.to("float32")

    def double(self: Self) -> Self:
        """The same as ``to(tb.float64)``."""
        return self.to("float64")

    def half(self: Self) -> Self:
        """The same as ``to(tb.float16)``."""
        return self.to("float16")

    def bfloat16(self: Self) -> Self:
        """The same as ``to(tb.bfloat16)``."""
        return self.to("bfloat16")
