"""JAX's training step, jitted as a whole, with its state donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from . import anchors
from .problem import EPS
from .problem import MOMENTUM as RUNNING
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

JAX = anchors.JAX


class Jax:
    """JAX's one candidate; XLA dispatches it on streams of its own."""

    def __init__(self) -> None:
        self._jax = anchors.jax_on_gpu()

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return {"JAX": self._jax.__version__}

    def names(self, configuration: Configuration) -> tuple[str, ...]:
        """The candidates of a row."""
        return (JAX,)

    def to_compile(self, configuration: Configuration) -> tuple[str, ...]:
        """Those whose building leaves kernels in the cache on disk."""
        return (JAX,)

    def build(self, problem: Problem, name: str) -> Run:
        """Compile it and take its first steps."""
        jax, jnp = self._jax, self._jax.numpy
        step = jax.jit(step_function(jax, problem), donate_argnums=(0,))
        trained = {key: jnp.array(value) for key, value in problem.parameters().items()}
        running = {
            key: jnp.array(value) for key, value in problem.state.items()
            if key.endswith(("running_mean", "running_var"))
        }  # fmt: skip
        momentum = {key: jnp.zeros_like(value) for key, value in trained.items()}
        state = (trained, running, momentum)
        batches = zip(problem.images, problem.labels.astype(np.int32))
        turns = Turns([(jnp.array(images), jnp.array(labels)) for images, labels in batches])

        def next_step() -> Any:
            nonlocal state
            state, loss = step(state, *turns.next())
            return loss

        losses = first_losses(next_step, float)
        trace = Trace(losses, {key: np.array(value) for key, value in state[0].items()})
        return Run(
            next_step, trace, lambda: jax.block_until_ready(state), on_device=False
        )  # fmt: skip

    def release(self) -> None:
        """Nothing: XLA keeps its memory for the next row."""


def step_function(jax: Any, problem: Problem) -> Callable[..., Any]:
    """(state, images, labels) → (state, loss), of pure functions."""
    jnp, lax = jax.numpy, jax.lax
    precision = problem.configuration.precision
    low = precision == BFLOAT16
    # On a GPU, DEFAULT lets float32 products run in TF32.
    products = lax.Precision.DEFAULT if precision == TF32 else lax.Precision.HIGHEST

    def operands(*arrays: Any) -> tuple[Any, ...]:
        return tuple(a.astype(jnp.bfloat16) for a in arrays) if low else arrays

    def batch_norm(x: Any, trained: Any, running: Any, place: int) -> Any:
        axes = (0, *range(2, x.ndim))
        column = (1, -1, *(1,) * (x.ndim - 2))
        wide = x.astype(jnp.float32)
        mean = wide.mean(axes)
        centred = wide - mean.reshape(column)
        var = (centred * centred).mean(axes)
        scale = (trained[f"{place}.weight"] * lax.rsqrt(var + EPS)).reshape(column)
        y = centred * scale + trained[f"{place}.bias"].reshape(column)
        n = x.size // x.shape[1]
        for name, batch in (("mean", mean), ("var", var * (n / (n - 1)))):
            key = f"{place}.running_{name}"
            running[key] = (1 - RUNNING) * running[key] + RUNNING * batch
        return y.astype(x.dtype)

    def loss_of(trained: Any, running: Any, images: Any, labels: Any) -> Any:
        running, x = dict(running), images
        for place, kind in enumerate(problem.layers):
            weight = trained.get(f"{place}.weight")
            if kind == "Linear":
                x = jnp.matmul(*operands(x, weight.T), precision=products)
                x = x + trained[f"{place}.bias"].astype(x.dtype)
            elif kind == "Conv2d":
                x = lax.conv_general_dilated(
                    *operands(x, weight), (1, 1), "SAME", precision=products,
                    dimension_numbers=("NCHW", "OIHW", "NCHW"),
                )  # fmt: skip
            elif kind.startswith("BatchNorm"):
                x = batch_norm(x, trained, running, place)
            elif kind == "ReLU":
                x = jnp.maximum(x, 0)
            elif kind == "MaxPool2d":
                window = (1, 1, 2, 2)
                least = np.array(-np.inf, x.dtype)
                x = lax.reduce_window(x, least, lax.max, window, window, "VALID")
            else:
                x = x.reshape(len(x), -1)
        logs = jax.nn.log_softmax(x.astype(jnp.float32))
        return -jnp.take_along_axis(logs, labels[:, None], axis=1).mean(), running

    def step(state: Any, images: Any, labels: Any) -> Any:
        trained, running, momentum = state
        value = jax.value_and_grad(loss_of, has_aux=True)
        (loss, running), gradients = value(trained, running, images, labels)
        momentum = {key: MOMENTUM * momentum[key] + gradients[key] for key in momentum}
        trained = {key: trained[key] - LEARNING_RATE * momentum[key] for key in trained}
        return (trained, running, momentum), loss

    return step
