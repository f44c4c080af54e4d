"""A training or inference step recorded once as a CUDA graph and replayed as one launch.

A small network's step is some twenty launches of a few microseconds, and Python takes longer to
make each than the GPU to run it. A CUDA graph holds them all, with their arguments, and starts
with one call (NVIDIA, CUDA C++ Programming Guide, "CUDA Graphs").
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import os
import traceback
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

from ..errors import ArgumentError, CaptureError, TinyBNError
from ..kernels import get_float32_matmul_precision, gpu, recording
from ..kernels.arrays import Array
from ..kernels.feed.ring import Feed
from ..kernels.recording import Recording, under
from ..tensor import Device, Tensor, default_device, is_grad_enabled
from ..tensor.autocast import autocast_dtype
from ..tensor.device import as_device, device_of, use

P = ParamSpec("P")
R = TypeVar("R")

REHEARSALS = 2  # steps that run as they are and compile what they launch; the next is recorded
MOST_GRAPHS = 16
_HERE = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))  # this package's files


class CapturedStep(Generic[P, R]):
    """What :func:`capture` returns: called as the step, it replays it where it can.

    Attributes:
        step: the function.
        graphs: how many CUDA graphs it has recorded and kept.
    """

    def __init__(self, step: Callable[P, R], device: str | Device | None = None) -> None:
        functools.update_wrapper(self, step)
        self.step = step
        self._device = None if device is None else as_device(device)
        self._runs: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph] = {}
        self._last: tuple[Any, _Graph] | None = None  # found by comparing, which hashing outlasts

    @property
    def graphs(self) -> int:
        return len(self._graphs)

    @property
    def cuda_graphs(self) -> tuple[Any, ...]:
        """CuPy's Graph objects, to look at: one launched by itself finds no inputs."""
        return tuple(graph.cuda_graph for graph in self._graphs.values())

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do one step: as it is, recording it, or by replay. See :func:`capture`."""
        tensors: list[Tensor] = []
        kinds = (_kind(args, tensors), _kind(kwargs, tensors))
        device = next((t.device for t in tensors), self._device or default_device())
        if device.type != "cuda" or recording.current() is not None:
            return self.step(*args, **kwargs)
        modes = (is_grad_enabled(), autocast_dtype("cuda"), get_float32_matmul_precision())
        key = (device, modes, kinds)
        with use(device):
            stream = gpu.calls().stream()
            if gpu.capturing(stream):
                raise CaptureError(
                    f"{self.step.__name__} is a captured step and was called while CuPy's current "
                    "stream is being captured; wanted the step itself (its attribute step) there"
                )
            last = self._last
            graph = last[1] if last is not None and last[0] == key else self._graphs.get(key)
            if graph is not None and graph.is_good():
                self._last = key, graph
                return graph.replay(tensors, stream)
            if graph is not None:
                del self._graphs[key]
                self._runs[key], self._last = 0, None
            runs = self._runs.get(key, 0)
            self._runs[key] = runs + 1
            if runs < REHEARSALS:
                with under(Recording(capturing=False)):
                    return _named(lambda: self.step(*args, **kwargs))
            if len(self._graphs) == MOST_GRAPHS:
                raise CaptureError(
                    f"{self.step.__name__} was called with {MOST_GRAPHS + 1} different shapes, "
                    f"dtypes or other arguments; wanted at most {MOST_GRAPHS}, each a graph"
                )
            graph = _Graph(tensors)
            own_args, own_kwargs = graph.arguments(args, kwargs)
            graph.record(lambda: self.step(*own_args, **own_kwargs))
            self._graphs[key] = graph
            return graph.replay(tensors, stream, first=True)


def capture(step: Callable[P, R], device: str | Device | None = None) -> CapturedStep[P, R]:
    """Wrap a function of Tensors so that on a GPU it is recorded once and then replayed.

    The first two calls run the step as it is. The third records it in a CUDA graph with memory of
    its own, and runs that; later ones copy their arguments into place and replay it, with the
    same results, bit for bit, as the step itself would give. Learning rates and other options
    of optimisers, schedules, step counts and the random generators go on from step to step.
    Arguments of other shapes, dtypes or values (of those that are no Tensors), another mode of a
    module, autocast or another matmul precision are recorded anew. On the CPU the step is
    simply called, and so it is by another step that is being captured.

    A step may train: forward, ``optimizer.zero_grad()``, ``loss.backward()``, ``optimizer.step()``
    and ``schedule.step()``. What else it does in Python happens only while it is recorded.

    Args:
        step: takes Tensors, and lists, tuples and dictionaries of them, on one GPU; other
            arguments must be hashable. Returns Tensors, or lists, tuples or dictionaries of them.
        device: where it runs if no argument is a Tensor; None is the default device.

    Returns:
        A function like ``step``. The Tensors that it returns, and the gradients, are the
        graph's own memory, which the next call writes anew, and have no history.

    Raises:
        CaptureError: (a RuntimeError) by a call, naming the line, where the step reads
            from the GPU (``loss.item()``, ``if loss > 1``), copies to it, or does what CUDA cannot
            record; for more than 16 different shapes or other arguments; while CuPy's current
            stream is being captured by others.
        ArgumentError: (a ValueError) where ``step`` is no function.
    """
    if not callable(step):
        raise ArgumentError(f"step is {type(step).__name__}; wanted a function of Tensors")
    return CapturedStep(step, device)


class _Graph:
    """One recording: its inputs' memory, its CUDA graph, and what the step returned.

    Attributes:
        cuda_graph: CuPy's Graph.
    """

    def __init__(self, tensors: list[Tensor]) -> None:
        cupy = gpu.require()
        self._pool = cupy.cuda.MemoryPool()
        self._stream = gpu.new_stream()
        with gpu.on_stream(self._stream), cupy.cuda.using_allocator(self._pool.malloc):
            self._recording = Recording(capturing=True)
            places = [cupy.empty_like(t.data, order="K") for t in tensors]
            fed = [_alike(place, t.data) for place, t in zip(places, tensors)]
            self._fed = [n for n in range(len(places)) if fed[n]]
            self._assigned = [(n, place) for n, place in enumerate(places) if not fed[n]]
            self._feed = Feed(self._recording, [places[n] for n in self._fed])
        self._inputs = [Tensor.wrap(place) for place in places]

    def arguments(self, *values: Any) -> Any:
        """``values`` with the graph's own inputs in the places of the Tensors, in their order."""
        inputs = iter(self._inputs)
        return _mapped(values, lambda tensor: next(inputs))

    def record(self, step: Callable[[], Any]) -> None:
        cupy = gpu.cupy()
        cupy.get_default_memory_pool().free_all_blocks()  # what the rehearsals took
        memory = cupy.cuda.using_allocator(self._pool.malloc)
        with gpu.on_stream(self._stream), memory, under(self._recording):
            self._stream.begin_capture()
            try:
                self._feed.record()
                self._result = _mapped(_named(step), lambda tensor: Tensor.wrap(tensor.data))
            except BaseException:
                _end(self._stream)
                raise
            self.cuda_graph = self._stream.end_capture()
        self._recording.finish()
        self._feed.open()

    def is_good(self) -> bool:
        return self._recording.is_good()

    def replay(self, tensors: list[Tensor], stream: Any, first: bool = False) -> Any:
        """Run the graph on CuPy's current stream; ``first`` follows recording, which has acted."""
        for number, place in self._assigned:
            place[...] = tensors[number].data
        if not first:
            self._recording.act()
        self._feed.fill([tensors[number].data for number in self._fed])
        self.cuda_graph.launch(stream)
        self._feed.launched(stream)
        self._recording.set_gradients()
        return self._result


