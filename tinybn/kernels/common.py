"""What the Triton kernels share: device functions, and the base of the kernel objects.

Importing this file imports Triton; only the CUDA engine and the interpreter do.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import triton
import triton.language as tl

from .arrays import accumulation_dtype
from .launch import DEFAULT, Binary, Launcher, Options


@triton.jit
def rsqrt_rounded(x):
    """1/sqrt(x), each step rounded to nearest; Triton's rsqrt is 2 ulp off in float32."""
    if x.dtype == tl.float64:
        return 1.0 / tl.sqrt(x)
    else:
        return tl.div_rn(1.0, tl.sqrt_rn(x))


@triton.jit
def value_of(number):
    """A scalar argument, or what a captured launch is given instead: where to read it."""
    if number.dtype.is_ptr():
        return tl.load(number)
    else:
        return number


def accumulator(dtype: np.dtype) -> dict[str, Any]:
    """The constexpr ``ACC``: the Triton type in which sums of ``dtype`` are added up."""
    return {"ACC": tl.float64 if accumulation_dtype(dtype) == np.float64 else tl.float32}


def scalar(value: float, dtype: np.dtype) -> np.float32 | np.float64:
    """``value`` in the accumulator's precision for ``dtype``, as a kernel's scalar argument."""
    return accumulation_dtype(dtype).type(value)


class KernelObject:
    """A kernel with its tile sizes: call it on arrays, or compile it with no GPU.

    Subclasses set ``launcher`` and ``example_shape`` and define ``__call__`` and ``example``.

    Attributes:
        name: the kernel function's name.
        source: its Python source.
        example_shape: the main argument's shape where :meth:`compile` is not given one.
    """

    launcher: ClassVar[Launcher]
    example_shape: ClassVar[tuple[int, ...]] = (64,)

    @property
    def name(self) -> str:
        return self.launcher.fn.__name__

    @property
    def source(self) -> str:
        return inspect.getsource(self.launcher.fn.fn)

    def example(self, dtype: np.dtype, shape: tuple[int, ...]) -> Mapping[str, Any]:
        """Arguments of a launch on arrays of ``dtype``, the main one of ``shape``."""
        raise NotImplementedError

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> Sequence[tuple[Mapping[str, Any], Options]]:
        """The arguments and options of each launch of a call."""
        return [(self.example(dtype, shape), DEFAULT)]

    def compile(
        self, target: str, dtype: Any = np.float32, shape: tuple[int, ...] | None = None
    ) -> Binary:
        """Compile for ``"sm_80"``, ``"sm_90"``, ``"sm_100"`` or ``"gfx942"``; needs no GPU.

        Args:
            dtype: the arrays' dtype.
            shape: the main argument's shape, which chooses tile sizes.

        Returns:
            The assembly, registers, shared memory and spills; where a call is several
            launches, the assembly of all and the most of the others.

        Raises:
            ArgumentError: for another target.
            LaunchError: if Triton cannot compile it.
        """
        shape = self.example_shape if shape is None else shape
        binaries = [
            self.launcher.compile(target, _as_target_can(target, arguments), options)
            for arguments, options in self.launches(np.dtype(dtype), shape)
        ]
        return Binary(
            target,
            "\n".join(b.assembly for b in binaries),
            max(b.registers for b in binaries),
            max(b.shared for b in binaries),
            max(b.spills for b in binaries),
        )


def _as_target_can(target: str, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
    """``arguments`` with exact products where the target has none of TF32's parts: AMD's."""
    if target.startswith("gfx") and arguments.get("PRECISION") == "tf32x3":
        return {**arguments, "PRECISION": "ieee"}
    return arguments


MOST_ALONG_AXIS = 65_535  # programs, on a grid's second or third axis; the first has 2³¹ − 1


def tile_for_axis(n: int, most: int) -> int:
    """:func:`power_of_two`, or more where its tiles of ``n`` would be too many for the axis."""
    return power_of_two(n, max(most, triton.next_power_of_2(triton.cdiv(n, MOST_ALONG_AXIS))))


def power_of_two(n: int, most: int) -> int:
    """The smallest power of two that is at least ``n``, but no more than ``most``."""
    return min(triton.next_power_of_2(max(n, 1)), most)
