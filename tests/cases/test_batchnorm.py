"""BatchNorm's numbers.

A case id stands for a small input behind public reports against other frameworks, which are named
beside it; see the package's docstring.
"""

from __future__ import annotations

from unittest import mock

import numpy as np
import pytest

import tinybn as tb
from tests.cases import mathematics as m
from tests.cases.rows import (
    CLOSE_GRADIENT,
    G1,
    X1,
    F,
    assert_close,
    assert_golden,
    assert_same,
    case,
)  # fmt: skip
from tests.engines import CPU
from tinybn import kernels, nn
from tinybn.kernels.reference import batch_norm as reference

LAYERS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
WEIGHT, BIAS = [1.5, -0.5, 2.0], [0.25, 1.0, -3.0]


def column(*values):
    return np.array(values, np.float32)[:, None]


def steps(n, c, positions):
    """x[n, c, l] = n + 1 + 4c + l."""
    n, c, at = np.ogrid[:n, :c, :positions]
    return (n + 1 + 4 * c + at).astype(np.float32)


TINY = column(0, 1, 2, 3) * np.float32(1e-4)

TRAINING = [
    case("BN-01", "pytorch/pytorch#60528, pytorch/pytorch#106366, pytorch/pytorch#77427",
         [steps(4, 3, 4)], {},
         dict(y=[-1.89736280138, -1.26490853425, -0.632454267126, 0.0],
              running_mean=[0.4, 0.8, 1.2], running_var=[1.16666666667] * 3)),
    case("BN-02", "pytorch/pytorch#7028",
         [np.array([[2, 15, 2, 1], [2, 17, 2, 1], [-4, -2, -2, -1]], np.float32)],
         dict(momentum=1),
         dict(running_mean=[0, 10, 0.666666666667, 0.333333333333],
              running_var=[12, 109, 5.33333333333, 1.33333333333])),
    case("BN-05", "pytorch/pytorch#1381",
         [np.array([1, 2, 4, 8, -1, 0, 3, 5], np.float32).reshape(1, 2, 2, 2)], {},
         dict(y=[-1.0257545755, -0.652752911679], running_mean=[0.375, 0.175],
              running_var=[1.85833333333, 1.65833333333])),
    case("BN-10", "BVLC/caffe#3963",
         [np.full((1, 1, 3, 3), 100, np.float32)], {}, dict(y=[0.0] * 9)),
    *(case("BN-17", "microsoft/onnxruntime#29790",
           [F((2, 4, 3), 5, 2, 8, 2, -1)], dict(momentum=momentum),
           dict(y=[-0.707104235616, 1.41420847123, 0.141420847123, -1.388724198]))
      for momentum in (0, 0.5, 1)),
    case("BN-18", "pytorch/pytorch#15298, Cadene/pretrained-models.pytorch#5",
         [X1], dict(momentum=0), dict(running_mean=[0, 0, 0], running_var=[1, 1, 1])),
    case("BN-19", "d2l-ai/d2l-en#2213, Oneflow-Inc/oneflow#6055, fastestimator/fastestimator#1201",
         [X1, 2 * X1 + 1], {},
         dict(running_mean=[0.20875, 0.17975, 0.20875],
              running_var=[1.46924342105, 1.43829605263, 1.59819078947])),
    case("BN-38", "chainer/chainer#4505, chainer/chainer#855, chainer/chainer#7506",
         [column(0, 2, 4, 6)], dict(eps=1, momentum=1),
         dict(y=[-1.22474487139, -0.408248290464], running_var=[6.66666666667],
              y_eval=[-1.08347267777, -0.361157559257])),
    *(case("BN-39", "pytorch/pytorch#1623, chainer/chainer#1955, tensorflow/tensorflow#8090, "
           "tensorflow/tensorflow#37768", [TINY], dict(eps=eps), dict(y=golden))
      for eps, golden in ((1e-12, [-1.34158712409, -0.447195708029]),
                          (0, [-1.3416407865, -0.4472135955]),
                          (1e-5, [-0.047404546314, -0.015801515438]))),
    *(case("BN-40", "pytorch/pytorch#96136, pytorch/pytorch#62471, pfnet/pytorch-pfn-extras#117, "
           "Tencent/YOLO-Master#262", [X1] * times, {}, golden)
      for times, golden in (
          (1, dict(running_mean=[0.0375, 0.0275, 0.0375],
                   running_var=[1.03453947368, 1.02822368421, 1.06085526316])),
          (2, dict(running_mean=[0.07125, 0.05225, 0.07125],
                   running_var=[1.065625, 1.053625, 1.115625])))),
    case("BN-46", "torch/cunn#298, LBANN/lbann#1610",
         [F((3, 65537), 40503, 7, 65536, 65536)], {}, dict(y=[-1.11792913978])),
    case("BN-49", "NVIDIA/apex#1768",
         [np.moveaxis(F((2, 25, 20, 65), 7, 3, 32, 8, 3), -1, 1)], {}, {}),
    case("BN-50", "pytorch/pytorch#22192, PaddlePaddle/Paddle#32464",
         [column(*[0, 1] * 512, 1000)], {},
         dict(mean=[1.47512195122], var=[973.933283522], running_mean=[0.147512195122],
              running_var=[98.3884390244])),
    case("BN-52", "pytorch/pytorch#1381",
         [F((4, 3, 1, 1), 5, 2, 8, 2)], {},
         dict(y=[-0.185694825916, 1.34161932076, 1.34161932076], running_mean=[0.125, 0.275, 0.125],
              running_var=[1.14166666667, 0.941666666667, 0.941666666667])),
]  # fmt: skip


