"""The IDX file format: one array a file, as MNIST is distributed.

============  ==========================================================
bytes         what they hold
============  ==========================================================
0, 1          zero
2             the data type, a code of :data:`DTYPES`
3             the number of axes, d
4 … 4d + 3    the size of each axis, big-endian unsigned 32-bit integers
the rest      the elements, big-endian, last axis fastest
============  ==========================================================

Source: http://yann.lecun.com/exdb/mnist, "The IDX file format".
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import numpy as np

from ..errors import DataError

DTYPES: dict[int, np.dtype] = {
    0x08: np.dtype("u1"),
    0x09: np.dtype("i1"),
    0x0B: np.dtype(">i2"),
    0x0C: np.dtype(">i4"),
    0x0D: np.dtype(">f4"),
    0x0E: np.dtype(">f8"),
}
GZIP_MAGIC = b"\x1f\x8b"
# A deflate stream spends at least two bits on a copy of at most 258 bytes, so
# no gzip file holds more than 1032 times its own size.
DEFLATE_MAX_RATIO = 1032
MAX_AXES = 32  # what every NumPy takes


def read_idx(path: str | os.PathLike[str], *, max_bytes: int = 1 << 30) -> np.ndarray:
    """Read one array from an IDX file, plain or gzip-compressed.

    Which of the two it is shows in the file's first bytes, not in its name. The
    header is checked before anything is read after it, and never more than the
    size that it declares (plus one byte, to notice a file that is too long) is
    read or decompressed.

    Args:
        path: the file.
        max_bytes: the largest array accepted, in bytes.

    Returns:
        A new C-contiguous array of the shape and dtype that the file declares
        (uint8, int8, int16, int32, float32 or float64), in native byte order.

    Raises:
        DataError: (a ValueError) for a wrong magic number, an unknown dtype, a
            truncated or an overlong file, a damaged gzip stream, or a declared
            size above ``max_bytes``.
        OSError: if the file cannot be opened or read.
    """
    path = Path(path)
    with open(path, "rb") as file:
        is_gzip = file.read(2) == GZIP_MAGIC
        file.seek(0)
        size_on_disk = os.fstat(file.fileno()).st_size
        stream = cast(BinaryIO, gzip.GzipFile(fileobj=file)) if is_gzip else file
        try:
            dtype, shape = _read_header(stream, path)
            size = _payload_bytes(dtype, shape, path, max_bytes)
            if size > size_on_disk * (DEFLATE_MAX_RATIO if is_gzip else 1):
                raise DataError(f"{path} is truncated: it is too short for {size} bytes of data")
            payload = stream.read(size + 1)
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise DataError(f"{path} is a truncated or damaged gzip file ({error})") from error
    if len(payload) < size:
        raise DataError(
            f"{path} is truncated: its header wants {size} bytes of data, it holds {len(payload)}"
        )
    if len(payload) > size:
        raise DataError(f"{path} is too long: its header wants {size} bytes of data, more follow")
    return np.frombuffer(payload, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read_header(stream: BinaryIO, path: Path) -> tuple[np.dtype, tuple[int, ...]]:
    """Read and check the magic number and the shape."""
    magic = stream.read(4)
    if len(magic) < 4:
        raise DataError(f"{path} is truncated: an IDX file begins with 4 bytes, not {len(magic)}")
    if magic[:2] != b"\0\0":
        raise DataError(f"{path} is not an IDX file: it begins with {magic.hex()}, wanted 0000")
    if magic[2] not in DTYPES:
        known = ", ".join(f"{code:02x}" for code in DTYPES)
        raise DataError(f"{path} has the unknown IDX data type {magic[2]:02x}; wanted {known}")
    axes = magic[3]
    if not 1 <= axes <= MAX_AXES:
        raise DataError(f"{path} declares {axes} axes; wanted 1 to {MAX_AXES}")
    sizes = stream.read(4 * axes)
    if len(sizes) < 4 * axes:
        raise DataError(f"{path} is truncated: it ends within the sizes of its {axes} axes")
    return DTYPES[magic[2]], struct.unpack(f">{axes}I", sizes)


def _payload_bytes(dtype: np.dtype, shape: tuple[int, ...], path: Path, max_bytes: int) -> int:
    """Return the number of bytes after the header, if it is one to be believed."""
    # Axes of size 0 are left out of the bound: NumPy refuses (0, 2**32 - 1, 2**32 - 1) too.
    if dtype.itemsize * math.prod(size for size in shape if size) > max_bytes:
        raise DataError(
            f"{path} declares the shape {shape} of {dtype.name}, more than {max_bytes} bytes"
        )
    return dtype.itemsize * math.prod(shape)
