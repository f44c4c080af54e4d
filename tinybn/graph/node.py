"""The nodes of a RuntimeGraph, and the checks of how they are joined."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ..errors import ArgumentError, DTypeError, ShapeError, StateError
from ..kernels.arrays import Array
from ..tensor import Device, Tensor
from .runtime_op import RuntimeOp


class GraphNode:
    """A node: an operation under a name, what it reads, and its parameters."""

    def __init__(self, name: str, op: RuntimeOp, inputs: tuple[str, ...]) -> None:
        self.name, self.op, self.inputs = name, op, inputs
        self.parameters: dict[str, Tensor] = {}

    @property
    def learns(self) -> bool:
        """Whether one of its parameters wants a gradient."""
        return any(p.requires_grad for p in self.parameters.values())

    @property
    def frozen(self) -> list[str]:
        """The slots whose parameters want no gradient."""
        return [slot for slot, p in self.parameters.items() if not p.requires_grad]

    def arrays(self) -> dict[str, Array]:
        """The parameters' arrays."""
        return {name: tensor.data for name, tensor in self.parameters.items()}


class Wanted(NamedTuple):
    """The kind of an input that a graph is for: its dtype, and its shape but for the batch."""

    shape: tuple[int, ...]
    dtype: np.dtype

    def check(self, name: str, tensor: Tensor) -> None:
        """Raise ShapeError or DTypeError unless ``tensor`` is of this kind."""
        if tensor.shape[1:] != self.shape or not tensor.ndim:
            sizes = ", ".join(map(str, ("N", *self.shape)))
            raise ShapeError(f"{name} has shape {tensor.shape}; the graph is for [{sizes}]")
        if tensor.dtype != self.dtype:
            raise DTypeError(
                f"{name} has dtype {tensor.dtype.name}; the graph is for {self.dtype.name}"
            )


def check_name(name: str, taken: tuple[str, ...]) -> None:
    """Raise ArgumentError for a name that is none, or taken."""
    if not isinstance(name, str) or not name or "." in name:
        raise ArgumentError(f"a name is {name!r}; wanted a string that is not empty, without .")
    if name in taken:
        raise ArgumentError(f"the name {name!r} is taken; wanted another for this node or input")


def checked(
    name: str, op: RuntimeOp, given: Mapping[str, Tensor], device: Device
) -> dict[str, Tensor]:
    """``given`` in the order of the slots; raises StateError naming all that does not fit."""
    faults = [f"missing: {slot}" for slot in op.slots if slot not in given]
    faults += [f"unknown: {slot}" for slot in given if slot not in op.slots]
    for slot, kind in op.slots.items():
        tensor = given.get(slot)
        if slot in given and not isinstance(tensor, Tensor):
            faults.append(f"{slot} is {type(tensor).__name__}, wanted a Tensor")
        elif tensor is not None and tensor.shape != kind.shape:
            faults.append(f"{slot} has shape {tensor.shape}, wanted {kind.shape}")
        elif tensor is not None and tensor.device != device:
            faults.append(f"{slot} is on {tensor.device}, wanted {device}")
    if faults:
        raise StateError(f"the parameters do not fit node {name} ({op.name}); {'; '.join(faults)}")
    return {slot: given[slot] for slot in op.slots}


def ordered(
    nodes: Mapping[str, GraphNode], inputs: tuple[str, ...], outputs: tuple[str, ...]
) -> list[GraphNode]:
    """The nodes in the order in which they were added, but each after those that it reads.

    Raises:
        ArgumentError: as :attr:`RuntimeGraph.nodes`.
    """
    if not nodes:
        raise ArgumentError("the graph has no nodes; wanted at least one")
    for node in nodes.values():
        for name in node.inputs:
            if name not in nodes and name not in inputs:
                raise ArgumentError(
                    f"node {node.name} reads {name!r}, which is neither an input nor a node"
                )
    order: list[GraphNode] = []
    done = set(inputs)
    waiting = list(nodes.values())
    while waiting:
        ready = next((n for n in waiting if done.issuperset(n.inputs)), None)
        if ready is None:
            names = ", ".join(node.name for node in waiting)
            raise ArgumentError(f"the nodes {names} wait for each other in a cycle; wanted none")
        waiting.remove(ready)
        order.append(ready)
        done.add(ready.name)
    used = set(outputs)
    for node in reversed(order):
        if node.name not in used:
            raise ArgumentError(
                f"node {node.name} is not connected to an output ({', '.join(outputs)}); wanted "
                "every result to be used"
            )
        used.update(node.inputs)
    unused = [name for name in inputs if name not in used]
    if unused:
        raise ArgumentError(f"the inputs {', '.join(unused)} are read by no node; wanted them used")
    return order
