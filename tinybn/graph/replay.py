"""Forward on the CPU as a list of bound calls: what a CUDA graph is on a GPU.

A small network's step is some microseconds of BLAS, and to find out what BLAS is to be called on
(operands, their dtypes and shapes, the checks of both) takes Python several times as long. A
replay calls the engine's functions on the arrays of the run in which they were recorded.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..kernels import reference
from ..kernels.arrays import Array
from ..kernels.launch.observe import Launch, Observer, under
from ..tensor import Tensor
from ..tensor.tape import shares_memory

if TYPE_CHECKING:
    from .plan import Step


class Replay:
    """The steps of a plan, run once on memory of their own and recorded.

    A step is replayed where each array that its calls are given is an input, a parameter or a
    result, or lies in one; one that makes copies, or calls NumPy by itself, is run as it is.

    Args:
        steps: of the plan.
        inputs: an array for each of the graph's inputs, of the shapes and strides of the plan.
        outputs: the names whose results are wanted.
    """

    def __init__(
        self, steps: Sequence[Step], inputs: Mapping[str, Array], outputs: Sequence[str]
    ) -> None:
        self._places = [np.copy(array, order="K") for array in inputs.values()]
        self._outputs = outputs
        self._bound: list[tuple[Tensor, Array]] = []
        self._calls: list[Callable[[], Any]] = []
        results = dict(zip(inputs, self._places))
        for step in steps:
            results[step.node.name] = self._recorded(step, results)
        self._results = [results[name] for name in outputs]

    def is_good(self) -> bool:
        """Whether the parameters still are the arrays that were recorded."""
        for tensor, array in self._bound:
            if tensor.data is not array:
                return False
        return True

    def run(self, inputs: Mapping[str, Array]) -> None:
        """Run all steps on other values of the inputs."""
        for place, array in zip(self._places, inputs.values()):
            place[...] = array
        with np.errstate(all="ignore"):  # infinities and NaN are values, as on the tape
            for call in self._calls:
                call()

    def outputs(self) -> dict[str, Array]:
        """The outputs of the last run, or of the recorded one, each in memory of its own."""
        return {name: a.copy(order="K") for name, a in zip(self._outputs, self._results)}

    def _recorded(self, step: Step, results: Mapping[str, Array]) -> Array:
        """Run a step and note how to do so again; the array that then holds its result."""
        node = step.node
        given = [results[name] for name in node.inputs]
        arrays = node.arrays()
        ctx = node.op.context()
        out = step.out
        if out is None and node.op.takes_out:  # an output of the graph
            out = np.empty(step.shape, step.dtype)
        seen = Observer()
        with under(seen), np.errstate(all="ignore"):
            result = node.op.forward(ctx, given, arrays, out)
        if node.op.op.view and shares_memory(result, given[0]):
            return result  # the next run's values will lie there
        self._bound += [(node.parameters[name], array) for name, array in arrays.items()]
        if out is None or not shares_memory(result, out):
            place = result.copy(order="K")

            def copied() -> None:
                place[...] = node.op.forward(ctx, given, arrays)

            self._calls.append(copied)
            return place
        known = [*given, *arrays.values(), out]
        if seen.launches and all(_is_bound(launch, known) for launch in seen.launches):
            self._calls += map(_call, seen.launches)
        else:
            self._calls.append(lambda: node.op.forward(ctx, given, arrays, out))
        return result


def _is_bound(launch: Launch, known: Sequence[Array]) -> bool:
    """Whether each array that it is given lies in a known one: a copy would keep old values."""
    arrays = (value for value in launch.arguments.values() if isinstance(value, np.ndarray))
    return all(any(shares_memory(array, one) for one in known) for array in arrays)


def _call(launch: Launch) -> Callable[[], None]:
    """The function of ``reference`` on the launch's arguments."""
    given = launch.arguments
    args = [value for key, value in given.items() if isinstance(key, int)]
    options = {key: value for key, value in given.items() if not isinstance(key, int)}
    return functools.partial(getattr(reference, launch.kernel), *args, **options)
