"""Checkpoints in the safetensors format: tensors by name, never code.

A plain state_dict keeps its names, so that PyTorch's safetensors files and ours
are the same. What is not a tensor (an epoch, an optimiser's options) and how
dictionaries are nested goes into the file's metadata as JSON.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, DataError
from ..tensor import Tensor, archive
from ..tensor.archive import METADATA, NAMES, check_writable
from ..tensor.device import CPU, Device, as_device

__all__ = ["check_writable", "load", "save"]

_STRUCTURE = "tinybn"  # the metadata key
_SLOT = "__tensor__"  # stands for a tensor in the JSON, with its name in the file


def save(path: str | os.PathLike, state: Mapping[str, Any]) -> None:
    """Write ``state`` to a safetensors file.

    The file appears whole or not at all: it is written beside ``path``, synced
    and renamed.

    Args:
        state: a state_dict, or nested dictionaries, lists and tuples of Tensors, arrays,
            numbers, strings and None, such as ``{"model": model.state_dict(), "optimizer":
            optimizer.state_dict(), "epoch": 3}``.

    Raises:
        ArgumentError: for values that it cannot hold, or a folder that cannot be written.
    """
    if not isinstance(state, Mapping):
        raise ArgumentError(f"state is {type(state).__name__}; wanted a dictionary")
    check_writable(path)
    arrays: dict[str, np.ndarray] = {}
    try:
        structure = _flatten(state, "", arrays)
        plain = structure == {"dict": [[name, {_SLOT: name}] for name in arrays]}
        metadata = {"format": "np"} if plain else {_STRUCTURE: json.dumps(structure)}
    except ArgumentError:
        raise
    except (RecursionError, ValueError) as error:  # a cycle
        raise ArgumentError(f"state does not fit into a checkpoint: {error}") from error
    archive.write(path, arrays, metadata)


def load(path: str | os.PathLike, device: str | Device | None = None) -> dict[str, Any]:
    """Read a safetensors file, of ours or PyTorch's, as :func:`save` was given it.

    Args:
        device: where the Tensors go; the default device where None.

    Raises:
        FileNotFoundError: if there is no such file.
        DataError: for a file that is damaged, no safetensors, or of a dtype that
            tinybn lacks.
    """
    place = as_device(device)
    arrays, metadata = archive.read(path)
    tensors = {name: Tensor.wrap(array).to(place) for name, array in arrays.items()}
    if _STRUCTURE not in metadata:
        return tensors
    try:
        state = _unflatten(json.loads(metadata[_STRUCTURE]), tensors)
        if not isinstance(state, dict):
            raise ArgumentTypeError(f"a dictionary is wanted, not {type(state).__name__}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} has damaged metadata: {error!r}") from error
    return state


def _flatten(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Put the tensors in ``value`` into ``arrays`` and return the rest as JSON can hold it."""
    if isinstance(value, (Tensor, np.ndarray)):
        array = value.detach().to(CPU).data if isinstance(value, Tensor) else value
        if array.dtype not in NAMES:
            raise ArgumentError(f"{name} has dtype {array.dtype}; a checkpoint cannot hold it")
        if name in arrays:
            raise ArgumentError(f"two tensors are named {name} once dictionaries are flattened")
        if name == METADATA:
            raise ArgumentError(f"a tensor is named {name}, which the format keeps for itself")
        arrays[name] = np.ascontiguousarray(array).reshape(array.shape)
        return {_SLOT: name}
    if isinstance(value, Mapping):
        items = []
        for key, item in value.items():
            if not isinstance(key, (str, int)):
                raise ArgumentError(f"{name or 'state'} has the key {key!r}; wanted a string")
            items.append([key, _flatten(item, f"{name}.{key}" if name else str(key), arrays)])
        return {"dict": items}
    if isinstance(value, (list, tuple)):
        kind = "list" if isinstance(value, list) else "tuple"
        return {kind: [_flatten(item, f"{name}.{i}", arrays) for i, item in enumerate(value)]}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise ArgumentError(f"{name} is {type(value).__name__}; a checkpoint cannot hold it")


def _unflatten(value: Any, tensors: dict[str, Tensor]) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    ((kind, content),) = value.items()
    if kind == _SLOT:
        return tensors[content]
    if not isinstance(content, list):
        raise ArgumentTypeError(f"a {kind} is made of {type(content).__name__}")
    if kind == "dict":
        return {key: _unflatten(item, tensors) for key, item in content}
    items = [_unflatten(item, tensors) for item in content]
    return {"list": list, "tuple": tuple}[kind](items)
