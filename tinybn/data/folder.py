"""The folder layout of MNIST: four IDX files, images and labels of two splits."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from ..errors import DataError, TinyBNError
from .dataset import Dataset, pixel_statistics
from .idx import read_idx

TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
FILE_NAMES = TRAIN + TEST


def find(folder: Path, name: str) -> Path | None:
    """Return the file ``name`` or ``name.gz`` of ``folder``, the plain one first, or None."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.is_file():
            return path
    return None


def read_folder(folder: Path, name: str, classes: tuple[str, ...]) -> tuple[Dataset, Dataset]:
    """Read the four files of ``folder``, which must be there, as ``(train, test)``.

    Raises:
        DataError: if a file is missing, is no sound IDX file, or does not hold
            28x28 uint8 images with one uint8 label each, within ``classes``.
    """
    train_images, train_labels = _read_split(folder, TRAIN)
    test_images, test_labels = _read_split(folder, TEST)
    mean, std = pixel_statistics(train_images)
    try:
        return (
            Dataset(train_images, train_labels, classes, mean, std, f"{name} train"),
            Dataset(test_images, test_labels, classes, mean, std, f"{name} test"),
        )
    except TinyBNError as error:
        raise DataError(f"the files in {folder} do not fit together: {error}") from error


def _read_split(folder: Path, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray]:
    """Read one split's images as uint8 ``[N, 28, 28]`` and labels as int64 ``[N]``."""
    paths = [find(folder, name) for name in names]
    for path, name in zip(paths, names, strict=True):
        if path is None:
            raise DataError(f"{folder} holds neither {name} nor {name}.gz")
    images, labels = (read_idx(path) for path in paths if path is not None)
    if images.dtype != np.uint8 or images.shape[1:] != (28, 28) or not len(images):
        raise DataError(
            f"{paths[0]} holds {images.dtype} {images.shape}; wanted uint8 (N, 28, 28), N above 0"
        )
    if labels.dtype != np.uint8 or labels.ndim != 1:
        raise DataError(f"{paths[1]} holds {labels.dtype} {labels.shape}; wanted uint8 (N,)")
    return images, labels.astype(np.int64)
