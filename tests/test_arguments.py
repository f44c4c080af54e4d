"""What counts as an integer, a number, a switch and a name."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest

import tinybn as tb
from tinybn.arguments import choice, integer, integers, number, switch
from tinybn.errors import ArgumentError, ArgumentTypeError


def shown(value):
    """``repr`` without addresses, which differ from one process of a parallel run to another."""
    return re.sub(" at 0x[0-9a-f]+", "", repr(value))


THREES = (3, np.int64(3), np.uint8(3), np.array(3), tb.tensor(3), tb.tensor(3, dtype=tb.int32))
NO_NUMBERS = (
    True, np.True_, np.array(True), tb.tensor(True), "3", b"3", None, 3j, np.complex64(3), [3],
    (3,), np.array([3]), tb.tensor([3]), np.array("3"), {3: 3}, object(),
)  # fmt: skip
FRACTIONS = (
    0.5, np.float32(0.5), np.float16(0.5), np.float64(0.5), tb.bfloat16.type(0.5), np.array(0.5),
    tb.tensor(0.5), tb.tensor(0.5, dtype=tb.bfloat16),
)  # fmt: skip


@pytest.mark.parametrize("value", THREES, ids=shown)
def test_integers_of_all_libraries_become_ints(value):
    assert type(integer("n", value)) is int and integer("n", value, 3, 3) == 3
    assert integers("n", [value, 4], 1) == (3, 4)
    assert type(number("n", value, least=3, most=3)) is float


@pytest.mark.parametrize("value", FRACTIONS, ids=shown)
def test_floats_of_all_libraries_become_floats(value):
    assert number("p", value, above=0, below=1) == 0.5
    assert type(number("p", value)) is float
    with pytest.raises(ArgumentTypeError, match="n is .*; wanted an integer of at least 1"):
        integer("n", value, 1)


@pytest.mark.parametrize("value", NO_NUMBERS, ids=shown)
def test_what_is_no_number(value):
    calls = (
        lambda: integer("n", value, 1),
        lambda: number("n", value, least=1),
        lambda: integers("n", [2, value], 1),
    )
    for call in calls:
        for error in (TypeError, ArgumentError):  # and so a ValueError
            with pytest.raises(error, match="^n is .*; wanted "):
                call()


@pytest.mark.parametrize("value", [3, "34", None, np.array(3), {}.get])
def test_what_is_no_sequence(value):
    with pytest.raises(ArgumentTypeError, match="wanted a sequence of integers of at least 1"):
        integers("n", value, 1)


def test_integers_outside():
    for call in (
        lambda: integer("n", 0, 1),
        lambda: integer("n", 9, 1, 8),
        lambda: integers("n", (2, 0), 1),
    ):
        with pytest.raises(ArgumentError, match="^n is .*; wanted ") as caught:
            call()
        assert not isinstance(caught.value, TypeError)
    assert integers("n", np.array([2, 3]), 1) == (2, 3)
    assert integers("n", (), 1) == ()


@pytest.mark.parametrize(
    ("bounds", "inside", "outside", "words"),
    [
        ({}, (-1e300, 0, 1e300), (), "a finite number$"),
        ({"least": 0}, (0, 0.0, 1e300), (-1e-300,), "a finite number of at least 0"),
        ({"above": 0}, (1e-300,), (0, -0.0, -1), "a finite number above 0"),
        ({"least": 0, "most": 1}, (0, 1), (-1e-9, 1.1), "a number from 0 to 1"),
        ({"above": 0, "below": 1}, (0.5,), (0, 1), "a number between 0 and 1"),
        ({"least": 0, "below": 1}, (0, 0.9), (1, -1), "a number of at least 0 and below 1"),
        ({"above": 0, "most": 1}, (1,), (0, 2), "a number above 0 and at most 1"),
    ],
)
def test_bounds(bounds, inside, outside, words):
    for value in inside:
        assert number("p", value, **bounds) == value
    for value in (*outside, math.nan, math.inf, -math.inf, np.float32("inf"), 10**400, -(10**400)):
        with pytest.raises(ArgumentError, match=f"^p is .*; wanted {words}"):
            number("p", value, **bounds)


def test_an_infinity_where_it_makes_sense():
    assert number("p", math.inf, least=0, infinite=True) == math.inf
    for value in (math.nan, -math.inf):
        with pytest.raises(ArgumentError, match="wanted a number of at least 0"):
            number("p", value, least=0, infinite=True)


def test_switches():
    assert all(switch("s", value) is True for value in (True, np.True_, 1))
    assert all(switch("s", value) is False for value in (False, np.False_, 0))
    for value in (2, -1, None, "no", 1.0, [True], np.ones(2), math.nan):
        with pytest.raises(ArgumentTypeError, match="^s is .*; wanted True or False"):
            switch("s", value)


def test_choices():
    assert choice("c", "sum", ("mean", "sum")) == "sum"
    with pytest.raises(ArgumentError, match="^c is 'avg'; wanted 'a', 'b' or 'c'"):
        choice("c", "avg", ("a", "b", "c"))
    for value in (None, 1, True, np.ones(2), ["a"]):
        with pytest.raises(ArgumentTypeError, match="^c is .*; wanted 'a' or 'b'"):
            choice("c", value, "ab")
