"""What of the benchmarks of training runs without a GPU: checks, tables, tiny runs on the CPU."""

from __future__ import annotations

import gzip
import json
import math
import os
import struct
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tinybn as tb
from benchmarks import (
    graph_nodes,
    recipe,
    time_to_accuracy,
    training_report,
    training_step,
)
from benchmarks.training_ours import CAPTURED, CAPTURED_HIGHEST, EAGER, Ours
from benchmarks.training_problem import Configuration, Problem, Trace, configurations, reference
from benchmarks.training_report import GRAPH, PYTORCH, Figures
from tinybn import nn

ROOT = Path(__file__).parent.parent
TINY = Configuration("mlp", 8, "float32")


@pytest.fixture(scope="module")
def tiny():
    return Problem.of(TINY, batches=6)


def figures_of(configuration, graph=2.5):
    """Captured in 100 µs, PyTorch's graph ``graph`` times that and its eager step 20 times."""
    return Figures(
        configuration,
        us={CAPTURED: 100.0, CAPTURED_HIGHEST: 90.0, GRAPH: 100.0 * graph, PYTORCH: 2000.0},
        host={CAPTURED: 9.0},
        launches={CAPTURED: 14, GRAPH: None},
        memory={CAPTURED: 2_000_000, GRAPH: 4_000_000, PYTORCH: 3_000_000},
        loss_errors={CAPTURED: 1e-7, GRAPH: 1e-7},
        update_errors={CAPTURED: 1e-6, GRAPH: 1e-6},
    )


def made_up(graph=2.5):
    report = training_report.Report({"GPU": "none", "date": "today"}, "cuda", rounds=3, steps=4)
    report.figures = [figures_of(row, graph) for row in configurations()]
    return report


def test_rows_are_all_combinations():
    rows = configurations()
    assert len({row.name for row in rows}) == len(rows) == 12
    options = training_step.parsed(["--models", "cnn", "--batches", "128"])
    assert [row.name for row in training_step.selected(options)] == [
        "cnn 128 float32", "cnn 128 TF32", "cnn 128 bfloat16",
    ]  # fmt: skip
    options = training_step.parsed(["--device", "cpu"])
    assert [row.name for row in training_step.selected(options)] == [
        "mlp 128 float32", "cnn 128 float32",
    ]  # fmt: skip
    assert options.output.name == "training_step_cpu.md"


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--batches", "1"],
                                       ["--device", "cpu", "--precisions", "TF32"]])  # fmt: skip
def test_what_cannot_run_is_refused(arguments):
    with pytest.raises(SystemExit, match="at least|float32"):
        training_step.parsed(arguments)


def test_a_problem_is_the_same_in_every_process_and_its_models_are_the_packages(tiny):
    other = Problem.of(Configuration("mlp", 8, "TF32"), batches=6)
    assert all((other.state[name] == tiny.state[name]).all() for name in tiny.state)
    assert (other.images == tiny.images).all() and tiny.images.shape == (6, 8, 1, 28, 28)
    assert tiny.layers[:4] == ("Flatten", "Linear", "BatchNorm1d", "ReLU")
    assert set(tiny.parameters()) == {n for n, _ in nn.models.mlp().named_parameters()}
    assert set(np.unique(tiny.labels)) <= set(range(10)) and len(np.unique(tiny.labels)) > 3


@pytest.mark.parametrize("model", ["mlp", "cnn"])
def test_tinybn_on_the_cpu_is_within_the_tolerances(model):
    problem = Problem.of(Configuration(model, 8, "float32"), batches=6)
    want = reference(problem)
    run = Ours("cpu").build(problem, EAGER)
    figures = Figures(problem.configuration)
    figures.loss_errors[EAGER] = run.trace.loss_error(want)
    figures.update_errors[EAGER] = run.trace.update_error(want, problem)
    assert figures.loss_errors[EAGER] > 0 and not figures.failing(EAGER)
    assert math.isfinite(float(run.step().item())) and run.memory is None


