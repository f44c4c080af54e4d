"""The Triton kernel that makes batches of a data set: picks, shifts and normalises its images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import triton
import triton.language as tl

from ..arrays import Array
from ..common import KernelObject, tile_for_axis, value_of
from ..launch import Launcher
from ..layout import needs_wide_offsets
from ..random.objects import counter

BLOCK = 1024


@triton.jit
def gather_images_kernel(
    images_ptr, labels_ptr, order_ptr, table_ptr, x_ptr, y_ptr, first, seed, offset, stream, H, W,
    shift, SHIFTED: tl.constexpr, WIDE: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    number = tl.program_id(0)
    row = tl.load(order_ptr + value_of(first) + number)
    if tl.program_id(1) == 0:
        tl.store(y_ptr + number, tl.load(labels_ptr + row))
    i = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = i < H * W
    h = i // W
    w = i % W
    if WIDE:
        number = number.to(tl.int64)
    mask = inside
    if SHIFTED:
        position = value_of(offset) + tl.program_id(0)
        low = position.to(tl.uint32)
        zero = low * 0
        down, across, _, _ = tl.philox(
            value_of(seed), low, (position >> 32).to(tl.uint32), zero + stream, zero
        )
        places = tl.cast(2 * shift + 1, tl.uint32)
        h = h - ((down % places).to(tl.int32) - shift)
        w = w - ((across % places).to(tl.int32) - shift)
        mask = inside & (h >= 0) & (h < H) & (w >= 0) & (w < W)
    grey = tl.load(images_ptr + row * (H * W) + h * W + w, mask=mask, other=0)
    x = tl.load(table_ptr + grey, mask=inside, other=0.0)
    tl.store(x_ptr + number * (H * W) + i, x, mask=inside)


class GatherImages(KernelObject):
    """A batch of images and labels. Arguments: ``reference.gather_images``.

    Args:
        block: pixels of a program, a power of two.
    """

    launcher = Launcher(gather_images_kernel)
    example_shape = (8, 28, 28)

    def __init__(self, block: int = BLOCK) -> None:
        self.block = block

    def _arguments(
        self, images, labels, order, table, x, y, first, shift, seed, offset, stream
    ) -> dict[str, Any]:
        _, h, w = images.shape
        return dict(
            images_ptr=images, labels_ptr=labels, order_ptr=order, table_ptr=table, x_ptr=x,
            y_ptr=y, first=counter(first), seed=counter(seed), offset=counter(offset),
            stream=stream, H=h, W=w, shift=shift, SHIFTED=shift > 0, WIDE=needs_wide_offsets(x),
            BLOCK=tile_for_axis(h * w, self.block),
        )  # fmt: skip

    def __call__(
        self, images: Array, labels: Array, order: Array, table: Array, x: Array, y: Array, *,
        first: int, shift: int, seed: int, offset: int, stream: int,
    ) -> None:  # fmt: skip
        arguments = self._arguments(
            images, labels, order, table, x, y, first, shift, seed, offset, stream
        )
        pixels = arguments["H"] * arguments["W"]
        self.launcher((len(y), triton.cdiv(pixels, arguments["BLOCK"])), **arguments)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        numbers = np.zeros(shape[0], np.int64)
        return self._arguments(
            np.zeros(shape, np.uint8), numbers, numbers, np.zeros(256, np.float32),
            np.zeros(shape, np.float32), numbers, 2**40, 1, 2**40, 2**40, 0,
        )  # fmt: skip
