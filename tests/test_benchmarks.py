"""What of the benchmarks runs without a GPU: rows, inputs, comparison, tables."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from benchmarks import batchnorm, report, timing
from benchmarks.problem import Problem
from benchmarks.rows import Figures, Row, all_rows

ROOT = Path(__file__).parent.parent
SMALL = Row((8, 6, 5, 5), "float32", "channels-last")
LARGE = Row((64, 256, 56, 56), "float32", "NCHW")


def made_up(anchors=True):
    """A report of two rows: the small one 2 times as fast as its best anchor, the large one half
    as fast, both at twice their floors."""
    made = report.Report({"GPU": "none", "date": "today"}, rounds=5, copy_rate=4e12)
    made.host = {report.OURS: 30.0}
    for row, quotient in ((SMALL, 2.0), (LARGE, 0.5)):
        figures = Figures(row)
        for step in (report.FORWARD, report.BOTH):
            ours = 2 * made.tensors_us(figures, report.FLOOR[step])
            times = report.times_of(figures, step)
            times[report.OURS] = ours
            if anchors:
                times |= {"PyTorch": 3 * ours * quotient, "cuDNN off": ours * quotient}
                times["JAX"] = ours / 100
        figures.errors = {report.OURS: dict.fromkeys(("y", "dx", "dweight", "dbias"), 1e-7)}
        made.figures.append(figures)
    return made


class Clock(timing.Timer):
    """A timer without a GPU: it counts instead of measuring."""

    def __init__(self):
        self.stream = SimpleNamespace(synchronize=lambda: None)
        self.order = []

    def device_us(self, launch):
        self.order.append(launch)
        launch()
        return float(len(self.order))

    def poison(self, job):
        for array in job.outputs().values():
            array[...] = np.nan


class OnHost(batchnorm.Ours):
    """tinybn's candidate on NumPy arrays, or one whose replay does nothing."""

    def __init__(self, name=batchnorm.OURS, works=True):
        self.names, self.works = (name,), works

    def jobs(self, problem, name):
        return tuple(self._job(step) for step in batchnorm.steps(problem))

    def _job(self, step):
        outputs = step()

        def run():
            for key, value in step().items() if self.works else ():
                outputs[key][...] = value

        return timing.Job(run, lambda: outputs, [])


class Broken(OnHost):
    def jobs(self, problem, name):
        raise RuntimeError("no such kernel\nand more")


def test_rows_are_unique_and_have_two_layouts_only_where_these_differ():
    rows = all_rows()
    assert len({row.name for row in rows}) == len(rows) == 82
    assert {row.dtype for row in rows} == {"float32", "bfloat16"}
    for row in rows:
        if row.layout == "channels-last":
            assert row.shape[1] > 1 and math.prod(row.shape[2:]) > 1
            assert row.memory_shape[-1] == row.shape[1]
        else:
            assert row.memory_shape == row.shape
        assert (row.layout == "NC") == (len(row.shape) == 2)
    assert sum(row.hard for row in rows) == 3
    assert LARGE in rows and LARGE.nbytes == 64 * 256 * 56 * 56 * 4


def test_options_select_rows():
    options = batchnorm.parser().parse_args(["--rows", "56x56 bfloat16 channels", "--skip", "JAX"])
    assert [row.name for row in batchnorm.selected(options)] == [
        "64x256x56x56 bfloat16 channels-last"
    ]
    quick = batchnorm.selected(batchnorm.parser().parse_args(["--quick"]))
    assert 0 < len(quick) < 20 and max(row.nbytes for row in quick) < 30e6


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "shape, layout", [((40, 7), "NC"), ((8, 6, 5, 5), "NCHW"), ((8, 6, 5, 5), "channels-last")]
)
def test_tinybn_on_the_cpu_is_within_the_tolerances(shape, layout, dtype):
    row = Row(shape, dtype, layout)
    problem = Problem.of(row, "cpu")
    assert problem.x.shape == problem.dy.shape == shape
    forward, both = batchnorm.steps(problem)
    errors = problem.errors({"forward": forward(), "both": both()})
    assert set(errors["forward"]) == {"y"} and set(errors["both"]) == set(row.tolerances)
    for found in errors.values():
        for output, error in found.items():
            assert 0 <= error <= row.tolerances[output]


def test_hard_rows_lie_far_from_zero_and_are_within_the_tolerances():
    row = Row((500, 16), "float32", "NC", hard=True)
    problem = Problem.of(row, "cpu")
    assert abs(problem.x.mean() - 1e4) < 0.01 and 0.005 < problem.x.std() < 0.02
    errors = problem.errors({"ours": batchnorm.steps(problem)[1]()})["ours"]
    assert all(error <= row.tolerances[output] for output, error in errors.items())