@pytest.mark.parametrize(("batches", "options", "golden"), TRAINING)
def test_training_forward(engine, batches, options, golden):
    layer = LAYERS[batches[0].ndim](batches[0].shape[1], **options)
    eps = options.get("eps", 1e-5)
    for x in batches:
        assert_close(layer(tb.Tensor(x)), m.batch_norm(x, eps=eps))
    mean, var = m.running(batches, options.get("momentum", 0.1))
    assert_close(layer.running_mean, mean)
    assert_close(layer.running_var, var)
    assert layer.num_batches_tracked.item() == len(batches)
    y_eval = m.batch_norm(x, eps=eps, mean=mean, var=var)
    # Where the momentum is 0 the statistics are exact, so that nothing was written.
    if options.get("momentum") == 0:
        assert_same(layer.running_mean, mean)
        assert_same(layer.running_var, var)
    assert_close(layer.eval()(tb.Tensor(x)), y_eval, rtol=1e-5, atol=1e-5 * (1 + abs(y_eval).max()))
    worked_out = dict(
        y=m.batch_norm(x, eps=eps), y_eval=y_eval, running_mean=mean, running_var=var,
        **dict(zip(("mean", "var"), m.moments(x))),
    )  # fmt: skip
    for name, numbers in golden.items():
        assert_golden(worked_out[name], numbers)


def test_the_golden_numbers_of_many_channels():
    """BN-46's other numbers, and BN-49's, of the channels at the ends."""
    y = m.batch_norm(F((3, 65537), 40503, 7, 65536, 65536))
    assert_golden(y[:, 65535], [0.190998452178, -1.30892759196, 1.11792913978])
    assert_golden(y[:, 65536], [-1.11792913978, 1.30892759196, -0.190998452178])
    assert_golden(abs(y).sum(), 168959.814089)
    mean, var = m.moments(F((2, 65, 25, 20), 7, 3, 32, 8, 3))
    assert_golden(mean, [4.9375] * 4)
    assert_golden(var, [1.33103125, 1.33253125, 1.33303125, 1.32953125])
    assert_golden([mean[-1], var[-1]], [4.9375, 1.33103125])


@pytest.mark.parametrize(
    "x", [case("BN-49", "NVIDIA/apex#1768", F((2, 65, 25, 20), 7, 3, 32, 8, 3))]
)
def test_moments_of_channels_last_memory(engine, x):
    memory = np.ascontiguousarray(np.moveaxis(x, 1, -1))

    def run(memory):
        return kernels.batch_norm_stats_forward(memory.transpose(0, 3, 1, 2), eps=0.0)

    mean, rstd = engine.run(run, memory)
    want_mean, want_var = m.moments(x)
    assert_close(mean, want_mean)
    assert_close(1 / np.square(rstd.astype(np.float64)), want_var)


