"""The tables, the plot and the JSON of training steps."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .training_jax import JAX
from .training_ours import CAPTURED, CAPTURED_HIGHEST, EAGER
from .training_problem import CHECKED, POOL, PRECISIONS, TF32, Configuration
from .training_torch import COMPILED, COMPILED_GRAPH, FUSED, GRAPH, PYTORCH
from .writing import MISSING, axes, document, goal, number, table

OURS = (CAPTURED, CAPTURED_HIGHEST, EAGER)
ANCHORS = (GRAPH, FUSED, COMPILED_GRAPH, COMPILED, PYTORCH, JAX)
GRAPH_GOAL, EAGER_GOAL = 0.4, 0.08  # of the times of PyTorch's CUDA graph, and of eager PyTorch
GOAL_BATCH = 128


@dataclass
class Figures:
    """What was measured of a row, by candidate.

    Attributes:
        us: microseconds of a step.
        host: microseconds in which the host queues a step.
        launches: kernels, copies and fills of a step.
        memory: bytes; see Run.memory.
        loss_errors, update_errors: see Trace.
        first_seconds: on a CPU, from the start of a process to the end of its first step.
        failures: why a candidate has no figures, in one line.
    """

    configuration: Configuration
    us: dict[str, float] = field(default_factory=dict)
    host: dict[str, float] = field(default_factory=dict)
    launches: dict[str, int | None] = field(default_factory=dict)
    memory: dict[str, int | None] = field(default_factory=dict)
    loss_errors: dict[str, float] = field(default_factory=dict)
    update_errors: dict[str, float] = field(default_factory=dict)
    first_seconds: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def main(self) -> str:
        """The candidate of ours that counts: captured, or eager where nothing is captured."""
        return EAGER if set(self.us) & set(OURS) == {EAGER} else CAPTURED

    def ratio(self, anchor: str, ours: str | None = None) -> float | None:
        """Our time over an anchor's: under 1 where ours is faster."""
        mine, theirs = self.us.get(ours or self.main), self.us.get(anchor)
        return None if mine is None or theirs is None else mine / theirs

    def failing(self, name: str) -> bool:
        """Whether a candidate's first steps are out of tolerance."""
        configuration = self.configuration
        return not (
            self.loss_errors[name] <= configuration.loss_tolerance
            and self.update_errors[name] <= configuration.update_tolerance
        )


@dataclass
class Report:
    """A run.

    Attributes:
        about: the GPU or CPU, driver, versions and date, by name.
        device: ``"cuda"`` or ``"cpu"``.
        rounds, steps: each time is the median of ``rounds`` stretches of ``steps`` steps.
        figures: one for each row measured.
        remarks: lines on what was not measured, and why.
    """

    about: dict[str, str]
    device: str
    rounds: int
    steps: int
    figures: list[Figures] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)


def row_line(figures: Figures) -> str:
    """One line of a row, for the terminal."""
    parts = [f"{figures.configuration.name:20}"]
    for name, us in figures.us.items():
        wrong = "" if name not in figures.loss_errors or not figures.failing(name) else " WRONG"
        parts.append(f"{name} {us:.1f} µs{wrong}")
    parts += [f"[{name}: {why}]" for name, why in figures.failures.items()]
    return "  ".join(parts)


def summary(report: Report) -> list[str]:
    """The lines of Markdown that say of each goal whether it is met, and of correctness."""
    lines = []
    if report.device == "cuda":
        lines += _goals(report)
    checked = [(f, name) for f in report.figures for name in f.loss_errors if name in OURS]
    wrong = [f"{f.configuration.name} ({name})" for f, name in checked if f.failing(name)]
    lines.append(
        f"- Correct: {len(checked) - len(wrong)} of {len(checked)} candidates of tinybn are within "
        "the tolerance" + (f"; not {', '.join(wrong)}." if wrong else ".")
    )
    return lines


def _also(figures: Figures, anchor: str) -> str:
    """The ratio of the other precision of float32, where there is one."""
    other = figures.ratio(anchor, CAPTURED_HIGHEST)
    return "" if other is None else f" (highest {other:.3f})"


