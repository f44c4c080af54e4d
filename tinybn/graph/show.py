"""A RuntimeGraph as a table and as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .plan import Plan

if TYPE_CHECKING:
    from .runtime_graph import RuntimeGraph


def columns(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: int) -> str:
    """A table in plain text; the last ``numbers`` columns are set to the right."""
    widths = [max(len(row[i]) for row in [head, *rows]) for i in range(len(head))]
    left = len(head) - numbers
    return "\n".join(
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths))
        ).rstrip()
        for row in [head, *rows]
    )


def bytes_text(nbytes: int) -> str:
    """Bytes for people: 1234567 is ``1.2 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.1f} {unit}"
    return f"{nbytes} B"


def table(graph: RuntimeGraph, plan: Plan | None) -> str:
    """Node, op, inputs, output shape, parameters, launches and bytes, a line a node."""
    head = ("node", "op", "inputs", "output", "parameters", "launches", "bytes")
    steps = {} if plan is None else {step.node.name: step for step in plan.steps}
    rows = []
    nodes, fault = graph.readable_nodes()
    for node in nodes:
        step = steps.get(node.name)
        text = node.op.describe()
        rows.append((
            node.name, f"{node.op.name}({text})" if text else node.op.name,
            ", ".join(node.inputs), "?" if step is None else f"{list(step.shape)} {step.dtype}",
            str(sum(p.size for p in node.parameters.values())),
            "?" if step is None else str(len(step.launches)),
            "?" if step is None else bytes_text(step.bytes),
        ))  # fmt: skip
    lines = [columns(head, rows, 3), f"outputs: {', '.join(graph.outputs)}"]
    if plan is not None:
        launches = sum(len(step.launches) for step in plan.steps)
        back = sum(len(step.backward_launches) for step in plan.steps)
        lines.append(
            f"{launches} launches forward" + (f", {back} backward" if back else "")
            + f"; results in {bytes_text(plan.peak)}, side by side {bytes_text(plan.sum)}"
        )  # fmt: skip
    return "\n".join([*lines, *fault, *graph.notes])


def draw(graph: RuntimeGraph, plan: Plan | None) -> str:
    """DOT source of the graph."""
    steps = {} if plan is None else {step.node.name: step for step in plan.steps}
    lines = ["digraph runtime {", "  rankdir=TB;", '  node [fontname="sans-serif", shape=box];']
    lines += [f"  {_quoted(name)} [shape=ellipse];" for name in graph.inputs]
    for node in graph.readable_nodes()[0]:
        slots = ", ".join(f"{n} {list(s.shape)}" for n, s in node.op.slots.items())
        parts = [node.name, " ".join(filter(None, (node.op.name, node.op.describe()))), slots]
        label = _quoted("\n".join(part for part in parts if part))
        style = ", peripheries=2" if node.name in graph.outputs else ""
        lines.append(f"  {_quoted(node.name)} [label={label}{style}];")
        for name in node.inputs:
            step = steps.get(name)
            shape = "" if step is None else f' [label="{list(step.shape)}"]'
            lines.append(f"  {_quoted(name)} -> {_quoted(node.name)}{shape};")
    return "\n".join([*lines, "}"])


def _quoted(text: str) -> str:
    """A string of DOT."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
