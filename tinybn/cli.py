"""The ``tinybn`` command: train a network, or say what this machine can run."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import sys
from collections.abc import Callable, Sequence

import numpy as np

from . import __version__, data, nn
from .errors import ArgumentError, TinyBNError
from .kernels import gpu
from .tensor import as_device, default_device, manual_seed

DATASETS = {
    "digits": lambda root: data.digits(),
    "mnist": data.mnist,
    "fashion-mnist": data.fashion_mnist,
}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "cnn": nn.models.cnn, "mlp": nn.models.mlp, "resnet8": nn.models.resnet8,
}  # fmt: skip
# Five epochs of one-cycle SGD with label smoothing: 98.3 % on MNIST with the MLP.
PEAK_LEARNING_RATE, MOMENTUM, WEIGHT_DECAY, LABEL_SMOOTHING = 0.1, 0.9, 5e-4, 0.05


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return its exit status: 0, 1 for an error, 2 for wrong usage, 130 for ^C."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
        sys.stdout.flush()
    except TinyBNError as error:
        print(f"tinybn: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # a reader such as head has gone; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        print(f"tinybn: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("tinybn: interrupted", file=sys.stderr)
        return 130
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tinybn", description="Train small networks with BatchNorm, without PyTorch."
    )
    parser.add_argument("--version", action="version", version=f"tinybn {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    train = commands.add_parser(
        "train",
        help="train a network and print its test accuracy",
        description="Train a network; the last line is its accuracy on the test set.",
        epilog="example: tinybn train --data mnist --root ~/mnist --save mlp.safetensors",
    )
    train.set_defaults(run=_train)
    train.add_argument("--data", choices=DATASETS, default="digits", help="default: digits")
    train.add_argument(
        "--root",
        metavar="DIR",
        help="folder of the IDX files, where missing ones are downloaded to; default: a cache",
    )
    train.add_argument("--model", choices=MODELS, default="mlp", help="default: mlp")
    train.add_argument("--epochs", type=_positive, default=5, metavar="N", help="default: 5")
    train.add_argument("--batch-size", type=_batch_size, default=128, metavar="N",
                       help="at least 2, default: 128")  # fmt: skip
    train.add_argument("--device", help="cpu or cuda; default: cuda where a GPU is found")
    train.add_argument("--amp", choices=("bfloat16", "float16"), help="mixed precision")
    train.add_argument("--seed", type=_natural, default=0, metavar="N", help="default: 0")
    train.add_argument("--save", metavar="FILE", help="write the parameters as safetensors")
    info = commands.add_parser(
        "info",
        help="print versions, devices and engines",
        description="Print versions, devices and which engines run here, or why one does not.",
    )
    info.set_defaults(run=_info)
    return parser


def _natural(text: str) -> int:
    value = int(text) if text.isdecimal() else -1
    if value < 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 0 up")
    return value


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 up")
    return value


def _batch_size(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 2:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a whole number from 2 up: BatchNorm has no statistics of one sample"
        )
    return value


def _train(options: argparse.Namespace) -> None:
    device = as_device(options.device)
    if options.root is not None and options.data == "digits":
        raise ArgumentError(
            "--root was given for digits, which come with tinybn; wanted --data mnist"
        )
    if options.root is not None and not os.path.isdir(options.root):
        raise ArgumentError(f"--root {options.root} is not a folder; wanted that of the IDX files")
    if options.save:
        nn.check_writable(options.save)  # before the training that it would lose
    manual_seed(options.seed)
    train, test = DATASETS[options.data](options.root)
    model = MODELS[options.model]().to(device)
    batches = data.DataLoader(
        train, options.batch_size, shuffle=True, seed=options.seed, drop_last=True, device=device
    )
    optimizer = nn.optim.SGD(
        model.parameters(), lr=PEAK_LEARNING_RATE, momentum=MOMENTUM, nesterov=True,
        weight_decay=WEIGHT_DECAY,
    )  # fmt: skip
    schedule = nn.schedule.OneCycleLR(
        optimizer, max_lr=PEAK_LEARNING_RATE, total_steps=options.epochs * len(batches)
    )
    loss = nn.CrossEntropyLoss(label_smoothing=LABEL_SMOOTHING)
    trainer = nn.Trainer(model, optimizer, loss=loss, schedule=schedule, amp=options.amp)
    trainer.fit(batches, options.epochs)
    _, accuracy = trainer.evaluate(data.DataLoader(test, 1000, device=device))
    if options.save:
        nn.save(options.save, model.state_dict())
    print(f"test accuracy {100 * accuracy:.2f} %")


def _info(options: argparse.Namespace) -> None:
    print(f"tinybn {__version__}, Python {platform.python_version()}")
    for package in ("numpy", "ml_dtypes", "triton"):
        print(f"{package} {_version(package)}")
    print(f"cupy {_cupy_version()}")
    print(f"device cpu: {platform.machine()}, {os.cpu_count()} cores")
    reason = gpu.why_unavailable()
    for i in range(gpu.device_count()):
        print(f"device cuda:{i}: {gpu.device_name(i)}")
    print(f"default device: {default_device()}")
    print("engine cpu: yes (NumPy)")
    answer = f"no: {reason}" if reason else "yes (CuPy and compiled Triton kernels)"
    print(f"engine cuda: {answer}")
    print(f"engine interpret: {_interpreter()}")


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed"


def _cupy_version() -> str:
    names = ("cupy", "cupy-cuda12x", "cupy-cuda13x")
    found = [_version(name) for name in names if _version(name) != "not installed"]
    return found[0] if found else "not installed"


def _interpreter() -> str:
    if _version("triton") == "not installed":
        return 'no: triton is not installed: pip install "tinybn[test]"'
    return f"yes (Triton kernels in Python on NumPy {np.__version__})"


if __name__ == "__main__":
    sys.exit(main())
