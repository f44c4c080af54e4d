"""Labelled images, as every data set of this package returns them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import overload

import numpy as np

from ..arguments import number
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, IndexOutOfRange, ShapeError
from ..tensor.ops._index import resolve


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Grey images and their class labels.

    ``dataset[i]`` is the pair ``(image, label)``; a slice or an array of indices
    gives a smaller Dataset with the same statistics.

    Attributes:
        images: uint8 ``[N, H, W]``, 0 is the background.
        labels: int64 ``[N]``, each the index of a class.
        classes: the classes' names.
        mean: mean of the *training* set's pixels, after scaling them to 0 … 1.
        std: standard deviation of the same, over all pixels of all images.
        name: what ``repr`` calls the data.

    Raises:
        DTypeError: if images are not uint8 or labels not int64.
        ShapeError: if the shapes are not ``[N, H, W]`` and ``[N]``.
        ArgumentError: if a label names no class, or ``std`` is not positive.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...]
    mean: float = 0.0
    std: float = 1.0
    name: str = "images"

    def __post_init__(self) -> None:
        images, labels = self.images, self.labels
        for array, what, dtype in ((images, "images", np.uint8), (labels, "labels", np.int64)):
            if not isinstance(array, np.ndarray) or array.dtype != dtype:
                given = getattr(array, "dtype", type(array).__name__)
                raise DTypeError(f"{what} are {given}; wanted a NumPy array of {dtype.__name__}")
        if images.ndim != 3 or labels.ndim != 1:
            raise ShapeError(
                f"images {images.shape} and labels {labels.shape}; wanted [N, H, W] and [N]"
            )
        if len(images) != len(labels):
            raise ShapeError(f"{len(images)} images but {len(labels)} labels; wanted one an image")
        if not isinstance(self.classes, (tuple, list)):
            raise ArgumentTypeError(f"classes is {self.classes!r}; wanted a tuple of names")
        if labels.size and not 0 <= labels.min() <= labels.max() < len(self.classes):
            raise ArgumentError(
                f"labels run from {labels.min()} to {labels.max()}; "
                f"wanted 0 to {len(self.classes) - 1}"
            )
        number("mean", self.mean)
        number("std", self.std, above=0)

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, index: int) -> tuple[np.ndarray, int]: ...

    @overload
    def __getitem__(self, index: slice | list[int] | np.ndarray) -> Dataset: ...

    def __getitem__(
        self, index: int | slice | list[int] | np.ndarray
    ) -> tuple[np.ndarray, int] | Dataset:
        """Return one ``(image, label)`` for an integer, else the Dataset of those rows.

        Args:
            index: as one axis of a Tensor is indexed, by an array of one dimension at most.

        Raises:
            IndexOutOfRange: (an IndexError) for an index outside ``[-N, N)``.
            DTypeError, ShapeError, ArgumentError: for what is no index of the images.
        """
        try:
            rows = resolve(self.labels, (index,))
        except IndexOutOfRange as error:
            raise IndexOutOfRange(f"index of {self!r}: {error}") from error
        images, labels = rows.get(self.images), rows.get(self.labels)
        if labels.ndim == 0:
            return images, int(labels)
        return replace(self, images=images, labels=labels)

    def __iter__(self) -> Iterator[tuple[np.ndarray, int]]:
        return zip(self.images, self.labels.tolist(), strict=True)

    def __repr__(self) -> str:
        height, width = self.images.shape[1:]
        return (
            f"Dataset({self.name}: {len(self)} images of {height}x{width}, "
            f"{len(self.classes)} classes)"
        )


def pixel_statistics(images: np.ndarray) -> tuple[float, float]:
    """Return the mean and the standard deviation of uint8 pixels scaled to 0 … 1.

    The sums of the pixels and of their squares are whole numbers, exact in
    float64, so the variance ``(n Σx² − (Σx)²) / n²`` is exact too: no digits
    cancel, as they would with rounded sums. Images that are all one grey have
    the standard deviation 1 here, so that dividing by it is harmless.

    Args:
        images: uint8, any shape, not empty.
    """
    pixels = images.reshape(-1)
    total = squares = 0
    block = 1 << 16  # half a megabyte as float64: stays in the cache
    for start in range(0, pixels.size, block):
        part = pixels[start : start + block].astype(np.float64)
        total += int(part.sum())
        squares += int(part @ part)
    n = pixels.size
    variance = (n * squares - total * total) / (n * n)
    return total / n / 255.0, math.sqrt(variance) / 255.0 if variance else 1.0
