"""Downloading a data set's files: several mirrors, checked by SHA-256."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from ..errors import DownloadError, MissingDependency

TIMEOUT = 10.0  # seconds without an answer before the next mirror is tried


@dataclass(frozen=True)
class Source:
    """Where a data set's files come from.

    Attributes:
        name: the data set's name, also that of its folder in the cache.
        mirrors: addresses of folders that hold all files, tried in order.
        sha256: for each file's name, the SHA-256 that it must have.
    """

    name: str
    mirrors: tuple[str, ...]
    sha256: Mapping[str, str]


def cache_folder(source: Source) -> Path:
    """Return the data set's folder in the user's cache, such as ``~/.cache/tinybn/mnist``.

    Raises:
        MissingDependency: if pooch is not installed.
    """
    return Path(_pooch(source, None).os_cache("tinybn")) / source.name


def download(source: Source, names: Sequence[str], folder: Path) -> None:
    """Put the files ``names`` into ``folder``; one that is there and sound is left alone.

    A file is moved into place only once its SHA-256 is right, and one that is
    there with a wrong SHA-256 is replaced.

    Raises:
        DownloadError: if no mirror gives a file that is as it should be.
        MissingDependency: if pooch is not installed.
    """
    pooch = _pooch(source, folder)
    downloader = pooch.HTTPDownloader(timeout=TIMEOUT)
    for name in names:
        failures = []
        for mirror in source.mirrors:
            try:
                known_hash = f"sha256:{source.sha256[name]}"
                pooch.retrieve(mirror + name, known_hash, name, folder, downloader=downloader)
                break
            # requests raises subclasses of OSError, pooch ValueError for a wrong SHA-256.
            except (OSError, ValueError) as error:
                failures.append(f"{mirror} gave {type(error).__name__}")
        else:  # outside of the except clause, so that no inner traceback is shown
            raise DownloadError(
                f"could not download {name} of {source.name} ({', '.join(failures)}); "
                f"put {', '.join(source.sha256)} into {folder} by hand"
            )


def _pooch(source: Source, folder: Path | None) -> ModuleType:
    """Import pooch, which only downloading needs."""
    try:
        import pooch
    except ImportError:
        place = "a folder and pass it as root" if folder is None else folder
        raise MissingDependency(
            f"downloading {source.name} needs pooch: pip install pooch "
            f"(or put {', '.join(source.sha256)} into {place})"
        ) from None
    return pooch