@pytest.mark.parametrize(
    "x",
    [
        case("BN-12", "pytorch/pytorch#178123, pytorch/pytorch#162489",
             column(1e30, 2e30, 3e30, 4e30)),
    ],
)  # fmt: skip
def test_a_variance_beyond_the_largest_float32(engine, x):
    """In float64 the answer is the mathematics; the kernels, in float32, give bias and no NaN."""
    t = tb.Tensor(x, requires_grad=True)
    layer = nn.BatchNorm1d(1)
    y = layer(t)
    y.backward(tb.Tensor(column(1, 2, 0, 1)))
    want = m.batch_norm(x)
    assert_golden(want, [-1.3416407865, -0.4472135955, 0.4472135955, 1.3416407865])
    assert_close(y, want if engine is CPU else np.zeros_like(want), rtol=1e-4)
    assert np.isfinite(t.grad.numpy()).all() and np.isfinite(layer.weight.grad.numpy()).all()
    assert_close(layer.running_mean, m.running([x])[0])
    assert layer.running_var.tolist() == [np.inf]
    assert_close(layer.eval()(t), np.zeros((4, 1)))


EVALUATION = [
    case("BN-13", "apple/coreai-torch#54",
         np.array([[100, 0.5], [-300, -0.25], [1000, 2]], np.float16), {},
         dict(running_mean=[0, 0], running_var=[1e6, 1e-6]),
         [0.0999999999995, 150.755672289, -0.299999999999, -75.3778361444]),
    case("BN-22", "pytorch/pytorch#30294, pytorch/pytorch#16793",
         X1, dict(track_running_stats=False), {},
         [-0.995094116914, 0.552830064952, -1.43735816888, 0.11056601299, 1.65849019486]),
    case("BN-27", "pytorch/pytorch#63224",
         np.arange(6, dtype=np.float32).reshape(1, 3, 2, 1).transpose(0, 2, 1, 3), {},
         dict(running_mean=[0, 0], running_var=[1, 1]),
         [0.0, 1.99999000007, 3.99998000015, 0.999995000037]),
]  # fmt: skip


@pytest.mark.parametrize(("x", "options", "state", "golden"), EVALUATION)
def test_evaluation(engine, x, options, state, golden):
    layer = LAYERS[x.ndim](x.shape[1], **options).eval()
    layer.load_state_dict({k: np.array(v) for k, v in state.items()}, strict=False)
    statistics = dict(mean=state.get("running_mean"), var=state.get("running_var"))
    want = m.batch_norm(x, **statistics)
    assert_golden(want, golden)
    y = layer(tb.Tensor.wrap(engine.put(x)))
    assert y.dtype == x.dtype
    # One rounding to float16, of half a unit in its last place.
    assert_close(y, want, **({} if x.dtype == np.float32 else dict(rtol=2.0**-11, atol=1e-7)))
    if not options.get("track_running_stats", True):
        assert layer.running_mean is layer.running_var is layer.num_batches_tracked is None
        assert list(layer.state_dict()) == ["weight", "bias"]


LAST = np.moveaxis(F((3, 2, 2, 4), 7, 3, 16, 4, -1.5), -1, 1)

GRADIENTS = [
    case("BN-24", "pytorch/pytorch#586, pytorch/pytorch#4284, soumith/cudnn.torch#244, "
         "pytorch/xla#913, apache/mxnet#9580",
         X1, G1, WEIGHT, BIAS, dict(running_mean=[0.5, -1, 2], running_var=[4, 0.25, 9]),
         dict(y=[-0.687498828127, 0.624999531251], dx=[-0.562499296876, 0.374999531251],
              dw=[2.31249710938, -5.24989500315, 3.12499826389], db=[-1.5, -3.5, -3.5])),
    case("BN-28", "pytorch/pytorch#175189, pytorch/pytorch#107199, NVIDIA/apex#1768",
         LAST, F((3, 4, 2, 2), 5, 1, 8, 4, -1), [1, 2, -1, 0.5], [0] * 4, {},
         dict(y=[-1.34163541997, 1.34163541997], dx=[0.268322254145, 0.178889552511],
              dw=[6.03735938986, -2.01245312995, 6.03735938986, -2.01245312995],
              db=[-4.5, 1.5, -4.5, 1.5])),
    case("BN-30", "pytorch/pytorch#1866, pytorch/pytorch#603, pytorch/pytorch#2000",
         F((4, 10), 7, 3, 16, 4), np.broadcast_to(np.float32(1), (4, 10)), [1] * 10, [0] * 10, {},
         dict(dx=[0.0] * 40, dw=[0.0] * 10, db=[4.0] * 10)),
    case("BN-35", "flagos-ai/FlagGems#6332", X1, G1, WEIGHT, BIAS, {},
         dict(y=[-1.24264117537, 1.07924509743, -1.90603725331])),
    case("BN-36", "intel/ipex-llm#2012, fastai/fastai2#9", X1, G1, None, None, {},
         dict(y=[-0.995094116914, 0.552830064952],
              dx=[-0.424315322155, 0.412636355315, 0.0947225733591, -0.837381957018,
                  -0.000430279546851])),
    case("BN-32", "HorizonRobotics/alf#1183, pytorch/pytorch#194351",
         np.arange(8, dtype=np.float32).reshape(4, 2), F((4, 2), 5, 1, 8, 4), None, [1, 2], {},
         dict(y=[-0.341639444861, 0.658360555139, 0.552786851713, 1.55278685171])),
    case("BN-32", "HorizonRobotics/alf#1183, pytorch/pytorch#194351",
         np.arange(8, dtype=np.float32).reshape(4, 2), F((4, 2), 5, 1, 8, 4), [2, 3], None, {},
         dict(y=[-2.68327888972, -4.02491833458, -0.894426296574, -1.34163944486])),
]  # fmt: skip


