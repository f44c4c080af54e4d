"""Indexing: advanced indices apart from each other, and one-hot rows.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tests.cases.rows import F, assert_same, case
from tinybn import nn
from tinybn.errors import TinyBNError

RULES = "NumPy's advanced indexing rules"
A = [0, 2]
T = np.arange(48, dtype=np.float32).reshape(3, 4, 4)


@pytest.mark.parametrize(
    ("index", "golden"),
    [
        case("IX-01", RULES, (slice(None), A, ..., 0), (2, 3)),
        case("IX-01", RULES, (A, ..., 0, slice(None)), (2, 4)),
        case("IX-01", RULES, (..., A, 0), (3, 2)),
        case("IX-01", RULES, (A, ..., 0), (2, 4)),
        case("IX-01", RULES, (0, ..., A), (2, 4)),
        case("IX-01", RULES, (slice(None), A, ..., A), (2, 3)),
        case("IX-01", RULES, (A, A, ..., 1), (2,)),
        case("IX-01", RULES, (0, slice(None), A, ...), (2, 4)),
    ],
)
@pytest.mark.parametrize("of", [list, tb.tensor])
def test_an_ellipsis_between_advanced_indices(engine, index, golden, of):
    assert T[index].shape == golden
    given = tuple(of(i) if isinstance(i, list) else i for i in index)
    t = tb.Tensor(T, requires_grad=True)
    y = t[given]
    assert_same(y, T[index])
    dy = F(golden, 5, 2, 8)
    y.backward(tb.Tensor(dy))
    want = np.zeros_like(T)
    np.add.at(want, index, dy)
    assert_same(t.grad, want)
    written, plain = tb.Tensor(T), T.copy()
    written[given] = tb.Tensor(dy)
    plain[index] = dy
    assert_same(written, plain)


@pytest.mark.parametrize(
    "classes", [case("IX-02", "PyTorch's one_hot", classes) for classes in (0, -2, 1)]
)
def test_too_few_classes(engine, classes):
    """An error that says how many were given, and which label is the largest."""
    with pytest.raises(TinyBNError, match=f"num_classes is {classes}") as caught:
        nn.functional.one_hot(tb.tensor([0, 7]), classes)
    assert "7" in str(caught.value) or classes < -1  # then no label would do


@pytest.mark.parametrize(
    "classes", [case("IX-02", "PyTorch's one_hot", classes) for classes in (0, 3)]
)
def test_no_labels(engine, classes):
    empty = tb.zeros(0, dtype=tb.int64)
    assert nn.functional.one_hot(empty, classes).shape == (0, classes)
