"""The schedules. The golden values are PyTorch 2.13's, printed to 12 digits."""

from __future__ import annotations

import copy
import json
import pickle

import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, StateError
from tinybn.nn.schedule import CosineAnnealingLR, LambdaLR, LinearWarmup, OneCycleLR, StepLR


def sgd(lr=0.4, momentum=0.9):
    return nn.optim.SGD([nn.Parameter(tb.zeros(1))], lr=lr, momentum=momentum)


def run(schedule, steps):
    """The learning rates of steps 0 to ``steps``."""
    rates = schedule.get_last_lr()
    for _ in range(steps):
        schedule.optimizer.step()
        schedule.step()
        rates += schedule.get_last_lr()
    return rates


GOLDEN = {
    "StepLR": (lambda o: StepLR(o, 2, gamma=0.5), [0.4, 0.4, 0.2, 0.2, 0.1, 0.1, 0.05]),
    "CosineAnnealingLR": (
        lambda o: CosineAnnealingLR(o, 4, eta_min=0.01),
        [0.4, 0.342885822331, 0.205, 0.0671141776686, 0.01, 0.0671141776686, 0.205],
    ),
    "LambdaLR": (
        lambda o: LambdaLR(o, lambda step: 1 / (1 + step)),
        [0.4, 0.2, 0.133333333333, 0.1, 0.08, 0.0666666666667, 0.0571428571429],
    ),
    "OneCycleLR without a rise": (
        lambda o: OneCycleLR(o, 1.0, total_steps=6, cycle_momentum=False, pct_start=0.0),
        [0.933012969841, 0.750001, 0.500002, 0.250003, 0.0669910301586, 4e-06],
    ),
    # PyTorch: SequentialLR([LinearLR(o, 0.25, total_iters=3), CosineAnnealingLR(o, 4)], [3])
    "LinearWarmup": (
        lambda o: LinearWarmup(CosineAnnealingLR(o, 4), 3, start_factor=0.25),
        [0.1, 0.2, 0.3, 0.4, 0.341421356237, 0.2, 0.0585786437627, 0.0, 0.0585786437627],
    ),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_golden_rates(name):
    make, want = GOLDEN[name]
    assert run(make(sgd()), len(want) - 1) == pytest.approx(want, rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("name", GOLDEN)
@pytest.mark.parametrize("stop", [0, 2, 4])
def test_going_on_from_a_state(name, stop):
    make, want = GOLDEN[name]
    first = make(sgd())
    run(first, stop)
    state = json.loads(json.dumps(first.state_dict()))
    second = make(sgd(lr=123.0))
    second.load_state_dict(state)
    assert run(second, len(want) - 1 - stop) == pytest.approx(want[stop:], rel=1e-9, abs=1e-12)


def pairs(schedule, option, steps):
    result = []
    for step in range(steps + 1):
        group = schedule.optimizer.param_groups[0]
        value = group[option]
        result.append((group["lr"], value[0] if option == "betas" else value))
        if step < steps:
            schedule.step()
    return result


def test_one_cycle_moves_momentum_the_other_way():
    want = [
        (0.04, 0.95), (0.994415435451, 0.850558458689), (0.81174565395, 0.868825509907),
        (0.462637102667, 0.903736504679), (0.133477530189, 0.936652593591), (4e-06, 0.95),
        (0.133477530189, 0.936652593591),
    ]  # fmt: skip
    schedule = OneCycleLR(sgd(), 1.0, total_steps=6)
    for got, expected in zip(pairs(schedule, "momentum", 6), want, strict=True):
        assert got == pytest.approx(expected, rel=1e-9)
    with pytest.raises(ArgumentError, match="it is over"):
        schedule.step()
    assert schedule.last_epoch == 6


def test_one_cycle_moves_adams_first_beta_along_lines():
    want = [
        (0.1, 0.9), (0.4, 0.866666666667), (0.7, 0.833333333333), (1.0, 0.8), (0.75025, 0.825),
        (0.5005, 0.85), (0.25075, 0.875), (0.001, 0.9),
    ]  # fmt: skip
    adam = nn.optim.Adam([nn.Parameter(tb.zeros(1))], betas=(0.5, 0.99))
    schedule = OneCycleLR(
        adam, [1.0], epochs=2, steps_per_epoch=4, pct_start=0.5, anneal_strategy="linear",
        div_factor=10, final_div_factor=100, base_momentum=0.8, max_momentum=0.9,
    )  # fmt: skip
    for got, expected in zip(pairs(schedule, "betas", 7), want, strict=True):
        assert got == pytest.approx(expected, rel=1e-9)
    assert adam.param_groups[0]["betas"][1] == 0.99


def test_warmup_to_a_constant_rate():
    schedule = LinearWarmup(sgd(), 2, start_factor=0.5)
    assert run(schedule, 4) == pytest.approx([0.2, 0.3, 0.4, 0.4, 0.4])


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
def test_copies_go_on_with_an_optimiser_of_their_own(duplicate):
    for make, want in (
        (lambda o: LinearWarmup(o, 2, start_factor=0.5), [0.2, 0.3]),
        (lambda o: StepLR(o, 1, gamma=0.5), [0.4, 0.2]),
    ):
        schedule = make(sgd())
        twin = duplicate(schedule)
        assert run(twin, 1) == pytest.approx(want) and twin.optimizer is not schedule.optimizer
        assert schedule.last_epoch == 0 and schedule.get_last_lr() == pytest.approx(want[:1])


def test_every_group_has_its_own_base():
    groups = [{"params": nn.Parameter(tb.zeros(1)), "lr": lr} for lr in (1.0, 0.1)]
    optimizer = nn.optim.SGD(groups)
    schedule = StepLR(optimizer, 1, gamma=0.5)
    schedule.step()
    assert schedule.get_last_lr() == [0.5, 0.05]
    LambdaLR(optimizer, [lambda s: 2.0, lambda s: 10.0])
    assert [g["lr"] for g in optimizer.param_groups] == [1.0, 0.5]
    schedule = OneCycleLR(optimizer, [1.0, 2.0], total_steps=4, pct_start=0.5)
    assert schedule.get_last_lr() == pytest.approx([0.04, 0.08])
    assert "last_epoch=0" in repr(schedule)


@pytest.mark.parametrize(
    "make",
    [
        lambda o: StepLR(o, 0),
        lambda o: StepLR(o, 1.5),
        lambda o: CosineAnnealingLR(o, 0),
        lambda o: LambdaLR(o, [len, len]),
        lambda o: LinearWarmup(o, 3, start_factor=0.0),
        lambda o: LinearWarmup(o, 0),
        lambda o: OneCycleLR(o, 1.0),
        lambda o: OneCycleLR(o, 1.0, epochs=3),
        lambda o: OneCycleLR(o, [1.0, 2.0], total_steps=4),
        lambda o: OneCycleLR(o, 1.0, total_steps=4, pct_start=1.5),
        lambda o: OneCycleLR(o, 1.0, total_steps=4, anneal_strategy="exp"),
        lambda o: OneCycleLR(o, 1.0, total_steps=4, three_phase=True),
    ],
)
def test_bad_arguments_leave_the_optimiser_alone(make):
    optimizer = sgd()
    with pytest.raises(ArgumentError):
        make(optimizer)
    assert optimizer.param_groups[0]["lr"] == 0.4
    assert optimizer.param_groups[0]["momentum"] == 0.9


def test_bad_types():
    with pytest.raises(TypeError, match="not Linear"):
        StepLR(nn.Linear(1, 1), 1)
    with pytest.raises(TypeError, match="wanted a Schedule or an Optimizer"):
        LinearWarmup(nn.Linear(1, 1), 1)


def test_a_state_that_does_not_fit_changes_nothing():
    for schedule in (StepLR(sgd(), 2), LinearWarmup(StepLR(sgd(), 2), 3)):
        schedule.step()
        before = schedule.get_last_lr()
        for state in ({}, {"last_epoch": 3}, {"last_epoch": 3, "base_lrs": [1.0, 2.0]}):
            with pytest.raises(StateError):
                schedule.load_state_dict(state)
        assert schedule.get_last_lr() == before and schedule.last_epoch == 1
        schedule.step()
        assert schedule.base_lrs == [0.4]
