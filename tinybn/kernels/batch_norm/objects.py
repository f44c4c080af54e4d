"""The kernel objects of BatchNorm: what a launch is passed, and how many there are."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import triton

from .. import gpu
from ..arrays import Array, accumulation_dtype
from ..common import KernelObject, accumulator, scalar
from ..launch import Launcher, Options
from ..layout import Channels
from ..workspace import Workspace, workspace
from .backward import batch_norm_backward_kernel
from .forward import batch_norm_forward_kernel
from .normalize import batch_norm_normalize_kernel
from .plan import REGISTERS, Plan, make_plan, power_of_two

NORMALIZED = 2048  # float32 values of a tile where nothing is held
MERGED = 1024  # values that a program merges at once
REGISTER_FILE = 2**16  # of a multiprocessor; a thread has 255 at most
COMPILED_FOR = 132  # multiprocessors where only compiling: an H100's
Launch = tuple[tuple[int, ...], Options, dict[str, Any]]

_plan = functools.lru_cache(maxsize=4096)(make_plan)


class _BatchNormKernel(KernelObject):
    """Tile sizes shared by the BatchNorm kernels; None leaves them to ``plan.py``.

    Args:
        block_rows: BLOCK_R, a power of two.
        block_channels: BLOCK_C, a power of two.
    """

    example_shape = (64, 64, 7, 7)
    tensors = 1

    def __init__(self, block_rows: int | None = None, block_channels: int | None = None) -> None:
        self.block_rows = block_rows
        self.block_channels = block_channels

    def plan(self, x: Array, compiling: bool = False) -> Plan:
        """How x, [N, C] to [N, C, D, H, W] and dense, is cut."""
        return self._plan(Channels.of(x), x, compiling)

    def _plan(self, c: Channels, x: Array, compiling: bool = False) -> Plan:
        on_gpu = gpu.is_cupy(x)
        return _plan(
            c.rows, c.channels, c.stride_c == 1, x.dtype.itemsize, self.tensors,
            self._processors(x, compiling),
            # A word of the exchange holds 32 bits of value; programs interpreted run in turn.
            (on_gpu or compiling) and accumulation_dtype(x.dtype) == np.float32,
            16 if c.flat else math.gcd(c.positions, 16),
            self.block_rows, self.block_channels,
        )  # fmt: skip

    def _processors(self, x: Array, compiling: bool) -> int:
        if compiling:
            return COMPILED_FOR
        return gpu.processors_of(x)

    def _launches(
        self, x: Array, arguments: dict[str, Any], compiling: bool = False
    ) -> tuple[list[Launch], Workspace | None]:
        """One launch, or two or three (reduce, merge, apply); and what ``slots_ptr`` comes from."""
        c = Channels.of(x)
        plan = self._plan(c, x, compiling)
        split = plan.parts > 1
        tagged = split and plan.together
        words = 2 * plan.block_channels * (plan.units + plan.units // plan.parts * plan.copies)
        space = workspace(self.name, plan, words, tagged) if split else None
        threads = 32 * plan.warps
        chunk = min(power_of_two(plan.parts), max(MERGED // plan.merge_channels, 1))
        if tagged:  # a tile that is waited for has an element for each thread
            chunk = max(chunk, threads // plan.merge_channels)
        # Rows times parts pass 32 bits where offsets do.
        part_rows = np.int64(plan.part_rows) if c.wide else plan.part_rows
        arguments |= dict(
            slots_ptr=space.slots(x) if space is not None else None,
            rows=c.rows, C=c.channels, S=1 if c.flat else c.positions, stride_n=c.stride_n,
            stride_c=c.stride_c, stride_s=c.stride_s, FLAT=c.flat, WIDE=c.wide,
            parts=plan.parts, part_rows=part_rows, tiles=plan.tiles, units=plan.units,
            zero=np.int32(0), REDUCE=True, MERGE=plan.merging, APPLY=True, HOLD=plan.hold,
            SPLIT=split, TAGGED=tagged, LOADED=plan.loaded, BLOCK_R=plan.block_rows,
            BLOCK_C=plan.block_channels, MERGE_C=plan.merge_channels, CHUNK=chunk,
            COPIES=plan.copies, THREADS=threads,
            **accumulator(x.dtype),
        )  # fmt: skip
        grid = (plan.programs,)
        lifted = None
        if not tagged:  # programs that wait for each other must all fit, spilled registers or not
            alone = plan.units <= self._processors(x, compiling)
            lifted = min(255, REGISTER_FILE // threads) if alone else REGISTERS
        options = Options(plan.warps, plan.registers, lifted, cooperative=tagged)
        if plan.together:
            return [(grid, options, arguments)], space
        reduce = dict(REDUCE=True, MERGE=False, APPLY=False)
        merge = dict(REDUCE=False, MERGE=True, APPLY=False)
        apply = dict(REDUCE=False, MERGE=False, APPLY=True)
        return [
            (grid, options, arguments | step)
            for step in ((reduce, merge, apply) if plan.merging else (reduce, apply))
        ], space

    def _run(self, x: Array, arguments: dict[str, Any]) -> None:
        launches, _ = self._launches(x, arguments)
        for grid, options, values in launches:
            self.launcher(grid, options, **values)

    def _prepare(
        self, x: Array, arguments: dict[str, Any], varying: Sequence[str]
    ) -> Callable[..., None]:
        """A call that takes the addresses of the arrays in ``varying``, those that are not None."""
        launches, space = self._launches(x, arguments)
        device, dtype, calls = x.data.device_id, x.dtype, gpu.calls()
        names = (*varying, "slots_ptr")
        prepared = [
            self.launcher.prepare(grid, options, values, names)
            for grid, options, values in launches
        ]

        def call(*addresses: int) -> None:
            stream = calls.stream()
            if space is not None:
                slots = space.on_stream(device, stream, dtype)
                addresses = (*addresses, slots.data.ptr)
            for launch in prepared:
                launch(stream.ptr, *addresses)

        return call

    def launches(
        self, dtype: np.dtype, shape: tuple[int, ...]
    ) -> list[tuple[Mapping[str, Any], Options]]:
        x = np.zeros(shape, dtype)
        channel = np.zeros(shape[1], accumulation_dtype(dtype))
        launches, _ = self._launches(x, self._example(x, channel), compiling=True)
        return [(values, options) for _, options, values in launches]

    def _example(self, x: Array, channel: Array) -> dict[str, Any]:
        raise NotImplementedError


class _ForwardKernel(_BatchNormKernel):
    launcher = Launcher(batch_norm_forward_kernel)

    def _arguments(
        self, x, addend, weight, bias, running_mean, running_var, tracked, y, sign, mean, rstd,
        residual, eps, momentum, activation,
    ) -> dict[str, Any]:  # fmt: skip
        n = x.size // x.shape[1]
        running = x.dtype if running_mean is None else running_mean.dtype
        known = isinstance(momentum, (int, float))
        return dict(
            x_ptr=x, addend_ptr=addend, weight_ptr=weight, bias_ptr=bias, y_ptr=y, sign_ptr=sign,
            mean_ptr=mean, rstd_ptr=rstd, residual_ptr=residual, running_mean_ptr=running_mean,
            running_var_ptr=running_var, tracked_ptr=tracked, nil=scalar(0.0, x.dtype),
            eps=scalar(eps, x.dtype), momentum_ptr=None if known else momentum,
            momentum=scalar(momentum if known else 0, running),
            keep=scalar(1 - momentum if known else 0, running),
            unbias=scalar(n / max(n - 1, 1), x.dtype), ACTIVATION=activation,
        )  # fmt: skip


class BatchNormForward(_ForwardKernel):
    """Statistics, running statistics and y = activation(BatchNorm(x) + addend) at once.

    Takes the arguments of ``reference.batch_norm_forward``.
    """

    def __call__(
        self, x: Array, addend: Array | None, weight: Array | None, bias: Array | None,
        running_mean: Array | None, running_var: Array | None, tracked: Array | None,
        y: Array | None, sign: Array | None, mean: Array, rstd: Array, residual: Array | None, *,
        eps: float, momentum: float | Array, activation: str | None,
    ) -> None:  # fmt: skip
        self._run(x, self._arguments(
            x, addend, weight, bias, running_mean, running_var, tracked, y, sign, mean, rstd,
            residual, eps, momentum, activation,
        ))  # fmt: skip

    def prepare(self, x: Array, *arrays: Array | None, **options: Any) -> Callable[..., None]:
        """A launch for the arrays of a call, but for the addresses that it is called with.

        These are of x, addend, y, sign, mean, rstd and residual, those that are not None.
        """
        arguments = self._arguments(x, *arrays, **options)
        return self._prepare(x, arguments, (
            "x_ptr", "addend_ptr", "y_ptr", "sign_ptr", "mean_ptr", "rstd_ptr", "residual_ptr",
        ))  # fmt: skip

    def _example(self, x: Array, channel: Array) -> dict[str, Any]:
        c = channel
        count = np.zeros((), np.int64)
        return self._arguments(x, None, c, c, c, c, count, x, None, c, c, c, 1e-5, 0.1, None)


class BatchNormStatsForward(_ForwardKernel):
    """Statistics of each channel, and the running statistics, alone.

    Takes the arguments of ``reference.batch_norm_stats_forward``.
    """

    def __call__(
        self, x: Array, running_mean: Array | None, running_var: Array | None, mean: Array,
        rstd: Array, residual: Array | None, *, eps: float, momentum: float,
    ) -> None:  # fmt: skip
        self._run(x, self._arguments(
            x, None, None, None, running_mean, running_var, None, None, None, mean, rstd, residual,
            eps, momentum, None,
        ))  # fmt: skip

    def _example(self, x: Array, channel: Array) -> dict[str, Any]:
        c = channel
        return self._arguments(
            x, None, None, None, c, c, None, None, None, c, c, c, 1e-5, 0.1, None
        )


class BatchNormNormalizeForward(_BatchNormKernel):
    """y from x and its statistics.

    Takes the arguments of ``reference.batch_norm_normalize_forward``.
    """

    launcher = Launcher(batch_norm_normalize_kernel)
    from_variance = False

    def _launches(
        self, x: Array, arguments: dict[str, Any], compiling: bool = False
    ) -> tuple[list[Launch], None]:
        c = Channels.of(x)
        tile = NORMALIZED * 4 // accumulation_dtype(x.dtype).itemsize
        widest = 32 if c.stride_c == 1 else 1
        block_c = self.block_channels or min(
            power_of_two(c.channels), max(widest, tile // power_of_two(c.rows))
        )
        block_r = self.block_rows or min(power_of_two(c.rows), max(tile // block_c, 1))
        channel_tiles = triton.cdiv(c.channels, block_c)
        arguments |= dict(
            rows=c.rows, C=c.channels, S=1 if c.flat else c.positions, stride_n=c.stride_n,
            stride_c=c.stride_c, stride_s=c.stride_s, FLAT=c.flat, WIDE=c.wide,
            channel_tiles=channel_tiles, BLOCK_R=block_r, BLOCK_C=block_c, **accumulator(x.dtype),
        )  # fmt: skip
        grid = (channel_tiles * triton.cdiv(c.rows, block_r),)
        return [(grid, Options(warps=4), arguments)], None

    def _arguments(
        self, x, weight, bias, mean, scale, residual, y, eps, addend, activation
    ) -> dict[str, Any]:
        return dict(
            x_ptr=x, addend_ptr=addend, weight_ptr=weight, bias_ptr=bias, mean_ptr=mean,
            scale_ptr=scale, residual_ptr=residual, y_ptr=y,
            eps=scalar(eps, x.dtype), FROM_VARIANCE=self.from_variance, ACTIVATION=activation,
        )  # fmt: skip

    def __call__(
        self, x: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array,
        residual: Array | None, y: Array,
    ) -> None:  # fmt: skip
        self._run(x, self._arguments(x, weight, bias, mean, rstd, residual, y, 0.0, None, None))

    def _example(self, x: Array, channel: Array) -> dict[str, Any]:
        c = channel
        return self._arguments(x, c, c, c, c, c, x, 1e-5, None, None)


class BatchNormForwardInference(BatchNormNormalizeForward):
    """y from x and running statistics. Arguments: ``reference.batch_norm_forward_inference``."""

    from_variance = True

    def __call__(  # type: ignore[override]
        self, x: Array, weight: Array | None, bias: Array | None, running_mean: Array,
        running_var: Array, y: Array, *, eps: float, addend: Array | None = None,
        activation: str | None = None,
    ) -> None:  # fmt: skip
        self._run(x, self._arguments(
            x, weight, bias, running_mean, running_var, None, y, eps, addend, activation
        ))  # fmt: skip

    def prepare(
        self, x: Array, weight: Array | None, bias: Array | None, running_mean: Array,
        running_var: Array, y: Array, *, eps: float, addend: Array | None, activation: str | None,
    ) -> Callable[..., None]:  # fmt: skip
        """A launch for the arrays of a call, but for the addresses of x, addend if any, and y."""
        arguments = self._arguments(
            x, weight, bias, running_mean, running_var, None, y, eps, addend, activation
        )
        return self._prepare(x, arguments, ("x_ptr", "addend_ptr", "y_ptr"))


class BatchNorm2dNchwForwardInference(BatchNormForwardInference):
    """Inference on [N, C, H, W] in either memory layout, under the name that graphs use."""


class _BackwardKernel(_BatchNormKernel):
    launcher = Launcher(batch_norm_backward_kernel)
    frozen = False
    tensors = 2

    def _arguments(
        self, dy, x, weight, mean, scale, residual, dx, dweight, dbias, eps, bias, addend, sign,
        daddend, activation,
    ) -> dict[str, Any]:  # fmt: skip
        return dict(
            dy_ptr=dy, x_ptr=x, addend_ptr=addend, sign_ptr=sign, weight_ptr=weight, bias_ptr=bias,
            mean_ptr=mean, scale_ptr=scale, residual_ptr=residual, dx_ptr=dx, daddend_ptr=daddend,
            dweight_ptr=dweight, dbias_ptr=dbias, eps=scalar(eps, x.dtype), FROZEN=self.frozen,
            ACTIVATION=activation,
        )  # fmt: skip

    def _example(self, x: Array, channel: Array) -> dict[str, Any]:
        c = channel
        return self._arguments(x, x, c, c, c, c, x, c, c, 1e-5, None, None, None, None, None)


class BatchNormBackward(_BackwardKernel):
    """dx, dweight and dbias where the statistics are the batch's.

    Takes the arguments of ``reference.batch_norm_backward``.
    """

    def __call__(
        self, dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array,
        residual: Array | None, dx: Array | None, dweight: Array | None, dbias: Array | None, *,
        bias: Array | None = None, addend: Array | None = None, sign: Array | None = None,
        daddend: Array | None = None, activation: str | None = None,
    ) -> None:  # fmt: skip
        self._run(x, self._arguments(
            dy, x, weight, mean, rstd, residual, dx, dweight, dbias, 0.0, bias, addend, sign,
            daddend, activation,
        ))  # fmt: skip

    def prepare(
        self, dy: Array, x: Array, weight: Array | None, mean: Array, rstd: Array,
        residual: Array | None, dx: Array | None, dweight: Array | None, dbias: Array | None, *,
        bias: Array | None, addend: Array | None, sign: Array | None, daddend: Array | None,
        activation: str | None,
    ) -> Callable[..., None]:  # fmt: skip
        """A launch for the arrays of a call, but for the addresses that it is called with.

        These are of dy, x, addend, sign, mean, rstd, residual, dx, dweight, dbias and
        daddend, those that are not None.
        """
        arguments = self._arguments(
            dy, x, weight, mean, rstd, residual, dx, dweight, dbias, 0.0, bias, addend, sign,
            daddend, activation,
        )  # fmt: skip
        return self._prepare(x, arguments, (
            "dy_ptr", "x_ptr", "addend_ptr", "sign_ptr", "mean_ptr", "scale_ptr", "residual_ptr",
            "dx_ptr", "dweight_ptr", "dbias_ptr", "daddend_ptr",
        ))  # fmt: skip


class BatchNorm2dNchwBackward(_BackwardKernel):
    """dx, dweight and dbias where the statistics are constants.

    Takes the arguments of ``reference.batch_norm_2d_nchw_backward``.
    """

    frozen = True

    def __call__(
        self, dy: Array, x: Array, weight: Array | None, running_mean: Array, running_var: Array,
        dx: Array | None, dweight: Array | None, dbias: Array | None, *, eps: float,
        bias: Array | None = None, addend: Array | None = None, sign: Array | None = None,
        daddend: Array | None = None, activation: str | None = None,
    ) -> None:  # fmt: skip
        self._run(x, self._arguments(
            dy, x, weight, running_mean, running_var, None, dx, dweight, dbias, eps, bias, addend,
            sign, daddend, activation,
        ))  # fmt: skip
