"""read_idx: what is written comes back, and nothing else than DataError goes wrong."""

from __future__ import annotations

import gzip
import struct
import tracemalloc

import hypothesis.extra.numpy as hnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tinybn.data import read_idx
from tinybn.errors import DataError, TinyBNError

dtypes = st.sampled_from(["u1", "i1", "i2", "i4", "f4", "f8"]).map(np.dtype)
arrays = dtypes.flatmap(
    lambda dtype: hnp.arrays(
        dtype, hnp.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=5)
    )
)
SAMPLE = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("idx") / "sample"


def header(*shape: int, code: int = 0x08, zeros: bytes = b"\0\0") -> bytes:
    return zeros + bytes([code, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)


@given(array=arrays, compress=st.booleans())
def test_round_trip(path, idx_bytes, array, compress):
    data = idx_bytes(array)
    path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
    result = read_idx(path)
    assert result.dtype == array.dtype and result.dtype.isnative and result.shape == array.shape
    np.testing.assert_array_equal(result, array)
    assert result.flags.c_contiguous and result.flags.writeable and result.flags.owndata


def test_documented_bytes(path):
    """The example of the format's description, byte by byte: int32 [[1, -2], [3, 256]]."""
    path.write_bytes(
        bytes.fromhex("00000c02 00000002 00000002 00000001 fffffffe 00000003 00000100")
    )
    np.testing.assert_array_equal(read_idx(str(path)), np.array([[1, -2], [3, 256]], np.int32))


@pytest.mark.parametrize("compress", [False, True])
def test_truncation_at_every_byte(path, idx_bytes, compress):
    data = idx_bytes(SAMPLE)
    data = gzip.compress(data, mtime=0) if compress else data
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(DataError):
            read_idx(path)


@given(
    array=arrays, compress=st.booleans(), where=st.floats(0, 1, exclude_max=True), change=st.data()
)
def test_corruption_of_any_byte(path, idx_bytes, array, compress, where, change):
    """One changed byte is a DataError, or the file still is a whole IDX file."""
    good = idx_bytes(array)
    data = bytearray(gzip.compress(good, mtime=0) if compress else good)
    data[int(where * len(data))] ^= change.draw(st.integers(1, 255))
    path.write_bytes(data)
    try:
        result = read_idx(path)
    except DataError:
        return
    if compress:  # its checksum covers the content; the gzip header's date, say, is free
        np.testing.assert_array_equal(result, array)
    else:
        assert 4 + 4 * result.ndim + result.nbytes == len(data)


@given(data=st.binary(max_size=64), zeros=st.booleans(), compress=st.booleans())
def test_any_bytes(path, data, zeros, compress):
    data = b"\0\0" + data if zeros else data
    path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
    try:
        assert read_idx(path).nbytes <= len(data)
    except DataError:
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "truncated"),
        (b"\0\0\x08", "truncated"),
        (header(3, zeros=b"\0\1") + b"abc", "not an IDX file"),
        (b"PK\x03\x04" + bytes(40), "not an IDX file"),
        (header(3, code=0x0A) + b"abc", "unknown IDX data type 0a"),
        (header() + b"a", "0 axes"),
        (header(*[1] * 33) + b"a", "33 axes"),
        (header(3)[:-1], "ends within the sizes"),
        (header(3) + b"ab", "truncated"),
        (header(3) + b"abcd", "too long"),
        (header(3), "truncated"),
        (header(0) + b"a", "too long"),
        (header(2**32 - 1, 2**32 - 1), "more than 1073741824 bytes"),
        (header(0, 2**32 - 1, 2**32 - 1), "more than 1073741824 bytes"),
    ],
)
@pytest.mark.parametrize("compress", [False, True])
def test_faults_are_one_sentence(path, data, message, compress):
    path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
    with pytest.raises(DataError, match=message) as caught:
        read_idx(path)
    text = str(caught.value)
    assert text.startswith(str(path)) and "\n" not in text
    assert isinstance(caught.value, ValueError) and isinstance(caught.value, TinyBNError)


@pytest.mark.parametrize("tail", [b"a", gzip.compress(b"a", mtime=0)], ids=["byte", "member"])
def test_gzip_file_with_more_behind(path, idx_bytes, tail):
    path.write_bytes(gzip.compress(idx_bytes(SAMPLE), mtime=0) + tail)
    with pytest.raises(DataError):
        read_idx(path)


def test_gzip_file_of_two_members(path, idx_bytes):
    data = idx_bytes(SAMPLE)
    path.write_bytes(gzip.compress(data[:9], mtime=0) + gzip.compress(data[9:], mtime=0))
    np.testing.assert_array_equal(read_idx(path), SAMPLE)


def test_max_bytes(path, idx_bytes):
    path.write_bytes(idx_bytes(SAMPLE))
    assert read_idx(path, max_bytes=24).nbytes == 24
    with pytest.raises(DataError, match="more than 23 bytes"):
        read_idx(path, max_bytes=23)


def peak_of_failure(path) -> int:
    """The most memory in use, in bytes, while read_idx refuses the file."""
    tracemalloc.start()
    try:
        with pytest.raises(DataError):
            read_idx(path)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_bomb_is_not_decompressed(path):
    """64 MiB of zeros behind a header that declares 784 bytes."""
    path.write_bytes(gzip.compress(header(1, 28, 28) + bytes(64 << 20), 9, mtime=0))
    assert peak_of_failure(path) < 2 << 20


@pytest.mark.parametrize("compress", [False, True])
def test_declared_size_is_not_allocated(path, compress):
    """A gigabyte declared in a file of a few bytes."""
    data = header(1 << 30) + b"abc"
    path.write_bytes(gzip.compress(data, mtime=0) if compress else data)
    assert peak_of_failure(path) < 2 << 20


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_idx(tmp_path / "absent")
