"""GradScaler: the scale's course, skipped steps, state, and errors."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import tinybn as tb
from tests.engines import all_engines
from tinybn import nn
from tinybn.errors import ArgumentError, DTypeError, OrderError, StateError, TapeError
from tinybn.nn.amp import GradScaler, autocast

INF, NAN = float("inf"), float("nan")


def parts(device="cpu", dtype=np.float32, **options):
    """A scaler, a parameter [1, 2], and SGD with a rate of 1: a step takes the gradient off."""
    param = nn.Parameter(np.array([1.0, 2.0], dtype), device=device)
    return GradScaler(**options), param, nn.optim.SGD([param], lr=1.0)


def backward(scaler, param, slope=1.0):
    """Give ``param`` the gradient ``slope`` times the scale; only the first element's, at that."""
    param.grad = None
    factors = tb.Tensor(np.array([slope, 0.0], param.dtype), device=param.device)
    scaler.scale((param * factors).sum()).backward()


def run(scaler, param, optimizer, slope=1.0):
    backward(scaler, param, slope)
    result = scaler.step(optimizer)
    scaler.update()
    return result


# Each row: the slope, then scale and growth tracker after update(), by hand from the rule: what
# is not finite halves the scale and clears the tracker; two finite steps in a row double it.
COURSE = [
    (1.0, 8.0, 1), (1.0, 16.0, 0), (1.0, 16.0, 1), (INF, 8.0, 0), (NAN, 4.0, 0), (1.0, 4.0, 1),
    (-INF, 2.0, 0), (1.0, 2.0, 1), (1.0, 4.0, 0),
]  # fmt: skip


@all_engines
@pytest.mark.parametrize("dtype", [np.float32, np.float64, tb.bfloat16])
def test_the_scale_grows_backs_off_and_bad_steps_are_skipped(engine, dtype):
    device = "cuda" if engine.name == "cuda" else "cpu"
    scaler, param, optimizer = parts(device, dtype, init_scale=8.0, growth_interval=2)
    first = 1.0
    for slope, scale, tracker in COURSE:
        with engine.active():
            run(scaler, param, optimizer, slope)
        first -= slope if np.isfinite(slope) else 0
        assert scaler.get_scale() == scale
        assert scaler.state_dict()["_growth_tracker"] == tracker
        assert param.detach().cpu().tolist() == [first, 2.0]
    assert optimizer.state_dict()["state"] == {}


def test_other_factors():
    scaler, param, optimizer = parts(
        init_scale=100.0, growth_factor=1.5, backoff_factor=0.25, growth_interval=1
    )
    scales = []
    for slope in (1.0, INF, 1.0):
        run(scaler, param, optimizer, slope)
        scales.append(scaler.get_scale())
    assert scales == [150.0, 37.5, 56.25]  # all exact in float32


def test_a_scale_never_becomes_infinite():
    scaler, param, optimizer = parts(init_scale=2.0**127, growth_interval=1)
    run(scaler, param, optimizer, slope=0.5)
    assert scaler.get_scale() == 2.0**127 and param.tolist() == [0.5, 2.0]


def test_gradients_too_small_for_float16_live_by_the_scale():
    # 2⁻³⁰ is 0 in float16, whose smallest number is 2⁻²⁴; 2⁻³⁰·65536 = 2⁻¹⁴ is exact.
    weight = nn.Parameter(np.ones((1, 1), np.float32), device="cpu")
    optimizer, x = nn.optim.SGD([weight], lr=1.0), tb.ones((1, 1), device="cpu")
    for scaler, slope in ((GradScaler(enabled=False), 0.0), (GradScaler(), 2**-30)):
        optimizer.zero_grad()
        with autocast(dtype=tb.float16):
            loss = nn.functional.linear(x, weight).sum() * 2**-30
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        assert weight.grad.item() == slope


@pytest.mark.parametrize("scale", [65536.0, 1.0, 3.0, 0.125])
def test_gradients_come_back_unscaled_and_may_be_clipped(scale):
    scaler, param, optimizer = parts(init_scale=scale)
    backward(scaler, param, slope=3.0)
    assert param.grad.tolist() == [3.0 * scale, 0.0]
    memory = param.grad.data
    assert scaler.unscale_(optimizer) is None
    assert param.grad.tolist() == [3.0, 0.0]  # a division, exact where the product was
    assert param.grad.data is memory
    nn.utils.clip_grad_norm_([param], 1.0)
    scaler.step(optimizer)  # does not unscale again
    # clip_grad_norm_ divides by the norm + 1e-6.
    np.testing.assert_allclose(param.detach().numpy(), [0.0, 2.0], atol=1e-6)
    scaler.update()
    backward(scaler, param)
    scaler.unscale_(optimizer)


