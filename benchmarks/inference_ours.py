"""tinybn's inference: a compiled graph, and the model called eagerly."""

from __future__ import annotations

from typing import Any

import tinybn as tb

from . import machine
from .inference_problem import Problem, Run, prepared, trained_model
from .training_ours import Ours as Trained

COMPILED, EAGER = "tinybn compiled", "tinybn eager"


def compiled_graph(problem: Problem, device: str = "cpu") -> tb.graph.RuntimeGraph:
    """The graph of the problem's model, compiled on its first batch."""
    model = trained_model(problem.model).to(device)
    return tb.graph.compile(model, tb.as_tensor(problem.images[0]).to(device))


class Ours:
    """tinybn's candidates on ``"cuda"`` or ``"cpu"``."""

    names = (COMPILED, EAGER)

    def __init__(self, device: str) -> None:
        self._device = device
        self._wait = Trained(device).wait

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return machine.our_versions()

    def build(self, problem: Problem, name: str) -> Run:
        """Make one candidate and run it on the whole pool."""
        pool = [tb.as_tensor(images).to(self._device) for images in problem.images]
        forward: Any = (
            compiled_graph(problem, self._device).forward
            if name == COMPILED
            else trained_model(problem.model).to(self._device)
        )

        def call(images: Any) -> Any:
            with tb.no_grad():
                return forward(images)

        return prepared(
            forward if name == COMPILED else call, pool, self._wait,
            lambda logits: logits.to("cpu").numpy(),
        )  # fmt: skip
