"""The schedules at their edges: resuming, short cycles, states that do not fit."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, StateError
from tinybn.nn import optim
from tinybn.nn.schedule import (
    CosineAnnealingLR,
    LambdaLR,
    LinearWarmup,
    OneCycleLR,
    Schedule,
    StepLR,
)


def optimizer(cls=optim.SGD, lrs=(0.1,), **options):
    groups = [{"params": [nn.Parameter(np.zeros(1, np.float32))], "lr": lr} for lr in lrs]
    return cls(groups, **options)


def run(schedule, steps, key="lr", group=0):
    """The option at step 0, 1, …, steps."""
    values = [schedule.optimizer.param_groups[group][key]]
    for _ in range(steps):
        schedule.optimizer.step()
        schedule.step()
        values.append(schedule.optimizer.param_groups[group][key])
    return np.array(values)


def assert_same(got, want):
    # PyTorch multiplies step by step where ours is a closed form: at most some ten roundings of
    # values of the largest one's size.
    np.testing.assert_allclose(got, want, rtol=0, atol=16 * 2.0**-53 * np.max(np.abs(want)))


def test_formulas():
    t = np.arange(21)
    assert_same(run(StepLR(optimizer(lrs=[3.0]), 7), 20), 3 * 0.1 ** (t // 7))
    got = run(CosineAnnealingLR(optimizer(lrs=[2.0]), 20), 20)
    assert_same(got, 1 + np.cos(np.pi * t / 20))
    assert got[-1] == 0.0 and (np.diff(got) < 0).all()
    want = 0.1 * np.minimum(1 / 3 + 2 / 3 * t / 5, 1)
    assert_same(run(LinearWarmup(optimizer(), 5), 20), want)


def test_one_cycle_with_a_rise():
    # OneCycleLR(SGD(lr=0.1, momentum=0.9), 1.0, 10) of PyTorch 2.13: param_groups[0] after making
    # it and after each optimizer.step(); scheduler.step().
    golden = [0.040000000000000036, 0.52, 1.0, 0.9504846320134737, 0.8117456539497631,
              0.6112620219362893, 0.38874197806371075, 0.18825834605023697, 0.049519367986526286,
              4e-06]  # fmt: skip
    golden_momentum = [0.95, 0.8999999999999999, 0.85, 0.854951556604879, 0.8688255099070633,
                       0.8888739533021842, 0.9111260466978157, 0.9311744900929366,
                       0.945048443395121, 0.95]  # fmt: skip
    assert_same(run(OneCycleLR(optimizer(momentum=0.9), 1.0, 10), 9), golden)
    got = run(OneCycleLR(optimizer(momentum=0.9), 1.0, 10), 9, "momentum")
    assert_same(got, golden_momentum)


# OneCycleLR(optimizer, 1.0, N, pct_start=p) of PyTorch 2.13, where it divides by no zero.
@pytest.mark.parametrize(
    ("total", "share", "golden"),
    [
        (1, 0.3, [4e-06]),
        (2, 0.3, [0.811745653949763, 4e-06]),
        (2, 1.0, [0.040000000000000036, 1.0]),
        (3, 0.0, [0.750001, 0.2500030000000001, 4e-06]),
        (3, 0.5, [0.040000000000000036, 0.750001, 4e-06]),
    ],
)
def test_short_cycles(total, share, golden):
    schedule = OneCycleLR(optimizer(momentum=0.9), 1.0, total, pct_start=share)
    assert_same(run(schedule, total - 1), golden)


@pytest.mark.parametrize(("total", "share"), [(1, 1.0), (2, 0.5), (10, 0.1)])
def test_cycles_whose_rise_is_no_step_start_at_the_top(total, share):
    got = run(OneCycleLR(optimizer(momentum=0.9), 1.0, total, pct_start=share), total - 1)
    assert np.isfinite(got).all() and got[0] == 1.0


@pytest.mark.parametrize(
    ("cls", "key", "value"), [(optim.Adam, "betas", (0.9, 0.999)), (optim.SGD, "momentum", 0.0)]
)
def test_momentum_that_does_not_cycle(cls, key, value):
    schedule = OneCycleLR(optimizer(cls), 1.0, 5, cycle_momentum=False)
    schedule.step()
    assert schedule.optimizer.param_groups[0][key] == value


def test_warmup_before_one_cycle():
    def cycle():
        return OneCycleLR(optimizer(momentum=0.9), 1.0, 4, pct_start=0.5)

    rates = run(cycle(), 2)
    got = run(LinearWarmup(cycle(), 2, 0.5), 4)
    assert_same(got, [0.5 * rates[0], 0.75 * rates[0], *rates])
    got = run(LinearWarmup(cycle(), 2, 0.5), 4, "momentum")
    assert_same(got, [0.95, 0.95, *run(cycle(), 2, "momentum")])


KINDS = {
    "step": lambda o: StepLR(o, 2, 0.5),
    "cosine": lambda o: CosineAnnealingLR(o, 5),
    "one_cycle": lambda o: OneCycleLR(o, [1.0, 2.0], 12),
    "lambda": lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
    "warmup": lambda o: LinearWarmup(StepLR(o, 2), 4),
    "warmup_alone": lambda o: LinearWarmup(o, 4),
}
ALL = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@ALL
def test_groups_keep_their_ratio(make):
    schedule = make(optimizer(lrs=(0.1, 0.2), momentum=0.9))
    for _ in range(9):
        one, two = (group["lr"] for group in schedule.optimizer.param_groups)
        assert two == pytest.approx(2 * one, rel=1e-15)
        assert schedule.get_last_lr() == [one, two] and type(one) is float
        schedule.step()


@ALL
@pytest.mark.parametrize("group", [0, 1])
@pytest.mark.parametrize("key", ["lr", "momentum"])
def test_a_state_goes_on_bit_for_bit(make, group, key):
    whole = make(optimizer(lrs=(0.1, 0.3), momentum=0.9))
    run(whole, 3)
    # Another base rate, as where the optimiser is made anew with lr already changed.
    other = make(optimizer(lrs=(7.0, 8.0), momentum=0.9))
    other.load_state_dict(copy.deepcopy(whole.state_dict()))
    assert other.last_epoch == 3 and other.state_dict() == whole.state_dict()
    np.testing.assert_array_equal(run(other, 6, key, group), run(whole, 6, key, group))


@ALL
@pytest.mark.parametrize(
    "spoil",
    [
        lambda s: {},
        lambda s: {**s, "gamma": 1},
        lambda s: {"base_lrs": s["base_lrs"]},
        lambda s: {"last_epoch": 1},
        lambda s: {**s, "base_lrs": [0.5]},
    ],
)
def test_a_wrong_state_changes_nothing(make, spoil):
    schedule, reference = (make(optimizer(lrs=(0.1, 0.3), momentum=0.9)) for _ in range(2))
    schedule.step()
    before = copy.deepcopy(schedule.state_dict())
    with pytest.raises(StateError, match="base_lrs"):
        schedule.load_state_dict(spoil(before))
    assert schedule.state_dict() == before
    schedule.step()
    run(reference, 2)
    assert schedule.get_last_lr() == reference.get_last_lr()


def test_a_state_beyond_the_cycle_changes_nothing():
    schedule = OneCycleLR(optimizer(momentum=0.9), 1.0, 5)
    before = schedule.get_last_lr()
    with pytest.raises(ArgumentError, match="cycle of 5"):
        schedule.load_state_dict({"last_epoch": 9, "base_lrs": [3.0]})
    assert schedule.state_dict() == {"last_epoch": 0, "base_lrs": [0.1]}
    assert schedule.get_last_lr() == before


def test_the_rate_is_what_the_optimiser_uses():
    param = nn.Parameter(np.zeros(1, np.float32))
    opt = optim.SGD([param], lr=1.0)
    schedule = StepLR(opt, 1, 0.5)
    for want in (-1.0, -1.5, -1.75):
        param.grad = tb.ones(1)
        opt.step()
        schedule.step()
        assert param.item() == want


def test_a_schedule_of_ones_own():
    class Saw(Schedule):
        def __init__(self, opt):
            super().__init__(opt)
            self._set(0)

        def options_at(self, step):
            return [{"lr": base * (1 + step % 2)} for base in self.base_lrs]

    assert_same(run(Saw(optimizer()), 3), [0.1, 0.2, 0.1, 0.2])
    assert_same(run(LinearWarmup(Saw(optimizer()), 2, 0.5), 3), [0.05, 0.075, 0.1, 0.2])
    with pytest.raises(NotImplementedError, match="options_at"):
        Schedule(optimizer()).step()


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda o: StepLR(o, True), "step_size is True"),
        (lambda o: OneCycleLR(o, 1.0, epochs=3, steps_per_epoch=0), "steps_per_epoch is 0"),
        (lambda o: OneCycleLR(o, 1.0, 0), "total_steps is 0"),
        (lambda o: OneCycleLR(o, 1.0, 5, pct_start=math.nan), "pct_start is nan"),
        (lambda o: LinearWarmup(o, 3, 1.1), "start_factor is 1.1"),
    ],
)
def test_bad_arguments_leave_the_optimiser(make, match):
    opt = optimizer(momentum=0.9)
    with pytest.raises(ArgumentError, match=match):
        make(opt)
    assert (opt.param_groups[0]["lr"], opt.param_groups[0]["momentum"]) == (0.1, 0.9)


def test_one_cycle_needs_momentum_to_cycle():
    class Plain(optim.SGD):
        def _checked(self, options):
            return {key: value for key, value in options.items() if key != "momentum"}

    opt = Plain([nn.Parameter(np.zeros(1))])
    with pytest.raises(ArgumentError, match="Plain has no momentum to cycle"):
        OneCycleLR(opt, 1.0, 5)
    assert OneCycleLR(opt, 1.0, 5, cycle_momentum=False).last_epoch == 0
