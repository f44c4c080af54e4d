"""What a pass through the data measures, added up where the model is."""

from __future__ import annotations

import math

import numpy as np

from ..errors import ArgumentError
from ..kernels import add_metrics
from ..kernels.arrays import Array, namespace
from ..kernels.gpu import Reading, is_cupy
from ..tensor import Device, Tensor
from ..tensor.device import use
from ..tensor.dtypes import is_float


class Metrics:
    """Sums of losses and of right answers, kept on the device until they are read.

    Attributes:
        samples: how many examples have been added; whoever calls :meth:`add` counts them, since
            a captured step that adds is replayed without Python.
        classified: whether all of their targets were class numbers; only then is there an accuracy.
    """

    def __init__(self) -> None:
        self.samples, self.classified = 0, True
        # For each device a float64 and an int64, which captured steps there add to.
        self._sums: dict[Device, Array] = {}
        self._reading: Reading | None = None

    def reset(self) -> None:
        """Begin another pass, in the same memory."""
        if self._reading is not None:
            self._reading.wait()
        self.samples, self.classified, self._reading = 0, True, None
        for device, sums in self._sums.items():
            with use(device):
                sums[...] = 0

    def count(self, target: Tensor) -> None:
        """Count a batch that was added."""
        self.samples += len(target)
        if is_float(target.dtype):
            self.classified = False

    def add(self, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        """Add a batch with its mean loss, and its right answers if it has class numbers."""
        device = loss.device
        with use(device):
            if device not in self._sums:
                self._sums[device] = namespace(loss.data).zeros(2, np.int64)
            sums = self._sums[device]
            total = sums[:1].view(np.float64)
            if is_float(target.dtype):
                total += loss.data.astype(np.float64) * len(target)
            else:
                add_metrics(logits.data, target.data, loss.data, total, sums[1:])

    def read(self) -> tuple[float, float]:
        """The mean loss and the accuracy, 0 to 1 or NaN, so far; waits for the device.

        Raises:
            ArgumentError: if nothing has been added.
        """
        if not self.samples:
            raise ArgumentError("the loader gave no batches; wanted at least one")
        hosts = [sums.get() if is_cupy(sums) else sums for sums in self._sums.values()]
        return self._means(np.sum([_values(host) for host in hosts], axis=0), self.samples)

    def glance(self) -> tuple[float, float] | None:
        """What :meth:`read` gives, as of the call before; on a GPU None where that is not there.

        It never waits: each call sends for the sums that the next one finds.
        """
        (device, sums), *others = self._sums.items()
        if others or not is_cupy(sums):
            return self.read()
        found = None if self._reading is None else self._reading.value()
        if self._reading is None or found is not None:
            with use(device):
                self._reading = Reading(sums, self.samples)
        return None if found is None else self._means(_values(found[0]), found[1])

    def _means(self, sums: tuple[float, float], samples: int) -> tuple[float, float]:
        total, right = sums
        accuracy = float(right) / samples if self.classified else math.nan
        return float(total) / samples, accuracy


def _values(sums: np.ndarray) -> tuple[float, float]:
    """The float64 and the int64."""
    return float(sums[:1].view(np.float64)[0]), float(sums[1])