def test_a_low_gradient_is_rounded_once():
    scaler, param, optimizer = parts(dtype=tb.bfloat16, init_scale=3.0)
    param.grad = tb.Tensor(np.array([5.0, 1.0], tb.bfloat16), device="cpu")
    scaler.scale(tb.ones((), device="cpu"))
    scaler.unscale_(optimizer)
    want = np.array([5 / 3, 1 / 3]).astype(tb.bfloat16)
    np.testing.assert_array_equal(param.grad.numpy(), want)


def test_one_bad_gradient_of_many_stops_them_all():
    params = [
        nn.Parameter(np.ones(shape, np.float32), device="cpu") for shape in ((), (3,), (2, 2))
    ]
    optimizer = nn.optim.Adam([{"params": params[:1]}, {"params": params[1:]}], lr=0.5)
    for spoilt in range(4):
        scaler = GradScaler(init_scale=1.0)
        scaler.scale(tb.ones((), device="cpu"))
        for param in params:
            param.grad = tb.full(param.shape, 3e38, device="cpu")  # finite, though not their sum
        if spoilt < 3:
            params[spoilt].grad.data.reshape(-1)[-1] = NAN
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == (0.5 if spoilt < 3 else 1.0)
        assert (len(optimizer.state) == 3) == (spoilt == 3)


def test_several_optimizers_share_a_scale():
    scaler, one, first = parts(init_scale=8.0, growth_interval=1)
    _, two, second = parts()
    backward(scaler, one)
    backward(scaler, two, slope=INF)
    scaler.step(first)
    scaler.step(second)
    scaler.update()
    assert one.tolist() == [0.0, 2.0] and two.tolist() == [1.0, 2.0]
    assert scaler.get_scale() == 4.0


def test_parameters_without_gradients_are_left_out():
    params = [nn.Parameter(np.ones(2, np.float32), device="cpu") for _ in range(2)]
    scaler, optimizer = GradScaler(), nn.optim.SGD(params, lr=1.0)
    scaler.scale(params[0].sum()).backward()
    scaler.step(optimizer)
    assert params[0].tolist() == [0.0, 0.0] and params[1].tolist() == [1.0, 1.0]


def test_outputs_in_any_number_keep_float64():
    scaler = GradScaler(init_scale=4.0)
    x = tb.ones(2, device="cpu")
    scaled = scaler.scale([x, (x.double(), x.half())])
    assert type(scaled) is list and type(scaled[1]) is tuple
    assert [t.tolist() for t in (scaled[0], *scaled[1])] == [[4.0, 4.0]] * 3
    # 65536, the first scale, is infinite in float16: low outputs are scaled in float32.
    assert [t.dtype for t in (scaled[0], *scaled[1])] == [np.float32, np.float64, np.float32]


def test_a_scale_may_be_set():
    scaler, param, optimizer = parts(init_scale=8.0)
    run(scaler, param, optimizer)
    backward(scaler, param, INF)
    scaler.step(optimizer)
    scaler.update(new_scale=32.0)
    assert scaler.get_scale() == 32.0
    scaler.update(tb.full((), 2.0, device="cpu"))
    assert scaler.get_scale() == 2.0 and scaler.state_dict()["_growth_tracker"] == 1


def test_disabled_it_does_nothing():
    scaler, param, optimizer = parts(enabled=False, init_scale=8.0)
    loss = param.sum()
    assert scaler.scale(loss) is loss and not scaler.is_enabled()
    loss.backward()
    scaler.unscale_(optimizer)
    scaler.unscale_(optimizer)
    assert scaler.step(optimizer, lambda: 5) == 5
    scaler.step(optimizer)
    scaler.update()
    assert param.tolist() == [-1.0, 0.0] and scaler.get_scale() == 1.0
    assert scaler.state_dict() == {}
    scaler.load_state_dict({})


