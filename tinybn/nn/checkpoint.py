"""Checkpoints in the safetensors format: tensors by name, never code.

A plain state_dict keeps its names, so that PyTorch's safetensors files and ours
are the same. What is not a tensor (an epoch, an optimiser's options) and how
dictionaries are nested goes into the file's metadata as JSON.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, DataError
from ..tensor import Tensor
from ..tensor.device import CPU, Device, as_device
from ..tensor.dtypes import bfloat16, bool_, float16, float32, float64, int32, int64

_NAMES = {
    float64: "F64", float32: "F32", float16: "F16", bfloat16: "BF16", int64: "I64", int32: "I32",
    bool_: "BOOL",
}  # fmt: skip
_DTYPES = {name: dtype for dtype, name in _NAMES.items()}
_METADATA = "__metadata__"  # the format's name for it, which no tensor may have
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
    from safetensors import SafetensorError
    from safetensors.numpy import save as serialize

    if not isinstance(state, Mapping):
        raise ArgumentError(f"state is {type(state).__name__}; wanted a dictionary")
    check_writable(path)
    arrays: dict[str, np.ndarray] = {}
    try:
        structure = _flatten(state, "", arrays)
        plain = structure == {"dict": [[name, {_SLOT: name}] for name in arrays]}
        metadata = {"format": "np"} if plain else {_STRUCTURE: json.dumps(structure)}
        content = serialize(arrays, metadata)
    except ArgumentError:
        raise
    except (RecursionError, ValueError, SafetensorError) as error:  # a cycle, half a surrogate
        raise ArgumentError(f"state does not fit into a checkpoint: {error}") from error
    _write(Path(os.path.realpath(path)), content)  # through a link


def load(path: str | os.PathLike, device: str | Device | None = None) -> dict[str, Any]:
    """Read a safetensors file, of ours or PyTorch's, as :func:`save` was given it.

    Args:
        device: where the Tensors go; the default device where None.

    Raises:
        FileNotFoundError: if there is no such file.
        DataError: for a file that is damaged, no safetensors, or of a dtype that
            tinybn lacks.
    """
    from safetensors import SafetensorError, deserialize

    place = as_device(device)
    raw = Path(path).read_bytes()
    try:
        entries = deserialize(raw)
        length = int.from_bytes(raw[:8], "little")
        metadata = json.loads(raw[8 : 8 + length]).get(_METADATA) or {}
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path} is not a whole safetensors file: {error}") from error
    tensors = {}
    for name, entry in entries:
        if entry["dtype"] not in _DTYPES:
            raise DataError(
                f"{path} holds {name} of dtype {entry['dtype']}; wanted one of {', '.join(_DTYPES)}"
            )
        try:
            array = np.frombuffer(entry["data"], _DTYPES[entry["dtype"]]).reshape(entry["shape"])
        except (ValueError, OverflowError) as error:  # more axes than NumPy has, or 0 × 2**63
            raise DataError(f"{path} holds {name} of shape {entry['shape']}: {error}") from error
        tensors[name] = Tensor(array, device=place)
    if _STRUCTURE not in metadata:
        return tensors
    try:
        state = _unflatten(json.loads(metadata[_STRUCTURE]), tensors)
        if not isinstance(state, dict):
            raise ArgumentTypeError(f"a dictionary is wanted, not {type(state).__name__}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(f"{path} has damaged metadata: {error!r}") from error
    return state


def check_writable(path: str | os.PathLike) -> None:
    """Raise ArgumentError unless a file can be written at ``path``; writes nothing."""
    target = Path(path)
    folder = Path(os.path.realpath(path)).parent
    if not folder.is_dir():
        raise ArgumentError(f"{path} cannot be written: there is no folder {folder}")
    if target.exists() and not target.is_file():  # renaming would replace a device or a pipe
        kind = "folder" if target.is_dir() else "device"
        raise ArgumentError(f"{path} cannot be written: it is a {kind}; wanted a file's name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentError(f"{path} cannot be written: the folder {folder} is read-only")


def _write(target: Path, content: bytes) -> None:
    # Not one of tempfile's, whose mode lets nobody else read; "x" takes no file that is there.
    temporary = target.with_name(f".tinybn-{os.urandom(8).hex()}")
    file = open(temporary, "xb")
    try:
        with file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _flatten(value: Any, name: str, arrays: dict[str, np.ndarray]) -> Any:
    """Put the tensors in ``value`` into ``arrays`` and return the rest as JSON can hold it."""
    if isinstance(value, (Tensor, np.ndarray)):
        array = value.detach().to(CPU).data if isinstance(value, Tensor) else value
        if array.dtype not in _NAMES:
            raise ArgumentError(f"{name} has dtype {array.dtype}; a checkpoint cannot hold it")
        if name in arrays:
            raise ArgumentError(f"two tensors are named {name} once dictionaries are flattened")
        if name == _METADATA:
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
