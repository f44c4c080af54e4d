"""The optimiser kernels: many tensors in one launch, against the formulas in float64."""

from __future__ import annotations

import functools

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import all_engines, kernel_engines
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.testing import FLOAT_DTYPES, SIZES, epsilon


@st.composite
def tensors(draw, roles):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    sizes = draw(st.lists(st.sampled_from((*SIZES, 0, 1023, 1024, 1025)), min_size=1, max_size=5))
    dtypes = draw(st.lists(st.sampled_from(FLOAT_DTYPES), min_size=1, max_size=2))
    lists = [
        [rng.standard_normal(n).astype(dtypes[i % len(dtypes)]) for i, n in enumerate(sizes)]
        for _ in range(roles)
    ]
    return lists


def on(engine, update, lists, **options):
    """Run ``update`` on the engine and return the lists as they are afterwards."""
    moved = [[engine.put(a.copy()) for a in arrays] for arrays in lists]
    with engine.active():
        update(*moved, **options)
    return [[engine.get(a) for a in arrays] for arrays in moved]


def bound(dtype, *parts):
    """A few roundings of the parts in the accumulator, and one in the result's dtype."""
    size = sum(np.abs(p) for p in parts)
    relative = 16 * epsilon(accumulation_dtype(dtype)) + epsilon(dtype)
    return relative * size + float(ml_dtypes.finfo(dtype).smallest_subnormal)


@kernel_engines
@settings(max_examples=25)
@given(
    lists=tensors(3),
    momentum=st.sampled_from([0.0, 0.9]),
    dampening=st.sampled_from([0.0, 0.25]),
    weight_decay=st.sampled_from([0.0, 0.5]),
    nesterov=st.booleans(),
    maximize=st.booleans(),
    first_step=st.booleans(),
)
def test_sgd(engine, lists, momentum, dampening, weight_decay, nesterov, maximize, first_step):
    options = {
        "lr": 0.1, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
        "nesterov": nesterov, "maximize": maximize, "first_step": first_step,
    }  # fmt: skip
    params, _, buffers = on(engine, kernels.sgd_step, lists, **options)
    for p, g, b, got_p, got_b in zip(*lists, params, buffers):
        wide_p, wide_g, wide_b = (a.astype(float) for a in (p, g, b))
        g = (-wide_g if maximize else wide_g) + weight_decay * wide_p
        b = g if first_step else momentum * wide_b + (1 - dampening) * g
        update = g + momentum * b if nesterov else b
        parts = wide_p, 0.1 * wide_g, 0.1 * weight_decay * wide_p, 0.1 * wide_b
        assert (
            np.abs(got_p.astype(float) - (wide_p - 0.1 * update)) <= bound(p.dtype, *parts)
        ).all()
        parts = wide_g, weight_decay * wide_p, wide_b
        assert (np.abs(got_b.astype(float) - b) <= bound(p.dtype, *parts)).all()


@kernel_engines
@settings(max_examples=25)
@given(
    lists=tensors(4),
    step=st.sampled_from([1, 2, 1000]),
    weight_decay=st.sampled_from([0.0, 0.5]),
    decoupled=st.booleans(),
    maximize=st.booleans(),
)
def test_adam(engine, lists, step, weight_decay, decoupled, maximize):
    lists = [*lists[:3], [np.square(v) for v in lists[3]]]
    options = {"weight_decay": weight_decay, "decoupled": decoupled, "maximize": maximize}
    update = functools.partial(kernels.adam_step, step=step, lr=0.01, **options)
    got = on(engine, update, lists)
    for p, g, m, v, got_p, _, got_m, got_v in zip(*lists, *got):
        dtype = p.dtype
        p, g, m, v = (a.astype(float) for a in (p, g, m, v))
        g = -g if maximize else g
        parts_g = np.abs(g) + weight_decay * np.abs(p)
        if decoupled:
            p = p * (1 - 0.01 * weight_decay)
        else:
            g = g + weight_decay * p
        m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
        update = 0.01 / (1 - 0.9**step) * m / (np.sqrt(v / (1 - 0.999**step)) + 1e-8)
        assert (
            np.abs(got_m.astype(float) - m) <= bound(dtype, m, 0.1 * parts_g, m - 0.1 * g)
        ).all()
        assert (np.abs(got_v.astype(float) - v) <= bound(dtype, v, 0.001 * parts_g**2)).all()
        # The quotient magnifies m's rounding, and v's where v is all new.
        root = np.sqrt(v / (1 - 0.999**step)) + 1e-8
        size = 0.01 / (1 - 0.9**step) * (np.abs(m - 0.1 * g) + 0.1 * parts_g) / root
        size = size * (1 + 0.001 * parts_g**2 / np.maximum(v, 1e-30))
        assert (np.abs(got_p.astype(float) - (p - update)) <= bound(dtype, p, size)).all()


@all_engines
def test_one_nonfinite_gradient_spoils_its_element_alone(engine):
    lists = [[np.ones(5, np.float32)], [np.array([0, np.inf, np.nan, 1, 0], np.float32)]]
    (params,), _ = on(engine, lambda p, g: kernels.sgd_step(p, g, None, lr=0.5), lists)
    np.testing.assert_array_equal(params, np.array([1, -np.inf, np.nan, 0.5, 1], np.float32))


@all_engines
def test_a_scalar_parameter(engine):
    lists = [[np.array(1.0, np.float32)] for _ in range(3)]
    (param,), _, (buffer,) = on(
        engine, functools.partial(kernels.sgd_step, lr=0.5, momentum=0.5), lists
    )
    assert param.shape == buffer.shape == () and (param, buffer) == (0.25, 1.5)


@all_engines
def test_parameters_that_are_views_of_one_buffer(engine):
    storage = engine.put(np.ones(10, np.float32))
    views = [storage[1:4], storage[4:9]]
    grads = [engine.put(np.ones(3, np.float32)), engine.put(np.ones(5, np.float32))]
    with engine.active():
        kernels.sgd_step(views, grads, None, lr=1.0)
    np.testing.assert_array_equal(engine.get(storage), [1, 0, 0, 0, 0, 0, 0, 0, 0, 1])


ONE = [np.ones(3, np.float32)]


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: kernels.sgd_step(ONE, [], None, lr=1.0), ShapeError),
        (lambda: kernels.sgd_step(ONE, [np.ones(2, np.float32)], None, lr=1.0), ShapeError),
        (lambda: kernels.sgd_step(ONE, [np.ones(3)], None, lr=1.0), DTypeError),
        (lambda: kernels.sgd_step([np.ones(3, int)], [np.ones(3, int)], None, lr=1.0), DTypeError),
        (lambda: kernels.adam_step(ONE, ONE, ONE, ONE, step=0, lr=1.0), ArgumentError),
        (
            lambda: kernels.sgd_step(
                [np.ones((2, 3), np.float32).T], [np.ones((3, 2), np.float32)], None, lr=1.0
            ),
            ShapeError,
        ),
    ],
)
def test_bad_arguments_change_nothing(call, error):
    with pytest.raises(error):
        call()
    assert (ONE[0] == 1).all()


def test_nothing_to_update():
    kernels.sgd_step([], [], None, lr=1.0)
