"""Where results lie: nothing alive at the same time shares memory, and reuse saves some."""

from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

import tinybn as tb
from tinybn import nn
from tinybn.graph.memory import ALIGNMENT, Lifetime, place, rounded

lifetimes = st.lists(
    st.tuples(st.integers(1, 5000), st.integers(0, 20), st.integers(0, 20)).map(
        lambda drawn: Lifetime(drawn[0], min(drawn[1:]), max(drawn[1:]))
    ),
    max_size=25,
)


def most_at_once(spans):
    """The bytes alive at the busiest step: no placement takes less."""
    steps = range(max((s.last for s in spans), default=0) + 1)
    return max(sum(rounded(s.nbytes) for s in spans if s.first <= i <= s.last) for i in steps)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(lifetimes)
def test_places(spans):
    offsets, peak = place(spans)
    assert len(offsets) == len(spans)
    for (a, at), (b, other) in itertools.combinations(zip(spans, offsets), 2):
        if a.first <= b.last and b.first <= a.last:
            assert at + a.nbytes <= other or other + b.nbytes <= at
    for span, at in zip(spans, offsets):
        assert at >= 0 and at % ALIGNMENT == 0 and at + span.nbytes <= peak
    assert most_at_once(spans) <= peak <= sum(rounded(span.nbytes) for span in spans)


def test_a_chain_takes_two_places():
    spans = [Lifetime(1024, i, i + 1) for i in range(9)]
    assert place(spans)[1] == 2 * 1024
    assert place([]) == ([], 0)


def test_a_chain_for_inference_lies_in_less_than_for_training():
    model = nn.Sequential(*(nn.Linear(64, 64) for _ in range(8)))
    x = tb.Tensor(np.ones((16, 64), np.float32), device="cpu")
    size = 16 * 64 * 4
    graph = tb.graph.compile(model, x)
    assert f"results in {2 * size / 1e3:.1f} kB, side by side {7 * size / 1e3:.1f} kB" in str(graph)
    trained = tb.graph.compile(model, x, train=True)  # the inputs of all products are kept
    assert f"results in {7 * size / 1e3:.1f} kB, side by side {7 * size / 1e3:.1f}" in str(trained)
