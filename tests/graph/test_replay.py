"""Forward on the CPU, replayed: the values of a plain run, whatever changes between calls."""

from __future__ import annotations

import numpy as np
import pytest

import tinybn as tb
from tinybn import graph, nn
from tinybn.graph import (
    AddRuntimeOp,
    FlattenRuntimeOp,
    LinearRuntimeOp,
    MaxPool2dRuntimeOp,
    MeanRuntimeOp,
    RuntimeGraph,
)

MODELS = {
    "mlp": lambda: nn.models.mlp(36, (7, 5), 3),
    "cnn": lambda: nn.models.cnn((3, 4), 3, image=6),
    "resnet8": lambda: nn.models.resnet8((2, 3), 3),
    "plain functions": lambda: nn.Sequential(nn.GELU(), nn.AvgPool2d(2), nn.Flatten()),
}


def images(seed, batch=2):
    return np.random.default_rng(seed).standard_normal((batch, 1, 6, 6), dtype=np.float32)


def compiled(name):
    tb.manual_seed(3)
    model = MODELS[name]()
    model(tb.Tensor(images(0, 8), device="cpu"))  # statistics
    model.eval()
    return model, graph.compile(model, tb.Tensor(images(1), device="cpu"))


def plain(made, x):
    """The output of a run in which every node gets memory of its own."""
    return made.results(x)[made.outputs[0]]


def bits(array):
    return array.dtype, array.shape, np.ascontiguousarray(array).tobytes()


@pytest.mark.parametrize("name", MODELS)
def test_each_call_gives_what_a_plain_run_gives_in_memory_of_its_own(name):
    model, made = compiled(name)
    wide = MODELS[name]().eval().to(tb.float64)
    wide.load_state_dict(model.state_dict())
    kept = []
    for seed in range(2, 8):
        x = tb.Tensor(images(seed), device="cpu")
        y = made.forward(x)
        kept.append((y, plain(made, x)))
        with tb.no_grad():
            want = wide(tb.Tensor(images(seed).astype(np.float64), device="cpu")).numpy()
        # Eight layers at most of sums of at most 36 products, each rounded at random.
        assert np.abs(y.numpy() - want).max() <= 8 * 6 * 2.0**-23 * np.abs(want).max()
    assert len({bits(y.numpy()) for y, _ in kept}) == len(kept)
    for y, want in kept:  # no call has written to what an earlier one returned
        assert bits(y.numpy()) == bits(want)


@pytest.mark.parametrize("name", MODELS)
def test_layouts_batches_and_hard_values(name):
    _, made = compiled(name)
    large = images(9, 8)
    hard = images(10)
    hard[0, 0, 1, 2], hard[1, 0, 3, 3] = np.nan, np.inf
    given = [large[::2], large[:, :, ::-1], np.asfortranarray(large), large[:1], large[:0], hard,
             np.broadcast_to(large[:1], large.shape)]  # fmt: skip
    for _ in range(3):
        for array in given:
            x = tb.Tensor.wrap(array)
            assert bits(made.forward(x).numpy()) == bits(plain(made, x))


@pytest.mark.parametrize("strided", [False, True])
@pytest.mark.parametrize("change", ["in place", "replaced", "loaded"])
def test_parameters_count_as_they_are_when_forward_is_called(change, strided):
    """Strided ones are copied by the kernels' functions, which a replay must not keep."""
    generator = np.random.default_rng(4)
    weight, bias = generator.standard_normal((3, 8)), generator.standard_normal(6)
    weight, bias = weight.astype(np.float32), bias.astype(np.float32)
    own = (weight[:, ::2], bias[::2]) if strided else (weight[:, :4].copy(), bias[:3].copy())
    parameters = dict(zip(("weight", "bias"), map(tb.Tensor.wrap, own)))
    made = RuntimeGraph("x", device="cpu")
    made.add(LinearRuntimeOp(4, 3), "x", name="l", parameters=parameters)
    x = tb.Tensor(generator.standard_normal((2, 4)).astype(np.float32), device="cpu")
    for step in range(5):
        new_weight, new_bias = own[0] + np.float32(step), own[1] * np.float32(2)
        if step < 3:
            new_weight, new_bias = own
        elif change == "in place":
            own[0][...], own[1][...] = new_weight, new_bias
        elif change == "replaced":
            for name, array in (("weight", new_weight), ("bias", new_bias)):
                parameters[name].data = array
            own = new_weight, new_bias
        else:
            made.load_state_dict({"l.weight": tb.Tensor(new_weight), "l.bias": tb.Tensor(new_bias)})
        want = x.numpy().astype(np.float64) @ new_weight.astype(np.float64).T + new_bias
        got = made.forward(x).numpy()
        assert np.abs(got - want).max() <= 6 * 2.0**-23 * np.abs(want).max(), step


def test_several_outputs_views_and_sums():
    made = RuntimeGraph("x", "z", device="cpu")
    made.add(MaxPool2dRuntimeOp(2), "x", name="largest")
    made.add(FlattenRuntimeOp(), "largest", name="flat")
    made.add(FlattenRuntimeOp(), "x", name="seen")
    made.add(AddRuntimeOp(), "flat", "z", name="sum")
    made.add(MeanRuntimeOp((1,)), "sum", name="mean")
    made.output("mean", "seen", "flat", "sum")
    kept = []
    for seed in range(4):
        x, z = images(seed), images(seed + 9).reshape(2, -1)[:, :9]
        y = made.forward(tb.Tensor(x, device="cpu"), tb.Tensor(z, device="cpu"))
        flat = x.reshape(2, 3, 2, 3, 2).max((2, 4)).reshape(2, 9)
        kept.append((y, ((flat + z).mean(1, dtype=np.float64), x.reshape(2, 36), flat, flat + z)))
    for found, (mean, *others) in kept:
        assert np.abs(found[0].numpy() - mean).max() <= 9 * 2.0**-23 * np.abs(mean).max()
        assert [bits(a.numpy()) for a in found[1:]] == [bits(a) for a in others]


def test_who_looks_on_sees_every_launch():
    from tinybn.kernels.launch.observe import Observer, under

    _, made = compiled("mlp")
    x = tb.Tensor(images(1), device="cpu")
    for _ in range(3):
        made.forward(x)
    with under(Observer()) as seen:
        made.forward(x)
    assert [launch.kernel for launch in seen.launches] == ["matmul"] * 3
