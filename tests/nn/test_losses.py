"""The losses against formulas written out in float64."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError
from tinybn.kernels.recording import Recording, under
from tinybn.testing import check_gradients

F = nn.functional
RNG = np.random.default_rng(0)
Z = RNG.standard_normal((5, 4))
T = np.array([0, 3, 1, -100, 2])
W = np.array([0.5, 1.0, 2.0, 0.25])


def log_p(z, axis=1):
    z = z - z.max(axis, keepdims=True)
    return z - np.log(np.exp(z).sum(axis, keepdims=True))


def want_rows(weight, smoothing):
    """Each row's loss and its weight, by the definition with soft labels."""
    w = np.ones(4) if weight is None else weight
    kept = T != -100
    hot = np.eye(4)[np.where(kept, T, 0)]
    soft = ((1 - smoothing) * hot + smoothing / 4) * w
    return np.where(kept, -(soft * log_p(Z)).sum(1), 0), np.where(kept, (hot * w).sum(1), 0)


@pytest.mark.parametrize("weight", [None, W])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_cross_entropy(weight, smoothing, reduction):
    rows, weights = want_rows(weight, smoothing)
    want = {"mean": rows.sum() / weights.sum(), "sum": rows.sum(), "none": rows}[reduction]
    module = nn.CrossEntropyLoss(
        None if weight is None else tb.Tensor(weight),
        reduction=reduction,
        label_smoothing=smoothing,
    )
    got = module(tb.Tensor(Z), tb.Tensor(T))
    np.testing.assert_allclose(got.numpy(), want, rtol=1e-12)
    check_gradients(lambda z: module(z, tb.Tensor(T)), [Z])


def test_cross_entropy_weight_smoothing_and_ignored_together():
    z = tb.Tensor([[1.0, 2.0], [3.0, 0.4]], requires_grad=True)
    loss = F.cross_entropy(z, tb.Tensor([-100, 1]), tb.Tensor([0.2, 0.3]), label_smoothing=0.1)
    loss.backward()
    assert loss.item() == pytest.approx(2.54045061377, rel=1e-6)
    want = [[0, 0], [0.882013886662, -0.882013886662]]
    np.testing.assert_allclose(z.grad.numpy(), want, rtol=1e-5)


def test_cross_entropy_with_every_target_ignored():
    z = tb.Tensor(Z.astype(np.float32), requires_grad=True)
    ignored = tb.Tensor(np.full(5, -100))
    assert F.cross_entropy(z, ignored, reduction="sum").item() == 0
    loss = F.cross_entropy(z, ignored)
    loss.backward()
    assert np.isnan(loss.item())
    np.testing.assert_array_equal(z.grad.numpy(), np.zeros((5, 4)))


def test_an_ignored_class_stays_in_the_denominator():
    z = tb.Tensor([[0.0, 1.0, 1.0], [2.0, 1.0, 0.0]])
    loss = F.cross_entropy(z, tb.Tensor([1, 0]), ignore_index=0)
    assert loss.item() == pytest.approx(0.861994804058, rel=1e-6)


def test_cross_entropy_of_images_and_of_one_sample():
    z = RNG.standard_normal((2, 3, 4, 5))
    t = RNG.integers(0, 3, (2, 4, 5))
    picked = np.take_along_axis(log_p(z), t[:, None], 1)
    np.testing.assert_allclose(F.cross_entropy(tb.Tensor(z), tb.Tensor(t)).item(), -picked.mean())
    check_gradients(lambda x: F.cross_entropy(x, tb.Tensor(t), reduction="none"), [z])
    one = F.cross_entropy(tb.Tensor(Z[0]), tb.Tensor(2))
    np.testing.assert_allclose(one.item(), -log_p(Z)[0, 2])


def test_cross_entropy_with_probabilities():
    q = np.abs(RNG.standard_normal((5, 4)))
    q /= q.sum(1, keepdims=True)
    rows = -((0.9 * q + 0.1 / 4) * W * log_p(Z)).sum(1)
    got = F.cross_entropy(tb.Tensor(Z), tb.Tensor(q), tb.Tensor(W), label_smoothing=0.1)
    np.testing.assert_allclose(got.item(), rows.mean())
    check_gradients(lambda z, q: F.cross_entropy(z, q), [Z, q])


@pytest.mark.parametrize("bad", [-1, -4, 4])
def test_a_target_that_is_no_class(bad):
    for loss in (F.cross_entropy, lambda z, t: F.nll_loss(F.log_softmax(z, 1), t)):
        with pytest.raises(IndexError, match=f"class {bad}"):
            loss(tb.Tensor(Z), tb.Tensor([0, bad, 1, 2, 0]))


