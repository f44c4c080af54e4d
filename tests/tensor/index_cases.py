"""Drawn indices, legal and not, and what writing at one does to values and gradients."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.tensor.tensor_cases import laid_out, plain, seeds

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
# What the index arrays of one index broadcast to; () leaves only ints and arrays without axes.
PLACES = ((), (0,), (1,), (3,), (2, 3), (3, 1), (2, 0), (2, 2, 2))


def slices(size: int):
    ends = st.one_of(st.none(), st.integers(-size - 2, size + 2), st.sampled_from((-99, 99)))
    steps = st.one_of(st.none(), st.sampled_from((1, 2, 5, -1, -2, -5)))
    return st.builds(slice, ends, ends, steps)


@st.composite
def integer_arrays(draw, size: int, places: tuple[int, ...]):
    """Places on an axis of ``size``, of a shape that broadcasts to ``places``, in some form."""
    shape = tuple(1 if draw(st.integers(0, 3)) == 0 else n for n in places)
    shape = places if size == 0 else shape[draw(st.integers(0, len(shape))) :]
    dtype = np.dtype(draw(st.sampled_from(INTEGERS)))
    rng = np.random.default_rng(draw(seeds))
    low = -size if dtype.kind == "i" else 0
    values = np.asarray(rng.integers(low, max(size, 1), shape)).astype(dtype)
    form = draw(st.sampled_from(("array", "transposed", "reversed", "tensor", "list", "tuple")))
    if form == "tensor":
        return plain(values.astype(draw(st.sampled_from((np.int32, np.int64)))))
    if form in ("list", "tuple") and values.ndim and np.array(values.tolist()).shape == shape:
        return values.tolist() if form == "list" else tuple(values.tolist())
    return laid_out(values, form) if form in ("transposed", "reversed") else values


@st.composite
def masks(draw, shape: tuple[int, ...], places: tuple[int, ...]):
    """A mask of ``shape`` of as many true places as fit beside ``places``; None if none do."""
    size = int(np.prod(shape))
    fitting = [n for n in {0, 1, *places[-1:]} if n <= size and n in (1, *places[-1:])]
    if places[-1:] == (1,) and size == 0:
        fitting = [0]
    if not fitting:
        return None
    mask = np.arange(size) < draw(st.sampled_from(sorted(fitting)))
    mask = np.random.default_rng(draw(seeds)).permutation(mask).reshape(shape)
    forms = [mask, plain(mask)]
    if not shape:
        forms += [bool(mask), np.bool_(mask)]
    elif len(shape) == 1 and size:
        forms.append(mask.tolist())
    return draw(st.sampled_from(forms))


@st.composite
def indices(draw, shape: tuple[int, ...]):
    """An index that NumPy takes: ints, slices, None, ..., masks and integer arrays, mixed."""
    places = draw(st.sampled_from(PLACES))
    parts: list = []
    axis, dotted = 0, False
    while True:
        kinds = ["end", "slice", "int", "array", "array", "mask", "None"]
        kind = draw(st.sampled_from(kinds if dotted else [*kinds, "..."]))
        left = len(shape) - axis
        if kind == "None":
            parts.append(None)
        elif kind == "...":
            parts.append(Ellipsis)
            axis, dotted = axis + draw(st.integers(0, left)), True
        elif kind == "mask":
            covered = shape[axis : axis + draw(st.integers(0, left))]
            mask = draw(masks(covered, places))
            if mask is not None:
                parts.append(mask)
                axis += len(covered)
        elif kind == "end" and not dotted:
            break
        elif left:
            size = shape[axis]
            if kind == "array" and (size or 0 in places):
                parts.append(draw(integer_arrays(size, places)))
            elif kind == "int" and size:
                parts.append(draw(st.integers(-size, size - 1)))
            else:
                parts.append(draw(slices(size)))
            axis += 1
        elif kind == "end":
            break
    single = len(parts) == 1 and not isinstance(parts[0], tuple) and draw(st.booleans())
    return parts[0] if single else tuple(parts)


@st.composite
def spoiled(draw, shape: tuple[int, ...]):
    """An index that is mostly not legal: a drawn one with a part changed or added."""
    index = draw(indices(shape))
    parts = list(index) if isinstance(index, tuple) else [index]
    most = max(shape, default=0)
    part = draw(st.sampled_from([
        most, -most - 1, 99, 2**70, [most], np.array([[0], [-most - 1]]), plain(np.array(most)),
        plain(np.array([0, 99])), np.array([2**63 - 1], np.uint64), np.zeros(7, int),
        np.zeros((4, 1, 5), int), np.ones(most + 1, bool), np.ones((most + 1, 1), bool),
        [True] * (most + 2), True, False, Ellipsis, 0, 0.0, [0.5], np.zeros(0), "a", b"a",
        np.float64(1), plain(np.zeros(1, np.float32)), [[0], [0, 1]], ["a"], [None],
        slice(None, None, 0), slice(0.5, None), slice("a"), slice(None, plain(np.zeros(2, int))),
        1j, {0}, object(),
    ]))  # fmt: skip
    at = draw(st.integers(0, len(parts)))
    parts[at : at + draw(st.integers(0, 1))] = [part] * draw(st.integers(1, 2))
    return tuple(parts)


def for_numpy(index):
    """The same index without Tensors."""
    parts = index if isinstance(index, tuple) else (index,)
    return tuple(p.data if hasattr(p, "requires_grad") else p for p in parts)


def places_of(shape: tuple[int, ...], index) -> np.ndarray:
    """For each element of ``x[index]`` where it lies in x, counted in C order."""
    return np.asarray(np.arange(int(np.prod(shape))).reshape(shape)[for_numpy(index)])


def written(x: np.ndarray, places: np.ndarray, value: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """x with ``value`` at ``places``, one after the other, and which of them stayed."""
    result, last = x.flatten(), {}
    value = value.reshape(value.shape[max(value.ndim - places.ndim, 0) :])
    for number, (place, element) in enumerate(
        zip(places.ravel(), np.broadcast_to(value, places.shape).ravel(), strict=True)
    ):
        result[place] = element
        last[place] = number
    stays = np.zeros(places.size, bool)
    stays[list(last.values())] = True
    return result.reshape(x.shape), stays.reshape(places.shape)


def summed_to(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """The sums over what was broadcast from ``shape``."""
    wide = (1,) * (array.ndim - len(shape)) + shape[max(len(shape) - array.ndim, 0) :]
    axes = tuple(i for i, n in enumerate(wide) if n == 1)
    return array.sum(axes, keepdims=True).reshape(shape)
