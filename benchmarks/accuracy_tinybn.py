"""Train the CNN on MNIST with tinybn: one run of `time_to_accuracy`, a plain user's program."""

from __future__ import annotations

from typing import Any

from . import recipe


def main() -> None:
    """Train, and print the result in one line."""
    options = recipe.parser().parse_args()
    clock = recipe.Clock(options.start)
    import tinybn as tb
    from tinybn import nn

    clock.end("import")
    tb.manual_seed(options.seed)
    tb.set_float32_matmul_precision("medium")
    train, test = tb.data.mnist(options.root)
    shifts = Shifts(options.shift, -train.mean / train.std) if options.shift else None
    batches = tb.data.DataLoader(
        train, options.batch, shuffle=True, seed=options.seed, drop_last=True,
        device=options.device, transform=shifts,
    )  # fmt: skip
    test_batches = tb.data.DataLoader(test, recipe.TEST_BATCH, device=options.device)
    clock.end("load data")

    class Trainer(nn.Trainer):
        def evaluate(self, loader: Any) -> tuple[float, float]:
            result = super().evaluate(loader)
            clock.evaluated()
            return result

    model = nn.models.cnn().to(options.device)
    optimizer = nn.optim.SGD(
        model.parameters(), lr=options.peak, momentum=recipe.MOMENTUM,
        nesterov=True, weight_decay=recipe.WEIGHT_DECAY,
    )  # fmt: skip
    schedule = nn.schedule.OneCycleLR(
        optimizer, max_lr=options.peak, total_steps=options.epochs * len(batches),
        cycle_momentum=False,
    )  # fmt: skip
    loss = nn.CrossEntropyLoss(label_smoothing=recipe.LABEL_SMOOTHING)
    trainer = Trainer(model, optimizer, loss, schedule, progress=False)
    clock.end("build")
    history = trainer.fit(batches, options.epochs, test_batches)
    result = clock.result(
        [row["seconds"] for row in history], [row["eval_accuracy"] for row in history]
    )
    print(result.as_json())


class Shifts:
    """Move each image of a batch by up to so many pixels along each axis, at random.

    Args:
        pixels: the largest shift.
        background: what comes in at the edges.
    """

    def __init__(self, pixels: int, background: float) -> None:
        self._pixels, self._background = pixels, background

    def __call__(self, images: Any) -> Any:
        """Shifted images, of the same shape [N, 1, H, W]."""
        import tinybn as tb

        n, _, height, width = images.shape
        edge = (self._pixels, self._pixels)
        padded = tb.pad(images, ((0, 0), (0, 0), edge, edge), value=self._background)

        def places(size: int, shape: tuple[int, int, int]) -> Any:
            count = 2 * self._pixels + 1
            start = tb.randint(count, size=(n, 1, 1), device=images.device)
            return (start + tb.arange(size, device=images.device).reshape(*shape)).data

        number = tb.arange(n, device=images.device).reshape(n, 1, 1).data
        rows, columns = places(height, (1, height, 1)), places(width, (1, 1, width))
        # Of the arrays, whose indices nothing waits to check: these lie inside.
        return tb.as_tensor(padded.data[number, 0, rows, columns]).reshape(n, 1, height, width)


if __name__ == "__main__":
    main()