@pytest.mark.parametrize(("x", "dy", "weight", "bias", "statistics", "golden"), GRADIENTS)
def test_gradients(engine, x, dy, weight, bias, statistics, golden):
    mean, var = statistics.get("running_mean"), statistics.get("running_var")
    scale, shift = 1.0 if weight is None else weight, 0.0 if bias is None else bias

    def parameter(values):
        return None if values is None else tb.Tensor(np.float32(values), requires_grad=True)

    t = tb.Tensor.wrap(engine.put(x))
    t.requires_grad = True
    w, b = parameter(weight), parameter(bias)
    buffers = [None if v is None else tb.Tensor(np.float32(v)) for v in (mean, var)]
    y = nn.functional.batch_norm(t, *buffers, w, b, training=mean is None)
    y.backward(tb.Tensor.wrap(engine.put(dy)))
    want = m.batch_norm(x, scale, shift, mean=mean, var=var)
    dx, dw, db = m.batch_norm_gradients(dy, x, scale, mean=mean, var=var)
    assert_close(y, want, **CLOSE_GRADIENT)
    assert_close(t.grad, dx, **CLOSE_GRADIENT)
    for tensor, gradient in ((w, dw), (b, db)):
        if tensor is not None:
            assert_close(tensor.grad, gradient, **CLOSE_GRADIENT)
    assert_same(t, x)  # the input is as it was, bit for bit
    for name, numbers in golden.items():
        assert_golden(dict(y=want, dx=dx, dw=dw, db=db)[name], numbers)


@pytest.mark.parametrize(
    "x", [case("BN-30", "pytorch/pytorch#1866, pytorch/pytorch#603", F((4, 10), 7, 3, 16, 4))]
)
def test_the_gradient_of_a_sum(engine, x):
    t, layer = tb.Tensor(x, requires_grad=True), nn.BatchNorm1d(10)
    layer(t).sum().backward()
    assert_close(t.grad, np.zeros((4, 10)))
    assert_close(layer.weight.grad, np.zeros(10))
    assert_same(layer.bias.grad, np.full(10, 4.0))


UNEVEN = [
    case("BN-58", "mapillary/inplace_abn#68, pytorch/pytorch#22192",
         column(10, 20, 30, 40, 50, 1, 2, 3), 5, 19.5, 309.0),
    case("BN-50", "pytorch/pytorch#22192, PaddlePaddle/Paddle#32464",
         column(*[0, 1] * 512, 1000), 1024, 1.47512195122, 973.933283522),
]  # fmt: skip


@pytest.mark.parametrize(("x", "part", "mean", "var"), UNEVEN)
def test_parts_count_by_their_size(engine, x, part, mean, var):
    """The last of the parts, here two, is the smaller one."""
    want_mean, want_var = m.moments(x)
    assert_golden([*want_mean, *want_var], [mean, var])
    if engine is CPU:
        with mock.patch.object(reference, "PART_BYTES", part * np.dtype(np.float64).itemsize):
            got = engine.run(kernels.batch_norm_stats_forward, x, eps=0.0)
        got = got[0], 1 / np.square(got[1].astype(np.float64))
    else:
        from tests.cases.triton_kernels import merge_parts

        of_parts = [m.moments(piece) for piece in (x[:part], x[part:])]
        slots = np.stack([np.concatenate(values) for values in zip(*of_parts)])
        got = engine.run(merge_parts, slots.astype(np.float32), rows=len(x), part_rows=part)
    assert_close(got[0], want_mean, **CLOSE_GRADIENT)
    assert_close(got[1], want_var, **CLOSE_GRADIENT)