@pytest.mark.parametrize("weight", [None, W])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_nll_of_log_softmax_is_cross_entropy(weight, reduction):
    given = None if weight is None else tb.Tensor(weight)
    options = {"reduction": reduction}
    a = F.nll_loss(F.log_softmax(tb.Tensor(Z), 1), tb.Tensor(T), given, **options).numpy()
    b = F.cross_entropy(tb.Tensor(Z), tb.Tensor(T), given, **options).numpy()
    np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-15)
    module = nn.NLLLoss(given, reduction=reduction)
    check_gradients(lambda z: module(z, tb.Tensor(T)), [log_p(Z)])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_mse(reduction):
    other = RNG.standard_normal((5, 4))
    squares = (Z - other) ** 2
    want = {"mean": squares.mean(), "sum": squares.sum(), "none": squares}[reduction]
    module = nn.MSELoss(reduction=reduction)
    np.testing.assert_allclose(module(tb.Tensor(Z), tb.Tensor(other)).numpy(), want)
    check_gradients(module, [Z, other])


@pytest.mark.parametrize("pos_weight", [None, W])
def test_bce_with_logits(pos_weight):
    t = RNG.random((5, 4))
    p = 1 / (1 + np.exp(-Z))
    scale = 1 if pos_weight is None else pos_weight
    want = -(scale * t * np.log(p) + (1 - t) * np.log(1 - p))
    module = nn.BCEWithLogitsLoss(
        pos_weight=None if pos_weight is None else tb.Tensor(pos_weight), reduction="none"
    )
    np.testing.assert_allclose(module(tb.Tensor(Z), tb.Tensor(t)).numpy(), want)
    check_gradients(lambda z: module(z, tb.Tensor(t)), [Z])


def test_bce_does_not_overflow():
    z = tb.Tensor([1000.0, -1000.0], requires_grad=True)
    loss = F.binary_cross_entropy_with_logits(z, tb.Tensor([1.0, 1.0]), reduction="none")
    np.testing.assert_allclose(loss.detach().numpy(), [0, 1000])
    loss.sum().backward()
    np.testing.assert_allclose(z.grad.numpy(), [0, -1])


