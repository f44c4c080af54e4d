"""Train the same CNN on MNIST by the same recipe in eager PyTorch: one run, with no tinybn."""

from __future__ import annotations

import gzip
import time
from pathlib import Path
from typing import Any

from . import recipe


def main() -> None:
    """Train, and print the result in one line."""
    options = recipe.parser().parse_args()
    clock = recipe.Clock(options.start)
    import torch
    from torch import nn

    clock.end("import")
    torch.manual_seed(options.seed)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    device = options.device
    images, labels = read(torch, Path(options.root), "train")
    mean, std = images.double().div(255).mean().item(), images.double().div(255).std().item()
    images, labels = normalised(images, mean, std, device), labels.to(device)
    test_images, test_labels = read(torch, Path(options.root), "t10k")
    test_images, test_labels = normalised(test_images, mean, std, device), test_labels.to(device)
    clock.end("load data")

    def block(before: int, width: int) -> list[Any]:
        convolution = nn.Conv2d(before, width, 3, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]

    layers = [*block(1, 32), *block(32, 64), nn.Flatten(), nn.Linear(64 * 7 * 7, 10)]
    model = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.SGD(
        model.parameters(), lr=options.peak, momentum=recipe.MOMENTUM,
        nesterov=True, weight_decay=recipe.WEIGHT_DECAY,
    )  # fmt: skip
    steps = len(images) // options.batch
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=options.peak, total_steps=options.epochs * steps,
        cycle_momentum=False,
    )  # fmt: skip
    loss_of = nn.CrossEntropyLoss(label_smoothing=recipe.LABEL_SMOOTHING)
    clock.end("build")
    seconds, accuracies = [], []
    for _ in range(options.epochs):
        start = time.perf_counter()
        model.train()
        order = torch.randperm(len(images), device=device)
        for rows in order[: steps * options.batch].view(steps, options.batch):
            loss = loss_of(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        loss.item()  # waits for the device
        seconds.append(time.perf_counter() - start)
        model.eval()
        with torch.no_grad():
            right = sum(
                (model(x).argmax(1) == y).sum()
                for x, y in zip(
                    test_images.split(recipe.TEST_BATCH), test_labels.split(recipe.TEST_BATCH)
                )
            )
        accuracies.append(right.item() / len(test_labels))
        clock.evaluated()
    print(clock.result(seconds, accuracies).as_json())


def read(torch: Any, root: Path, part: str) -> tuple[Any, Any]:
    """Images uint8 [N, 1, 28, 28] and labels int64 [N] of MNIST's gzip files."""

    def content(name: str, header: int) -> Any:
        data = bytearray(gzip.decompress((root / f"{part}-{name}-ubyte.gz").read_bytes()))
        return torch.frombuffer(data, dtype=torch.uint8, offset=header)

    return content("images-idx3", 16).view(-1, 1, 28, 28), content("labels-idx1", 8).long()


def normalised(images: Any, mean: float, std: float, device: str) -> Any:
    """float32 with mean 0 and standard deviation 1, on the device."""
    return images.to(device).float().div_(255).sub_(mean).div_(std)


if __name__ == "__main__":
    main()
