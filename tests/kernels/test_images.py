"""Batches gathered from a data set: which images, how they are moved, what each grey becomes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.engines import all_engines
from tests.kernels.test_random import OFFSETS, SEEDS, philox_python
from tinybn import kernels
from tinybn.errors import ArgumentError, DTypeError, ShapeError

TABLE = np.linspace(-1, 3, 256).astype(np.float32)


def moved(image, down, right):
    """The image, pixel by pixel, with grey 0 at the edges."""
    height, width = image.shape
    result = np.zeros_like(image)
    for h in range(height):
        for w in range(width):
            if 0 <= h - down < height and 0 <= w - right < width:
                result[h, w] = image[h - down, w - right]
    return result


@all_engines
@settings(max_examples=30)
@given(
    size=st.tuples(st.sampled_from([1, 2, 7, 13, 28]), st.sampled_from([1, 3, 8, 28, 33])),
    shift=st.sampled_from([0, 1, 2, 40]), seed=SEEDS, offset=OFFSETS, count=st.integers(0, 9),
)  # fmt: skip
def test_images_are_picked_moved_and_looked_up(engine, size, shift, seed, offset, count):
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (11, *size), np.uint8)
    labels, order = rng.integers(-(2**40), 2**40, 11), rng.integers(0, 11, 17)
    options = dict(first=5, shift=shift, seed=seed, offset=offset)
    x, y = engine.run(
        lambda *arrays: kernels.gather_images(*arrays, count, **options),
        images, labels, order, TABLE,
    )  # fmt: skip
    rows = order[5 : 5 + count]
    assert x.shape == (count, 1, *size) and x.dtype == np.float32
    assert y.dtype == np.int64 and y.tolist() == labels[rows].tolist()
    for i, row in enumerate(rows):
        down, right, _, _ = philox_python(seed, offset + i, 4)
        places = 2 * shift + 1
        want = moved(images[row], down % places - shift, right % places - shift)
        assert np.array_equal(x[i, 0], TABLE[want])


def test_the_random_place_is_the_one_in_the_order_where_none_is_given():
    images = np.random.default_rng(0).integers(0, 256, (9, 5, 5), np.uint8)
    rest = (images, np.arange(9), np.arange(9), TABLE)
    all_, _ = kernels.gather_images(*rest, 9, shift=2, seed=3)
    part, _ = kernels.gather_images(*rest, 4, first=3, shift=2, seed=3)
    assert np.array_equal(part, all_[3:7])
    assert not np.array_equal(part[:, 0], TABLE[images[3:7]])


IMAGES, LABELS = np.zeros((3, 4, 4), np.uint8), np.arange(3)


@pytest.mark.parametrize(
    ("arguments", "options", "error"),
    [
        ((IMAGES.astype(int), LABELS, LABELS, TABLE, 1), {}, DTypeError),
        ((IMAGES, LABELS.astype(np.int32), LABELS, TABLE, 1), {}, DTypeError),
        ((IMAGES, LABELS, LABELS.astype(float), TABLE, 1), {}, DTypeError),
        ((IMAGES, LABELS, LABELS, TABLE.astype(float), 1), {}, DTypeError),
        ((IMAGES[0], LABELS, LABELS, TABLE, 1), {}, ShapeError),
        ((IMAGES, LABELS[:2], LABELS, TABLE, 1), {}, ShapeError),
        ((IMAGES, LABELS, LABELS[None], TABLE, 1), {}, ShapeError),
        ((IMAGES, LABELS, LABELS, TABLE[:9], 1), {}, ShapeError),
        ((IMAGES, LABELS, LABELS, TABLE, 4), {}, ArgumentError),
        ((IMAGES, LABELS, LABELS, TABLE, 2), {"first": 2}, ArgumentError),
        ((IMAGES, LABELS, LABELS, TABLE, -1), {}, ArgumentError),
        ((IMAGES, LABELS, LABELS, TABLE, 1), {"first": -1}, ArgumentError),
        ((IMAGES, LABELS, LABELS, TABLE, 1), {"shift": -1}, ArgumentError),
        ((IMAGES, LABELS, LABELS, TABLE, 1), {"shift": 0.5}, ArgumentError),
        ((IMAGES, LABELS, LABELS, TABLE, 1), {"seed": -1}, ArgumentError),
        ((IMAGES, LABELS, LABELS, TABLE, 1), {"seed": 2**63}, ArgumentError),
    ],
)
def test_bad_arguments(arguments, options, error):
    with pytest.raises(error):
        kernels.gather_images(*arguments, **options)


@all_engines
def test_images_without_pixels_keep_their_labels(engine):
    arrays = np.zeros((4, 0, 7), np.uint8), np.arange(4) * 10, np.array([3, 1, 2, 0]), TABLE
    x, y = engine.run(lambda *a: kernels.gather_images(*a, 2, first=1), *arrays)
    assert x.shape == (2, 1, 0, 7) and y.tolist() == [10, 20]
