"""What a training step is: networks, batches, precisions, and the losses that must come out."""

from __future__ import annotations

import contextlib
import functools
import itertools
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import tinybn as tb
from tinybn import nn

MODELS: dict[str, Callable[[], nn.Module]] = {"mlp": nn.models.mlp, "cnn": nn.models.cnn}
BATCHES = (128, 1024)
FLOAT32, TF32, BFLOAT16 = "float32", "TF32", "bfloat16"
PRECISIONS = (FLOAT32, TF32, BFLOAT16)
POOL = 64  # different batches, each used in turn
CHECKED = 5  # steps whose losses, and the parameters after them, are compared
LEARNING_RATE, MOMENTUM = 0.01, 0.9
IMAGE = (1, 28, 28)
CLASSES = 10


@dataclass(frozen=True)
class Configuration:
    """One row of the tables."""

    model: str
    batch: int
    precision: str

    @property
    def name(self) -> str:
        return f"{self.model} {self.batch} {self.precision}"

    @property
    def loss_tolerance(self) -> float:
        """The relative error with which a loss passes.

        A loss is a mean over the batch of terms whose errors are a few roundings of the
        operands and partly cancel: 4 units of 2⁻¹¹ (TF32) or 2⁻⁹ (bfloat16). In float32 the
        sums of up to 3136 products round as well: 64 units of 2⁻²⁴.
        """
        return {FLOAT32: 2.0**-18, TF32: 2.0**-9, BFLOAT16: 2.0**-7}[self.precision]

    @property
    def update_tolerance(self) -> float:
        """The same for what CHECKED steps changed of all parameters: ‖p − want‖ / ‖want − p₀‖.

        Single gradients pass through masks of ReLU and maxima that a rounding flips; the bounds
        are several times what rounding every operand does in float64. A step without momentum,
        or with one wrong layer, exceeds them.
        """
        return {FLOAT32: 5e-3, TF32: 0.1, BFLOAT16: 0.25}[self.precision]


def configurations(
    models: Sequence[str] = tuple(MODELS),
    batches: Sequence[int] = BATCHES,
    precisions: Sequence[str] = PRECISIONS,
) -> list[Configuration]:
    """All rows in the order of the tables."""
    return [Configuration(*row) for row in itertools.product(models, batches, precisions)]


@functools.lru_cache(maxsize=1)
def pool_of(batch: int, batches: int = POOL) -> tuple[np.ndarray, np.ndarray]:
    """Normalised images [batches, batch, 1, 28, 28] and class numbers, the same at every call.

    The classes are those of the largest of ten fixed linear functions of the image, so that
    there is something to learn and the losses tell one update from another.
    """
    generator = np.random.default_rng(batch)
    # First, so that fewer batches are the first ones of more.
    teacher = generator.standard_normal((int(np.prod(IMAGE)), CLASSES), dtype=np.float32)
    images = generator.standard_normal((batches, batch, *IMAGE), dtype=np.float32)
    labels = (images.reshape(batches, batch, -1) @ teacher).argmax(axis=-1)
    return images, labels.astype(np.int64)


@dataclass(frozen=True)
class Problem:
    """What all candidates of a row start from.

    Attributes:
        layers: the class names of the model's layers in order.
        state: the initial parameters and buffers by PyTorch's names.
        images, labels: a pool of batches; candidates write to none.
    """

    configuration: Configuration
    layers: tuple[str, ...]
    state: dict[str, np.ndarray]
    images: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(cls, configuration: Configuration, batches: int = POOL) -> Problem:
        """Draw it; every process draws the same for a model and a batch size."""
        model = new_model(configuration.model)
        state = {name: value.detach().numpy().copy() for name, value in model.state_dict().items()}
        layers = tuple(type(layer).__name__ for layer in model.children())
        return cls(configuration, layers, state, *pool_of(configuration.batch, batches))

    def parameters(self) -> dict[str, np.ndarray]:
        """The initial values of what is trained."""
        return {name: self.state[name] for name in self.state if name.endswith(("weight", "bias"))}


