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
    batches = tb.data.DataLoader(
        train, options.batch, shuffle=True, seed=options.seed, drop_last=True,
        device=options.device, shift=options.shift,
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


if __name__ == "__main__":
    main()
