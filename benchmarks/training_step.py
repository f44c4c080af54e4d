"""Measure a whole training step, beside PyTorch and JAX where they are installed.

    python -m benchmarks.training_step --warm 12
    python -m benchmarks.training_step --device cpu

It needs a clone, and writes training_step.md and training_step.svg beside itself (with
``--device cpu`` training_step_cpu.md and .svg).
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from . import machine, timing, writing
from .training_jax import Jax
from .training_ours import EAGER, Ours
from .training_problem import (
    BATCHES,
    CHECKED,
    FLOAT32,
    MODELS,
    PRECISIONS,
    Configuration,
    Problem,
    Run,
    Trace,
    configurations,
    reference,
)
from .training_report import Figures, Report, as_json, markdown, plot, row_line, summary
from .training_torch import PYTORCH, Torch
from .writing import reason

HERE = Path(__file__).parent
FIRST_STEPS = {EAGER: "tinybn", PYTORCH: "torch"}  # the argument of first_step.py
FIRST_ROUNDS = 3
HOST_ROUNDS, HOST_STEPS = 5, 20
Stretch = Callable[[Run], float]


class Library(Protocol):
    """One library's candidates; Ours, Torch and Jax are such."""

    def versions(self) -> dict[str, str]: ...
    def names(self, configuration: Configuration) -> tuple[str, ...]: ...
    def to_compile(self, configuration: Configuration) -> tuple[str, ...]: ...
    def build(self, problem: Problem, name: str) -> Run: ...
    def release(self) -> None: ...


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.training_step", description=__doc__.partition("\n")[0]
    )
    add = result.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where (%(default)s)")
    add("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    add("--batches", nargs="+", type=int, metavar="N", help="128 1024; on a CPU 128")
    add("--precisions", nargs="+", choices=PRECISIONS, help="all; on a CPU float32")
    add("--rounds", type=int, default=7, help="stretches of each candidate (%(default)s)")
    add("--steps", type=int, help="steps of a stretch; 50, on a CPU 5")
    add("--peer-free", action="store_true", help="measure tinybn alone; import no other framework")
    add("--warm", metavar="JOBS", type=int, default=0,
        help="first compile for all rows in so many processes")  # fmt: skip
    add("--limit", metavar="SECONDS", type=float, default=150,
        help="begin no row after this time (%(default)s)")  # fmt: skip
    add("--output", type=Path, help="the report; beside this file where not given")
    add("--json", type=Path, help="write all figures here too")
    add("--compile-slice", metavar="K/N", help=argparse.SUPPRESS)  # what --warm's processes do
    add("--save-references", metavar="DIR", type=Path, help=argparse.SUPPRESS)  # likewise
    return result


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with what the device decides filled in."""
    options = parser().parse_args(arguments)
    on_cpu = options.device == "cpu"
    options.batches = options.batches or list(BATCHES[:1] if on_cpu else BATCHES)
    options.precisions = options.precisions or ([FLOAT32] if on_cpu else list(PRECISIONS))
    options.steps = options.steps or (5 if on_cpu else 50)
    options.output = options.output or HERE / f"training_step{'_cpu' * on_cpu}.md"
    if min(options.rounds, options.steps, *options.batches) < 1 or 1 in options.batches:
        sys.exit("rounds and steps are at least 1, and batches at least 2: BatchNorm needs them")
    if on_cpu and options.precisions != [FLOAT32]:
        sys.exit("on a CPU the precision is float32")
    return options


def selected(options: argparse.Namespace) -> list[Configuration]:
    """The rows that the options leave."""
    return configurations(options.models, options.batches, options.precisions)


def libraries(options: argparse.Namespace, stream: int | None, remarks: list[str]) -> list[Library]:
    """Ours first, then those peers that are there; a remark says why one is not."""
    found: list[Library] = [Ours(options.device)]
    peers: dict[str, Callable[[], Any]] = {"PyTorch": lambda: Torch(stream)}
    if options.device == "cuda":
        peers["JAX"] = Jax
    return found if options.peer_free else found + machine.those_there(peers, remarks)


def compile_slice(options: argparse.Namespace) -> None:
    """Compile every N-th row's kernels, from the K-th on."""
    start, step = map(int, options.compile_slice.split("/"))
    found = libraries(options, timing.Timer().stream.ptr, [])
    for configuration in selected(options)[start::step]:
        problem = Problem.of(configuration, CHECKED)
        for library in found:
            for name in library.to_compile(configuration):
                # What fails here fails again, and is then reported, when it is measured.
                with contextlib.suppress(Exception):
                    library.build(problem, name)


def reference_path(folder: Path, configuration: Configuration) -> Path:
    """Where the float64 steps of a model and batch size are; precisions share them."""
    return folder / f"{configuration.model}-{configuration.batch}.npz"


def warm(options: argparse.Namespace, arguments: Sequence[str], folder: Path) -> None:
    """Compile all rows' kernels, and step through the references, in processes at once."""
    commands = machine.slices("training_step", arguments, options.warm)
    for model in options.models:
        for batch in options.batches:
            commands.append(machine.command(
                "training_step", "--models", model, "--batches", str(batch),
                "--save-references", str(folder),
            ))  # fmt: skip
    machine.run_together(commands)


def save_references(options: argparse.Namespace) -> None:
    """Step through the references of the options' rows and write them."""
    for configuration in configurations(options.models, options.batches, [FLOAT32]):
        path = reference_path(options.save_references, configuration)
        reference(Problem.of(configuration, CHECKED)).save(path)


def measure(
    configuration: Configuration,
    found: Sequence[Library],
    stretch: Stretch,
    folder: Path,
    rounds: int,
) -> Figures:
    """Build, check and time every candidate of one row."""
    figures = Figures(configuration)
    problem = Problem.of(configuration)
    runs: dict[str, Run] = {}
    for library in found:
        for name in library.names(configuration):
            try:
                runs[name] = library.build(problem, name)
            except Exception as error:  # one candidate's failure is the row's remark
                figures.failures[name] = reason(error)
    path = reference_path(folder, configuration)
    if not path.exists():
        reference(problem).save(path)
    want = Trace.load(path)
    for name, run in runs.items():
        figures.loss_errors[name] = run.trace.loss_error(want)
        figures.update_errors[name] = run.trace.update_error(want, problem)
        figures.memory[name] = run.memory
    figures.us = medians(runs, stretch, rounds)
    for name, run in runs.items():
        steps = {name: run.step}
        figures.host |= timing.host_us(steps, run.wait, HOST_ROUNDS, HOST_STEPS)
    for name, run in runs.items():  # last, since a capture that fails may leave a run unfit
        figures.launches[name] = run.launches()
    return figures


def medians(runs: Mapping[str, Run], stretch: Stretch, rounds: int) -> dict[str, float]:
    """The median time of a step, all candidates once a round: what drifts hits them alike."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            samples[name].append(stretch(run))
    return {name: statistics.median(values) for name, values in samples.items()}


def stretches(timer: timing.Timer | None, steps: int) -> Stretch:
    """How a stretch is timed: by events where they see all of it, else by the wall clock."""

    def stretch(run: Run) -> float:
        if timer is not None and run.on_device:
            return timer.stretch_us(run.step, steps)
        return timing.wall_stretch_us(run.step, steps, run.wait)

    return stretch


def first_step(configuration: Configuration, name: str) -> list[str]:
    """The command line of a process that takes one step."""
    model, batch = configuration.model, str(configuration.batch)
    return machine.command("first_step", FIRST_STEPS[name], model, batch)


def write(report: Report, output: Path, json_output: Path | None) -> None:
    """Write the report, its plot and the JSON."""
    notes = writing.notes(HERE / f"training_step{'_cpu' * (report.device == 'cpu')}_notes.md")
    writing.write(
        output, json_output,
        lambda path: plot(report, path),
        lambda picture: markdown(report, notes, picture),
        lambda: as_json(report),
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status, 1 where a result of ours is wrong or missing."""
    began = time.monotonic()
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parsed(arguments)
    on_cpu = options.device == "cpu"
    if options.save_references:
        save_references(options)
        return 0
    if on_cpu and not machine.is_confined():
        return machine.confined("training_step", arguments)
    if not on_cpu:
        machine.require_gpu()
    if options.compile_slice:
        compile_slice(options)
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if options.warm and not on_cpu:
            warm(options, arguments, Path(folder))
            print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
        report = measured(options, Path(folder), began)
    print("\n".join([*summary(report), *report.remarks]))
    good = all(f.main in f.us and not f.failing(f.main) for f in report.figures)
    return 0 if good and report.figures else 1


def measured(options: argparse.Namespace, folder: Path, began: float) -> Report:
    """Measure all rows and write the report."""
    timer = None if options.device == "cpu" else timing.Timer()
    remarks: list[str] = []
    found = libraries(options, None if timer is None else timer.stream.ptr, remarks)
    versions: dict[str, str] = {}
    for library in found:
        versions |= library.versions()
    report = Report(
        machine.about(versions, options.device), options.device, options.rounds, options.steps,
        remarks=remarks,
    )  # fmt: skip
    stretch = stretches(timer, options.steps)
    gc.freeze()  # what is loaded by now stays: collections between rows need not look at it
    try:
        for configuration in selected(options):
            if time.monotonic() - began > options.limit:
                remarks.append(f"{configuration.name}: the time was up")
                continue
            try:
                figures = measure(configuration, found, stretch, folder, options.rounds)
                if timer is None:
                    lines = {name: first_step(configuration, name) for name in figures.us}
                    figures.first_seconds = machine.first_seconds(lines, FIRST_ROUNDS)
            except Exception as error:  # the row's remark; the next one may work
                figures = Figures(configuration, failures={"all": reason(error)})
            report.figures.append(figures)
            print(row_line(figures), flush=True)
            gc.collect()  # graphs and what they hold
            for library in found:
                library.release()
        for library in found:
            remarks += getattr(library, "remarks", [])
    finally:  # what was measured before an interrupt or a GPU error is kept
        write(report, options.output, options.json)
    return report


if __name__ == "__main__":
    sys.exit(main())
