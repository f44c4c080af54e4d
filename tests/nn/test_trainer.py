"""The Trainer: it learns, reports what happened, and leaves the modes as they were."""

from __future__ import annotations

import io
import sys

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def rings(n=240):
    """Points and whether they are in the inner or the outer ring: not separable by a line."""
    rng = np.random.default_rng(0)
    t = np.arange(n) % 2
    angle = rng.uniform(0, 2 * np.pi, n)
    radius = 1 + 2 * t + rng.uniform(-0.5, 0.5, n)
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1).astype(np.float32), t


def parts(device="cpu", n=240):
    tb.manual_seed(0)
    x, t = rings(n)
    loader = tb.data.DataLoader((x, t), batch_size=32, shuffle=True, seed=0, device=device)
    model = nn.models.mlp(2, (16,), 2).to(device)
    return loader, model, nn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


@DEVICES
def test_it_learns(device):
    loader, model, optimizer = parts(device)
    trainer = nn.Trainer(model, optimizer, progress=False)
    history = trainer.fit(loader, epochs=8, eval_loader=loader)
    assert [row["epoch"] for row in history] == list(range(1, 9))
    assert set(history[0]) == {
        "epoch", "loss", "accuracy", "eval_loss", "eval_accuracy", "seconds", "samples_per_second",
    }  # fmt: skip
    assert history[-1]["loss"] < 0.2 * history[0]["loss"]
    assert history[-1]["eval_accuracy"] > 0.98
    # Shuffled anew, the losses are added in another order.
    loss, accuracy = trainer.evaluate(loader)
    assert loss == pytest.approx(history[-1]["eval_loss"], rel=1e-6)
    assert accuracy == history[-1]["eval_accuracy"]


def test_the_plain_loop_gives_the_same_bits():
    loader, model, optimizer = parts()
    nn.Trainer(model, optimizer, progress=False).fit(loader, epochs=2)
    trained = {key: value.numpy() for key, value in model.state_dict().items()}
    loader, model, optimizer = parts()
    for _ in range(2):
        for inputs, targets in loader:
            loss = nn.functional.cross_entropy(model(inputs), targets)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), trained[key])


def test_the_metrics_are_means_over_samples_not_batches():
    """Batches of 32 and a last one of 8, with a model that learns nothing."""
    loader, model, _ = parts(n=40)
    optimizer = nn.optim.SGD(model.parameters(), lr=0.0)
    model.eval()
    model.train = lambda mode=True: model  # evaluation mode throughout: no batch statistics
    row = nn.Trainer(model, optimizer, progress=False).fit(loader, epochs=1)[0]
    x, t = rings(40)
    logits = model(tb.Tensor(x)).detach().numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    assert row["loss"] == pytest.approx(-log_p[np.arange(40), t].mean(), rel=1e-6)
    assert row["accuracy"] == pytest.approx((logits.argmax(1) == t).mean())
    assert row["samples_per_second"] == pytest.approx(40 / row["seconds"])


def test_the_schedule_steps_each_iteration_and_the_loss_may_be_given():
    loader, model, optimizer = parts()
    schedule = nn.schedule.StepLR(optimizer, 1, gamma=0.5)
    calls = []

    def loss(logits, target):
        calls.append(target.shape)
        return nn.functional.cross_entropy(logits, target, label_smoothing=0.1)

    nn.Trainer(model, optimizer, loss=loss, schedule=schedule, progress=False).fit(loader, 1)
    assert schedule.last_epoch == len(loader) == len(calls) == 8
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.5**8)


def test_evaluation_changes_nothing():
    loader, model, optimizer = parts()
    model[2].eval()
    before = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    modes = [m.training for m in model.modules()]
    trainer = nn.Trainer(model, optimizer)
    trainer.evaluate(loader)

    def failing(logits, target):
        raise KeyboardInterrupt

    trainer.loss = failing
    with pytest.raises(KeyboardInterrupt):
        trainer.evaluate(loader)
    assert [m.training for m in model.modules()] == modes
    for key, value in model.state_dict().items():
        np.testing.assert_array_equal(value.numpy(), before[key])
    assert all(p.grad is None for p in model.parameters()) and tb.is_grad_enabled()


def test_frozen_batch_norm_stays_so():
    loader, model, optimizer = parts()
    model[2].freeze()
    nn.Trainer(model, optimizer, progress=False).fit(loader, epochs=1)
    assert model[2].running_mean.tolist() == [0] * 16
    assert model[2].num_batches_tracked.item() == 0 and model.training


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal_and_a_line_elsewhere(monkeypatch, capsys):
    loader, model, optimizer = parts()
    trainer = nn.Trainer(model, optimizer)
    trainer.fit(loader, epochs=2)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["epoch 1/2", "epoch 2/2"]
    assert all("loss" in line and "accuracy" in line and "samples/s" in line for line in lines)
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    trainer.fit(loader, epochs=1)
    assert "100 %" in terminal.getvalue() and "samples/s" in terminal.getvalue()
    nn.Trainer(model, optimizer, progress=False).fit(loader, epochs=1)
    assert terminal.getvalue().count("epoch 1/1") == terminal.getvalue().count("%|")


def test_bad_arguments():
    loader, model, optimizer = parts()
    trainer = nn.Trainer(model, optimizer, progress=False)
    with pytest.raises(ArgumentError, match="epochs is 0"):
        trainer.fit(loader, epochs=0)
    for call in (lambda: trainer.fit([], epochs=1), lambda: trainer.evaluate([])):
        with pytest.raises(ArgumentError, match="no batches"):
            call()
