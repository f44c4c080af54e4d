"""The tape as a picture, in Graphviz's DOT language."""

from __future__ import annotations

from ..errors import TapeError
from ..tensor import Tensor
from ..tensor.tape import Node


def to_dot(tensor: Tensor) -> str:
    """Draw the recorded graph behind ``tensor``: ovals are operations, boxes are leaves.

    Render it with Graphviz: ``dot -Tsvg``. An arrow is labelled with the shape
    and dtype of what it carries forward, and of the gradient that comes back.

    Args:
        tensor: a result of recorded operations, such as a loss.

    Returns:
        DOT source.

    Raises:
        TapeError: if nothing was recorded, or backward has freed the graph.
    """
    if tensor._node is None:
        raise TapeError(
            "to_dot needs a tensor that operations recorded; this one is a leaf, or was made "
            "under no_grad"
        )
    lines = ["digraph tape {", "  rankdir=BT;", '  node [fontname="sans-serif"];']
    names: dict[int, str] = {}
    waiting: list[Node | Tensor] = [tensor._node]
    edges: list[tuple[Node | Tensor, Node]] = []
    while waiting:
        item = waiting.pop()
        if id(item) in names:
            continue
        names[id(item)] = f"n{len(names)}"
        if isinstance(item, Node):
            if item._freed:
                raise TapeError(
                    "to_dot was given a graph that backward has freed; draw it before, or call "
                    "backward(retain_graph=True)"
                )
            lines.append(f'  {names[id(item)]} [label="{item.op.__name__}"];')
            parents = [parent for parent in item.parents if parent is not None]
            waiting += parents
            edges += [(parent, item) for parent in parents]
        else:
            label = f"{_describe(item)}"
            lines.append(f'  {names[id(item)]} [shape=box, label="{label}"];')
    for parent, child in edges:
        lines.append(f'  {names[id(parent)]} -> {names[id(child)]} [label="{_describe(parent)}"];')
    return "\n".join([*lines, "}"])


def _describe(item: Node | Tensor) -> str:
    return f"{item.dtype} {list(item.shape)}"
