"""A plan: what a graph runs for inputs of one shape, and where each result lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..errors import ShapeError, TapeError, TinyBNError
from ..kernels.arrays import Array, namespace
from ..kernels.launch.observe import Launch
from ..tensor import Tensor
from ..tensor.tape import Node, Version, shares_memory
from .memory import Lifetime, place, rounded
from .node import GraphNode
from .replay import Replay
from .runtime_op import DryRun, Operand


@dataclass
class Step:
    """One node of a plan.

    Attributes:
        node: of the graph.
        shape, dtype: of the result.
        out: memory for the result, or None where the operation finds its own.
        launches, backward_launches: what it launches.
        bytes: of its inputs, parameters and result.
    """

    node: GraphNode
    shape: tuple[int, ...]
    dtype: Any
    out: Array | None
    launches: list[Launch]
    backward_launches: list[Launch]
    bytes: int


@dataclass
class Run:
    """What backward needs of a forward.

    Attributes:
        roots: for each output where backward begins, and its array.
        recorded: whether a CUDA graph writes the same memory anew at each replay.
        backward: of such a run, a captured step, once there is one.
        versions: of what backward reads, by name, and how often it had been written in place.
    """

    roots: list[tuple[Node | None, Array]]
    recorded: bool
    backward: Any = None
    versions: list[tuple[str, Version, int]] = field(default_factory=list)

    def note(self, kept: Mapping[str, Tensor]) -> None:
        """Note the versions of what backward reads, after each forward."""
        self.versions = [(name, t._version, t._version.value) for name, t in kept.items()]

    def check(self) -> None:
        """Raise TapeError where what backward reads was written in place since."""
        for name, version, value in self.versions:
            if version.value != value:
                raise TapeError(
                    f"backward needs {name} as forward had it, but it was written in place since; "
                    "write into a copy instead"
                )


class Plan:
    """The steps of a graph for inputs of one shape, dtype and layout.

    Attributes:
        steps: in the order in which they run.
        peak: bytes of the block in which results lie whose memory is planned.
        sum: bytes that these results would take side by side.
    """

    def __init__(
        self, nodes: Sequence[GraphNode], inputs: Mapping[str, Array], outputs: Sequence[str],
        train: bool, wants: Mapping[str, bool],
    ) -> None:  # fmt: skip
        self._runs = 0
        self._replay: Replay | None = None
        self._dtypes = [(t, t.dtype) for node in nodes for t in node.parameters.values()]
        self._parameters: dict[str, Tensor] = {}  # that backward reads
        results: dict[str, Array] = dict(inputs)
        wanted = dict(wants)
        owner: dict[str, str] = {name: name for name in inputs}
        made: dict[str, int] = {}
        reads: dict[str, int] = {}
        dry = {}
        last = 2 * len(nodes)
        for i, node in enumerate(nodes):
            given = [results[name] for name in node.inputs]
            needs = [wanted[name] for name in node.inputs] if train else None
            run = dry[node.name] = _dry_run(node, given, needs)
            results[node.name] = run.result
            wanted[node.name] = (
                train
                and node.op.has_backward
                and (any(wanted[name] for name in node.inputs) or node.learns)
            )
            owner[node.name] = owner[node.inputs[0]] if run.view else node.name
            made[node.name] = i
            for name in node.inputs:
                reads[owner[name]] = max(reads.get(owner[name], 0), i)
            for slot, tensor in node.parameters.items():
                if any(shares_memory(array, tensor.data) for array in run.saved):
                    self._parameters[f"{node.name}.{slot}"] = tensor
            # Backward comes in the reverse order, after the last step of forward.
            for array in run.saved:
                for name in (*node.inputs, node.name):
                    if shares_memory(array, results[name]):
                        reads[owner[name]] = max(reads.get(owner[name], 0), last - i)
        kept = {name for name, read in reads.items() if read >= len(nodes)}
        self._kept = [(i, n) for i, n in enumerate((*inputs, *outputs)) if owner[n] in kept]
        for name in outputs:
            reads[owner[name]] = last + 1
        # An output is the caller's, and lies in memory of its own.
        taken = {owner[name] for name in outputs}
        planned = [
            node.name for node in nodes
            if node.op.takes_out and owner[node.name] == node.name and node.name not in taken
            and results[node.name].size
        ]  # fmt: skip
        spans = [
            Lifetime(results[n].nbytes, made[n], max(reads.get(n, 0), made[n])) for n in planned
        ]
        offsets, self.peak = place(spans)
        self.sum = sum(rounded(span.nbytes) for span in spans)
        outs: dict[str, Array] = {}
        if planned:
            block = namespace(results[planned[0]]).empty(self.peak, "uint8")
            outs = {n: _lying(block, at, results[n]) for n, at in zip(planned, offsets)}
        self.steps = [
            Step(
                node, results[node.name].shape, results[node.name].dtype, outs.get(node.name),
                dry[node.name].launches, dry[node.name].backward_launches,
                sum(a.nbytes for a in [
                    *(results[n] for n in node.inputs), *node.arrays().values(),
                    results[node.name],
                ]),
            )
            for node in nodes
        ]  # fmt: skip

    def is_good(self) -> bool:
        """Whether the parameters still have the dtypes for which memory was planned."""
        for tensor, dtype in self._dtypes:
            if tensor.dtype != dtype:
                return False
        return True

    def kept(self, inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> dict[str, Tensor]:
        """Those of the graph's inputs, outputs and parameters that backward reads, by name."""
        given = (*inputs, *outputs)
        return {name: given[i] for i, name in self._kept} | self._parameters

    def replay(self, inputs: Mapping[str, Array], outputs: Sequence[str]) -> dict[str, Array]:
        """The outputs on the CPU engine: by :meth:`run`, from the second call on by a replay."""
        self._runs += 1
        if self._runs == 1:
            results, _ = self.run(inputs)
            return {name: results[name] for name in outputs}
        if self._replay is None or not self._replay.is_good():
            self._replay = Replay(self.steps, inputs, outputs)
        else:
            self._replay.run(inputs)
        return self._replay.outputs()

    def run(
        self,
        inputs: Mapping[str, Array],
        sources: Mapping[str, Any] | None = None,
        copies: bool = False,
    ) -> tuple[dict[str, Array], dict[str, Node]]:
        """Run all steps.

        Args:
            inputs: an array for each of the graph's inputs.
            sources: for backward, what each input's gradient goes to (a node of the tape, a
                leaf, or None); without it nothing is kept for backward.
            copies: whether each result gets memory of its own.

        Returns:
            Every node's result, and with ``sources`` its node on the tape.
        """
        results = dict(inputs)
        made: dict[str, Any] = dict(sources) if sources is not None else {}
        for step in self.steps:
            node = step.node
            given = [results[name] for name in node.inputs]
            ctx = _context(node, made, sources is not None)
            with np.errstate(all="ignore"):  # infinities and NaN are values, as on the tape
                result = node.op.forward(ctx, given, node.arrays(), None if copies else step.out)
            results[node.name] = result
            if sources is not None:
                ctx.shape, ctx.dtype = result.shape, result.dtype
                ctx.parents = tuple(
                    _source(node, of, made) if need else None
                    for of, need in zip(node.op.operands, ctx.needs)
                )
                made[node.name] = ctx if True in ctx.needs and node.op.has_backward else None
        return results, made


