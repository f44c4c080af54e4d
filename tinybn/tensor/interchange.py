"""Moving data in and out: Python values, NumPy, CuPy, DLPack, other devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, DTypeError, ShapeError
from ..kernels import recording
from ..kernels.arrays import Array, is_array
from ..kernels.gpu import is_cupy
from .device import CPU, Device, array_module, default_device, device_of, use
from .dtypes import SUPPORTED, as_dtype, bfloat16, dtypes_wanted, float32, float64
from .tape import is_tensor, wrap

if TYPE_CHECKING:
    from .tensor import Tensor

_DLPACK_CPU = (1, 3)  # kDLCPU and kDLCUDAHost (pinned host memory)
_DLPACK_CUDA = (2, 13)  # kDLCUDA and kDLCUDAManaged


def to_array(
    data: Any, dtype: Any = None, device: Device | None = None, copy: bool = True
) -> Array:
    """Return ``data`` as an array of a supported dtype on ``device``.

    Python floats become float32, ints int64 and bools bool; arrays and NumPy
    numbers keep their dtype. ``device`` None leaves Tensors and CuPy arrays
    where they are and puts the rest on the default device.

    Args:
        data: a Tensor, an array, a number, or nested sequences of numbers.
        copy: whether the result must be memory of its own.

    Raises:
        DTypeError: for a dtype that is not supported, where ``dtype`` does not say another.
        ShapeError: for sequences of unequal lengths.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if is_tensor(data):
        data = data.data
    if is_cupy(data):
        source, device = data, device or device_of(data)
    else:
        source, device = _host_array(data, wanted), device or default_device()
    if not source.dtype.isnative:  # as files from other machines have it; no engine computes so
        source = source.astype(source.dtype.newbyteorder("="))
    target = _dtype_of(source) if wanted is None else wanted
    if source.dtype.kind not in "bifuV" or (source.dtype.kind == "V" and source.dtype != bfloat16):
        as_dtype(source.dtype)  # raises: text, objects and complex numbers are never cast
    result = move(source, device)
    if result.dtype != target:
        with np.errstate(all="ignore"):
            result = result.astype(target)
    # A list was just made into an array that nobody else holds.
    fresh = result is not source or not (is_array(data) or hasattr(data, "__array__"))
    return result if fresh or not copy else result.copy(order="K")


def _host_array(data: Any, wanted: np.dtype | None) -> np.ndarray:
    if isinstance(data, np.ndarray):
        return data
    try:
        array = np.asarray(data)
    except ValueError as error:
        raise ShapeError(f"the data is not a rectangular nest of sequences ({error})") from None
    # float32 is the working precision of Python's numbers, unless another is wanted.
    if wanted is None and array.dtype == float64 and not _has_dtype(data):
        return array.astype(float32)
    return array


def _dtype_of(array: Array) -> np.dtype:
    """The array's dtype, one of the seven."""
    if array.dtype.kind in "iuf" and array.dtype not in SUPPORTED:
        raise DTypeError(
            f"dtype {array.dtype.name} is not supported; {dtypes_wanted()}, to which dtype= "
            "converts: dtype=tb.float32"
        )
    return as_dtype(array.dtype)


def _has_dtype(data: Any) -> bool:
    """Whether the numbers in ``data`` are NumPy's (judged by the first)."""
    while isinstance(data, (list, tuple)) and data:
        data = data[0]
    return hasattr(data, "dtype")


def move(array: Array, device: Device) -> Array:
    """Return ``array`` on ``device``: itself if it is there, else a copy."""
    if device_of(array) == device:
        return array
    recording.check_copy(array, device)
    if device == CPU:
        return array.get(order="A")
    module = array_module(device)
    with use(device):
        return module.array(array, order="K")


def from_dlpack(source: Any) -> Tensor:
    """Return a Tensor that shares memory with ``source``, with no copy.

    Args:
        source: a NumPy, CuPy, PyTorch, JAX … array, or any object with
            ``__dlpack__`` and ``__dlpack_device__``.

    A read-only source gives a tensor that cannot be written in place. A NumPy
    array of bfloat16, for which NumPy has no DLPack, is shared directly.

    Raises:
        DTypeError: for an object without ``__dlpack__`` or a dtype that is not supported.
        DeviceError: for GPU memory where CUDA is not available.
    """
    if is_tensor(source):
        return source.detach()
    if is_array(source):
        array = source  # sharing it directly also keeps strides that DLPack would refuse
    elif not (hasattr(source, "__dlpack__") and hasattr(source, "__dlpack_device__")):
        raise DTypeError(
            f"from_dlpack takes an object with __dlpack__, not {type(source).__name__}"
        )
    else:
        array = _imported(source)
    as_dtype(array.dtype)
    return wrap(array)


def _imported(source: Any) -> Array:
    kind, index = source.__dlpack_device__()
    if kind not in _DLPACK_CPU + _DLPACK_CUDA:
        raise DTypeError(
            f"from_dlpack takes memory of the CPU or a CUDA GPU, not of DLPack device {kind}"
        )
    module = np if kind in _DLPACK_CPU else array_module(Device("cuda", index))
    try:
        return module.from_dlpack(source)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        raise DTypeError(
            f"from_dlpack cannot take this {type(source).__name__}, such as one of a dtype that "
            f"{module.__name__} lacks or one that requires a gradient ({error})"
        ) from error


def to_dlpack(array: Array, options: dict[str, Any]) -> Any:
    """The DLPack capsule of ``array``; ``options`` as for ``ndarray.__dlpack__``.

    An array with an axis in reverse order is exported as a copy.

    Raises:
        DTypeError: for bfloat16 on the CPU, which NumPy cannot export.
        ArgumentError: for ``copy=False`` where an axis is reversed.
    """
    if array.dtype == bfloat16 and not is_cupy(array):
        raise DTypeError(
            "NumPy cannot export bfloat16 by DLPack; export x.float(), or x.numpy().view('uint16')"
        )
    if any(step < 0 for step in array.strides):
        # DLPack allows negative strides, but PyTorch ends the process at the sight of one.
        if options.get("copy") is False:
            raise ArgumentError(
                "a tensor with a negative stride is exported by DLPack as a copy, but copy=False"
            )
        array = array.copy(order="C")
    if not is_cupy(array):
        # On the CPU there is no stream to wait for; NumPy takes only None.
        options = {**options, "stream": None}
    return array.__dlpack__(**options)


def to_numpy_protocol(array: Array, dtype: Any, copy: bool | None) -> np.ndarray:
    """What ``__array__(dtype, copy)`` returns.

    Raises:
        ValueError: (NumPy's own wording of the protocol) where ``copy`` is False but needed.
    """
    changes = is_cupy(array) or (dtype is not None and np.dtype(dtype) != array.dtype)
    if copy is False and changes:
        raise ShapeError(
            "an array without a copy is not possible here: the tensor is on the GPU or has "
            "another dtype"
        )
    host = move(array, CPU)
    if dtype is not None:
        with np.errstate(all="ignore"):
            host = host.astype(dtype, copy=False)
    return host.copy() if copy and np.may_share_memory(host, array) else host
