"""The tables, the plot and the JSON of a run."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from .anchors import ANCHORS, JAX, OUTPUTS, PYTORCH
from .rows import Figures
from .writing import MISSING, axes, document, geometric_mean, number, table

OURS = "tinybn"
FORWARD, BOTH = "forward", "forward and backward"
# Tensors that must cross the memory bus: forward reads x and writes y; backward reads x and dy
# and writes dx.
FLOOR = {FORWARD: 2, BOTH: 5}
# The same where nothing stays in cache between the reductions and what needs their results:
# forward reads x twice, backward x and dy.
STREAMING = {FORWARD: 3, BOTH: 8}
LARGE = 25e6  # bytes of a tensor above which a row over NEAR of its floor is listed
NEAR = 1.35


@dataclass
class Report:
    """A run.

    Attributes:
        about: the GPU, driver, versions and date, by name.
        rounds: replays of which each figure is the median.
        copy_rate: bytes a second, read plus written.
        host: by library, microseconds on the host of one layer's forward call.
        figures: one for each row measured.
        remarks: lines on what was not measured, and why.
    """

    about: dict[str, str]
    rounds: int
    copy_rate: float
    host: dict[str, float] = field(default_factory=dict)
    figures: list[Figures] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def tensors_us(self, figures: Figures, tensors: float) -> float:
        """Microseconds in which so many tensors of the row pass at the copy rate."""
        return 1e6 * tensors * figures.row.nbytes / self.copy_rate


def times_of(figures: Figures, step: str) -> dict[str, float]:
    """Microseconds of FORWARD or BOTH, by candidate."""
    return figures.forward if step == FORWARD else figures.both


def best_anchor(figures: Figures, step: str) -> float | None:
    """Microseconds of the fastest anchor that is replayed from a graph; None without one."""
    times = times_of(figures, step)
    return min((times[name] for name in ANCHORS if name in times), default=None)


def ratio(figures: Figures, step: str) -> float | None:
    """Best anchor over ours: above 1 where ours is faster."""
    best, ours = best_anchor(figures, step), times_of(figures, step).get(OURS)
    return None if best is None or ours is None else best / ours


def failing(figures: Figures) -> dict[str, float]:
    """Those relative errors of ours that are over their tolerance, by output."""
    errors = figures.errors.get(OURS, {})
    return {name: e for name, e in errors.items() if not e <= figures.row.tolerances[name]}


def row_line(report: Report, figures: Figures) -> str:
    """One line of a row, for the terminal."""
    parts = [f"{figures.row.name:44}"]
    for step, short in ((FORWARD, "fwd"), (BOTH, "fwd+bwd")):
        ours, quotient = times_of(figures, step).get(OURS), ratio(figures, step)
        if ours is not None:
            over = ours / report.tensors_us(figures, FLOOR[step])
            parts.append(f"{short} {ours:8.1f} µs  x{over:5.2f} of floor")
            parts.append(f"best/ours {quotient:5.2f}" if quotient is not None else "")
    errors = figures.errors.get(OURS, {})
    if errors:
        verdict = "FAILS " + ", ".join(failing(figures)) if failing(figures) else "ok"
        parts.append(f"error {max(errors.values()):.1e} {verdict}")
    parts += [f"[{name}: {reason}]" for name, reason in figures.failures.items()]
    return "  ".join(part for part in parts if part)


def summary(report: Report) -> list[str]:
    """The lines of Markdown that say how ours did."""
    lines = []
    for step in (FORWARD, BOTH):
        ratios = [(r, f.row.name) for f in report.figures if (r := ratio(f, step)) is not None]
        if ratios:
            mean, (worst, name) = geometric_mean(r for r, _ in ratios), min(ratios)
            lines.append(
                f"- {step.capitalize()}: the fastest anchor takes **{mean:.2f}** times as long as "
                f"{OURS} (geometric mean of {len(ratios)} rows); the worst row is {name} with "
                f"{worst:.2f}."
            )
    for step in (FORWARD, BOTH):
        far = [line for f in report.figures if (line := _far_from_floor(report, f, step))]
        lines.append(
            f"- {step.capitalize()}: rows of {LARGE / 1e6:.0f} MB or more over {NEAR} of the "
            f"floor: {len(far) or 'none'}."
        )
        lines += [f"  - {line}" for line in far]
    checked = [f for f in report.figures if OURS in f.errors]
    failed = [
        f"{f.row.name} ({', '.join(f'{name} {e:.1e}' for name, e in failing(f).items())})"
        for f in checked
        if failing(f)
    ]
    lines.append(
        f"- Correct: {len(checked) - len(failed)} of {len(checked)} rows are within the tolerance"
        + (f"; not {'; '.join(failed)}." if failed else ".")
    )
    return lines


def _far_from_floor(report: Report, figures: Figures, step: str) -> str | None:
    ours = times_of(figures, step).get(OURS)
    if ours is None or figures.row.nbytes < LARGE:
        return None
    over = ours / report.tensors_us(figures, FLOOR[step])
    if over <= NEAR:
        return None
    streaming = ours / report.tensors_us(figures, STREAMING[step])
    return f"{figures.row.name} ({over:.2f}; {streaming:.2f} of the streaming limit)"


def markdown(report: Report, notes: str = "", plot: str | None = None) -> str:
    """The whole report.

    Args:
        notes: the text of its last section, which is left out where there is none.
        plot: the file name of the plot, where there is one.
    """
    parts = ["# BatchNorm in training", _method(report), "\n".join(summary(report))]
    parts.append("\n".join(f"- {name}: {value}" for name, value in report.about.items()))
    host = ", ".join(f"{name} {us:.1f} µs" for name, us in report.host.items()) or MISSING
    parts.append(
        "Time on the host of one forward call of `nn.BatchNorm2d(64)` in training, outside a "
        f"graph, on 16x64x8x8 float32: {host}."
    )
    if plot is not None:
        parts.append(f"![Time over the floor, forward and backward, by row]({plot})")
    for step in (FORWARD, BOTH):
        parts += [f"## {step.capitalize()}", _times_table(report, step)]
    parts += ["## Largest relative errors", _errors_table(report)]
    failures = {f.row.name: f.failures for f in report.figures}
    return document(parts, failures, report.remarks, notes)


def _method(report: Report) -> str:
    return (
        "Written by `python -m benchmarks.batchnorm` in one process. Every candidate normalises "
        "the same random tensors (MB: one of them) with batch statistics, float32 weight and "
        "bias, and updates running statistics of its own. Its forward, and its forward with "
        "backward, are captured in a CUDA graph each after warm-up calls. A figure is the median "
        f"of {report.rounds} replays in microseconds, by CUDA events around one replay, nothing "
        "subtracted; the candidates take turns, and before each replay 256 MB are read, so "
        "that no input is in the L2 cache. *best* is the fastest of PyTorch (cuDNN allowed), "
        "PyTorch with cuDNN off and torch.compile (default mode, static shapes, one compilation "
        "a row). JAX is timed by the wall clock from its call to its results, host dispatch "
        "included, since its calls are not captured; so it is shown and not counted in *best*. "
        "The floor is the time of 2 tensors (forward) or 5 (forward and backward) at the rate of "
        f"a copy within device memory, {report.copy_rate / 1e12:.2f} TB/s read and written in "
        "this run; the streaming limit is that of 3 or 8 tensors, which must pass where no "
        "cache holds any between reduction and use. Hard rows have mean 1e4 and standard "
        "deviation 1e-2."
    )


def _times_table(report: Report, step: str) -> str:
    header = ["shape", "dtype", "layout", "MB", "floor µs", OURS, *ANCHORS, f"{JAX} (own dispatch)"]
    lines = []
    for figures in report.figures:
        times, floor = times_of(figures, step), report.tensors_us(figures, FLOOR[step])
        ours = times.get(OURS)
        lines.append([
            *_row_cells(figures),
            f"{figures.row.nbytes / 1e6:.3g}",
            f"{floor:.3g}",
            *(number(times.get(name), ".1f") for name in (OURS, *ANCHORS, JAX)),
            number(ratio(figures, step), ".2f"),
            number(None if ours is None else ours / floor, ".2f"),
        ])  # fmt: skip
    return table([*header, "best/ours", "ours/floor"], lines)


def _errors_table(report: Report) -> str:
    lines = []
    for figures in report.figures:
        ours, theirs = figures.errors.get(OURS, {}), figures.errors.get(PYTORCH, {})
        cells = [
            f"{number(ours.get(name), '.1e')} / {number(theirs.get(name), '.1e')}"
            for name in OUTPUTS
        ]
        failed = ", ".join(failing(figures))
        verdict = MISSING if not ours else f"no: {failed}" if failed else "yes"
        lines.append([*_row_cells(figures), *cells, verdict])
    header = ["shape", "dtype", "layout", *OUTPUTS, "within tolerance"]
    tolerances = (
        f"max|got − want| / max|want| against float64 of the same inputs, {OURS} / {PYTORCH}, the "
        "larger of both graphs' for y; outputs are filled with NaN before the replay that is "
        f"checked. {OURS} passes within 1e-5 (y, dx in float32), 2⁻⁸ (y, dx in bfloat16) and "
        "1e-4 (dweight, dbias)."
    )
    return f"{tolerances}\n\n{table(header, lines)}"


def _row_cells(figures: Figures) -> list[str]:
    row = figures.row
    return [row.shape_name, row.dtype + (", hard" if row.hard else ""), row.layout]


def as_json(report: Report) -> str:
    """All figures; microseconds, bytes a second and relative errors."""
    result = asdict(report)
    for entry, figures in zip(result["figures"], report.figures):
        entry |= {"name": figures.row.name, "nbytes": figures.row.nbytes}
    return json.dumps(result, indent=1)


def plot(report: Report, path: Path) -> None:
    """Write an SVG of ours and the best anchor over the floor, forward and backward.

    Raises:
        ImportError: where matplotlib is not installed.
    """
    from matplotlib.ticker import ScalarFormatter

    shown = [f for f in report.figures if OURS in f.both]
    places = range(len(shown))
    floors = [report.tensors_us(f, FLOOR[BOTH]) for f in shown]
    with axes(path, 1.4 + 0.17 * len(shown)) as canvas:
        ours = [f.both[OURS] / floor for f, floor in zip(shown, floors)]
        canvas.plot(ours, places, "o", markersize=4.5, color="#0b6e4f", label=OURS)
        anchors = [
            (best / floor, place)
            for place, f, floor in zip(places, shown, floors)
            if (best := best_anchor(f, BOTH)) is not None
        ]
        if anchors:
            canvas.plot(*zip(*anchors), "D", markersize=4.5, markerfacecolor="none",
                        color="#c8553d", label="best of PyTorch's")  # fmt: skip
        canvas.axvline(1, color="black", linewidth=0.8)
        canvas.axvline(STREAMING[BOTH] / FLOOR[BOTH], color="grey", linewidth=0.8, linestyle="--",
                       label="streaming limit")  # fmt: skip
        canvas.set_xscale("log")
        canvas.xaxis.set_major_formatter(ScalarFormatter())
        canvas.set_yticks(places, [f.row.name for f in shown])
        canvas.set_ylim(len(shown) - 0.5, -0.5)
        canvas.set_xlabel("time / floor, forward and backward (1: five tensors at the copy rate)")
        canvas.grid(axis="both", linewidth=0.3, alpha=0.6)
        canvas.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=3, frameon=False)
