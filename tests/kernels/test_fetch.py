"""What a graph's first kernels copy, by the slots of a ring that the host has written."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.engines import kernel_engines
from tinybn.kernels.feed.objects import Fetch
from tinybn.kernels.feed.ring import COLUMNS, SLOTS
from tinybn.kernels.launch import pointer

SIZES = st.lists(st.sampled_from([0, 1, 7, 8, 16, 31, 127, 2048, 8191, 8208]), max_size=3)


def fetched(engine, sizes, shift, numbers, turns, chunk=4096):
    """Fetch ``turns`` times; what was to come and what came, each time."""
    rng = np.random.default_rng(0)
    words = numbers + len(sizes) + (numbers + len(sizes)) % 2
    sources = [[rng.integers(0, 256, size + shift, np.uint8) for size in sizes] for _ in range(2)]
    sources = [[engine.put(array)[shift:] for array in turn] for turn in sources]
    targets = [engine.put(np.zeros(size, np.uint8)) for size in sizes]
    places = engine.put(np.zeros(max(1, numbers), np.int64))
    ring = np.zeros((SLOTS, words), np.int64)
    for turn in range(SLOTS):
        ring[turn, :numbers] = rng.integers(-(2**62), 2**62, numbers)
        ring[turn, numbers : numbers + len(sizes)] = [pointer(a) for a in sources[turn % 2]]
    there = engine.put(ring)
    inbox = engine.put(np.zeros(max(1, words), np.int64))  # an empty one has the address 0
    rows = [(pointer(inbox), 0, 0, pointer(places), 8 * numbers, 0, 0, 0)]
    for word, (target, size) in enumerate(zip(targets, sizes), numbers):
        for start in range(0, size, chunk):
            bytes_ = min(chunk, size - start)
            rows.append((0, word, start, pointer(target) + start, bytes_, 0, 0, 0))
    jobs, place = np.array(rows, np.int64), np.array([pointer(there), words, 0])
    assert jobs.shape[1] == COLUMNS
    jobs, place = engine.put(jobs), engine.put(place)
    for turn in range(turns):
        with engine.active():
            Fetch(block=256)(place, jobs, inbox)
        for target, source in zip(targets, sources[turn % 2]):
            assert np.array_equal(engine.get(target), engine.get(source))
        assert np.array_equal(engine.get(places)[:numbers], ring[turn % SLOTS, :numbers])
        assert engine.get(place)[2] == (turn + 1) % SLOTS


@kernel_engines
@settings(max_examples=12)
@given(sizes=SIZES, shift=st.sampled_from([0, 0, 1, 8]), numbers=st.sampled_from([0, 1, 2, 5, 140]))
@example(sizes=[], shift=0, numbers=0)
def test_inputs_and_numbers_are_those_of_each_turn(engine, sizes, shift, numbers):
    """Of any alignment: whole 16 bytes are copied at once only where all begin and end so."""
    fetched(engine, sizes, shift, numbers, turns=3)


@kernel_engines
def test_after_the_last_slot_comes_the_first(engine):
    fetched(engine, [16], 0, 2, turns=SLOTS + 3)
