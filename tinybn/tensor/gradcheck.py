"""Gradients held to finite differences.

For outputs y = f(x) and a random upstream gradient v, the tape's gradient of
⟨v, y⟩ is compared with central differences, ⟨v, f(x + εd) − f(x − εd)⟩ / 2ε,
whose error is about ε² f‴/6 + u |f| / ε: near 1e-10 for ε = 1e-6 in float64
(Nocedal and Wright, Numerical Optimization, section 8.1).

The upstream gradient is random because ones prove nothing for functions such as
softmax and batch normalisation, whose outputs sum to a constant.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..arguments import integer, number
from ..errors import ArgumentError, DTypeError
from .grad_mode import enable_grad, no_grad
from .tape import is_tensor
from .tensor import Tensor

_EXHAUSTIVE = 64  # inputs of up to this many elements are checked in every one of them


def gradcheck(
    fn: Callable[..., Any],
    inputs: Tensor | Sequence[Any],
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    *,
    n_projections: int = 4,
    seed: int = 0,
) -> bool:
    """Check the gradients of ``fn`` against central differences.

    Every element of an input of at most 64 elements is perturbed by itself; a
    larger input along ``n_projections`` random directions. Each of them is
    compared under two random upstream gradients. The inputs are not written.

    Args:
        fn: takes the inputs and returns a Tensor or a tuple or list of them.
            It must give the same values each time it is called.
        inputs: a Tensor or a sequence of arguments; the Tensors in it that
            require a gradient are checked and must be float64.
        eps: the step of the differences.
        atol: the difference that is allowed, |analytic − numeric| <= atol + rtol |numeric|.
        rtol: the same, in proportion.
        n_projections: how many random directions a large input is checked along.
        seed: of the directions and upstream gradients.

    Returns:
        True.

    Raises:
        AssertionError: if a gradient is wrong, naming the function, the
            argument, the element and both values; or if ``fn`` is not repeatable.
        DTypeError: if an input to be checked is not float64.
        ArgumentError: if no input requires a gradient, or for numbers outside their range.
    """
    eps = number("eps", eps, above=0)
    atol, rtol = number("atol", atol, least=0), number("rtol", rtol, least=0)
    n_projections, seed = integer("n_projections", n_projections, 1), integer("seed", seed, 0)
    arguments: list[Any] = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    checked = [i for i, x in enumerate(arguments) if is_tensor(x) and x.requires_grad]
    if not checked:
        raise ArgumentError("gradcheck needs at least one input Tensor with requires_grad=True")
    for i in checked:
        if arguments[i].dtype != np.float64:
            raise DTypeError(
                f"gradcheck of argument {i} of dtype {arguments[i].dtype.name}; differences in "
                "less than float64 are too coarse to check a gradient"
            )
    name = getattr(fn, "__name__", type(fn).__name__)
    rng = np.random.default_rng(seed)
    base, again = _evaluate(fn, arguments), _evaluate(fn, arguments)
    if not all(np.array_equal(a, b, equal_nan=True) for a, b in zip(base, again, strict=True)):
        raise AssertionError(f"gradcheck: {name} gave two results for the same inputs")
    upstreams = [[rng.standard_normal(y.shape) for y in base] for _ in range(2)]
    analytic = [_analytic(fn, arguments, checked, upstream) for upstream in upstreams]
    for i in checked:
        values = arguments[i].detach().numpy()
        for where, direction in _directions(values.shape, n_projections, rng):
            ahead, behind = (
                _evaluate(fn, _replaced(arguments, i, values + step * direction))
                for step in (eps, -eps)
            )
            with np.errstate(all="ignore"):
                slopes = [(a - b) / (2 * eps) for a, b in zip(ahead, behind, strict=True)]
            for upstream, gradients in zip(upstreams, analytic, strict=True):
                with np.errstate(all="ignore"):
                    numeric = float(sum(np.sum(v * s) for v, s in zip(upstream, slopes)))
                    exact = float(np.sum(gradients[i] * direction))
                # Written so that a NaN fails.
                if not abs(exact - numeric) <= atol + rtol * abs(numeric):
                    raise AssertionError(
                        f"gradcheck: {name}, argument {i} of shape {values.shape}, {where}: "
                        f"the tape gives {exact!r}, central differences give {numeric!r}"
                    )
    return True


def _directions(
    shape: tuple[int, ...], n_projections: int, rng: np.random.Generator
) -> Iterator[tuple[str, np.ndarray]]:
    """The directions to check along, each with the words that name it."""
    size = int(np.prod(shape, dtype=np.int64))
    if size <= _EXHAUSTIVE:
        for index in np.ndindex(shape):
            direction = np.zeros(shape)
            direction[index] = 1.0
            yield f"element {index}", direction
    else:
        for number in range(n_projections):
            direction = rng.standard_normal(shape)
            yield f"random direction {number}", direction / np.linalg.norm(direction)


def _outputs(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[Tensor]:
    result = fn(*arguments)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _evaluate(fn: Callable[..., Any], arguments: Sequence[Any]) -> list[np.ndarray]:
    """The outputs of ``fn`` as arrays of their own, unrecorded."""
    with no_grad():
        return [np.array(y.detach().numpy(), np.float64) for y in _outputs(fn, arguments)]


def _replaced(arguments: Sequence[Any], position: int, values: np.ndarray) -> list[Any]:
    """The arguments with other values, on the same device, at one position."""
    result = list(arguments)
    result[position] = Tensor(values, device=arguments[position].device)
    return result


def _analytic(
    fn: Callable[..., Any],
    arguments: Sequence[Any],
    checked: Sequence[int],
    upstream: Sequence[np.ndarray],
) -> dict[int, np.ndarray]:
    """The tape's gradient of ⟨upstream, fn(arguments)⟩ for each argument checked."""
    leaves = list(arguments)
    for i in checked:  # leaves of our own, so that the caller's ``grad`` stays as it is
        leaves[i] = arguments[i].detach()
        leaves[i].requires_grad = True
    with enable_grad():
        outputs = _outputs(fn, leaves)
    for y, v in zip(outputs, upstream, strict=True):
        if y.requires_grad:
            y.backward(Tensor(v.astype(y.dtype), device=y.device), retain_graph=True)
    return {
        i: np.zeros(leaves[i].shape) if leaves[i].grad is None else leaves[i].grad.numpy()
        for i in checked
    }
