"""Small IDX files for the tests of tinybn.data."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)


def encode(array: np.ndarray) -> bytes:
    """The IDX file of an array, written from the format's description alone."""
    code = CODES[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim])
    header += b"".join(int(size).to_bytes(4, "big") for size in array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def fill(folder: Path, train: int = 40, test: int = 20, compress: bool = True) -> dict[str, bytes]:
    """Write a small random data set in MNIST's layout; return the files' bytes by name."""
    rng = np.random.default_rng(1)
    folder.mkdir(parents=True, exist_ok=True)
    files = {}
    for (images, labels), n in ((NAMES[:2], train), (NAMES[2:], test)):
        files[images] = encode(rng.integers(0, 256, (n, 28, 28), dtype=np.uint8))
        files[labels] = encode((np.arange(n) % 10).astype(np.uint8))
    if compress:
        files = {f"{name}.gz": gzip.compress(data, mtime=0) for name, data in files.items()}
    for name, data in files.items():
        (folder / name).write_bytes(data)
    return files


@pytest.fixture(scope="session")
def idx_bytes() -> Callable[[np.ndarray], bytes]:
    return encode


@pytest.fixture(scope="session")
def fill_folder() -> Callable[..., dict[str, bytes]]:
    return fill
