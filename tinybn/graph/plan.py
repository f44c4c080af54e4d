"""A plan: what a graph runs for inputs of one shape, and where each result lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ShapeError, TinyBNError
from ..kernels.arrays import Array, namespace
from ..kernels.launch.observe import Launch
from ..tensor import Tensor
from ..tensor.tape import Node, shares_memory
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
        keeps: the graph's inputs whose memory its backward reads.
    """

    node: GraphNode
    shape: tuple[int, ...]
    dtype: Any
    out: Array | None
    launches: list[Launch]
    backward_launches: list[Launch]
    bytes: int
    keeps: tuple[str, ...]


@dataclass
class Run:
    """What backward needs of a forward.

    Attributes:
        roots: for each output where backward begins, and its array.
        recorded: whether a CUDA graph writes the same memory anew at each replay.
        backward: of such a run, a captured step, once there is one.
    """

    roots: list[tuple[Node | None, Array]]
    recorded: bool
    backward: Any = None


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
        results: dict[str, Array] = dict(inputs)
        wanted = dict(wants)
        owner: dict[str, str] = {name: name for name in inputs}
        made: dict[str, int] = {}
        reads: dict[str, int] = {}
        keeps: dict[str, set[str]] = {}
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
            # Backward comes in the reverse order, after the last step of forward.
            for array in run.saved:
                for name in (*node.inputs, node.name):
                    if shares_memory(array, results[name]):
                        if owner[name] in inputs:
                            keeps.setdefault(node.name, set()).add(owner[name])
                        reads[owner[name]] = max(reads.get(owner[name], 0), last - i)
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
                tuple(keeps.get(node.name, ())),
            )
            for node in nodes
        ]  # fmt: skip

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
        watched: Mapping[str, Tensor] | None = None,
    ) -> tuple[dict[str, Array], dict[str, Node]]:
        """Run all steps.

        Args:
            inputs: an array for each of the graph's inputs.
            sources: for backward, what each input's gradient goes to (a node of the tape, a
                leaf, or None); without it nothing is kept for backward.
            copies: whether each result gets memory of its own.
            watched: the inputs as Tensors, where backward is to refuse those, and parameters,
                that were written in place since.

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
                if watched is not None:
                    ctx.watch(
                        list(node.parameters.values()), [watched[name] for name in step.keeps]
                    )
                made[node.name] = ctx if True in ctx.needs and node.op.has_backward else None
        return results, made


def _dry_run(node: GraphNode, inputs: Sequence[Array], needs: Sequence[bool] | None) -> DryRun:
    """The node's dry run; what it refuses names it."""
    named = f"node {node.name} ({node.op.name})"
    try:
        return node.op.dry_run(inputs, node.arrays(), needs)
    except TinyBNError as error:
        raise type(error)(f"{named}: {error}") from error
    except (ValueError, TypeError, IndexError) as error:  # the array library's own
        given = ", ".join(f"{a.dtype} {a.shape}" for a in inputs)
        raise ShapeError(f"{named} does not take {given}: {error}") from error


def _context(node: GraphNode, made: Mapping[str, Any], recorded: bool) -> Node:
    if not recorded:
        return node.op.context()
    ctx = node.op.context([made[name] is not None for name in node.inputs])
    ctx.needs = tuple(
        need and (not isinstance(of, str) or node.parameters[of].requires_grad)
        for of, need in zip(node.op.operands, ctx.needs)
    )
    return ctx


def _source(node: GraphNode, of: Operand, made: Mapping[str, Any]) -> Any:
    """Where the gradient of an operand goes: another node of the tape, or a leaf."""
    if isinstance(of, int):
        return made[node.inputs[of]]
    return node.parameters[of] if isinstance(of, str) else None


def _lying(block: Array, offset: int, like: Array) -> Array:
    """A part of ``block`` with the shape, dtype and strides of ``like``, which is dense."""
    flat = block[offset : offset + like.nbytes].view(like.dtype)
    return namespace(block).lib.stride_tricks.as_strided(flat, like.shape, like.strides)
