"""NumPy, CuPy, DLPack and the other ways in and out."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import tinybn as tb
from tests.tensor.tensor_cases import DTYPES, LAYOUTS, laid_out, normal
from tinybn.errors import DTypeError, TapeError

EXPORTED = [d for d in DTYPES if d != tb.bfloat16]


class Exporter:
    """An object that is no array but speaks DLPack, as another library's tensor does."""

    def __init__(self, array, device=(1, 0)):
        self.array, self.device = array, device

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


@given(
    data=st.data(),
    dtype=st.sampled_from(EXPORTED),
    layout=st.sampled_from(LAYOUTS),
    wrapped=st.booleans(),
)
def test_dlpack_shares_memory_both_ways(data, dtype, layout, wrapped):
    shape = data.draw(hnp.array_shapes(min_dims=1, max_dims=3, max_side=4))
    array = laid_out(normal(shape, 0, dtype), layout)
    x = tb.from_dlpack(Exporter(array) if wrapped else array)
    assert x.dtype == dtype and np.shares_memory(x.data, array)
    np.testing.assert_array_equal(x.data, array)
    if array.flags.writeable:
        back = np.from_dlpack(x)
        assert np.shares_memory(back, array) == (min(array.strides) >= 0)  # else a copy
        np.testing.assert_array_equal(back, array)


def test_read_only_memory_stays_read_only():
    array = np.arange(3.0)
    array.flags.writeable = False
    for source in (array, Exporter(array)):
        x = tb.from_dlpack(source)
        assert not x.data.flags.writeable
        assert (x * 2).tolist() == [0, 2, 4]


def test_dlpack_of_empty_and_zero_dimensional():
    assert tb.from_dlpack(np.zeros((0, 3))).shape == (0, 3)
    assert tb.from_dlpack(Exporter(np.zeros((0, 3)))).shape == (0, 3)
    assert np.from_dlpack(tb.zeros(2, 0)).shape == (2, 0)
    assert tb.from_dlpack(Exporter(np.array(1.5))).item() == 1.5


def test_dlpack_of_a_tensor_shares_its_version():
    x = tb.ones(2)
    y = tb.from_dlpack(x)
    assert y.data is x.data and y._version is x._version


def test_bfloat16_goes_directly_in_and_not_out():
    array = np.ones(2, ml_dtypes.bfloat16)
    assert tb.from_dlpack(array).data is array
    with pytest.raises(DTypeError, match="bfloat16"):
        tb.ones(2, dtype=tb.bfloat16).__dlpack__()


def test_dlpack_refuses():
    with pytest.raises(DTypeError, match="uint8"):
        tb.from_dlpack(np.zeros(2, np.uint8))
    with pytest.raises(DTypeError, match="uint8"):
        tb.from_dlpack(Exporter(np.zeros(2, np.uint8)))
    with pytest.raises(DTypeError, match="list"):
        tb.from_dlpack([1.0])
    with pytest.raises(DTypeError, match="DLPack device 7"):
        tb.from_dlpack(Exporter(np.zeros(2), device=(7, 0)))
    with pytest.raises(TapeError, match="detach"):
        np.from_dlpack(tb.ones(2, requires_grad=True))


def test_dlpack_device_and_stream():
    x = tb.ones(2)
    assert tuple(x.__dlpack_device__()) == (1, 0)
    assert x.__dlpack__(stream=None) is not None
    assert x.__dlpack__(stream=1) is not None  # nothing to wait for on the CPU


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_numpy_conversion(dtype):
    x = tb.ones(2, dtype=dtype)
    array = np.asarray(x)
    assert array.dtype == dtype and array is x.data
    assert not np.shares_memory(np.array(x), x.data)
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert np.array(x, dtype=dtype, copy=False) is x.data
    if dtype != tb.float64:
        with pytest.raises(ValueError):
            np.array(x, dtype=np.float64, copy=False)


def test_numpy_functions_take_tensors():
    x = tb.tensor([1.0, 2.0])
    np.testing.assert_allclose(x, [1, 2])
    assert np.sum(np.asarray(x)) == 3
    array = np.zeros(2)
    array[:] = x
    assert array.tolist() == [1, 2]
    with pytest.raises(TypeError):
        np.exp(x)  # a ufunc would lose the tape; tb.exp is meant


def test_a_cpu_tensor_has_no_cuda_array_interface():
    assert not hasattr(tb.ones(2), "__cuda_array_interface__")


def test_torch_shares_memory_where_it_is_installed():
    torch = pytest.importorskip("torch")
    t = torch.arange(3.0)
    x = tb.from_dlpack(t)
    x[0] = 5
    assert t.tolist() == [5, 1, 2]
    assert torch.from_dlpack(x).tolist() == [5, 1, 2]
