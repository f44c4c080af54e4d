"""How BatchNorm sees an array: as [N, C, S] with S positions a sample and channel.

``[N, C]``, ``[N, C, L]``, ``[N, C, H, W]`` and ``[N, C, D, H, W]`` all become
``[N, C, S]`` by a view, whether the memory is C-contiguous (NCHW) or
channels-last (NHWC). Anything else is made C-contiguous once.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .arrays import Array, contiguous, namespace


def is_channels_last(x: Array) -> bool:
    """Whether the memory is dense with the channel, axis 1, varying fastest."""
    return x.ndim > 2 and namespace(x).moveaxis(x, 1, -1).flags.c_contiguous


def is_dense(x: Array) -> bool:
    """Whether ``x`` is C-contiguous or channels-last."""
    return x.flags.c_contiguous or is_channels_last(x)


def dense(x: Array) -> Array:
    """``x`` itself where it is C-contiguous or channels-last, else a contiguous copy."""
    return x if is_dense(x) else contiguous(x)


def like(x: Array, dtype: np.dtype | None = None) -> Array:
    """An uninitialised array of ``x``'s shape in its memory order (``x`` is dense)."""
    return namespace(x).empty_like(x, x.dtype if dtype is None else dtype, order="K")


def image(x: Array, shape: tuple[int, ...]) -> Array:
    """An uninitialised array of ``shape``, [N, C, H, W], in the memory order of ``x``, dense."""
    xp = namespace(x)
    if x.flags.c_contiguous:
        return xp.empty(shape, x.dtype)
    n, c, h, w = shape
    return xp.moveaxis(xp.empty((n, h, w, c), x.dtype), -1, 1)


def steps(array: Array) -> list[int]:
    """Elements, not bytes, from one index to the next along each axis."""
    return [stride // array.itemsize for stride in array.strides]


def image_steps(name: str, array: Array) -> dict[str, int]:
    """A kernel's arguments ``name_n`` to ``name_w``: the steps along the axes of an image."""
    return {f"{name}_{axis}": step for axis, step in zip("nchw", steps(array), strict=True)}


def needs_wide_offsets(*arrays: Array) -> bool:
    """Whether offsets in one of the arrays, which are dense, pass 2³¹ and need 64 bits."""
    return reach_wide(*[array.size for array in arrays])


def reach_wide(*elements: int) -> bool:
    """Whether one of these distances, in elements, passes 2³¹ and needs 64 bits."""
    return max(elements) >= 2**31


def lies_as(array: Array, x: Array) -> bool:
    """Whether ``array`` has x's shape, and its elements lie as those of ``x``."""
    return array.shape == x.shape and steps(array) == steps(x)


def in_layout_of(array: Array, x: Array) -> Array:
    """``array`` itself where its elements lie as those of ``x`` (dense), else a copy that does."""
    if lies_as(array, x):
        return array
    result = like(x, array.dtype)
    result[...] = array
    return result


class Channels(NamedTuple):
    """A dense array's [N, C, S] shape and element strides, for a kernel's arguments.

    A channel's values are its N·S rows; row r is sample r // S, position r % S.

    Attributes:
        rows: N·S, the values of one channel.
        channels: C.
        positions: S.
        stride_n, stride_c, stride_s: elements from one sample, channel or position to the next.
        flat: whether one stride, ``stride_s``, leads from each row to the next.
        wide: whether offsets pass 2³¹ and need 64 bits.
    """

    rows: int
    channels: int
    positions: int
    stride_n: int
    stride_c: int
    stride_s: int
    flat: bool
    wide: bool

    @classmethod
    def of(cls, x: Array) -> Channels:
        """Read them off a dense array of two to five dimensions."""
        n, c, *spatial = x.shape
        s = math.prod(spatial)
        if x.flags.c_contiguous:
            strides = (c * s, s, 1)
        else:
            strides = (c * s, 1, c)
        flat = 1 in (n, c, s) or strides[1] == 1
        if s == 1:
            strides = (c, 1, c)
        return cls(n * s, c, s, *strides, flat=flat, wide=needs_wide_offsets(x))
