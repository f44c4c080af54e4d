"""A tensor in other forms: another device, another dtype, NumPy, Python numbers, DLPack."""

# mypy: disable-error-code="misc"
# (Every method's self is a Tensor: Tensor alone inherits from this class.)

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ShapeError, TapeError
from ..kernels import recording
from ..kernels.arrays import Array
from ..kernels.gpu import is_cupy
from . import watch
from .device import CPU, Device, as_device, device_of
from .dtypes import bool_, float32, int32, int64
from .interchange import move, to_dlpack, to_numpy_protocol
from .ops import elementwise
from .tape import Node, Op, apply, is_tensor

if TYPE_CHECKING:
    from .tensor import Tensor


class ToDevice(Op):
    """y = x on another device; the gradient is copied back."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, device: Device) -> Array:
        ctx.save(device_of(x))
        return move(x, device)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        return (move(grad, ctx.saved[0]),)


class Conversions:
    """What gives the elements in another form."""

    __slots__ = ()

    def to(
        self: Tensor, *args: Any, dtype: Any = None, device: str | Device | None = None
    ) -> Tensor:
        """This tensor on another device, in another dtype, or both; itself if nothing changes.

        ``x.to("cuda")``, ``x.to(tb.float16)``, ``x.to("cuda", tb.float16)``, ``x.to(other)``
        for the device and dtype of another tensor. The gradient goes the way back.

        Raises:
            DTypeError, ArgumentError: for what is neither a device nor a dtype.
            DeviceError: for a device that is not there.
        """
        for arg in args:
            if is_tensor(arg):
                dtype, device = arg.dtype, arg.device
            elif isinstance(arg, Device) or (
                isinstance(arg, str) and arg.partition(":")[0] in ("cpu", "cuda")
            ):
                device = arg
            else:
                dtype = arg
        result = self if dtype is None else self.astype(dtype)
        return result if device is None else result._to_device(as_device(device))

    def cpu(self: Tensor) -> Tensor:
        """This tensor in the CPU's memory."""
        return self.to(CPU)

    def cuda(self: Tensor, index: int | None = None) -> Tensor:
        """This tensor in a GPU's memory. Raises DeviceError where there is none."""
        return self.to("cuda" if index is None else f"cuda:{index}")

    def float(self: Tensor) -> Tensor:
        """This tensor in float32."""
        return self.astype(float32)

    def half(self: Tensor) -> Tensor:
        """This tensor in float16."""
        return self.astype("float16")

    def bfloat16(self: Tensor) -> Tensor:
        """This tensor in bfloat16."""
        return self.astype("bfloat16")

    def double(self: Tensor) -> Tensor:
        """This tensor in float64."""
        return self.astype("float64")

    def int(self: Tensor) -> Tensor:
        """This tensor in int32."""
        return self.astype(int32)

    def long(self: Tensor) -> Tensor:
        """This tensor in int64."""
        return self.astype(int64)

    def bool(self: Tensor) -> Tensor:
        """Whether each element is not 0."""
        return self.astype(bool_)

    def numpy(self: Tensor) -> np.ndarray:
        """The NumPy array: on the CPU the same memory, from a GPU a copy.

        Raises:
            TapeError: if the tensor requires a gradient, which the array would lose.
        """
        if self.requires_grad:
            raise TapeError(
                "numpy() on a tensor that requires a gradient would lose it; use x.detach().numpy()"
            )
        watch.read(self, "numpy()")
        return move(self.data, CPU)

    def item(self: Tensor) -> Any:
        """The only element as a Python number. Raises ShapeError if there are more or none."""
        return self._number("item()")

    def _number(self: Tensor, name: str) -> Any:
        if self.size != 1:
            raise ShapeError(f"{name} needs a tensor of one element, not of shape {self.shape}")
        recording.check_host_read(name, self.data)
        watch.read(self, name)
        return self.data.item()

    def tolist(self: Tensor) -> Any:
        """The elements as nested lists of Python numbers; a number for no dimensions."""
        recording.check_host_read("tolist()", self.data)
        watch.read(self, "tolist()")
        return self.data.tolist()

    def astype(self: Tensor, dtype: Any) -> Tensor:
        """This tensor in another dtype; itself if it has it."""
        return elementwise.cast(self, dtype)

    def _to_device(self: Tensor, device: Device) -> Tensor:
        return self if self.device == device else apply(ToDevice, self, device=device)

    def __array__(self: Tensor, dtype: Any = None, copy: Any = None) -> np.ndarray:
        watch.read(self, "NumPy")
        if self.requires_grad:
            self.numpy()  # raises: the array would lose the gradient
        return to_numpy_protocol(self.data, dtype, copy)

    def __dlpack__(self: Tensor, **options: Any) -> Any:
        """Export the memory by DLPack. Raises TapeError if a gradient is required."""
        if self.requires_grad:
            raise TapeError("a tensor that requires a gradient is exported by x.detach()")
        return to_dlpack(self.data, options)

    def __dlpack_device__(self: Tensor) -> Any:
        return self.data.__dlpack_device__()

    @property
    def __cuda_array_interface__(self: Tensor) -> Any:
        if not is_cupy(self.data):
            raise AttributeError("only a tensor on a GPU has __cuda_array_interface__")
        return self.data.__cuda_array_interface__
