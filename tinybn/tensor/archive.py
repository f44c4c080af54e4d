"""Arrays by name in a file of the safetensors format, with text beside them: never code."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping

import numpy as np

from ..errors import ArgumentError, DataError
from .dtypes import bfloat16, bool_, float16, float32, float64, int32, int64

NAMES = {
    float64: "F64", float32: "F32", float16: "F16", bfloat16: "BF16", int64: "I64", int32: "I32",
    bool_: "BOOL",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}
METADATA = "__metadata__"  # the format's name for it, which no tensor may have


def write(
    path: str | os.PathLike, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]
) -> None:
    """Write a safetensors file.

    It appears whole or not at all: it is written beside ``path``, synced and renamed.

    Args:
        arrays: of dtypes in :data:`NAMES`, C-contiguous.
        metadata: any text by name.

    Raises:
        ArgumentError: for what the format cannot hold, or a folder that cannot be written.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save

    check_writable(path)
    try:
        content = save(dict(arrays), dict(metadata))
    except (ValueError, SafetensorError) as error:  # half a surrogate
        raise ArgumentError(f"{path} cannot hold this: {error}") from error
    _write(os.path.realpath(path), content)  # through a link


def read(path: str | os.PathLike) -> tuple[dict[str, np.ndarray], dict[str, str]]:
    """Read a safetensors file: the arrays, each in memory of its own, and the metadata.

    Raises:
        FileNotFoundError: if there is no such file.
        DataError: for a file that is damaged, no safetensors, or of a dtype that
            tinybn lacks.
    """
    from safetensors import SafetensorError, deserialize

    with open(path, "rb") as file:  # not Path's method: importing that takes longer
        raw = file.read()
    try:
        entries = deserialize(raw)
        length = int.from_bytes(raw[:8], "little")
        metadata = json.loads(raw[8 : 8 + length]).get(METADATA) or {}
    except (SafetensorError, ValueError) as error:
        raise DataError(f"{path} is not a whole safetensors file: {error}") from error
    arrays = {}
    for name, entry in entries:
        if entry["dtype"] not in DTYPES:
            raise DataError(
                f"{path} holds {name} of dtype {entry['dtype']}; wanted one of {', '.join(DTYPES)}"
            )
        try:
            array = np.frombuffer(entry["data"], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        except (ValueError, OverflowError) as error:  # more axes than NumPy has, or 0 × 2**63
            raise DataError(f"{path} holds {name} of shape {entry['shape']}: {error}") from error
        arrays[name] = array if array.flags.writeable else array.copy()
    return arrays, metadata


def check_writable(path: str | os.PathLike) -> None:
    """Raise ArgumentError unless a file can be written at ``path``; writes nothing."""
    folder = os.path.dirname(os.path.realpath(path))
    if not os.path.isdir(folder):
        raise ArgumentError(f"{path} cannot be written: there is no folder {folder}")
    if os.path.exists(path) and not os.path.isfile(
        path
    ):  # renaming would replace a device or a pipe
        kind = "folder" if os.path.isdir(path) else "device"
        raise ArgumentError(f"{path} cannot be written: it is a {kind}; wanted a file's name")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise ArgumentError(f"{path} cannot be written: the folder {folder} is read-only")


def _write(target: str, content: bytes) -> None:
    # Not one of tempfile's, whose mode lets nobody else read; "x" takes no file that is there.
    temporary = os.path.join(os.path.dirname(target), f".tinybn-{os.urandom(8).hex()}")
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
