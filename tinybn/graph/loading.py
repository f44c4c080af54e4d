"""Reading a RuntimeGraph from the file that :mod:`saving` describes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import DataError, StateError, TinyBNError
from ..tensor import Device, Tensor, archive
from ..tensor.archive import DTYPES
from ..tensor.device import as_device
from .node import Wanted
from .op_json import from_json
from .runtime_graph import RuntimeGraph
from .saving import KEY, VERSION


def load(path: str | os.PathLike, device: str | Device | None = None) -> RuntimeGraph:
    """Read a graph that :meth:`RuntimeGraph.save` wrote.

    It gives the results, to the bit, of the one that was saved, and trains if that did. Nothing
    in the file is executed.

    Args:
        device: of the parameters; the default device where None.

    Raises:
        FileNotFoundError: if there is no such file.
        DataError: for a file that is damaged, of a newer tinybn, or without a graph.
        StateError: for tensors that are missing, of no node, or of another shape.
    """
    place = as_device(device)
    return loaded(path, *archive.read(path), place)


def loaded(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str],
    device: Device,
) -> RuntimeGraph:  # fmt: skip
    """The graph that a file holds; ``path`` is for the errors, which are those of :func:`load`."""
    if KEY not in metadata:
        raise DataError(f"{path} holds no graph; wanted a file of RuntimeGraph.save")
    try:
        structure = json.loads(metadata[KEY])
        version = structure["version"]
        if type(version) is int and version > VERSION:
            raise DataError(
                f"a graph of version {version}; wanted at most {VERSION}, which this tinybn reads"
            )
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        return _built(structure, arrays, device)
    except (DataError, StateError) as error:
        raise type(error)(f"{path}: {error}") from error
    except (
        TinyBNError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError,
        RecursionError,
    ) as error:  # fmt: skip
        raise DataError(f"{path} holds a damaged graph: {error!r}") from error


def _built(
    structure: Mapping[str, Any], arrays: Mapping[str, np.ndarray], device: Device
) -> RuntimeGraph:
    graph = RuntimeGraph(
        *_names(structure["inputs"]), train=_flag(structure["train"]), device=device,
        dtype=DTYPES[structure["dtype"]],
    )  # fmt: skip
    tensors = {key: Tensor.wrap(array).to(graph.device) for key, array in arrays.items()}
    used: set[str] = set()
    for node in structure["nodes"]:
        where = {slot: str(key) for slot, key in node["parameters"].items()}
        missing = [key for key in where.values() if key not in tensors]
        if missing:
            raise StateError(f"node {node['name']} lacks the tensors {', '.join(missing)}")
        used.update(where.values())
        parameters = {slot: tensors[key] for slot, key in where.items()}
        for slot in _names(node["learned"]):
            parameters[slot].requires_grad = True
        name = node["name"]
        op = from_json(node["op"], node["arguments"], name)
        graph.add(op, *_names(node["inputs"]), name=name, parameters=parameters)
    unknown = [key for key in tensors if key not in used]
    if unknown:
        raise StateError(f"no node has the tensors {', '.join(unknown)}")
    graph.output(*_names(structure["outputs"]))
    graph.several = _flag(structure["several"])
    graph.notes = list(_names(structure["notes"]))
    for name, (shape, dtype) in structure["wanted"].items():
        if name not in graph.inputs:
            raise ValueError(f"{name!r} is no input")
        graph.wanted[name] = Wanted(tuple(map(_size, shape)), DTYPES[dtype])
    _ = graph.nodes  # raises where they cannot run
    return graph


def _names(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
        raise ValueError(f"{value!r} is no list of names")
    return value


def _size(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no size")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value
