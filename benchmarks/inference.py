"""Measure inference, beside PyTorch and ONNX Runtime where they are installed.

    python -m benchmarks.inference
    python -m benchmarks.inference --device cpu

It needs a clone, and writes inference.md beside itself (with ``--device cpu`` inference_cpu.md).
"""

from __future__ import annotations

import argparse
import gc
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tinybn as tb

from . import machine, timing, writing
from .inference_onnx import ONNX, Onnx, onnx_file
from .inference_ours import COMPILED, EAGER, Ours, compiled_graph
from .inference_problem import BATCHES, MODELS, Problem, Run
from .inference_report import Figures, Report, as_json, markdown, row_line, summary
from .inference_torch import PYTORCH, Torch
from .writing import reason

HERE = Path(__file__).parent
QUEUED = 100  # calls that are queued before one wait
ROUND_SECONDS = 0.3  # after which a round ends, however few its calls
PAUSE = 0.1  # seconds; the threads of OpenMP, OpenBLAS and ONNX Runtime spin for less


class Library(Protocol):
    """One library's candidates; Ours, Torch and Onnx are such."""

    names: tuple[str, ...]

    def versions(self) -> dict[str, str]: ...
    def build(self, problem: Problem, name: str) -> Run: ...


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.inference", description=__doc__.partition("\n")[0]
    )
    add = result.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where (%(default)s)")
    add("--models", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    add("--batches", nargs="+", type=int, metavar="N", default=list(BATCHES), help="1 256")
    add("--rounds", type=int, default=11, help="rounds of each candidate (%(default)s)")
    add("--calls", type=int, default=50, help="timed calls of a round, at most (%(default)s)")
    add("--processes", type=int, default=7,
        help="fresh processes of each candidate on a CPU (%(default)s)")  # fmt: skip
    add("--peer-free", action="store_true", help="measure tinybn alone; import no other framework")
    add("--output", type=Path, help="the report; beside this file where not given")
    add("--json", type=Path, help="write all figures here too")
    return result


def parsed(arguments: Sequence[str]) -> argparse.Namespace:
    """The options, with what the device decides filled in."""
    options = parser().parse_args(arguments)
    options.output = options.output or HERE / f"inference{'_cpu' * (options.device == 'cpu')}.md"
    if min(options.rounds, options.calls, options.processes, *options.batches) < 1:
        sys.exit("rounds, calls, processes and batches are at least 1")
    return options


def libraries(options: argparse.Namespace, stream: int | None, remarks: list[str]) -> list[Library]:
    """Ours first, then those peers that are there; a remark says why one is not."""
    found: list[Library] = [Ours(options.device)]
    peers: dict[str, Callable[[], Any]] = {
        "PyTorch": lambda: Torch(stream), ONNX: lambda: Onnx(options.device),
    }  # fmt: skip
    return found if options.peer_free else found + machine.those_there(peers, remarks)


def latency_us(run: Run, calls: int, pause: float) -> float:
    """The median microseconds of one call until its result is there, after a pause."""
    time.sleep(pause)
    samples: list[float] = []
    end = time.perf_counter() + ROUND_SECONDS
    while len(samples) <= calls and (len(samples) < 2 or time.perf_counter() < end):
        samples.append(timing.wall_stretch_us(run.call, 1, run.wait))
    return statistics.median(samples[1:])  # the first finds the others' data in the caches


def measure(problem: Problem, found: Sequence[Library], options: argparse.Namespace) -> Figures:
    """Build, check and time every candidate of one row."""
    figures = Figures(problem.model, problem.batch, problem.tolerance)
    runs: dict[str, Run] = {}
    for library in found:
        for name in library.names:
            try:
                runs[name] = library.build(problem, name)
            except Exception as error:  # one candidate's failure is the row's remark
                figures.failures[name] = reason(error)
    figures.errors = {name: problem.error(run.logits) for name, run in runs.items()}
    figures.latency = {name: [] for name in runs}
    on_cpu = options.device == "cpu"
    queued: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(options.rounds):
        for name, run in runs.items():
            figures.latency[name].append(latency_us(run, options.calls, PAUSE * on_cpu))
            if not on_cpu:
                queued[name].append(timing.wall_stretch_us(run.call, QUEUED, run.wait))
    figures.queued = {name: statistics.median(all_) for name, all_ in queued.items() if all_}
    return figures


def first_lines(folder: Path, names: Sequence[str]) -> dict[str, list[str]]:
    """By candidate, the command line of a process that gets one result, its file written."""
    problem = Problem.of("mlp", 1)
    lines = {}
    graph, ours = folder / "graph.safetensors", folder / "mlp.safetensors"
    compiled_graph(problem).save(graph)
    lines[COMPILED] = machine.command("first_result", "compiled", str(graph))
    tb.save(ours, problem.state)
    lines[EAGER] = machine.command("first_result", "tinybn", str(ours))
    if PYTORCH in names:
        import torch

        path = folder / "mlp.pt"
        torch.save({key: torch.from_numpy(a) for key, a in problem.state.items()}, path)
        lines[PYTORCH] = machine.command("first_result", "torch", str(path))
    if ONNX in names:
        path = folder / "mlp.onnx"
        path.write_bytes(onnx_file(problem))
        lines[ONNX] = machine.command("first_result", "onnx", str(path))
    return lines


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status, 1 where a result of ours is wrong or missing."""
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parsed(arguments)
    on_cpu = options.device == "cpu"
    if on_cpu and not machine.is_confined():
        return machine.confined("inference", arguments)
    if not on_cpu:
        machine.require_gpu()
    report = measured(options)
    print("\n".join([*summary(report), *report.remarks]))
    good = all(n in f.errors and not f.failing(n) for f in report.figures for n in Ours.names)
    return 0 if good and report.figures else 1


def measured(options: argparse.Namespace) -> Report:
    """Measure all rows and write the report."""
    timer = None if options.device == "cpu" else timing.Timer()
    remarks: list[str] = []
    found = libraries(options, None if timer is None else timer.stream.ptr, remarks)
    versions: dict[str, str] = {}
    for library in found:
        versions |= library.versions()
    report = Report(
        machine.about(versions, options.device), options.device, options.rounds, options.calls,
        options.processes, remarks=remarks,
    )  # fmt: skip
    gc.freeze()  # what is loaded by now stays: collections between rows need not look at it
    try:
        if timer is None and "mlp" in options.models:
            names = [name for library in found for name in library.names]
            with tempfile.TemporaryDirectory() as folder:
                lines = first_lines(Path(folder), names)
                report.first_seconds = machine.first_seconds(lines, options.processes)
        for model in options.models:
            for batch in options.batches:
                report.figures.append(measure(Problem.of(model, batch), found, options))
                print(row_line(report.figures[-1]), flush=True)
                gc.collect()  # graphs and what they hold
    finally:  # what was measured before an interrupt or a GPU error is kept
        notes = writing.notes(options.output.with_name(f"{options.output.stem}_notes.md"))
        options.output.write_text(markdown(report, notes), encoding="utf-8")
        if options.json is not None:
            options.json.write_text(as_json(report), encoding="utf-8")
    return report


if __name__ == "__main__":
    sys.exit(main())