def _dry_run(node: GraphNode, inputs: Sequence[Array], needs: Sequence[bool] | None) -> DryRun:
    """The node's dry run; what it refuses names it."""
    named = f"node {node.name} ({node.op.name})"
    try:
        return node.op.dry_run(inputs, node.arrays(), needs, node.frozen)
    except TinyBNError as error:
        raise type(error)(f"{named}: {error}") from error
    except (ValueError, TypeError, IndexError) as error:  # the array library's own
        given = ", ".join(f"{a.dtype} {a.shape}" for a in inputs)
        raise ShapeError(f"{named} does not take {given}: {error}") from error


def _context(node: GraphNode, made: Mapping[str, Any], recorded: bool) -> Node:
    if not recorded:
        return node.op.context()
    return node.op.context([made[name] is not None for name in node.inputs], node.frozen)


def _source(node: GraphNode, of: Operand, made: Mapping[str, Any]) -> Any:
    """Where the gradient of an operand goes: another node of the tape, or a leaf."""
    if isinstance(of, int):
        return made[node.inputs[of]]
    return node.parameters[of] if isinstance(of, str) else None


def _lying(block: Array, offset: int, like: Array) -> Array:
    """A part of ``block`` with the shape, dtype and strides of ``like``, which is dense."""
    flat = block[offset : offset + like.nbytes].view(like.dtype)
    return namespace(block).lib.stride_tricks.as_strided(flat, like.shape, like.strides)
