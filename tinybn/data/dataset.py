"""Examples and their targets: what every data set of this package returns, and one's own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, overload

import numpy as np

from ..arguments import number
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, IndexOutOfRange, ShapeError
from ..kernels.arrays import Array, is_array
from ..tensor import Tensor
from ..tensor.device import CPU
from ..tensor.dtypes import SUPPORTED, as_dtype, bfloat16, float32, is_float
from ..tensor.interchange import move
from ..tensor.ops._index import resolve


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Examples and their targets: grey images or features, class numbers or real numbers.

    ``dataset[i]`` is the pair ``(image, label)``; a slice or an array of indices
    gives a smaller Dataset with the same statistics.

    Args:
        images: uint8 ``[N, H, W]``, 0 is the background; or features, floating ``[N, …]``. NumPy
            or CuPy arrays or Tensors, which are kept in host memory.
        labels: class numbers, integers ``[N]``; or, with features, floating targets ``[N, …]``.
        classes: the classes' names, or () for floating targets and classes without names.
        mean, std: what a DataLoader normalises by: those of all pixels of the *training* set,
            scaled to 0 … 1, or of all features; with 0 and 1 features stay as they are.
        name: what ``repr`` calls the data.
        dtype: of features and floating targets; None for float32. Images always give float32.

    Attributes:
        images: uint8, or of ``dtype``.
        labels: int64, or of ``dtype``.
        classes, mean, std, name, dtype: as given.

    Raises:
        DTypeError: for dtypes other than these.
        ShapeError: for shapes other than these.
        ArgumentError: if a label names no class, or ``std`` is not positive.
    """

    images: np.ndarray
    labels: np.ndarray
    classes: tuple[str, ...] = ()
    mean: float = 0.0
    std: float = 1.0
    name: str = "data"
    dtype: Any = None

    def __post_init__(self) -> None:
        dtype = float32 if self.dtype is None else as_dtype(self.dtype)
        if not is_float(dtype):
            raise DTypeError(f"dtype is {dtype.name}; wanted a floating one")
        images, labels = _on_host("images", self.images), _on_host("labels", self.labels)
        grey = images.dtype == np.uint8
        if grey and dtype != float32:
            raise DTypeError(f"dtype is {dtype.name}; images of uint8 give float32")
        if not (grey or _is_real(images)):
            raise DTypeError(
                f"images are {images.dtype}; wanted uint8, or floating features: "
                "images.astype(np.float32)"
            )
        if images.ndim < 1 or (grey and images.ndim != 3):
            raise ShapeError(
                f"images {images.shape} and labels {labels.shape}; wanted uint8 images [N, H, W], "
                "or floating features [N, …]: images.astype(np.float32) / 255"
            )
        if not isinstance(self.classes, (tuple, list)):
            raise ArgumentTypeError(f"classes is {self.classes!r}; wanted a tuple of names")
        self._check_labels(labels, len(images), grey)
        number("mean", self.mean)
        number("std", self.std, above=0)
        target = np.dtype(np.int64) if labels.dtype.kind in "iu" else dtype
        with np.errstate(all="ignore"):
            images = images if grey else images.astype(dtype, copy=False)
            labels = labels.astype(target, copy=False)
        for name, value in (("images", images), ("labels", labels), ("dtype", dtype)):
            object.__setattr__(self, name, value)  # it is frozen

    def _check_labels(self, labels: np.ndarray, examples: int, grey: bool) -> None:
        whole = labels.dtype.kind in "iu"
        if not (whole or _is_real(labels)):
            raise DTypeError(f"labels are {labels.dtype}; wanted integers, or floating targets")
        if not whole and (grey or self.classes):
            raise DTypeError(
                f"labels are {labels.dtype}, which have no classes and go with no uint8 images; "
                "wanted integers, or features (images[:, None].astype(np.float32) / 255) and "
                "classes=()"
            )
        if labels.ndim < 1 or (whole and labels.ndim != 1):
            raise ShapeError(f"labels {labels.shape}; wanted [N] class numbers, or targets [N, …]")
        if examples != len(labels):
            raise ShapeError(f"{examples} images but {len(labels)} labels; wanted one an image")
        if whole and labels.size:
            least, most = int(labels.min()), int(labels.max())
            if least < 0 or (self.classes and most >= len(self.classes)):
                wanted = f"0 to {len(self.classes) - 1}" if self.classes else "0 or more"
                raise ArgumentError(f"labels run from {least} to {most}; wanted {wanted}")
            if most > np.iinfo(np.int64).max:
                raise ArgumentError(f"labels run to {most}; wanted what int64 holds")

    def __len__(self) -> int:
        return len(self.labels)

    @overload
    def __getitem__(self, index: int) -> tuple[np.ndarray, Any]: ...

    @overload
    def __getitem__(self, index: slice | list[int] | np.ndarray) -> Dataset: ...

    def __getitem__(
        self, index: int | slice | list[int] | np.ndarray
    ) -> tuple[np.ndarray, Any] | Dataset:
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
        if not rows.arrays and isinstance(rows.outer[0], int):
            return images, int(labels) if self.labels.dtype == np.int64 else labels
        return replace(self, images=images, labels=labels)

    def __iter__(self) -> Iterator[tuple[np.ndarray, Any]]:
        numbered = self.labels.dtype == np.int64
        return zip(self.images, self.labels.tolist() if numbered else self.labels, strict=True)

    def __repr__(self) -> str:
        sizes = "x".join(map(str, self.images.shape[1:])) or "one number"
        what = "images" if self.images.dtype == np.uint8 else "examples"
        if self.labels.dtype != np.int64:
            targets = "x".join(map(str, self.labels.shape[1:]))
            kind = f"float targets of {targets}" if targets else "float targets"
        else:
            kind = f"{len(self.classes)} classes" if self.classes else "class numbers"
        return f"Dataset({self.name}: {len(self)} {what} of {sizes}, {kind})"


def class_numbers(labels: Array) -> Array:
    """``labels``, integers of the dtypes that Tensors lack as int64."""
    if labels.dtype.kind in "iu" and labels.dtype not in SUPPORTED:
        return labels.astype(np.int64)
    return labels


def _on_host(name: str, value: Any) -> np.ndarray:
    array = value.data if isinstance(value, Tensor) else value
    if not is_array(array):
        raise DTypeError(f"{name} are {type(value).__name__}; wanted an array or a Tensor")
    return move(array, CPU)


def _is_real(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype == bfloat16


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
