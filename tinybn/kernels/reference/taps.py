"""Images and what lies on them under each tap of each window: read, and added up."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ..arrays import accumulation_dtype
from ..windows import Pair, Windows

Array = np.ndarray


def _reach(windows: Windows, size: Pair, output: Pair) -> Pair:
    """The size of an image, padding before it included, that all windows lie on."""
    down, across = (
        max(
            (output[axis] - 1) * windows.stride[axis] + windows.span(axis),
            windows.before[axis] + size[axis],
        )
        for axis in (0, 1)
    )
    return down, across


def _taps(image: Array, windows: Windows, output: Pair) -> Array:
    """A view [N, C, KH, KW, OH, OW] of an image that all windows lie on."""
    step_n, step_c, step_h, step_w = image.strides
    (down, across), (dilated_down, dilated_across) = windows.stride, windows.dilation
    return np.lib.stride_tricks.as_strided(
        image,
        (*image.shape[:2], *windows.kernel, *output),
        (
            step_n, step_c, step_h * dilated_down, step_w * dilated_across,
            step_h * down, step_w * across,
        ),
        writeable=image.flags.writeable,
    )  # fmt: skip


def under_taps(x: Array, windows: Windows, output: Pair, fill: float) -> Array:
    """A view [N, C, KH, KW, OH, OW] of what lies under each tap, ``fill`` outside x."""
    (top, left), (height, width) = windows.before, x.shape[2:]
    reach = _reach(windows, (height, width), output)
    if reach != (height, width):
        image = np.full((*x.shape[:2], *reach), fill, x.dtype)
        image[:, :, top : top + height, left : left + width] = x
        x = image
    return _taps(x, windows, output)


def add_taps(dx: Array, windows: Windows, output: Pair, share: Callable[[int, int], Array]) -> None:
    """dx sums ``share(k, l)``, [N, C, OH, OW], over the taps k, l that lie on each element."""
    (top, left), (height, width) = windows.before, dx.shape[2:]
    wide = accumulation_dtype(dx.dtype)
    reach = _reach(windows, (height, width), output)
    in_place = reach == (height, width) and wide == dx.dtype
    image = dx if in_place else np.empty((*dx.shape[:2], *reach), wide)
    image[...] = 0
    onto = _taps(image, windows, output)
    # Windows overlap, so taps are added one after another.
    for k in range(windows.kernel[0]):
        for tap in range(windows.kernel[1]):
            onto[:, :, k, tap] += share(k, tap)
    if not in_place:
        dx[...] = image[:, :, top : top + height, left : left + width]
