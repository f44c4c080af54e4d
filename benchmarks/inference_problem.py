"""What inference is measured on: networks, batches, and the logits that must come out."""

from __future__ import annotations

import functools
import itertools
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import tinybn as tb
from tinybn import nn

from .timing import WARM_UPS
from .training_problem import MODELS as TRAINED
from .training_problem import new_model, pool_of

MODELS: dict[str, Callable[[], nn.Module]] = {**TRAINED, "resnet8": nn.models.resnet8}
BATCHES = (1, 256)
POOL = 8  # different batches, each used in turn
WARMING = 32  # images whose statistics BatchNorm takes for those of the training


@dataclass(frozen=True)
class Problem:
    """What all candidates of a row are given.

    Attributes:
        model: the key in MODELS.
        batch: images of a call.
        layers: the class names of the model's children in order.
        state: the parameters and buffers by PyTorch's names.
        images: [POOL, batch, 1, 28, 28]; candidates write to none.
    """

    model: str
    batch: int
    layers: tuple[str, ...]
    state: dict[str, np.ndarray]
    images: np.ndarray

    @classmethod
    def of(cls, model: str, batch: int) -> Problem:
        """Draw it; every process draws the same for a model and a batch size."""
        made = trained_model(model)
        state = {name: value.detach().numpy() for name, value in made.state_dict().items()}
        layers = tuple(type(layer).__name__ for layer in made.children())
        return cls(model, batch, layers, state, pool_of(batch, POOL)[0])

    @property
    def name(self) -> str:
        return f"{self.model} {self.batch}"

    @property
    def tolerance(self) -> float:
        """The relative error with which logits pass.

        Rounding at random makes sums of K products wrong by √K units of 2⁻²⁴, which up to eight
        layers in turn add up; K is at most the 3136 of the last layer of ``cnn``. TF32, whose
        units are 2⁻¹¹, is out of it.
        """
        return 8 * math.sqrt(3136) * 2.0**-24

    @functools.cached_property
    def logits(self) -> np.ndarray:
        """[POOL, batch, 10] in float64 by tinybn's NumPy engine, layer by layer."""
        model = trained_model(self.model).to(tb.float64)
        with tb.no_grad():
            found = [
                model(tb.as_tensor(images.astype(np.float64), device="cpu")).numpy()
                for images in self.images
            ]
        return np.stack(found)

    def error(self, logits: Sequence[np.ndarray]) -> float:
        """max|got − want| / max|want| over the whole pool; infinity where one is NaN."""
        want = self.logits
        error = float(np.abs(np.stack(logits) - want).max() / np.abs(want).max())
        return error if error == error else math.inf


def trained_model(name: str) -> nn.Module:
    """A model on the CPU in evaluation mode, with BatchNorm as if it had been trained."""
    model = new_model(name, MODELS)
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    images = generator.standard_normal((WARMING, 1, 28, 28), dtype=np.float32)
    with tb.no_grad():
        model(tb.as_tensor(images, device="cpu"))
        for layer in model.modules():
            if isinstance(layer, (nn.BatchNorm1d, nn.BatchNorm2d)):
                size = layer.weight.size
                layer.weight.data[...] = generator.uniform(0.5, 1.5, size)
                layer.bias.data[...] = generator.normal(0, 0.1, size)
    return model.eval()


@dataclass
class Run:
    """One candidate, built and warm.

    Attributes:
        call: starts inference on the next batch of the pool, which is on the device.
        wait: returns when all that was started is done.
        logits: of each batch of the pool.
    """

    call: Callable[[], Any]
    wait: Callable[[], object]
    logits: list[np.ndarray]


def prepared(
    forward: Callable[[Any], Any],
    pool: Sequence[Any],
    wait: Callable[[], object],
    on_host: Callable[[Any], np.ndarray],
) -> Run:
    """A Run of ``forward`` on the pool's batches in turn, which has run on each and is warm.

    Args:
        forward: takes a batch to its result.
        on_host: takes a result to a NumPy array.
    """
    for _ in range(WARM_UPS):  # compiles, chooses algorithms, records
        forward(pool[0])
    logits = [np.array(on_host(forward(images))) for images in pool]
    turns = itertools.cycle(pool)
    return Run(lambda: forward(next(turns)), wait, logits)
