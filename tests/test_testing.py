"""``tinybn.testing`` itself: it draws what it says, and it finds planted faults."""

from __future__ import annotations

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

import tinybn as tb
from tinybn import testing
from tinybn.tensor.tape import Op, apply


@hypothesis.given(testing.arrays(values=testing.VALUES + testing.NON_FINITE))
def test_arrays_are_floating_and_small(x):
    assert x.dtype in testing.FLOAT_DTYPES and 1 <= x.ndim <= 4 and x.size <= 4096


@pytest.mark.parametrize("layout", testing.LAYOUTS)
def test_layouts_hold_the_same_values(layout):
    x = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    y = testing.lay_out(x, layout)
    np.testing.assert_array_equal(x, y)
    assert (y.strides == x.strides) == (layout == "contiguous")


@hypothesis.given(testing.batch_norm_cases())
def test_batch_norm_cases_have_two_values_a_channel(case):
    assert case.rows >= 2 and case.dy.shape == case.x.shape
    assert case.running_mean.shape == (case.x.shape[1],) and (case.running_var > 0).all()


def test_a_right_kernel_passes():
    testing.assert_matches_reference(
        lambda x: x * 2, lambda x: x * 2, testing.arrays(dtype=[np.float32]), terms=1
    )
    testing.assert_matches_reference(
        lambda x, y: (x.sum(dtype=np.float32), y),
        lambda x, y: (x.sum(), y),
        st.tuples(
            testing.arrays((33, 5), np.float32, values=["normal"]),
            testing.arrays(dtype=[np.float64]),
        ),
    )


def test_a_fault_at_the_tile_s_edge_is_found_and_shrunk():
    def kernel(x):  # forgets the last element where a tile of 16 is not full
        y = x * 2
        if x.size % 16:
            y.reshape(-1)[-1] = 0
        return y

    cases = testing.arrays(dtype=[np.float32], layout=["contiguous"], values=["constant"])
    with pytest.raises(AssertionError) as caught:
        testing.assert_matches_reference(kernel, lambda x: x * 2, cases)
    text = str(caught.value)
    assert "float32[1]" in text and "first at (0,)" in text and "got 0.0, wanted 200.1" in text


@pytest.mark.parametrize(
    ("kernel", "words"),
    [
        (lambda x: None, "returned nothing; wanted 2 results"),
        (lambda x: x, "returned one result; wanted 2 results"),
        (lambda x: (x,), "returned 1 results; wanted 2 results"),
    ],
)
def test_missing_results_are_no_pass(kernel, words):
    with pytest.raises(AssertionError, match=words):
        testing.assert_matches_reference(kernel, lambda x: (x, x), testing.arrays())


@pytest.mark.parametrize(
    ("got", "want"),
    [
        ([1.0, np.nan], [1.0, 2.0]),
        ([1.0, 2.0], [1.0, np.nan]),
        ([1.0, np.inf], [1.0, -np.inf]),
        ([1.0, 2.0], [1.0, 2.001]),
        ([[1.0]], [1.0]),
    ],
)
def test_assert_close_is_not_fooled(got, want):
    with pytest.raises(AssertionError):
        testing.assert_close(np.array(got, np.float32), np.array(want))


def test_assert_close_allows_one_rounding():
    x = np.random.default_rng(0).standard_normal(1000)
    for dtype in testing.FLOAT_DTYPES:
        testing.assert_close(x.astype(dtype), x)


class HalfGradient(Op):
    """A cube whose gradient is wrong by a factor of two."""

    @staticmethod
    def forward(ctx, x):
        ctx.save(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved
        return (grad * 1.5 * x**2,)


def test_check_gradients_finds_a_wrong_one():
    testing.check_gradients(lambda x: x * x * x, [np.array([1.0, 2.0])])
    with pytest.raises(AssertionError):
        testing.check_gradients(lambda x: apply(HalfGradient, x), [np.array([1.0, 2.0])])


def test_check_gradients_takes_tensors():
    x = tb.Tensor([1.0, 2.0], dtype=tb.float64, requires_grad=True)
    testing.check_gradients(tb.exp, [x])
