"""The cross-entropy kernels against float64 mathematics."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import CUDA, all_engines, kernel_engines
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.testing import FLOAT_DTYPES, SIZES, assert_close, epsilon

FORWARD = ("loss", "weight", "row_max", "log_sum")


@st.composite
def cases(draw, dtypes=FLOAT_DTYPES):
    rows, classes = draw(st.sampled_from(SIZES[:14])), draw(st.sampled_from(SIZES))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    dtype = draw(st.sampled_from(dtypes))
    size = draw(st.sampled_from([1.0, 30.0, 1e-3]))
    logits = (rng.standard_normal((rows, classes)) * size).astype(dtype)
    ignored = draw(st.sampled_from([-100, 0, 255]))
    target = rng.integers(0, classes, rows)
    target[rng.random(rows) < 0.2] = ignored
    weight = rng.random(classes).astype(accumulation_dtype(dtype)) if draw(st.booleans()) else None
    grad = rng.standard_normal(1 if draw(st.booleans()) else rows)
    options = {"ignore_index": ignored, "label_smoothing": draw(st.sampled_from([0.0, 0.1, 1.0]))}
    index = draw(st.sampled_from([np.int64, np.int32]))
    return logits, target.astype(index), weight, grad.astype(accumulation_dtype(dtype)), options


def run_both(logits, target, weight, grad, **options):
    found = kernels.cross_entropy_forward(logits, target, weight, **options)
    dlogits = kernels.cross_entropy_backward(grad, logits, target, weight, found, **options)
    return found.loss, found.weight, dlogits


def exact(logits, target, weight, ignore_index, label_smoothing):
    z = logits.astype(np.longdouble)
    rows, classes = z.shape
    w = np.ones(classes) if weight is None else weight.astype(np.longdouble)
    kept = target != ignore_index
    hot = np.zeros_like(z)
    hot[np.arange(rows)[kept], target[kept]] = 1
    # The target as a distribution times the weights: the textbook's soft labels.
    soft = ((1 - label_smoothing) * hot + label_smoothing / classes) * w * kept[:, None]
    log_p = z - z.max(1, keepdims=True)
    log_p = log_p - np.log(np.exp(log_p).sum(1, keepdims=True))
    loss = -(soft * log_p).sum(1)
    dlogits = np.exp(log_p) * soft.sum(1, keepdims=True) - soft
    return log_p, soft, loss, (hot * w).sum(1), dlogits


@kernel_engines
@settings(max_examples=30)
@given(case=cases())
def test_forward_and_backward(engine, case):
    logits, target, weight, grad, options = case
    loss, row_weight, dlogits = engine.run(run_both, logits, target, weight, grad, **options)
    log_p, soft, want_loss, want_weight, want_dlogits = exact(logits, target, weight, **options)
    # log p is a difference of numbers of the size of the logits' range.
    terms = logits.shape[1] + 16
    spread = (logits.astype(float).max(1) - logits.astype(float).min(1))[:, None]
    scale = (soft * (np.abs(log_p) + spread + 1)).sum(1)
    assert_close(loss, want_loss, terms=terms, scale=scale.astype(float), name="loss")
    assert_close(row_weight, want_weight, name="weight")
    wide_grad = grad.astype(float).reshape(-1, 1)
    scale = np.abs(wide_grad) * (soft.sum(1, keepdims=True) * np.exp(log_p) * (1 + spread) + soft)
    assert_close(
        dlogits, wide_grad * want_dlogits, terms=terms, scale=scale.astype(float), name="dlogits"
    )


@all_engines
def test_classes_do_not_fit_one_block(engine):
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((3, 2500)).astype(np.float32)
    target = np.array([0, 2499, 1024])
    loss, _, dlogits = engine.run(
        run_both, logits, target, None, np.ones(3, np.float32), label_smoothing=0.1
    )
    _, _, want, _, want_dlogits = exact(logits, target, None, -100, 0.1)
    assert_close(loss, want, terms=2516)
    assert_close(dlogits, want_dlogits, terms=2516)


@all_engines
def test_hard_rows(engine):
    inf, nan = np.inf, np.nan
    logits = np.array(
        [[-inf, 0, 1], [0, -inf, -inf], [-1e10, -1e10, -1e10], [nan, 0, 1], [-inf, -inf, -inf]],
        np.float32,
    )
    target = np.array([2, 1, 0, 1, 0])
    loss, _, dlogits = engine.run(run_both, logits, target, None, np.ones(1, np.float32))
    np.testing.assert_allclose(loss[[0, 2]], [np.log(1 + np.exp(-1)), np.log(3)], rtol=1e-6)
    assert loss[1] == np.inf and np.isnan(loss[[3, 4]]).all()
    np.testing.assert_allclose(dlogits[2], [1 / 3 - 1, 1 / 3, 1 / 3], rtol=1e-6)
    np.testing.assert_allclose(dlogits[1], [1, -1, 0], atol=1e-7)


@all_engines
@pytest.mark.parametrize("bad", [-1, -4, 4, 1000])
def test_a_target_that_is_no_class_raises(engine, bad):
    logits = np.zeros((3, 4), np.float32)
    with pytest.raises(IndexOutOfRange, match=f"class {bad}; wanted 0 to 3"):
        engine.run(run_both, logits, np.array([0, bad, 1]), None, np.ones(1, np.float32))


Z, T = np.zeros((3, 4), np.float32), np.array([0, 1, 2])


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((Z.astype(int), T), {}, DTypeError),
        ((Z, T.astype(float)), {}, DTypeError),
        ((Z, T[:2]), {}, ShapeError),
        ((Z[:, :0], T), {}, ShapeError),
        ((Z, T, np.ones(3, np.float32)), {}, ShapeError),
        ((Z, T), {"label_smoothing": 1.5}, ArgumentError),
    ],
)
def test_bad_arguments(arguments, options, error):
    with pytest.raises(error):
        kernels.cross_entropy_forward(*arguments, **options)


@all_engines
@pytest.mark.parametrize("rows", [0, 1, 33, 1500])
@pytest.mark.parametrize("dtype", FLOAT_DTYPES)
def test_the_mean_is_that_of_the_rows_by_their_weights(engine, rows, dtype):
    rng = np.random.default_rng(0)
    logits, target = rng.standard_normal((rows, 5)).astype(dtype), rng.integers(0, 5, rows)
    target[::3] = -100
    weight = rng.random(5).astype(accumulation_dtype(dtype))

    def run(*arrays):
        # Twice: what counted the programs in is as it was.
        found = [kernels.cross_entropy_forward(*arrays, mean=True) for _ in range(2)]
        return tuple(array for f in found for array in (f.mean, f.divisor))

    means = engine.run(run, logits, target, weight)
    _, _, loss, kept, _ = exact(logits, target, weight, -100, 0.0)
    total = kept.sum()
    # Sums of up to ``rows`` terms in the accumulation dtype, each a logarithm of a sum of 5
    # exponentials less a logit: some 16 roundings; the mean's own rounding.
    wide = epsilon(accumulation_dtype(dtype))
    for mean, divisor in (means[:2], means[2:]):
        assert abs(divisor.astype(np.longdouble) - total) <= rows * wide * total
        if total:
            want, size = loss.sum() / total, abs(loss).sum() / total
            bound = ((2 * rows + 16) * wide + epsilon(dtype)) * size
            assert abs(mean.astype(np.longdouble) - want) <= bound
        else:
            assert np.isnan(mean)
    assert means[0].dtype == dtype and means[0].shape == ()
    assert means[0].tobytes() == means[2].tobytes()


@pytest.mark.parametrize(
    ("divisor", "error"),
    [(np.ones((), np.float64), DTypeError), (np.ones(3, np.float32), ShapeError)],
)
def test_a_divisor_that_does_not_fit(divisor, error):
    found = kernels.cross_entropy_forward(Z, T)
    with pytest.raises(error, match="divisor"):
        kernels.cross_entropy_backward(np.ones(1, np.float32), Z, T, None, found, divisor)


@pytest.mark.gpu
def test_many_rows_on_the_gpu():
    rng = np.random.default_rng(0)
    logits = rng.standard_normal((70001, 10)).astype(np.float32)
    target = rng.integers(0, 10, 70001)
    loss, _, dlogits = CUDA.run(run_both, logits, target, None, np.ones(1, np.float32))
    _, _, want, _, want_dlogits = exact(logits, target, None, -100, 0.0)
    assert_close(loss, want, terms=26)
    assert_close(dlogits, want_dlogits, terms=26)
