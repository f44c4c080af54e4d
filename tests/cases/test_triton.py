"""Triton's masks, reductions, NaN and launches, in the kernels and beside them.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import CLOSE_GRADIENT, F, assert_close, assert_same, case
from tests.engines import CPU
from tinybn import kernels, nn
from tinybn.kernels.arrays import namespace

ROOT = Path(__file__).parents[2]
functional = nn.functional


NO_TORCH = """
    import sys
    sys.modules["torch"] = None  # importing it raises
    import numpy as np
    import tinybn as tb
    from tests.cases.triton_kernels import copy

    xp = np
    if sys.argv[1] == "cuda":
        import cupy as xp
    for dtype in (xp.float16, xp.float32, xp.float64, xp.int32, xp.int64):
        x, y = xp.arange(37).astype(dtype), xp.zeros(37, dtype)
        with tb.interpret() if xp is np else tb.enable_grad():
            copy((2,), x_ptr=tb.Tensor.wrap(x).data, y_ptr=y, n=37, BLOCK=32)
        assert (x == y).all()
    print(tb.Tensor.wrap(x).data_ptr() != 0, sys.modules["torch"])
"""


@pytest.mark.parametrize("where", ["interpret", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize(
    "code", [case("TR-01", "triton-lang/triton#5493, triton-lang/triton#2943", NO_TORCH)]
)
def test_a_launch_with_no_torch(code, where):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), where],
        capture_output=True, text=True, timeout=300, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "None"]


MASKS = ("triton-lang/triton#9917, triton-lang/triton#737, flagos-ai/FlagGems#3716, "
         "pytorch/pytorch#126535")  # fmt: skip


@pytest.mark.parametrize(
    ("x", "block"),
    [
        case("TR-02", "triton-lang/triton#3281", np.ones(16, np.float32), 256),
        case("TR-03", MASKS, np.array([-5, -3, -2, -4, -1], np.float32), 8),
        case("TR-06", "triton-lang/triton#1960, pytorch/pytorch#141052",
             np.ones(4096, np.float16), 4096),
    ],
)  # fmt: skip
def test_masked_sum_and_maximum(engine, x, block):
    if engine is CPU:
        pytest.skip("no Triton here")
    from tests.cases.triton_kernels import sum_and_max

    total, largest = engine.run(sum_and_max, x, block=block)
    assert_same(total, [m.wide(x).sum()])
    assert_same(largest, [m.wide(x).max()])


def loads_without_fill(path):
    """The lines of masked loads with no ``other``, but for what is stored under the same mask."""
    tree = ast.parse(path.read_text(encoding="utf-8"))

    def called(node, name):
        return isinstance(node, ast.Call) and ast.unparse(node.func) == f"tl.{name}"

    def argument(call, name, position):
        given = [k.value for k in call.keywords if k.arg == name] + call.args[position:][:1]
        return ast.unparse(given[0]) if given else None

    copied = {
        store.args[1]
        for store in ast.walk(tree)
        if called(store, "store") and called(store.args[1], "load")
        and argument(store, "mask", 2) == argument(store.args[1], "mask", 1)
    }  # fmt: skip
    return sorted(
        f"{path.name}:{node.lineno}"
        for node in ast.walk(tree)
        if called(node, "load") and node not in copied
        and argument(node, "mask", 1) and not argument(node, "other", 2)
    )  # fmt: skip


@pytest.mark.parametrize("package", [case("TR-03", MASKS, "tinybn/kernels")])
def test_every_masked_load_has_a_fill(package):
    files = [p for p in sorted((ROOT / package).rglob("*.py")) if "tl.load(" in p.read_text()]
    assert len(files) > 5
    assert [line for path in files for line in loads_without_fill(path)] == []


@pytest.mark.parametrize("package", [case("TR-03", MASKS, "tests/cases")])
def test_a_masked_load_with_no_fill_is_found(package, tmp_path):
    wrong = tmp_path / "kernel.py"
    wrong.write_text(
        "x = tl.load(p + i, mask=i < n)\n"
        "x = tl.load(p + i, i < n).to(tl.float32)\n"
        "tl.store(q + i, tl.load(p + i, mask=i < n), mask=i < n)\n"
        "tl.store(q + i, tl.load(p + i, mask=i < n), mask=i < k)\n"
        "x = tl.load(p + i, mask=i < n, other=0.0) + tl.load(p) + tl.load(p, i < n, 0.0)\n"
    )
    assert loads_without_fill(wrong) == ["kernel.py:1", "kernel.py:2", "kernel.py:4"]


def training(x):
    """y and dx of BatchNorm in training, for an upstream gradient that is no constant."""
    t = tb.Tensor.wrap(x)
    t.requires_grad = True
    y = functional.batch_norm(t, None, None, training=True)
    y.backward(tb.Tensor(F(x.shape, 5, 1, 8, 4, -1)))
    return y, t.grad


@pytest.mark.parametrize("view", ["columns", "every_second", "repeated", "reversed"])
@pytest.mark.parametrize(
    "x",
    [
        case("TR-04", "triton-lang/triton#8926, triton-lang/triton#5480",
             F((4, 6), 7, 3, 16, 4, -1.5)),
    ],
)  # fmt: skip
def test_strided_arguments(engine, x, view):
    views = {
        "columns": lambda xp, a: a[:, 1:4], "every_second": lambda xp, a: a[:, ::2],
        "repeated": lambda xp, a: xp.broadcast_to(a[:, 1:2], (4, 3)),
        "reversed": lambda xp, a: a[:, ::-1],
    }  # fmt: skip
    whole = engine.put(x)
    given, plain = views[view](namespace(whole), whole), views[view](np, x)
    y, dx = training(given)
    assert_close(y, m.batch_norm(plain))
    assert_close(dx, m.batch_norm_gradients(F(plain.shape, 5, 1, 8, 4, -1), plain)[0],
                 **CLOSE_GRADIENT)  # fmt: skip


HALF = "triton-lang/triton#1960, pytorch/pytorch#141052"
N = 4096  # in float16 2048 + 1 is 2048


def ones(*shape, dtype):
    return tb.ones(*shape, dtype=dtype, requires_grad=True)


def of_linear(dtype):
    bias = ones(1, dtype=dtype)
    functional.linear(tb.ones(N, 2, dtype=dtype), tb.ones(1, 2, dtype=dtype), bias).sum().backward()
    return bias.grad


def of_linear_weight(dtype):
    weight = ones(1, 2, dtype=dtype)
    functional.linear(tb.ones(N, 2, dtype=dtype), weight).sum().backward()
    return weight.grad[0, 0]


def of_conv(dtype):
    weight, bias = ones(1, 1, 1, 1, dtype=dtype), ones(1, dtype=dtype)
    functional.conv2d(tb.ones(1, 1, 64, 64, dtype=dtype), weight, bias).sum().backward()
    return tb.cat([weight.grad.reshape(-1), bias.grad])


def of_batch_norm(dtype):
    bias = ones(1, dtype=tb.float32)
    y = functional.batch_norm(tb.ones(N, 1, dtype=dtype), None, None, None, bias, training=True)
    y.sum().backward()
    return bias.grad


def of_pool(dtype):
    first = 2048 if dtype == tb.float16 else 256  # plus 1 it is itself
    x = tb.Tensor(np.array([first, *[1] * 8]), dtype=dtype).reshape(1, 1, 3, 3)
    return functional.avg_pool2d(x, 3, divisor_override=1) - (first + 8) + N


def of_broadcast(dtype):
    b = ones(1, dtype=dtype)
    (tb.ones(N, 1, dtype=dtype) + b).sum().backward()
    return b.grad


def of_index(dtype):
    x = ones(2, dtype=dtype)
    x[np.zeros(N, np.int64)].sum().backward()
    return x.grad[0]


@pytest.mark.parametrize("dtype", [tb.float16, tb.bfloat16])
@pytest.mark.parametrize(
    "total",
    [
        case("TR-06", HALF, total)
        for total in (
            lambda dtype: tb.ones(N, dtype=dtype).sum(),
            lambda dtype: tb.ones(N, 1, dtype=dtype).sum(0),
            lambda dtype: tb.ones(1, N, dtype=dtype).mean(1) * N,
            lambda dtype: tb.ones(1, N, dtype=dtype) @ tb.ones(N, 1, dtype=dtype),
            lambda dtype: functional.cross_entropy(
                tb.zeros(N, 1, dtype=dtype), tb.zeros(N, dtype=tb.int64), reduction="sum") + N,
            of_linear, of_linear_weight, of_conv, of_batch_norm, of_pool, of_broadcast, of_index,
        )
    ],
)  # fmt: skip
def test_half_sums_are_added_up_in_float32(engine, total, dtype):
    got = total(dtype)
    assert_same(got.float(), np.full(got.shape, N))


BLOCKS = "triton-lang/triton#8898"
SHAPES = ((257, 257), (33, 64), (65537, 64))


@pytest.mark.parametrize("shape", [case("TR-08", BLOCKS, shape) for shape in SHAPES])
def test_row_reductions_of_any_size(engine, shape):
    """Log-softmax of rows, and the sums that run down the columns in BatchNorm and Linear."""
    if engine.name == "interpret":
        shape = min(shape[0], 1025), shape[1]  # a program has two rows, and takes 5 ms
    x = F(shape, 40503, 7, 257, 64, -2)
    target = np.arange(shape[0]) % shape[1]
    loss = functional.cross_entropy(tb.Tensor(x), tb.Tensor(target), reduction="none")
    assert_close(loss, m.cross_entropy(x, target, reduction="none")[0])
    y = functional.batch_norm(tb.Tensor(x), None, None, training=True)
    assert_close(y, m.batch_norm(x), **CLOSE_GRADIENT)
    # n values of at most 2.02, each sum of which errs by half a unit of it.
    none = (False, False, True)
    _, _, sums = engine.run(kernels.linear_backward, x, None, None, none)
    assert_close(sums, m.wide(x).sum(0), atol=2.02 * shape[0] * 2.0**-24)


NANS = "triton-lang/triton#7349, triton-lang/triton#1566"
ROW = np.array([[np.nan] + [np.inf] * 63], np.float32)


@pytest.mark.parametrize("place", [case("RL-02", NANS, place) for place in (0, 31, 63)])
def test_nan_is_the_largest_of_all(engine, place):
    row = np.roll(ROW, place)
    x = tb.Tensor(row)
    for got in (
        x.max(), x.min(), functional.softmax(x, 1)[0, 0], functional.log_softmax(x, 1)[0, 1],
        functional.cross_entropy(x, tb.Tensor([1])),
        functional.max_pool2d(x.reshape(1, 1, 8, 8), 8),
        functional.max_pool2d(x.reshape(1, 1, 8, 8), 8, 1),
    ):  # fmt: skip
        assert np.isnan(got.item())
    assert x.argmax(1).tolist() == [place]
    t = tb.Tensor(row.reshape(1, 1, 8, 8), requires_grad=True)
    functional.max_pool2d(t, 8).sum().backward()
    assert_same(t.grad.reshape(-1), np.eye(64)[place])
    right, total = np.zeros(1, np.int64), np.zeros(1)
    right = engine.run(add_metrics, row, np.array([place]), np.zeros((), np.float32), total, right)
    assert right.tolist() == [1]


def add_metrics(logits, target, loss, total, right):
    kernels.add_metrics(logits, target, loss, total, right)
    return right


@pytest.mark.parametrize(
    ("a", "b"), [case("RL-02", NANS, np.nan, 1.0), case("RL-02", NANS, 1.0, np.nan)]
)
def test_nan_goes_through_an_elementwise_maximum(engine, a, b):
    a, b = (tb.Tensor(np.float32([v])) for v in (a, b))
    for got in (tb.maximum(a, b), tb.minimum(a, b), tb.where(a == a, b, a) * a):
        assert np.isnan(got.item())
    nan = tb.Tensor(np.float32([np.nan]))
    for got in (nan.relu(), nan.clip(0, 1), functional.gelu(nan), functional.silu(nan)):
        assert np.isnan(got.item())
    column = tb.Tensor(np.float32([[np.nan], [1]]))
    for activation in ("relu", "gelu", "silu"):
        y = functional.batch_norm(column, tb.zeros(1), tb.ones(1), activation=activation)
        assert np.isnan(y[0].item()) and not np.isnan(y[1].item())
