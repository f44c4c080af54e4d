"""What the tables of cases are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tinybn as tb

# float32 results of a few dozen terms; gradients, which divide by a standard deviation, have 1e-4.
CLOSE = dict(rtol=1e-5, atol=1e-5)
CLOSE_GRADIENT = dict(rtol=1e-4, atol=1e-5)


def case(name: str, reports: str, *values: Any) -> Any:
    """A row of a table: the case's id, the public reports behind it, and its values."""
    return pytest.param(*values, id=name, marks=pytest.mark.case(reports))


def F(shape: tuple[int, ...], a: int, b: int, m: int, d: float = 1, c: float = 0) -> np.ndarray:
    """The float32 array whose flat element i is ((a·i + b) mod m)/d + c."""
    i = np.arange(int(np.prod(shape)), dtype=np.int64)
    return (((a * i + b) % m) / d + c).astype(np.float32).reshape(shape)


X1 = F((2, 3, 2, 5), 7, 3, 16, 4, -1.5)
G1 = F((2, 3, 2, 5), 5, 1, 8, 4, -1)


def array(tensor: Any) -> np.ndarray:
    """The values of a Tensor, or of a NumPy or CuPy array, on the host."""
    return tb.as_tensor(tensor).detach().numpy()


def assert_close(got: Any, want: Any, rtol: float = 1e-5, atol: float = 1e-5) -> None:
    """Of the same shape, and as close as float32 results are."""
    got = array(got)
    assert got.shape == np.shape(want)
    np.testing.assert_allclose(got.astype(np.float64), want, rtol=rtol, atol=atol)


def assert_same(got: Any, want: Any) -> None:
    """Of the same shape and values, bit for bit but for the sign of 0."""
    got = array(got)
    assert got.shape == np.shape(want)
    np.testing.assert_array_equal(got, want)


def assert_golden(worked_out: Any, golden: Any) -> None:
    """Our float64 mathematics against numbers of 12 digits from elsewhere, the first ones of all.

    Inputs such as 1e-4 are rounded to float32, by 6e-8 of them.
    """
    golden = np.asarray(golden, np.float64).reshape(-1)
    first = np.asarray(worked_out, np.float64).reshape(-1)[: golden.size]
    np.testing.assert_allclose(first, golden, rtol=1e-6, atol=1e-9)
