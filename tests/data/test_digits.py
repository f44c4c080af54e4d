"""The digits that come with the package."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

import tinybn as tb
import tinybn.data
from tinybn.data import Dataset, digits
from tinybn.errors import ArgumentError, DTypeError, IndexOutOfRange, ShapeError

SOURCE = Path(tinybn.data.__file__).parent / "files" / "SOURCE.md"


@pytest.fixture(scope="module")
def splits():
    return digits()


def test_shapes_and_balance(splits):
    for split, n in zip(splits, (4000, 1000), strict=True):
        assert len(split) == n
        assert split.images.shape == (n, 28, 28) and split.images.dtype == np.uint8
        assert split.labels.shape == (n,) and split.labels.dtype == np.int64
        assert np.bincount(split.labels).tolist() == [n // 10] * 10
        assert split.classes == tuple("0123456789")


def test_train_and_test_are_disjoint_and_without_copies(splits):
    images = np.concatenate([split.images.reshape(-1, 784) for split in splits])
    assert len(np.unique(images, axis=0)) == 5000


def test_order_mixes_the_classes(splits):
    """Any 100 consecutive digits hold all classes, none above a quarter."""
    for split in splits:
        for start in range(0, len(split), 100):
            counts = np.bincount(split.labels[start : start + 100], minlength=10)
            assert counts.min() > 0 and counts.max() <= 25


def test_content_is_the_documented_one(splits):
    """SOURCE.md's SHA-256 values are those of the files' content."""
    text = SOURCE.read_text(encoding="utf-8")
    for split, n in zip(splits, (4000, 1000), strict=True):
        for array, axes in ((split.images, 3), (split.labels.astype(np.uint8), 1)):
            header = bytes([0, 0, 8, axes]) + np.array(array.shape, ">u4").tobytes()
            assert hashlib.sha256(header + array.tobytes()).hexdigest() in text, n


def test_they_are_digits(splits):
    """The nearest class mean, no more, tells four digits of five apart."""
    train, test = splits
    pixels = train.images.reshape(-1, 784) / 255
    means = np.stack([pixels[train.labels == label].mean(axis=0) for label in range(10)])
    distances = ((test.images.reshape(-1, 1, 784) / 255 - means) ** 2).sum(axis=2)
    assert (distances.argmin(axis=1) == test.labels).mean() > 0.78


def test_statistics_are_the_training_set_s(splits):
    train, test = splits
    pixels = train.images / 255.0
    assert train.mean == pytest.approx(pixels.mean(), rel=1e-12)
    assert train.std == pytest.approx(pixels.std(), rel=1e-12)
    assert (test.mean, test.std) == (train.mean, train.std)


def test_constant_images_have_a_std_to_divide_by():
    from tinybn.data.dataset import pixel_statistics

    assert pixel_statistics(np.full((3, 28, 28), 51, np.uint8)) == (0.2, 1.0)


def test_indexing(splits):
    train, _ = splits
    image, label = train[-1]
    assert label == train.labels[-1] and isinstance(label, int)
    np.testing.assert_array_equal(image, train.images[-1])
    part = train[10:20]
    assert isinstance(part, Dataset) and len(part) == 10 and part.std == train.std
    np.testing.assert_array_equal(train[[3, 1]].labels, train.labels[[3, 1]])
    assert (train[train.labels == 7].labels == 7).all()
    assert len(list(part)) == 10 and len(train[5:5]) == 0
    assert repr(part) == "Dataset(digits train: 10 images of 28x28, 10 classes)"


@pytest.mark.parametrize(
    ("index", "rows"),
    [
        ([], []),
        (np.array([], int), []),
        ((3, -1), [3, 3999]),
        (range(2), [0, 1]),
        (np.array([7], np.uint8), [7]),
        (tb.Tensor([3, 3]), [3, 3]),
        (slice(5, None, -2), [5, 3, 1]),
        (np.arange(4000) == 9, [9]),
        (np.zeros(4000, bool), []),
    ],
)
def test_indices_are_those_of_a_tensor(splits, index, rows):
    train, _ = splits
    part = train[index]
    assert part.labels.tolist() == [train.labels[row] for row in rows]
    assert part.images.shape == (len(rows), 28, 28)
    assert all(np.array_equal(part.images[i], train.images[row]) for i, row in enumerate(rows))


def test_an_array_of_no_dimensions_is_one_index(splits):
    train, _ = splits
    for one in (np.int32(-2), np.array(-2), tb.Tensor(-2)):
        image, label = train[one]
        assert label == train.labels[-2] and isinstance(label, int)
        assert np.array_equal(image, train.images[-2])
    assert all(isinstance(label, int) for _, label in train[:3])


@pytest.mark.parametrize(
    ("index", "error"),
    [
        (4000, IndexOutOfRange),
        (-4001, IndexOutOfRange),
        ([4000], IndexOutOfRange),
        (slice(None, None, 0), ArgumentError),
        (slice(0.5), DTypeError),
        ("a", DTypeError),
        ([0.5], DTypeError),
        (np.zeros(0), DTypeError),
        (True, ShapeError),
        (None, ShapeError),
        ([[0, 1]], ShapeError),
        (np.ones(3, bool), ShapeError),
    ],
)
def test_index_errors(splits, index, error):
    with pytest.raises(error):
        splits[0][index]


def test_dataset_is_frozen(splits):
    with pytest.raises(AttributeError):
        splits[0].labels = None


def test_dataset_checks_its_arrays():
    images, labels = np.zeros((3, 4, 5), np.uint8), np.arange(3)
    classes = ("a", "b", "c")
    assert len(Dataset(images, labels, classes)) == 3
    with pytest.raises(DTypeError, match="images are int64"):
        Dataset(images.astype(int), labels, classes)
    with pytest.raises(DTypeError, match="labels are list"):
        Dataset(images, [0, 1, 2], classes)
    with pytest.raises(ShapeError, match="wanted"):
        Dataset(images[0], labels, classes)
    with pytest.raises(ShapeError, match="3 images but 2 labels"):
        Dataset(images, labels[:2], classes)
    with pytest.raises(ArgumentError, match="labels run from 0 to 2"):
        Dataset(images, labels, classes[:2])
    with pytest.raises(ArgumentError, match="labels run from -1"):
        Dataset(images, labels - 1, classes)
    with pytest.raises(ArgumentError, match="std is .*; wanted a finite number above 0"):
        Dataset(images, labels, classes, 0.0, 0.0)
