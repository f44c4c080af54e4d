"""Measure BatchNorm in training, beside PyTorch and JAX where they are installed.

    python -m benchmarks.batchnorm --warm 12

It needs a clone and an NVIDIA GPU, and writes batchnorm.md and batchnorm.svg beside itself.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import re
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

import tinybn as tb
from tinybn import kernels, nn

from . import anchors, machine, writing
from .problem import EPS, MOMENTUM, Problem
from .report import BOTH, FORWARD, OURS, Report, as_json, failing, markdown, plot, row_line, summary
from .rows import QUICK, Figures, Row, all_rows
from .timing import Job, Outputs, Timer, host_us
from .writing import reason

HERE = Path(__file__).parent
HOST_SHAPE = (16, 64, 8, 8)


class Library(Protocol):
    """One library's candidates; Ours, anchors.Torch and anchors.Jax are such."""

    names: tuple[str, ...]

    def versions(self) -> dict[str, str]: ...
    def jobs(self, problem: Problem, name: str) -> tuple[Job, Job]: ...
    def compile(self, problem: Problem) -> None: ...
    def release(self) -> None: ...


class Ours:
    """tinybn's batch_norm, on the timer's stream."""

    names = (OURS,)

    def __init__(self, timer: Timer) -> None:
        self._timer = timer

    def versions(self) -> dict[str, str]:
        """Of what runs."""
        return machine.our_versions()

    def jobs(self, problem: Problem, name: str) -> tuple[Job, Job]:
        """Forward, and forward and backward, captured in a graph each."""
        forward, both = steps(problem)
        return self._timer.capture(forward), self._timer.capture(both)

    def compile(self, problem: Problem) -> None:
        """Run forward and backward once, which leaves the kernels in Triton's cache on disk."""
        _, both = steps(problem)
        both()
        self._timer.stream.synchronize()

    def host_layer(self, shape: tuple[int, ...]) -> Callable[[], Any]:
        """A call of BatchNorm2d in training on a float32 tensor."""
        layer = nn.BatchNorm2d(shape[1], device="cuda")
        x = tb.randn(*shape, device="cuda")
        return lambda: layer(x)

    def host_function(self, shape: tuple[int, ...]) -> Callable[[], Any]:
        """The same without a layer and a tape: the call on arrays."""
        layer = nn.BatchNorm2d(shape[1], device="cuda")
        x = tb.randn(*shape, device="cuda").data
        tensors = (layer.weight, layer.bias, layer.running_mean, layer.running_var)
        columns = [tensor.data for tensor in tensors if tensor is not None]
        return lambda: kernels.batch_norm_forward(x, *columns)

    def release(self) -> None:
        """Give the memory of finished rows back to the GPU."""
        import cupy

        cupy.get_default_memory_pool().free_all_blocks()


def steps(problem: Problem) -> tuple[Callable[[], Outputs], Callable[[], Outputs]]:
    """tinybn's forward, and forward and backward."""
    inputs = (problem.x, problem.weight, problem.bias)
    leaves = x, weight, bias = tuple(tb.as_tensor(a).requires_grad_() for a in inputs)
    dy = tb.as_tensor(problem.dy)
    mean, var = tb.zeros_like(weight), tb.ones_like(weight)

    def call() -> tb.Tensor:
        return nn.functional.batch_norm(
            x, mean, var, weight, bias, training=True, momentum=MOMENTUM, eps=EPS
        )

    def forward() -> Outputs:
        return {"y": call().data}

    def both() -> Outputs:
        for leaf in leaves:
            leaf.grad = None
        y = call()
        y.backward(dy)
        results = (y, *(leaf.grad for leaf in leaves))
        return {name: t.data for name, t in zip(anchors.OUTPUTS, results)}

    return forward, both


def parser() -> argparse.ArgumentParser:
    """The command line."""
    result = argparse.ArgumentParser(
        prog="python -m benchmarks.batchnorm", description=__doc__.partition("\n")[0]
    )
    add = result.add_argument
    add("--rows", metavar="REGEX", default="", help="only rows whose name it is found in, such as "
        "'56x56 bfloat16 channels-last'")  # fmt: skip
    add("--quick", action="store_true", help="only a few small rows")
    add("--rounds", type=int, default=25, help="replays of each candidate and row (%(default)s)")
    add("--peer-free", action="store_true", help="measure tinybn alone; import no other framework")
    add("--skip", metavar="NAME", action="append", default=[],
        help="leave out a candidate, such as JAX or 'cuDNN off'; may be given again")  # fmt: skip
    add("--warm", metavar="JOBS", type=int, default=0,
        help="first compile for all rows in so many processes")  # fmt: skip
    add("--limit", metavar="SECONDS", type=float, default=450,
        help="begin no row after this time (%(default)s)")  # fmt: skip
    add("--output", type=Path, default=HERE / "batchnorm.md", help="the report (%(default)s)")
    add("--json", type=Path, help="write all figures here too")
    add("--compile-slice", metavar="K/N", help=argparse.SUPPRESS)  # what --warm's processes do
    return result


