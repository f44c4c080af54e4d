"""Count what a CUDA graph launches, through the driver: CuPy and PyTorch have no call for it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from tinybn.kernels import gpu

KERNEL, MEMCPY, MEMSET, CHILD = 0, 1, 2, 4  # CUgraphNodeType
LAUNCHES = frozenset((KERNEL, MEMCPY, MEMSET))


def count(graph: int, driver: Any = None) -> int:
    """Kernels, copies and fills among the nodes of a CUgraph and of the graphs in it.

    Args:
        graph: the handle.
        driver: has the driver's functions; the library itself where not given.

    Raises:
        RuntimeError: where the driver refuses.
    """
    driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
    size = ctypes.c_size_t()
    handle = ctypes.c_void_p(graph)
    _check(driver.cuGraphGetNodes(handle, None, ctypes.byref(size)))
    nodes = (ctypes.c_void_p * size.value)()
    _check(driver.cuGraphGetNodes(handle, nodes, ctypes.byref(size)))
    total = 0
    for node in nodes[: size.value]:
        kind = ctypes.c_int()
        _check(driver.cuGraphNodeGetType(ctypes.c_void_p(node), ctypes.byref(kind)))
        if kind.value == CHILD:
            child = ctypes.c_void_p()
            _check(driver.cuGraphChildGraphNodeGetGraph(
                ctypes.c_void_p(node), ctypes.byref(child)
            ))  # fmt: skip
            total += count(child.value or 0, driver)
        else:
            total += kind.value in LAUNCHES
    return total


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"the CUDA driver answers with error {status}; wanted a graph's nodes")


def count_captured(launch: Callable[[], object]) -> int | None:
    """Nodes of what one call of ``launch`` queues on CuPy's current stream, which does not run.

    A CUDA graph that it launches becomes a child of the one captured here. None where it cannot
    be captured, with the reason on standard error.
    """
    import cupy

    runtime = cupy.cuda.runtime
    stream = gpu.new_stream()  # CUDA captures no legacy default stream
    graph = None
    try:
        with gpu.on_stream(stream):
            runtime.streamBeginCapture(stream.ptr)
            try:
                launch()
            finally:
                graph = runtime.streamEndCapture(stream.ptr)
        return count(graph)
    except Exception as error:  # a count that is missing leaves the other figures good
        print(f"launches are not counted: {error}", file=sys.stderr)
        return None
    finally:
        if graph:
            runtime.graphDestroy(graph)
