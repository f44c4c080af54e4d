"""Packages that load their parts when first used (PEP 562), so that importing them stays quick.

A package names its parts twice: in a table for Python, and under ``TYPE_CHECKING`` for editors and
type checkers. tests/test_process.py holds the two to each other.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazily(
    package: str, homes: Mapping[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package.

    Args:
        package: its ``__name__``.
        homes: for each name the module below the package that has it; for a module its own name.
    """
    own = sys.modules[package]

    def find(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(f".{homes[name]}", package)
        value = module if homes[name] == name else getattr(module, name)
        setattr(own, name, value)  # the next use comes here no more
        return value

    def names() -> list[str]:
        return sorted({*vars(own), *homes})

    return find, names
