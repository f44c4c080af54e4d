"""Sequential and ModuleList."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from ..arguments import integer
from ..errors import ArgumentTypeError, IndexOutOfRange
from ..kernels.engines import engine_of
from ..tensor import Tensor
from .activation import GELU, ReLU, SiLU
from .batchnorm import _BatchNorm
from .module import Module

_ACTIVATIONS: dict[type, str] = {ReLU: "relu", SiLU: "silu", GELU: "gelu"}


class _Numbered(Module):
    """Children under the names "0", "1", …, indexed by number."""

    def _values(self) -> list[Any]:
        return [self.__dict__[name] for name in self._module_names]

    def _name(self, index: int) -> str:
        names, index = list(self._module_names), integer("an index", index)
        if not -len(names) <= index < len(names):
            raise IndexOutOfRange(
                f"index {index} into a {type(self).__name__} of {len(names)}; wanted "
                f"{-len(names)} to {len(names) - 1}"
            )
        return names[index]

    def __len__(self) -> int:
        return len(self._module_names)

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values())

    def __getitem__(self, index: int | slice) -> Any:
        if isinstance(index, slice):
            return self._part(index)
        return self.__dict__[self._name(index)]

    def _part(self, index: slice) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no slices")

    def __setitem__(self, index: int, module: Module) -> None:
        if not isinstance(module, Module):
            raise ArgumentTypeError(f"item {index} is {type(module).__name__}; wanted a Module")
        setattr(self, self._name(index), module)

    def append(self, module: Module) -> Any:
        """Add ``module`` at the end; return self.

        Its name is the number of those before it, or the next that is free.
        """
        if not isinstance(module, Module):
            raise ArgumentTypeError(f"an item is {type(module).__name__}; wanted a Module")
        number = len(self)
        while str(number) in self._module_names:
            number += 1
        self.add_module(str(number), module)
        return self


class Sequential(_Numbered):
    """Modules one after the other, each on the result of the one before.

    A BatchNorm and the ReLU, on a GPU also the SiLU or exact GELU, after it run as one: the
    same kernels apply the activation (see ``nn.functional.batch_norm``), unless a hook looks on.

    ``Sequential(a, b)`` or, with names of one's own, ``Sequential(OrderedDict(a=a, b=b))``.
    An index gives a module, a slice a Sequential of some, under the names that they have.

    Raises:
        TypeError: for what is no Module.
    """

    def __init__(self, *modules: Any) -> None:
        super().__init__()
        named: Iterable[tuple[str, Any]]
        if len(modules) == 1 and isinstance(modules[0], OrderedDict):
            named = modules[0].items()
        else:
            named = ((str(i), module) for i, module in enumerate(modules))
        for name, module in named:
            if not isinstance(module, Module):
                raise ArgumentTypeError(f"{name} is {type(module).__name__}; wanted a Module")
            self.add_module(name, module)

    def _part(self, index: slice) -> Sequential:
        names = list(self._module_names)[index]
        return type(self)(OrderedDict((name, self.__dict__[name]) for name in names))

    def forward(self, input: Any) -> Any:
        """The last module's result."""
        modules = self._values()
        i = 0
        while i < len(modules):
            activation = None
            if i + 1 < len(modules) and isinstance(input, Tensor):
                activation = _joined(modules[i], modules[i + 1], input)
            if activation is None:
                input = modules[i](input)
                i += 1
            else:
                input = modules[i](input, activation=activation)
                i += 2
        return input


def _joined(module: Module, following: Module, input: Tensor) -> str | None:
    """The name of ``following`` where BatchNorm's kernels can apply it, else None."""
    if type(module).forward is not _BatchNorm.forward:
        return None
    if (
        type(module).__call__ is not Module.__call__
        or type(following).__call__ is not Module.__call__
    ):
        return None
    if "forward" in vars(module) or "forward" in vars(following):
        return None
    if module._forward_hooks or following._forward_hooks:
        return None
    if type(following) is GELU and following.approximate != "none":
        return None
    # The CPU engine would work out SiLU's and GELU's arguments and slopes twice.
    if engine_of(input.data) == "cpu" and type(following) is not ReLU:
        return None
    return _ACTIVATIONS.get(type(following))


class ModuleList(_Numbered):
    """A list whose modules are registered; it computes nothing itself.

    Raises:
        TypeError: for what is no Module.
    """

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self.extend(modules)

    def _part(self, index: slice) -> ModuleList:
        return type(self)(self._values()[index])

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        """Add all ``modules`` at the end; return self."""
        if not isinstance(modules, Iterable):
            raise ArgumentTypeError(
                f"modules is {type(modules).__name__}; wanted a list of Modules"
            )
        for module in list(modules):  # a list first, since they may be this one's own
            self.append(module)
        return self
