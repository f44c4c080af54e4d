"""The Trainer: it learns, reports what happened, and leaves the modes as they were."""

from __future__ import annotations

import copy
import io
import re
import sys

import numpy as np
import pytest

import tinybn as tb
from tinybn import nn
from tinybn.errors import ArgumentError, CaptureError
from tinybn.testing import epsilon

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
def test_a_separable_problem_is_learnt_without_error(device):
    tb.manual_seed(0)
    t = np.arange(64) % 2
    x = np.random.default_rng(0).standard_normal((64, 2)).astype(np.float32)
    x[:, 0] = np.where(t, 1, -1) * (1 + np.abs(x[:, 0]))  # a gap of 2 between the classes
    loader = tb.data.DataLoader((x, t), batch_size=16, device=device)
    model = nn.models.mlp(2, (8,), 2).to(device)
    trainer = nn.Trainer(model, nn.optim.SGD(model.parameters(), lr=0.2), progress=False)
    history = trainer.fit(loader, epochs=20)
    assert history[-1]["accuracy"] == 1.0 and trainer.evaluate(loader)[1] == 1.0
    for row in history:
        assert list(row) == ["epoch", "loss", "accuracy", "seconds", "samples_per_second"]
        assert [type(value) for value in row.values()] == [int, float, float, float, float]
        assert row["seconds"] > 0 and 0 <= row["accuracy"] <= 1


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


def test_the_same_seed_gives_the_same_bits():
    runs = []
    for _ in range(2):
        loader, model, optimizer = parts()
        history = nn.Trainer(model, optimizer, progress=False).fit(loader, 2, loader)
        runs.append(({k: v.numpy().tobytes() for k, v in model.state_dict().items()}, history))
    assert runs[0][0] == runs[1][0]
    for row, again in zip(runs[0][1], runs[1][1], strict=True):
        for key in ("epoch", "loss", "accuracy", "eval_loss", "eval_accuracy"):
            assert row[key] == again[key]


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
    order = np.random.default_rng((0, 0)).permutation(40)  # as the loader has it
    logits = model(tb.Tensor(x)).detach().numpy().astype(np.float64)
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    # A batch's mean sums 32 float32 losses, each of a sum of 16 products, an exp and a log:
    # fewer than 64 roundings. Means of batches, unweighted, would be off by far more.
    losses, bound = -log_p[np.arange(40), t], 64 * epsilon(np.float32)
    assert row["loss"] == pytest.approx(losses.mean(), rel=bound)
    unweighted = (losses[order[:32]].mean() + losses[order[32:]].mean()) / 2
    assert abs(unweighted / losses.mean() - 1) > 10 * bound
    assert row["accuracy"] == (logits.argmax(1) == t).mean()
    in_evaluation = nn.Trainer(model, optimizer).evaluate(loader)
    assert in_evaluation[0] == pytest.approx(losses.mean(), rel=bound)
    assert in_evaluation[1] == row["accuracy"]
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
        assert not logits.requires_grad  # no tape
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
    bar = terminal.getvalue().split("\r")[-1]  # what stands there in the end
    assert re.fullmatch(
        r"epoch 1/1 100 %\|.{20}\| 00:00, loss \d\.\d{4}, accuracy \d+\.\d\d %, [\d,]+ samples/s\n",
        bar,
    )
    nn.Trainer(model, optimizer, progress=False).fit(loader, epochs=1)
    assert terminal.getvalue().count("epoch 1/1") == terminal.getvalue().count("%|")


def test_without_progress_nothing_is_printed(capsys):
    loader, model, optimizer = parts()
    nn.Trainer(model, optimizer, progress=False).fit(loader, 1, eval_loader=loader)
    assert capsys.readouterr() == ("", "")


def test_a_loader_without_a_length_has_a_bar_too(monkeypatch):
    class Stream:
        def __iter__(self):
            return iter(loader)

    loader, model, optimizer = parts()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    nn.Trainer(model, optimizer).fit(Stream(), epochs=1)
    assert "samples/s" in terminal.getvalue()


