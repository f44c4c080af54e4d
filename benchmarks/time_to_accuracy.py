"""Measure how long the CNN takes to 99.0 % on MNIST's test set, from the start of a process.

    python -m benchmarks.time_to_accuracy --root ~/mnist
    python -m benchmarks.time_to_accuracy --root ~/mnist --long

It needs a clone and an NVIDIA GPU, and writes time_to_accuracy.md beside itself (with ``--long``
time_to_accuracy_long.md).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path

from . import machine, recipe, writing
from .recipe import PHASES, Result
from .writing import document, number, table

HERE = Path(__file__).parent
WARM, COLD, PYTORCH = "tinybn", "tinybn, empty caches", "PyTorch eager"
MODULES = {WARM: "accuracy_tinybn", COLD: "accuracy_tinybn", PYTORCH: "accuracy_torch"}
TRAINING_GOAL, TOTAL_GOAL = 0.3, 3.0  # seconds until 99.0 %
RUN_LIMIT = 600  # seconds after which a run is given up


@dataclass
class Report:
    """All runs.

    Attributes:
        about: the GPU or CPU, driver, versions and date, by name.
        epochs, batch, peak, shift: of the recipe.
        goal: the accuracy.
        runs: by candidate, its results by seed.
        remarks: lines on what was not measured, and why.
    """

    about: dict[str, str]
    epochs: int
    batch: int
    peak: float
    shift: int
    goal: float
    runs: dict[str, dict[int, Result]] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.time_to_accuracy", description=__doc__.partition("\n")[0]
    )
    add = result.add_argument
    add("--root", type=Path, required=True, help="the folder of MNIST's four IDX files, gzipped")
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where (%(default)s)")
    add("--seeds", type=int, default=5, help="runs of each candidate (%(default)s)")
    add("--cold-seeds", type=int, default=2,
        help="runs with empty caches; the first fills the others' (%(default)s)")  # fmt: skip
    add("--epochs", type=int, help="4; with --long 20")
    add("--batch", type=int, default=recipe.BATCH, help="(%(default)s)")
    add("--peak", type=float, metavar="RATE", default=recipe.PEAK_LEARNING_RATE,
        help="the cycle's highest learning rate (%(default)s)")  # fmt: skip
    add("--long", action="store_true", help="tinybn alone, shifted images, towards 99.5 %%")
    add("--peer-free", action="store_true", help="measure tinybn alone")
    add("--limit", metavar="SECONDS", type=float, default=300,
        help="begin no run after this time (%(default)s)")  # fmt: skip
    add("--output", type=Path, help="the report; beside this file where not given")
    add("--json", type=Path, help="write all figures here too")
    return result


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with what others decide filled in."""
    options = parser().parse_args(arguments)
    options.epochs = options.epochs or (recipe.LONG_EPOCHS if options.long else recipe.EPOCHS)
    options.output = options.output or HERE / f"time_to_accuracy{'_long' * options.long}.md"
    if min(options.seeds, options.cold_seeds, options.epochs) < 1 or options.batch < 2:
        sys.exit("seeds, cold seeds and epochs are at least 1, and the batch at least 2")
    return options


def plan(options: argparse.Namespace, remarks: list[str]) -> list[tuple[str, int]]:
    """Candidates and seeds in the order in which they run: cold ones first, the others in turn."""
    with_torch = not (options.peer_free or options.long)
    if with_torch and importlib.util.find_spec("torch") is None:
        remarks.append(f"{PYTORCH}: torch is not installed")
        with_torch = False
    cold = [(COLD, seed) for seed in range(min(options.cold_seeds, options.seeds))]
    candidates = (WARM, PYTORCH) if with_torch else (WARM,)
    return cold + [(name, seed) for seed in range(options.seeds) for name in candidates]


