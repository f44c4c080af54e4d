"""Mixed precision: which operations run in a low dtype and which in float32.

The products (``linear``, ``matmul``, ``conv2d``) are where the time goes, and they
add up in float32 whatever their factors are; so their inputs are cast to the low
dtype. Losses, softmax and sums lose too much in it, so their low inputs are cast
to float32. The casts are operations on the tape, so each gradient comes back in
its input's own dtype: float32 weights keep float32 gradients. Micikevicius et al.
2018, Mixed precision training, https://arxiv.org/abs/1710.03740, section 3.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from ..arguments import switch
from ..errors import ArgumentError, DTypeError
from .dtypes import as_dtype, bfloat16, float16, float32
from .mode import Mode
from .ops.elementwise import cast

if TYPE_CHECKING:
    from .tensor import Tensor

LOW = frozenset({float16, bfloat16})
DEFAULTS = {"cpu": bfloat16, "cuda": float16}  # PyTorch's, by device type


class _Setting(threading.local):
    def __init__(self) -> None:
        # By device type the low dtype; never written into, so that going back is one assignment.
        self.dtypes: dict[str, np.dtype] = {}


_setting = _Setting()


class autocast(Mode):
    """A context, or decorator, in which this thread computes in mixed precision.

    Inside it ``linear``, ``matmul`` (``@``) and ``conv2d`` cast float32, float16 and
    bfloat16 inputs to ``dtype``, each time, and give results in it.
    ``cross_entropy``, ``nll_loss``, ``mse_loss``, ``binary_cross_entropy_with_logits``,
    ``softmax``, ``log_softmax``, ``sum``, ``mean`` and ``cumsum`` cast float16 and bfloat16
    to float32. All else takes what it is given: elementwise operations promote,
    BatchNorm has float32 statistics under low activations. float64 is left alone,
    and so is what is multiplied with it. Parameters and their gradients keep their dtype.

    The backward pass needs no context: it runs in the dtypes of the forward pass.
    Contexts nest, the innermost counts, and other threads are not affected.

    Args:
        device_type: ``"cpu"`` or ``"cuda"``: whose tensors are meant; None for both. The
            dtype may stand here in its place: ``autocast(tb.float16)``.
        dtype: bfloat16 or float16. By default bfloat16, and with device_type ``"cuda"``
            float16, as in PyTorch.
        enabled: False switches an outer context off.

    Raises:
        DTypeError: for another dtype, or an async function to decorate.
        ArgumentError: for another device_type, or an ``enabled`` that is no bool.

    Source: Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740. The names are PyTorch's.
    """

    def __init__(self, device_type: Any = None, dtype: Any = None, enabled: bool = True) -> None:
        named = isinstance(device_type, str) and device_type in DEFAULTS
        if device_type is not None and not named:
            if dtype is not None:
                raise ArgumentError(f"device_type is {device_type!r}; wanted 'cpu' or 'cuda'")
            device_type, dtype = None, device_type
        if dtype is None:
            dtype = DEFAULTS.get(device_type, bfloat16)
        self.dtype = as_dtype(dtype)
        if self.dtype not in LOW:
            raise DTypeError(f"autocast to {self.dtype.name}; wanted float16 or bfloat16")
        self.device_types = tuple(DEFAULTS) if device_type is None else (device_type,)
        self.enabled = switch("enabled", enabled)

    def _switch(self) -> dict[str, np.dtype]:
        before = _setting.dtypes
        _setting.dtypes = {k: v for k, v in before.items() if k not in self.device_types}
        if self.enabled:
            _setting.dtypes.update(dict.fromkeys(self.device_types, self.dtype))
        return before

    def _restore(self, before: dict[str, np.dtype]) -> None:
        _setting.dtypes = before


def autocast_dtype(device_type: str) -> np.dtype | None:
    """The low dtype that this thread casts to on ``"cpu"`` or ``"cuda"``, None for none."""
    return _setting.dtypes.get(device_type)


def autocast_low(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The inputs of a product, on one device, in the low dtype where ``autocast`` is on.

    If one of them is float64 or an integer, all stay as they are: the result is
    float64 then, and would have few digits of its own with rounded factors.
    """
    if not _setting.dtypes:
        return tensors
    given = [t for t in tensors if t is not None]
    dtype = _setting.dtypes.get(given[0].device.type)
    if dtype is None or not all(t.dtype in LOW or t.dtype == float32 for t in given):
        return tensors
    return tuple(None if t is None else cast(t, dtype) for t in tensors)


def autocast_like(tensor: Tensor | None, other: Tensor) -> Tensor | None:
    """``tensor`` in the dtype of ``other`` where ``autocast`` is on and neither is float64."""
    if tensor is None or tensor.dtype == other.dtype:
        return tensor
    castable = all(t.dtype in LOW or t.dtype == float32 for t in (tensor, other))
    on = castable and other.device.type in _setting.dtypes
    return cast(tensor, other.dtype) if on else tensor


def autocast_float32(*tensors: Tensor | None) -> tuple[Any, ...]:
    """The inputs of a loss or a sum, float16 and bfloat16 in float32 where ``autocast`` is on."""
    if not _setting.dtypes:
        return tensors
    return tuple(
        cast(t, float32)
        if t is not None and t.dtype in LOW and t.device.type in _setting.dtypes
        else t
        for t in tensors
    )
