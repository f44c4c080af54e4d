"""Making tensors: from data, of constants, of sequences, of random numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from .. import kernels
from ..arguments import integer, number
from ..errors import ArgumentError, DTypeError, ShapeError
from ..kernels.arrays import Array
from .device import CPU, Device, array_module, as_device, use
from .dtypes import as_dtype, bool_, float32, int64, is_float
from .interchange import from_dlpack, move, to_array
from .ops._operands import as_tensor as _as_operand
from .ops._operands import check_fits
from .random import Generator, default_generator
from .tensor import Tensor

Where = str | Device | None  # a device; None is the default device


def tensor(
    data: Any, dtype: Any = None, device: Where = None, requires_grad: bool = False
) -> Tensor:
    """A new Tensor with a copy of ``data``: the same as :class:`Tensor`."""
    return Tensor(data, dtype=dtype, device=device, requires_grad=requires_grad)


def as_tensor(data: Any, dtype: Any = None, device: Where = None) -> Tensor:
    """``data`` as a Tensor, without a copy where dtype and device already fit.

    Tensors stay on the tape; NumPy and CuPy arrays share their memory.

    Raises:
        DTypeError: for a dtype that is not supported.
    """
    place = None if device is None else as_device(device)
    if isinstance(data, Tensor):
        return data.to(*(x for x in (place, dtype) if x is not None))
    return Tensor.wrap(to_array(data, dtype, place, copy=False))


def zeros(
    *shape: Any, dtype: Any = float32, device: Where = None, requires_grad: bool = False
) -> Tensor:
    """Zeros; the shape as a tuple or as separate sizes.

    Raises:
        ShapeError: for sizes that are not integers ≥ 0.
    """
    return _filled(shape, lambda xp, s, d: xp.zeros(s, d), dtype, device, requires_grad)


def ones(
    *shape: Any, dtype: Any = float32, device: Where = None, requires_grad: bool = False
) -> Tensor:
    """Ones; otherwise as :func:`zeros`."""
    return _filled(shape, lambda xp, s, d: xp.ones(s, d), dtype, device, requires_grad)


def empty(
    *shape: Any, dtype: Any = float32, device: Where = None, requires_grad: bool = False
) -> Tensor:
    """Memory that nobody has filled yet; otherwise as :func:`zeros`."""
    return _filled(shape, lambda xp, s, d: xp.empty(s, d), dtype, device, requires_grad)


def full(
    shape: Any, fill_value: float, dtype: Any = None, device: Where = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """``fill_value`` everywhere; its dtype is that of ``tensor(fill_value)`` unless given.

    Raises:
        ArgumentError: for an integer that does not fit into the dtype; also as :func:`zeros`.
    """
    dtype = Tensor(fill_value, device=CPU).dtype if dtype is None else as_dtype(dtype)
    if isinstance(fill_value, int):
        check_fits("full", fill_value, dtype)
    with np.errstate(all="ignore"):  # a number too large for the dtype is infinite
        return _filled(
            (shape,), lambda xp, s, d: xp.full(s, fill_value, d), dtype, device, requires_grad
        )


def eye(
    n: int, m: int | None = None, dtype: Any = float32, device: Where = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """The n × m matrix (n × n without m) with ones on its diagonal."""
    shape = (n, n if m is None else m)
    return _filled((shape,), lambda xp, s, d: xp.eye(*s, dtype=d), dtype, device, requires_grad)


def arange(
    start: float, end: float | None = None, step: float = 1, dtype: Any = None,
    device: Where = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """start, start + step, … below end; ``arange(n)`` is 0 … n − 1.

    int64 where all arguments are integers, otherwise float32.

    Raises:
        ArgumentError: for a step of 0, arguments that are no finite numbers, or integers
            that do not fit into the dtype.
    """
    start, end = (0, start) if end is None else (start, end)
    for argument, value in ("start", start), ("end", end), ("step", step):
        number(f"{argument} of arange", value)
    if step == 0:
        raise ArgumentError("arange needs a step other than 0")
    whole = all(isinstance(x, (int, np.integer)) for x in (start, end, step))
    dtype = _or(int64 if whole else float32, dtype)
    # Made on the host in full precision and rounded once.
    numbers = np.arange(start, end, step)
    if whole and numbers.size:
        check_fits("arange", int(numbers[0]), dtype)
        check_fits("arange", int(numbers[-1]), dtype)
    return _from_host(numbers, dtype, device, requires_grad)


def linspace(
    start: float, end: float, steps: int, dtype: Any = float32, device: Where = None,
    requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """``steps`` evenly spaced numbers from start to end, both included.

    Raises:
        ArgumentError: for a number of steps that is negative or no integer, or ends that
            are no finite numbers.
    """
    start, end = number("start of linspace", start), number("end of linspace", end)
    steps = integer("steps of linspace", steps, 0)
    return _from_host(np.linspace(start, end, steps), _or(float32, dtype), device, requires_grad)


def rand(
    *shape: Any, dtype: Any = float32, device: Where = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random numbers, uniform in [0, 1).

    Raises:
        ShapeError: for sizes that are not integers ≥ 0.
        DTypeError: for a dtype that is not floating.
    """
    return _random("random_uniform", shape, dtype, device, requires_grad, generator)