def _goals(report: Report) -> list[str]:
    small = [
        f for f in report.figures
        if f.configuration.batch == GOAL_BATCH and f.configuration.precision in PRECISIONS[:2]
    ]  # fmt: skip
    lines = [
        goal(f"At most {limit} of {anchor} at batch {GOAL_BATCH} in float32 and {TF32}", [
            (_name(f, _also(f, anchor)), ratio, limit)
            for f in small if (ratio := f.ratio(anchor)) is not None
        ])
        for limit, anchor in ((GRAPH_GOAL, GRAPH), (EAGER_GOAL, PYTORCH))
    ]  # fmt: skip
    slowest = []
    for figures in report.figures:
        ratios = {anchor: figures.ratio(anchor) for anchor in ANCHORS}
        worst = max(((r, anchor) for anchor, r in ratios.items() if r is not None), default=None)
        if worst is not None:
            slowest.append((_name(figures, f" ({worst[1]})"), worst[0], 1.0))
    lines.append(goal("Never slower than any anchor", slowest))
    lines.append(goal("Memory at most PyTorch's, the lesser of eager and CUDA graph", [
        (_name(f), ours / min(theirs), 1.0)
        for f in report.figures
        if (ours := f.memory.get(CAPTURED)) is not None
        and (theirs := [m for a in (PYTORCH, GRAPH) if (m := f.memory.get(a)) is not None])
    ]))  # fmt: skip
    return lines


def _name(figures: Figures, more: str = "") -> str:
    return figures.configuration.name + more


def markdown(report: Report, notes: str = "", plot: str | None = None) -> str:
    """The whole report.

    Args:
        notes: the text of its last section, which is left out where there is none.
        plot: the file name of the plot, where there is one.
    """
    parts = ["# A training step", _method(report), "\n".join(summary(report))]
    parts.append("\n".join(f"- {name}: {value}" for name, value in report.about.items()))
    if plot is not None:
        parts.append(f"![Microseconds a step by row and candidate]({plot})")
    names = [n for n in (*OURS, *ANCHORS) if any(n in f.us for f in report.figures)]
    parts += ["## Microseconds a step", _by_candidate(report, names, lambda f: f.us, ".1f")]
    anchors = [name for name in names if name in ANCHORS]
    if anchors:
        lines = [
            [*_cells(f), *(number(f.ratio(name), ".3f") for name in anchors)]
            for f in report.figures
        ]
        header = ["model", "batch", "precision", *anchors]
        parts += [
            "## tinybn's time over each anchor's",
            f"Of {CAPTURED}, or of {EAGER} where nothing is captured; under 1 is faster.",
            table(header, lines),
        ]
    if report.device == "cuda":
        parts += [
            "## Launches a step",
            "Kernels, copies and fills in the graph of a step, inputs' copies included.",
            _by_candidate(report, names, lambda f: f.launches, "d"),
            "## Microseconds in which the host queues a step",
            _by_candidate(report, names, lambda f: f.host, ".1f"),
            "## Peak device memory of a step above the state before the first, MB",
            "The most bytes that the framework's allocators had given out at once, a graph's own "
            "memory, gradients and momentum included; libraries' workspaces that outlive a step "
            "are not, nor is what a pool keeps beyond.",
            _by_candidate(report, names, lambda f: f.memory, ".2f", 1e-6),
        ]
    if any(f.first_seconds for f in report.figures):
        parts += [
            "## Seconds from the start of a process to the end of its first step",
            _by_candidate(report, names, lambda f: f.first_seconds, ".2f"),
        ]
    parts += [
        "## Errors",
        f"The largest relative error of the first {CHECKED} losses, and ‖p − want‖ / ‖want − p₀‖ "
        "of all parameters after these steps, against float64 by tinybn's NumPy engine. "
        "Tolerances, in this order: "
        + "; ".join(
            f"{p} {c.loss_tolerance:.1e} and {c.update_tolerance:g}"
            for p, c in ((p, Configuration("mlp", GOAL_BATCH, p)) for p in PRECISIONS)
        )
        + ".",
        _errors_table(report, names),
    ]
    failures = {f.configuration.name: f.failures for f in report.figures}
    return document(parts, failures, report.remarks, notes)


