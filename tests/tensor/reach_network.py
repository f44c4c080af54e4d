"""What the functions of networks read: windows, normalisation and losses (``reach_cases.py``)."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.tensor.reach_cases import Mask, Row, Shape, each
from tests.tensor.test_gradients import beside, dropped
from tinybn.kernels.windows import windows
from tinybn.nn import functional as F
from tinybn.tensor import Tensor
from tinybn.tensor.ops import batch_norm, matmul, pool


def products(a: Mask, b: Mask) -> Mask:
    """Of matrices."""
    return a.any(-1)[..., :, None] | b.any(-2)[..., None, :]


# Windows ------------------------------------------------------------------------------------------


def under(size: Any, output: Any, slid: Any):
    """Each window, and the elements under its taps that lie in the image."""
    for i, j in np.ndindex(*output):
        for k, tap in itertools.product(*map(range, slid.kernel)):
            row = i * slid.stride[0] + k * slid.dilation[0] - slid.before[0]
            column = j * slid.stride[1] + tap * slid.dilation[1] - slid.before[1]
            if 0 <= row < size[0] and 0 <= column < size[1]:
                yield (..., i, j), (..., row, column)


def pooled(slid: Any, output: Shape) -> Callable[[Mask], Mask]:
    def reads(x):
        y = np.zeros((*x.shape[:2], *output), bool)
        for window, element in under(x.shape[2:], output, slid):
            y[window] |= x[element]
        return y

    return reads


def winners(slid: Any) -> Callable[..., tuple[Mask]]:
    def sends(dy, x):
        best, dx = np.full(dy.shape, -np.inf), np.zeros(x.shape, bool)
        places = list(under(x.shape[2:], dy.shape[2:], slid))
        for window, element in places:
            best[window] = np.maximum(best[window], x[element])
        for window, element in places:
            dx[element] |= dy[window] & (x[element] == best[window])
        return (dx,)

    return sends


def shared_out(output: Shape) -> Callable[[Mask], Mask]:
    def reads(x):
        for axis, count in zip((2, 3), output):
            size = x.shape[axis]
            starts = [(i * size // count, -(-(i + 1) * size // count)) for i in range(count)]
            parts = [x.take(range(*ends), axis).any(axis) for ends in starts]
            x = np.stack(parts, axis)
        return x

    return reads


def convolved(output: Shape, slid: Any, groups: int) -> Callable[..., Mask]:
    def reads(x, weight, bias):
        y = np.zeros((len(x), len(weight), *output), bool)
        of_group = x.reshape(len(x), groups, -1, *x.shape[2:]).any(2)
        of_out = of_group.repeat(len(weight) // groups, axis=1)
        for window, element in under(x.shape[2:], output, slid):
            y[window] |= of_out[element]
        return y | (weight.any((1, 2, 3)) | bias)[:, None, None]

    return reads


def conv_row(name: str, x: Shape, weight: Shape, output: Shape, *options: Any) -> Row:
    stride, padding, dilation, groups = options
    slid = windows(weight[2:], stride, padding, dilation)
    return Row(
        f"conv2d {name}", lambda x, w, b: F.conv2d(x, w, b, *options), (x, weight, weight[:1]),
        convolved(output, slid, groups), kernel=True, zeros=1,
    )  # fmt: skip


# BatchNorm ----------------------------------------------------------------------------------------


def channels(m: Mask) -> Mask:
    """Which channels have one."""
    return m.any(axis=(0, *range(2, m.ndim)))


def columns(m: Mask, ndim: int) -> Mask:
    """[C] as it lies along the channels."""
    return m.reshape(-1, *(1,) * (ndim - 2))


def norm_reads(x, *rest):
    """Batch statistics: all of a channel; a residual has x's shape, columns [C]."""
    own = (m if m.ndim == x.ndim else columns(m, x.ndim) for m in rest)
    return each(columns(channels(x), x.ndim) | np.zeros_like(x), *own)


def frozen_reads(x, *rest):
    return each(x, *(m if m.ndim == x.ndim else columns(m, x.ndim) for m in rest))


def positive(x, w, b, residual):
    axes = (0, *range(2, x.ndim))
    centred = x - x.mean(axes, keepdims=True)
    x_hat = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + 1e-5)
    return x_hat * columns(w, x.ndim) + columns(b, x.ndim) + residual > 0


def norm_relu_sends(dy, *values):
    g = dy & positive(*values)
    column = channels(g)
    return columns(column, g.ndim) | np.zeros_like(g), column, column, g


def norm_row(name: str, shape: Shape) -> Row:
    return Row(
        f"batch_norm {name}", lambda x, w, b: batch_norm.batch_norm(x, None, None, w, b, True),
        (shape, shape[1:2], shape[1:2]), norm_reads, kernel=True,
    )  # fmt: skip


# Losses -------------------------------------------------------------------------------------------

CLASSES = np.array([0, 4, -100, 3, 2])
KEPT = CLASSES != -100
WEIGHT = np.array([1.0, 0.0, 0.5, 2.0, 0.25])  # 0 for the class that no target names


def entropy_reads(smooth: bool) -> Callable[[Mask, Mask], Mask]:
    def reads(z, w):
        of_weight = w.any() if smooth else w[CLASSES % 5]
        return KEPT & (z.any(1) | of_weight)

    return reads


def entropy_row(name: str, smoothing: float) -> Row:
    def fn(z, w):
        return F.cross_entropy(
            z, beside(z, CLASSES), w, reduction="none", label_smoothing=smoothing
        )

    return Row(
        f"cross_entropy {name}", fn, ((5, 5), WEIGHT), entropy_reads(smoothing > 0),
        gradients=1, kernel=True,
    )  # fmt: skip


