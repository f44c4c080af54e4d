"""Random numbers and dropout, from a counter and a seed."""

from __future__ import annotations

import numpy as np

from ...arguments import number
from ...errors import ArgumentError
from ..arrays import Array, contiguous, namespace
from ..checks import check_float
from ..engines import implementation
from ..gpu import is_cupy


def random_words(n: int, seed: int, offset: int, stream: int, like: Array) -> Array:
    """``n`` random uint32 words, element i from Philox counter offset + i // 4.

    Args:
        seed: the key, 0 to 2⁶³ − 1.
        offset: the first counter, at least 0.
        stream: a small number; equal counters in different streams are independent.
        like: an array of the library and device wanted.

    Raises:
        ArgumentError: for numbers outside these.

    Source: Salmon et al. 2011, doi:10.1145/2063384.2063405.
    """
    recorded = is_cupy(seed)  # of a recorded step, whose numbers are the generator's own
    if n < 0 or not recorded and (offset < 0 or not 0 <= seed < 2**63):
        raise ArgumentError(
            f"n is {n}, offset {offset} and seed {seed}; wanted n and offset at least 0, and a "
            "seed from 0 to 2**63 - 1"
        )
    words = namespace(like).empty(n, np.uint32)
    if n:
        implementation("philox", like)(words, seed=seed, offset=offset, stream=stream)
    return words


def _uniform(n: int, seed: int, offset: int, stream: int, like: Array) -> Array:
    """Numbers in [0, 1): 53 random bits for a float64 ``like``, 24 in float32 for the rest.

    A float64 takes its second word from the same counter in the next stream.
    """
    first = random_words(n, seed, offset, stream, like)
    if like.dtype != np.float64:
        return (first >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)
    second = random_words(n, seed, offset, stream + 1, like)
    high = (first >> np.uint32(5)).astype(np.float64)
    return (high * 2.0**26 + (second >> np.uint32(6)).astype(np.float64)) * 2.0**-53


def random_uniform(out: Array, seed: int, offset: int) -> None:
    """Fill ``out`` with numbers uniform in [0, 1); it consumes ceil(out.size/4) counters.

    Raises:
        DTypeError: unless ``out`` is a floating array.
        ArgumentError: for a seed or offset outside :func:`random_words`'s.
    """
    check_float(out, "out")
    values = _uniform(out.size, seed, offset, 0, out)
    if out.dtype.itemsize < 4:
        # Rounding to few bits would reach 1: keep as many as the dtype holds.
        steps = 2.0 ** (11 if out.dtype == np.float16 else 8)
        values = namespace(out).floor(values * np.float32(steps)) / np.float32(steps)
    out[...] = values.reshape(out.shape).astype(out.dtype)


def random_normal(out: Array, seed: int, offset: int) -> None:
    """Fill ``out`` with standard normal numbers; it consumes ceil(out.size/4) counters.

    Raises as :func:`random_uniform`.

    Source: Box and Muller 1958, doi:10.1214/aoms/1177706645.
    """
    check_float(out, "out")
    xp = namespace(out)
    radius = xp.sqrt(-2 * xp.log1p(-_uniform(out.size, seed, offset, 0, out)))  # log(1 − u), u < 1
    angle = (2 * np.pi) * _uniform(out.size, seed, offset, 2, out)
    out[...] = (radius * xp.cos(angle)).reshape(out.shape).astype(out.dtype)


def dropout(x: Array, *, p: float, seed: int, offset: int) -> Array:
    """x/(1 − p) where kept, with probability 1 − p, else 0; a new contiguous array.

    The same call on a gradient is the backward: the mask is made again. It
    consumes ceil(x.size/4) counters.

    Raises:
        DTypeError: unless ``x`` is a floating array.
        ArgumentError: unless 0 ≤ p ≤ 1.

    Source: Srivastava et al. 2014, JMLR 15:1929.
    """
    check_float(x, "x")
    p = number("p", p, least=0, most=1)
    x = contiguous(x)
    y = namespace(x).empty_like(x)
    if x.size:
        implementation("dropout", x)(x, y, p=p, seed=seed, offset=offset)
    return y
