"""Writing a RuntimeGraph to a file: tensors by name, and the nodes as JSON beside them.

The file is a safetensors file. A parameter is the tensor ``{node}.{slot}``. The metadata's key
``tinybn.graph`` holds for each node the name of its RuntimeOp and the arguments with which that
was made; :mod:`loading` calls constructors of ``tinybn.graph`` and nothing else.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..tensor import archive
from ..tensor.device import CPU
from .node import GraphNode
from .op_json import as_json

VERSION = 1
KEY = "tinybn.graph"


def save(path: str | os.PathLike, nodes: Sequence[GraphNode], **rest: Any) -> None:
    """Write a file.

    Args:
        nodes: of the graph, each after those that it reads.
        rest: what else there is to the graph, as JSON can hold it.

    Raises:
        ArgumentError: as :meth:`RuntimeGraph.save`.
    """
    arrays: dict[str, np.ndarray] = {}
    owners: dict[tuple[int, bool], str] = {}
    described = [_described(node, arrays, owners) for node in nodes]
    structure = {"version": VERSION, **rest, "nodes": described}
    archive.write(path, arrays, {KEY: json.dumps(structure)})


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
    return {
        "name": node.name, **as_json(node.op, node.name), "inputs": node.inputs,
        "parameters": where,
        "learned": [slot for slot, t in node.parameters.items() if t.requires_grad],
    }  # fmt: skip