@pytest.mark.parametrize("fault", ["momentum", "rate", "nothing"])
def test_a_wrong_update_is_out_of_the_widest_tolerance(tiny, monkeypatch, fault):
    want = reference(tiny)
    low = Configuration("mlp", 8, "bfloat16")
    if fault == "momentum":
        monkeypatch.setattr("benchmarks.training_ours.MOMENTUM", 0.0)
    elif fault == "rate":
        monkeypatch.setattr("benchmarks.training_ours.LEARNING_RATE", 0.005)
    else:
        monkeypatch.setattr(nn.optim.SGD, "step", lambda self: None)
    trace = Ours("cpu").build(tiny, EAGER).trace
    assert trace.update_error(want, tiny) > low.update_tolerance


def test_a_trace_survives_its_file_and_nan_is_infinitely_wrong(tiny, tmp_path):
    want = reference(tiny)
    want.save(tmp_path / "a.npz")
    read = Trace.load(tmp_path / "a.npz")
    assert read.losses == want.losses and read.update_error(want, tiny) == 0
    assert read.loss_error(Trace([2 * x for x in want.losses], {})) == pytest.approx(0.5)
    read.losses[2] = math.nan
    next(iter(read.parameters.values()))[0] = math.nan
    assert read.loss_error(want) == read.update_error(want, tiny) == math.inf


def test_measure_goes_on_after_a_failure_and_takes_turns(tmp_path):
    class Broken(Ours):
        def names(self, configuration):
            return ("broken",)

        def build(self, problem, name):
            raise RuntimeError("no such kernel\nand more")

    order = []
    figures = training_step.measure(
        TINY, [Broken("cpu"), Ours("cpu")], lambda run: order.append(run) or float(len(order)),
        tmp_path, rounds=3,
    )  # fmt: skip
    assert figures.failures == {"broken": "RuntimeError: no such kernel"}
    assert figures.us == {EAGER: 2.0} and 0 < figures.host[EAGER] < 1e6
    assert figures.launches == {EAGER: None} and figures.main == EAGER
    assert (tmp_path / "mlp-8.npz").exists()


class Driver:
    """A driver with two graphs: 1 holds a kernel, a copy, nothing and graph 2, which holds a
    kernel and a fill."""

    graphs = {1: [10, 11, 12, 13], 2: [20, 21]}
    kinds = {10: 0, 11: 1, 12: 5, 13: 4, 20: 0, 21: 2}

    def cuGraphGetNodes(self, graph, nodes, size):
        found = self.graphs.get(graph.value)
        if found is None:
            return 400
        size._obj.value = len(found)
        for i, node in enumerate(found if nodes is not None else ()):
            nodes[i] = node
        return 0

    def cuGraphNodeGetType(self, node, kind):
        kind._obj.value = self.kinds[node.value]
        return 0

    def cuGraphChildGraphNodeGetGraph(self, node, child):
        child._obj.value = 2
        return 0

    def cuStreamGetCaptureInfo_v2(self, stream, status, ident, graph, nodes, size):
        status._obj.value = stream.value == 7
        graph._obj.value = 1
        return 0 if stream.value < 8 else 401


def test_graph_nodes_are_counted_through_child_graphs():
    assert graph_nodes.count(2, Driver()) == 2
    assert graph_nodes.count(1, Driver()) == 4
    with pytest.raises(RuntimeError, match="error 400"):
        graph_nodes.count(3, Driver())


def test_graph_nodes_are_counted_while_a_stream_is_captured(capsys):
    assert graph_nodes.count_so_far(7, Driver()) == 4
    assert graph_nodes.count_so_far(6, Driver()) is None
    assert capsys.readouterr().err == ""
    assert graph_nodes.count_so_far(8, Driver()) is None
    assert "error 401" in capsys.readouterr().err


def test_goals_are_met_or_missed_by_the_figures():
    good = "\n".join(training_report.summary(made_up(2.5)))
    assert good.count("**met**") == 4 and "mlp 128 TF32 (highest 0.360) 0.400" in good
    bad = "\n".join(training_report.summary(made_up(0.5)))
    assert bad.count("**missed**") == 2 and f"cnn 1024 bfloat16 ({GRAPH}) 2.000" in bad
    wasteful = made_up()
    wasteful.figures[3].memory[PYTORCH] = 1_000_000
    assert training_report.summary(wasteful)[3].startswith("- Memory at most PyTorch's") and (
        "**missed**" in training_report.summary(wasteful)[3]
    )
    alone = training_report.Report({}, "cuda", 1, 1, [Figures(TINY, us={CAPTURED: 1.0})])
    assert training_report.summary(alone)[0].endswith("**not measured**.")


