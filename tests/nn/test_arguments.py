"""Constructors refuse what does not fit, saying what was given, before anything is made."""

from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, TinyBNError
from tinybn.tensor.random import default_generator

from ..test_arguments import shown

NAN, INF = math.nan, math.inf
NO_INTEGERS = (True, np.True_, 2.5, "3", None, [3, 4, 5])
NO_NUMBERS = (True, np.True_, "0.5", None, 1j, [0.5])
NO_SWITCHES = (2, "no", None, 0.5)
NO_TENSORS = ([1.0, 2.0], np.ones(2), "mean", 3)
IMAGES, LABELS = np.zeros((4, 3, 3), np.uint8), np.zeros(4, np.int64)
DATA = tb.data.Dataset(IMAGES, LABELS, ("a", "b"))


def parameter():
    return tb.ones(2, requires_grad=True)


def optimizer():
    return nn.optim.SGD([parameter()], lr=0.1, momentum=0.9)


def adam():
    return nn.optim.Adam([parameter()])


STEPS = dict(epochs=2, steps_per_epoch=3)

# (what makes one, of keywords; good keywords; for each name the values that it refuses)
ROWS = [
    (nn.Linear, dict(in_features=3, out_features=2), dict(
        in_features=(0, -1, *NO_INTEGERS), out_features=(0, *NO_INTEGERS), bias=NO_SWITCHES,
    )),
    (nn.ModuleList, {}, dict(modules=(3, None))),
    (nn.Flatten, {}, dict(start_dim=NO_INTEGERS, end_dim=NO_INTEGERS)),
    (nn.Conv2d, dict(in_channels=4, out_channels=2, kernel_size=3), dict(
        in_channels=(0, *NO_INTEGERS), out_channels=(0, *NO_INTEGERS),
        kernel_size=(0, *NO_INTEGERS, (3, True), (3, 0), (3,), ("3", 3), (3, 2.5)),
        stride=(0, *NO_INTEGERS), padding=(-1, *NO_INTEGERS, "full"), dilation=(0, *NO_INTEGERS),
        groups=(0, 3, *NO_INTEGERS), bias=NO_SWITCHES, padding_mode=("reflect", None, 0),
    )),
    *(
        (norm, dict(num_features=3), dict(
            num_features=(0, -2, *NO_INTEGERS), eps=(-1e-9, NAN, INF, *NO_NUMBERS),
            momentum=(-0.1, 1.1, NAN, True, "0.1"), affine=NO_SWITCHES,
            track_running_stats=NO_SWITCHES,
        ))
        for norm in (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    ),
    (nn.MaxPool2d, dict(kernel_size=2), dict(
        kernel_size=(0, *NO_INTEGERS), stride=(0, True, "2", 2.5), padding=(2, -1, *NO_INTEGERS),
        dilation=(0, *NO_INTEGERS), ceil_mode=NO_SWITCHES,
    )),
    (nn.AvgPool2d, dict(kernel_size=2), dict(
        kernel_size=(0, *NO_INTEGERS), stride=(0, True, "2", 2.5), padding=(2, -1, *NO_INTEGERS),
        ceil_mode=NO_SWITCHES, count_include_pad=NO_SWITCHES,
        divisor_override=(0, True, 2.5, "2"),
    )),
    (nn.AdaptiveAvgPool2d, dict(output_size=2), dict(
        output_size=(0, *NO_INTEGERS, (2, 0), (2, True), (None, "2"), (2,)),
    )),
    (nn.Dropout, {}, dict(p=(-0.1, 1.1, NAN, INF, *NO_NUMBERS, "a"))),
    (nn.Softmax, dict(dim=0), dict(dim=NO_INTEGERS)),
    (nn.LogSoftmax, dict(dim=0), dict(dim=NO_INTEGERS)),
    (nn.GELU, {}, dict(approximate=("erf", None, True))),
    (nn.CrossEntropyLoss, {}, dict(
        weight=(*NO_TENSORS, tb.ones((2, 2)), tb.ones(2, dtype=tb.int64)),
        ignore_index=NO_INTEGERS, reduction=("avg", None, True),
        label_smoothing=(-0.1, 1.1, NAN, *NO_NUMBERS),
    )),
    (nn.NLLLoss, {}, dict(
        weight=(*NO_TENSORS, tb.ones((2, 2)), tb.ones(2, dtype=tb.int64)),
        ignore_index=NO_INTEGERS, reduction=("avg", None, True),
    )),
    (nn.MSELoss, {}, dict(reduction=("avg", None, True))),
    (nn.BCEWithLogitsLoss, {}, dict(
        weight=(*NO_TENSORS, tb.ones(2, dtype=tb.int64)), reduction=("avg", None, True),
        pos_weight=(*NO_TENSORS, tb.ones(2, dtype=tb.int64)),
    )),
    (lambda **kw: nn.optim.SGD([parameter()], **kw), dict(momentum=0.9), dict(
        lr=(-0.1, NAN, INF, *NO_NUMBERS), momentum=(-0.1, NAN, INF, *NO_NUMBERS),
        dampening=(NAN, INF, *NO_NUMBERS), weight_decay=(-0.1, NAN, INF, *NO_NUMBERS),
        nesterov=NO_SWITCHES, maximize=NO_SWITCHES,
    )),
    *(
        (lambda make=make, **kw: make([parameter()], **kw), {}, dict(
            lr=(-0.1, NAN, INF, *NO_NUMBERS), eps=(-0.1, NAN, INF, *NO_NUMBERS),
            betas=((0.9, 1.0), (-0.1, 0.9), (0.9,), 0.9, "ab", (True, 0.9), ("0.9", 0.9), None,
                   (NAN, 0.9)),
            weight_decay=(-0.1, NAN, INF, *NO_NUMBERS), maximize=NO_SWITCHES,
        ))
        for make in (nn.optim.Adam, nn.optim.AdamW)
    ),
    (nn.optim.SGD, dict(params=[parameter()]), dict(
        params=(3, None, [3], ["a"], [], [{"params": 3}], [{"params": [parameter()], "lr": "1"}]),
    )),
    (lambda **kw: nn.schedule.LambdaLR(optimizer(), **kw), dict(lr_lambda=lambda step: 1), dict(
        lr_lambda=(3, None, "f", [3], [], *(lambda step, value=v: value for v in (
            -1, NAN, INF, *NO_NUMBERS
        ))),
    )),
    (lambda **kw: nn.schedule.StepLR(optimizer(), **kw), dict(step_size=3), dict(
        step_size=(0, *NO_INTEGERS), gamma=(-0.1, NAN, INF, *NO_NUMBERS),
    )),
    (lambda **kw: nn.schedule.CosineAnnealingLR(optimizer(), **kw), dict(T_max=3), dict(
        T_max=(0, *NO_INTEGERS), eta_min=(-0.1, NAN, INF, *NO_NUMBERS),
    )),
    (lambda **kw: nn.schedule.OneCycleLR(optimizer(), **kw), dict(max_lr=0.1, total_steps=9), dict(
        max_lr=(-0.1, NAN, INF, True, "0.1", None, [0.1, 0.2], ["0.1"]),
        total_steps=(0, True, 2.5, "3"), pct_start=(-0.1, 1.1, NAN, *NO_NUMBERS),
        anneal_strategy=("exp", None), cycle_momentum=NO_SWITCHES,
        base_momentum=(-0.1, NAN, INF, *NO_NUMBERS), max_momentum=(-0.1, NAN, INF, *NO_NUMBERS),
        div_factor=(0, -1, NAN, INF, *NO_NUMBERS),
        final_div_factor=(0, -1, NAN, INF, *NO_NUMBERS), three_phase=(True, *NO_SWITCHES),
    )),
    (lambda **kw: nn.schedule.OneCycleLR(adam(), 0.1, **kw), STEPS, dict(
        epochs=(0, *NO_INTEGERS), steps_per_epoch=(0, *NO_INTEGERS), base_momentum=(1.0,),
        max_momentum=(1.0,),
    )),
    (nn.schedule.LinearWarmup, dict(after=optimizer(), steps=3), dict(
        after=(3, None), steps=(0, *NO_INTEGERS), start_factor=(0, 1.1, NAN, *NO_NUMBERS),
    )),
    (nn.amp.GradScaler, {}, dict(
        device=("tpu", 3), init_scale=(0, -1, NAN, INF, 1e39, *NO_NUMBERS),
        growth_factor=(1, NAN, INF, *NO_NUMBERS), backoff_factor=(0, 1, NAN, *NO_NUMBERS),
        growth_interval=(0, *NO_INTEGERS), enabled=NO_SWITCHES,
    )),
    (nn.amp.autocast, {}, dict(device_type=("tpu", 3), dtype=("float32",), enabled=NO_SWITCHES)),
    (nn.Trainer, dict(model=nn.Linear(2, 2), optimizer=optimizer()), dict(
        model=(3, None, lambda x: x), optimizer=(3, None, "SGD"), loss=(3, "mean"),
        schedule=(3, "cos"), progress=NO_SWITCHES, amp=("float32", 3, True), capture=NO_SWITCHES,
    )),
    (partial(tb.data.DataLoader, device="cpu"), dict(dataset=DATA), dict(
        dataset=(3, None, [LABELS]), batch_size=(0, -1, *NO_INTEGERS), shuffle=NO_SWITCHES,
        seed=(-1, True, 2.5, "3"), drop_last=NO_SWITCHES, shift=(-1, *NO_INTEGERS),
        normalize=(None, "yes", 3, (0.1,), (0.1, 0), (NAN, 1), (0.1, INF), ("0", 1), (True, 1)),
        transform=(3, "flip"),
    )),
    (tb.data.Dataset, dict(images=IMAGES, labels=LABELS, classes=("a",)), dict(
        classes=(3, None, "a"), mean=(NAN, INF, *NO_NUMBERS),
        std=(0, -1, NAN, INF, *NO_NUMBERS),
    )),
    (nn.models.mlp, {}, dict(
        in_features=(0, *NO_INTEGERS), classes=(0, *NO_INTEGERS),
        hidden=(3, None, "34", (3, 0), (True,), (2.5,)),
    )),
    (nn.models.cnn, {}, dict(
        image=(0, 3, *NO_INTEGERS), classes=(0, *NO_INTEGERS), in_channels=(0, *NO_INTEGERS),
        channels=(3, None, "34", (3, 0), (True,), (2.5,)),
    )),
    (nn.models.resnet8, {}, dict(
        in_channels=(0, *NO_INTEGERS), classes=(0, *NO_INTEGERS),
        channels=(3, None, "34", (), (3, 0), (True,), (2.5,)),
    )),
    (nn.models.BasicBlock, dict(in_channels=2, channels=3), dict(
        in_channels=(0, *NO_INTEGERS), channels=(0, *NO_INTEGERS), stride=(0, *NO_INTEGERS),
    )),
    (tb.Generator, dict(device="cpu"), dict(seed=(-1, 2**63, *NO_INTEGERS))),
]  # fmt: skip

# Functions that write into what they are given, which stays as it was.
WRITERS = [
    (nn.init.constant_, dict(val=1), {}),
    (nn.init.uniform_, {}, dict(a=(2, NAN, -INF, *NO_NUMBERS), b=(-1, NAN, INF, *NO_NUMBERS))),
    (nn.init.normal_, {}, dict(mean=(NAN, INF, *NO_NUMBERS), std=(-1, NAN, INF, *NO_NUMBERS))),
    (nn.init.xavier_uniform_, {}, dict(gain=(-1, NAN, INF, *NO_NUMBERS))),
    (nn.init.xavier_normal_, {}, dict(gain=(-1, NAN, INF, *NO_NUMBERS))),
    *(
        (kaiming, {}, dict(
            a=(NAN, INF, True, "0.1"), mode=("fan", None), nonlinearity=("swish", None),
        ))
        for kaiming in (nn.init.kaiming_uniform_, nn.init.kaiming_normal_)
    ),
]  # fmt: skip


# Names under which messages show arguments, where these are others.
SHOWN = {
    "betas": "beta", "channels": "channels|images", "params": "param|lr", "amp": "data type|cast",
    "device_type": "device_type|data type", "dtype": "autocast to",
}  # fmt: skip


def cases(rows):
    found = []
    for make, good, bad in rows:
        name = getattr(make, "__qualname__", shown(make))
        for argument, values in bad.items():
            for value in values:
                ids = f"{name}-{argument}={shown(value)}"
                found.append(pytest.param(make, good, argument, value, id=ids))
    return found


@pytest.mark.parametrize(("make", "good", "argument", "value"), cases(ROWS))
def test_a_constructor_refuses(make, good, argument, value):
    make(**good)
    before = drawn()
    with pytest.raises(TinyBNError, match=f"({SHOWN.get(argument, argument)}).*wanted"):
        make(**{**good, argument: value})
    assert drawn() == before


def drawn():
    """How far the generator has come: nothing is drawn before the checks."""
    return default_generator("cpu").get_state()


@pytest.mark.parametrize(("write", "good", "argument", "value"), cases(WRITERS))
def test_an_initial_value_refuses(write, good, argument, value):
    tensor = tb.full((2, 3), 5.0)
    before = drawn()
    with pytest.raises(ArgumentError, match=rf"\b{argument} (is )?.*wanted"):
        write(tensor, **{**good, argument: value})
    assert (tensor == 5).all() and drawn() == before


@pytest.mark.parametrize("write", [row[0] for row in WRITERS], ids=lambda f: f.__name__)
@pytest.mark.parametrize("tensor", [np.ones((2, 3)), [[1.0]], None, 3])
def test_an_initial_value_is_for_a_tensor(write, tensor):
    with pytest.raises(TypeError, match="tensor is .*; wanted a Tensor"):
        write(tensor, **({"val": 1} if write is nn.init.constant_ else {}))


def test_a_schedule_that_is_refused_changes_no_rate():
    sgd = optimizer()
    for make in (
        lambda: nn.schedule.LinearWarmup(sgd, 0),
        lambda: nn.schedule.LinearWarmup(sgd, 3, start_factor=NAN),
        lambda: nn.schedule.OneCycleLR(sgd, 0.5, 9, div_factor="25"),
        lambda: nn.schedule.LambdaLR(sgd, lambda step: -1.0),
        lambda: nn.schedule.StepLR(sgd, 2, gamma=INF),
        lambda: nn.schedule.CosineAnnealingLR(sgd, 2, eta_min=-1),
    ):
        with pytest.raises(ArgumentError):
            make()
        assert sgd.param_groups[0]["lr"] == 0.1 and sgd.param_groups[0]["momentum"] == 0.9


@pytest.mark.parametrize(
    "options",
    [
        {"max_norm": value} for value in (-1, NAN, *NO_NUMBERS)
    ] + [{"norm_type": value} for value in (0, -1, NAN, *NO_NUMBERS)]
    + [{"error_if_nonfinite": value} for value in NO_SWITCHES]
    + [{"parameters": value} for value in (3, None, [3], [np.ones(2)])],
    ids=shown,
)  # fmt: skip
def test_clipping_a_norm_refuses(options):
    param = parameter()
    (param * 3).sum().backward()
    with pytest.raises(TinyBNError, match="wanted"):
        nn.clip_grad_norm_(**{"parameters": [param], "max_norm": 1.0, **options})
    assert param.grad.tolist() == [3, 3]


def test_clipping_values_refuses():
    param = parameter()
    (param * 3).sum().backward()
    for value in (-1, NAN, *NO_NUMBERS):
        with pytest.raises(ArgumentError, match="clip_value is .*; wanted"):
            nn.clip_grad_value_([param], value)
    for parameters in (3, None, [3]):
        with pytest.raises(TypeError, match="wanted a Tensor"):
            nn.clip_grad_value_(parameters, 1)
    assert param.grad.tolist() == [3, 3]
    nn.clip_grad_norm_([param], INF)
    nn.clip_grad_value_([param], np.float32(2))
    assert param.grad.tolist() == [2, 2]


@pytest.mark.parametrize("index", [True, 1.0, "0", None])
def test_an_index_into_modules_is_an_integer(index):
    for modules in (nn.Sequential(nn.ReLU(), nn.Tanh()), nn.ModuleList([nn.ReLU(), nn.Tanh()])):
        assert type(modules[np.int64(1)]) is nn.Tanh
        with pytest.raises(ArgumentError, match="index is .*; wanted an integer"):
            modules[index]
        with pytest.raises(ArgumentError, match="index is .*; wanted an integer"):
            modules[index] = nn.ReLU()
    with pytest.raises(TinyBNError, match="wanted"):
        DATA[index]


@pytest.mark.parametrize("epochs", [0, -1, *NO_INTEGERS])
def test_a_trainer_refuses_epochs(epochs):
    model = nn.Linear(2, 2)
    trainer = nn.Trainer(model, nn.optim.SGD(model.parameters()), progress=False)
    with pytest.raises(ArgumentError, match="epochs is .*; wanted"):
        trainer.fit([], epochs)


N, J, G = np.int64, np.array, np.float32
X = tb.ones((2, 4, 6, 6))


@pytest.mark.parametrize(
    ("numpys", "python"),
    [
        (lambda: nn.Linear(N(6), J(2))(X), lambda: nn.Linear(6, 2)(X)),
        (
            lambda: nn.Conv2d(N(4), np.uint8(2), (N(3), 3), N(2), (J(1), N(1)), N(1), N(2))(X),
            lambda: nn.Conv2d(4, 2, 3, 2, 1, 1, 2)(X),
        ),
        (lambda: nn.BatchNorm2d(N(4), G(1e-5), G(0.5))(X), lambda: nn.BatchNorm2d(4)(X)),
        (lambda: nn.BatchNorm2d(4, J(1e-5), J(0.5))(X), lambda: nn.BatchNorm2d(4)(X)),
        (lambda: nn.MaxPool2d(N(2), J(2), N(1), N(1))(X), lambda: nn.MaxPool2d(2, 2, 1)(X)),
        (lambda: nn.AvgPool2d((N(2), 2), N(1), N(0))(X), lambda: nn.AvgPool2d(2, 1)(X)),
        (
            lambda: nn.AvgPool2d(2, divisor_override=N(3))(X),
            lambda: nn.AvgPool2d(2, divisor_override=3)(X),
        ),
        (lambda: nn.AdaptiveAvgPool2d((N(2), None))(X), lambda: nn.AdaptiveAvgPool2d((2, None))(X)),
        (lambda: nn.Softmax(N(1))(X), lambda: nn.Softmax(1)(X)),
        (lambda: nn.LogSoftmax(J(1))(X), lambda: nn.LogSoftmax(1)(X)),
        (lambda: nn.Flatten(N(2), J(3))(X), lambda: nn.Flatten(2, 3)(X)),
        (lambda: nn.Dropout(G(0.0))(X), lambda: nn.Dropout(0.0)(X)),
        (
            lambda: nn.models.mlp(N(144), [N(3), np.uint8(2)], J(4)).eval()(X),
            lambda: nn.models.mlp(144, (3, 2), 4).eval()(X),
        ),
        (
            lambda: nn.models.mlp(144, np.array([3, 2]), 4).eval()(X),
            lambda: nn.models.mlp(144, (3, 2), 4).eval()(X),
        ),
        (
            lambda: nn.models.cnn((N(3),), N(4), N(6)).eval()(X[:, :1]),
            lambda: nn.models.cnn((3,), 4, 6).eval()(X[:, :1]),
        ),
        (
            lambda: nn.models.resnet8(np.array([2, 3]), N(4), N(4)).eval()(X),
            lambda: nn.models.resnet8((2, 3), 4, 4).eval()(X),
        ),
        (
            lambda: nn.CrossEntropyLoss(ignore_index=N(-1), label_smoothing=G(0.5))(
                X, tb.zeros((2, 6, 6), dtype=tb.int64)
            ),
            lambda: nn.CrossEntropyLoss(ignore_index=-1, label_smoothing=0.5)(
                X, tb.zeros((2, 6, 6), dtype=tb.int64)
            ),
        ),
        (
            lambda: nn.functional.conv2d(X, X[:1], stride=N(1), groups=N(1)),
            lambda: nn.functional.conv2d(X, X[:1]),
        ),
        (
            lambda: nn.functional.max_pool2d(X, (N(2), N(3)), J(1)),
            lambda: nn.functional.max_pool2d(X, (2, 3), 1),
        ),
        (
            lambda: nn.init.uniform_(tb.zeros(5), G(-1), J(2)),
            lambda: nn.init.uniform_(tb.zeros(5), -1, 2),
        ),
        (
            lambda: nn.init.normal_(tb.zeros(5), N(1), G(2)),
            lambda: nn.init.normal_(tb.zeros(5), 1, 2),
        ),
    ],
)  # fmt: skip
def test_numpys_numbers_are_numbers(numpys, python):
    results = []
    for make in (numpys, python):
        tb.manual_seed(0)
        results.append(make().detach().numpy())
    np.testing.assert_array_equal(*results)


def test_numpys_numbers_in_optimisers_and_schedules():
    sgd = nn.optim.SGD([parameter()], lr=G(0.5), momentum=J(0.25), weight_decay=N(0))
    assert sgd.param_groups[0]["lr"] == 0.5 and type(sgd.param_groups[0]["momentum"]) is float
    nn.optim.AdamW([parameter()], lr=J(0.5), betas=(G(0.5), np.float64(0.25)), eps=np.float16(1))
    nn.schedule.StepLR(optimizer(), N(2), G(0.5))
    nn.schedule.CosineAnnealingLR(optimizer(), J(2), G(0))
    nn.schedule.OneCycleLR(optimizer(), [G(0.5)], N(4), pct_start=G(0.25))
    nn.schedule.LinearWarmup(nn.schedule.LambdaLR(optimizer(), G), N(2), G(0.5))
    nn.amp.GradScaler(init_scale=G(4), growth_interval=N(3))
    loader = tb.data.DataLoader(DATA, N(2), np.True_, seed=N(1), shift=N(1), normalize=(G(0), 1))
    assert len(loader) == 2 and type(loader.batch_size) is int
    assert tb.Generator("cpu", N(3)).seed == 3
    model = nn.Linear(9, 2)
    trainer = nn.Trainer(
        nn.Sequential(nn.Flatten(), model), nn.optim.SGD(model.parameters()), progress=False
    )
    assert len(trainer.fit(loader, N(1))) == 1
