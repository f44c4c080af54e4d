"""An infinity or a NaN reaches what reads it, and nothing else.

A mask made of zeros and multiplied, a window's padding, a share of 0: each would make NaN of an
infinity that the mathematics does not read. So one is put at a place of an input, or of the
incoming gradient. All results that do not read that place keep their bits, and all that do
become NaN with a NaN. (``reach_cases.py`` and ``reach_network.py`` say which do.)
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.engines import CPU, CUDA, INTERPRET, Engine
from tests.tensor.reach_cases import TENSORS, Row, single
from tests.tensor.reach_network import NETWORK
from tests.tensor.test_gradients import PACKAGE, UNREACHED, all_ops, ops_of
from tinybn.tensor import Tensor
from tinybn.tensor.tape import Op

ROWS = [*TENSORS, *NETWORK]
VALUES = (np.nan, np.inf, -np.inf)
CASES = [
    *(pytest.param(CPU, row, id=f"cpu-{row.name}") for row in ROWS),
    *(pytest.param(INTERPRET, row, id=f"interpret-{row.name}") for row in ROWS if row.kernel),
    *(pytest.param(CUDA, row, id=f"cuda-{row.name}", marks=pytest.mark.gpu) for row in ROWS),
]
engines = pytest.mark.parametrize(("engine", "row"), CASES)


def run(engine: Engine, row: Row, values: Any, dy: Any = None, dtype: Any = np.float32) -> Any:
    """The result, and with ``dy`` the gradients of the inputs that have one."""
    device = "cuda" if engine is CUDA else "cpu"
    inputs = [Tensor(value, dtype, device, requires_grad=True) for value in values]
    for tensor in inputs[row.gradients :]:
        tensor.requires_grad = False
    with engine.active():
        y = row.fn(*inputs)
        if dy is not None:
            y.backward(Tensor(np.asarray(dy), y.dtype, device))
    found = [y.detach(), *(x.grad for x in inputs[: row.gradients] if dy is not None)]
    return [tensor.numpy() for tensor in found]


def planted(array: np.ndarray, place: int, value: float) -> np.ndarray:
    copy = array.copy()
    copy.reshape(-1)[place] = value
    return copy


def upstream(y: np.ndarray) -> np.ndarray:
    return np.random.default_rng(y.size).uniform(0.5, 1.5, y.shape)


def places(engine: Engine, array: np.ndarray) -> Any:
    """All of a small array, some of a larger one; a few where a call is slow."""
    most = 24 if engine is CPU else 3
    if array.size <= most:
        return range(array.size)
    return np.random.default_rng(array.size).choice(array.size, most, replace=False)


def check(got: np.ndarray, before: np.ndarray, reads: np.ndarray, value: float) -> None:
    reads = np.reshape(reads, got.shape)
    assert got[~reads].tobytes() == before[~reads].tobytes()
    assert not np.isnan(value) or np.isnan(got[reads]).all()


@engines
def test_an_input(engine, row):
    values = row.values
    (before,) = run(engine, row, values)
    for i, matrix in enumerate(row.readers):
        for place in places(engine, values[i]):
            for value in VALUES:
                other = planted(values[i], place, value)
                (y,) = run(engine, row, [*values[:i], other, *values[i + 1 :]])
                check(y, before, matrix[place], value)


def senders(row: Row, values: list[np.ndarray], dy: np.ndarray) -> list[np.ndarray]:
    if row.sends is not None:
        return list(row.sends(dy, *values))[: row.gradients]
    return [matrix @ dy.reshape(-1) for matrix in row.readers[: row.gradients]]


@engines
def test_an_incoming_gradient(engine, row):
    values = row.values
    dy = upstream(run(engine, row, values)[0])
    before = run(engine, row, values, dy)[1:]
    for place in places(engine, dy):
        reads = senders(row, values, single(dy, place))
        for value in VALUES:
            gradients = run(engine, row, values, planted(dy, place, value))[1:]
            for got, old, mask in zip(gradients, before, reads, strict=True):
                check(got, old, mask, value)


@engines
def test_an_input_and_the_gradients(engine, row):
    """A gradient reads what moves it; where a function chooses, also what shares a result."""
    values = row.values
    dy = upstream(run(engine, row, values)[0])
    before = run(engine, row, values, dy)[1:]
    exact = run(CPU, row, values, dy, np.float64)[1:]
    matrices = row.readers
    for i, matrix in enumerate(matrices):
        for place in places(engine, values[i]):
            moved = planted(values[i], place, values[i].reshape(-1)[place] + 1e-3)
            others = run(CPU, row, [*values[:i], moved, *values[i + 1 :]], dy, np.float64)[1:]
            reads = [a != b for a, b in zip(others, exact, strict=True)]
            if row.sends is not None:
                shared = [(m & matrix[place]).any(1) for m in matrices]
                reads = [r | s.reshape(r.shape) for r, s in zip(reads, shared)]
            for value in VALUES:
                other = planted(values[i], place, value)
                gradients = run(engine, row, [*values[:i], other, *values[i + 1 :]], dy)[1:]
                kept = 1 if engine is not CPU and row.zeros == i else 0
                for got, old, mask in list(zip(gradients, before, reads, strict=True))[kept:]:
                    check(got, old, mask, np.inf)


def test_every_op_has_a_row():
    defined = {op.__name__ for op in all_ops(Op) if op.__module__.startswith(PACKAGE.__name__)}
    reached = set()
    for row in ROWS:
        reached |= ops_of(row.fn(*(Tensor(v, requires_grad=True) for v in row.values)))
    assert defined - reached - UNREACHED == set()
