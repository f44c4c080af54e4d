"""Trainer.fit on a user's own arrays: batches of one example, and targets that are no classes."""

from __future__ import annotations

import io
import math
import sys

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, ShapeError, StatisticsError
from tinybn.testing import epsilon

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def features(n, width=4):
    x = np.random.default_rng(0).standard_normal((n, width)).astype(np.float32)
    return x, (x[:, 0] > 0).astype(np.int64)


def images(n, side=4):
    x = np.random.default_rng(0).standard_normal((n, 1, side, side)).astype(np.float32)
    return x, np.arange(n) % 2


def mlp():
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def cnn():
    """BatchNorm2d sees several values a channel of one image, and at its end just one."""
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.BatchNorm2d(3)]
    return nn.Sequential(*layers, nn.Dropout(0.5), nn.Flatten(), nn.Linear(3, 2))


def everything(model, optimizer):
    """All that a step would change, as bytes."""
    tensors = list(model.state_dict().values())
    state = [v.numpy().tobytes() for v in tensors]
    grads = [p.grad is None for p in model.parameters()]
    modes = [m.training for m in model.modules()]
    return (
        state,
        grads,
        modes,
        repr(optimizer.state_dict()),
        tb.default_generator("cpu").get_state(),
    )


def trainer_of(model, **options):
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return nn.Trainer(model, optimizer, progress=False, **options)


@DEVICES
@pytest.mark.parametrize("amp", [None, "bfloat16"])
@pytest.mark.parametrize(("make", "data"), [(mlp, features), (cnn, images)])
def test_a_last_batch_of_one_is_refused_before_anything_is_done(make, data, device, amp):
    model = make().to(device)
    model[-1].eval()  # modes stay as they are too
    loader = tb.data.DataLoader(data(33), batch_size=32, shuffle=True, device=device)
    trainer = trainer_of(model, amp=amp)
    before = everything(model, trainer.optimizer)
    changes = [vars(module).get("_changes") for module in model.modules()]
    with pytest.raises(StatisticsError, match="last batch of an epoch is one .*drop_last=True"):
        trainer.fit(loader, 1)
    assert everything(model, trainer.optimizer) == before and loader.epoch == 0
    assert all(vars(m).get("_changes") is was for m, was in zip(model.modules(), changes))
    assert all(m.track_running_stats for m in model.modules() if hasattr(m, "running_mean"))


@DEVICES
def test_drop_last_and_other_sizes_train(device):
    for n, size, drop_last, steps in ((33, 32, True, 1), (34, 32, False, 2), (64, 32, False, 2)):
        model = mlp().to(device)
        loader = tb.data.DataLoader(features(n), size, drop_last=drop_last, device=device)
        trainer_of(model).fit(loader, 1)
        assert model[1].num_batches_tracked.item() == steps


def test_every_batch_of_one_is_refused_too():
    with pytest.raises(StatisticsError, match="each batch is one .*batch_size of 2 or more"):
        trainer_of(mlp()).fit(tb.data.DataLoader(features(3), drop_last=True), 1)


def frozen():
    model = mlp()
    model[1].freeze()
    return model


def positions():
    model = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(12, 2))
    return model


@pytest.mark.parametrize(
    ("make", "data"),
    [
        (frozen, features),
        (positions, images),
        (lambda: nn.Linear(4, 2), features),
        (lambda: nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)), features),
    ],
    ids=["frozen", "positions", "none", "dropout"],
)
def test_models_that_take_one_example_train_on_it(make, data):
    """With the same bits as the plain loop: what was tried before left no trace."""
    left = []
    for fit in (True, False):
        tb.manual_seed(0)
        model = make()
        loader = tb.data.DataLoader(data(33), 32, shuffle=True)
        trainer = trainer_of(model)
        if fit:
            trainer.fit(loader, 1)
        else:
            model.train()
            for x, y in loader:
                loss = nn.functional.cross_entropy(model(x), y)
                trainer.optimizer.zero_grad()
                loss.backward()
                trainer.optimizer.step()
        left.append(everything(model, trainer.optimizer))
    assert left[0] == left[1]


def test_layers_kept_in_evaluation_and_evaluation_batches_of_one_are_fine():
    model = mlp()
    model.eval()
    model.train = lambda mode=True: model
    loader = tb.data.DataLoader(features(33), 32)
    trainer_of(model).fit(loader, 1)
    model = mlp()
    row = trainer_of(model).fit(tb.data.DataLoader(features(32), 32), 1, loader)[0]
    assert math.isfinite(row["eval_loss"])
    # Without running statistics evaluation takes the batch's, of which one example has none.
    model[1] = nn.BatchNorm1d(8, track_running_stats=False)
    with pytest.raises(StatisticsError):
        trainer_of(model).fit(loader, 1)


