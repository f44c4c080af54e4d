"""What runs where and when, and how a benchmark is started in several processes at once."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import tinybn as tb
from tinybn.kernels import gpu

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "Triton": ("triton",),
    "NumPy": ("numpy",),
}


def our_versions() -> dict[str, str]:
    """Of tinybn and of those packages that it runs on here."""
    versions = {"tinybn": tb.__version__}
    for name, distributions in PACKAGES.items():
        for distribution in distributions:
            with contextlib.suppress(metadata.PackageNotFoundError):
                versions.setdefault(name, metadata.version(distribution))
    return versions


def about(versions: Mapping[str, str], device: str = "cuda") -> dict[str, str]:
    """The GPU and its driver, or the processor; the versions; the date."""
    versions = {"Python": platform.python_version(), **versions}
    if device == "cuda":
        place = {"GPU": gpu.device_name(), "driver": _driver()}
    else:
        place = {"CPU": f"{_processor()}, {len(os.sched_getaffinity(0))} cores used"}
    return {
        **place,
        "versions": ", ".join(f"{name} {version}" for name, version in versions.items()),
        "date": datetime.date.today().isoformat(),
    }


def _driver() -> str:
    try:
        return subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout.split()[0]  # fmt: skip
    except (OSError, subprocess.SubprocessError, IndexError):
        return "unknown"


def _processor() -> str:
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.machine()


def command(module: str, *arguments: str) -> list[str]:
    """The command line of a module of this folder."""
    return [sys.executable, "-m", f"benchmarks.{module}", *arguments]


def run_together(commands: Sequence[Sequence[str]]) -> None:
    """Run commands at once and wait for all, such as to fill the caches on disk."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # the processes suffice
    running = [subprocess.Popen(line, cwd=ROOT, env=environment) for line in commands]
    for process in running:
        process.wait()


def slices(module: str, arguments: Sequence[str], jobs: int) -> list[list[str]]:
    """The command lines in which ``--compile-slice`` shares the rows out to ``jobs`` processes."""
    return [command(module, *arguments, "--compile-slice", f"{k}/{jobs}") for k in range(jobs)]
