"""The inputs of a row, made where they are used, and the comparison with float64."""

from __future__ import annotations

import zlib
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import tinybn as tb
from tinybn.kernels.arrays import namespace

from .rows import CHANNELS_LAST, Row

Array = Any  # cupy.ndarray; numpy.ndarray where the device is the CPU
Key = TypeVar("Key", bound=Hashable)
EPS, MOMENTUM = 1e-5, 0.1
CHUNK = 2**24  # elements that are compared at once: 128 MB in float64


@dataclass(frozen=True)
class Problem:
    """The inputs of one row; candidates share them and write to none.

    Attributes:
        x_memory, dy_memory: C-contiguous, of ``row.memory_shape``.
        weight, bias: [C], float32.
    """

    row: Row
    x_memory: Array
    dy_memory: Array
    weight: Array
    bias: Array

    @classmethod
    def of(cls, row: Row, device: str = "cuda") -> Problem:
        """Draw it. The seed is the row's name, so every run draws the same.

        x is normal with standard deviation 1 around half a normal number a channel, or
        with 1e-2 around 1e4 where the row is hard.
        """
        tb.manual_seed(zlib.crc32(row.name.encode()))
        channels = row.shape[1]
        x, dy = (_normal(*row.memory_shape, device=device) for _ in range(2))
        offsets, weight, bias = (_normal(channels, device=device) for _ in range(3))
        if row.hard:
            x = 1e4 + 1e-2 * x
        else:
            last = row.layout == CHANNELS_LAST
            x += 0.5 * (offsets if last else offsets.reshape(-1, *(1,) * (x.ndim - 2)))
        dtype = tb.bfloat16 if row.dtype == "bfloat16" else tb.float32
        return cls(
            row,
            x.astype(dtype, copy=False),
            dy.astype(dtype, copy=False),
            1 + 0.25 * weight,
            0.25 * bias,
        )

    @property
    def x(self) -> Array:
        """x as [N, C] or [N, C, H, W], whatever its layout."""
        return channels_second(self.x_memory, self.row)

    @property
    def dy(self) -> Array:
        """dy likewise."""
        return channels_second(self.dy_memory, self.row)

    def errors(self, got: Mapping[Key, Mapping[str, Array]]) -> dict[Key, dict[str, float]]:
        """For each run and output, max|got − want| / max|want|, want in float64.

        Args:
            got: by run, its outputs: y, dx (of x's shape), dweight and dbias, or some of them.

        Returns:
            The same keys; infinity where an output holds NaN.
        """
        channels = self.row.shape[1]
        step = max(1, CHUNK * channels // self.x_memory.size)
        largest: dict[str, float] = {}
        worst: dict[Key, dict[str, float]] = {key: {} for key in got}
        for start in range(0, channels, step):
            part = slice(start, start + step)
            for output, want in self._want(part).items():
                largest[output] = max(largest.get(output, 0.0), float(abs(want).max()))
                for key, outputs in got.items():
                    if output not in outputs:
                        continue
                    array = outputs[output]
                    array = array[:, part] if array.ndim > 1 else array[part]
                    error = float(abs(array.astype(tb.float64) - want).max())
                    error = error if error == error else float("inf")
                    worst[key][output] = max(worst[key].get(output, 0.0), error)
        return {
            key: {output: error / largest[output] for output, error in errors.items()}
            for key, errors in worst.items()
        }

    def _want(self, part: slice) -> dict[str, Array]:
        """The outputs of some channels in float64 (Ioffe and Szegedy 2015, section 3)."""
        x, dy = (a[:, part].astype(tb.float64) for a in (self.x, self.dy))
        columns = (a[part].astype(tb.float64) for a in (self.weight, self.bias))
        weight, bias = (a.reshape(-1, *(1,) * (x.ndim - 2)) for a in columns)
        axes = tuple(a for a in range(x.ndim) if a != 1)
        x -= x.mean(axis=axes, keepdims=True)
        rstd = 1 / namespace(x).sqrt((x * x).mean(axis=axes, keepdims=True) + EPS)
        x *= rstd  # x̂ from here on
        dweight = (dy * x).sum(axis=axes, keepdims=True)
        dbias = dy.sum(axis=axes, keepdims=True)
        count = x.size // x.shape[1]
        dx = weight * rstd * (dy - dbias / count - x * (dweight / count))
        return {
            "y": x * weight + bias,
            "dx": dx,
            "dweight": dweight.ravel(),
            "dbias": dbias.ravel(),
        }


def channels_second(array: Array, row: Row) -> Array:
    """An array of ``row.memory_shape`` as a view with the row's shape."""
    if row.layout != CHANNELS_LAST:
        return array
    return array.transpose(0, 3, 1, 2)


def _normal(*shape: int, device: str) -> Array:
    return tb.randn(*shape, device=device).data
