"""The packages import one way, as the design draws them, and no file imports in a circle.

What is read is the source: imports at the top of a file, and those inside functions, which could
only be there to dodge a circle. Imports for annotations alone (``TYPE_CHECKING``) run never.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "tinybn"

# Each may import what stands before it. graph knows no nn, and kernels no Tensor.
FLOORS = [
    "errors", "arguments", "_openblas", "_lazy", "kernels", "tensor", "testing", "graph", "data",
    "nn", "cli",
]  # fmt: skip


class Import(NamedTuple):
    of: str
    line: int
    in_function: bool


def modules() -> dict[str, Path]:
    """Every module of the package by its dotted name without ``tinybn.``."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = modules()


def imports(name: str) -> Iterator[Import]:
    """What a module imports of the package when it runs."""
    path = MODULES[name]
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]

    def walk(node: ast.AST, in_function: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            inside = in_function or isinstance(child, (ast.FunctionDef, ast.Lambda))
            if isinstance(child, ast.ImportFrom) and child.level:
                base = [part for part in package if part][: len(package) - child.level + 1]
                base += child.module.split(".") if child.module else []
                for alias in child.names:
                    full = ".".join([*base, alias.name])
                    yield Import(full if full in MODULES else ".".join(base), child.lineno, inside)
            assert not (
                isinstance(child, ast.Import) and any("tinybn" in a.name for a in child.names)
            ), f"{path}:{child.lineno} imports by full name; wanted a relative import"
            yield from walk(child, inside)

    return walk(ast.parse(path.read_text()), False)


def floor(name: str) -> int:
    return FLOORS.index(name.split(".")[0])


@pytest.mark.parametrize("name", [name for name in MODULES if name])
def test_a_file_imports_what_lies_below_it(name):
    for found in imports(name):
        if found.of:  # the package itself holds the public names and is above all
            assert floor(found.of) <= floor(name), f"line {found.line} imports {found.of}"


def test_only_the_command_reads_the_public_names():
    readers = [name for name in MODULES if name and any(not found.of for found in imports(name))]
    assert [name for name in readers if name != "cli"] == []


@pytest.mark.parametrize("name", MODULES)
def test_no_import_hides_in_a_function(name):
    hidden = [f"line {found.line}: {found.of}" for found in imports(name) if found.in_function]
    assert hidden == []


def test_no_files_import_each_other_in_a_circle():
    edges = {name: {found.of for found in imports(name)} - {name} for name in MODULES}
    done: set[str] = set()

    def visit(name: str, way: list[str]) -> None:
        assert name not in way, "a circle: " + " -> ".join([*way[way.index(name) :], name])
        if name in done:
            return
        for other in edges[name]:
            visit(other, [*way, name])
        done.add(name)

    for name in MODULES:
        visit(name, [])


def test_it_reads_imports():
    assert "kernels.arrays" in {found.of for found in imports("tensor.tape")}
    assert {"tensor.tape", "tensor.device"} <= {found.of for found in imports("tensor.tensor")}
