"""Batches of a data set of images."""

from __future__ import annotations

import numpy as np

from .random import philox

Array = np.ndarray


def gather_images(
    images: Array, labels: Array, order: Array, table: Array, x: Array, y: Array, *, first: int,
    shift: int, seed: int, offset: int, stream: int,
) -> None:  # fmt: skip
    """x[i] = table[images[order[first + i]]] moved by at most ``shift`` pixels, y[i] its label.

    It moves down by word 0 and to the right by word 1 of Philox's counter (offset + i, stream)
    with the key ``seed``, each modulo 2·shift + 1, minus shift; table[0] comes in at the edges.
    """
    count, (_, height, width) = len(y), images.shape
    rows = order[first : first + count]
    np.take(labels, rows, out=y)
    if not shift:
        np.take(table, images[rows], out=x)
        return
    words = np.empty(4 * count, np.uint32)
    philox(words, seed=seed, offset=offset, stream=stream)
    moves = (words.reshape(count, 4) % np.uint32(2 * shift + 1)).astype(np.int64) - shift
    padded = np.pad(images[rows], ((0, 0), (shift, shift), (shift, shift)))
    h = np.arange(height)[:, None] + shift - moves[:, 0, None, None]
    w = np.arange(width) + shift - moves[:, 1, None, None]
    np.take(table, padded[np.arange(count)[:, None, None], h, w], out=x)
