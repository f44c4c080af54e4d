"""The training loop with a progress bar, a schedule and evaluation."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any

from ..errors import ArgumentError
from ..kernels.arrays import Array
from ..tensor import Tensor, no_grad
from ..tensor.device import use
from ..tensor.dtypes import float16
from .amp import GradScaler, autocast
from .loss import CrossEntropyLoss
from .module import Module
from .optim import Optimizer
from .schedule import Schedule

REFRESH = 0.1  # seconds between two readings of the metrics for the bar


class Metrics:
    """Sums of losses and of right answers, kept on the device until they are read.

    Reading waits for the device, so it is done seldom.
    """

    def __init__(self) -> None:
        self.samples = 0
        self._sums: tuple[Array, Array] | None = None

    def add(self, loss: Tensor, logits: Tensor, target: Tensor) -> None:
        """Count one batch with its mean loss."""
        n = len(target)
        with use(loss.device):
            right = (logits.argmax(axis=1).data == target.data).sum()
            total = loss.data.astype("float64") * n
            if self._sums is not None:
                right, total = self._sums[0] + right, self._sums[1] + total
        self._sums = (right, total)
        self.samples += n

    def read(self) -> tuple[float, float]:
        """The mean loss and the accuracy, 0 to 1, so far."""
        if self._sums is None:
            raise ArgumentError("the loader gave no batches; wanted at least one")
        right, total = self._sums
        return float(total) / self.samples, float(right) / self.samples


class Trainer:
    """Trains a classifier: ``Trainer(model, optimizer).fit(loader, epochs)``.

    A step is: forward, ``optimizer.zero_grad()``, backward, ``optimizer.step()``,
    ``schedule.step()``.

    Args:
        model: takes a batch of inputs to logits [N, C]; on the device of the batches.
        optimizer: of the model's parameters.
        loss: takes logits and class numbers [N] to a mean; CrossEntropyLoss where None.
        schedule: stepped after each step, not each epoch.
        progress: a bar on standard error, or a line an epoch where that is no terminal.
        amp: bfloat16 or float16 to run model and loss under :class:`nn.amp.autocast`, with
            float16 scaled by a :class:`nn.amp.GradScaler`; None to leave them as they are.

    Attributes:
        scaler: the GradScaler, enabled for float16 alone; its state belongs in a checkpoint.

    Raises:
        DTypeError: for another ``amp``.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
        schedule: Schedule | None = None,
        progress: bool = True,
        amp: Any = None,
    ) -> None:
        self.model, self.optimizer = model, optimizer
        self.loss = CrossEntropyLoss() if loss is None else loss
        self.schedule, self.progress = schedule, progress
        self._autocast = None if amp is None else autocast(dtype=amp)
        low = None if self._autocast is None else self._autocast.dtype
        self.scaler = GradScaler(enabled=low is not None and low == float16)

    def fit(
        self, loader: Iterable[Any], epochs: int, eval_loader: Iterable[Any] | None = None
    ) -> list[dict[str, float]]:
        """Train for ``epochs`` passes over ``loader``.

        Args:
            loader: gives (inputs, class numbers), anew in each pass.
            epochs: at least 1.
            eval_loader: evaluated after each epoch.

        Returns:
            A dictionary an epoch: epoch (from 1), loss, accuracy (0 to 1), seconds,
            samples_per_second, and eval_loss and eval_accuracy with ``eval_loader``.

        Raises:
            ArgumentError: for fewer epochs than 1, or a loader that gives no batches.
        """
        if epochs < 1:
            raise ArgumentError(f"epochs is {epochs}; wanted at least 1")
        history = []
        for epoch in range(1, epochs + 1):
            row = self._epoch(loader, f"epoch {epoch}/{epochs}")
            row = {"epoch": epoch, **row}
            if eval_loader is not None:
                row["eval_loss"], row["eval_accuracy"] = self.evaluate(eval_loader)
            history.append(row)
        return history

    def _epoch(self, loader: Iterable[Any], title: str) -> dict[str, float]:
        self.model.train()
        metrics, start, shown = Metrics(), time.perf_counter(), 0.0
        bar = _bar(loader, title) if self.progress and sys.stderr.isatty() else None
        try:
            # Not over the bar, which would close at the end, before the epoch's own figures.
            for inputs, target in loader:
                logits, loss = self._forward(inputs, target)
                self.optimizer.zero_grad()
                self.scaler.scale(loss).backward()
                self.scaler.step(self.optimizer)
                self.scaler.update()
                if self.schedule is not None:
                    self.schedule.step()
                metrics.add(loss, logits, target)
                now = time.perf_counter()
                if bar is not None and now - shown > REFRESH:
                    shown = now
                    text = _text(*metrics.read(), metrics.samples / (now - start))
                    bar.set_postfix_str(text, refresh=False)
                if bar is not None:
                    bar.update()
            mean, accuracy = metrics.read()
            seconds = time.perf_counter() - start
            rate = metrics.samples / seconds
            if bar is not None:
                bar.set_postfix_str(_text(mean, accuracy, rate))
        finally:
            if bar is not None:
                bar.close()  # and with it its line, before any message
        if bar is None and self.progress:
            print(f"{title}: {_text(mean, accuracy, rate)}", file=sys.stderr, flush=True)
        return {
            "loss": mean, "accuracy": accuracy, "seconds": seconds, "samples_per_second": rate,
        }  # fmt: skip

    def _forward(self, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and the loss, in the precision asked for."""
        with self._autocast or contextlib.nullcontext():
            logits = self.model(inputs)
            return logits, self.loss(logits, target)

    def evaluate(self, loader: Iterable[Any]) -> tuple[float, float]:
        """The mean loss and the accuracy (0 to 1) over ``loader``, in evaluation mode.

        Each module's mode is afterwards what it was.

        Raises:
            ArgumentError: for a loader that gives no batches.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        metrics = Metrics()
        try:
            with no_grad():
                for inputs, target in loader:
                    logits, loss = self._forward(inputs, target)
                    metrics.add(loss, logits, target)
        finally:
            for module, mode in modes:
                module.training = mode
        return metrics.read()


def _text(loss: float, accuracy: float, rate: float) -> str:
    return f"loss {loss:.4f}, accuracy {100 * accuracy:.2f} %, {rate:,.0f} samples/s"


def _bar(loader: Iterable[Any], title: str) -> Any:
    from tqdm import tqdm

    return tqdm(
        loader, desc=title, bar_format="{desc} {percentage:3.0f} %|{bar:20}| {remaining}{postfix}"
    )