def test_the_bar_ends_with_the_figures_of_the_whole_epoch(monkeypatch):
    loader, model, optimizer = parts()
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    row = nn.Trainer(model, optimizer).fit(loader, epochs=1)[0]
    last = terminal.getvalue().split("\r")[-1]
    assert f"loss {row['loss']:.4f}, accuracy {100 * row['accuracy']:.2f} %" in last


def test_the_bar_ends_its_line_when_training_is_interrupted(monkeypatch):
    loader, model, optimizer = parts()

    def interrupted(logits, target):
        raise KeyboardInterrupt

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    try:
        nn.Trainer(model, optimizer, loss=interrupted).fit(loader, epochs=1)
    except KeyboardInterrupt:
        written = terminal.getvalue()
    assert written.endswith("\n")


def test_bad_arguments():
    loader, model, optimizer = parts()
    trainer = nn.Trainer(model, optimizer, progress=False)
    for epochs in (0, -1):
        with pytest.raises(ArgumentError, match=f"epochs is {epochs}; wanted at least 1"):
            trainer.fit(loader, epochs=epochs)
    with pytest.raises(ArgumentError, match="no batches"):
        trainer.fit(iter(loader), epochs=2)  # used up by the first epoch
    for call in (lambda: trainer.fit([], epochs=1), lambda: trainer.evaluate([])):
        with pytest.raises(ArgumentError, match="no batches"):
            call()


def pictures(n=100):
    """Small images, brighter on top or at the bottom."""
    rng = np.random.default_rng(0)
    labels = np.arange(n) % 2
    images = rng.integers(0, 128, (n, 6, 6))
    images[labels == 0, :3] += 100
    images[labels == 1, 3:] += 100
    return tb.data.Dataset(images.astype(np.uint8), labels, ("top", "bottom"), 0.3, 0.2)


def trained(source, capture, epochs=4, amp=None):
    """Train and evaluate on the GPU; all that is left, as bits."""
    tb.manual_seed(1)
    if source == "images":
        loader = tb.data.DataLoader(pictures(), 16, True, seed=0, device="cuda", shift=1)
        test = tb.data.DataLoader(pictures(30), 16, device="cuda")
    else:
        images = pictures().images[:, None].astype(np.float32) / 128
        loader = tb.data.DataLoader((images, pictures().labels), 16, True, seed=0, device="cuda")
        test = tb.data.DataLoader((images, pictures().labels), 16, device="cuda")
    layers = [nn.Flatten(), nn.Linear(36, 20), nn.BatchNorm1d(20), nn.ReLU(), nn.Dropout(0.2)]
    model = nn.Sequential(*layers, nn.Linear(20, 2)).to("cuda")
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    plan = nn.schedule.OneCycleLR(optimizer, max_lr=0.1, total_steps=epochs * len(loader))
    trainer = nn.Trainer(model, optimizer, schedule=plan, progress=False, amp=amp, capture=capture)
    history = trainer.fit(loader, epochs, test)
    rows = [{k: v for k, v in row.items() if "sec" not in k} for row in history]
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    return trainer, loader, rows, state


@pytest.mark.gpu
@pytest.mark.parametrize("source", ["images", "pair"])
@pytest.mark.parametrize("amp", [None, tb.bfloat16])
def test_captured_steps_train_to_the_same_bits(source, amp):
    """Batches of 16 and a last one of 4, shifted images, dropout and a schedule."""
    captured, _, rows, state = trained(source, True, amp=amp)
    _, _, want_rows, want_state = trained(source, False, amp=amp)
    assert rows == want_rows
    for key, value in want_state.items():
        assert np.array_equal(state[key], value), key
    # Training and evaluation, each with full batches and a last one.
    graphs = [step.graphs for step in captured._captured.values()]
    assert sum(graphs) == 4


