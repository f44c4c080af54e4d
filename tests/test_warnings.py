"""What a user runs warns of nothing, on infinities, NaN and the largest numbers too.

pytest makes every warning an error (``setup.cfg``), so calling is the test; ``test_elementwise.py``
does the same for each function of one and two tensors.
"""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn, testing
from tinybn.nn import functional as F

INF, NAN = float("inf"), float("nan")
HARD = [INF, -INF, NAN, 0.0, -0.0, 1.0, 1e300, -1e300, 3e38, -3e38, 65504.0, 1e-45]
DTYPES = pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])


@pytest.fixture(autouse=True)
def _numpy_warns():
    with np.errstate(all="warn"):
        yield


def hard(shape, dtype, grad=False):
    x = tb.tensor(np.resize(np.array(HARD), shape), dtype=dtype)
    return x.requires_grad_() if grad else x


def check_backward(y):
    y.backward(hard(y.shape, y.dtype))


@DTYPES
def test_tensors_made_and_cast(dtype):
    for value in HARD:
        assert tb.full((2,), value, dtype=dtype).shape == (2,)
        assert tb.full_like(tb.zeros(2, dtype=dtype), value).shape == (2,)
        tb.tensor([value], dtype=dtype)
    assert tb.linspace(0, 1e300, 3, dtype=dtype).tolist()[0] == 0
    tb.arange(0, 1e30, 1e29, dtype=dtype)
    x = hard((12,), dtype)
    for other in (tb.float16, tb.bfloat16, tb.float32, tb.float64, tb.int32, tb.int64, tb.bool_):
        assert x.to(other).dtype == np.asarray(x, dtype=other).dtype == other
    x[:2] = 1e300
    x[2:6] = hard((4,), tb.float64)
    x.add_(1e300).mul_(x).div_(0.0)
    assert repr(x) and x.tolist()
    nn.init.normal_(x, 0.0, 1e300)


@DTYPES
@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(), lambda x: x.mean(axis=1), lambda x: x.var(axis=0), lambda x: x.std(),
        lambda x: x.max(axis=0), lambda x: x @ x.T, lambda x: x ** 3,
        lambda x: x / (x - x), lambda x: F.softmax(x, 1), lambda x: F.log_softmax(x, 0),
        lambda x: F.linear(x, x), lambda x: F.dropout(x, 0.5),
        lambda x: F.cross_entropy(x, tb.arange(6)),
        lambda x: F.cross_entropy(x, x.detach()),
        lambda x: F.nll_loss(x, tb.arange(6)),
        lambda x: F.mse_loss(x, x.detach()),
        lambda x: F.binary_cross_entropy_with_logits(x, x.detach(), pos_weight=x.detach()),
        lambda x: F.batch_norm(x, None, None, training=True),
        lambda x: F.batch_norm(x, x[0].detach().float(), x[1].detach().float()),
        lambda x: F.max_pool2d(x[None, None], 2), lambda x: F.avg_pool2d(x[None, None], 2),
        lambda x: F.conv2d(x[None, None], x[None, None, :3, :3]),
    ],
)  # fmt: skip
def test_reductions_layers_and_losses(function, dtype):
    check_backward(function(hard((6, 6), dtype, grad=True)))


@DTYPES
@pytest.mark.parametrize("value", [1e300, INF, NAN])
def test_optimisers_and_clipping(value, dtype):
    makers = (
        lambda p: nn.optim.SGD(p, lr=1e30, momentum=0.9, weight_decay=1e30, nesterov=True),
        lambda p: nn.optim.Adam(p, lr=1e30, weight_decay=1e30),
        lambda p: nn.optim.AdamW(p, lr=1e30),
    )
    for make in makers:
        param = nn.Parameter(hard((12,), dtype))
        optimizer = make([param])
        for _ in range(2):
            param.grad = tb.full((12,), value, dtype=dtype)
            optimizer.step()
        for norm in (0.5, 1, 2, INF):
            nn.utils.clip_grad_norm_(param, 1.0, norm_type=norm)
        nn.utils.clip_grad_value_(param, 1e300)


@pytest.mark.parametrize("amp", [None, "bfloat16", "float16"])
@pytest.mark.parametrize("value", [3e38, INF, NAN])
def test_training_that_diverges(value, amp):
    x = np.full((8, 4), value, np.float32)
    for targets, loss in ((np.arange(8) % 2, None), (x[:, :2], nn.MSELoss())):
        layers = [nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)]
        model = nn.Sequential(*layers)
        optimizer = nn.optim.SGD(model.parameters(), lr=1e30)
        loader = tb.data.DataLoader((x, targets), 4)
        trainer = nn.Trainer(model, optimizer, loss, progress=False, amp=amp)
        trainer.fit(loader, 2, loader)


def test_normalising_by_hardly_anything():
    data = tb.data.Dataset(np.zeros((4, 2, 2), np.uint8), np.zeros(4, np.int64), ("a",), 1, 1e-300)
    next(iter(tb.data.DataLoader(data, 2)))
    next(iter(tb.data.DataLoader(data, 2, normalize=(1e300, 1e-300))))


def test_a_users_own_tests():
    with pytest.raises(AssertionError, match="nan"):
        tb.gradcheck(tb.exp, tb.tensor([1e3], dtype=tb.float64, requires_grad=True))
    cases = testing.arrays(dtype=[np.float32], values=testing.VALUES + testing.NON_FINITE)
    difference = lambda x: x - x  # noqa: E731 - invalid for infinities
    testing.assert_matches_reference(difference, difference, cases, terms=1, max_examples=20)


def test_compiling_a_kernel_is_silent():
    pytest.importorskip("triton")
    code = "from tinybn import kernels\nkernels.BatchNormStatsForward().compile('sm_90')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
