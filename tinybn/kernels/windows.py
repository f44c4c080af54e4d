"""The windows that convolution and pooling slide over an image."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..arguments import integer
from ..errors import ArgumentError, ShapeError

Pair = tuple[int, int]


@dataclass(frozen=True)
class Windows:
    """Where windows lie on [H, W]: tap k of window o is at o·stride − before + k·dilation.

    Attributes:
        kernel: the taps down and across.
        stride: from one window to the next.
        before, after: the padding above and left, and below and right.
        dilation: from one tap to the next.
    """

    kernel: Pair
    stride: Pair
    before: Pair
    after: Pair
    dilation: Pair

    @property
    def taps(self) -> int:
        """How many elements a window has."""
        return self.kernel[0] * self.kernel[1]

    def span(self, axis: int) -> int:
        """From the first element under a window to the last, both counted."""
        return self.dilation[axis] * (self.kernel[axis] - 1) + 1

    def count(self, axis: int, size: int, ceil_mode: bool = False) -> int:
        """How many windows lie along ``size`` elements.

        With ``ceil_mode`` a last one may hang over the end, if it begins before the padding there.
        """
        room = size + self.before[axis] + self.after[axis] - self.span(axis)
        stride = self.stride[axis]
        if not ceil_mode:
            return room // stride + 1
        count = -(-room // stride) + 1
        return count - ((count - 1) * stride >= size + self.before[axis])

    def output(self, size: Pair, ceil_mode: bool = False) -> Pair:
        """The shape of the result for an image of ``size``.

        Raises:
            ShapeError: if no window fits.
        """
        height, width = (self.count(axis, size[axis], ceil_mode) for axis in (0, 1))
        if height < 1 or width < 1:
            spans = (self.span(0), self.span(1))
            raise ShapeError(
                f"windows spanning {spans} slide over {size} with padding {self.before} before "
                f"and {self.after} after; wanted an image, padded, of at least {spans}"
            )
        return height, width


def by_axis(**pairs: Pair) -> dict[str, int]:
    """A kernel's constants ``NAME_H`` and ``NAME_W`` from pairs by name."""
    return {f"{name}_{axis}": v for name, both in pairs.items() for axis, v in zip("HW", both)}


def pair(value: Any, name: str, least: int) -> Pair:
    """``value`` for both axes, or one for each.

    Raises:
        ArgumentError: unless these are integers, or one, of at least ``least``.
    """
    both = value if isinstance(value, (tuple, list)) else (value, value)
    if type(both) is tuple and tuple(map(type, both)) == (int, int) and min(both) >= least:
        return both
    try:
        down, across = (integer(name, n, least) for n in both)
    except ValueError as error:
        kind = type(error) if isinstance(error, ArgumentError) else ArgumentError
        raise kind(
            f"{name} is {value!r}; wanted an integer of at least {least}, or a pair of them"
        ) from None
    return down, across


def pooling(kernel: Any, stride: Any, padding: Any, dilation: Any = 1) -> Windows:
    """:func:`windows` of a pooling: ``stride`` None is ``kernel``; half a window of padding.

    Raises:
        ArgumentError: as :func:`windows`, and for more padding, where a window may hold nothing.
    """
    slid = windows(kernel, kernel if stride is None else stride, padding, dilation)
    check_padding(slid)
    return slid


def check_padding(slid: Windows) -> None:
    """Raise ArgumentError unless the padding is at most half a window."""
    if any(2 * before > taps for before, taps in zip(slid.before, slid.kernel)):
        raise ArgumentError(
            f"padding is {slid.before} and kernel_size {slid.kernel}; wanted at most half"
        )


def adaptive_output(output_size: Any, size: tuple[int, ...]) -> Pair:
    """``output_size`` of an adaptive pooling for images of ``size``.

    Raises:
        ArgumentError: unless it is an integer of at least 1, or a pair of them or None.
    """
    if isinstance(output_size, (tuple, list)) and len(output_size) == 2:
        down, across = (s if o is None else o for o, s in zip(output_size, size))
        return pair((down, across), "output_size", min(1, *size))
    return pair(output_size, "output_size", 1)


def windows(
    kernel: Any, stride: Any, padding: Any, dilation: Any, names: str = "kernel_size"
) -> Windows:
    """Windows from PyTorch's arguments: integers or pairs, padding also ``"same"`` or ``"valid"``.

    Raises:
        ArgumentError: for others, and for ``"same"`` with a stride that is not 1.
    """
    kernel = pair(kernel, names, 1)
    stride, dilation = pair(stride, "stride", 1), pair(dilation, "dilation", 1)
    if padding == "same":
        if stride != (1, 1):
            raise ArgumentError(f"padding is 'same' and stride {stride}; wanted stride 1 with it")
        total = [d * (k - 1) for k, d in zip(kernel, dilation)]
        before = total[0] // 2, total[1] // 2
        return Windows(
            kernel, stride, before, (total[0] - before[0], total[1] - before[1]), dilation
        )
    if isinstance(padding, str) and padding != "valid":
        raise ArgumentError(f"padding is {padding!r}; wanted 'same', 'valid' or integers")
    before = (0, 0) if padding == "valid" else pair(padding, "padding", 0)
    return Windows(kernel, stride, before, before, dilation)
