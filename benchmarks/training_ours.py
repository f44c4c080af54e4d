"""tinybn's training steps: captured in a graph, and eager."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tinybn as tb
from tinybn import nn
from tinybn.kernels import gpu

from . import graph_nodes, machine
from .training_problem import (
    BFLOAT16,
    FLOAT32,
    LEARNING_RATE,
    MOMENTUM,
    TF32,
    Configuration,
    Problem,
    Run,
    Trace,
    Turns,
    first_losses,
    new_model,
)

CAPTURED, CAPTURED_HIGHEST, EAGER = "tinybn captured", "tinybn captured, highest", "tinybn eager"


class Ours:
    """tinybn's candidates on ``"cuda"``, or on ``"cpu"``, where there is nothing to capture."""

    def __init__(self, device: str = "cuda") -> None:
        self._device = device
        self._kept: tuple[Problem, list[Any]] | None = None

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return machine.our_versions()

    def names(self, configuration: Configuration) -> tuple[str, ...]:
        """The candidates of a row; float32's own products are a choice in float32 alone."""
        if self._device == "cpu":
            return (EAGER,)
        highest = (CAPTURED_HIGHEST,) if configuration.precision == FLOAT32 else ()
        return (CAPTURED, *highest, EAGER)

    def to_compile(self, configuration: Configuration) -> tuple[str, ...]:
        """Those whose building leaves kernels in the cache on disk."""
        return self.names(configuration)

    def build(self, problem: Problem, name: str) -> Run:
        """Make one candidate and take its first steps."""
        configuration = problem.configuration
        model = new_model(configuration.model).to(self._device)
        turns = Turns(self._pool(problem))
        precision = configuration.precision
        step = self._step(model, precision)
        counts: list[int | None] = [None]
        if name != EAGER:
            step = tb.graph.capture(self._counted(step, counts))
        products = "highest" if name == CAPTURED_HIGHEST else "high"
        if precision == TF32:
            products = "medium"

        def next_step() -> Any:
            tb.set_float32_matmul_precision(products)  # candidates of one process differ in it
            return step(*turns.next())

        with self._watch() as peak:
            losses = first_losses(next_step, lambda loss: float(loss.item()))
        named = model.named_parameters()
        trace = Trace(losses, {n: p.detach().to("cpu").numpy().copy() for n, p in named})
        return Run(next_step, trace, self.wait, peak(), launches=lambda: counts[-1])

    def wait(self) -> None:
        """Until the GPU is idle."""
        if self._device == "cuda":
            import cupy

            cupy.cuda.get_current_stream().synchronize()

    def release(self) -> None:
        """Give the memory of finished rows back to the GPU."""
        self._kept = None
        if self._device == "cuda":
            import cupy

            cupy.get_default_memory_pool().free_all_blocks()

    def _pool(self, problem: Problem) -> list[Any]:
        """The row's batches on the device, which its candidates share."""
        if self._kept is None or self._kept[0] is not problem:
            images, labels = (tb.as_tensor(a).to(self._device) for a in
                              (problem.images, problem.labels))  # fmt: skip
            self._kept = problem, [(images[i], labels[i]) for i in range(len(problem.labels))]
        return self._kept[1]

    def _step(self, model: nn.Module, precision: str) -> Callable[..., Any]:
        optimizer = nn.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM)

        def scope() -> contextlib.AbstractContextManager:
            if precision != BFLOAT16:
                return contextlib.nullcontext()
            return nn.amp.autocast(dtype=tb.bfloat16)

        def step(images: Any, labels: Any) -> Any:
            with scope():
                loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss

        return step

    def _counted(self, step: Callable[..., Any], counts: list[int | None]) -> Callable[..., Any]:
        """``step``, which also adds the launches of the graph that it is recorded in, if any."""

        def counted(images: Any, labels: Any) -> Any:
            loss = step(images, labels)
            if self._device == "cuda":
                counts.append(graph_nodes.count_so_far(gpu.calls().stream().ptr))
            return loss

        return counted

    @contextlib.contextmanager
    def _watch(self) -> Iterator[Callable[[], int | None]]:
        """Count the bytes that CuPy's pools, a graph's own included, give out at once."""
        if self._device == "cpu":
            yield lambda: None
            return
        import cupy

        live: dict[int, int] = {}
        most = 0

        class Peak(cupy.cuda.MemoryHook):
            name = "peak"

            def malloc_postprocess(self, **given: Any) -> None:
                nonlocal most
                live[given["mem_ptr"]] = given["mem_size"]
                most = max(most, sum(live.values()))

            def free_postprocess(self, **given: Any) -> None:
                live.pop(given["mem_ptr"], None)  # what was there before counts neither way

        with Peak():
            yield lambda: most
