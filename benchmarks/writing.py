"""How every report here is written: numbers, tables, the plot's canvas, the files."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

MISSING = "–"


def reason(error: BaseException) -> str:
    """An error in one short line."""
    text = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {text}"[:120]


def geometric_mean(values: Iterable[float]) -> float:
    """The geometric mean of positive values; NaN where there are none."""
    logs = [math.log(value) for value in values]
    return math.exp(sum(logs) / len(logs)) if logs else math.nan


def number(value: float | None, form: str) -> str:
    """A number in a table's cell, or the mark of one that is missing."""
    return MISSING if value is None else format(value, form)


def table(header: Sequence[str], lines: Iterable[Sequence[str]], words: int = 3) -> str:
    """A table of Markdown whose first ``words`` columns are text, the others numbers."""
    rows = [header, [*["---"] * words, *["---:"] * (len(header) - words)], *lines]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def goal(text: str, ratios: Sequence[tuple[str, float, float]]) -> str:
    """A line that says whether a goal is met.

    Args:
        text: the goal.
        ratios: of each row that it is about: its name, what was reached, and the limit.
    """
    if not ratios:
        return f"- {text}: **not measured**."
    met = all(ratio <= limit for _, ratio, limit in ratios)
    rows = "; ".join(
        f"{name} {ratio:.3f}" for name, ratio, _ in sorted(ratios, key=lambda r: -r[1])
    )
    return f"- {text}: **{'met' if met else 'missed'}**. {rows}."


def document(
    parts: Sequence[str],
    failures: Mapping[str, Mapping[str, str]],
    remarks: Sequence[str],
    notes: str,
) -> str:
    """A report of these parts, and at its end what is missing, a line each, and the notes.

    Args:
        parts: paragraphs, titles and tables.
        failures: by row and candidate, why it has no figures.
        remarks: what else is missing.
        notes: the text of the last section, which is left out where there is none.
    """
    gaps = [
        f"{row}: {name}: {why}" for row, found in failures.items() for name, why in found.items()
    ]
    gaps += remarks
    ends = {"Not measured": "\n".join(f"- {gap}" for gap in gaps), "Notes": notes.strip()}
    tail = [text for title, body in ends.items() if body for text in (f"## {title}", body)]
    return "\n\n".join([*parts, *tail]) + "\n"


@contextlib.contextmanager
def axes(path: Path, height: float) -> Iterator[Any]:
    """Axes to draw on, written as an SVG that is the same for the same figures.

    Raises:
        ImportError: where matplotlib is not installed.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "tinybn", "font.size": 8}):
        picture = Figure(figsize=(8, height), layout="constrained")
        yield picture.add_subplot()
        picture.savefig(path, metadata={"Date": None})


def write(
    output: Path,
    json_output: Path | None,
    plot: Callable[[Path], None],
    markdown: Callable[[str | None], str],
    as_json: Callable[[], str],
) -> None:
    """Write a report, its plot where matplotlib is there, and the JSON where it is wanted.

    Args:
        output: the report's file; the plot gets its name with the ending ``.svg``.
        json_output: the file of all figures, or None.
        plot: draws into a file.
        markdown: the report's text, given the file name of the plot, or None without one.
        as_json: all figures.
    """
    picture: Path | None = output.with_suffix(".svg")
    try:
        plot(output.with_suffix(".svg"))
    except ImportError:
        picture = None
    output.write_text(markdown(None if picture is None else picture.name), encoding="utf-8")
    if json_output is not None:
        json_output.write_text(as_json(), encoding="utf-8")


def notes(path: Path) -> str:
    """The text of a report's last section, empty where there is no such file."""
    return path.read_text(encoding="utf-8") if path.exists() else ""
