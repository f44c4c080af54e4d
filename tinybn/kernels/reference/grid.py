"""Where the windows of a convolution lie, and matrices of what lies under them.

Images are written one after the other, row after row, into one line a channel, with just so many
zeros between rows and between images that no window reaches from one into the next:

    a b c 0 d e f 0 0 0 0 0 g h i 0 …       (two rows of 3, padding 1, then the next image)

With stride 1 the elements under tap k, l of *all* windows are then one stretch of that line, which
is copied, or added to, in half the time that rows of 14 elements take. The price is windows that
lie across the zeros: their results are dropped, and their gradients are 0.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from ..arrays import accumulation_dtype
from ..windows import Pair, Windows
from .matmul import dense

Array = np.ndarray


class Grid(NamedTuple):
    """The windows on images of ``size`` that give results of size ``output``."""

    windows: Windows
    size: Pair
    output: Pair

    @property
    def _pitch(self) -> Pair:
        """From one image to the next in rows, and from one row to the next in elements."""
        down, across = (
            max(
                self.size[axis] + max(self.windows.before[axis], self.windows.after[axis]),
                self.output[axis],
            )
            for axis in (0, 1)
        )
        return down, across

    @property
    def _computed(self) -> Pair:
        """How many windows are computed down and across."""
        return self._pitch if self.windows.stride == (1, 1) else self.output

    @property
    def windows_per_image(self) -> int:
        """How many windows of an image are computed."""
        return math.prod(self._computed)

    def _all(self, images: int) -> int:
        """How many windows of all images are computed."""
        return images * self.windows_per_image

    def _lines(self, images: int, channels: int, dtype: np.dtype) -> Array:
        """Zeros, one line a channel, that all windows lie on."""
        (rows, columns), windows = self._pitch, self.windows
        down, across = (windows.span(axis) + windows.after[axis] for axis in (0, 1))
        beyond = down * columns + across  # the last windows reach further than the last image
        return np.zeros((channels, images * rows * columns + beyond), dtype)

    def _images(self, lines: Array, images: int) -> Array:
        """The view [N, C, H, W] of the images in their lines."""
        (rows, columns), (top, left), (height, width) = self._pitch, self.windows.before, self.size
        step = lines.itemsize
        start = lines[:, top * columns + left :]
        return np.lib.stride_tricks.as_strided(
            start, (images, len(lines), height, width),
            (rows * columns * step, lines.strides[0], columns * step, step),
        )  # fmt: skip

    def _under_taps(self, lines: Array, images: int) -> Array:
        """The view [C, KH, KW, N, …, …] of what lies under each tap of all computed windows."""
        (rows, columns), windows = self._pitch, self.windows
        step = lines.itemsize
        row = columns * step
        return np.lib.stride_tricks.as_strided(
            lines, (len(lines), *windows.kernel, images, *self._computed),
            (
                lines.strides[0], windows.dilation[0] * row, windows.dilation[1] * step,
                rows * row, windows.stride[0] * row, windows.stride[1] * step,
            ),
        )  # fmt: skip

    def patches(self, x: Array, groups: int) -> Array:
        """x [N, C, H, W] as matrices [groups, C/g·taps, windows], in the accumulation dtype."""
        images, channels = x.shape[:2]
        lines = self._lines(images, channels, accumulation_dtype(x.dtype))
        self._images(lines, images)[...] = x
        rows = channels // groups * self.windows.taps
        patches = self._under_taps(lines, images).reshape(groups, rows, self._all(images))
        return dense(patches)  # of one channel's taps along one axis it is a view that overlaps

    def add_patches(self, patches: Array, dx: Array) -> None:
        """dx [N, C, H, W] sums, over the windows and taps that lie on an element, their patch."""
        images, channels = dx.shape[:2]
        lines = self._lines(images, channels, patches.dtype)
        onto = self._under_taps(lines, images)
        patches = patches.reshape(onto.shape)
        # Windows overlap, so taps are added one after another.
        for k in range(self.windows.kernel[0]):
            for tap in range(self.windows.kernel[1]):
                onto[:, k, tap] += patches[:, k, tap]
        dx[...] = self._images(lines, images)

    def gradients(self, dy: Array, groups: int) -> Array:
        """dy [N, O, OH, OW] as matrices [groups, O/g, windows]; 0 for those across the zeros."""
        images, channels = dy.shape[:2]
        wide = accumulation_dtype(dy.dtype)
        grad = np.zeros((channels, images, *self._computed), wide)
        grad[..., : self.output[0], : self.output[1]] = dy.swapaxes(0, 1)
        return grad.reshape(groups, channels // groups, self._all(images))

    def without_crossing(self, matrices: Array) -> Array:
        """A copy of matrices [groups, rows, windows] that has 0 for windows across the zeros.

        What they have there is multiplied by 0, or is a product with 0: NaN for ∞ and NaN.
        """
        of_windows = matrices.reshape(*matrices.shape[:2], -1, *self._computed).copy()
        of_windows[..., self.output[0] :, :] = 0
        of_windows[..., self.output[1] :] = 0
        return of_windows.reshape(matrices.shape)

    def results(self, product: Array, images: int) -> Array:
        """The view [N, O, OH, OW] of products [groups, O/g, windows]."""
        groups, channels, _ = product.shape
        product = product.reshape(groups * channels, images, *self._computed)
        return product[..., : self.output[0], : self.output[1]].swapaxes(0, 1)
