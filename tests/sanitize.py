"""Every kernel once, in every family of its plan, for NVIDIA's compute-sanitizer:

    compute-sanitizer --tool memcheck python -m tests.sanitize    # racecheck, initcheck

Each array has memory of its own here, without CuPy's pool, so that memcheck sees where it ends.
"""

from __future__ import annotations

import numpy as np

import tinybn as tb
from tests.kernels.test_batch_norm_passing import FAMILIES, draw
from tinybn import kernels, nn
from tinybn.kernels import gpu


def batch_norm() -> None:
    """Training and inference, forward and backward, with and without what goes with it."""
    cupy = gpu.cupy()
    for number, (shape, layout) in enumerate(FAMILIES):
        for dtype in (np.float32, np.float16, np.float64):
            host = draw(shape, dtype, layout, number)
            arrays = [cupy.asarray(a, order="K") for a in host[:3]]
            if layout == "channels_last":
                arrays = [cupy.moveaxis(cupy.ascontiguousarray(cupy.moveaxis(a, 1, -1)), -1, 1)
                          for a in arrays]  # fmt: skip
            x, dy, addend = arrays
            weight, bias = cupy.asarray(host[3]), cupy.asarray(host[4])
            mean, var, count = cupy.zeros_like(bias), cupy.ones_like(bias), cupy.zeros((), "i8")
            activation = ("relu", "silu", "gelu")[number % 3]
            for other, name in ((None, None), (addend, activation)):
                result = kernels.batch_norm_forward(
                    x, weight, bias, mean, var, num_batches_tracked=count, addend=other,
                    activation=name,
                )  # fmt: skip
                passing = kernels.Passing(bias, other, result.sign, name)
                kernels.batch_norm_gradients(dy, x, weight, result.statistics, passing, (True,) * 4)
                kernels.batch_norm_forward_inference(
                    x, weight, bias, mean, var, addend=other, activation=name
                )
                passing = kernels.Passing(bias, other, None, name)
                kernels.batch_norm_frozen_backward(
                    dy, x, weight, mean, var, passing=passing, needs=(True,) * 4
                )
            mean, rstd = kernels.batch_norm_stats_forward(x)
            kernels.batch_norm_normalize_forward(x, weight, bias, mean, rstd)
            if x.ndim == 4:
                kernels.batch_norm_2d_nchw_forward_inference(x, weight, bias, mean, var)
                kernels.batch_norm_2d_nchw_backward(dy, x, weight, mean, var)


def inference() -> None:
    """A layer's calls from the second one on, which are prepared by the first."""
    layer = nn.BatchNorm2d(5, device="cuda").eval()
    with tb.no_grad():
        for _ in range(3):
            layer(tb.randn(3, 5, 7, 7, device="cuda"))


def training() -> None:
    """Cross-entropy, dropout, random numbers and the optimisers, by a small network."""
    train, _ = tb.data.digits()
    images, labels = next(iter(tb.data.DataLoader(train, batch_size=37)))
    for make in (nn.optim.SGD, nn.optim.AdamW):
        model = nn.Sequential(nn.Flatten(), nn.Linear(784, 33), nn.BatchNorm1d(33), nn.ReLU(),
                              nn.Dropout(0.5), nn.Linear(33, 10)).to("cuda")  # fmt: skip
        optimizer = make(model.parameters(), lr=0.1)
        loss = nn.functional.cross_entropy(model(images.to("cuda")), labels.to("cuda"))
        loss.backward()
        optimizer.step()


def images() -> None:
    """Convolution and pooling, by a step of the CNN in both layouts and two sizes of channel."""
    for channels, image in (((5, 8), 13), ((16, 32), 12)):
        model = nn.models.cnn(channels, image=image).to("cuda")
        x = tb.randn(9, 1, image, image, device="cuda")
        labels = tb.zeros(9, dtype=tb.int64, device="cuda")
        nn.functional.cross_entropy(model(x), labels).backward()
        y = nn.Conv2d(4, 6, 3, groups=2, device="cuda")(tb.randn(2, 4, 9, 9, device="cuda"))
        pooled = nn.functional.avg_pool2d(y, 2).sum() + nn.functional.max_pool2d(y, 3, 2, 1).sum()
        pooled.backward()


def epochs() -> None:
    """Batches gathered, shifted and measured by the Trainer, one step at a time."""
    data = tb.data.digits()[0][:50]
    loader = tb.data.DataLoader(data, 16, True, device="cuda", shift=2)
    model = nn.models.mlp(784, (17,)).to("cuda")
    optimizer = nn.optim.SGD(model.parameters(), lr=0.1)
    nn.Trainer(model, optimizer, progress=False, capture=False).fit(loader, 1, loader)


if __name__ == "__main__":
    gpu.require().cuda.set_allocator(None)
    batch_norm()
    inference()
    training()
    images()
    epochs()
    gpu.cupy().cuda.Device().synchronize()
    print("ran")
