"""The ``tinybn`` command, called as a process and as a function."""

from __future__ import annotations

import re
import subprocess
import sys

import numpy as np
import pytest

import tinybn as tb
from tinybn.cli import main

DEVICES = pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "tinybn.cli", *arguments], capture_output=True, text=True,
        timeout=300,
    )  # fmt: skip


def accuracy(output):
    last = output.strip().splitlines()[-1]
    return float(re.fullmatch(r"test accuracy (\d+\.\d\d) %", last)[1])


@DEVICES
def test_train_on_the_shipped_digits_reaches_94_percent(device, capsys):
    assert main(["train", "--device", device]) == 0
    assert accuracy(capsys.readouterr().out) >= 94


@DEVICES
def test_one_seed_gives_the_same_bits_and_another_does_not(device, tmp_path, capsys):
    states = []
    for seed in (1, 1, 2):
        path = tmp_path / "model.safetensors"
        arguments = ["train", "--epochs", "1", "--seed", str(seed), "--device", device]
        assert main([*arguments, "--save", str(path)]) == 0
        states.append(path.read_bytes())
    assert states[0] == states[1] != states[2]


@pytest.mark.parametrize(("model", "least"), [("cnn", 75), ("resnet8", 40)])
def test_the_convolutional_networks_train(model, least, capsys):
    """One epoch of 31 steps, in which eight layers learn little; guessing gives 10 %."""
    assert main(["train", "--model", model, "--epochs", "1", "--device", "cpu"]) == 0
    assert accuracy(capsys.readouterr().out) >= least


@pytest.mark.parametrize("amp", ["bfloat16", "float16"])
def test_mixed_precision_trains(amp, capsys):
    assert main(["train", "--amp", amp, "--epochs", "1", "--device", "cpu"]) == 0
    assert accuracy(capsys.readouterr().out) >= 85  # one epoch; float32 gives 92


def test_save_has_pytorch_s_keys_and_loads(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    assert main(["train", "--epochs", "1", "--device", "cpu", "--save", str(path)]) == 0
    state = tb.load(path)
    assert {"1.weight", "1.bias", "2.running_mean", "2.num_batches_tracked"} <= set(state)
    model = tb.nn.models.mlp()
    model.load_state_dict(state)
    model.eval()
    images, labels = next(iter(tb.data.DataLoader(tb.data.digits()[1], 1000)))
    got = (model(images).argmax(axis=1) == labels).mean().item()
    assert 100 * got == pytest.approx(accuracy(capsys.readouterr().out), abs=0.01)


def test_the_last_line_is_the_accuracy_and_progress_goes_to_stderr():
    done = command("train", "--epochs", "1", "--device", "cpu")
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 1 and accuracy(done.stdout) > 80
    assert "loss" in done.stderr and "accuracy" in done.stderr and "samples/s" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--epochs", "0"], "whole number"),
        (["train", "--batch-size", "1"], "2 up"),
        (["train", "--data", "cifar"], "invalid choice"),
        (["train", "--seed", "-1"], "-1"),
        ([], "COMMAND"),
    ],
)
def test_wrong_usage_is_status_2(arguments, words, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2 and words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--device", "tpu"], "tpu"),
        (["--save", "no/such/folder/x.safetensors"], "no/such/folder"),
        (["--batch-size", "5000"], "4000"),
        (["--root", "."], "come with tinybn"),
        (["--data", "mnist", "--root", "no/such/folder"], "not a folder"),
    ],
)
def test_an_error_is_one_line_and_status_1(arguments, words, capsys):
    assert main(["train", "--device", "cpu", *arguments]) == 1
    error = capsys.readouterr().err
    assert error.startswith("tinybn: ") and error.count("\n") == 1 and words in error


def test_a_broken_data_folder(tmp_path, capsys):
    (tmp_path / "train-images-idx3-ubyte").write_bytes(b"\0\0\x08\x03" + bytes(4))
    (tmp_path / "train-labels-idx1-ubyte").write_bytes(np.zeros(8, np.uint8).tobytes())
    (tmp_path / "t10k-images-idx3-ubyte").write_bytes(b"")
    (tmp_path / "t10k-labels-idx1-ubyte").write_bytes(b"")
    arguments = ["train", "--data", "mnist", "--root", str(tmp_path), "--device", "cpu"]
    assert main(arguments) == 1
    assert capsys.readouterr().err.count("\n") == 1


def test_a_reader_that_goes_away_is_no_traceback():
    with subprocess.Popen(
        [sys.executable, "-m", "tinybn.cli", "info"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        process.stdout.close()
        assert process.stderr.read() == "" and process.wait(60) == 1


def test_info_names_versions_devices_and_engines(capsys):
    assert main(["info"]) == 0
    text = capsys.readouterr().out
    for words in ("tinybn 0.1.0", f"numpy {np.__version__}", "device cpu", "engine cpu: yes",
                  "engine cuda: ", "engine interpret: "):  # fmt: skip
        assert words in text
    if not tb.cuda_available():
        assert re.search(r"engine cuda: no: \w+", text)