def test_an_error_is_relative_to_the_largest_value_and_nan_is_infinite(monkeypatch):
    monkeypatch.setattr("benchmarks.problem.CHUNK", 300)  # so that channels come in several parts
    problem = Problem.of(SMALL, "cpu")
    good = batchnorm.steps(problem)[1]()
    for output, array in good.items():
        bad = array.copy()
        bad[(..., 5) if array.ndim == 1 else (0, 5)] += 0.5 * abs(array).max()
        errors = problem.errors({"bad": {**good, output: bad}})["bad"]
        assert errors.pop(output) == pytest.approx(0.5, rel=1e-3)
        assert max(errors.values()) < 1e-5
        bad[0] = np.nan
        assert problem.errors({"bad": {output: bad}})["bad"][output] == math.inf


def test_measure_checks_and_times_each_candidate_and_goes_on_after_a_failure(monkeypatch):
    draw = Problem.of
    monkeypatch.setattr(batchnorm.Problem, "of", lambda row: draw(row, "cpu"))
    clock = Clock()
    found = [OnHost(), OnHost("idle", works=False), Broken("broken"), Broken("skipped")]
    figures = batchnorm.measure(SMALL, clock, found, ["skipped"], rounds=3)
    assert figures.failures == {"broken": "RuntimeError: no such kernel"}
    assert set(figures.forward) == set(figures.both) == {report.OURS, "idle"}
    assert len(clock.order) == 3 * 4 and clock.order[:4] == clock.order[4:8]  # in rounds
    assert not report.failing(figures)
    assert set(figures.errors["idle"].values()) == {math.inf}  # what it left unwritten shows


def test_host_us_is_the_time_of_one_call():
    calls, waits = [], []
    slow = {"append": lambda: calls.append(1), "sleep": lambda: time.sleep(1e-4)}
    least = timing.host_us(slow, lambda: waits.append(1), rounds=2)
    assert 0 < least["append"] < 100 <= least["sleep"]
    assert len(calls) == 300 and len(waits) == 6


def test_geometric_mean():
    assert report.geometric_mean([2.0, 0.5, 8.0]) == pytest.approx(2.0)
    assert math.isnan(report.geometric_mean([]))


def test_the_best_anchor_is_the_fastest_that_is_replayed_from_a_graph():
    figures = made_up().figures[0]
    assert report.best_anchor(figures, report.FORWARD) == figures.forward["cuDNN off"]
    assert report.ratio(figures, report.BOTH) == pytest.approx(2)


def test_markdown_has_every_row_the_summary_and_the_notes():
    made = made_up()
    made.figures[0].failures["torch.compile"] = "RuntimeError: out of luck"
    made.figures[1].errors[report.OURS]["dx"] = 0.25
    made.remarks.append("JAX: not installed")
    text = report.markdown(made, "A note.", "picture.svg")
    assert "**1.00** times" in text and f"the worst row is {LARGE.name} with 0.50" in text
    assert f"over 1.35 of the floor: 1.\n  - {LARGE.name} (2.00; 1.25 of the streaming" in text
    assert "Correct: 1 of 2" in text and "dx 2.5e-01" in text and "no: dx" in text
    assert "![" in text and "(picture.svg)" in text and text.endswith("## Notes\n\nA note.\n")
    assert "out of luck" in text and "- JAX: not installed" in text
    tables = [line for line in text.splitlines() if line.startswith("| 8x6x5x5")]
    assert len(tables) == 3 and tables[0].count("|") == 13
    assert "4.00 TB/s" in text and "tinybn 30.0 µs" in text


def test_markdown_without_anchors():
    made = made_up(anchors=False)
    text = report.markdown(made)
    assert "geometric mean" not in text and "## Notes" not in text and "![" not in text
    assert report.row_line(made, made.figures[0]).count("x 2.00 of floor") == 2


def test_json_holds_all_figures():
    made = made_up()
    entry = json.loads(report.as_json(made))["figures"][1]
    assert entry["name"] == LARGE.name and entry["nbytes"] == LARGE.nbytes
    assert entry["forward"] == made.figures[1].forward


@pytest.mark.parametrize("anchors", [True, False])
def test_plot_names_every_row(tmp_path, anchors):
    pytest.importorskip("matplotlib")
    path = tmp_path / "picture.svg"
    report.plot(made_up(anchors), path)
    text = path.read_text(encoding="utf-8")
    assert SMALL.name in text and LARGE.name in text
    assert ("best of PyTorch" in text) == anchors


def test_write_puts_the_plot_and_the_json_where_they_are_wanted(tmp_path):
    arguments = ["--output", str(tmp_path / "a.md"), "--json", str(tmp_path / "a.json")]
    batchnorm.write(made_up(), batchnorm.parser().parse_args(arguments))
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert ("(a.svg)" in text) == (tmp_path / "a.svg").exists()
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["rounds"] == 5


def test_help_imports_no_other_framework():
    code = (
        "import sys\n"
        "from benchmarks import batchnorm\n"
        "try:\n"
        "    batchnorm.main(['--help'])\n"
        "finally:\n"
        "    print([m for m in ('torch', 'jax', 'cupy', 'matplotlib') if m in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "--peer-free" in done.stdout and done.stdout.endswith("[]\n")
