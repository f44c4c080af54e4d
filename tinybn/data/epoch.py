"""One pass through a data set, batch by batch, gathered where the batches are used."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..kernels import gather_images, recording
from ..kernels.arrays import Array, namespace
from ..tensor.device import CPU, Device, device_of, use
from ..tensor.interchange import move


class PairEpoch:
    """Rows of a pair of arrays, as they are.

    Args:
        inputs, targets: arrays of equal length, on one device.
        device: where the batches are made.
    """

    def __init__(self, inputs: Array, targets: Array, device: Device) -> None:
        self._arrays, self.device = (inputs, targets), device
        self._order, self._position = np.arange(len(inputs)), 0

    def start(self, order: np.ndarray, seed: int) -> None:
        """Begin at the first row of ``order``; nothing is random here."""
        self._order, self._position = order, 0

    def take(self, count: int) -> tuple[Array, Array]:
        """The next ``count`` rows, in new arrays."""
        first, self._position = self._position, self._position + count
        rows = self._order[first : self._position]
        with use(self.device):
            rows = move(rows, device_of(self._arrays[0]))
            inputs, targets = (move(a.take(rows, axis=0), self.device) for a in self._arrays)
        return inputs, targets


class ImageEpoch:
    """Images of a data set, normalised and moved at random, and their labels.

    Where the data are on a GPU each batch is one launch, and :meth:`take` may be part of a
    captured step: each replay gathers the next batch.

    Args:
        images: uint8 [N, H, W].
        labels: int64 [N], where the images are.
        table: float32 [256], on the device: what each grey becomes.
        shift: the most pixels by which an image is moved along each axis.
        length: images of a pass.
    """

    def __init__(self, images: Array, labels: Array, table: Array, shift: int, length: int) -> None:
        self._images, self._labels, self._table, self._shift = images, labels, table, shift
        self.device = device_of(table)
        with use(self.device):
            # Of one address for all passes, which captured steps read.
            self._order = namespace(table).empty(length, np.int64)
        self._rows = np.arange(length)
        self._seed = self._position = 0

    @property
    def resident(self) -> bool:
        """Whether the data are where the batches are made."""
        return device_of(self._images) == self.device

    @property
    def unfinished(self) -> bool:
        """Whether a pass has begun and not come to its end."""
        return 0 < self._position < len(self._rows)

    def start(self, order: np.ndarray, seed: int) -> None:
        """Begin at the first image of ``order``, int64 [length]; ``seed`` decides the moves."""
        self._rows, self._seed, self._position = order, seed, 0
        if self.resident:
            with use(self.device):
                self._order[...] = move(order, self.device)

    def take(self, count: int) -> tuple[Array, Array]:
        """The next ``count`` images, float32 [count, 1, H, W], and their labels, int64 [count]."""
        recorded = recording.current()
        with use(self.device):
            if not self.resident:
                return self._moved(count)
            first, seed = self._next(count)
            if recorded is not None and self.device != CPU:
                first, seed = recorded.live((first, seed), lambda: self._next(count))
            return gather_images(
                self._images, self._labels, self._order, self._table, count, first=first,
                shift=self._shift, seed=seed,
            )  # fmt: skip

    def _next(self, count: int) -> tuple[Any, Any]:
        """Where the next images begin, and the seed."""
        first, self._position = self._position, self._position + count
        return first, self._seed

    def _moved(self, count: int) -> tuple[Array, Array]:
        """The next images, whose greys alone are copied to the device."""
        first, seed = self._next(count)
        rows = self._rows[first : first + count]
        images, labels = (move(a[rows], self.device) for a in (self._images, self._labels))
        order = namespace(images).arange(count)
        return gather_images(
            images, labels, order, self._table, count, shift=self._shift, seed=seed, offset=first
        )
