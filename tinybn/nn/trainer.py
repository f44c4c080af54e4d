"""The training loop with a progress bar, a schedule and evaluation."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from ..arguments import integer, switch
from ..errors import ArgumentTypeError, CaptureError, StatisticsError
from ..graph import CapturedStep, capture
from ..tensor import Device, Tensor, no_grad
from ..tensor.dtypes import float16
from .amp import GradScaler, autocast
from .batchnorm import trying_out
from .loss import CrossEntropyLoss
from .metrics import Metrics
from .module import Module
from .optim import Optimizer
from .schedule import Schedule

REFRESH = 0.1  # seconds between two readings of the metrics for the bar
MOST_STEPS = 8  # captured ones that are kept


class _Parts(NamedTuple):
    """What a step works with; a captured step is recorded anew where one of them is another."""

    model: Module
    loss: Callable[[Tensor, Tensor], Tensor]
    metrics: Metrics
    optimizer: Any = None  # none in evaluation
    schedule: Schedule | None = None


class Trainer:
    """Trains a model: ``Trainer(model, optimizer).fit(loader, epochs)``.

    A step is: forward, ``optimizer.zero_grad()``, backward, ``optimizer.step()``,
    ``schedule.step()``.

    On a GPU steps are recorded once as CUDA graphs and replayed, as :func:`tb.graph.capture`
    does: what the model and the loss do in Python, other than on Tensors, happens only while
    they are recorded. From a :class:`tb.data.DataLoader` whose Dataset is on the GPU the graph
    gathers its batches itself.

    Args:
        model: takes a batch of inputs to logits [N, C], or to what ``loss`` takes; on the device
            of the batches.
        optimizer: of the model's parameters.
        loss: takes logits and class numbers [N], or outputs and floating targets, to a mean;
            CrossEntropyLoss where None.
        schedule: stepped after each step, not each epoch.
        progress: a bar on standard error, or a line an epoch where that is no terminal.
        amp: bfloat16 or float16 to run model and loss under :class:`nn.amp.autocast`, with
            float16 scaled by a :class:`nn.amp.GradScaler`; None to leave them as they are.
        capture: False to run every step as it is, as is always done on the CPU and for float16,
            whose scaler looks at the gradients.

    A captured step cannot look at its targets: from its third batch on a class number out of
    range gives a loss of NaN, not IndexOutOfRange.

    Attributes:
        model, optimizer, loss, schedule, progress, capture: as given; steps are recorded anew
            where one of them, or a part of the model, becomes another.
        scaler: the GradScaler, enabled for float16 alone; its state belongs in a checkpoint.

    Raises:
        ArgumentError: (and TypeError) for arguments of other types.
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
        capture: bool = True,
    ) -> None:
        for name, value, wanted in (
            ("model", model, Module), ("optimizer", optimizer, Optimizer),
            ("schedule", schedule, Schedule),
        ):  # fmt: skip
            if not isinstance(value, wanted) and not (value is None and wanted is Schedule):
                raise ArgumentTypeError(
                    f"{name} is {type(value).__name__}; wanted a {wanted.__name__}"
                )
        if isinstance(loss, type):
            raise ArgumentTypeError(f"loss is the class {loss.__name__}; wanted {loss.__name__}()")
        if loss is not None and not callable(loss):
            raise ArgumentTypeError(f"loss is {type(loss).__name__}; wanted a function or None")
        self.model, self.optimizer = model, optimizer
        self.loss = CrossEntropyLoss() if loss is None else loss
        self.schedule, self.progress = schedule, switch("progress", progress)
        self._autocast = None if amp is None else autocast(dtype=amp)
        low = None if self._autocast is None else self._autocast.dtype
        self.scaler = GradScaler(enabled=low is not None and low == float16)
        self.capture = switch("capture", capture)
        self._training, self._evaluation = Metrics(), Metrics()
        self._captured: dict[Any, CapturedStep] = {}  # in the order of their last use

    def fit(
        self, loader: Iterable[Any], epochs: int, eval_loader: Iterable[Any] | None = None
    ) -> list[dict[str, float]]:
        """Train for ``epochs`` passes over ``loader``.

        Args:
            loader: gives (inputs, targets), anew in each pass.
            epochs: at least 1.
            eval_loader: evaluated after each epoch.

        Returns:
            A dictionary an epoch: epoch (from 1), loss, accuracy (0 to 1; NaN where targets are
            no class numbers), seconds, samples_per_second, and eval_loss and eval_accuracy with
            ``eval_loader``.

        Raises:
            ArgumentError: for fewer epochs than 1, or a loader that gives no batches.
            StatisticsError: (a ShapeError) before anything is changed, for a DataLoader whose last
                batch is of one example, where a BatchNorm would see one value a channel. To find
                out, one example goes through the model.
            CaptureError: (a RuntimeError) on a GPU, for a model or a loss that cannot be captured.
        """
        epochs = integer("epochs", epochs, 1)
        self._check_lone_example(loader)
        history = []
        for epoch in range(1, epochs + 1):
            row = self._epoch(loader, f"epoch {epoch}/{epochs}")
            row = {"epoch": epoch, **row}
            if eval_loader is not None:
                row["eval_loss"], row["eval_accuracy"] = self.evaluate(eval_loader)
            history.append(row)
        return history

    def _check_lone_example(self, loader: Iterable[Any]) -> None:
        """Raise StatisticsError where an epoch has a batch of one that the model cannot take."""
        find = getattr(loader, "lone_example", None)
        inputs = None if find is None else find()
        if inputs is None:
            return
        try:
            with trying_out(self.model), no_grad(), self._precision():
                self.model(inputs)
        except StatisticsError as error:
            every = getattr(loader, "batch_size", None) == 1
            which = "each batch" if every else "the last batch of an epoch"
            wanted = "a batch_size of 2 or more" if every else "drop_last=True in the DataLoader"
            raise StatisticsError(
                f"{which} is one example, which BatchNorm cannot train on ({error}); "
                f"wanted {wanted}"
            ) from error

    def _epoch(self, loader: Iterable[Any], title: str) -> dict[str, float]:
        self.model.train()
        metrics, start, shown = self._training, time.perf_counter(), 0.0
        parts = _Parts(self.model, self.loss, metrics, self.optimizer, self.schedule)
        bar = _bar(loader, title) if self.progress and sys.stderr.isatty() else None
        try:
            # Not over the bar, which would close at the end, before the epoch's own figures.
            for _ in self._steps(self._train, parts, loader):
                if bar is None:
                    continue
                now = time.perf_counter()
                if now - shown > REFRESH:
                    shown = now
                    seen = metrics.glance()
                    if seen is not None:
                        text = _text(*seen, metrics.samples / (now - start))
                        bar.set_postfix_str(text, refresh=False)
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

    def _steps(
        self, step: Callable[[_Parts, Tensor, Tensor], None], parts: _Parts, loader: Iterable[Any]
    ) -> Iterator[None]:
        """Do ``step`` on each batch of a pass, and stop after each, for a bar to go on."""
        metrics = parts.metrics
        metrics.reset()
        begin = getattr(loader, "begin_on_device", None)
        begun = begin() if begin is not None and self._captures() else None
        if begun is None:
            for batch in loader:
                inputs, target = _pair(batch, loader)
                on_gpu = isinstance(inputs, Tensor) and inputs.device.type == "cuda"
                if on_gpu and self._captures():
                    self._replay(inputs.device, None, step, parts, inputs, target)
                else:
                    step(parts, inputs, target)
                metrics.count(target)
                yield
        else:
            epoch, sizes = begun
            for size in sizes:
                self._replay(epoch.device, epoch, _next_of, step, parts, epoch, size)
                metrics.samples += size
                yield

    def _captures(self) -> bool:
        return self.capture and not self.scaler.is_enabled()

    def _replay(
        self, device: Device, epoch: Any, step: Callable[..., None], *arguments: Any
    ) -> None:
        """Do ``step``, captured; for each data set and whatever else differs in a way of its own.

        The least recently used of more than MOST_STEPS is forgotten, with its graphs' memory.
        """
        key = (device, epoch, step, *(a for a in arguments if not isinstance(a, (Tensor, int))))
        captured = self._captured.pop(key, None) or capture(step, device)
        self._captured[key] = captured  # the last is the most recently used
        if len(self._captured) > MOST_STEPS:
            del self._captured[next(iter(self._captured))]
        try:
            captured(*arguments)
        except CaptureError as error:
            raise CaptureError(f"{error}; or Trainer(…, capture=False)") from error

    def _train(self, parts: _Parts, inputs: Tensor, target: Tensor) -> None:
        logits, loss = self._forward(parts, inputs, target)
        parts.metrics.add(loss, logits, target)
        parts.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(parts.optimizer)
        self.scaler.update()
        if parts.schedule is not None:
            parts.schedule.step()

    def _evaluate(self, parts: _Parts, inputs: Tensor, target: Tensor) -> None:
        logits, loss = self._forward(parts, inputs, target)
        parts.metrics.add(loss, logits, target)

    def _forward(self, parts: _Parts, inputs: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """The logits and the loss, in the precision asked for."""
        with self._precision():
            logits = parts.model(inputs)
            return logits, parts.loss(logits, target)

    def _precision(self) -> contextlib.AbstractContextManager[Any]:
        return self._autocast or contextlib.nullcontext()

    def evaluate(self, loader: Iterable[Any]) -> tuple[float, float]:
        """The mean loss and the accuracy over ``loader``, in evaluation mode.

        The accuracy is 0 to 1, or NaN where targets are no class numbers.

        Each module's mode is afterwards what it was.

        Raises:
            ArgumentError: for a loader that gives no batches.
            CaptureError: as :meth:`fit`.
        """
        modes = [(module, module.training) for module in self.model.modules()]
        self.model.eval()
        parts = _Parts(self.model, self.loss, self._evaluation)
        try:
            with no_grad():
                for _ in self._steps(self._evaluate, parts, loader):
                    pass
        finally:
            for module, mode in modes:
                module.training = mode
        return self._evaluation.read()


def _next_of(step: Callable[..., None], parts: _Parts, epoch: Any, size: int) -> None:
    """Do ``step`` on the next ``size`` examples of an epoch that gathers them itself."""
    inputs, target = epoch.take(size)
    step(parts, Tensor.wrap(inputs), Tensor.wrap(target))


def _text(loss: float, accuracy: float, rate: float) -> str:
    right = "" if math.isnan(accuracy) else f"accuracy {100 * accuracy:.2f} %, "
    return f"loss {loss:.4f}, {right}{rate:,.0f} samples/s"


def _bar(loader: Iterable[Any], title: str) -> Any:
    from tqdm import tqdm

    return tqdm(
        loader, desc=title, bar_format="{desc} {percentage:3.0f} %|{bar:20}| {remaining}{postfix}"
    )


def _pair(batch: Any, loader: Any) -> tuple[Tensor, Tensor]:
    """The batch as (inputs, target).

    Raises:
        ArgumentTypeError: for what is none, as a data set or a pair of arrays gives.
    """
    pair = isinstance(batch, (tuple, list)) and len(batch) == 2
    if pair and all(isinstance(part, Tensor) for part in batch):
        return batch[0], batch[1]
    raise ArgumentTypeError(
        f"a batch of the {type(loader).__name__} is {type(batch).__name__}; wanted "
        "(inputs, targets), Tensors, as a tinybn.data.DataLoader gives them"
    )