def _method(report: Report) -> str:
    command = "python -m benchmarks.training_step" + " --device cpu" * (report.device == "cpu")
    common = (
        f"Written by `{command}` in one process. A step is forward, cross-entropy, backward and "
        "SGD with momentum 0.9 of `nn.models.mlp` (784-512-512-10 with BatchNorm and ReLU) or "
        "`nn.models.cnn` (two 3×3 convolutions to 32 and 64 channels, each with BatchNorm, ReLU "
        "and 2×2 max-pooling, and a linear layer) on 28×28 images. All candidates start from the "
        f"same parameters and take the same {POOL} normalised random batches in turn, which are "
        "on the device before. "
        f"A time is the median of {report.rounds} stretches of {report.steps} consecutive steps, "
        "the candidates taking turns stretch by stretch"
    )
    if report.device == "cpu":
        return f"{common}, by the wall clock; every library has two threads on two cores."
    return (
        f"{common}, by CUDA events around a stretch. Where a graph is replayed, the batch's copy "
        "into the graph's inputs is part of the step. PyTorch chooses cuDNN's algorithms by "
        "benchmark, its graphs are of the whole step after warm-up, with foreach or fused SGD; "
        "torch.compile (default mode, static shapes) compiles forward with loss, backward and "
        "the optimiser's step. JAX jits the whole step with its state donated; it has streams "
        "and dispatch of its own, so it is timed by the wall clock until the last step's results "
        "are there. float32 is without TF32's errors everywhere: tinybn's default precision "
        '"high" makes a product of three of TF32 on the tensor cores, "highest" of float32; '
        "bfloat16 is each framework's autocast."
    )


def _cells(figures: Figures) -> list[str]:
    configuration = figures.configuration
    return [configuration.model, str(configuration.batch), configuration.precision]


def _by_candidate(
    report: Report, names: Sequence[str],
    values_of: Callable[[Figures], Mapping[str, float | None]], form: str, factor: float = 1,
) -> str:  # fmt: skip
    lines = []
    for figures in report.figures:
        values = values_of(figures)
        found = (values.get(name) for name in names)
        scaled = (None if value is None else value * factor for value in found)
        lines.append([*_cells(figures), *(number(value, form) for value in scaled)])
    return table(["model", "batch", "precision", *names], lines)


def _errors_table(report: Report, names: Iterable[str]) -> str:
    names = list(names)
    lines = []
    for figures in report.figures:
        cells = [
            MISSING if name not in figures.loss_errors
            else f"{figures.loss_errors[name]:.1e} / {figures.update_errors[name]:.1e}"
            + " **no**" * figures.failing(name)
            for name in names
        ]  # fmt: skip
        lines.append([*_cells(figures), *cells])
    return table(["model", "batch", "precision", *names], lines)


def as_json(report: Report) -> str:
    """All figures; microseconds, bytes, seconds and relative errors."""
    return json.dumps(asdict(report), indent=1)


def plot(report: Report, path: Path) -> None:
    """Write an SVG of every candidate's time by row.

    Raises:
        ImportError: where matplotlib is not installed.
    """
    styles = dict(zip((*OURS, *ANCHORS), "osv^DP*X<"))
    with axes(path, 1.6 + 0.3 * len(report.figures)) as canvas:
        for name, marker in styles.items():
            points = [(f.us[name], at) for at, f in enumerate(report.figures) if name in f.us]
            if points:
                mine = name in OURS
                canvas.plot(*zip(*points), marker, markersize=5, label=name,
                            markerfacecolor=None if mine else "none")  # fmt: skip
        canvas.set_xscale("log")
        canvas.set_yticks(
            range(len(report.figures)), [f.configuration.name for f in report.figures]
        )
        canvas.set_ylim(len(report.figures) - 0.5, -0.5)
        canvas.set_xlabel("microseconds a step")
        canvas.grid(axis="both", linewidth=0.3, alpha=0.6)
        canvas.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
