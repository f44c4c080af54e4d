"""MNIST and Fashion-MNIST, from a folder or downloaded once."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import ArgumentError
from .dataset import Dataset
from .digits import CLASSES
from .fetch import Source, cache_folder, download
from .folder import FILE_NAMES, find, read_folder


def _sums(*sha256: str) -> dict[str, str]:
    """Pair the four archives, in the order of FILE_NAMES, with their SHA-256."""
    return {f"{name}.gz": digest for name, digest in zip(FILE_NAMES, sha256, strict=True)}


MNIST = Source(
    "mnist",
    (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        "https://storage.googleapis.com/cvdf-datasets/mnist/",
    ),
    _sums(
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
    ),
)
FASHION_MNIST = Source(
    "fashion_mnist",
    (
        "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
    ),
    _sums(
        "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
        "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
        "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
        "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
    ),
)
FASHION_CLASSES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)


def mnist(root: str | os.PathLike[str] | None = None) -> tuple[Dataset, Dataset]:
    """Return MNIST as ``(train, test)``: 60,000 and 10,000 handwritten digits.

    Args:
        root: the folder with the four IDX files ``train-images-idx3-ubyte``,
            ``train-labels-idx1-ubyte``, ``t10k-images-idx3-ubyte`` and
            ``t10k-labels-idx1-ubyte``, each plain or with ``.gz`` after its name.
            Files that are there are read as they are, whoever compressed them;
            those that are missing are downloaded into it. None is the user's
            cache (``~/.cache/tinybn/mnist`` on Linux), filled by the first call
            and checked by SHA-256 at each.

    Returns:
        Two :class:`Dataset`, images uint8 ``[N, 28, 28]``, labels int64 ``[N]``,
        both with the training set's mean and standard deviation.

    Raises:
        DataError: (a ValueError) if a file is damaged or not what it should be.
        DownloadError: (a RuntimeError) if files are missing and no mirror gives
            them; it names the folder and the files wanted.
        MissingDependency: (an ImportError) if pooch is needed and not installed.
        ArgumentError: (a ValueError) if ``root`` is a file.

    Source: Y. LeCun, C. Cortes and C. J. C. Burges, The MNIST database of
    handwritten digits, http://yann.lecun.com/exdb/mnist, CC BY-SA 3.0.
    """
    return _load(MNIST, root, CLASSES)


def fashion_mnist(root: str | os.PathLike[str] | None = None) -> tuple[Dataset, Dataset]:
    """Return Fashion-MNIST as ``(train, test)``: 60,000 and 10,000 pictures of clothes.

    Args:
        root: as for :func:`mnist`; the four files bear the same names, so give
            the two data sets different folders.

    Returns:
        Two :class:`Dataset`, images uint8 ``[N, 28, 28]``, labels int64 ``[N]``.

    Raises:
        The errors of :func:`mnist`.

    Source: H. Xiao, K. Rasul and R. Vollgraf, Fashion-MNIST: a Novel Image
    Dataset for Benchmarking Machine Learning Algorithms, arXiv:1708.07747, 2017,
    https://github.com/zalandoresearch/fashion-mnist, MIT.
    """
    return _load(FASHION_MNIST, root, FASHION_CLASSES)


def _load(
    source: Source, root: str | os.PathLike[str] | None, classes: tuple[str, ...]
) -> tuple[Dataset, Dataset]:
    """Download what is missing and read the folder."""
    if root is None:
        folder = cache_folder(source)
        wanted = list(source.sha256)
    else:
        folder = Path(root).expanduser()
        if folder.exists() and not folder.is_dir():
            raise ArgumentError(f"root {folder} is a file; wanted a folder")
        wanted = [f"{name}.gz" for name in FILE_NAMES if find(folder, name) is None]
    if wanted:
        download(source, wanted, folder)
    return read_folder(folder, source.name, classes)
