"""One stream, a flushed L2 cache, CUDA events: how everything here is timed.

CuPy is imported by the first call, so that the rest runs on machines without it.
"""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

Array = Any  # cupy.ndarray
Outputs = dict[str, Any]  # y, and with backward dx, dweight and dbias
Key = TypeVar("Key", bound=Hashable)

FLUSH_BYTES = 256 * 10**6  # several times the L2 cache
COPY_BYTES = 2**30
WARM_UPS = 3  # calls before a capture: compilation, and the memory pool's growth
POISON = 0xFF  # as every byte of a float of any width: NaN


@dataclass
class Job:
    """One candidate's forward, or forward and backward, of one row.

    Attributes:
        run: does it once: launches a graph, or calls and waits where there is none.
        outputs: the results of the last run, as CuPy arrays.
        buffers: address and bytes of each output that a run writes to in place.
        on_device: whether CUDA events around ``run`` see all of it.
    """

    run: Callable[[], object]
    outputs: Callable[[], dict[str, Array]]
    buffers: list[tuple[int, int]]
    on_device: bool = True


class Timer:
    """The stream that all candidates share, and the clock on it.

    Attributes:
        stream: a CuPy stream that waits for no other; current from here on.
    """

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        self.stream = cupy.cuda.Stream(non_blocking=True)
        self.stream.use()
        self._buffer = cupy.zeros(FLUSH_BYTES // 4, cupy.float32)
        self._largest = cupy.zeros((), cupy.float32)
        self._start, self._end = cupy.cuda.Event(), cupy.cuda.Event()

    def flush(self) -> None:
        """Read more than the L2 cache holds, so that what follows finds none of its inputs there.

        Reading leaves no line that would have to be written back while the next one is timed.
        On the GPU it takes longer than the host takes to queue what is timed after it, so the
        events' interval holds no wait for the host.
        """
        self._buffer.max(out=self._largest)

    def device_us(self, launch: Callable[[], object]) -> float:
        """Microseconds on the GPU from before ``launch`` to after it, with a flushed cache."""
        self.flush()
        self._start.record(self.stream)
        launch()
        self._end.record(self.stream)
        self._end.synchronize()
        return 1e3 * self._cupy.cuda.get_elapsed_time(self._start, self._end)

    def wall_us(self, call: Callable[[], object]) -> float:
        """Microseconds on the host that ``call``, which waits for its results, takes."""
        self.flush()
        self.stream.synchronize()
        start = time.perf_counter()
        call()
        return 1e6 * (time.perf_counter() - start)

    def stretch_us(self, step: Callable[[], object], steps: int) -> float:
        """Microseconds on the GPU of one of ``steps`` consecutive steps; the cache is theirs."""
        self.stream.synchronize()
        self._start.record(self.stream)
        for _ in range(steps):
            step()
        self._end.record(self.stream)
        self._end.synchronize()
        return 1e3 * self._cupy.cuda.get_elapsed_time(self._start, self._end) / steps

    def medians(self, jobs: Mapping[Key, Job], rounds: int) -> dict[Key, float]:
        """The median microseconds of each job over ``rounds``, each of which runs every job once.

        What drifts, such as the clock rate, so hits all of them alike.
        """
        samples: dict[Key, list[float]] = {key: [] for key in jobs}
        for _ in range(rounds):
            for key, job in jobs.items():
                measure = self.device_us if job.on_device else self.wall_us
                samples[key].append(measure(job.run))
        return {key: statistics.median(values) for key, values in samples.items()}

    def poison(self, job: Job) -> None:
        """Fill the job's outputs with NaN, so that what a run leaves unwritten shows."""
        for address, nbytes in job.buffers:
            self._cupy.cuda.runtime.memsetAsync(address, POISON, nbytes, self.stream.ptr)

    def copy_rate(self, rounds: int = 15) -> float:
        """Bytes a second, read plus written, of copying 1 GiB from device memory to itself."""
        source = self._cupy.arange(COPY_BYTES // 4, dtype=self._cupy.float32)
        target = self._cupy.empty_like(source)

        def copy() -> None:
            target.data.copy_from_device_async(source.data, COPY_BYTES, self.stream)

        copy()
        seconds = 1e-6 * statistics.median(self.device_us(copy) for _ in range(rounds))
        return 2 * COPY_BYTES / seconds

    def capture(self, step: Callable[[], Outputs]) -> Job:
        """Capture ``step``, whose work CuPy's current stream sees, in a graph.

        Args:
            step: returns CuPy arrays, which every replay overwrites.
        """
        # A pool of its own keeps the graph's temporary memory from others, to whom CuPy would
        # lend it once the capture has ended.
        pool = self._cupy.cuda.MemoryPool()
        with self._cupy.cuda.using_allocator(pool.malloc):
            for _ in range(WARM_UPS):
                step()
            self.stream.synchronize()
            self.stream.begin_capture()
            try:
                outputs = step()
            except BaseException:
                with contextlib.suppress(Exception):  # the first error is the one to show
                    self.stream.end_capture()
                raise
            graph = self.stream.end_capture()
        kept = (graph, pool)  # a pool that is gone would give the graph's memory back
        buffers = [(a.data.ptr, a.nbytes) for a in outputs.values()]
        return Job(lambda: kept[0].launch(self.stream), lambda: outputs, buffers)


def wall_stretch_us(step: Callable[[], object], steps: int, wait: Callable[[], object]) -> float:
    """Microseconds by the wall clock of one of ``steps`` steps, until ``wait`` returns."""
    wait()
    start = time.perf_counter()
    for _ in range(steps):
        step()
    wait()
    return 1e6 * (time.perf_counter() - start) / steps


def host_us(
    calls: Mapping[Key, Callable[[], object]],
    wait: Callable[[], object],
    rounds: int = 40,
    repeats: int = 100,
) -> dict[Key, float]:
    """Microseconds on the host of each call, which only queues work: the least of many rounds.

    The least, since whatever else the host does can only add to it; and round by round all
    of them, so that it does so to all alike.

    Args:
        calls: what is timed, ``repeats`` times a round, which must not fill the GPU's queue.
        wait: waits until the queue is empty; not timed.
    """
    least = dict.fromkeys(calls, float("inf"))
    for number in range(rounds + 1):
        for name, call in calls.items():
            start = time.perf_counter()
            for _ in range(repeats):
                call()
            taken = 1e6 * (time.perf_counter() - start) / repeats
            wait()
            if number:  # the first warms up
                least[name] = min(least[name], taken)
    return least