def new_model(name: str, models: Mapping[str, Callable[[], nn.Module]] = MODELS) -> nn.Module:
    """A model on the CPU with the parameters that all candidates start from."""
    tb.manual_seed(zlib.crc32(name.encode()))
    with on_cpu():
        return models[name]()


@contextlib.contextmanager
def on_cpu() -> Iterator[None]:
    """Where new tensors are on the CPU, so that they are the same with a GPU and without one."""
    tb.set_default_device("cpu")
    try:
        yield
    finally:
        tb.set_default_device(None)


@dataclass
class Trace:
    """What CHECKED steps did: the loss of each, and the parameters after them."""

    losses: list[float]
    parameters: dict[str, np.ndarray]

    def save(self, path: Path) -> None:
        """Write it to an ``.npz`` file."""
        np.savez(path, losses=np.array(self.losses), **self.parameters)

    @classmethod
    def load(cls, path: Path) -> Trace:
        """Read what ``save`` wrote."""
        with np.load(path) as arrays:
            values = {name: arrays[name] for name in arrays.files}
        return cls(values.pop("losses").tolist(), values)

    def loss_error(self, want: Trace) -> float:
        """The largest relative error of a loss; infinity where one is NaN."""
        pairs = zip(self.losses, want.losses)
        return _or_infinity(np.max([abs(got - wanted) / abs(wanted) for got, wanted in pairs]))

    def update_error(self, want: Trace, problem: Problem) -> float:
        """‖p − want‖ / ‖want − p₀‖ over all parameters together; infinity where one is NaN."""
        initial = problem.parameters()
        wrong = sum(_square(self.parameters[name] - want.parameters[name]) for name in initial)
        moved = sum(_square(want.parameters[name] - initial[name]) for name in initial)
        return _or_infinity((wrong / moved) ** 0.5)


def _square(array: np.ndarray) -> float:
    return float(np.square(array, dtype=np.float64).sum())


def _or_infinity(value: float) -> float:
    return float(value) if value == value else float("inf")


def reference(problem: Problem) -> Trace:
    """The first CHECKED steps in float64 on the CPU, by tinybn's NumPy engine."""
    model = new_model(problem.configuration.model).to(tb.float64)
    optimizer = nn.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)
    losses = []
    for images, labels in zip(problem.images[:CHECKED], problem.labels):
        logits = model(tb.as_tensor(images.astype(np.float64), device="cpu"))
        loss = nn.functional.cross_entropy(logits, tb.as_tensor(labels, device="cpu"))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trace(losses, {n: p.detach().numpy() for n, p in model.named_parameters()})


@dataclass
class Run:
    """One candidate, built, warm and CHECKED steps into its training.

    Attributes:
        step: queues the next step, with the next batch of the pool.
        trace: of its first steps.
        wait: returns when all that was queued is done.
        memory: the most bytes on the device at once during a step, above the state before the
            first; None where it is not known.
        launches: counts kernels, copies and fills of one step; None where it cannot.
        on_device: whether CUDA events around ``step`` see all of it.
    """

    step: Callable[[], Any]
    trace: Trace
    wait: Callable[[], object]
    memory: int | None = None
    launches: Callable[[], int | None] = lambda: None
    on_device: bool = True


class Turns:
    """The batches of a pool in turn, from the first."""

    def __init__(self, batches: Sequence[Any]) -> None:
        self._batches = batches
        self.rewind()

    def rewind(self) -> None:
        """Begin again."""
        self._cycle = itertools.cycle(self._batches)

    def next(self) -> Any:
        """The next batch."""
        return next(self._cycle)


def first_losses(step: Callable[[], Any], value: Callable[[Any], float]) -> list[float]:
    """The losses of CHECKED steps."""
    return [value(step()) for _ in range(CHECKED)]
