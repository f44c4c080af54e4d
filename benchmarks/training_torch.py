"""PyTorch's training steps: eager, compiled, and both replayed from a CUDA graph."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from . import anchors, graph_nodes
from .machine import CPU_THREADS
from .timing import WARM_UPS
from .training_problem import (
    BFLOAT16,
    LEARNING_RATE,
    MOMENTUM,
    TF32,
    Configuration,
    Problem,
    Run,
    Trace,
    Turns,
    first_losses,
)

PYTORCH, GRAPH, FUSED = "PyTorch eager", "PyTorch CUDA graph", "PyTorch CUDA graph, fused SGD"
COMPILED, COMPILED_GRAPH = "torch.compile", "torch.compile in a CUDA graph"


@dataclass
class Network:
    """A model with its optimiser, and how its step is taken.

    Attributes:
        forward: takes images and labels to the loss.
        update: the optimiser's step.
        before: bytes that were in use before the first step.
    """

    model: Any
    optimizer: Any
    forward: Callable[[Any, Any], Any]
    update: Callable[[], Any]
    before: int

    def step(self, images: Any, labels: Any) -> Any:
        """Do one step; returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.forward(images, labels)
        loss.backward()
        self.update()
        return loss.detach()


def sequential(torch: Any, layers: Sequence[str], state: Mapping[str, Any]) -> Any:
    """A Sequential of the layers of tinybn's model, by their class names, with its parameters.

    Args:
        torch: the module.
        state: tensors by name; they tell the layers' sizes. Convolutions are 3×3 with padding 1.
    """
    nn = torch.nn
    made = []
    for place, kind in enumerate(layers):
        shape = state[f"{place}.weight"].shape if f"{place}.weight" in state else ()
        bias = f"{place}.bias" in state
        if kind == "Linear":
            made.append(nn.Linear(shape[1], shape[0], bias=bias))
        elif kind == "Conv2d":
            made.append(nn.Conv2d(shape[1], shape[0], 3, padding=1, bias=bias))
        elif kind.startswith("BatchNorm"):
            made.append(getattr(nn, kind)(shape[0]))
        elif kind == "MaxPool2d":
            made.append(nn.MaxPool2d(2))
        else:
            made.append(getattr(nn, kind)())
    model = nn.Sequential(*made)
    model.load_state_dict(state)
    return model