def test_a_recorded_step_marks_the_loss_of_a_target_that_is_no_class():
    z = tb.Tensor(Z)
    for bad in (-1, 4, 2**40):
        target = T.copy()
        target[1] = bad
        recorded = Recording(capturing=False)
        with under(recorded), pytest.raises(IndexError, match="class"):  # a rehearsal looks
            F.nll_loss(z, tb.Tensor(target))
        recorded.capturing = True  # as on a GPU, where nothing may be read now
        with under(recorded):
            losses = F.nll_loss(z, tb.Tensor(target), reduction="none").numpy()
            hot = F.one_hot(tb.Tensor([1, bad]), 4).numpy()
        assert np.isnan(losses[1])
        kept = [0, 2, 4]
        assert np.array_equal(losses[kept], -Z[kept, T[kept]])
        assert losses[3] == 0
        assert hot.tolist() == [[0, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.gpu
@pytest.mark.parametrize("shape", [(5, 4), (3, 4, 2, 5), (4,)])
def test_nll_loss_in_a_captured_step(shape):
    rng = np.random.default_rng(0)
    weight = tb.Tensor(rng.random(4).astype(np.float32), device="cuda")

    def step(z, target):
        z = z.detach().requires_grad_()
        loss = F.nll_loss(z, target, weight)
        loss.backward()
        return loss.detach(), z.grad

    run = tb.graph.capture(step)
    for _ in range(5):
        z = tb.Tensor(rng.standard_normal(shape).astype(np.float32), device="cuda")
        target = rng.integers(0, 4, shape[:1] + shape[2:] if len(shape) > 1 else ())
        target = tb.Tensor(target, device="cuda")
        for got, want in zip(run(z, target), step(z, target), strict=True):
            assert np.array_equal(got.numpy(), want.numpy())


def test_one_hot():
    hot = F.one_hot(tb.Tensor([[0, 2]]), 3)
    np.testing.assert_array_equal(hot.numpy(), [[[1, 0, 0], [0, 0, 1]]])
    assert hot.dtype == tb.int64 and F.one_hot(tb.Tensor([0, 4])).shape == (2, 5)


@pytest.mark.parametrize(
    ("labels", "classes", "words"),
    [
        ([3], 3, "num_classes is 3 and target holds classes 3 to 3"),
        ([0, 7, 2], 5, "num_classes is 5 and target holds classes 0 to 7"),
        ([0], 0, "num_classes is 0 and target holds classes 0 to 0"),
        ([[4, 1], [0, 2]], 0, "num_classes is 0 and target holds classes 0 to 4"),
        ([-1, 1], 3, "num_classes is 3 and target holds classes -1 to 1"),
        ([-1], 0, "num_classes is 0 and target holds classes -1 to -1"),
        ([0, 1], -2, "num_classes is -2 and target holds classes 0 to 1"),
        ([-1, 1], -1, "num_classes is -1 and target holds classes -1 to 1"),
        ([-3], -1, "num_classes is -1 and target holds classes -3 to -3"),
    ],
)
def test_one_hot_of_a_class_that_is_not_there(labels, classes, words):
    for dtype in (tb.int32, tb.int64):
        with pytest.raises(IndexOutOfRange, match=words):
            F.one_hot(tb.Tensor(labels, dtype=dtype), classes)


def test_one_hot_of_no_labels():
    for shape in ((0,), (2, 0)):
        target = tb.zeros(shape, dtype=tb.int64)
        for classes in (0, 3):
            hot = F.one_hot(target, classes)
            assert hot.shape == (*shape, classes) and hot.dtype == tb.int64
        with pytest.raises(ArgumentError, match="target is empty"):
            F.one_hot(target, -1)


@pytest.mark.parametrize("classes", [-2, -10, True, False, 2.5, 3.0, "3", None, [3]])
def test_one_hot_with_no_number_of_classes(classes):
    for labels in ([0, 1], []):
        if labels and classes in (-2, -10):
            continue  # the labels are outside
        target = tb.Tensor(np.array(labels, np.int64))
        with pytest.raises(ArgumentError, match="num_classes is .*; wanted"):
            F.one_hot(target, classes)


def test_one_hot_with_a_number_of_numpys():
    for classes in (np.int64(3), np.uint8(3), np.array(3)):
        assert F.one_hot(tb.Tensor([2]), classes).tolist() == [[0, 0, 1]]


def test_one_hot_in_a_recorded_step_looks_at_no_label():
    recorded = Recording(capturing=False)
    recorded.capturing = True  # as on a GPU, where nothing may be read
    with under(recorded):
        assert F.one_hot(tb.Tensor([5, 1]), 3).tolist() == [[0, 0, 0], [0, 1, 0]]
        assert F.one_hot(tb.Tensor([5, 1]), 0).shape == (2, 0)
        with pytest.raises(IndexOutOfRange, match="num_classes is -2"):
            F.one_hot(tb.Tensor([5, 1]), -2)


@pytest.mark.parametrize(
    ("call", "error"),
    [
        (lambda: F.cross_entropy(tb.Tensor(Z), tb.Tensor(T[:3])), ShapeError),
        (lambda: F.cross_entropy(tb.Tensor(Z), tb.Tensor(T), reduction="avg"), ArgumentError),
        (lambda: F.cross_entropy(tb.Tensor(Z), tb.Tensor(T), size_average=True), TypeError),
        (lambda: F.cross_entropy(tb.Tensor(T), tb.Tensor(0)), DTypeError),
        (lambda: F.mse_loss(tb.Tensor(Z), tb.Tensor(Z[0])), ShapeError),
        (lambda: F.mse_loss(tb.Tensor(T), tb.Tensor(T)), DTypeError),
        (lambda: F.cross_entropy(tb.Tensor(Z), 3), DTypeError),
        (lambda: F.nll_loss(Z, tb.Tensor(T)), DTypeError),
        (lambda: F.nll_loss(tb.Tensor(Z), tb.Tensor(T), tb.Tensor([1, 1, 1, 1])), DTypeError),
        (lambda: F.mse_loss(Z, tb.Tensor(Z)), DTypeError),
        (lambda: F.binary_cross_entropy_with_logits(tb.Tensor(Z), Z), DTypeError),
        (lambda: F.cross_entropy(tb.Tensor(Z), tb.Tensor(T), ignore_index=1.5), ArgumentError),
        (lambda: F.one_hot(T), DTypeError),
        (lambda: nn.MSELoss(reduction="x"), ArgumentError),
        (lambda: nn.CrossEntropyLoss(label_smoothing=2), ArgumentError),
    ],
)
def test_bad_arguments(call, error):
    with pytest.raises(error):
        call()


def test_low_precision_sums_do_not_overflow():
    z = tb.zeros(70_000, 2, dtype=tb.float16)
    t = tb.zeros(70_000, dtype=tb.int64)
    half = float(np.float16(np.log(2)))
    assert F.nll_loss(F.log_softmax(z, 1), t).item() == half
    assert F.nll_loss(F.log_softmax(z, 1), t, tb.Tensor([1e5, 1.0])).item() == half
    assert F.cross_entropy(z, t).item() == half


@pytest.mark.parametrize("x", [-10.0, -17.0, -80.0])
def test_bce_keeps_the_digits_of_a_confident_answer(x):
    z = tb.Tensor([x, -x], requires_grad=True)
    loss = F.binary_cross_entropy_with_logits(z, tb.Tensor([0.0, 1.0]), reduction="sum")
    loss.backward()
    exact = np.log1p(np.exp(np.float64(x)))
    # The exponential and the logarithm round once each, float32's ε is 1.2e-7.
    np.testing.assert_allclose(loss.item(), 2 * exact, rtol=5e-7)
    np.testing.assert_allclose(np.abs(z.grad.numpy()), 1 / (1 + np.exp(-x)), rtol=5e-7)
