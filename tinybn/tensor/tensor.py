"""The Tensor: an array on a device, and its place on the tape."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..errors import DeviceError, DTypeError, ShapeError, TapeError
from ..kernels.arrays import Array, is_array, namespace
from . import interchange
from .device import CPU, Device, as_device, device_of, use
from .dtypes import bool_, float32, int64, is_float
from .methods import TensorMethods
from .numpy_functions import ArrayUfunc, array_function
from .ops._views import address
from .tape import Node, Version, is_tensor, register_tensor_type, run_backward

Hook = Callable[["Tensor"], "Tensor | None"]


class RemovableHandle:
    """What ``register_hook`` returns: ``remove()`` takes the hook off again."""

    def __init__(self, hooks: list[Any], hook: Callable) -> None:
        self._hooks, self._hook = hooks, hook

    def remove(self) -> None:
        """Take the hook off; a second time does nothing."""
        if self._hook in self._hooks:
            self._hooks.remove(self._hook)


class Tensor(TensorMethods):
    """A NumPy or CuPy array that remembers how it was computed.

    Args:
        data: a number, nested sequences of numbers, a NumPy or CuPy array or a
            Tensor; it is copied. Python floats become float32, ints int64.
        dtype: one of the seven dtypes; None keeps that of the data.
        device: ``"cpu"``, ``"cuda"``, ``"cuda:N"`` or a Device. None leaves CuPy
            arrays and Tensors where they are, the rest goes to the default device.
        requires_grad: whether ``backward`` gives this tensor a ``grad``.

    Raises:
        DTypeError: for a dtype that is not supported, or one without gradients
            where ``requires_grad`` is True.
        ShapeError: for sequences of unequal lengths.
        DeviceError: for a device that is not there.
    """

    __slots__ = ("_data", "_node", "_grad", "_requires_grad", "_version", "_hooks", "__weakref__")
    __array_priority__ = 1000
    __array_ufunc__ = ArrayUfunc()
    __array_function__ = array_function

    def __init__(
        self,
        data: Any,
        dtype: Any = None,
        device: str | Device | None = None,
        requires_grad: bool = False,
    ) -> None:
        place = None if device is None else as_device(device)
        self._set(interchange.to_array(data, dtype, place))
        if requires_grad:
            self.requires_grad = True

    @classmethod
    def wrap(cls, array: Array) -> Tensor:
        """A Tensor around ``array``, sharing its memory, with no graph."""
        self = cls.__new__(cls)
        # NumPy gives a scalar, not an array, where a result has no dimensions.
        self._set(array if is_array(array) else np.asarray(array))
        return self

    def _set(self, array: Array) -> None:
        self._data = array
        self._node: Node | None = None
        self._grad: Tensor | None = None
        self._requires_grad = False
        self._version = Version()
        self._hooks: list[Hook] | None = None

    # What it is

    @property
    def data(self) -> Array:
        """The NumPy or CuPy array. Writing into it is not seen by the version counter."""
        return self._data

    @data.setter
    def data(self, value: Any) -> None:
        array = value.data if is_tensor(value) else value
        if not is_array(array):
            raise DTypeError(f"data takes an array or a Tensor, not {type(array).__name__}")
        if (array.shape, array.dtype) != (self.shape, self.dtype):
            raise ShapeError(
                f"data of shape {array.shape} and dtype {array.dtype.name} cannot replace that of "
                f"shape {self.shape} and dtype {self.dtype.name}"
            )
        self._data, self._version = array, Version()

    @property
    def shape(self) -> tuple[int, ...]:
        """The size of each axis."""
        return self._data.shape

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._data.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._data.size

    @property
    def dtype(self) -> np.dtype:
        """The elements' data type."""
        return self._data.dtype

    @property
    def device(self) -> Device:
        """Where the memory is."""
        return device_of(self._data)

    def data_ptr(self) -> int:
        """The address of the first element."""
        return address(self._data)

    def is_contiguous(self) -> bool:
        """Whether the elements lie in memory in C order without gaps."""
        return self._data.flags.c_contiguous

    # Its place on the tape

    @property
    def is_leaf(self) -> bool:
        """Whether no recorded operation made this tensor."""
        return self._node is None

    @property
    def requires_grad(self) -> bool:
        """Whether operations on this tensor are recorded."""
        return self._requires_grad

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value and not is_float(self.dtype):
            raise DTypeError(f"only floating tensors have gradients, not {self.dtype.name}")
        if not value and self._node is not None:
            raise TapeError(
                "requires_grad can be set to False only on leaf tensors; use x.detach()"
            )
        self._requires_grad = bool(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Set ``requires_grad`` and return self. Raises as the attribute."""
        self.requires_grad = requires_grad
        return self

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``backward`` added up here, or None."""
        return self._grad

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is not None:
            if not is_tensor(value):
                raise DTypeError(f"grad takes a Tensor or None, not {type(value).__name__}")
            self._check_gradient(value, "grad")
        self._grad = value

    def _check_gradient(self, gradient: Tensor, name: str) -> None:
        if gradient.shape != self.shape:
            raise ShapeError(
                f"{name} of shape {gradient.shape} does not fit a tensor of shape {self.shape}"
            )
        if gradient.dtype != self.dtype:
            raise DTypeError(
                f"{name} of dtype {gradient.dtype.name} does not fit a tensor of {self.dtype.name}"
            )
        if gradient.device != self.device:
            raise DeviceError(f"{name} is on {gradient.device}, but the tensor on {self.device}")

    def _upstream(self, gradient: Any) -> Array:
        """What ``backward`` begins with: ``gradient`` as an array that fits, or a single one."""
        if gradient is None:
            if self.size != 1:
                raise TapeError(
                    f"backward without a gradient needs a tensor of one element, but its shape is "
                    f"{self.shape}; reduce it, for example by mean(), or pass gradient="
                )
            with use(self.device):
                return namespace(self._data).ones_like(self._data)
        if not is_tensor(gradient):
            # Python's numbers have no dtype of their own; arrays have, and it must fit.
            has_dtype = hasattr(gradient, "dtype") or hasattr(gradient, "__array__")
            dtype = None if has_dtype else self.dtype
            gradient = Tensor(gradient, dtype=dtype, device=self.device)
        self._check_gradient(gradient, "gradient")
        return gradient.data

    def backward(self, gradient: Any = None, retain_graph: bool = False) -> None:
        """Add to each leaf's ``grad`` the derivative of this tensor with respect to it.

        Args:
            gradient: the upstream gradient, of this tensor's shape, dtype and
                device (Python numbers, in lists or alone, take the dtype); may be
                left out where the tensor has one element.
            retain_graph: whether to keep the graph for another backward.

        Raises:
            TapeError: if nothing was recorded, if the graph was freed, if a saved value was
                written in place, or if ``gradient`` is missing.
            ShapeError, DTypeError, DeviceError: for a gradient that does not fit.
        """
        if not self._requires_grad:
            raise TapeError(
                "backward needs a tensor computed from one that requires a gradient, but nothing "
                "was recorded here"
            )
        array = self._upstream(gradient)
        run_backward(self if self._node is None else self._node, array, retain_graph)

    def retain_grad(self) -> None:
        """Ask ``backward`` to keep this tensor's gradient in ``grad`` too, though it is no leaf.

        Raises:
            TapeError: if the tensor requires no gradient.
        """
        self._wants_gradient("retain_grad")
        if self._node is not None:
            self._node.retain = weakref.ref(self)

    def register_hook(self, hook: Hook) -> RemovableHandle:
        """Call ``hook(gradient)`` in each backward; what it returns, if not None, replaces it.

        Raises:
            TapeError: if the tensor requires no gradient.
        """
        self._wants_gradient("register_hook")
        owner: Any = self if self._node is None else self._node
        name = "_hooks" if self._node is None else "hooks"
        hooks = getattr(owner, name)
        if hooks is None:
            hooks = []
            setattr(owner, name, hooks)
        hooks.append(hook)
        return RemovableHandle(hooks, hook)

    def _wants_gradient(self, name: str) -> None:
        if not self._requires_grad:
            raise TapeError(f"{name} needs a tensor that requires a gradient")

    def detach(self) -> Tensor:
        """The same memory without the graph."""
        alias = Tensor.wrap(self._data)
        alias._version = self._version
        return alias

    # Python's own protocols

    def __len__(self) -> int:
        if self.ndim == 0:
            raise DTypeError("a tensor of no dimensions has no len()")
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise DTypeError("a tensor of no dimensions cannot be iterated over")
        return (self[i] for i in range(self.shape[0]))

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(
                f"the truth of a tensor of shape {self.shape} is ambiguous; use .any() or .all()"
            )
        return bool(self._number("bool()") != 0)

    def __float__(self) -> float:
        return float(self._number("float()"))

    def __int__(self) -> int:
        return int(self._number("int()"))

    def __index__(self) -> int:
        if is_float(self.dtype) or self.size != 1:
            raise DTypeError(
                f"only an integer tensor of one element is an index, not {self.dtype.name} of "
                f"shape {self.shape}"
            )
        return int(self._number("an index"))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        host = interchange.move(self._data, CPU)
        shown = host.astype(float32) if self.dtype.name == "bfloat16" else host
        text = np.array2string(shown, separator=", ", prefix="tensor(")
        parts = [f"tensor({text}"]
        if self.dtype not in (float32, int64, bool_) or self.size == 0:
            parts.append(f"dtype={self.dtype.name}")
        if self.device != CPU:
            parts.append(f"device={str(self.device)!r}")
        if self._node is not None:
            parts.append(f"op={self._node.op.__name__}")
        elif self._requires_grad:
            parts.append("requires_grad=True")
        return ", ".join(parts) + ")"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else repr(self)

    def __deepcopy__(self, memo: dict[Any, Any]) -> Tensor:
        if self._node is not None:
            raise TapeError("only leaf tensors can be copied deeply; use x.detach() or x.clone()")
        result = self._like(self._data.copy(order="K"), self._requires_grad)
        memo[id(self)] = result
        result._grad = copy.deepcopy(self._grad, memo)
        if hasattr(self, "__dict__"):  # a subclass may have attributes of its own
            result.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return result

    def __reduce__(self) -> Any:
        if self._node is not None:
            raise TapeError("only leaf tensors can be pickled; use x.detach()")
        host = interchange.move(self._data, CPU)
        state = (type(self), host, str(self.device), self._requires_grad)
        return _rebuild, state, getattr(self, "__dict__", None)

    @classmethod
    def _like(cls, array: Array, requires_grad: bool) -> Tensor:
        result = cls.wrap(array)
        result._requires_grad = requires_grad
        return result


def _rebuild(cls: type[Tensor], host: np.ndarray, device: str, requires_grad: bool) -> Tensor:
    """What unpickling calls; raises DeviceError where a GPU tensor meets no GPU."""
    return cls._like(interchange.move(host, as_device(device)), requires_grad)


register_tensor_type(Tensor)
