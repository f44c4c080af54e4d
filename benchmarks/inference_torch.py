"""PyTorch's inference: eager and compiled."""

from __future__ import annotations

from typing import Any

from . import anchors
from .inference_problem import Problem, Run, prepared
from .machine import CPU_THREADS
from .training_torch import sequential

PYTORCH, COMPILED = "PyTorch eager", "torch.compile"
COMPILED_GRAPH = "torch.compile, reduce-overhead"
MODES = {COMPILED: "default", COMPILED_GRAPH: "reduce-overhead"}


class Torch:
    """PyTorch's candidates, on the CPU with CPU_THREADS threads.

    Args:
        stream: the address of the CUDA stream that becomes PyTorch's current one, None for the CPU.
    """

    def __init__(self, stream: int | None) -> None:
        self._on_gpu = stream is not None
        if stream is None:
            import torch

            torch.set_num_threads(CPU_THREADS)
        else:
            torch = anchors.torch_on(stream)
            torch.backends.cudnn.benchmark = True
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        self._torch = torch
        # The mode is one of CUDA graphs.
        self.names = (PYTORCH, COMPILED, *((COMPILED_GRAPH,) if self._on_gpu else ()))

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return anchors.torch_versions(self._torch)

    def build(self, problem: Problem, name: str) -> Run:
        """Make one candidate and run it on the whole pool."""
        torch, device = self._torch, "cuda" if self._on_gpu else "cpu"
        state = {key: torch.from_numpy(value) for key, value in problem.state.items()}
        model = network(torch, problem, state).to(device).eval()
        if name in MODES:
            torch._dynamo.reset()  # else the rows before count as recompilations
            model = torch.compile(model, dynamic=False, mode=MODES[name])
        pool = [torch.from_numpy(images).to(device) for images in problem.images]

        def forward(images: Any) -> Any:
            with torch.inference_mode():
                return model(images)

        return prepared(forward, pool, self.wait, lambda logits: logits.cpu().numpy())

    def wait(self) -> None:
        """Until the GPU is idle."""
        if self._on_gpu:
            self._torch.cuda.current_stream().synchronize()


def network(torch: Any, problem: Problem, state: dict[str, Any]) -> Any:
    """The layers of tinybn's model, with its parameters."""
    if problem.model != "resnet8":
        return sequential(torch, problem.layers, state)
    model = _resnet8(torch, state)
    model.load_state_dict(state)
    return model


def _resnet8(torch: Any, state: dict[str, Any]) -> Any:
    nn, functional = torch.nn, torch.nn.functional

    class Block(nn.Module):
        def __init__(self, before: int, width: int, stride: int) -> None:
            super().__init__()
            self.conv1 = nn.Conv2d(before, width, 3, stride, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.downsample = None
            if before != width:
                shortcut = nn.Conv2d(before, width, 1, stride, bias=False)
                self.downsample = nn.Sequential(shortcut, nn.BatchNorm2d(width))

        def forward(self, x: Any) -> Any:
            shortcut = x if self.downsample is None else self.downsample(x)
            x = functional.relu(self.bn1(self.conv1(x)))
            return functional.relu(self.bn2(self.conv2(x)) + shortcut)

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            first = state["conv1.weight"].shape
            classes, last = state["fc.weight"].shape
            self.conv1 = nn.Conv2d(first[1], first[0], 3, padding=1, bias=False)
            self.bn1 = nn.BatchNorm2d(first[0])
            widths = [len(state[f"layers.{i}.conv1.weight"]) for i in range(3)]
            pairs = zip([first[0], *widths], widths, (1, 2, 2))
            self.layers = nn.Sequential(*(Block(*sizes) for sizes in pairs))
            self.pool = nn.AdaptiveAvgPool2d(1)
            self.fc = nn.Linear(last, classes)

        def forward(self, x: Any) -> Any:
            x = self.layers(functional.relu(self.bn1(self.conv1(x))))
            return self.fc(self.pool(x).flatten(1))

    return Network()
