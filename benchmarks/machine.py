"""What runs where and when, and how a benchmark is started in several processes at once."""

from __future__ import annotations

import contextlib
import datetime
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import TypeVar

import tinybn as tb
from tinybn.kernels import gpu

from .writing import reason

ROOT = Path(__file__).parent.parent
PACKAGES = {
    "CuPy": ("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    "Triton": ("triton",),
    "NumPy": ("numpy",),
}
CPU_THREADS = 2
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


T = TypeVar("T")


def require_gpu() -> None:
    """End the program, and say why, where there is no GPU that tinybn can use."""
    missing = gpu.why_unavailable()
    if missing is not None:
        sys.exit(f"this needs an NVIDIA GPU: {missing}")


def those_there(peers: Mapping[str, Callable[[], T]], remarks: list[str]) -> list[T]:
    """What those of ``peers`` make that are there; a remark says why another is not."""
    found = []
    for name, make in peers.items():
        try:
            found.append(make())
        except Exception as error:  # not installed, or without a GPU: the others go on
            remarks.append(f"{name}: {reason(error)}")
    return found


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


def is_confined() -> bool:
    """Whether this process was started with CPU_THREADS threads."""
    return all(os.environ.get(name) == str(CPU_THREADS) for name in THREAD_VARIABLES)


def confined(module: str, arguments: Sequence[str]) -> int:
    """Run a program in a process with CPU_THREADS cores and threads; returns its status.

    Libraries take their number of threads when they are loaded, which here they are.
    """
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CPU_THREADS])  # and so the child's
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(CPU_THREADS))}
    return subprocess.run(command(module, *arguments), cwd=ROOT, env=environment).returncode


def first_seconds(lines: Mapping[str, Sequence[str]], rounds: int) -> dict[str, float]:
    """The median seconds from the start of a fresh process to the time that it prints.

    Args:
        lines: by name a command line that prints ``time.time()``; all are run once a round, and
            once before, which leaves Python's bytecode on disk, as pip does.

    Raises:
        CalledProcessError: where one fails.
    """
    seconds: dict[str, list[float]] = {name: [] for name in lines}
    environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    for number in range(rounds + 1):
        for name, line in lines.items():
            start = time.time()
            done = subprocess.run(
                line, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
            )
            if number:
                seconds[name].append(float(done.stdout) - start)
    return {name: statistics.median(values) for name, values in seconds.items()}


def run_together(commands: Sequence[Sequence[str]]) -> None:
    """Run commands at once and wait for all, such as to fill the caches on disk."""
    environment = {**os.environ, "TORCHINDUCTOR_COMPILE_THREADS": "1"}  # the processes suffice
    running = [subprocess.Popen(line, cwd=ROOT, env=environment) for line in commands]
    for process in running:
        process.wait()


def slices(module: str, arguments: Sequence[str], jobs: int) -> list[list[str]]:
    """The command lines in which ``--compile-slice`` shares the rows out to ``jobs`` processes."""
    return [command(module, *arguments, "--compile-slice", f"{k}/{jobs}") for k in range(jobs)]