def run(name: str, seed: int, options: argparse.Namespace, caches: Path) -> Result:
    """Train once in a fresh process.

    Args:
        caches: the folder of what Triton and CuPy compile.

    Raises:
        RuntimeError: with the last line of its errors, where it fails.
    """
    environment = {
        **os.environ,
        "TRITON_CACHE_DIR": str(caches / "triton"),
        "CUPY_CACHE_DIR": str(caches / "cupy"),
    }
    line = machine.command(
        MODULES[name], "--root", str(options.root.resolve()), "--device", options.device,
        "--seed", str(seed), "--epochs", str(options.epochs), "--batch", str(options.batch),
        "--peak", str(options.peak), "--shift", str(recipe.SHIFT if options.long else 0), "--start",
    )  # fmt: skip
    try:
        done = subprocess.run(
            [*line, repr(time.monotonic())], cwd=machine.ROOT, env=environment, capture_output=True,
            text=True, timeout=RUN_LIMIT,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it took longer than {RUN_LIMIT} s") from None
    if done.returncode:
        raise RuntimeError((done.stderr.strip().splitlines() or ["it said nothing"])[-1])
    return Result(**json.loads(done.stdout.splitlines()[-1]))


def median(runs: Mapping[int, Result], value: Callable[[Result], float | None]) -> float | None:
    """The median of a figure over the runs that have it."""
    found = [v for result in runs.values() if (v := value(result)) is not None]
    return statistics.median(found) if found else None


def total_until(result: Result, goal: float) -> float | None:
    """Seconds from the start of the process until the goal was reached and seen."""
    epoch = result.first_at(goal)
    return None if epoch is None else result.reached[epoch - 1]


def training_until(result: Result, goal: float) -> float | None:
    """Seconds of training until the goal was reached."""
    epoch = result.first_at(goal)
    return None if epoch is None else result.training_until(epoch)


def summary(report: Report) -> list[str]:
    """The lines of Markdown that say how each candidate did, and whether goals are met."""
    lines = []
    goal = f"{100 * report.goal:.1f} %"
    for name, runs in report.runs.items():
        reached = sum(result.first_at(report.goal) is not None for result in runs.values())
        last = [100 * result.accuracies[-1] for result in runs.values()]
        lines.append(
            f"- {name}: {reached} of {len(runs)} runs reach {goal}; at the end "
            f"{min(last):.2f} to {max(last):.2f} %, median {statistics.median(last):.2f} %."
        )
    ours = report.runs.get(WARM, {})
    if report.shift or not ours:
        return lines
    all_reach = all(result.first_at(report.goal) for result in ours.values())
    for text, limit, value in (
        ("of training", TRAINING_GOAL, median(ours, lambda r: training_until(r, report.goal))),
        ("of process start", TOTAL_GOAL, median(ours, lambda r: total_until(r, report.goal))),
    ):
        met = all_reach and value is not None and value <= limit
        lines.append(
            f"- {goal} within {limit} s {text}: **{'met' if met else 'missed'}** "
            f"({number(value, '.2f')} s, median)."
        )
    return lines


def markdown(report: Report, notes: str = "") -> str:
    """The whole report.

    Args:
        notes: the text of its last section, which is left out where there is none.
    """
    title = f"# Time to {100 * report.goal:.1f} % on MNIST"
    parts = [title, _method(report), "\n".join(summary(report))]
    parts.append("\n".join(f"- {name}: {value}" for name, value in report.about.items()))
    header = ["candidate", *PHASES, "training to goal", "total to goal"]
    lines = []
    for name, runs in report.runs.items():
        cells = [number(median(runs, lambda r, p=p: r.phases[p]), ".2f") for p in PHASES]
        until = (training_until, total_until)
        cells += [number(median(runs, lambda r, u=u: u(r, report.goal)), ".2f") for u in until]
        lines.append([name, *cells])
    parts += ["## Seconds, median of the runs", table(header, lines, 1)]
    lines = [
        [
            name,
            str(seed),
            ", ".join(f"{100 * accuracy:.2f}" for accuracy in result.accuracies),
            number(result.first_at(report.goal), "d"),
            number(result.phases["training"], ".3f"),
            number(total_until(result, report.goal), ".2f"),
            number(result.phases["total"], ".2f"),
        ]
        for name, runs in report.runs.items()
        for seed, result in runs.items()
    ]
    header = ["candidate", "seed", "% after each epoch", "goal in epoch", "training s",
              "total s to goal", "total s"]  # fmt: skip
    parts += ["## Runs", table(header, lines)]
    return document(parts, {}, report.remarks, notes)


def _method(report: Report) -> str:
    shift = f", images shifted by up to {report.shift} pixels" if report.shift else ""
    return (
        f"Written by `python -m benchmarks.time_to_accuracy{' --long' * bool(report.shift)}`. "
        "Every run is a process of its own that trains `nn.models.cnn` on MNIST's 60,000 images "
        f"and is evaluated on the 10,000 after each epoch: batch {report.batch}, {report.epochs} "
        f"epochs, SGD with Nesterov momentum {recipe.MOMENTUM}, one cycle of the learning rate "
        f"up to {report.peak}, weight decay {recipe.WEIGHT_DECAY}, label smoothing "
        f"{recipe.LABEL_SMOOTHING}, TF32 products on a GPU, data resident on the device{shift}. "
        "Seconds by the wall clock from just before the process is started. *first step* is "
        "what the first epoch takes longer than the median of the others, kernels' compilation or "
        "loading included; *training* is the rest of the epochs. The caches of Triton and "
        "CuPy are folders of this run; those of *tinybn* were filled by the first run with empty "
        "ones. PyTorch runs the same recipe eagerly, its data read by the standard library."
    )


def as_json(report: Report) -> str:
    """All figures, in seconds."""
    return json.dumps(asdict(report), indent=1)


def write(report: Report, options: argparse.Namespace) -> None:
    """Write the report and the JSON."""
    notes = writing.notes(HERE / f"time_to_accuracy{'_long' * bool(report.shift)}_notes.md")
    options.output.write_text(markdown(report, notes), encoding="utf-8")
    if options.json is not None:
        options.json.write_text(as_json(report), encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status, 1 where a run of tinybn failed."""
    began = time.monotonic()
    options = parsed(sys.argv[1:] if arguments is None else arguments)
    if options.device == "cuda":
        machine.require_gpu()
    remarks: list[str] = []
    planned = plan(options, remarks)
    versions = machine.our_versions()
    if any(name == PYTORCH for name, _ in planned):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions["PyTorch"] = metadata.version("torch")
    shift, goal = (recipe.SHIFT, recipe.LONG_GOAL) if options.long else (0, recipe.GOAL)
    place = machine.about(versions, options.device)
    report = Report(
        place, options.epochs, options.batch, options.peak, shift, goal, remarks=remarks
    )  # fmt: skip
    failed = False
    with tempfile.TemporaryDirectory() as folder:
        try:
            for name, seed in planned:
                if time.monotonic() - began > options.limit:
                    remarks.append(f"{name}, seed {seed}: the time was up")
                    continue
                caches = Path(folder) / (f"caches-{seed}" if name == COLD else "caches-0")
                try:
                    result = run(name, seed, options, caches)
                except RuntimeError as error:
                    remarks.append(f"{name}, seed {seed}: {error}")
                    failed |= name != PYTORCH
                    continue
                report.runs.setdefault(name, {})[seed] = result
                print(
                    f"{name:22} seed {seed}  {100 * result.accuracies[-1]:.2f} %  "
                    + "  ".join(f"{p} {result.phases[p]:.2f}" for p in PHASES),
                    flush=True,
                )
        finally:  # what was measured before an interrupt is kept
            write(report, options)
    print("\n".join([*summary(report), *remarks]))
    return 1 if failed or WARM not in report.runs else 0


if __name__ == "__main__":
    sys.exit(main())
