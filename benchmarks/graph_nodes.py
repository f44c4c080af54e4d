"""Count what a CUDA graph launches, through the driver: CuPy and PyTorch have no call for it."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

KERNEL, MEMCPY, MEMSET, CHILD = 0, 1, 2, 4  # CUgraphNodeType
LAUNCHES = frozenset((KERNEL, MEMCPY, MEMSET))
ACTIVE = 1  # CUstreamCaptureStatus


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


def count_so_far(stream: int, driver: Any = None) -> int | None:
    """Nodes of the graph that the stream of this handle is being captured to.

    CuPy destroys a graph once it is instantiated, and CUDA refuses to launch one into another.
    None where nothing is captured, and where the driver refuses, with the reason on standard
    error: a count that is missing leaves the other figures good.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1") if driver is None else driver
        status, graph = ctypes.c_int(), ctypes.c_void_p()
        _check(driver.cuStreamGetCaptureInfo_v2(
            ctypes.c_void_p(stream), ctypes.byref(status), None, ctypes.byref(graph), None, None
        ))  # fmt: skip
        return count(graph.value or 0, driver) if status.value == ACTIVE else None
    except (OSError, AttributeError, RuntimeError) as error:
        print(f"launches are not counted: {error}", file=sys.stderr)
        return None