def test_markdown_has_every_row_in_every_table(tmp_path):
    report = made_up()
    report.figures[0].failures["JAX"] = "ImportError: no jax"
    report.figures[1].update_errors[CAPTURED] = 0.9
    report.remarks.append("JAX: not installed")
    text = training_report.markdown(report, "A note.", "a.svg")
    for model, batch, precision in (("mlp", 128, "TF32"), ("cnn", 1024, "bfloat16")):
        assert text.count(f"| {model} | {batch} | {precision} |") == 6
    assert "1.0e-07 / 9.0e-01 **no**" in text and "not mlp 128 TF32 (tinybn captured)" in text
    assert "| 14 | – |" in text and "(a.svg)" in text and "no jax" in text
    assert text.endswith("## Notes\n\nA note.\n")
    json_rows = json.loads(training_report.as_json(report))["figures"]
    assert json_rows[0]["us"][CAPTURED] == 100.0
    pytest.importorskip("matplotlib")
    training_report.plot(report, tmp_path / "a.svg")
    picture = (tmp_path / "a.svg").read_text(encoding="utf-8")
    assert "cnn 1024 bfloat16" in picture and CAPTURED in picture


def python(*arguments, **more):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=300, **more
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_tiny_run_on_the_cpu_writes_its_report(tmp_path):
    out = python(
        "-m", "benchmarks.training_step", "--device", "cpu", "--peer-free", "--models", "mlp",
        "--batches", "8", "--rounds", "1", "--steps", "1", "--output", str(tmp_path / "a.md"),
        "--json", str(tmp_path / "a.json"),
    )  # fmt: skip
    assert "Correct: 1 of 1" in out
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text.count("| mlp | 8 | float32 |") == 3 and "cores used" in text
    row = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["figures"][0]
    assert 0 < row["first_seconds"][EAGER] < 100 and row["us"][EAGER] > 0


def test_the_benchmarks_import_no_other_framework():
    out = python("-c", (
        "import sys\n"
        "from benchmarks import training_step, time_to_accuracy, accuracy_tinybn, accuracy_torch\n"
        "print([m for m in ('torch', 'jax', 'cupy', 'matplotlib') if m in sys.modules])\n"
    ))  # fmt: skip
    assert out == "[]\n"
    code = "import sys, benchmarks.recipe, benchmarks.first_step; print('numpy' in sys.modules)"
    assert python("-c", code) == "False\n"  # or a child's import phase would begin too late


@pytest.fixture(scope="module")
def mnist(tmp_path_factory):
    """A folder like MNIST's, of 256 and 64 of the shipped digits."""
    folder = tmp_path_factory.mktemp("mnist")
    for part, data, n in zip(("train", "t10k"), tb.data.digits(), (256, 64)):
        for name, array in (("images-idx3", data.images[:n]), ("labels-idx1", data.labels[:n])):
            header = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
            content = gzip.compress(header + array.astype(np.uint8).tobytes(), 1)
            (folder / f"{part}-{name}-ubyte.gz").write_bytes(content)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("epochs, more", [(3, []), (1, ["--long"])])
def test_time_to_accuracy_on_the_cpu(mnist, tmp_path, epochs, more, capsys):
    arguments = [
        "--root", str(mnist), "--device", "cpu", "--peer-free", "--seeds", "1",
        "--epochs", str(epochs), "--batch", "16", "--peak", "0.02",
        "--output", str(tmp_path / "a.md"), "--json", str(tmp_path / "a.json"),
    ]  # fmt: skip
    before = time.monotonic()
    assert time_to_accuracy.main([*arguments, *more]) == 0, capsys.readouterr().out
    taken = time.monotonic() - before
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text.count("\n| tinybn, empty caches |") == text.count("\n| tinybn |") == 2
    assert ("shifted by up to 2 pixels" in text) == bool(more)
    runs = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))["runs"]
    result = recipe.Result(**runs["tinybn"]["0"])
    assert set(result.phases) == set(recipe.PHASES) and min(result.phases.values()) >= 0
    assert parts_of(result) == pytest.approx(result.phases["total"]) and parts_of(result) < taken
    assert len(result.accuracies) == len(result.reached) == epochs
    assert sorted(result.reached) == result.reached
    if not more:
        assert result.accuracies[-1] > 0.5  # chance is 0.1


