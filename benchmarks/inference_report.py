"""The tables and the JSON of inference."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field

from .inference_onnx import ONNX
from .inference_ours import COMPILED, EAGER
from .inference_problem import POOL
from .inference_torch import COMPILED as TORCH_COMPILED
from .inference_torch import COMPILED_GRAPH, PYTORCH
from .writing import MISSING, document, goal, number, table

OURS = (COMPILED, EAGER)
ANCHORS = (PYTORCH, TORCH_COMPILED, COMPILED_GRAPH, ONNX)
GPU_GOAL = 0.5  # of the best anchor's time at batch 1


@dataclass
class Figures:
    """What was measured of a row, by candidate.

    Attributes:
        model, batch: the row.
        tolerance: see Problem.
        latency: by round, the median microseconds of one call until its result is there.
        queued: microseconds of one of many calls that are queued before one wait.
        errors: see Problem.error.
        failures: why a candidate has no figures, in one line.
    """

    model: str
    batch: int
    tolerance: float = 0.0
    latency: dict[str, list[float]] = field(default_factory=dict)
    queued: dict[str, float] = field(default_factory=dict)
    errors: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.model} {self.batch}"

    def us(self, name: str) -> float | None:
        """The median of the rounds."""
        rounds = sorted(self.latency.get(name, ()))
        return rounds[len(rounds) // 2] if rounds else None

    def failing(self, name: str) -> bool:
        """Whether a candidate's logits are out of tolerance."""
        return not self.errors[name] <= self.tolerance


@dataclass
class Report:
    """A run.

    Attributes:
        about: the GPU or CPU, driver, versions and date, by name.
        device: ``"cuda"`` or ``"cpu"``.
        rounds, calls: each time is the median of ``rounds`` medians of ``calls`` calls.
        first_rounds: each time of a process is the median of so many.
        figures: one for each row measured.
        first_seconds: by candidate, from the start of a process to its first result.
        remarks: lines on what was not measured, and why.
    """

    about: dict[str, str]
    device: str
    rounds: int
    calls: int
    first_rounds: int
    figures: list[Figures] = field(default_factory=list)
    first_seconds: dict[str, float] = field(default_factory=dict)
    remarks: list[str] = field(default_factory=list)


def row_line(figures: Figures) -> str:
    """One line of a row, for the terminal."""
    parts = [f"{figures.name:12}"]
    for name in figures.latency:
        parts.append(f"{name} {figures.us(name):.1f} µs{' WRONG' * figures.failing(name)}")
    parts += [f"[{name}: {why}]" for name, why in figures.failures.items()]
    return "  ".join(parts)


def best(values: Callable[[str], float | None]) -> tuple[float, str] | None:
    """The least of the anchors' values, and whose it is."""
    found = ((value, name) for name in ANCHORS if (value := values(name)) is not None)
    return min(found, default=None)


def summary(report: Report) -> list[str]:
    """The lines of Markdown that say of each goal whether it is met, and of correctness."""
    on_cpu = report.device == "cpu"
    rows = [f for f in report.figures if f.batch == 1 and (f.model == "mlp" or not on_cpu)]
    limit = 1.0 if on_cpu else GPU_GOAL
    which = f"{limit:g} of the best anchor's latency at batch 1" + " of the MLP" * on_cpu
    lines = [goal(f"At most {which}", [
        (f"{f.name} ({theirs[1]})", ours / theirs[0], limit)
        for f in rows
        if (ours := f.us(COMPILED)) is not None and (theirs := best(f.us)) is not None
    ])]  # fmt: skip
    if on_cpu:
        mine, theirs = report.first_seconds.get(COMPILED), best(report.first_seconds.get)
        lines.append(goal("At most the best anchor's time from Python's start to a result", [
            (f"mlp 1 ({theirs[1]})", mine / theirs[0], 1.0)
        ] if mine is not None and theirs is not None else []))  # fmt: skip
    checked = [(f, name) for f in report.figures for name in f.errors]
    wrong = [f"{f.name} ({name})" for f, name in checked if f.failing(name)]
    return [
        *lines,
        f"- Correct: {len(checked) - len(wrong)} of {len(checked)} candidates are within the "
        "tolerance" + (f"; not {', '.join(wrong)}." if wrong else "."),
    ]


