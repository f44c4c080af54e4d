"""5,000 handwritten digits that come with the package: no download."""

from __future__ import annotations

from pathlib import Path

from .dataset import Dataset
from .folder import read_folder

FOLDER = Path(__file__).parent / "files"
CLASSES = tuple("0123456789")


def digits() -> tuple[Dataset, Dataset]:
    """Return ``(train, test)``: 4,000 and 1,000 real MNIST digits, shipped with tinybn.

    Every class has 400 images in the first and 100 in the second; the two share
    none. Both are in a fixed order that mixes the classes, so that a loop over
    them in order trains as well as a shuffled one.

    All 5,000 come from MNIST's *training* set: do not judge by them a network
    that was trained on :func:`tinybn.data.mnist`.

    Returns:
        Two :class:`Dataset`, images uint8 ``[N, 28, 28]``, labels int64 ``[N]``.

    Raises:
        DataError: if the installed files are damaged.

    Source: Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of
    handwritten digits, CC BY-SA 3.0; ``files/SOURCE.md`` tells how the 5,000
    were chosen.
    """
    return read_folder(FOLDER, "digits", CLASSES)
