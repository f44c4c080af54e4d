"""Axes and sizes: integers of Python's and NumPy's, and nothing that merely looks like one."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn.errors import ArgumentError, ArgumentTypeError, ShapeError
from tinybn.tensor.ops import index, shape, softmax

X = tb.arange(24, dtype=tb.float32).reshape(2, 3, 4)
COUNTS = tb.zeros((2, 3, 4), dtype=tb.int64)
REDUCTIONS = (
    "sum", "mean", "var", "std", "max", "min", "any", "all", "argmax", "argmin", "cumsum",
    "softmax", "log_softmax",
)  # fmt: skip

# What takes an axis, which is 1 in what must work.
CALLS = {
    **{name: lambda a, name=name: getattr(X, name)(a) for name in REDUCTIONS},
    "sum of two": lambda a: X.sum(axis=(0, a)),
    "nn.functional.softmax": lambda a: tb.nn.functional.softmax(X, a),
    "nn.functional.log_softmax": lambda a: tb.nn.functional.log_softmax(X, a),
    "logsumexp": lambda a: softmax.logsumexp(X, a),
    "cat": lambda a: tb.cat([X, X], a),
    "concatenate": lambda a: tb.concatenate([X, X], a),
    "stack": lambda a: tb.stack([X, X], a),
    "split": lambda a: X.split(1, a)[0],
    "chunk": lambda a: X.chunk(2, a)[0],
    "squeeze": lambda a: X[:, :1].squeeze(a),
    "unsqueeze": lambda a: X.unsqueeze(a),
    "expand_dims": lambda a: shape.expand_dims(X, a),
    "flatten from": lambda a: X.flatten(a),
    "flatten to": lambda a: X.flatten(0, a),
    "permute": lambda a: X.permute(2, a, 0),
    "transpose": lambda a: X.transpose(a, 0),
    "swapaxes": lambda a: X.swapaxes(a, 2),
    "moveaxis": lambda a: X.moveaxis(a, 0),
    "moveaxis of several": lambda a: X.moveaxis((0, a), (a, 0)),
    "take_along_axis": lambda a: index.take_along_axis(X, COUNTS, a),
}
# What takes a size, which is 2 in what must work.
SIZES = {
    "reshape": lambda n: X.reshape(n, 12),
    "reshape to a tuple": lambda n: X.reshape((n, 12)),
    "expand": lambda n: X[:1].expand(n, 3, 4),
    "broadcast_to": lambda n: X[:1].broadcast_to((n, 3, 4)),
    "split": lambda n: X.split(n, 2)[0],
    "split into": lambda n: X.split((n, 2), 2)[0],
    "chunk": lambda n: X.chunk(n, 2)[0],
    "linspace": lambda n: tb.linspace(0, 1, n),
    "randperm": lambda n: tb.randperm(n) * 0,
    "randint": lambda n: tb.randint(n, 3),
    "one_hot": lambda n: tb.nn.functional.one_hot(tb.tensor([0, 1]), n),
    "pad": lambda n: tb.pad(X, n),
}
SHAPES = {
    "zeros": lambda n: tb.zeros(n, 3),
    "zeros of a tuple": lambda n: tb.zeros((n, 3)),
    "full": lambda n: tb.full((n,), 1.0),
    "eye": lambda n: tb.eye(n),
    "rand": lambda n: tb.rand(n) * 0,
    "randint": lambda n: tb.randint(0, 1, (n,)),
}
NO_INTEGERS = (True, False, np.True_, np.array(True), 1.0, np.float32(1), "1", object())


@pytest.mark.parametrize("name", CALLS)
def test_an_axis_is_an_integer(name):
    call = CALLS[name]
    for axis in (np.int64(1), np.int8(1), np.array(1), tb.tensor(1)):
        assert np.array_equal(call(axis).numpy(), call(1).numpy())
    for axis in NO_INTEGERS:
        with pytest.raises(ArgumentTypeError, match="is .*; wanted an integer"):
            call(axis)


@pytest.mark.parametrize("name", SIZES)
def test_a_size_is_an_integer(name):
    call = SIZES[name]
    for size in (np.int64(2), np.uint8(2), np.array(2)):
        assert np.array_equal(call(size).numpy(), call(2).numpy())
    for size in NO_INTEGERS:
        with pytest.raises(ArgumentError, match="integer"):
            call(size)


@pytest.mark.parametrize("name", SHAPES)
def test_a_shape_is_made_of_integers(name):
    call = SHAPES[name]
    assert np.array_equal(call(np.int64(2)).numpy(), call(2).numpy())
    for size in (*NO_INTEGERS, -1):
        with pytest.raises(ShapeError, match="shape is .*; wanted integers of at least 0"):
            call(size)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tb.arange(True), "of arange is True; wanted a finite number"),
        (lambda: tb.arange(0, "3"), "of arange is '3'"),
        (lambda: tb.linspace(False, 1, 2), "of linspace is False"),
        (lambda: tb.manual_seed(True), "seed is True; wanted an integer"),
        (lambda: tb.manual_seed(1.0), "seed is 1.0; wanted an integer"),
        (lambda: tb.manual_seed(-1), "seed is -1"),
        (lambda: X.var(correction=True), "correction is True; wanted a finite number"),
        (lambda: X.std(correction="1"), "correction is '1'"),
        (lambda: X.var(correction=float("nan")), "correction is nan"),
        (lambda: tb.nn.functional.dropout(X, "a"), "p is 'a'; wanted a number from 0 to 1"),
        (lambda: tb.nn.functional.dropout(X, True), "p is True"),
        (lambda: tb.nn.functional.dropout(X, 1.5), "p is 1.5"),
        (lambda: tb.nn.functional.softplus(X, "1"), "beta is '1'"),
        (lambda: tb.nn.functional.softplus(X, 1, None), "threshold is None"),
        (lambda: tb.nn.functional.softplus(X, 0), "beta is 0"),
        (lambda: tb.nn.functional.gelu(X, None), "approximate is None; wanted 'none' or 'tanh'"),
    ],
)
def test_numbers_of_functions(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


def test_a_variance_with_numpys_correction():
    assert X.var(correction=np.int64(0)).item() == X.var(correction=0).item()
