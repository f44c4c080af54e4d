"""A RuntimeGraph in a file: tensors by name, and the nodes as JSON beside them; never code.

The file is a safetensors file. A parameter is the tensor ``{node}.{slot}``. The metadata's key
``tinybn.graph`` holds for each node the name of its RuntimeOp and the arguments with which that
was made, so loading calls constructors of ``tinybn.graph`` and nothing else.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import ArgumentError, DataError, StateError, TinyBNError
from ..kernels.windows import Windows
from ..tensor import Device, Tensor, archive
from ..tensor.archive import DTYPES, NAMES
from ..tensor.device import CPU
from ..tensor.ops._index import Index
from ..tensor.tape import Op
from . import batch_norm_ops, ops
from .lower import LOWER, PLAIN
from .node import GraphNode, Wanted
from .runtime_op import Constant, RuntimeOp, Slot

if TYPE_CHECKING:
    from .runtime_graph import RuntimeGraph

VERSION = 1
_KEY = "tinybn.graph"


def save(graph: RuntimeGraph, path: str | os.PathLike) -> None:
    """Write ``graph`` to a file: :meth:`RuntimeGraph.save`."""
    arrays: dict[str, np.ndarray] = {}
    owners: dict[tuple[int, bool], str] = {}
    structure = {
        "version": VERSION, "inputs": graph.inputs, "outputs": graph.outputs,
        "several": graph.several, "train": graph.train, "dtype": NAMES[graph.dtype],
        "notes": graph.notes,
        "wanted": {n: [w.shape, NAMES[w.dtype]] for n, w in graph.wanted.items()},
        "nodes": [_described(node, arrays, owners) for node in graph.nodes],
    }  # fmt: skip
    archive.write(path, arrays, {_KEY: json.dumps(structure)})


def _described(
    node: GraphNode, arrays: dict[str, np.ndarray], owners: dict[tuple[int, bool], str]
) -> dict[str, Any]:
    """A node as JSON can hold it; its parameters go to ``arrays``, each once."""
    where: dict[str, str] = {}
    for slot, tensor in node.parameters.items():
        key = f"{node.name}.{slot}"
        where[slot] = owners.setdefault((id(tensor.data), tensor.requires_grad), key)
        if where[slot] == key:
            array = tensor.detach().to(CPU).data
            arrays[key] = np.ascontiguousarray(array).reshape(array.shape)
    kind = type(node.op)
    if _ops().get(kind.__name__) is not kind:
        raise ArgumentError(
            f"node {node.name} is {kind.__name__}; a file holds the RuntimeOps of tinybn.graph"
        )
    args, options = node.op.made_with
    bound = _signature(kind).bind(*args, **options)
    return {
        "name": node.name, "op": kind.__name__, "inputs": node.inputs, "parameters": where,
        "learned": [slot for slot, t in node.parameters.items() if t.requires_grad],
        "arguments": {
            key: _encoded(value, f"{key} of node {node.name}")
            for key, value in bound.arguments.items()
        },
    }  # fmt: skip


def load(
    make: Callable[..., RuntimeGraph], path: str | os.PathLike, device: str | Device | None
) -> RuntimeGraph:
    """Read a graph, which ``make`` begins as the class does: :func:`tinybn.graph.load`."""
    return _loaded(make, path, *archive.read(path), device)


def _loaded(
    make: Callable[..., RuntimeGraph], path: str | os.PathLike,
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str], device: str | Device | None,
) -> RuntimeGraph:  # fmt: skip
    if _KEY not in metadata:
        raise DataError(f"{path} holds no graph; wanted a file of RuntimeGraph.save")
    try:
        structure = json.loads(metadata[_KEY])
        version = structure["version"]
        if type(version) is int and version > VERSION:
            raise DataError(
                f"a graph of version {version}; wanted at most {VERSION}, which this tinybn reads"
            )
        if version != VERSION:
            raise ValueError(f"version {version!r}")
        return _built(make, structure, arrays, device)
    except (DataError, StateError) as error:
        raise type(error)(f"{path}: {error}") from error
    except (
        TinyBNError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError,
        RecursionError,
    ) as error:  # fmt: skip
        raise DataError(f"{path} holds a damaged graph: {error!r}") from error


def _built(
    make: Callable[..., RuntimeGraph],
    structure: Mapping[str, Any],
    arrays: Mapping[str, np.ndarray],
    device: Any,
) -> RuntimeGraph:
    graph = make(
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
        graph.add(_op(node), *_names(node["inputs"]), name=name, parameters=parameters)
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


def _op(node: Mapping[str, Any]) -> RuntimeOp:
    name = node["op"]
    if name not in _ops():
        raise DataError(f"node {node['name']} is {name!r}, which is no RuntimeOp of this tinybn")
    kind = _ops()[name]
    signature = _signature(kind)
    unknown = [key for key in node["arguments"] if key not in signature.parameters]
    if unknown:
        raise DataError(
            f"node {node['name']} ({name}) has the options {', '.join(unknown)}; wanted some of "
            f"{', '.join(signature.parameters)}"
        )
    given = {key: _decoded(value) for key, value in node["arguments"].items()}
    bound = inspect.BoundArguments(signature, given)
    return kind(*bound.args, **bound.kwargs)


def _signature(kind: type[RuntimeOp]) -> inspect.Signature:
    """Of a RuntimeOp's constructor."""
    whole = inspect.signature(kind.__init__)
    return whole.replace(parameters=list(whole.parameters.values())[1:])