# State


def test_the_state_is_pytorchs_and_goes_on():
    scaler, param, optimizer = parts(init_scale=8.0, growth_interval=3)
    assert scaler.state_dict() == {
        "scale": 8.0, "growth_factor": 2.0, "backoff_factor": 0.5, "growth_interval": 3,
        "_growth_tracker": 0,
    }  # fmt: skip
    run(scaler, param, optimizer)
    run(scaler, param, optimizer)
    state = copy.deepcopy(scaler.state_dict())
    assert state["_growth_tracker"] == 2 and type(state["scale"]) is float
    fresh, used = GradScaler(), GradScaler()
    run(used, param, optimizer)
    for other in (fresh, used):
        other.load_state_dict(state)
        assert other.state_dict() == state and other.get_growth_interval() == 3
        run(other, param, optimizer)
        assert other.get_scale() == 16.0


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda s: s.clear(), "empty"),
        (lambda s: s.pop("scale"), "scale"),
        (lambda s: s.update(scale="much"), "scale"),
        (lambda s: s.update(scale=-1.0), "init_scale is -1.0"),
        (lambda s: s.update(growth_factor=1.0), "growth_factor"),
        (lambda s: s.update(_growth_tracker=-1), "_growth_tracker"),
    ],
)
def test_a_state_that_does_not_fit_changes_nothing(spoil, match):
    scaler = GradScaler(init_scale=8.0)
    before = scaler.state_dict()
    state = GradScaler().state_dict()
    spoil(state)
    with pytest.raises(StateError, match=match):
        scaler.load_state_dict(state)
    assert scaler.state_dict() == before


# Errors


def test_calls_out_of_order():
    scaler, param, optimizer = parts()
    param.grad = tb.ones(2, device="cpu")
    for call in (lambda: scaler.step(optimizer), lambda: scaler.unscale_(optimizer), scaler.update):
        with pytest.raises(OrderError, match=r"scale\(loss\)"):
            call()
    backward(scaler, param)
    with pytest.raises(OrderError, match="no step"):
        scaler.update()
    scaler.unscale_(optimizer)
    with pytest.raises(OrderError, match=r"unscale_\(\) was already called"):
        scaler.unscale_(optimizer)
    scaler.step(optimizer)
    with pytest.raises(OrderError, match=r"step\(\) was already called"):
        scaler.step(optimizer)
    with pytest.raises(OrderError, match=r"unscale_\(\) was called after step\(\)"):
        scaler.unscale_(optimizer)
    assert param.tolist() == [0.0, 2.0] and issubclass(OrderError, RuntimeError)
    scaler.update()
    param.grad = None
    with pytest.raises(OrderError, match="no gradients"):
        scaler.step(optimizer)


def test_a_loss_scaled_before_the_scale_changed_is_not_sent_back():
    scaler, param, optimizer = parts()
    late = scaler.scale(param.sum() * 1.0)
    run(scaler, param, optimizer)
    with pytest.raises(TapeError, match="written in place"):
        late.backward()


def test_arguments_that_cannot_be():
    scaler, param, optimizer = parts(dtype=np.float16)
    backward(scaler, param, slope=0.0)
    with pytest.raises(DTypeError, match="float16; wanted"):
        scaler.step(optimizer)
    with pytest.raises(DTypeError, match="float; wanted a Tensor"):
        scaler.scale(1.0)
    with pytest.raises(ArgumentError, match="closure"):
        scaler.step(optimizer, lambda: None)
    with pytest.raises(ArgumentError, match="new_scale"):
        scaler.update(-1.0)


@pytest.mark.parametrize(
    "options",
    [{"init_scale": 0.0}, {"init_scale": INF}, {"growth_factor": 1.0}, {"backoff_factor": 1.0},
     {"backoff_factor": 0.0}, {"growth_interval": 0}, {"growth_interval": 2.5},
     {"init_scale": "cuda"}],
)  # fmt: skip
def test_options_outside_their_range(options):
    with pytest.raises(ArgumentError, match=next(iter(options))):
        GradScaler(**options)


def test_a_device_type_first_as_in_pytorch():
    assert GradScaler("cuda", init_scale=4.0).get_scale() == 4.0
    with pytest.raises(ArgumentError, match="device is 'xpu'"):
        GradScaler("xpu")