def randn(
    *shape: Any, dtype: Any = float32, device: Where = None, requires_grad: bool = False,
    generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random numbers of the standard normal distribution; otherwise as :func:`rand`."""
    return _random("random_normal", shape, dtype, device, requires_grad, generator)


def randint(
    low: int, high: int | None = None, size: Any = (), dtype: Any = int64,
    device: Where = None, generator: Generator | None = None,
) -> Tensor:  # fmt: skip
    """Random integers in [low, high); ``randint(n, size=s)`` is in [0, n).

    Raises:
        ArgumentError: for an empty range, ends that are no integers, or a range that the
            dtype does not hold.
    """
    low, high = (0, low) if high is None else (low, high)
    low, high = integer("low of randint", low), integer("high of randint", high)
    dtype = _or(int64, dtype)
    if low >= high:
        raise ArgumentError(f"randint needs low < high, but they are {low} and {high}")
    least, most = _range(dtype)
    if low < least or high - 1 > most:
        raise ArgumentError(
            f"randint from {low} to {high - 1} does not fit into {dtype.name}, which holds "
            f"{least} to {most}"
        )
    numbers = _host_generator(device, generator).integers(low, high, _shape((size,)), np.int64)
    return _from_host(numbers, dtype, device, False)


def randperm(
    n: int, dtype: Any = int64, device: Where = None, generator: Generator | None = None
) -> Tensor:
    """The numbers 0 … n − 1 in random order.

    Raises:
        ArgumentError: for an n that is negative or no integer.
    """
    order = _host_generator(device, generator).permutation(integer("n of randperm", n, 0))
    return _from_host(order, _or(int64, dtype), device, False)


def zeros_like(x: Any, dtype: Any = None, device: Where = None) -> Tensor:
    """Zeros of x's shape, and of its dtype and device unless given."""
    shape, options = _like(x, dtype, device)
    return zeros(shape, **options)


def ones_like(x: Any, dtype: Any = None, device: Where = None) -> Tensor:
    """Ones of x's shape, and of its dtype and device unless given."""
    shape, options = _like(x, dtype, device)
    return ones(shape, **options)


def empty_like(x: Any, dtype: Any = None, device: Where = None) -> Tensor:
    """Unfilled memory of x's shape, and of its dtype and device unless given."""
    shape, options = _like(x, dtype, device)
    return empty(shape, **options)


def full_like(x: Any, fill_value: float, dtype: Any = None, device: Where = None) -> Tensor:
    """``fill_value`` in x's shape, and in its dtype and device unless given."""
    shape, options = _like(x, dtype, device)
    return full(shape, fill_value, **options)


def rand_like(x: Any, dtype: Any = None, device: Where = None) -> Tensor:
    """:func:`rand` of x's shape, and of its dtype and device unless given."""
    shape, options = _like(x, dtype, device)
    return rand(shape, **options)


def randn_like(x: Any, dtype: Any = None, device: Where = None) -> Tensor:
    """:func:`randn` of x's shape, and of its dtype and device unless given."""
    shape, options = _like(x, dtype, device)
    return randn(shape, **options)


def _like(x: Any, dtype: Any, device: Where) -> tuple[tuple[int, ...], dict[str, Any]]:
    """x's shape, and the dtype and device of a tensor like it."""
    x = _as_operand(x)
    options = {"dtype": x.dtype if dtype is None else dtype, "device": device or x.device}
    return x.shape, options


def _range(dtype: np.dtype) -> tuple[int, int]:
    """The least and largest whole number of a dtype, as far as int64 goes."""
    if dtype == bool_:
        return 0, 1
    if is_float(dtype):
        most = min(int(float(ml_dtypes.finfo(dtype).max)), 2**63 - 1)
        return -most, most
    return int(np.iinfo(dtype).min), int(np.iinfo(dtype).max)


def _shape(given: tuple[Any, ...]) -> tuple[int, ...]:
    sizes = given[0] if len(given) == 1 and isinstance(given[0], (tuple, list)) else given
    try:
        return tuple(n if type(n) is int and n >= 0 else integer("a size", n, 0) for n in sizes)
    except ArgumentError:
        raise ShapeError(f"a shape is {tuple(sizes)}; wanted integers of at least 0") from None


def _filled(
    shape: tuple[Any, ...],
    make: Callable[[Any, tuple[int, ...], np.dtype], Array],
    dtype: Any,
    device: Where,
    requires_grad: bool,
) -> Tensor:
    sizes, dtype, place = _shape(shape), _or(float32, dtype), as_device(device)
    with use(place):
        result = Tensor.wrap(make(array_module(place), sizes, dtype))
    return result.requires_grad_(requires_grad) if requires_grad else result


def _or(default: np.dtype, dtype: Any) -> np.dtype:
    """``dtype``, where None stands for the function's default."""
    return default if dtype is None else as_dtype(dtype)


def _from_host(array: np.ndarray, dtype: np.dtype, device: Where, requires_grad: bool) -> Tensor:
    array = array if dtype != bool_ else array != 0
    with np.errstate(all="ignore"):
        array = array.astype(dtype, copy=False)
    result = Tensor.wrap(move(array, as_device(device)))
    return result.requires_grad_(requires_grad) if requires_grad else result


def _host_generator(device: Where, generator: Generator | None) -> np.random.Generator:
    source = default_generator(device) if generator is None else generator
    return np.random.default_rng(source.next_seed())


def _random(
    kernel: str,
    shape: tuple[Any, ...],
    dtype: Any,
    device: Where,
    requires_grad: bool,
    generator: Generator | None,
) -> Tensor:
    dtype = _or(float32, dtype)
    if not is_float(dtype):
        raise DTypeError(f"random numbers need a floating dtype, not {dtype.name}")
    place = as_device(device) if generator is None or device is not None else generator.device
    result = empty(*shape, dtype=dtype, device=place)
    seed, offset = (generator or default_generator(place)).reserve(result.size)
    getattr(kernels, kernel)(result.data, seed, offset)
    return result.requires_grad_(requires_grad) if requires_grad else result


__all__ = [
    "arange", "as_tensor", "empty", "empty_like", "eye", "from_dlpack", "full", "full_like",
    "linspace", "ones", "ones_like", "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm", "tensor", "zeros", "zeros_like",
]  # fmt: skip
