"""The recipe of the time to 99.0 %, and how a run of it reports; imports no framework.

A run's program takes the moment before its process was started, so that what the
interpreter and imports take is counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

BATCH, TEST_BATCH = 512, 1000
EPOCHS, LONG_EPOCHS = 4, 20
PEAK_LEARNING_RATE, MOMENTUM, WEIGHT_DECAY = 0.2, 0.9, 5e-4
LABEL_SMOOTHING = 0.05
SHIFT = 2  # pixels along each axis, in a long run
GOAL, LONG_GOAL = 0.99, 0.995
PHASES = ("import", "load data", "build", "first step", "training", "evaluation", "total")


def parser() -> argparse.ArgumentParser:
    """What the program of one run is told."""
    result = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    result.add_argument("--root", help="the folder of MNIST's four IDX files")
    result.add_argument("--device", default="cuda")
    result.add_argument("--seed", type=int, default=0)
    result.add_argument("--epochs", type=int, default=EPOCHS)
    result.add_argument("--batch", type=int, default=BATCH)
    result.add_argument("--peak", type=float, default=PEAK_LEARNING_RATE, help="the highest rate")
    result.add_argument("--shift", type=int, default=0, help="pixels; 0 leaves images as they are")
    result.add_argument("--start", type=float, default=None, help="monotonic clock at the start")
    return result


@dataclass
class Result:
    """One run.

    Attributes:
        phases: seconds of each of PHASES; the others add up to the total. "first step" is what
            the first epoch takes longer than the median of the others, compilation included,
            and "training" is the rest of the epochs.
        accuracies: on the test set after each epoch.
        reached: seconds from the start of the process to the end of each epoch's evaluation.
    """

    phases: dict[str, float]
    accuracies: list[float]
    reached: list[float]

    def first_at(self, goal: float) -> int | None:
        """The first epoch, from 1, with at least that accuracy; None where there is none."""
        epochs = enumerate(self.accuracies, 1)
        return next((epoch for epoch, accuracy in epochs if accuracy >= goal), None)

    def training_until(self, epoch: int) -> float:
        """Seconds of training up to the end of an epoch."""
        return self.phases["training"] * epoch / len(self.accuracies)

    def as_json(self) -> str:
        """In one line."""
        return json.dumps(asdict(self))


class Clock:
    """Measures a run from its start."""

    def __init__(self, start: float | None) -> None:
        self.start = self._last = time.monotonic() if start is None else start
        self._seconds: dict[str, float] = {}
        self._reached: list[float] = []

    def end(self, phase: str) -> None:
        """Note that a phase has ended."""
        now = time.monotonic()
        self._seconds[phase], self._last = now - self._last, now

    def evaluated(self) -> None:
        """Note that an epoch has been trained and evaluated."""
        self._reached.append(time.monotonic() - self.start)

    def result(self, epoch_seconds: Sequence[float], accuracies: Sequence[float]) -> Result:
        """After the last epoch: what was measured."""
        now = time.monotonic()
        first, rest = epoch_seconds[0], epoch_seconds[1:]
        compiling = max(0.0, first - statistics.median(rest)) if rest else 0.0
        phases = {
            **self._seconds,
            "first step": compiling,
            "training": sum(epoch_seconds) - compiling,
            "evaluation": now - self._last - sum(epoch_seconds),
            "total": now - self.start,
        }
        return Result(phases, list(accuracies), self._reached)
