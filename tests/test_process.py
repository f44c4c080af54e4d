"""What a fresh process loads, and how the package behaves where things are missing."""

from __future__ import annotations

import ast
import importlib
import os
import subprocess
import sys
import textwrap

import numpy as np
import pytest

import tinybn as tb

STEP = """
import sys
import tinybn as tb
from tinybn import nn

tb.manual_seed(0)
device = sys.argv[1]
model = nn.models.mlp(hidden=(32,)).to(device)
optimizer = nn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
images, labels = next(iter(tb.data.DataLoader(tb.data.digits()[0], 64, device=device)))
for _ in range(3):
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
print(*[name for name in ("torch", "triton", "cupy") if name in sys.modules])
"""


def run(code, *arguments, **environment):
    """Run Python code in a fresh process; returns its lines."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), *arguments],
        capture_output=True, text=True, timeout=300, env={**os.environ, **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\n")


def test_import_loads_nothing_heavy():
    code = """
        import sys
        import tinybn
        heavy = "torch triton cupy tqdm pooch safetensors hypothesis matplotlib".split()
        heavy += "subprocess tempfile concurrent.futures statistics secrets".split()
        print(*[name for name in heavy if name in sys.modules])
    """
    assert run(code)[0] == ""


@pytest.mark.parametrize("name", ["tinybn", "tinybn.graph", "tinybn.nn"])
def test_a_part_loaded_when_first_used_is_what_editors_see(name):
    package = importlib.import_module(name)
    with open(package.__file__, encoding="utf-8") as file:
        (checked,) = (node for node in ast.parse(file.read()).body if isinstance(node, ast.If))
    seen = {
        alias.name: statement.module or alias.name
        for statement in checked.body
        for alias in statement.names
    }
    assert seen == package._HOMES and set(seen) <= set(package.__all__) <= set(dir(package))
    for part, home in seen.items():
        module = importlib.import_module(f"{name}.{home}")
        assert getattr(package, part) is (module if part == home else getattr(module, part))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_a_saved_graph_runs_without_nn_and_without_what_made_it(tmp_path):
    graph = tb.graph.RuntimeGraph(device="cpu")
    graph.add(tb.graph.LinearRuntimeOp(3, 2, activation="relu"), "x", name="only")
    graph.load_state_dict({"only.weight": np.ones((2, 3)), "only.bias": np.zeros(2)})
    graph.save(tmp_path / "graph.safetensors")
    code = """
        import sys
        import tinybn as tb
        graph = tb.graph.load(sys.argv[1], device="cpu")
        print(graph.forward(tb.ones(1, 3, device="cpu")).numpy().tolist())
        parts = "nn graph.compiling graph.trace graph.fold graph.lower"
        print(*[part for part in parts.split() if f"tinybn.{part}" in sys.modules])
    """
    result, loaded, *_ = run(code, str(tmp_path / "graph.safetensors"))
    assert result == "[[3.0, 3.0]]" and loaded == ""


def test_a_training_step_on_the_cpu_needs_neither_torch_nor_triton_nor_cupy():
    loss, loaded, *_ = run(STEP, "cpu")
    assert float(loss) < 2.5 and loaded == ""


@pytest.mark.gpu
def test_a_training_step_on_the_gpu_needs_no_torch_and_no_compiler(tmp_path):
    # An empty PATH hides gcc, cc and clang; the empty cache makes every kernel compile.
    loss, loaded, *_ = run(
        STEP, "cuda", PATH=str(tmp_path), TRITON_CACHE_DIR=str(tmp_path / "cache"), CC=""
    )
    assert float(loss) < 2.5 and loaded.split() == ["triton", "cupy"]


@pytest.mark.gpu
def test_the_next_process_finds_the_kernels_in_triton_s_cache(tmp_path):
    cache = tmp_path / "cache"
    first = run(STEP, "cuda", TRITON_CACHE_DIR=str(cache))
    built = {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")}
    assert built and run(STEP, "cuda", TRITON_CACHE_DIR=str(cache)) == first
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.cubin")} == built


INTERPRETED = """
    import numpy as np
    from tinybn import kernels

    x = np.arange(12, dtype=np.float32).reshape(4, 3)
    mean, rstd = kernels.batch_norm_stats_forward(x)
    print(mean.tolist())
    from tinybn.errors import LaunchError
    from tinybn.kernels.engines import engine_of
    print(engine_of(x))
    try:
        kernels.BatchNormStatsForward().compile("sm_90")
    except LaunchError as error:
        print(error)
"""


def test_the_environment_switch_interprets_and_then_refuses_to_compile():
    pytest.importorskip("triton")
    mean, engine, error, *_ = run(INTERPRETED, TRITON_INTERPRET="1")
    assert mean == "[4.5, 5.5, 6.5]" and engine == "interpret"
    assert "TRITON_INTERPRET=1" in error


def test_without_a_gpu_the_error_says_what_to_install():
    code = """
        import importlib.util
        real = importlib.util.find_spec
        importlib.util.find_spec = lambda name, *a: None if name == "cupy" else real(name, *a)
        import tinybn as tb
        try:
            tb.zeros(3, device="cuda")
        except tb.TinyBNError as error:
            print(type(error).__name__, error)
    """
    assert run(code)[0] == (
        'DeviceError device "cuda" is not available: cupy is not installed: '
        'pip install "tinybn[cuda13]"'
    )
