"""gradcheck finds wrong gradients, names them, and leaves its inputs alone."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tensor.tensor_cases import leaf, normal, plain
from tinybn.errors import ArgumentError, DTypeError
from tinybn.tensor.gradcheck import gradcheck
from tinybn.tensor.ops.softmax import softmax
from tinybn.tensor.tape import Op, apply


class HalfWrong(Op):
    """y = x², whose gradient is wrong in the last element alone."""

    @staticmethod
    def forward(ctx, x):
        ctx.save(x)
        return x * x

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved
        dx = 2 * x * grad
        dx.flat[-1] += 0.1
        return (dx,)


class Ones(Op):
    """Softmax with the gradient 0: right for an upstream gradient of ones, and only then."""

    @staticmethod
    def forward(ctx, x):
        powers = np.exp(x)
        return powers / powers.sum()

    @staticmethod
    def backward(ctx, grad):
        return (np.zeros_like(grad),)


def half_wrong(a, x):
    return a + apply(HalfWrong, x)


def test_right_gradients_pass():
    x, y = leaf(normal((3, 4), 0)), leaf(normal((3, 4), 1))
    assert gradcheck(lambda a, b: a * b, [x, y])
    assert gradcheck(lambda a, b: (a * b, [a][0] + b), (x, y))
    assert gradcheck(lambda x: softmax(x, -1), x)
    assert gradcheck(lambda a, n, b: a * n + b, [x, 3, plain(np.ones((3, 4)))])


@pytest.mark.parametrize("shape", ((2, 3), (100,)))
def test_a_wrong_element_is_named(shape):
    with pytest.raises(AssertionError) as error:
        gradcheck(half_wrong, [leaf(normal(shape, 0)), leaf(normal(shape, 1))])
    message = str(error.value)
    assert "half_wrong, argument 1" in message and "the tape gives" in message
    assert ("element (1, 2)" in message) if len(shape) == 2 else ("random direction" in message)


def test_the_upstream_gradient_is_not_ones():
    x = leaf(normal(5, 0))
    with pytest.raises(AssertionError):
        gradcheck(lambda t: apply(Ones, t), x)


def test_a_nan_gradient_fails():
    class Lost(Op):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad):
            return (grad * np.nan,)

    with pytest.raises(AssertionError, match="nan"):
        gradcheck(lambda t: apply(Lost, t), leaf(normal(2, 0)))


def test_a_missing_gradient_fails():
    with pytest.raises(AssertionError, match="the tape gives 0.0"):
        gradcheck(lambda t: t.detach() * 2.0, leaf(normal(2, 0)))


def test_inputs_and_their_gradients_stay_as_they_are():
    x = leaf(normal((2, 3), 0), "transposed")
    x.grad = plain(np.full((2, 3), 7.0))
    before = x.data.copy()
    gradcheck(lambda t: t * t, x)
    assert np.array_equal(x.data, before) and np.all(x.grad.data == 7) and x.requires_grad


def test_what_cannot_be_checked():
    with pytest.raises(DTypeError, match="argument 1 of dtype float32"):
        gradcheck(lambda a, b: a * b, [leaf(np.ones(2)), leaf(np.ones(2, np.float32))])
    with pytest.raises(ArgumentError, match="requires_grad"):
        gradcheck(lambda a: a, plain(np.ones(2)))
    rng = np.random.default_rng(0)
    with pytest.raises(AssertionError, match="two results"):
        gradcheck(lambda a: a * rng.random(), leaf(np.ones(2)))


def test_the_step_and_tolerances_are_used():
    x = leaf(np.full(1, 2.0))
    # ((x + 1)³ − (x − 1)³) / 2 = 3x² + 1 = 13 where the derivative is 12.
    with pytest.raises(AssertionError):
        gradcheck(lambda t: t * t * t, x, eps=1.0)
    assert gradcheck(lambda t: t * t * t, x, eps=1.0, rtol=0.1)
