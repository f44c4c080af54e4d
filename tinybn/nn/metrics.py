"""What a pass through the data measures, added up where the model is."""

from __future__ import annotations

import numpy as np

from ..errors import ArgumentError
from ..kernels import add_metrics, recording
from ..kernels.arrays import Array, namespace
from ..kernels.gpu import Reading, is_cupy
from ..tensor import Tensor
from ..tensor.device import device_of, use


class Metrics:
    """Sums of losses and of right answers, kept on the device until they are read.

    Attributes:
        samples: how many examples have been added; whoever calls :meth:`add` counts them, since
            a captured step that adds is replayed without Python.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._sums: Array | None = None
        self._reading: Reading | None = None

    def reset(self) -> None:
        """Forget all, in the memory that captured steps add to."""
        self.samples, self._reading = 0, None
        if self._sums is not None:
            with use(device_of(self._sums)):
                self._sums[...] = 0

    def add(self, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        """Add a batch with its mean loss."""
        with use(loss.device):
            if self._sums is None or device_of(self._sums) != loss.device:
                self._sums = namespace(loss.data).zeros(2, np.float64)
            sums, recorded = self._sums, recording.current()
            if recorded is not None:
                recorded.guard(lambda: self._sums is sums)
            add_metrics(logits.data, target.data, loss.data, sums)

    def read(self) -> tuple[float, float]:
        """The mean loss and the accuracy, 0 to 1, so far; waits for the device.

        Raises:
            ArgumentError: if nothing has been added.
        """
        if self._sums is None or not self.samples:
            raise ArgumentError("the loader gave no batches; wanted at least one")
        total, right = self._sums.tolist()
        return total / self.samples, right / self.samples

    def glance(self) -> tuple[float, float] | None:
        """What :meth:`read` gives, as of the call before; on a GPU None where that is not there.

        It never waits: each call sends for the sums that the next one finds.
        """
        if self._sums is None or not is_cupy(self._sums):
            return self.read()
        found = None if self._reading is None else self._reading.value()
        if self._reading is None or found is not None:
            with use(device_of(self._sums)):
                self._reading = Reading(self._sums, self.samples)
        if found is None:
            return None
        (total, right), samples = found
        return total / samples, right / samples
