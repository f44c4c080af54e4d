"""Sequential and ModuleList."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

from ..errors import IndexOutOfRange
from .module import Module


class _Numbered(Module):
    """Children under the names "0", "1", …, indexed by number."""

    def _values(self) -> list[Any]:
        return [self.__dict__[name] for name in self._module_names]

    def _name(self, index: int) -> str:
        names = list(self._module_names)
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
            raise TypeError(f"item {index} is {type(module).__name__}; wanted a Module")
        setattr(self, self._name(index), module)

    def append(self, module: Module) -> Any:
        """Add ``module`` at the end; return self.

        Its name is the number of those before it, or the next that is free.
        """
        if not isinstance(module, Module):
            raise TypeError(f"an item is {type(module).__name__}; wanted a Module")
        number = len(self)
        while str(number) in self._module_names:
            number += 1
        self.add_module(str(number), module)
        return self


class Sequential(_Numbered):
    """Modules one after the other, each on the result of the one before.

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
                raise TypeError(f"{name} is {type(module).__name__}; wanted a Module")
            self.add_module(name, module)

    def _part(self, index: slice) -> Sequential:
        names = list(self._module_names)[index]
        return type(self)(OrderedDict((name, self.__dict__[name]) for name in names))

    def forward(self, input: Any) -> Any:
        """The last module's result."""
        for module in self:
            input = module(input)
        return input


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
        for module in list(modules):  # a list first, since they may be this one's own
            self.append(module)
        return self