def selected(options: argparse.Namespace) -> list[Row]:
    """The rows that the options leave."""
    rows = [row for row in all_rows() if re.search(options.rows, row.name)]
    return [row for row in rows if row.shape_name in QUICK] if options.quick else rows


def libraries(options: argparse.Namespace, timer: Timer, remarks: list[str]) -> list[Library]:
    """Ours first, then those peers that are there; a remark says why one is not."""
    found: list[Library] = [Ours(timer)]
    peers: dict[Any, Callable[[], Any]] = {
        anchors.Torch: lambda: anchors.Torch(timer.stream.ptr), anchors.Jax: anchors.Jax,
    }  # fmt: skip
    wanted = {
        ", ".join(peer.names): make for peer, make in peers.items()
        if not options.peer_free and not set(peer.names) <= set(options.skip)
    }  # fmt: skip
    return found + machine.those_there(wanted, remarks)


def compile_slice(options: argparse.Namespace) -> None:
    """Compile every N-th row's kernels, from the K-th on."""
    start, step = map(int, options.compile_slice.split("/"))
    remarks: list[str] = []
    found = libraries(options, Timer(), remarks)
    for row in selected(options)[start::step]:
        problem = Problem.of(row)
        for library in found:
            # What fails here fails again, and is then reported, when it is measured.
            with contextlib.suppress(Exception):
                library.compile(problem)


def measure(
    row: Row, timer: Timer, found: Sequence[Library], skip: Sequence[str], rounds: int
) -> Figures:
    """Capture, check and time every candidate of one row."""
    figures = Figures(row)
    problem = Problem.of(row)
    jobs: dict[tuple[str, str], Job] = {}
    for library in found:
        for name in library.names:
            if name in skip:
                continue
            try:
                forward, both = library.jobs(problem, name)
            except Exception as error:  # one candidate's failure is the row's remark
                figures.failures[name] = reason(error)
            else:
                jobs[name, FORWARD], jobs[name, BOTH] = forward, both
    for (name, step), us in timer.medians(jobs, rounds).items():
        (figures.forward if step == FORWARD else figures.both)[name] = us
    got = {}
    for key, job in jobs.items():
        timer.poison(job)
        job.run()
        timer.stream.synchronize()
        got[key] = job.outputs()
    for (name, _), errors in problem.errors(got).items():
        worst = figures.errors.setdefault(name, {})
        for output, error in errors.items():
            worst[output] = max(error, worst.get(output, 0.0))
    return figures


def about(found: Sequence[Library]) -> dict[str, str]:
    """What ran where and when."""
    versions: dict[str, str] = {}
    for library in found:
        versions |= library.versions()
    return machine.about(versions)


def host_costs(timer: Timer, found: Sequence[Library]) -> dict[str, float]:
    """Microseconds on the host of a layer's forward call, by library; and of our function's."""
    calls: dict[str, Callable[[], Any]] = {
        library.names[0]: library.host_layer(HOST_SHAPE)
        for library in found
        if isinstance(library, (Ours, anchors.Torch))
    }
    calls["kernels.batch_norm_forward"] = Ours(timer).host_function(HOST_SHAPE)
    return host_us(calls, timer.stream.synchronize)


def write(report: Report, options: argparse.Namespace) -> None:
    """Write the report, its plot and the JSON."""
    notes = writing.notes(HERE / "batchnorm_notes.md")
    writing.write(
        options.output,
        options.json,
        lambda path: plot(report, path),
        lambda picture: markdown(report, notes, picture),
        lambda: as_json(report),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program; returns its exit status, 1 where a result of ours is wrong or missing."""
    began = time.monotonic()
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parser().parse_args(arguments)
    machine.require_gpu()
    if options.compile_slice:
        compile_slice(options)
        return 0
    if options.warm:
        machine.run_together(machine.slices("batchnorm", arguments, options.warm))
        print(f"compiled in {time.monotonic() - began:.0f} s", flush=True)
    timer = Timer()
    remarks: list[str] = []
    found = libraries(options, timer, remarks)
    report = Report(about(found), options.rounds, timer.copy_rate(), remarks=remarks)
    report.host = host_costs(timer, found)
    print(f"copy {report.copy_rate / 1e12:.2f} TB/s; host µs a call: {report.host}", flush=True)
    rows = selected(options)
    gc.freeze()  # what is loaded by now stays: collections between rows need not look at it
    try:
        for row in rows:
            if time.monotonic() - began > options.limit:
                report.remarks.append(f"{row.name}: the time was up")
                continue
            try:
                figures = measure(row, timer, found, options.skip, options.rounds)
            except Exception as error:  # the row's remark; the next one may work
                figures = Figures(row, failures={"all": reason(error)})
            report.figures.append(figures)
            print(row_line(report, figures), flush=True)
            gc.collect()  # graphs and what they hold
            for library in found:
                library.release()
    finally:  # what was measured before an interrupt or a GPU error is kept
        write(report, options)
    print("\n".join([*summary(report), *report.remarks]))
    good = all(OURS in f.both and not failing(f) for f in report.figures)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
