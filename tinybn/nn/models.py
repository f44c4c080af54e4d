"""Models, ready to train."""

from __future__ import annotations

from collections.abc import Sequence

from ..arguments import integer, integers
from ..errors import ArgumentError
from ..tensor import Tensor
from .activation import ReLU
from .batchnorm import BatchNorm1d, BatchNorm2d
from .container import Sequential
from .conv import Conv2d
from .linear import Flatten, Linear
from .module import Module
from .pooling import GlobalAvgPool, MaxPool2d


def mlp(in_features: int = 784, hidden: Sequence[int] = (512, 512), classes: int = 10) -> Module:
    """Flatten, then Linear, BatchNorm and ReLU for each hidden size, then Linear.

    Args:
        in_features: the elements of one input; 784 for MNIST's 28×28.
        hidden: the sizes of the hidden layers.
        classes: the number of logits.

    Returns:
        A Sequential that takes [N, …] to logits [N, classes].

    Raises:
        ArgumentError: for a size that is no integer of at least 1.
    """
    in_features, classes = integer("in_features", in_features, 1), integer("classes", classes, 1)
    hidden = integers("hidden", hidden, 1)
    layers: list[Module] = [Flatten()]
    for size in hidden:
        layers += [Linear(in_features, size), BatchNorm1d(size), ReLU()]
        in_features = size
    return Sequential(*layers, Linear(in_features, classes))


def cnn(
    channels: Sequence[int] = (32, 64), classes: int = 10, image: int = 28, in_channels: int = 1
) -> Module:
    """3×3 Conv2d, BatchNorm, ReLU and a 2×2 MaxPool2d for each width, then Linear.

    Args:
        channels: of the convolutions' results.
        classes: the number of logits.
        image: height and width of the images; 28 for MNIST.
        in_channels: of the images; 1 for MNIST, 3 for colours.

    Returns:
        A Sequential that takes [N, in_channels, image, image] to logits [N, classes].

    Raises:
        ArgumentError: for a size that is no integer of at least 1, or images too small
            to be halved so often.
    """
    channels = integers("channels", channels, 1)
    classes, image = integer("classes", classes, 1), integer("image", image, 1)
    size = image >> len(channels)
    if size < 1:
        raise ArgumentError(
            f"images of {image}×{image} are halved {len(channels)} times; wanted larger ones"
        )
    layers: list[Module] = []
    before = integer("in_channels", in_channels, 1)
    for width in channels:
        # BatchNorm subtracts the mean, and with it any bias.
        convolution = Conv2d(before, width, 3, padding=1, bias=False)
        layers += [convolution, BatchNorm2d(width), ReLU(), MaxPool2d(2)]
        before = width
    return Sequential(*layers, Flatten(), Linear(before * size * size, classes))


class BasicBlock(Module):
    """Two 3×3 convolutions with BatchNorm, and the input added before the last ReLU.

    relu(bn2(conv2(relu(bn1(conv1(x))))) + shortcut(x)); the shortcut is x itself, or a 1×1
    convolution and BatchNorm where the channels or the stride differ. He et al. 2015, Deep
    Residual Learning for Image Recognition, https://arxiv.org/abs/1512.03385, figure 2 and
    section 3.3, option B. The names are torchvision's.

    It takes [N, in_channels, H, W] to [N, channels, ⌈H/stride⌉, ⌈W/stride⌉].

    Args:
        in_channels, channels: of the input and of the result.
        stride: of the first convolution and of the shortcut.

    Raises:
        ArgumentError: for sizes that are no integers of at least 1.
    """

    def __init__(self, in_channels: int, channels: int, stride: int = 1) -> None:
        super().__init__()
        in_channels = integer("in_channels", in_channels, 1)
        channels = integer("channels", channels, 1)
        stride = integer("stride", stride, 1)
        self.conv1 = Conv2d(in_channels, channels, 3, stride, padding=1, bias=False)
        self.bn1 = BatchNorm2d(channels)
        self.conv2 = Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = BatchNorm2d(channels)
        self.downsample: Module | None = None
        if stride != 1 or in_channels != channels:
            shortcut = Conv2d(in_channels, channels, 1, stride, bias=False)
            self.downsample = Sequential(shortcut, BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn1(self.conv1(x), activation="relu")
        return self.bn2(self.conv2(x), residual=shortcut, activation="relu")


class ResNet(Module):
    """A small residual network; see :func:`resnet8`, which gives its arguments and errors."""

    def __init__(self, channels: Sequence[int], classes: int, in_channels: int) -> None:
        super().__init__()
        channels = integers("channels", channels, 1)
        classes = integer("classes", classes, 1)
        in_channels = integer("in_channels", in_channels, 1)
        if not channels:
            raise ArgumentError("channels is (); wanted at least one")
        self.conv1 = Conv2d(in_channels, channels[0], 3, padding=1, bias=False)
        self.bn1 = BatchNorm2d(channels[0])
        before = channels[0]
        blocks = []
        for i, width in enumerate(channels):
            blocks.append(BasicBlock(before, width, stride=1 if i == 0 else 2))
            before = width
        self.layers = Sequential(*blocks)
        self.pool = GlobalAvgPool()
        self.fc = Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layers(self.bn1(self.conv1(x), activation="relu"))
        return self.fc(self.pool(x).flatten(1))


def resnet8(
    channels: Sequence[int] = (16, 32, 64), classes: int = 10, in_channels: int = 1
) -> Module:
    """A 3×3 Conv2d, BatchNorm and ReLU, a BasicBlock for each width, the mean, then Linear.

    With three widths it has eight layers with weights: the network of He et al. 2015,
    https://arxiv.org/abs/1512.03385, section 4.2, for n = 1. Each block after the first halves
    height and width.

    Args:
        channels: of the blocks; the first is also that of the first convolution.
        classes: the number of logits.
        in_channels: of the images; 1 for MNIST.

    Returns:
        A module that takes [N, in_channels, H, W] of any size to logits [N, classes].

    Raises:
        ArgumentError: for sizes that are no integers of at least 1, or no channels.
    """
    return ResNet(channels, classes, in_channels)