def _ops() -> dict[str, type[RuntimeOp]]:
    """The RuntimeOps that a file may name."""
    found = {}
    for module in (ops, batch_norm_ops):
        for name, value in vars(module).items():
            if name.endswith("RuntimeOp") and value is not RuntimeOp:
                found[name] = value
    return found


def _tape_ops() -> dict[str, type[Op]]:
    """The tape's operations that an argument may name."""
    every: list[Any] = [*PLAIN, *LOWER, *ops.ACTIVATIONS.values()]
    return {op.__name__: op for op in every}


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


# What JSON lacks is an object of one key, its kind.


def _encoded(value: Any, what: str) -> Any:
    """An argument as JSON can hold it; ``what`` names it in the error."""
    if isinstance(value, np.generic) and value.dtype in NAMES:  # before float, which float64 is
        return {"number": [NAMES[value.dtype], value.item()]}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    for kind, (type_, take_apart, _) in _KINDS.items():
        if isinstance(value, type_):
            return {kind: [_encoded(part, what) for part in take_apart(value)]}
    if isinstance(value, (tuple, list)):
        return [_encoded(part, what) for part in value]
    if isinstance(value, np.dtype) and value in NAMES:
        return {"dtype": NAMES[value]}
    if isinstance(value, Mapping):
        return {"dict": [[str(key), _encoded(item, what)] for key, item in value.items()]}
    if isinstance(value, type) and value in _tape_ops().values():
        return {"op": value.__name__}
    raise ArgumentError(f"{what} is {value!r}, which a file cannot hold")


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(map(_decoded, value))
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "number":
        return DTYPES[content[0]].type(content[1])
    if kind == "dtype":
        return DTYPES[content]
    if kind == "op":
        return _tape_ops()[content]
    if kind == "dict":
        return {key: _decoded(item) for key, item in content}
    return _KINDS[kind][2](*map(_decoded, content))


def _windows(*pairs: tuple[int, int]) -> Windows:
    result = Windows(*pairs)
    for pair in pairs:
        if not (isinstance(pair, tuple) and [type(n) for n in pair] == [int, int]):
            raise ValueError(f"{pair!r} are no two numbers of windows")
    if min(*result.kernel, *result.stride, *result.dilation) < 1:
        raise ValueError(f"{result} have no element")
    return result


_KINDS: dict[str, tuple[type, Callable[[Any], Any], Callable[..., Any]]] = {
    "windows": (
        Windows, lambda w: (w.kernel, w.stride, w.before, w.after, w.dilation), _windows,
    ),
    "slot": (Slot, tuple, Slot),
    "slice": (slice, lambda s: (s.start, s.stop, s.step), slice),
    "index": (Index, tuple, Index),
    "constant": (Constant, tuple, Constant),
}  # fmt: skip
