"""Batches for a training loop, gathered on the device where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..arguments import integer, number, switch
from ..errors import ArgumentError, ArgumentTypeError, DTypeError, ShapeError
from ..kernels import gpu
from ..tensor import Tensor
from ..tensor.device import CPU, Device, as_device, device_of, use
from ..tensor.dtypes import as_dtype
from ..tensor.interchange import move
from ..tensor.random import default_generator
from .dataset import Dataset, class_numbers
from .epoch import ImageEpoch, PairEpoch

# On a GPU many batches are gathered by one launch and handed out as slices of the
# result, since a launch costs more host time than a small batch's copy. On a CPU
# each batch is gathered by itself, and is still in the cache when it is used.
# The block is freed when its last batch is: what is kept longer, copy.
BLOCK_BYTES = 64 << 20
RESIDENT_SHARE = 4  # a data set stays on the GPU if it takes at most 1 / 4 of its free memory


class DataLoader:
    """Iterate over a data set in batches, as pairs ``(inputs, targets)`` of Tensors.

    From a :class:`Dataset` of images come inputs of float32 ``[B, 1, H, W]``, scaled to
    0 … 1 and normalised, and targets of int64 ``[B]``; from one of features their rows,
    normalised, and those of its targets. From a pair of arrays or Tensors ``(inputs, targets)``
    come their rows as they are, but integer targets of a dtype that Tensors lack as int64.

    Each pass over the loader is one epoch: shuffled anew, but the same again for
    the same seed and epoch. The data are moved to the device once if they fit
    into a quarter of its free memory, else batches are copied there.

    Args:
        dataset: a Dataset, or a pair ``(inputs, targets)`` of equal length N > 0.
        batch_size: B; the last batch is smaller if B does not divide N.
        shuffle: whether each epoch has its own random order.
        seed: decides the orders together with the epoch's number. None draws a
            new one for each epoch from tinybn's generator, so that
            ``tb.manual_seed`` covers it.
        drop_last: whether to leave out a last batch smaller than B.
        device: where the batches are. None is where a pair's inputs are, if they
            are a Tensor or a CuPy array, else the default device.
        normalize: for a Dataset, True gives ``(x - mean) / std`` with the Dataset's statistics,
            x being features or greys / 255, a pair ``(mean, std)`` the same with those given,
            False gives ``x``.
        transform: called with each batch's inputs, returns what to use in their place.
        shift: for a Dataset of images, the most pixels by which each is moved up or down and left
            or right, at random, anew in each epoch; the background comes in at the edges.

    Attributes:
        epoch: the number of the next pass, from 0; see :meth:`set_epoch`.

    Raises:
        TypeError: if ``dataset`` is neither, or an argument has the wrong type.
        DTypeError: (a TypeError) for arrays of a dtype that Tensors do not have.
        ShapeError: (a ValueError) for lengths that differ or arrays without rows.
        ArgumentError: (a ValueError) for no data, a batch size below 1 or with
            ``drop_last`` above N, a negative seed or shift, a bad ``normalize``.
    """

    def __init__(
        self,
        dataset: Dataset | tuple[Any, Any],
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int | None = None,
        drop_last: bool = False,
        device: str | Device | None = None,
        normalize: bool | tuple[float, float] = True,
        transform: Callable[[Tensor], Tensor] | None = None,
        shift: int = 0,
    ) -> None:
        self.dataset = dataset
        self.batch_size = integer("batch_size", batch_size, 1)
        self.shuffle = switch("shuffle", shuffle)
        self.seed = None if seed is None else integer("seed", seed, 0)
        self.drop_last = switch("drop_last", drop_last)
        self.epoch = 0
        if transform is not None and not callable(transform):
            raise ArgumentTypeError(
                f"transform is {type(transform).__name__}; wanted a function or None"
            )
        self.transform = transform
        self.shift = integer("shift", shift, 0)
        self._on_device: tuple[tuple[int, int], ImageEpoch] | None = None
        if isinstance(dataset, Dataset):
            inputs, targets = dataset.images, dataset.labels
            table = None
            if inputs.dtype == np.uint8:
                table = _normalized(np.arange(256) / 255.0, dataset, normalize, dataset.dtype)
            else:
                inputs = _normalized(inputs, dataset, normalize, dataset.dtype)
        else:
            inputs, targets = _pair(dataset)
            table = None
            if not isinstance(normalize, bool):
                raise ArgumentError("normalize needs a Dataset; a pair's rows are used as they are")
            if device is None and not isinstance(dataset[0], np.ndarray):
                device = device_of(inputs)
        if self.shift and table is None:
            raise ArgumentError(f"shift {shift} needs a Dataset of uint8 images; these are none")
        if len(inputs) != len(targets):
            raise ShapeError(f"{len(inputs)} inputs but {len(targets)} targets; wanted as many")
        if not len(inputs):
            raise ArgumentError("the data set is empty; wanted at least one example")
        self._check_size(len(inputs))
        self.device = as_device(device)
        home = self.device if _fits(self.device, inputs, targets) else CPU
        self._inputs, self._targets = move(inputs, home), move(targets, home)
        self._table = None if table is None else move(table, self.device)

    def _check_size(self, n: int) -> None:
        if self.drop_last and self.batch_size > n:
            raise ArgumentError(
                f"batch_size {self.batch_size} with drop_last leaves no batch of {n} examples"
            )

    def __len__(self) -> int:
        """The number of batches in an epoch."""
        full, rest = divmod(len(self._inputs), self.batch_size)
        return full if self.drop_last or not rest else full + 1

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass number ``epoch``, such as after resuming from a checkpoint.

        Raises:
            ArgumentError: if it is negative.
        """
        self.epoch = integer("epoch", epoch, 0)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Begin the epoch ``self.epoch`` and count it."""
        order, seed = self._order()
        self.epoch += 1
        return self._batches(order, seed)

    def __repr__(self) -> str:
        return (
            f"DataLoader({len(self)} batches of {self.batch_size}, "
            f"{'shuffled' if self.shuffle else 'in order'}, on {self.device})"
        )

    def _order(self) -> tuple[np.ndarray, int]:
        """The rows of this epoch, in the order in which they are used, and a seed for shifts."""
        n = len(self._inputs)
        self._check_size(n)  # again, since the attributes may have been changed
        if not (self.shuffle or self.shift):
            return np.arange(n)[: self._length()], 0
        seed = _fresh_seed() if self.seed is None else self.seed
        rng = np.random.default_rng((seed, self.epoch))
        order = rng.permutation(n) if self.shuffle else np.arange(n)
        return order[: self._length()], int(rng.integers(2**63 - 1))

    def begin_on_device(self) -> tuple[ImageEpoch, list[int]] | None:
        """Begin an epoch whose batches a step gathers itself, which then may be captured.

        Returns:
            What gathers them, the same as before unless that is in the middle of a pass, and
            their sizes in turn. None where a batch is not made by one launch: of a pair, with a
            ``transform`` or an ``__iter__`` of a subclass, on the CPU, or where the data are not
            on the device.
        """
        if self.device == CPU or self.transform is not None or self._table is None:
            return None
        if type(self).__iter__ is not DataLoader.__iter__:
            return None
        cut = (self.shift, self._length())
        before, epoch = self._on_device or (None, None)
        if epoch is None or before != cut or epoch.unfinished:
            epoch = self._image_epoch(self._table)
            self._on_device = cut, epoch
        if not epoch.resident:
            return None
        epoch.start(*self._order())
        self.epoch += 1
        length, size = self._length(), self.batch_size
        return epoch, [min(size, length - start) for start in range(0, length, size)]

    def lone_example(self) -> Tensor | None:
        """The first example's inputs as a batch, where an epoch has a batch of one; else None.

        None too for an ``__iter__`` of a subclass, whose batches are not known.
        """
        if type(self).__iter__ is not DataLoader.__iter__:
            return None
        if self.batch_size > 1 and self._length() % self.batch_size != 1:
            return None
        inputs, _ = next(self._batches(np.zeros(1, np.int64), 0))
        return inputs

    def _length(self) -> int:
        """How many examples an epoch has."""
        return min(len(self._inputs), len(self) * self.batch_size)

    def _image_epoch(self, table: Any) -> ImageEpoch:
        return ImageEpoch(self._inputs, self._targets, table, self.shift, self._length())

    def _batches(self, order: np.ndarray, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        size = self.batch_size
        epoch: PairEpoch | ImageEpoch
        if self._table is None:
            epoch = PairEpoch(self._inputs, self._targets, self.device)
        else:
            epoch = self._image_epoch(self._table)
        epoch.start(order, seed)
        step = size * self._batches_in_block()
        for start in range(0, len(order), step):
            inputs, targets = epoch.take(min(step, len(order) - start))
            for row in range(0, len(inputs), size):
                batch = Tensor.wrap(inputs[row : row + size])
                if self.transform is not None:
                    batch = self.transform(batch)
                yield batch, Tensor.wrap(targets[row : row + size])

    def _batches_in_block(self) -> int:
        """How many batches one gather makes."""
        if self.device == CPU:
            return 1
        element = self._inputs.itemsize if self._table is None else self._table.itemsize
        batch = self.batch_size * int(self._inputs[0].size * element)
        return max(1, BLOCK_BYTES // max(batch, 1))


def _fits(device: Device, *arrays: Any) -> bool:
    """Whether arrays may be kept on ``device``, by the free memory that it has for them."""
    size = sum(array.nbytes for array in arrays if device_of(array) != device)
    if device == CPU or not size:
        return True
    with use(device):
        return size <= gpu.free_memory() // RESIDENT_SHARE


def _normalized(
    x: np.ndarray, dataset: Dataset, normalize: bool | tuple[float, float], dtype: np.dtype
) -> np.ndarray:
    """``(x − mean) / std`` as ``normalize`` says, each value the float64 result rounded once.

    ``x`` is features, or the 256 greys of images: looking them up in the result replaces the
    arithmetic by one pass over a batch.
    """
    if isinstance(normalize, bool):
        mean, std = (dataset.mean, dataset.std) if normalize else (0.0, 1.0)
    else:
        if not isinstance(normalize, (tuple, list)) or len(normalize) != 2:
            raise ArgumentTypeError(f"normalize is {normalize!r}; wanted a bool or (mean, std)")
        mean = number("the mean of normalize", normalize[0])
        std = number("the std of normalize", normalize[1], above=0)
    with np.errstate(all="ignore"):
        if (mean, std) != (0.0, 1.0):
            x = (x.astype(np.float64) - mean) / std
        return x.astype(dtype, copy=False)


def _pair(dataset: Any) -> tuple[Any, Any]:
    """Return a pair's two arrays, NumPy or CuPy, of dtypes that Tensors have."""
    if not isinstance(dataset, (tuple, list)) or len(dataset) != 2:
        raise ArgumentTypeError(
            f"dataset is {type(dataset).__name__}; wanted a Dataset or a pair (inputs, targets)"
        )
    arrays: list[Any] = []
    for value in dataset:
        array = value.data if isinstance(value, Tensor) else value
        if not isinstance(array, np.ndarray) and not gpu.is_cupy(array):
            raise ArgumentTypeError(
                f"a pair holds {type(value).__name__}; wanted arrays or Tensors, such as from "
                "tb.tensor()"
            )
        if arrays:
            array = class_numbers(array)
        elif array.dtype.kind == "u":
            raise DTypeError(
                f"inputs are {array.dtype}; wanted a dtype of Tensors, x.astype(np.float32) / 255 "
                "for images, or a Dataset of them"
            )
        as_dtype(array.dtype)
        if array.ndim == 0:
            raise ShapeError("inputs and targets need at least one axis, whose rows are examples")
        arrays.append(array)
    return arrays[0], arrays[1]


def _fresh_seed() -> int:
    """A new seed, from the generator that ``tb.manual_seed`` seeds."""
    return default_generator("cpu").next_seed()
