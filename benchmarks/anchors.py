"""What ours is measured beside: PyTorch and JAX, which nothing else here imports."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from .problem import EPS, MOMENTUM, Problem, channels_second
from .rows import CHANNELS_LAST
from .timing import WARM_UPS, Job, Outputs

PYTORCH, CUDNN_OFF, COMPILED, JAX = "PyTorch", "cuDNN off", "torch.compile", "JAX"
ANCHORS = (PYTORCH, CUDNN_OFF, COMPILED)  # replayed from graphs, as ours
OUTPUTS = ("y", "dx", "dweight", "dbias")
Step = Callable[[], Outputs]
Outcome = TypeVar("Outcome")


def torch_on(stream: int) -> Any:
    """Import PyTorch, with the CUDA stream at that address as its current one."""
    import torch
    import torch._inductor.config

    torch.cuda.set_stream(torch.cuda.ExternalStream(stream))
    # Where Inductor tries several kernels it shall do so here, not trust a choice from a
    # process that shared the GPU, such as those of compile_slice.
    torch._inductor.config.autotune_local_cache = False
    return torch


def torch_versions(torch: Any) -> dict[str, str]:
    """Of PyTorch and what it runs on."""
    versions = {"PyTorch": torch.__version__}
    if torch.cuda.is_available():
        versions["PyTorch's CUDA"] = torch.version.cuda
        versions["cuDNN"] = str(torch.backends.cudnn.version())
    return versions


def jax_on_gpu() -> Any:
    """Import JAX, with what it compiles kept on disk and a GPU that it must find."""
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # the GPU is shared
    import jax

    cache = Path(tempfile.gettempdir()) / "tinybn-benchmarks-jax"
    jax.config.update("jax_compilation_cache_dir", str(cache))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax.devices("gpu")
    return jax


class Torch:
    """PyTorch's batch_norm, eager and compiled, on the stream that is given.

    Args:
        stream: the address of a CUDA stream, which becomes PyTorch's current one.
    """

    names = ANCHORS

    def __init__(self, stream: int) -> None:
        self._torch = torch_on(stream)

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return torch_versions(self._torch)

    def jobs(self, problem: Problem, name: str) -> tuple[Job, Job]:
        """Forward, and forward and backward, captured in a graph each."""
        forward, both, scope = self._steps(problem, name)
        with scope():
            return self._captured(forward), self._captured(both)

    def compile(self, problem: Problem) -> None:
        """Run the compiled steps once, which leaves them in Inductor's cache on disk."""
        _, both, _ = self._steps(problem, COMPILED)
        both()
        self._torch.cuda.synchronize()

    def host_layer(self, shape: tuple[int, ...]) -> Callable[[], Any]:
        """A call of BatchNorm2d in training on a float32 tensor."""
        layer = self._torch.nn.BatchNorm2d(shape[1], device="cuda").train()
        x = self._torch.randn(shape, device="cuda")
        return lambda: layer(x)

    def release(self) -> None:
        """Give the memory of finished rows back to the GPU."""
        self._torch.cuda.empty_cache()

    def _tensor(self, memory: Any, problem: Problem) -> Any:
        """A tensor on the memory of a CuPy array of ``row.memory_shape``."""
        torch = self._torch
        if problem.row.dtype == "bfloat16":  # which CuPy's DLPack may lack
            tensor = torch.from_dlpack(memory.view("int16")).view(torch.bfloat16)
        else:
            tensor = torch.from_dlpack(memory)
        last = problem.row.layout == CHANNELS_LAST
        return tensor.permute(0, 3, 1, 2) if last else tensor

    def _steps(
        self, problem: Problem, name: str
    ) -> tuple[Step, Step, Callable[[], contextlib.AbstractContextManager]]:
        torch = self._torch
        x, dy = (self._tensor(a, problem) for a in (problem.x_memory, problem.dy_memory))
        weight, bias = (torch.from_dlpack(a) for a in (problem.weight, problem.bias))
        wanted = tuple(a.detach().requires_grad_() for a in (x, weight, bias))
        x, weight, bias = wanted
        mean, var = torch.zeros_like(weight), torch.ones_like(weight)

        def function(x: Any, mean: Any, var: Any, weight: Any, bias: Any) -> Any:
            return torch.nn.functional.batch_norm(x, mean, var, weight, bias, True, MOMENTUM, EPS)

        if name == COMPILED:
            torch._dynamo.reset()
            function = torch.compile(function, dynamic=False)

        def forward() -> Outputs:
            # With gradients on, so that one compilation serves both steps.
            return {"y": function(x, mean, var, weight, bias).detach()}

        def both() -> Outputs:
            y = function(x, mean, var, weight, bias)
            gradients = torch.autograd.grad(y, wanted, dy)
            return dict(zip(OUTPUTS, (y.detach(), *gradients)))

        if name == CUDNN_OFF:
            return forward, both, lambda: torch.backends.cudnn.flags(enabled=False)
        return forward, both, contextlib.nullcontext

    def _captured(self, step: Step) -> Job:
        import cupy

        torch = self._torch
        for _ in range(WARM_UPS):
            step()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        outputs = record(graph, step)

        def arrays() -> dict[str, Any]:
            # float32 holds bfloat16 exactly.
            return {name: cupy.from_dlpack(t.float()) for name, t in outputs.items()}

        buffers = [(t.data_ptr(), t.numel() * t.element_size()) for t in outputs.values()]
        return Job(graph.replay, arrays, buffers)