class Torch:
    """PyTorch's candidates.

    Args:
        stream: the address of the CUDA stream that becomes PyTorch's current one; None is for
            the CPU with CPU_THREADS threads.
    """

    def __init__(self, stream: int | None) -> None:
        self._on_gpu = stream is not None
        self._kept: tuple[Problem, list[Any]] | None = None
        self._compiled: Network | None = None
        self.remarks: list[str] = []
        self._device = "cpu" if stream is None else "cuda"
        if stream is None:
            import torch

            torch.set_num_threads(CPU_THREADS)
        else:
            torch = anchors.torch_on(stream)
            torch.backends.cudnn.benchmark = True
            # cuBLAS's workspace comes with its first product, and is no part of a step's memory.
            torch.ones(64, 64, device="cuda").matmul(torch.ones(64, 64, device="cuda"))
        self._torch = torch

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return anchors.torch_versions(self._torch)

    def names(self, configuration: Configuration) -> tuple[str, ...]:
        """The candidates of a row."""
        return (GRAPH, FUSED, COMPILED_GRAPH, COMPILED, PYTORCH) if self._on_gpu else (PYTORCH,)

    def to_compile(self, configuration: Configuration) -> tuple[str, ...]:
        """Those whose building leaves kernels in the cache on disk."""
        return (COMPILED,) if self._on_gpu else ()

    def build(self, problem: Problem, name: str) -> Run:
        """Make one candidate, warm it up, and take its first steps from the initial state."""
        torch = self._torch
        torch.backends.cuda.matmul.allow_tf32 = problem.configuration.precision == TF32
        torch.backends.cudnn.allow_tf32 = problem.configuration.precision == TF32
        turns = Turns(self._pool(problem))
        network = self._network(problem, name)
        for _ in range(WARM_UPS):
            network.step(*turns.next())
        if self._on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()

        def eager() -> Any:
            return network.step(*turns.next())

        next_step, launches = eager, lambda: self._count(eager)
        if name in (GRAPH, FUSED, COMPILED_GRAPH):
            next_step, launches = self._graphed(network, turns)
        self._restore(network, problem)
        turns.rewind()
        losses = first_losses(next_step, lambda loss: float(loss.item()))
        named = network.model.named_parameters()
        trace = Trace(losses, {n: p.detach().cpu().numpy().copy() for n, p in named})
        if not self._on_gpu:
            return Run(next_step, trace, self.wait)
        memory = torch.cuda.max_memory_allocated() - network.before
        return Run(next_step, trace, self.wait, memory, launches)

    def wait(self) -> None:
        """Until the GPU is idle."""
        if self._on_gpu:
            self._torch.cuda.current_stream().synchronize()

    def release(self) -> None:
        """Give the memory of finished rows back to the GPU."""
        self._kept = self._compiled = None
        if self._on_gpu:
            self._torch.cuda.empty_cache()

    def _pool(self, problem: Problem) -> list[Any]:
        """The row's batches on the device, which its candidates share."""
        torch = self._torch
        if self._kept is None or self._kept[0] is not problem:
            arrays = (problem.images, problem.labels)
            images, labels = (torch.from_numpy(a).to(self._device) for a in arrays)
            self._kept = problem, list(zip(images.unbind(), labels.unbind()))
            self._compiled = None
        return self._kept[1]

    def _network(self, problem: Problem, name: str) -> Network:
        """A new network; the compiled one is compiled once a row, for its two candidates."""
        if name not in (COMPILED, COMPILED_GRAPH):
            return self._new_network(problem, fused=name == FUSED)
        if self._compiled is None:
            self._torch._dynamo.reset()  # else the rows before count as recompilations
            self._compiled = self._compile(problem)
        return self._compiled

    def _new_network(self, problem: Problem, fused: bool = False) -> Network:
        torch = self._torch
        model = sequential(torch, problem.layers, self._state(problem)).to(self._device).train()
        before = torch.cuda.memory_allocated() if self._on_gpu else 0
        kind = {"fused": True} if fused else {"foreach": True}
        optimizer = torch.optim.SGD(
            model.parameters(), lr=LEARNING_RATE, momentum=MOMENTUM, **kind
        )  # fmt: skip
        low = problem.configuration.precision == BFLOAT16

        def forward(images: Any, labels: Any) -> Any:
            scope = (
                torch.autocast(self._device, torch.bfloat16) if low else contextlib.nullcontext()
            )
            with scope:
                return torch.nn.functional.cross_entropy(model(images), labels)

        return Network(model, optimizer, forward, optimizer.step, before)

    def _compile(self, problem: Problem) -> Network:
        """Forward with loss, backward and the optimiser's step compiled, in the default mode."""
        torch = self._torch
        network = self._new_network(problem)
        network.forward = torch.compile(network.forward, dynamic=False)
        plain, network.update = network.update, torch.compile(network.update)
        images, labels = self._pool(problem)[0]
        try:
            network.step(images, labels)
        except Exception as error:  # the optimiser is the part that may not compile
            network.update = plain
            network.step(images, labels)
            self.remarks.append(
                f"{problem.configuration.name}: {COMPILED} with the optimiser's step eager, since "
                f"compiled it raised {type(error).__name__}"
            )
        return network

    def _state(self, problem: Problem) -> dict[str, Any]:
        return {name: self._torch.as_tensor(value) for name, value in problem.state.items()}

    def _restore(self, network: Network, problem: Problem) -> None:
        """Back to the initial parameters, in place; momentum 0 is that before a first step."""
        with self._torch.no_grad():
            network.model.load_state_dict(self._state(problem))
            for state in network.optimizer.state.values():
                state["momentum_buffer"].zero_()

    def _graphed(
        self, network: Network, turns: Turns
    ) -> tuple[Callable[[], Any], Callable[[], int | None]]:
        """The step replayed from a graph on inputs of its own, and the count of its launches."""
        images, labels = (tensor.clone() for tensor in turns.next())
        graph, loss = self._captured(lambda: network.step(images, labels))
        graph.instantiate()

        def replay() -> Any:
            new_images, new_labels = turns.next()
            images.copy_(new_images)
            labels.copy_(new_labels)
            graph.replay()
            return loss

        return replay, lambda: graph_nodes.count(graph.raw_cuda_graph()) + 2  # the two copies

    def _count(self, step: Callable[[], Any]) -> int | None:
        try:
            return graph_nodes.count(self._captured(step)[0].raw_cuda_graph())
        except Exception:  # the count is worth having, and no reason to lose the times
            return None

    def _captured(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        """A graph of one step, and what the step returned; everything ran before on this stream,
        which is none that waits for others."""
        graph = self._torch.cuda.CUDAGraph(keep_graph=True)
        self._torch.cuda.synchronize()
        return graph, anchors.record(graph, step)
