"""Parameter, the Tensor that a Module learns."""

from __future__ import annotations

from typing import Any

from ..kernels.arrays import namespace
from ..tensor import Tensor
from ..tensor.device import Device
from ..tensor.grad_mode import no_grad
from ..tensor.tape import Version


class Parameter(Tensor):
    """A Tensor that a Module learns: assigned to an attribute, it is registered.

    Args:
        data: what a Tensor is made of; it is copied, into C order.
        requires_grad: False for one that is frozen.
        dtype, device: as for a Tensor.

    Raises:
        DTypeError: for a dtype without gradients where ``requires_grad`` is True.
    """

    __slots__ = ()

    def __init__(
        self,
        data: Any,
        requires_grad: bool = True,
        *,
        dtype: Any = None,
        device: str | Device | None = None,
    ) -> None:
        super().__init__(data, dtype, device, requires_grad)
        # An optimiser updates the elements as flat memory.
        self._data = namespace(self._data).asarray(self._data, order="C")

    def __repr__(self) -> str:
        return f"Parameter containing:\n{super().__repr__()}"


def move(tensor: Tensor, device: Device | None, dtype: Any) -> None:
    """Give ``tensor`` memory on another device or of another dtype, and its gradient too."""
    with no_grad():
        moved = tensor.detach()
        moved = moved if device is None else moved.to(device)
        moved = moved if dtype is None else moved.to(dtype)
    if moved.data is tensor.data:
        return
    grad, tensor.grad = tensor.grad, None
    # A recorded graph keeps the old memory, which nobody writes into: a new version count.
    tensor._data, tensor._version = moved.data, Version()
    if grad is not None:
        move(grad, device, dtype)
        tensor.grad = grad
