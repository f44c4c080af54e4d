"""What of the benchmark of inference runs without a GPU: problems, tables, tiny runs on the CPU."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks import inference, inference_report
from benchmarks.inference_onnx import ONNX, Builder, Onnx
from benchmarks.inference_ours import COMPILED, EAGER, Ours
from benchmarks.inference_problem import MODELS, POOL, Problem
from benchmarks.inference_report import Figures, Report
from benchmarks.inference_torch import PYTORCH, Torch

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module", params=MODELS)
def problem(request):
    return Problem.of(request.param, 1)


def made_up(device, ours=2.0):
    """Rows in which tinybn takes ``ours`` µs a call and s a process, and the best anchor 3."""
    report = Report({"date": "today"}, device, rounds=3, calls=4, first_rounds=5)
    for model in MODELS:
        for batch in (1, 256):
            figures = Figures(model, batch, tolerance=1e-5)
            figures.latency = {COMPILED: [ours, 9.0, 0.5], PYTORCH: [7.0] * 3, ONNX: [3.0] * 3}
            figures.queued = {COMPILED: 1.5}
            figures.errors = {COMPILED: 1e-7, PYTORCH: 1e-7, ONNX: 2e-7}
            report.figures.append(figures)
    if device == "cpu":
        report.first_seconds = {COMPILED: ours, EAGER: 1.0, PYTORCH: 7.0, ONNX: 3.0}
    return report


@pytest.mark.parametrize("arguments", [["--rounds", "0"], ["--batches", "0"], ["--calls", "0"]])
def test_what_cannot_run_is_refused(arguments):
    with pytest.raises(SystemExit, match="at least 1"):
        inference.parsed(arguments)
    assert inference.parsed(["--device", "cpu"]).output.name == "inference_cpu.md"
    assert inference.parsed([]).output.name == "inference.md"


def test_a_problem_is_the_same_in_every_process_and_its_batchnorm_does_something(problem):
    other = Problem.of(problem.model, 1)
    assert all(np.array_equal(other.state[name], problem.state[name]) for name in problem.state)
    assert problem.images.shape == (POOL, 1, 1, 28, 28)
    assert len({images.tobytes() for images in problem.images}) == POOL
    for name, value in problem.state.items():
        if name.endswith(("running_mean", "running_var")):
            assert np.unique(value).size > 1 and value.dtype == np.float32
    assert problem.logits.dtype == np.float64 and problem.logits.shape == (POOL, 1, 10)


@pytest.mark.parametrize("name", Ours.names)
def test_tinybn_on_the_cpu_is_within_the_tolerance(problem, name):
    run = Ours("cpu").build(problem, name)
    assert 0 < problem.error(run.logits) <= problem.tolerance
    again = [run.call().numpy() for _ in range(POOL)]  # its turns begin with the first batch
    assert problem.error(again) <= problem.tolerance
    run.wait()


def test_other_batches_and_nan_are_out_of_the_tolerance(problem):
    logits = list(problem.logits)
    assert problem.error(logits) == 0
    assert problem.error([*logits[1:], logits[0]]) > 100 * problem.tolerance
    assert problem.error([*logits[1:], logits[0] * math.nan]) == math.inf
    rounded = [np.float32(x) * np.float32(1 + 2.0**-12) for x in logits]  # as TF32 rounds
    assert problem.error(rounded) > problem.tolerance


def test_the_last_frozen_statistics_count(problem):
    """A candidate that leaves BatchNorm out is found out."""
    state = dict(problem.state)
    name = [n for n in state if n.endswith("running_var")][-1]
    wrong = inference.Problem.of(problem.model, 1)
    wrong.state[name] = state[name] * 1.01
    model = MODELS[problem.model]().eval()
    import tinybn as tb

    model.load_state_dict({n: tb.as_tensor(a) for n, a in wrong.state.items()})
    with tb.no_grad():
        got = [model(tb.as_tensor(images)).numpy() for images in problem.images]
    assert problem.error(got) > problem.tolerance


@pytest.mark.parametrize("library", ["torch", "onnxruntime"])
def test_peers_have_the_same_logits(problem, library):
    pytest.importorskip(library)
    found = Torch(None) if library == "torch" else Onnx("cpu")
    run = found.build(problem, found.names[0])
    assert problem.error(run.logits) <= problem.tolerance


def test_an_onnx_graph_has_the_layers_of_the_network():
    pytest.importorskip("onnx")
    problem = Problem.of("resnet8", 1)
    builder = Builder(problem.state)
    y = builder.block("x", "layers.1", 2)
    kinds = [node.op_type for node in builder.nodes]
    assert kinds.count("Conv") == kinds.count("BatchNormalization") == 3
    assert kinds[-2:] == ["Add", "Relu"] and builder.nodes[-1].output[0] == y
    strides = [list(a.ints) for n in builder.nodes for a in n.attribute if a.name == "strides"]
    assert strides == [[2, 2], [1, 1], [2, 2]]


def test_measure_goes_on_after_a_failure(problem):
    class Broken(Ours):
        names = ("broken",)

        def build(self, problem, name):
            raise RuntimeError("no such kernel\nand more")

    options = inference.parsed(["--device", "cpu", "--rounds", "2", "--calls", "2"])
    figures = inference.measure(problem, [Broken("cpu"), Ours("cpu")], options)
    assert figures.failures == {"broken": "RuntimeError: no such kernel"}
    assert set(figures.latency) == set(Ours.names) and not figures.queued
    assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in figures.latency.values())
    assert not any(map(figures.failing, Ours.names))


@pytest.mark.parametrize("device, goals", [("cpu", 2), ("cuda", 1)])
def test_goals_are_met_or_missed_by_the_figures(device, goals):
    good = "\n".join(inference_report.summary(made_up(device, 1.4)))
    assert good.count("**met**") == goals and "mlp 1 (ONNX Runtime) 0.467" in good
    assert ("resnet8 1" in good) == (device == "cuda")
    bad = "\n".join(inference_report.summary(made_up(device, 3.5)))
    assert bad.count("**missed**") == goals and "18 of 18 candidates" in bad
    alone = Report({}, device, 1, 1, 1, [Figures("mlp", 1, latency={COMPILED: [1.0]})])
    assert inference_report.summary(alone)[0].endswith("**not measured**.")


@pytest.mark.parametrize("device, tables", [("cpu", 3), ("cuda", 4)])
def test_markdown_has_every_row_in_every_table(device, tables):
    report = made_up(device)
    report.figures[0].failures["torch.compile"] = "RuntimeError: no compiler"
    report.figures[1].errors[COMPILED] = 0.9
    report.remarks.append("ONNX Runtime: lacks CUDAExecutionProvider")
    text = inference_report.markdown(report, "A note.")
    for model, batch in (("mlp", 256), ("resnet8", 1)):
        assert text.count(f"| {model} | {batch} |") == tables
    assert "2.0 (0.5–9.0) **wrong**" in text and "9.0e-01 **no**" in text
    assert "0.286" in text and "not mlp 256 (tinybn compiled)" in text
    assert "no compiler" in text and "lacks CUDAExecutionProvider" in text
    assert text.endswith("## Notes\n\nA note.\n")
    assert json.loads(inference_report.as_json(report))["figures"][0]["queued"][COMPILED] == 1.5


@pytest.mark.slow
def test_a_tiny_run_on_the_cpu_writes_its_report(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.inference", "--device", "cpu", "--peer-free",
         "--models", "mlp", "--batches", "1", "--rounds", "1", "--calls", "2", "--processes", "1",
         "--output", str(tmp_path / "a.md"), "--json", str(tmp_path / "a.json")],
        cwd=ROOT, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Correct: 2 of 2" in done.stdout
    text = (tmp_path / "a.md").read_text(encoding="utf-8")
    assert text.count("| mlp | 1 |") == 3 and "cores used" in text
    figures = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert set(figures["first_seconds"]) == set(Ours.names)
    assert all(0 < seconds < 100 for seconds in figures["first_seconds"].values())


def test_the_benchmark_imports_no_other_framework():
    code = (
        "import sys, benchmarks.inference\n"
        "print([m for m in ('torch', 'onnx', 'onnxruntime', 'cupy') if m in sys.modules])\n"
        "import benchmarks.first_result"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr
    code = "import sys, benchmarks.first_result; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stdout == "False\n"  # or its imports would not be the child's own
