"""The shortest program that takes one training step: what `training_step --device cpu` starts.

    python -m benchmarks.first_step tinybn mlp 128

It imports the framework that it is given and prints the time when the step was done.
"""

from __future__ import annotations

import sys
import time


def tinybn(model_name: str, batch: int) -> None:
    """One step of tinybn's model."""
    import tinybn as tb
    from tinybn import nn

    model = {"mlp": nn.models.mlp, "cnn": nn.models.cnn}[model_name]().to("cpu")
    optimizer = nn.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images = tb.randn(batch, 1, 28, 28, device="cpu")
    labels = tb.randint(10, size=(batch,), device="cpu")
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def torch(model_name: str, batch: int) -> None:
    """One step of the same model in PyTorch."""
    import torch
    from torch import nn

    def block(before: int, width: int) -> list[nn.Module]:
        convolution = nn.Conv2d(before, width, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]

    def hidden(before: int, size: int) -> list[nn.Module]:
        return [nn.Linear(before, size), nn.BatchNorm1d(size), nn.ReLU()]

    layers = {
        "mlp": lambda: [nn.Flatten(), *hidden(784, 512), *hidden(512, 512), nn.Linear(512, 10)],
        "cnn": lambda: [*block(1, 32), *block(32, 64), nn.Flatten(), nn.Linear(3136, 10)],
    }
    torch.set_num_threads(2)
    model = nn.Sequential(*layers[model_name]())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    images, labels = torch.randn(batch, 1, 28, 28), torch.randint(10, (batch,))
    loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


if __name__ == "__main__":
    library, model_name, batch = sys.argv[1:]
    {"tinybn": tinybn, "torch": torch}[library](model_name, int(batch))
    print(time.time())