def _alike(place: Array, array: Array) -> bool:
    """Whether a copy of bytes makes ``place`` equal to ``array``."""
    return array.strides == place.strides and device_of(array) == device_of(place)


def _kind(value: Any, tensors: list[Tensor]) -> Any:
    """What of an argument a graph is recorded for; the Tensors in it are added to ``tensors``."""
    if isinstance(value, Tensor):
        if value.requires_grad:
            raise CaptureError(
                f"an argument of shape {value.shape} requires a gradient, which would go to the "
                "graph's copy of it; wanted only parameters to, which the step knows by itself"
            )
        tensors.append(value)
        data = value.data
        return (Tensor, value.device, data.shape, data.dtype, data.strides)
    if isinstance(value, (list, tuple)):
        return (type(value), *(_kind(item, tensors) for item in value))
    if isinstance(value, dict):
        return (dict, *((key, _kind(item, tensors)) for key, item in value.items()))
    try:
        hash(value)
    except TypeError:
        raise CaptureError(
            f"an argument of a captured step is {type(value).__name__}; wanted Tensors, lists, "
            "tuples and dictionaries of them, and what can be hashed"
        ) from None
    return (type(value), value)


def _mapped(value: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """``value`` with ``function`` of each Tensor in it."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, (list, tuple)):
        items = [_mapped(item, function) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, dict):
        return {key: _mapped(item, function) for key, item in value.items()}
    return value


def _named(step: Callable[[], Any]) -> Any:
    """Call ``step``; where it cannot be recorded, say at which of the user's lines."""
    try:
        return step()
    except CaptureError as error:
        raise CaptureError(f"{_line(error)}: {error}") from error
    except TinyBNError:
        raise
    except Exception as error:
        # CuPy's errors for what CUDA refuses while it records: cuBLAS, a read, a wait.
        refused = "captur" in str(error) and isinstance(error, (NotImplementedError, RuntimeError))
        if not refused and type(error).__name__ not in ("CUDARuntimeError", "CUDADriverError"):
            raise
        raise CaptureError(
            f"{_line(error)}: a captured step cannot do this ({error}); wanted launches alone, no "
            "reading, waiting or copying between CPU and GPU"
        ) from error


def _line(error: BaseException) -> str:
    """The innermost line outside this package, with its text."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not os.path.abspath(f.filename).startswith(_HERE + os.sep)]
    # CuPy's compiled files have frames too, without their text.
    outside = [f for f in own if f"{os.sep}cupy" not in f.filename and f.filename.endswith(".py")]
    frame = (outside or own or list(frames))[-1]
    text = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno}, {text!r}"


def _end(stream: Any) -> None:
    """End a recording that failed; CUDA has often ended it itself, and says so."""
    with contextlib.suppress(Exception):  # the first error is the one to tell
        stream.end_capture()