def markdown(report: Report, notes: str = "") -> str:
    """The whole report.

    Args:
        notes: the text of its last section, which is left out where there is none.
    """
    names = [n for n in (*OURS, *ANCHORS) if any(n in f.latency for f in report.figures)]
    anchors = [name for name in names if name in ANCHORS]
    parts = ["# Inference", _method(report), "\n".join(summary(report))]
    parts.append("\n".join(f"- {name}: {value}" for name, value in report.about.items()))
    parts += [
        "## Microseconds from the call to the result",
        "The median, and in brackets the least and the largest of the rounds' medians.",
        _by_candidate(report, names, _spread),
    ]
    if report.device == "cuda":
        parts += [
            "## Microseconds a call of many queued back to back",
            _by_candidate(report, names, lambda f, n: number(f.queued.get(n), ".1f")),
        ]
    if anchors:
        parts += [
            "## tinybn's latency over each anchor's",
            f"Of {COMPILED}; under 1 is faster.",
            _by_candidate(report, anchors, _ratio),
        ]
    if report.first_seconds:
        first = [name for name in (*OURS, *ANCHORS) if name in report.first_seconds]
        parts += [
            "## Seconds from Python's start to the first result",
            f"Of a fresh process each, the median of {report.first_rounds}: the interpreter, "
            "imports, the trained model from a file (of `RuntimeGraph.save`, safetensors, "
            "`torch.save`, ONNX), and the logits of one image.",
            table(["model", "batch", *first], [
                ["mlp", "1", *(number(report.first_seconds[name], ".3f") for name in first)]
            ], 2),
        ]  # fmt: skip
    parts += [
        "## Errors",
        f"max|got − want| / max|want| of all logits of {POOL} batches, against float64 by "
        "tinybn's NumPy engine, layer by layer. The tolerance is "
        f"{max((f.tolerance for f in report.figures), default=0):.1e}.",
        _by_candidate(report, names, _error),
    ]
    failures = {f.name: f.failures for f in report.figures}
    return document(parts, failures, report.remarks, notes)


def _method(report: Report) -> str:
    command = "python -m benchmarks.inference" + " --device cpu" * (report.device == "cpu")
    text = (
        f"Written by `{command}` in one process. `nn.models.mlp` (784-512-512-10), `cnn` and "
        "`resnet8` in evaluation mode take 28×28 images to logits, in float32 without TF32; "
        f"BatchNorm has statistics and weights as after training. All candidates have the same "
        f"parameters and take the same {POOL} random batches in turn, which are on the device "
        "before. A latency is the wall time of one call until its result is there; the median of "
        f"{report.calls} calls (fewer of long ones) is a round's, and the median of "
        f"{report.rounds} rounds counts, the "
        "candidates taking turns round by round. tinybn's graph is `graph.compile`'s; ONNX "
        "Runtime's file has the layers as they are, and the runtime fuses them itself. "
    )
    if report.device == "cpu":
        return (
            f"{text}Every library has two threads on two cores, and before each round there is a "
            "pause in which the threads of the one before go to sleep. PyTorch runs in "
            "`inference_mode`; torch.compile is its default mode, which the CPU's C++ compiler "
            "serves."
        )
    return (
        f"{text}PyTorch runs in `inference_mode` and chooses cuDNN's algorithms by benchmark. "
        "ONNX Runtime has inputs and outputs bound to GPU memory."
    )


def _by_candidate(report: Report, names: Sequence[str], cell: Callable[[Figures, str], str]) -> str:
    lines = [[f.model, str(f.batch), *(cell(f, name) for name in names)] for f in report.figures]
    return table(["model", "batch", *names], lines, 2)


def _spread(figures: Figures, name: str) -> str:
    rounds = figures.latency.get(name)
    if not rounds:
        return MISSING
    wrong = " **wrong**" * figures.failing(name)
    return f"{figures.us(name):.1f} ({min(rounds):.1f}–{max(rounds):.1f}){wrong}"


def _ratio(figures: Figures, name: str) -> str:
    mine, theirs = figures.us(COMPILED), figures.us(name)
    return MISSING if mine is None or theirs is None else f"{mine / theirs:.3f}"


def _error(figures: Figures, name: str) -> str:
    if name not in figures.errors:
        return MISSING
    return f"{figures.errors[name]:.1e}" + " **no**" * figures.failing(name)


def as_json(report: Report) -> str:
    """All figures; microseconds, seconds and relative errors."""
    return json.dumps(asdict(report), indent=1)