def test_a_failed_run_is_a_remark_and_the_status(mnist, tmp_path, capsys):
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"no gzip")
    for name in ("train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1"):
        os.link(mnist / f"{name}-ubyte.gz", tmp_path / f"{name}-ubyte.gz")
    arguments = ["--root", str(tmp_path), "--device", "cpu", "--peer-free", "--seeds", "1",
                 "--output", str(tmp_path / "a.md")]  # fmt: skip
    assert time_to_accuracy.main(arguments) == 1
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert "## Not measured\n\n- tinybn, empty caches, seed 0: " in text
    assert "DataError" in text


def parts_of(result: recipe.Result) -> float:
    return sum(seconds for name, seconds in result.phases.items() if name != "total")


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=6), st.floats(0, 1e3))
def test_the_phases_add_up_however_uneven_the_epochs_are(epochs, evaluating):
    times = iter(np.cumsum([0, 1, 2, 3, sum(epochs) + evaluating]).tolist())
    with mock.patch.object(recipe.time, "monotonic", lambda: next(times)):
        clock = recipe.Clock(None)
        for phase in ("import", "load data", "build"):
            clock.end(phase)
        result = clock.result(epochs, [0.5] * len(epochs))
    phases = result.phases
    assert set(phases) == set(recipe.PHASES) and min(phases.values()) >= -1e-9
    assert parts_of(result) == pytest.approx(phases["total"])
    assert phases["evaluation"] == pytest.approx(evaluating, abs=1e-9)
    assert phases["first step"] + phases["training"] == pytest.approx(sum(epochs))
    if len(epochs) == 1 or epochs[0] <= min(epochs):
        assert phases["first step"] == 0


def test_when_the_goal_is_reached():
    phases = dict.fromkeys(recipe.PHASES, 1.0) | {"training": 0.36}
    late = recipe.Result(phases, [0.98, 0.985, 0.991, 0.99], [1.0, 2.0, 2.5, 4.0])
    report = time_to_accuracy.Report({}, 4, 512, 0.2, 0, 0.99, {time_to_accuracy.WARM: {0: late}})
    assert late.first_at(0.99) == 3 and late.first_at(0.995) is None
    assert time_to_accuracy.training_until(late, 0.99) == pytest.approx(0.27)
    assert time_to_accuracy.total_until(late, 0.99) == 2.5
    assert time_to_accuracy.total_until(late, 0.995) is None
    assert sum("**met**" in line for line in time_to_accuracy.summary(report)) == 2
    report.runs[time_to_accuracy.WARM][1] = recipe.Result(phases, [0.98] * 4, [1.0] * 4)
    lines = time_to_accuracy.summary(report)
    assert "1 of 2 runs reach 99.0 %" in lines[0]
    assert sum("**missed**" in line for line in lines) == 2


def test_the_first_epoch_is_divided_into_its_first_step_and_training():
    clock = recipe.Clock(None)
    result = clock.result([0.007, 0.001, 0.001, 0.003], [0.9] * 4)
    assert result.phases["first step"] == pytest.approx(0.007 - 0.001)
    assert result.phases["training"] == pytest.approx(0.001 * 3 + 0.003)


def test_fewer_batches_are_the_first_of_more():
    """References step through fewer than candidates have."""
    few, more = Problem.of(TINY, batches=2), Problem.of(TINY, batches=6)
    assert np.array_equal(few.images, more.images[:2])
    assert np.array_equal(few.labels, more.labels[:2])
    assert all(np.array_equal(few.state[name], more.state[name]) for name in more.state)