def picked(z, w=None):
    """One element of each row that is not ignored, and its weight."""
    read = z[np.arange(5), CLASSES % 5]
    return KEPT & (read if w is None else read | w[CLASSES % 5])


def nll(z, w):
    return F.nll_loss(z, beside(z, CLASSES), w, reduction="none")


NETWORK = [
    Row("dropout", dropped, ((4, 5),),
        lambda x: x & (dropped(Tensor(np.ones((4, 5)))).numpy() != 0), kernel=True),
    # Products.
    Row("matmul", matmul.matmul, ((7, 5), (5, 3)), products, kernel=True),
    Row("matmul of a batch", matmul.matmul, ((2, 3, 4), (4, 5)), products, kernel=True),
    Row("matmul of batches", matmul.matmul, ((1, 3, 4), (2, 4, 2)), products),
    Row("matmul of vectors", matmul.matmul, ((4,), (4,)), lambda a, b: a.any() | b.any(),
        kernel=True),
    Row("linear", matmul.linear, ((7, 5), (3, 5), (3,)), lambda x, w, b: products(x, w.T) | b,
        kernel=True),
    # Windows.
    conv_row("padded", (2, 3, 4, 5), (2, 3, 3, 3), (4, 5), 1, 1, 1, 1),
    conv_row("strided", (1, 4, 7, 6), (4, 2, 3, 2), (4, 4), 2, 1, 1, 2),
    conv_row("dilated", (1, 2, 5, 6), (3, 2, 2, 3), (5, 4), 1, (1, 1), (2, 2), 1),
    conv_row("by channel", (2, 2, 3, 5), (2, 1, 1, 3), (3, 5), 1, (0, 1), 1, 2),
    Row("max_pool2d", lambda x: pool.max_pool2d(x, 3, 2, 1), ((2, 2, 6, 5),),
        pooled(windows(3, 2, 1, 1), (3, 3)), winners(windows(3, 2, 1, 1)), kernel=True),
    Row("max_pool2d apart", lambda x: pool.max_pool2d(x, 2), ((1, 2, 4, 7),),
        pooled(windows(2, 2, 0, 1), (2, 3)), winners(windows(2, 2, 0, 1)), kernel=True),
    Row("avg_pool2d", lambda x: pool.avg_pool2d(x, (2, 3), (1, 2), 1, count_include_pad=False),
        ((2, 2, 5, 6),), pooled(windows((2, 3), (1, 2), 1, 1), (6, 3)), kernel=True),
    Row("avg_pool2d apart", lambda x: pool.avg_pool2d(x, 2, divisor_override=3), ((1, 2, 5, 4),),
        pooled(windows(2, 2, 0, 1), (2, 2)), kernel=True),
    *(Row(f"adaptive_avg_pool2d {output}",
          lambda x, output=output: pool.adaptive_avg_pool2d(x, output), (size,), shared_out(output))
      for size, output in (((1, 2, 4, 4), (3, 3)), ((1, 1, 5, 3), (2, 7)), ((1, 2, 7, 4), (5, 2)))),
    Row("adaptive_avg_pool2d that divides", lambda x: pool.adaptive_avg_pool2d(x, (2, 3)),
        ((1, 2, 4, 6),), shared_out((2, 3)), kernel=True),
    # Normalisation.
    norm_row("of columns", (5, 3)), norm_row("of images", (2, 3, 2, 3)),
    Row("batch_norm with residual and relu",
        lambda x, w, b, r: batch_norm.batch_norm(x, None, None, w, b, True, residual=r,
                                                 activation="relu"),
        ((3, 2, 2, 2), np.array([1.0, -0.5]), (2,), (3, 2, 2, 2)), norm_reads, norm_relu_sends,
        kernel=True),
    *(Row(f"batch_norm frozen {name}", lambda x, w, b, m, v: batch_norm.batch_norm(x, m, v, w, b),
          (size, (3,), (3,), (3,), (3,)), frozen_reads, gradients=3, low=0.5, kernel=True)
      for name, size in (("of columns", (5, 3)), ("of images", (2, 3, 2, 2)))),
    # Losses.
    entropy_row("of classes", 0.0), entropy_row("smoothed", 0.1),
    Row("cross_entropy, mean", lambda z: F.cross_entropy(z, beside(z, CLASSES)), ((5, 5),),
        lambda z: z[KEPT].any(), kernel=True),
    Row("cross_entropy of probabilities",
        lambda z, q: F.cross_entropy(z, q, reduction="none", label_smoothing=0.0),
        ((4, 5), np.eye(5)[:4]), lambda z, q: z.any(1) | q.any(1)),
    Row("cross_entropy of probabilities, weighted",
        lambda z, q, w: F.cross_entropy(z, q, w, reduction="none", label_smoothing=0.1),
        ((4, 5), (4, 5), (5,)), lambda z, q, w: z.any(1) | q.any(1) | w.any(), gradients=1,
        low=0.2),
    Row("nll_loss", nll, ((5, 5), WEIGHT), picked, gradients=1),
    Row("nll_loss, mean", lambda z: F.nll_loss(z, beside(z, CLASSES)), ((5, 5),),
        lambda z: picked(z).any()),
    Row("mse_loss", lambda a, b: F.mse_loss(a, b, reduction="none"), ((3, 5), (3, 5)), each),
    Row("binary_cross_entropy_with_logits",
        lambda x, t, w, p: F.binary_cross_entropy_with_logits(x, t, w, reduction="none",
                                                              pos_weight=p),
        ((3, 5), np.linspace(0.1, 0.9, 15).reshape(3, 5), (5,), (3, 1)), each, gradients=1),
]  # fmt: skip
