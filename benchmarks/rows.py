"""What is measured: shapes, dtypes and layouts, and the figures of each."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

ITEMSIZE = {"float32": 4, "bfloat16": 2}  # bytes
NCHW, CHANNELS_LAST, MATRIX = "NCHW", "channels-last", "NC"

DESIGN = """
    128x256 4096x512 8192x4096 65536x256 1048576x64 128x16x28x28 64x64x112x112 64x256x56x56
    64x2048x7x7 512x64x32x32
"""
RESNET50 = """
    64x64x56x56 64x128x28x28 64x512x28x28 64x256x14x14 64x1024x14x14 64x512x7x7
    256x64x56x56 256x1024x14x14 256x2048x7x7
"""
MNIST = "128x32x28x28 128x64x14x14 128x512"
# n = 2; C = 1 twice; C = 65,536; one position; batch 1; odd sizes; C not a multiple of 8.
EDGES = """
    2x4096 65536x1 64x1x224x224 32x65536 256x512x1x1 1x64x56x56 64x96x13x13 100x30x9x9
"""
HARD = "65536x256 64x256x14x14"
QUICK = frozenset("128x256 4096x512 128x16x28x28 64x2048x7x7".split())


@dataclass(frozen=True)
class Row:
    """One row of the tables.

    Attributes:
        shape: [N, C] or [N, C, H, W].
        dtype: ``"float32"`` or ``"bfloat16"``, of x, y and their gradients; parameters are float32.
        layout: ``"NC"``, ``"NCHW"`` or ``"channels-last"``.
        hard: whether x has mean 1e4 and standard deviation 1e-2.
    """

    shape: tuple[int, ...]
    dtype: str
    layout: str
    hard: bool = False

    @property
    def shape_name(self) -> str:
        return "x".join(map(str, self.shape))

    @property
    def name(self) -> str:
        """What ``--rows`` searches, such as ``64x256x56x56 float32 channels-last``."""
        return f"{self.shape_name} {self.dtype} {self.layout}" + " hard" * self.hard

    @property
    def nbytes(self) -> int:
        """Bytes of one tensor of this row."""
        return math.prod(self.shape) * ITEMSIZE[self.dtype]

    @property
    def memory_shape(self) -> tuple[int, ...]:
        """The shape in the order of the memory: [N, H, W, C] where channels come last."""
        n, c, *positions = self.shape
        return (n, *positions, c) if self.layout == CHANNELS_LAST else self.shape

    @property
    def tolerances(self) -> dict[str, float]:
        """The largest relative error with which an output of ours passes.

        y and dx are a few float32 operations an element, and in bfloat16 one rounding more,
        2⁻⁹, doubled. dweight and dbias are float32 sums over a channel whose terms cancel.
        """
        element = 1e-5 if self.dtype == "float32" else 2.0**-8
        return {"y": element, "dx": element, "dweight": 1e-4, "dbias": 1e-4}


@dataclass
class Figures:
    """What was measured of a row, by candidate.

    Attributes:
        forward: microseconds of forward.
        both: microseconds of forward and backward.
        errors: of each output, max|got − want| / max|want| against float64.
        failures: why a candidate has no figures, in one line.
    """

    row: Row
    forward: dict[str, float] = field(default_factory=dict)
    both: dict[str, float] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


def _shapes(text: str) -> list[tuple[int, ...]]:
    return [tuple(map(int, word.split("x"))) for word in text.split()]


def _of(shape: tuple[int, ...], channels_last: Iterable[str]) -> list[Row]:
    """The rows of a shape in both dtypes, and those dtypes that it has channels-last too."""
    plain = MATRIX if len(shape) == 2 else NCHW
    result = [Row(shape, dtype, plain) for dtype in ITEMSIZE]
    if shape[1] > 1 and math.prod(shape[2:]) > 1:  # else the two layouts are one
        result += [Row(shape, dtype, CHANNELS_LAST) for dtype in channels_last]
    return result


def all_rows() -> list[Row]:
    """All rows in the order of the tables."""
    rows = [row for shape in _shapes(DESIGN) for row in _of(shape, ITEMSIZE)]
    rows += [row for shape in _shapes(RESNET50) for row in _of(shape, ["float32"])]
    rows += [row for shape in _shapes(MNIST + EDGES) for row in _of(shape, [])]
    for shape in _shapes(HARD):
        layouts = [MATRIX] if len(shape) == 2 else [NCHW, CHANNELS_LAST]
        rows += [Row(shape, "float32", layout, hard=True) for layout in layouts]
    return rows
