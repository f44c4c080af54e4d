"""The picture of the tape."""

from __future__ import annotations

import pytest

import tinybn as tb
from tinybn.errors import TapeError


def test_operations_leaves_and_shapes_are_drawn():
    x = tb.ones(2, 3, requires_grad=True)
    w = tb.ones(4, 3, requires_grad=True)
    dot = tb.graph.to_dot(tb.linear(x, w).relu().sum())
    assert dot.startswith("digraph") and dot.endswith("}")
    for label in ("Linear", "Relu", "Sum", "float32 [2, 3]", "float32 [4, 3]", "float32 [2, 4]"):
        assert label.lower() in dot.lower()
    assert dot.count("shape=box") == 2 and dot.count("->") == 4


def test_a_tensor_used_twice_is_drawn_once():
    x = tb.ones(2, requires_grad=True)
    dot = tb.graph.to_dot((x * x).sum())
    assert dot.count("shape=box") == 1 and dot.count("->") == 3


def test_a_deep_graph():
    x = tb.ones(1, requires_grad=True)
    y = x
    for _ in range(5000):
        y = y + 1
    assert tb.graph.to_dot(y).count("->") == 5000


def test_what_has_no_graph_raises():
    with pytest.raises(TapeError, match="recorded"):
        tb.graph.to_dot(tb.ones(1))
    loss = tb.ones(1, requires_grad=True) * 2
    loss.backward()
    with pytest.raises(TapeError, match="freed"):
        tb.graph.to_dot(loss)
