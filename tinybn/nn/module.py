"""Module, the base of layers and models.

A Module keeps its parameters, buffers and children as ordinary attributes, and
beside them only the lists of their names. So ``self.weight`` costs what any
attribute costs, and copying and pickling need no code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, DTypeError, TinyBNError
from ..kernels import recording
from ..kernels.recording import Recording
from ..tensor import Tensor
from ..tensor.state import IncompatibleKeys, load
from ..tensor.tensor import RemovableHandle
from .moving import Movable
from .parameter import Parameter
from .utils import clear_grad


class NotInitialized(TinyBNError, AttributeError):
    """A Module used before its ``__init__`` called ``super().__init__()``."""


class Module(Movable):
    """Base of all layers and models: a subclass makes its parts in ``__init__`` and has a forward.

    ::

        class Block(nn.Module):
            def __init__(self, features):
                super().__init__()
                self.linear = nn.Linear(features, features)
                self.norm = nn.BatchNorm1d(features)

            def forward(self, x):
                return self.norm(self.linear(x)).relu()

    Attributes:
        training: whether BatchNorm and Dropout behave as in training; see :meth:`train`.
    """

    training: bool
    _changes: object = None  # another one once an attribute is set or deleted, for recorded steps

    def __init__(self) -> None:
        self.training = True
        self._parameter_names: dict[str, None] = {}
        self._buffer_names: dict[str, bool] = {}  # whether it is in the state_dict
        self._module_names: dict[str, None] = {}
        self._forward_hooks: list[Any] = []

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """What calling the module computes; a subclass defines it."""
        raise NotImplementedError(f"{type(self).__name__} defines no forward(…)")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if args and isinstance(args[0], np.ndarray):
            raise DTypeError(
                f"{type(self).__name__} was given a NumPy array; wanted a Tensor: tb.as_tensor(x)"
            )
        result = self.forward(*args, **kwargs)
        recorded = recording.current()
        if recorded is not None:
            self._guard(recorded)
        for hook in list(self._forward_hooks):
            replaced = hook(self, args, result)
            result = result if replaced is None else replaced
        return result

    def _guard(self, recorded: Recording) -> None:
        """A recorded step is good as long as this module is as it was after its forward."""
        recorded.unchanged(self, "training", "_changes")
        for _, tensor in self._own_tensors():
            recorded.unchanged(tensor, "data")
        hooks = list(self._forward_hooks)
        recorded.guard(lambda: self._forward_hooks == hooks)

    # Registration

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, Parameter):
            self._register(name, self._parameter_names)
        elif isinstance(value, Module):
            self._register(name, self._module_names)
        elif value is not None and "_module_names" in self.__dict__:
            for kind, names in self._tables().items():
                if name in names and not (kind == "buffer" and isinstance(value, Tensor)):
                    wanted = {"buffer": "Tensor", "module": "Module"}.get(kind, "Parameter")
                    raise ArgumentTypeError(
                        f"{name} is a {kind} of {type(self).__name__} and cannot become a "
                        f"{type(value).__name__}; wanted a {wanted} or None"
                    )
        if name != "training" and self.__dict__.get(name, self) is not value:
            self.__dict__["_changes"] = object()
        object.__setattr__(self, name, value)

    def __delattr__(self, name: str) -> None:
        self.__dict__["_changes"] = object()
        for names in self._tables().values():
            names.pop(name, None)
        object.__delattr__(self, name)

    def __getattr__(self, name: str) -> Any:
        # Python asks here only for what it did not find.
        if "_module_names" not in self.__dict__:
            raise NotInitialized(
                f"{type(self).__name__} is used before its __init__ called super().__init__()"
            )
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def _tables(self) -> dict[str, dict[str, Any]]:
        return {
            "parameter": self._parameter_names,
            "buffer": self._buffer_names,
            "module": self._module_names,
        }

    def _register(self, name: str, table: dict[str, Any], value: Any = None) -> None:
        for names in self._tables().values():
            if names is not table:
                names.pop(name, None)
        table[name] = value
        self.__dict__["_changes"] = object()

    def _check_new(self, name: str) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise ArgumentError(f"a name is {name!r}; wanted a string that is not empty, without .")
        if hasattr(self, name) and not any(name in names for names in self._tables().values()):
            raise ArgumentError(f"{type(self).__name__} already has an attribute {name!r}")

    def register_parameter(self, name: str, param: Parameter | None) -> None:
        """Register a parameter as attribute ``name``; None stands for one that is left out.

        Raises:
            ArgumentError: for a name that is taken, empty or has a dot.
            TypeError: for anything but a Parameter or None.
        """
        self._check_new(name)
        if param is not None and not isinstance(param, Parameter):
            raise ArgumentTypeError(f"{name} is {type(param).__name__}; wanted a Parameter or None")
        self._register(name, self._parameter_names)
        object.__setattr__(self, name, param)

    def register_buffer(self, name: str, tensor: Tensor | None, persistent: bool = True) -> None:
        """Register a tensor that is part of the state but not learnt, as attribute ``name``.

        Args:
            persistent: whether it is in the state_dict.

        Raises:
            ArgumentError, TypeError: as :meth:`register_parameter`.
        """
        self._check_new(name)
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ArgumentTypeError(f"{name} is {type(tensor).__name__}; wanted a Tensor or None")
        self._register(name, self._buffer_names, bool(persistent))
        object.__setattr__(self, name, tensor)

    def add_module(self, name: str, module: Module | None) -> None:
        """Register a child as attribute ``name``.

        Raises:
            ArgumentError, TypeError: as :meth:`register_parameter`.
        """
        self._check_new(name)
        if module is not None and not isinstance(module, Module):
            raise ArgumentTypeError(f"{name} is {type(module).__name__}; wanted a Module or None")
        self._register(name, self._module_names)
        object.__setattr__(self, name, module)

    def register_forward_hook(self, hook: Callable[[Module, tuple, Any], Any]) -> RemovableHandle:
        """Call ``hook(module, args, output)`` after each forward; it may return a new output.

        Returns:
            A handle whose ``remove()`` takes the hook off again.
        """
        self._forward_hooks.append(hook)
        return RemovableHandle(self._forward_hooks, hook)

    # Iteration; what is shared comes once, under its first name

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """This module under the name ``prefix``, and all below it under dotted names."""
        memo = set() if memo is None else memo
        if remove_duplicate and id(self) in memo:
            return
        memo.add(id(self))
        yield prefix, self
        for name in self._module_names:
            child = self.__dict__[name]
            if child is not None:
                yield from child.named_modules(memo, _join(prefix, name), remove_duplicate)

    def modules(self) -> Iterator[Module]:
        """This module and all below it."""
        return (module for _, module in self.named_modules())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """The modules directly below this one, with their names."""
        seen = set()
        for name in self._module_names:
            child = self.__dict__[name]
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                yield name, child

    def children(self) -> Iterator[Module]:
        """The modules directly below this one."""
        return (child for _, child in self.named_children())

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """The parameters of this module, and with ``recurse`` of all below, under dotted names."""
        return self._named("_parameter_names", prefix, recurse, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """The parameters of this module, and with ``recurse`` of all below."""
        return (value for _, value in self.named_parameters(recurse=recurse))

    def named_buffers(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """The buffers of this module, and with ``recurse`` of all below, under dotted names."""
        return self._named("_buffer_names", prefix, recurse, remove_duplicate)

    def buffers(self, recurse: bool = True) -> Iterator[Tensor]:
        """The buffers of this module, and with ``recurse`` of all below."""
        return (value for _, value in self.named_buffers(recurse=recurse))

    def _named(
        self, table: str, prefix: str, recurse: bool, remove_duplicate: bool
    ) -> Iterator[tuple[str, Any]]:
        below = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate)
        seen = set()
        for path, module in below if recurse else [(prefix, self)]:
            for name in getattr(module, table):
                value = module.__dict__[name]
                if value is None or (remove_duplicate and id(value) in seen):
                    continue
                seen.add(id(value))
                yield _join(path, name), value

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call ``fn`` with every module below, children first, and with this one; return self."""
        for child in self.children():
            child.apply(fn)
        fn(self)
        return self

    # Modes and gradients

    def train(self, mode: bool = True) -> Module:
        """Set ``training`` here and below; return self. It undoes an earlier ``eval()`` of a child.

        BatchNorm layers that were frozen by ``freeze()`` stay so.
        """
        self.training = bool(mode)
        for child in self.children():
            child.train(mode)
        return self

    def eval(self) -> Module:
        """The same as ``train(False)``."""
        return self.train(False)

    def requires_grad_(self, requires_grad: bool = True) -> Module:
        """Set ``requires_grad`` of all parameters; return self."""
        for param in self.parameters():
            param.requires_grad = requires_grad
        return self

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove all parameters' gradients, or with ``set_to_none=False`` fill them with 0."""
        for param in self.parameters():
            clear_grad(param, set_to_none)

    # State

    def _own_tensors(self) -> list[tuple[str, Tensor]]:
        names = [*self._parameter_names, *self._buffer_names]
        return [(n, self.__dict__[n]) for n in names if self.__dict__[n] is not None]

    def state_dict(self, prefix: str = "") -> dict[str, Tensor]:
        """All parameters and persistent buffers by dotted name, ``prefix`` and then PyTorch's.

        The Tensors are detached but share memory with the module, and so change as it
        learns; ``copy.deepcopy`` of the dictionary keeps a moment.
        """
        return {
            prefix + _join(path, name): tensor.detach()
            for path, module in self.named_modules(remove_duplicate=False)
            for name, tensor in module._own_tensors()
            if module._buffer_names.get(name, True)
        }

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True
    ) -> IncompatibleKeys:
        """Copy a state into this module's parameters and buffers, in place.

        They keep their dtype and device. Shapes must be equal: (1,) does not go into a 0-d
        tensor.

        Args:
            state_dict: Tensors or arrays by dotted name.
            strict: whether a missing or unexpected name is an error, also a BatchNorm's
                ``num_batches_tracked``, which PyTorch before 0.4.1 did not write. If
                not, what is missing is left as it is.

        Returns:
            ``(missing_keys, unexpected_keys)``.

        Raises:
            StateError: listing every missing, unexpected and misfitting entry; nothing
                is changed then.
        """
        return load(self.state_dict(), state_dict, strict, type(self).__name__)

    # Display

    def extra_repr(self) -> str:
        """What ``repr`` shows between the parentheses; a subclass may define it."""
        return ""

    def __repr__(self) -> str:
        lines = [self.extra_repr()] if self.extra_repr() else []
        children = [(n, self.__dict__[n]) for n in self._module_names]
        for name, child in children:
            lines.append(f"({name}): " + repr(child).replace("\n", "\n  "))
        if not children:
            return f"{type(self).__name__}({self.extra_repr()})"
        return f"{type(self).__name__}(\n  " + "\n  ".join(lines) + "\n)"


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
