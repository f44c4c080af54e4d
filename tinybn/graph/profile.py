"""The time of each launch of a plan, beside the bytes that it is given."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..kernels import gpu
from ..kernels.arrays import Array
from ..kernels.launch.observe import Launch, Observer, under
from .plan import Plan
from .show import bytes_text, columns


class Row(NamedTuple):
    """One launch: its node, kernel, median microseconds, and the bytes of its arrays."""

    node: str
    kernel: str
    microseconds: float
    bytes: int

    @property
    def gigabytes_per_second(self) -> float:
        """Bytes over time."""
        return self.bytes / self.microseconds / 1e3 if self.microseconds else 0.0


class Profile(NamedTuple):
    """What :meth:`RuntimeGraph.profile` returns: a table when printed."""

    rows: list[Row]

    def __str__(self) -> str:
        lines = [
            (r.node, r.kernel, f"{r.microseconds:.1f}", bytes_text(r.bytes),
             f"{r.gigabytes_per_second:.1f}") for r in self.rows
        ]  # fmt: skip
        total = sum(row.microseconds for row in self.rows)
        return "\n".join([
            columns(("node", "launch", "µs", "bytes", "GB/s"), lines, 3),
            f"{total:.1f} µs in {len(self.rows)} launches",
        ])  # fmt: skip


class _Clock:
    """Microseconds of a call: by CUDA events where it runs on a GPU."""

    def __init__(self, on_gpu: bool) -> None:
        self._events = gpu.cupy().cuda if on_gpu else None

    def time(self, call: Callable[[], Any]) -> tuple[Any, float]:
        if self._events is None:
            start = time.perf_counter()
            result = call()
            return result, (time.perf_counter() - start) * 1e6
        start, end = self._events.Event(), self._events.Event()
        start.record()
        result = call()
        end.record()
        end.synchronize()
        return result, self._events.get_elapsed_time(start, end) * 1e3


class _Timing(Observer):
    def __init__(self, clock: _Clock) -> None:
        super().__init__()
        self._clock, self.times = clock, []  # type: ignore[var-annotated]

    def see(self, launch: Launch, run: Callable[[], None]) -> None:
        self.launches.append(launch)
        self.times.append(self._clock.time(run)[1])


def profile(plan: Plan, inputs: Mapping[str, Array], repeats: int) -> Profile:
    """Run ``plan`` on copies of its parameters ``repeats`` times and once before."""
    clock = _Clock(gpu.is_cupy(next(iter(inputs.values()))))
    copies = [{k: a.copy() for k, a in step.node.arrays().items()} for step in plan.steps]
    times: dict[tuple[int, int], list[float]] = {}
    rows: dict[tuple[int, int], Row] = {}
    for turn in range(repeats + 1):
        results = dict(inputs)
        for i, (step, parameters) in enumerate(zip(plan.steps, copies)):
            node = step.node
            given = [results[name] for name in node.inputs]
            ctx = node.op.context()
            timing = _Timing(clock)
            with under(timing), np.errstate(all="ignore"):
                results[node.name], whole = clock.time(
                    lambda: node.op.forward(ctx, given, parameters, step.out)  # noqa: B023
                )
            # What the array library does is not seen as launches: the whole call is one.
            seen = list(zip(timing.launches, timing.times))
            if not seen and step.launches:
                seen = [(step.launches[0], whole)]
            for j, (launch, taken) in enumerate(seen):
                rows[i, j] = Row(node.name, launch.kernel, 0.0, launch.bytes)
                if turn:
                    times.setdefault((i, j), []).append(taken)
    return Profile([
        row._replace(microseconds=float(np.median(times[key]))) for key, row in rows.items()
    ])  # fmt: skip
