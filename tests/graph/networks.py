"""Drawn networks: as an nn module, and in float64 with a bound on what rounding does to each value.

The bound follows the values through the network: an operation passes on the error that its input
has, times its Lipschitz constant, and adds its own roundings (Higham, Accuracy and Stability of
Numerical Algorithms, sections 3.1 and 3.3). It holds for the layers one by one and for BatchNorm
folded into the product before it, whose roundings are of the same sizes.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from hypothesis import strategies as st

import tinybn as tb
from tinybn import nn
from tinybn.kernels.arrays import accumulation_dtype
from tinybn.testing import epsilon, fill, lay_out

F = nn.functional
CHANNELS, SIZE, CLASSES, LAYERS = 3, 4, 5, 2
LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced")
ACTIVATIONS = ("relu", "silu", "gelu", "tanh", "sigmoid")
KINDS = ("conv", "bn", "bn_residual", "add", "mul", "max_pool", "avg_pool", *ACTIVATIONS)


class Step(NamedTuple):
    """One operation on values made before, counted from the newest; ``layer`` may be shared."""

    kind: str
    first: int
    second: int
    layer: int


steps = st.builds(
    Step, st.sampled_from(KINDS), st.integers(0, 3), st.integers(0, 3), st.integers(0, LAYERS - 1)
)


class Recipe(NamedTuple):
    """A network of images [N, 3, 4, 4] to [N, 5]: its steps, then means or rows, then a Linear."""

    steps: tuple[Step, ...]
    flat: bool
    seed: int
    extra: bool  # whether it returns the last images too

    def last_images(self, x: Any, apply_step: Callable, add: Callable) -> Any:
        """What the steps make of ``x``, with all that no step reads added to the last."""
        values, unused = [x], {0}
        for step in self.steps:
            i, j = (max(len(values) - 1 - back, 0) for back in (step.first, step.second))
            unused -= {i, j} if step.kind in ("bn_residual", "add", "mul") else {i}
            values.append(apply_step(step, values[i], values[j]))
            unused.add(len(values) - 1)
        last = values[-1]
        for i in sorted(unused - {len(values) - 1}):
            last = add(last, values[i])
        return last


recipes = st.builds(
    Recipe, st.lists(steps, min_size=1, max_size=7).map(tuple), st.booleans(),
    st.integers(0, 2**16), st.just(False),
)  # fmt: skip


class Net(nn.Module):
    """The network of a recipe. Every value is used, for what nobody uses has no gradient."""

    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe = recipe
        self.conv = nn.ModuleList(
            [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1) for _ in range(LAYERS)]
        )
        self.bn = nn.ModuleList([nn.BatchNorm2d(CHANNELS) for _ in range(LAYERS)])
        self.fc = nn.Linear(CHANNELS * (SIZE * SIZE if recipe.flat else 1), CLASSES)
        rng = np.random.default_rng(recipe.seed)
        with tb.no_grad():
            for name, tensor in [*self.named_parameters(), *self.named_buffers()]:
                if "num_batches" not in name:
                    values = rng.uniform(0.5, 1.5, tensor.shape)
                    positive = "bn" in name and ("weight" in name or "var" in name)
                    tensor.copy_(tb.Tensor(values if positive else values - 1.0).to(tensor.dtype))

    def forward(self, x: tb.Tensor) -> Any:
        last = self.recipe.last_images(x, self.apply_step, operator.add)
        rows = last.reshape(len(x), -1) if self.recipe.flat else last.mean((2, 3))
        y = self.fc(rows)
        return (y, last) if self.recipe.extra else y

    def apply_step(self, step: Step, a: tb.Tensor, b: tb.Tensor) -> tb.Tensor:
        match step.kind:
            case "conv":
                return self.conv[step.layer](a)
            case "bn":
                return self.bn[step.layer](a)
            case "bn_residual":
                return self.bn[step.layer](a, residual=b, activation="relu")
            case "add":
                return a + b
            case "mul":
                return a * b
            case "max_pool":
                return F.max_pool2d(a, 3, 1, 1)
            case "avg_pool":
                return F.avg_pool2d(a, 3, 1, 1)
        return getattr(F, step.kind)(a)


def images(rng: np.random.Generator, n: int, dtype: Any, layout: str) -> np.ndarray:
    """[n, 3, 4, 4] of normal numbers in a memory layout."""
    return lay_out(fill(rng, (n, CHANNELS, SIZE, SIZE), np.dtype(dtype), "normal"), layout)


class Bounded(NamedTuple):
    """Exact values, and how far rounded ones may lie from them."""

    value: np.ndarray
    error: np.ndarray


class Exact:
    """The network in float64, with bounds for arithmetic in ``dtype``."""

    def __init__(self, net: Net, dtype: Any) -> None:
        self.recipe = net.recipe
        self.state = {k: t.numpy().astype(np.float64) for k, t in net.state_dict().items()}
        self.smallest = (
            2.0**-24 if np.dtype(dtype) == np.float16 else 1e-300
        )  # below normal numbers
        self.eps, self.wide = epsilon(dtype), epsilon(accumulation_dtype(np.dtype(dtype)))

    def __call__(self, x: np.ndarray) -> tuple[Bounded, Bounded]:
        """What the network and its last images are."""
        given = Bounded(x.astype(np.float64), np.zeros(x.shape))
        last = self.recipe.last_images(given, self.apply_step, self.add)
        if self.recipe.flat:
            rows = Bounded(*(a.reshape(len(x), -1) for a in last))
        else:
            rows = self.rounded(
                last.value.mean((2, 3)),
                last.error.mean((2, 3)),
                abs(last.value).mean((2, 3)),
                SIZE**2,
            )
        y = self.product(rows, self.state["fc.weight"], self.state["fc.bias"])
        return y, last

    def rounded(
        self, value: np.ndarray, error: np.ndarray, sizes: np.ndarray, terms: int
    ) -> Bounded:
        """With the roundings of a sum of ``terms`` whose absolute values add up to ``sizes``."""
        own = (3 * self.eps + 2 * (terms + 4) * self.wide) * (sizes + error)
        return Bounded(value, error + own + self.smallest)

    def add(self, a: Bounded, b: Bounded) -> Bounded:
        return self.rounded(a.value + b.value, a.error + b.error, abs(a.value) + abs(b.value), 2)

    def product(self, rows: Bounded, weight: np.ndarray, bias: np.ndarray) -> Bounded:
        error, sizes = rows.error @ abs(weight).T, abs(rows.value) @ abs(weight).T + abs(bias)
        return self.rounded(rows.value @ weight.T + bias, error, sizes, weight.shape[1])

    def windows(self, a: np.ndarray, border: float) -> np.ndarray:
        """[N, H, W, C, 3, 3]: what a 3×3 window over the padded images sees."""
        padded = np.pad(a, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=border)
        seen = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return np.moveaxis(seen, 1, 3)

    def conv(self, a: Bounded, layer: int) -> Bounded:
        weight, bias = (self.state[f"conv.{layer}.{name}"] for name in ("weight", "bias"))
        rows = [self.windows(part, 0.0).reshape(*(len(part), SIZE, SIZE), -1) for part in a]
        y = self.product(Bounded(*rows), weight.reshape(len(weight), -1), bias)
        return Bounded(*(np.moveaxis(part, -1, 1) for part in y))

    def bn(self, a: Bounded, layer: int, residual: Bounded | None = None) -> Bounded:
        weight, bias, mean, var = (
            self.state[f"bn.{layer}.{name}"].reshape(-1, 1, 1)
            for name in ("weight", "bias", "running_mean", "running_var")
        )
        scale = weight / np.sqrt(var + 1e-5)
        value, error = (a.value - mean) * scale + bias, a.error * abs(scale)
        sizes = abs(scale) * (abs(a.value) + abs(mean)) + abs(bias)
        if residual is not None:
            value, error = value + residual.value, error + residual.error
            sizes = sizes + abs(residual.value)
        return self.rounded(value, error, sizes, 8)

    def activation(self, a: Bounded, name: str) -> Bounded:
        z = a.value
        value = {
            "relu": lambda: np.maximum(z, 0),
            "silu": lambda: z / (1 + np.exp(-z)),
            "gelu": lambda: z / 2 * (1 + np.vectorize(math.erf)(z / math.sqrt(2))),
            "tanh": lambda: np.tanh(z),
            "sigmoid": lambda: 1 / (1 + np.exp(-z)),
        }[name]()
        slope = {"silu": 1.1, "gelu": 1.13, "sigmoid": 0.25}.get(name, 1.0)  # the steepest
        sizes = abs(value) + (0 if name == "relu" else abs(z) + 1) * self.wide / self.eps
        return self.rounded(value, slope * a.error, sizes, 4)

    def apply_step(self, step: Step, a: Bounded, b: Bounded) -> Bounded:
        match step.kind:
            case "conv":
                return self.conv(a, step.layer)
            case "bn":
                return self.bn(a, step.layer)
            case "bn_residual":
                return self.activation(self.bn(a, step.layer, b), "relu")
            case "add":
                return self.add(a, b)
            case "mul":
                error = abs(a.value) * b.error + abs(b.value) * a.error + a.error * b.error
                return self.rounded(a.value * b.value, error, abs(a.value * b.value), 1)
            case "max_pool":
                value, error = (self.windows(p, m).max((-2, -1)) for p, m in zip(a, (-np.inf, 0)))
                return Bounded(*(np.moveaxis(p, -1, 1) for p in (value, error)))
            case "avg_pool":
                value, error, sizes = (
                    np.moveaxis(self.windows(p, 0.0).mean((-2, -1)), -1, 1)
                    for p in (*a, abs(a.value))
                )
                return self.rounded(value, error, sizes, 9)
        return self.activation(a, step.kind)


def assert_within(got: np.ndarray, want: Bounded, name: str) -> None:
    """Raise AssertionError where a value lies farther from the exact one than rounding takes it."""
    assert got.shape == want.value.shape, (name, got.shape, want.value.shape)
    off = abs(got.astype(np.float64) - want.value)
    assert (off <= want.error).all(), (name, (off / want.error).max())
