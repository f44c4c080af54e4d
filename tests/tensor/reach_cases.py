"""What each differentiable function reads: the tables of ``test_reach.py``.

A row says in booleans which elements of the result have a given element of an input in their
formula; where a sum or a product has it, ``reads`` has "or". A gradient goes the same ways back,
unless the function chooses: then ``sends`` says which dy each gradient has in its formula.
A padding of zeros is elements that are zero, and so are a product's factors of 0: 0·∞ is NaN there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.tensor.test_gradients import augmented, beside, overwrite, write_in_place
from tinybn.tensor.ops import (
    activation,
    elementwise,
    index,
    join,
    reduce,
    shape,
    softmax,
    unary,
)

Mask = np.ndarray
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Row:
    """A function, and what its results and gradients read.

    Attributes:
        name: what is tested.
        fn: takes Tensors, gives one.
        inputs: their shapes, or their values.
        reads: from the masks of the inputs' elements to that of the results that read one of them.
        sends: from the mask of dy's elements and the inputs to the masks of the gradients; None
            where every result sends back to all that it reads.
        gradients: how many inputs, from the first on, have one.
        low, high: the values of inputs given by their shapes, uniform between these.
        kernel: whether a Triton kernel works on it.
        zeros: of which input its kernel multiplies zeros in the gradient of the first one.
    """

    name: str
    fn: Callable[..., Any]
    inputs: tuple[Any, ...]
    reads: Callable[..., Mask]
    sends: Callable[..., tuple[Mask, ...]] | None = None
    gradients: int = 9
    low: float = -2.0
    high: float = 2.0
    kernel: bool = False
    zeros: int | None = None

    @functools.cached_property
    def values(self) -> list[np.ndarray]:
        """The inputs, in float64."""
        rng = np.random.default_rng(len(self.name))
        made = (rng.uniform(self.low, self.high, i) if isinstance(i, tuple) else i
                for i in self.inputs)  # fmt: skip
        return [np.asarray(value, np.float64) for value in made]

    @functools.cached_property
    def readers(self) -> list[np.ndarray]:
        """For each input the matrix [its elements, results] of which read which."""
        none = [np.zeros(v.shape, bool) for v in self.values]
        return [
            np.array([
                np.ravel(self.reads(*none[:i], single(v, place), *none[i + 1 :]))
                for place in range(v.size)
            ])
            for i, v in enumerate(self.values)
        ]  # fmt: skip


def single(array: np.ndarray, place: int) -> Mask:
    """The mask of one element."""
    mask = np.zeros(array.shape, bool)
    mask.reshape(-1)[place] = True
    return mask


def each(*masks: Mask) -> Mask:
    """Element by element, broadcast."""
    return np.logical_or.reduce(np.broadcast_arrays(*masks))


def along(axis: Any, keepdims: bool = False) -> Callable[[Mask], Mask]:
    return lambda m: m.any(axis=axis, keepdims=keepdims)


def whole(axis: Any) -> Callable[[Mask], Mask]:
    """All along the axis read all along it."""
    return lambda m: np.broadcast_to(m.any(axis=axis, keepdims=True), m.shape)


def summed(m: Mask, like: np.ndarray) -> Mask:
    """Back to the shape of what was broadcast."""
    lead = m.ndim - like.ndim
    axes = tuple(i for i in range(m.ndim) if i < lead or like.shape[i - lead] == 1)
    return m.any(axis=axes).reshape(like.shape)


def unary_row(module: Any, name: str, low: float = -2.0, sends: Any = None, **keywords: Any) -> Row:
    return Row(
        name, lambda x: getattr(module, name)(x, **keywords), ((3, 5),), each, sends, low=low
    )


def chosen(name: str, fn: Any, shapes: Any, where: Callable[..., tuple[Mask, ...]], **kw: Any):
    """A function of which each result sends to an input only ``where`` it chose it."""

    def sends(dy, *values):
        return tuple(summed(dy & w, v) for w, v in zip(where(*values), values))

    return Row(name, fn, shapes, each, sends, **kw)


# Indices ------------------------------------------------------------------------------------------

TWICE = (np.array([0, 2, 2, -1]), slice(None, None, -2))
CHECKED = np.arange(15).reshape(3, 5) % 2 == 0
ALONG = np.array([[1, 0], [1, 1], [4, 2]])


def on_device(x, index_):
    return tuple(beside(x, i) if isinstance(i, np.ndarray) else i for i in index_)


def written(where: Any) -> Callable[[Mask, Mask], Mask]:
    def reads(x, value):
        y = x.copy()
        y[where] = value
        return y

    return reads


def nothing(dy, *values):
    return tuple(np.zeros(v.shape, bool) for v in values)


TENSORS = [
    *(unary_row(unary, name) for name in ("neg", "square", "exp", "expm1", "sin", "cos",
                                          "tanh")),
    *(unary_row(unary, name, 0.5) for name in ("log", "log1p", "sqrt", "rsqrt", "reciprocal")),
    *(unary_row(unary, name, sends=nothing) for name in ("sign", "floor", "ceil", "round")),
    *(unary_row(activation, name) for name in ("sigmoid", "silu", "softplus", "gelu")),
    unary_row(activation, "gelu", approximate="tanh"), unary_row(elementwise, "clone"),
    Row("cast", lambda x: x.astype("float64"), ((3, 5),), each),
    *(Row(name, getattr(elementwise, name), ((3, 1), (2, 3, 4)), each, low=low)
      for name, low in (("add", -2), ("sub", -2), ("mul", -2), ("div", 0.5), ("pow", 0.5))),
    # Where it chooses.
    chosen("relu", activation.relu, ((3, 5),), lambda x: (x > 0,)),
    chosen("abs_", unary.abs_, ((3, 5),), lambda x: (x != 0,)),
    chosen("remainder", elementwise.remainder, ((3, 1), (2, 3, 4)), lambda a, b: (True, True),
           low=1.1),
    chosen("maximum", elementwise.maximum, ((3, 1), (2, 3, 4)), lambda a, b: (a >= b, a <= b)),
    chosen("minimum", elementwise.minimum, ((3, 1), (2, 3, 4)), lambda a, b: (a <= b, a >= b)),
    chosen("clip", elementwise.clip, ((5, 4), np.full(4, -1.0), np.ones(())),
           lambda x, a, b: ((x >= a) & (x <= b), x < a, x > b)),
    Row("where", lambda a, b: elementwise.where(beside(a, CHECKED), a, b), ((3, 5), (5,)),
        lambda a, b: np.where(CHECKED, a, b),
        lambda dy, a, b: (dy & CHECKED, (dy & ~CHECKED).any(0))),
    Row("pow to 0 and of 0", elementwise.pow, (np.array([1.5, 0, 0]), np.array([0, 2, -1.0])),
        lambda a, b: b | a & [False, True, True],  # NumPy's NaN⁰ is 1
        lambda dy, a, b: (dy & (b != 0), dy & ((a != 0) | (b < 0)))),
    Row("pow, number 0", lambda x: elementwise.pow(x, 0), ((3, 5),), np.zeros_like, nothing),
    # Along axes.
    *(Row(f"{name} {axis}", lambda x, name=name, axis=axis: getattr(reduce, name)(x, axis),
          ((2, 3, 4),), along(axis))
      for name in ("sum", "mean") for axis in (None, 0, (1, 2))),
    *(Row(f"{name} {axis}", lambda x, name=name, axis=axis: getattr(reduce, name)(x, axis),
          ((2, 3, 4),), along(axis),
          lambda dy, x, axis=axis: (np.broadcast_to(np.expand_dims(dy, axis), x.shape),))
      for name in ("var", "std") for axis in (0, (1, 2))),
    Row("std of equal values", lambda x: reduce.std(x, 1), (np.repeat([[1.0], [2.0]], 3, 1),),
        along(1), nothing),
    *(Row(name, lambda x, name=name: getattr(reduce, name)(x, 1), ((3, 5),), along(1),
          lambda dy, x, pick=pick: (dy[:, None] & (x == pick(x, 1, keepdims=True)),))
      for name, pick in (("max", np.max), ("min", np.min))),
    Row("cumsum", lambda x: reduce.cumsum(x, 1), ((3, 5),),
        lambda x: np.logical_or.accumulate(x, 1)),
    Row("softmax", lambda x: softmax.softmax(x, 1), ((3, 5),), whole(1)),
    Row("log_softmax", lambda x: softmax.log_softmax(x, 0), ((3, 5),), whole(0)),
    Row("logsumexp", lambda x: softmax.logsumexp(x, 1), ((3, 5),), along(1)),
    # Shapes and indices.
    Row("reshape", lambda x: shape.reshape(x, 5, 3), ((3, 5),), lambda x: x.reshape(5, 3)),
    Row("permute", lambda x: shape.permute(x, 1, 2, 0), ((2, 3, 4),),
        lambda x: x.transpose(1, 2, 0)),
    Row("expand", lambda x: shape.expand(x, 2, 3, 4), ((3, 1),),
        lambda x: np.broadcast_to(x, (2, 3, 4))),
    Row("concatenate", lambda *x: join.concatenate(x, 1), ((3, 2), (3, 4)),
        lambda *m: np.concatenate(m, 1)),
    Row("stack", lambda *x: join.stack(x, 1), ((3, 2), (3, 2)), lambda *m: np.stack(m, 1)),
    Row("split", lambda x: join.split(x, 2, 1)[1], ((3, 5),), lambda x: x[:, 2:4]),
    Row("pad", lambda x: join.pad(x, ((1, 0), (2, 3))), ((3, 2),),
        lambda x: np.pad(x, ((1, 0), (2, 3)))),
    Row("getitem", lambda x: x[1:, ::2], ((3, 5),), lambda x: x[1:, ::2]),
    Row("getitem of rows", lambda x: x[on_device(x, TWICE)], ((3, 5),), lambda x: x[TWICE]),
    Row("getitem of a mask", lambda x: x[beside(x, CHECKED)], ((3, 5),), lambda x: x[CHECKED]),
    Row("setitem", lambda x, v: index.setitem(x, on_device(x, TWICE), v), ((3, 5), (4, 1)),
        written(TWICE)),
    Row("take_along_axis", lambda x: index.take_along_axis(x, beside(x, ALONG), 1), ((3, 5),),
        lambda x: np.take_along_axis(x, ALONG, 1)),
    Row("x[1:] = v", write_in_place, ((3, 5), (5,)), written(slice(1, None))),
    Row("view[:, 1] += number", lambda x: augmented(x)[0], ((2, 3),), each),
    Row("a view's other view", lambda x: augmented(x)[1], ((2, 3),), lambda x: x[1]),
    Row("copy_", lambda v: overwrite(beside(v, np.ones((3, 5))), v), ((5,),),
        lambda v: np.broadcast_to(v, (3, 5))),
]  # fmt: skip
