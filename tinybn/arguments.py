"""Arguments that are numbers, switches or names: checked, and made Python's own.

NumPy's numbers and arrays without dimensions count as numbers. A bool is none, and a text
is none either, whatever it spells.
"""

from __future__ import annotations

import math
import numbers
import operator
from collections.abc import Collection
from typing import Any

import numpy as np

from .errors import ArgumentError, ArgumentTypeError


def integer(name: str, value: Any, least: int | None = None, most: int | None = None) -> int:
    """Return ``value`` as an int from ``least`` to ``most``.

    Raises:
        ArgumentTypeError: if it is no integer.
        ArgumentError: if it is outside.
    """
    result = _as_int(value)
    if result is None:
        wanted = "" if least is None else f" of at least {least}"
        raise ArgumentTypeError(f"{name} is {value!r}; wanted an integer{wanted}")
    if least is not None and result < least or most is not None and result > most:
        wanted = f"at least {least}" if most is None else f"{least} to {most}"
        raise ArgumentError(f"{name} is {result}; wanted {wanted}")
    return result


def integers(name: str, values: Any, least: int) -> tuple[int, ...]:
    """Return a sequence of integers of at least ``least`` as a tuple of ints.

    Raises:
        ArgumentTypeError: if it is no sequence, or one of them no integer.
        ArgumentError: if one of them is less.
    """
    listed = None if isinstance(values, (str, bytes)) or not _has_items(values) else list(values)
    found = [] if listed is None else [_as_int(value) for value in listed]
    known = [n for n in found if n is not None]
    if listed is not None and len(known) == len(found) and min(known, default=least) >= least:
        return tuple(known)
    right = listed is not None and len(known) == len(found)
    raise (ArgumentError if right else ArgumentTypeError)(
        f"{name} is {values!r}; wanted a sequence of integers of at least {least}"
    )


def number(
    name: str,
    value: Any,
    *,
    least: float = -math.inf,
    above: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
    infinite: bool = False,
) -> float:
    """Return ``value`` as a float within the bounds: finite, unless ``infinite``, and no NaN.

    Raises:
        ArgumentTypeError: if it is no number.
        ArgumentError: if it is outside.
    """
    result = value if type(value) is float else _as_float(value)
    if result is not None and least <= result <= most and above < result:
        if result < below or infinite:
            return result
    wanted = _bounds(least, above, most, below, infinite)
    if result is None:
        raise ArgumentTypeError(f"{name} is {value!r}; wanted {wanted}")
    raise ArgumentError(f"{name} is {result}; wanted {wanted}")


def switch(name: str, value: Any) -> bool:
    """Return ``value``, which is True or False, as a bool; 1 and 0 are taken too.

    Raises:
        ArgumentTypeError: for anything else.
    """
    if value is True or value is False:
        return value
    if not isinstance(value, (np.bool_, int)) or value not in (0, 1):
        raise ArgumentTypeError(f"{name} is {value!r}; wanted True or False")
    return bool(value)


def choice(name: str, value: Any, names: Collection[str]) -> str:
    """Return ``value`` if it is one of ``names``.

    Raises:
        ArgumentTypeError: if it is no text.
        ArgumentError: if it is another.
    """
    if isinstance(value, str) and value in names:
        return value
    *first, last = map(repr, names)
    wanted = f"{', '.join(first)} or {last}" if first else last
    kind = ArgumentError if isinstance(value, str) else ArgumentTypeError
    raise kind(f"{name} is {value!r}; wanted {wanted}")


def _as_int(value: Any) -> int | None:
    if type(value) is int:
        return value
    if isinstance(value, bool) or not _is_single(value, "iu"):
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool) or not _is_single(value, "iuf"):
        return None
    if not hasattr(value, "dtype") and not isinstance(value, numbers.Real):
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond the largest float
        return math.inf if value > 0 else -math.inf


def _is_single(value: Any, kinds: str) -> bool:
    """Whether an array, Tensor or NumPy scalar is one number of such a kind; True for the rest."""
    dtype = getattr(value, "dtype", None)
    if dtype is None:
        return True
    kind = "f" if dtype == "bfloat16" else getattr(dtype, "kind", "")
    return kind != "" and kind in kinds and getattr(value, "ndim", 0) == 0


def _has_items(values: Any) -> bool:
    return hasattr(values, "__iter__") and getattr(values, "ndim", 1) > 0


def _bounds(least: float, above: float, most: float, below: float, infinite: bool) -> str:
    if math.isfinite(least) and math.isfinite(most):
        return f"a number from {least:g} to {most:g}"
    if math.isfinite(above) and math.isfinite(below):
        return f"a number between {above:g} and {below:g}"
    parts = [
        f"{word} {bound:g}"
        for word, bound in (
            ("of at least", least), ("above", above), ("at most", most), ("below", below),
        )
        if math.isfinite(bound)
    ]  # fmt: skip
    ends = math.isfinite(most) or math.isfinite(below)
    kind = "a number" if infinite or ends else "a finite number"
    return " ".join([kind, " and ".join(parts)]) if parts else kind
