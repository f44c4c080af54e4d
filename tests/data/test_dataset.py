"""A Dataset of one's own: features and targets as a new user has them, beside a plain pair."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.data import DataLoader, Dataset
from tinybn.errors import ArgumentError, DTypeError, ShapeError

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
SHAPES = pytest.mark.parametrize("shape", [(), (4,), (3, 5), (2, 3, 4, 4)])


def features(n=10, shape=(4,), dtype=np.float32):
    return np.random.default_rng(0).standard_normal((n, *shape)).astype(dtype)


def whole(loader):
    """All of an epoch, as arrays."""
    passed = list(loader)
    return [np.concatenate([pair[i].numpy() for pair in passed]) for i in (0, 1)]


@DEVICES
@SHAPES
def test_features_of_any_shape_come_out_as_they_are(shape, device):
    x, y = features(10, shape), np.arange(10) % 3
    data = Dataset(x, y, ("a", "b", "c"))
    for loader in (DataLoader(data, 4, device=device), DataLoader((x, y), 4, device=device)):
        inputs, targets = whole(loader)
        np.testing.assert_array_equal(inputs, x)
        np.testing.assert_array_equal(targets, y)
        assert (inputs.dtype, targets.dtype) == (np.float32, np.int64)
        assert str(next(iter(loader))[0].device).startswith(device)


@DEVICES
def test_normalised_where_asked(device):
    x, y = features(10, dtype=np.float64), np.zeros(10, np.int64)
    asked = Dataset(x, y, ("a",), mean=0.5, std=2.0)
    exact = (x.astype(np.float32).astype(np.float64) - 0.5) / 2.0
    for loader, wanted in (
        (DataLoader(asked, 4, device=device), exact),
        (DataLoader(asked, 4, device=device, normalize=False), x),
        (DataLoader(asked, 4, device=device, normalize=(0.0, 0.5)), x.astype(np.float32) * 2.0),
        (DataLoader(Dataset(x, y, ("a",)), 4, device=device), x),
    ):
        np.testing.assert_array_equal(whole(loader)[0], wanted.astype(np.float32))
    np.testing.assert_array_equal(asked.images, x.astype(np.float32))  # as they were


def test_float32_unless_another_is_asked_for():
    x = features(4, dtype=np.float64)
    y = np.linspace(0, 1, 4)
    for dtype in (tb.float16, tb.bfloat16, tb.float32, tb.float64):
        for given in (x, x.astype(np.float32), x.astype(np.float16)):
            inputs, targets = next(iter(DataLoader(Dataset(given, y, dtype=dtype), 4)))
            assert inputs.dtype == targets.dtype == dtype
    inputs, targets = next(iter(DataLoader(Dataset(x, y), 4)))
    assert inputs.dtype == targets.dtype == tb.float32
    big_endian = x.astype(">f8")
    np.testing.assert_array_equal(Dataset(big_endian, y).images, x.astype(np.float32))
    with pytest.raises(DTypeError, match="int64"):
        Dataset(x, y, dtype=tb.int64)
    part = Dataset(x, y, dtype=tb.float64)[1:]
    assert part.images.dtype == part.labels.dtype == np.float64


@DEVICES
def test_tensors_and_arrays_are_alike(device):
    x, y = features(), np.arange(10) % 2
    tensors = (tb.tensor(x, device=device), tb.tensor(y, device=device))
    for a, b in ((x, y), tensors, (x, tensors[1])):
        data = Dataset(a, b, ("a", "b"))
        assert isinstance(data.images, np.ndarray) and isinstance(data.labels, np.ndarray)
        np.testing.assert_array_equal(data.images, x)
        np.testing.assert_array_equal(data.labels, y)


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16", "int16", "int32", "uint32", "int64"])
def test_class_numbers_of_any_integer_dtype(dtype):
    x, y = features(), (np.arange(10) % 3).astype(dtype)
    for given in (Dataset(x, y, ("a", "b", "c")), Dataset(x, y), (x, y)):
        _, targets = next(iter(DataLoader(given, 10)))
        kept = dtype == "int32" and isinstance(given, tuple)
        assert targets.tolist() == y.tolist() and targets.dtype == ("int32" if kept else "int64")
        nn.functional.cross_entropy(tb.zeros(10, 3), targets)


def fitted(data, device, loss=None, out=2, amp=None):
    """All that training leaves, as bits."""
    tb.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, out)]
    model = nn.Sequential(*layers).to(device)
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, 16, shuffle=True, seed=1, device=device)
    trainer = nn.Trainer(model, optimizer, loss, progress=False, amp=amp)
    rows = trainer.fit(loader, 3, loader)
    shown = [repr([row[k] for k in row if "sec" not in k]) for row in rows]
    return shown, {k: v.numpy().tobytes() for k, v in model.state_dict().items()}


@DEVICES
def test_a_dataset_and_a_pair_train_to_the_same_bits(device):
    x = features(50, (2, 2))
    y = (x[:, 0, 0] > 0).astype(np.int64)
    want = fitted((x, y), device)
    assert fitted(Dataset(x, y, ("no", "yes")), device) == want
    assert fitted(Dataset(x, y), device) == want
    assert fitted((tb.tensor(x), tb.tensor(y)), device) == want
    assert fitted([x, y.astype(np.uint8)], device) == want
    if device == "cpu":  # exact products of images are those of features
        images = np.random.default_rng(0).integers(0, 256, (50, 2, 2), np.uint8)
        scaled = (images / 255.0).astype(np.float32)
        assert fitted(Dataset(images, y, ("no", "yes")), device) == fitted((scaled, y), device)


@DEVICES
@pytest.mark.parametrize("shape", [(1,), (3,)])
def test_regression(shape, device):
    x = features(50)
    y = features(50, shape)
    want = fitted((x, y), device, nn.MSELoss(), shape[0])
    assert fitted(Dataset(x, y), device, nn.MSELoss(), shape[0]) == want
    wide = Dataset(x.astype(np.float64), y.astype(np.float64))
    assert fitted(wide, device, nn.MSELoss(), shape[0]) == want


def test_items_parts_and_repr():
    x, y = features(), np.linspace(0, 1, 10, dtype=np.float32)[:, None]
    data = Dataset(x, y, name="prices")
    row, target = data[3]
    np.testing.assert_array_equal(row, x[3])
    np.testing.assert_array_equal(target, y[3])
    assert len(data[2:5]) == 3 and data[[1, 2]].labels.tolist() == y[1:3].tolist()
    assert repr(data) == "Dataset(prices: 10 examples of 4, float targets of 1)"
    assert repr(Dataset(x, y[:, 0])) == "Dataset(data: 10 examples of 4, float targets)"
    assert repr(Dataset(x, np.arange(10))) == "Dataset(data: 10 examples of 4, class numbers)"
    named = Dataset(x, np.arange(10) % 2, ("a", "b"))
    assert repr(named) == "Dataset(data: 10 examples of 4, 2 classes)"
    assert named[1][1] == 1 and isinstance(named[1][1], int)


@pytest.mark.parametrize(
    ("images", "labels", "options", "error", "message"),
    [
        (features().astype(np.int64), np.zeros(10, np.int64), {}, DTypeError,
         r"images are int64; wanted .*astype\(np.float32\)"),
        (features() > 0, np.zeros(10, np.int64), {}, DTypeError, "images are bool"),
        (features().tolist(), np.zeros(10, np.int64), {}, DTypeError,
         "images are list; wanted an array or a Tensor"),
        (features(), [0] * 10, {}, DTypeError, "labels are list"),
        (features(), np.array(["a"] * 10), {}, DTypeError, "labels are <U1"),
        (features(), np.zeros(10, bool), {}, DTypeError, "labels are bool"),
        (features(), np.zeros((10, 1), np.int64), {}, ShapeError, r"labels \(10, 1\)"),
        (features(), np.zeros(10), {"classes": ("a",)}, DTypeError, "labels are float64.*classes"),
        (features(), np.zeros(9), {}, ShapeError, "10 images but 9 labels"),
        (features()[0, :1].reshape(()), np.zeros(10), {}, ShapeError, "wanted"),
        (features(), np.arange(10), {"classes": ("a", "b")}, ArgumentError, "run from 0 to 9"),
        (features(), np.arange(10) - 1, {}, ArgumentError, "run from -1"),
        (features(), np.full(10, 2**63, np.uint64), {}, ArgumentError, "wanted what int64 holds"),
        (features(), np.arange(10), {"std": 0.0}, ArgumentError, "std is 0.*above 0"),
        (np.zeros((10, 3, 4, 4), np.uint8), np.arange(10), {}, ShapeError,
         r"images \(10, 3, 4, 4\).*uint8 .*\[N, H, W\].*/ 255"),
        (np.zeros((10, 4, 4), np.uint8), np.zeros(10), {}, DTypeError,
         "labels are float64.*uint8 images.*/ 255"),
        (np.zeros((10, 4, 4), np.uint8), np.arange(10), {"dtype": tb.float64}, DTypeError,
         "float32"),
    ],
)  # fmt: skip
def test_what_does_not_fit(images, labels, options, error, message):
    with pytest.raises(error, match=message):
        Dataset(images, labels, **options)


def test_a_pair_that_does_not_fit_says_what_to_call():
    y = np.zeros(4, np.int64)
    with pytest.raises(DTypeError, match=r"inputs are uint8; .*astype\(np\.float32\).*Dataset"):
        DataLoader((np.zeros((4, 2, 2), np.uint8), y))
    with pytest.raises(TypeError, match=r"a pair holds list; wanted arrays or Tensors.*tb\.tensor"):
        DataLoader(([[1.0], [2.0]], [0, 1]))
    with pytest.raises(ArgumentError, match="shift 1 needs .*uint8 images"):
        DataLoader(Dataset(features(4), y), shift=1)