def record(graph: Any, step: Callable[[], Outcome]) -> Outcome:
    """Record one call of ``step`` in a torch.cuda.CUDAGraph; what the call returned."""
    # Not torch.cuda.graph, which collects garbage and empties the cache at every capture.
    graph.capture_begin(capture_error_mode="relaxed")
    try:
        outcome = step()
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to show
            graph.capture_end()
        raise
    graph.capture_end()
    return outcome


class Jax:
    """JAX's jitted BatchNorm, which it dispatches itself: there is no graph to replay."""

    names = (JAX,)

    def __init__(self) -> None:
        self._jax = jax_on_gpu()

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return {"JAX": self._jax.__version__}

    def jobs(self, problem: Problem, name: str) -> tuple[Job, Job]:
        """Forward, and forward and backward; each run waits for its results."""
        forward, both = self._steps(problem)
        return self._job(forward, problem), self._job(both, problem)

    def compile(self, problem: Problem) -> None:
        """Run both steps once, which leaves them in JAX's cache on disk."""
        self._jax.block_until_ready([step() for step in self._steps(problem)])

    def release(self) -> None:
        """Nothing: XLA keeps its memory for the next row."""

    def _steps(self, problem: Problem) -> tuple[Step, Step]:
        import cupy

        jax, jnp = self._jax, self._jax.numpy
        last = problem.row.layout == CHANNELS_LAST
        axis = len(problem.row.shape) - 1 if last else 1
        axes = tuple(a for a in range(len(problem.row.shape)) if a != axis)
        column = tuple(-1 if a == axis else 1 for a in range(len(problem.row.shape)))

        def forward(x: Any, weight: Any, bias: Any, mean: Any, var: Any) -> Any:
            wide = x.astype(jnp.float32)
            batch_mean = wide.mean(axes)
            centred = wide - batch_mean.reshape(column)
            batch_var = (centred * centred).mean(axes)
            scale = (weight * jax.lax.rsqrt(batch_var + EPS)).reshape(column)
            y = (centred * scale + bias.reshape(column)).astype(x.dtype)
            n = x.size // weight.size
            new_mean = (1 - MOMENTUM) * mean + MOMENTUM * batch_mean
            new_var = (1 - MOMENTUM) * var + MOMENTUM * batch_var * (n / (n - 1))
            return y, (new_mean, new_var)

        def both(x: Any, weight: Any, bias: Any, mean: Any, var: Any, dy: Any) -> Any:
            y, pullback, running = jax.vjp(
                lambda *a: forward(*a, mean, var), x, weight, bias, has_aux=True
            )
            return (y, *pullback(dy)), running

        cupy.cuda.get_current_stream().synchronize()  # JAX has streams of its own
        x, dy = (self._array(a, problem) for a in (problem.x_memory, problem.dy_memory))
        columns = [jnp.from_dlpack(a) for a in (problem.weight, problem.bias)]
        running = [jnp.zeros_like(columns[0]), jnp.ones_like(columns[0])]
        jitted_forward, jitted_both = jax.jit(forward), jax.jit(both)

        def call_forward() -> Outputs:
            return {"y": jitted_forward(x, *columns, *running)[0]}

        def call_both() -> Outputs:
            outputs, _ = jitted_both(x, *columns, *running, dy)
            return dict(zip(OUTPUTS, outputs))

        return call_forward, call_both

    def _array(self, memory: Any, problem: Problem) -> Any:
        jnp = self._jax.numpy
        if problem.row.dtype != "bfloat16":
            return jnp.from_dlpack(memory)
        bits = jnp.from_dlpack(memory.view("int16"))
        return self._jax.lax.bitcast_convert_type(bits, jnp.bfloat16)

    def _job(self, step: Step, problem: Problem) -> Job:
        import cupy

        latest: Outputs = {}

        def run() -> None:
            latest.clear()  # so that two results are never held at once
            latest.update(self._jax.block_until_ready(step()))

        def arrays() -> dict[str, Any]:
            wide = {name: a.astype(self._jax.numpy.float32) for name, a in latest.items()}
            self._jax.block_until_ready(wide)
            return {
                name: channels_second(a, problem.row) if a.ndim > 2 else a
                for name, a in ((name, cupy.from_dlpack(a)) for name, a in wide.items())
            }

        for _ in range(WARM_UPS):
            run()
        return Job(run, arrays, [], on_device=False)