@pytest.mark.gpu
def test_what_is_changed_after_recording_is_used():
    trainer, loader, _, _ = trained("images", True)
    model, optimizer = trainer.model, trainer.optimizer
    trainer.schedule = None
    trainer.loss = lambda logits, target: (logits * 0).sum()
    assert trainer.fit(loader, 1)[0]["loss"] == 0
    trainer.loss = nn.CrossEntropyLoss()
    state = {key: value.numpy().copy() for key, value in model.state_dict().items()}
    left = copy.deepcopy(optimizer.state_dict())

    def one_more(capture):
        trainer.capture = capture
        model.load_state_dict(state)
        optimizer.load_state_dict(left)
        loader.set_epoch(9)
        tb.manual_seed(7)
        row = trainer.fit(loader, 1)[0]
        weights = np.concatenate([p.detach().numpy().ravel() for p in model.parameters()])
        return row["loss"], weights.tobytes()

    want = one_more(False)
    assert one_more(True) == want == one_more(True)
    for dtype in (tb.float64, tb.float32):  # other arrays, then others of the first dtype
        model.to(dtype)
        state = {key: value.numpy().copy() for key, value in model.state_dict().items()}
        trainer.fit(loader, 1)
        assert one_more(True) == one_more(False)


@pytest.mark.gpu
def test_a_model_that_cannot_be_captured_is_told_what_to_do():
    class Looks(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(36, 2)

        def forward(self, x):
            y = self.linear(x.reshape(len(x), 36))
            return y if y.sum().item() > 0 else -y

    model = Looks().to("cuda")
    loader = tb.data.DataLoader(pictures(), 16, device="cuda")
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(CaptureError, match=r"y\.sum\(\)\.item.*capture=False"):
        nn.Trainer(model, optimizer, progress=False).fit(loader, 1)
    rows = nn.Trainer(model, optimizer, progress=False, capture=False).fit(loader, 1)
    assert np.isfinite(rows[0]["loss"])


@pytest.mark.gpu
def test_the_bar_reads_without_waiting():
    import cupy

    metrics = nn.trainer.Metrics()
    logits, target = tb.eye(4, device="cuda"), tb.arange(4, device="cuda")
    metrics.add(tb.full((), 2.0, device="cuda"), logits, target)
    metrics.samples += 4
    cupy.cuda.get_current_stream().synchronize()
    spin = cupy.RawKernel(
        "extern \"C\" __global__ void spin() { long long t = clock64();"
        " while (clock64() - t < 1000000000LL); }", "spin"
    )  # fmt: skip
    spin((1,), (1,), ())  # half a second
    assert metrics.glance() is None  # it sends for the sums
    assert metrics.glance() is None  # which wait behind the kernel
    assert metrics.read() == (2.0, 1.0)
    assert metrics.glance() == (2.0, 1.0)


@pytest.mark.gpu
def test_many_loaders_keep_few_graphs():
    trainer, _, _, _ = trained("images", True, epochs=1)
    want = trainer.evaluate(tb.data.DataLoader(pictures(30), 16, device="cuda"))
    for _ in range(20):
        assert trainer.evaluate(tb.data.DataLoader(pictures(30), 16, device="cuda")) == want
    assert len(trainer._captured) == nn.trainer.MOST_STEPS


@pytest.mark.gpu
def test_a_replaced_layer_is_evaluated():
    trainer, _, _, _ = trained("images", True)
    loader = tb.data.DataLoader(pictures(), 16, device="cuda")  # the same images in each pass
    trainer.evaluate(loader)
    trainer.model[-1] = nn.Linear(20, 2).to("cuda")
    got = [trainer.evaluate(loader) for _ in range(4)]
    trainer.capture = False
    assert got == [trainer.evaluate(loader)] * 4


@pytest.mark.gpu
def test_labels_out_of_range_are_found_in_the_first_batches():
    x = np.zeros((32, 36), np.float32)
    loader = tb.data.DataLoader((x, np.full(32, 7)), 16, device="cuda")
    model = nn.Linear(36, 2).to("cuda")
    trainer = nn.Trainer(model, nn.optim.SGD(model.parameters(), lr=0.1), progress=False)
    with pytest.raises(IndexError, match="class 7"):
        trainer.fit(loader, 1)
