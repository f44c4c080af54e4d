"""Initial values: bounds, moments, fans, gains, and the seed that decides them.

How far n draws may be from their distribution: 5 standard errors, so that one
seed in two million would fail, and the seeds are fixed. The mean's standard
error is σ/√n, the variance's σ²·sqrt((κ − 1)/n) with the kurtosis κ = 9/5 of
the uniform and 3 of the normal distribution, and the deviation's relative one
half of that.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, ShapeError
from tinybn.nn import init
from tinybn.testing import FLOAT_DTYPES, epsilon

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def check_moments(values, mean, std, kurtosis, rounding=0.0):
    values = values.astype(np.float64).ravel()
    root = math.sqrt(values.size)
    assert abs(values.mean() - mean) <= 5 * std / root + rounding
    assert abs(values.std() / std - 1) <= 5 * math.sqrt(kurtosis - 1) / 2 / root + rounding


def check_uniform(values, a, b, rounding=0.0):
    n = values.size
    assert a - rounding <= values.min() and values.max() <= b + rounding
    # None of n draws falls into the last share s with probability (1 − s)ⁿ ≈ exp(−n·s).
    assert values.min() < a + 15 / n * (b - a) + rounding
    assert values.max() > b - 15 / n * (b - a) - rounding
    check_moments(values, (a + b) / 2, (b - a) / math.sqrt(12), 9 / 5, rounding)


def check_normal(values, mean, std, rounding=0.0):
    check_moments(values, mean, std, 3, rounding)
    # One and two deviations hold 68.27 % and 95.45 %: a binomial share p has deviation sqrt(pq/n).
    for width, share in ((1, math.erf(1 / math.sqrt(2))), (2, math.erf(2 / math.sqrt(2)))):
        got = (np.abs(values.astype(np.float64) - mean) <= width * std).mean()
        assert abs(got - share) <= 5 * math.sqrt(share * (1 - share) / values.size) + rounding


def test_constants_in_place():
    x = tb.empty(3, 2)
    memory = x.data
    assert init.constant_(x, 2.5) is x and x.data is memory
    np.testing.assert_array_equal(x.numpy(), np.full((3, 2), 2.5))
    np.testing.assert_array_equal(init.ones_(x).numpy(), np.ones((3, 2)))
    np.testing.assert_array_equal(init.zeros_(x).numpy(), np.zeros((3, 2)))


@DEVICES
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_uniform_and_normal(device, dtype):
    tb.manual_seed(1)
    x = tb.empty(100, 40, dtype=dtype, device=device)
    # Each value is below 8 in size, and rounded to the dtype up to twice, by half an ε.
    rounding = 8 * epsilon(dtype)
    assert init.uniform_(x) is x
    check_uniform(x.numpy().astype(np.float64), 0.0, 1.0, rounding)
    init.uniform_(x, -3, 5)
    check_uniform(x.numpy().astype(np.float64), -3.0, 5.0, rounding)
    init.normal_(x)
    check_normal(x.numpy(), 0.0, 1.0, rounding)
    init.normal_(x, 2.0, 0.5)
    check_normal(x.numpy(), 2.0, 0.5, rounding)
    assert (x.dtype, str(x.device)) == (dtype, str(tb.empty(1, device=device).device))


def test_a_range_or_deviation_of_nothing():
    np.testing.assert_array_equal(init.uniform_(tb.empty(9), 2, 2).numpy(), np.full(9, 2.0))
    np.testing.assert_array_equal(init.normal_(tb.empty(9), 2, 0).numpy(), np.full(9, 2.0))


# [out, in, height, width]: fan_in 8·3·5 = 120, fan_out 40·3·5 = 600; [out, in]: the sizes.
FANS = pytest.mark.parametrize(
    ("shape", "fan_in", "fan_out"), [((40, 8, 3, 5), 120, 600), ((50, 96), 96, 50)]
)


@FANS
@pytest.mark.parametrize("gain", [1.0, 5 / 3])
def test_xavier(shape, fan_in, fan_out, gain):
    tb.manual_seed(2)
    x = tb.empty(*shape)
    std = gain * math.sqrt(2 / (fan_in + fan_out))
    assert init.xavier_uniform_(x, gain) is x
    check_uniform(x.numpy(), -math.sqrt(3) * std, math.sqrt(3) * std, epsilon(np.float32))
    assert init.xavier_normal_(x, gain=gain) is x
    check_normal(x.numpy(), 0.0, std, epsilon(np.float32))


@FANS
@pytest.mark.parametrize("mode", ["fan_in", "fan_out"])
@pytest.mark.parametrize(
    ("options", "gain"),
    [
        ({}, math.sqrt(2)),  # a = 0: the leaky ReLU is a ReLU
        ({"a": math.sqrt(5)}, math.sqrt(1 / 3)),
        ({"nonlinearity": "relu"}, math.sqrt(2)),
        ({"nonlinearity": "linear"}, 1.0),
        ({"nonlinearity": "tanh"}, 5 / 3),
    ],
)
def test_kaiming(shape, fan_in, fan_out, mode, options, gain):
    tb.manual_seed(3)
    x = tb.empty(*shape)
    std = gain / math.sqrt(fan_in if mode == "fan_in" else fan_out)
    assert init.kaiming_uniform_(x, mode=mode, **options) is x
    check_uniform(x.numpy(), -math.sqrt(3) * std, math.sqrt(3) * std, epsilon(np.float32))
    assert init.kaiming_normal_(x, mode=mode, **options) is x
    check_normal(x.numpy(), 0.0, std, epsilon(np.float32))


@pytest.mark.parametrize(
    ("arguments", "gain"),
    [(("linear",), 1), (("sigmoid",), 1), (("tanh",), 5 / 3), (("relu",), math.sqrt(2)),
     (("conv1d",), 1), (("conv2d",), 1), (("conv3d",), 1), (("selu",), 3 / 4),
     (("leaky_relu",), math.sqrt(2 / 1.0001)), (("leaky_relu", 0.2), math.sqrt(2 / 1.04)),
     (("leaky_relu", 0), math.sqrt(2)), (("leaky_relu", 1), 1)],
)  # fmt: skip
def test_gains(arguments, gain):
    # The same formula, rounded a few times.
    assert init.calculate_gain(*arguments) == pytest.approx(gain, rel=4 * epsilon(np.float64))


@DEVICES
@pytest.mark.parametrize(
    "fill",
    [init.uniform_, init.normal_, init.xavier_uniform_, init.xavier_normal_, init.kaiming_uniform_,
     init.kaiming_normal_],
)  # fmt: skip
def test_the_seed_decides(device, fill):
    drawn = []
    for seed in (7, 7, 8):
        tb.manual_seed(seed)
        drawn.append([fill(tb.empty(4, 5, device=device)).numpy().copy() for _ in range(2)])
    first, again, other = drawn
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other) and not np.array_equal(*first)


@pytest.mark.parametrize("fill", [init.uniform_, init.kaiming_normal_, init.zeros_])
def test_a_parameter_is_filled_unrecorded_and_counts_a_write(fill):
    weight = nn.Parameter(np.full((2, 3), 9.0, np.float32))
    y = (weight * weight).sum()
    assert fill(weight) is weight
    assert weight.is_leaf and weight.requires_grad and not (weight.detach().numpy() == 9).any()
    with pytest.raises(RuntimeError, match="written in place"):
        y.backward()


def test_filling_a_transposed_view_fills_its_base():
    base = tb.zeros(3, 2)
    init.uniform_(base.detach().T, 1.0, 2.0)
    assert (base.numpy() >= 1).all()


@pytest.mark.parametrize(
    "fill",
    [init.xavier_uniform_, init.xavier_normal_, init.kaiming_uniform_, init.kaiming_normal_],
)
@pytest.mark.parametrize("shape", [(), (3,), (0, 3), (3, 0), (2, 3, 0)])
def test_tensors_without_fans(fill, shape):
    with pytest.raises(ShapeError, match="fan"):
        fill(tb.zeros(*shape))


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: init.uniform_(x, 1.0, 0.0), "a is 1"),
        (lambda x: init.uniform_(x, math.nan, 0.0), "a is nan"),
        (lambda x: init.normal_(x, 0.0, -1.0), "std is -1"),
        (lambda x: init.normal_(x, 0.0, math.nan), "std is nan"),
        (lambda x: init.kaiming_uniform_(x, mode="fan"), "mode is 'fan'"),
        (lambda x: init.kaiming_normal_(x, nonlinearity="swish"), "nonlinearity is 'swish'"),
        (lambda x: init.calculate_gain("gelu"), "nonlinearity is 'gelu'"),
    ],
)
def test_bad_arguments_change_nothing(call, match):
    x = tb.full((2, 2), 3.0)
    with pytest.raises(ArgumentError, match=match):
        call(x)
    np.testing.assert_array_equal(x.numpy(), np.full((2, 2), 3.0))