def test_images_of_a_dataset_are_tried_as_they_are_given():
    x = np.random.default_rng(0).integers(0, 256, (33, 3, 3), np.uint8)
    data = tb.data.Dataset(x, np.arange(33) % 2, ("a", "b"))
    model = nn.Sequential(nn.Flatten(), nn.Linear(9, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    with pytest.raises(StatisticsError, match="drop_last"):
        trainer_of(model).fit(tb.data.DataLoader(data, 32, shift=1), 1)
    scaled = tb.data.DataLoader(data, 32, transform=lambda x: x.reshape(len(x), 9))
    with pytest.raises(StatisticsError, match="drop_last"):
        trainer_of(model[1:]).fit(scaled, 1)


def test_a_loader_of_the_users_own_is_taken_as_it_comes():
    x, y = features(33)
    batches = [(tb.tensor(x[i : i + 32]), tb.tensor(y[i : i + 32])) for i in (0, 32)]
    with pytest.raises(ShapeError, match="1 value a channel"):
        trainer_of(mlp()).fit(batches, 1)

    class Mine(tb.data.DataLoader):
        def __iter__(self):
            return (pair for pair in super().__iter__() if len(pair[1]) > 1)

    assert trainer_of(mlp()).fit(Mine((x, y), 32), 1)[0]["loss"] > 0


@pytest.mark.parametrize("n", [1, 31])
def test_fewer_examples_than_a_batch_with_drop_last(n):
    with pytest.raises(ArgumentError, match=f"batch_size 32 with drop_last .* of {n} examples"):
        tb.data.DataLoader(features(n), 32, drop_last=True)
    loader = tb.data.DataLoader(features(64), 32, drop_last=True)
    loader.batch_size = 65
    assert len(loader) == 0
    model = mlp()
    trainer = trainer_of(model)
    before = everything(model, trainer.optimizer)
    with pytest.raises(ArgumentError, match="batch_size 65 with drop_last .* of 64 examples"):
        trainer.fit(loader, 1)
    assert everything(model, trainer.optimizer) == before


# Regression


@DEVICES
@pytest.mark.parametrize("loss", [nn.MSELoss, nn.BCEWithLogitsLoss])
@pytest.mark.parametrize("shape", [(1,), (3,), ()])
def test_float_targets_have_a_loss_and_no_accuracy(loss, shape, device):
    tb.manual_seed(0)
    x, _ = features(40)
    y = np.random.default_rng(1).uniform(size=(40, *shape)).astype(np.float32)
    width = shape[0] if shape else 1
    layers = [nn.Linear(4, width)] + ([] if shape else [nn.Flatten(0)])
    model = nn.Sequential(*layers).to(device)
    trainer = trainer_of(model, loss=loss())
    loader = tb.data.DataLoader((x, y), 16, device=device)
    history = trainer.fit(loader, 3, loader)
    assert list(history[0]) == [
        "epoch", "loss", "accuracy", "seconds", "samples_per_second", "eval_loss", "eval_accuracy",
    ]  # fmt: skip
    assert history[-1]["loss"] < history[0]["loss"]
    assert all(math.isnan(row["accuracy"]) and math.isnan(row["eval_accuracy"]) for row in history)
    z = x.astype(np.float64) @ model[0].weight.detach().numpy().T.astype(np.float64)
    z = (z + model[0].bias.detach().numpy()).reshape(y.shape)
    errors = (z - y) ** 2 if loss is nn.MSELoss else np.logaddexp(0, z) - y * z
    # A sum of 4 products and a bias, one of at most 48 losses, and some roundings between.
    assert history[-1]["eval_loss"] == pytest.approx(errors.mean(), rel=64 * epsilon(np.float32))


def test_a_line_of_progress_without_accuracy(capsys, monkeypatch):
    x, _ = features(40)
    model = nn.Linear(4, 4)
    trainer = nn.Trainer(model, nn.optim.SGD(model.parameters(), lr=0.1), nn.MSELoss())
    trainer.fit(tb.data.DataLoader((x, x), 16), 1)
    line = capsys.readouterr().err
    assert "loss" in line and "accuracy" not in line and "nan" not in line

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    trainer.fit(tb.data.DataLoader((x, x), 16), 1)
    assert "100 %" in terminal.getvalue() and "accuracy" not in terminal.getvalue()


def test_classes_after_a_regression_have_an_accuracy_again():
    x, y = features(40)
    model = nn.Linear(4, 2)
    trainer = trainer_of(model)
    soft = np.full((40, 2), 0.5, np.float32)  # class probabilities
    assert math.isnan(trainer.fit(tb.data.DataLoader((x, soft), 16), 1)[0]["accuracy"])
    row = trainer.fit(tb.data.DataLoader((x, y), 16), 1)[0]
    assert 0 <= row["accuracy"] <= 1


@pytest.mark.parametrize(
    "loader",
    [
        features(8),
        tb.data.Dataset(*features(8)),
        [tb.zeros(2, 4)],
        [(tb.zeros(2, 4),)],
        [(np.zeros((2, 4), np.float32), np.zeros(2, np.int64))],
    ],
    ids=["a pair of arrays", "a data set", "inputs alone", "a tuple of one", "arrays"],
)
def test_what_gives_no_batches_is_named_before_a_step(loader):
    model = mlp()
    trainer = nn.Trainer(model, nn.optim.SGD(model.parameters()), progress=False)
    before = [p.numpy().copy() for p in (t.detach() for t in model.parameters())]
    for call in (lambda: trainer.fit(loader, epochs=1), lambda: trainer.evaluate(loader)):
        with pytest.raises(
            ArgumentError, match=r"wanted \(inputs, targets\), Tensors, .*DataLoader"
        ):
            call()
    assert all(
        np.array_equal(p.detach().numpy(), old) for p, old in zip(model.parameters(), before)
    )


def test_a_loss_that_is_a_class():
    model = mlp()
    with pytest.raises(TypeError, match=r"loss is the class MSELoss; wanted MSELoss\(\)"):
        nn.Trainer(model, nn.optim.SGD(model.parameters()), loss=nn.MSELoss)


def test_the_convolutional_model_takes_images_of_several_channels():
    x = np.random.default_rng(0).standard_normal((6, 3, 8, 8)).astype(np.float32)
    model = nn.models.cnn((4, 5), 2, image=8, in_channels=3)
    trainer = nn.Trainer(model, nn.optim.SGD(model.parameters(), lr=0.1), progress=False)
    (row,) = trainer.fit(tb.data.DataLoader((x, np.arange(6) % 2), batch_size=3), epochs=1)
    assert math.isfinite(row["loss"])
