"""A model made a RuntimeGraph: traced on an example, checked, and shortened for inference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..errors import ArgumentError, DTypeError, GraphError, TinyBNError
from ..kernels.arrays import Array, namespace
from ..tensor import Tensor, no_grad
from ..tensor.device import use
from .fold import Draft, fold
from .lower import check, lower
from .node import Wanted
from .ops import TapeRuntimeOp
from .runtime_graph import RuntimeGraph
from .trace import Call, Trace, Value, name_of, trace


def compile(
    model: Callable, example: Tensor | Sequence[Tensor], *, train: bool = False
) -> RuntimeGraph:
    """Make a graph of what ``model`` computes.

    For inference, BatchNorm is folded into the Linear or Conv2d before it where both together
    give, on the example, the same up to rounding (``graph.notes`` says where they do not), and
    residuals and activations are joined to the products before them. The parameters are copies:
    after more training, compile again. With ``train`` nothing is changed: parameters and buffers
    are the model's own, and ``forward`` and ``backward`` give the values, gradients and running
    statistics that the tape gives.

    Args:
        model: any function of Tensors: an nn model, or for training one that returns the loss,
            such as ``lambda x, t: cross_entropy(model(x), t)``. Its inputs' first axis is the
            batch, whose size is free; another shape or dtype is refused.
        example: its input, or several. Values count: folding is judged by them, and the graph
            is checked against the model on one sample, on all, and on one more in another order:
            what a model does only at other batch sizes it cannot see.
        train: whether the graph trains.

    Returns:
        The graph, which has run on the example.

    Raises:
        GraphError: for what cannot be traced: control flow that depends on values, an operation
            that graphs do not know, a model in training mode (without ``train``), a batch size
            that is built in; naming the module's path.
        ArgumentError, DTypeError: where ``model`` is no function or ``example`` no Tensors.
    """
    if not callable(model):
        raise ArgumentError(f"model is {type(model).__name__}; wanted a function of Tensors")
    examples = [example] if isinstance(example, Tensor) else example
    if not isinstance(examples, Sequence) or not examples or not all(map(_is_batch, examples)):
        raise DTypeError("example is not a Tensor, or a sequence of Tensors, of one sample or more")
    examples = [tensor.detach() for tensor in examples]
    found = trace(model, examples, lambda call: check(call, train))
    drafts = [_draft(call) for call in found.calls]
    buffers = _buffers(drafts)
    drafts = _used(drafts, found.outputs)
    if len(_buffers(drafts)) < len(buffers) and train:
        raise GraphError(
            f"{name_of(model)} updates running statistics in a layer whose result it does not use; "
            "wanted all results used"
        )
    graph = _built(drafts, found, examples, train)
    _check(model, graph, examples, buffers)
    if not train:
        results = graph.results(*examples)
        drafts, notes = fold(drafts, found.outputs, results)
        _copy_parameters(drafts)
        graph = _built(drafts, found, examples, train)
        graph.notes += [note.sentence() for note in notes]
        graph.forward(*examples)
    graph.forget()
    graph.wanted = {
        name: Wanted(tensor.shape[1:], tensor.dtype) for name, tensor in zip(graph.inputs, examples)
    }
    return graph


def _copy_parameters(drafts: Sequence[Draft]) -> None:
    """Give the drafts parameters of their own; those that nodes share, they share."""
    copies: dict[int, Tensor] = {}
    for draft in drafts:
        for slot, tensor in draft.parameters.items():
            copies.setdefault(id(tensor), tensor.detach().clone())
            draft.parameters[slot] = copies[id(tensor)]


def _is_batch(value: Any) -> bool:
    return isinstance(value, Tensor) and value.ndim > 0 and value.size > 0


def _draft(call: Call) -> Draft:
    op, parameters = lower(call)
    inputs: list[str] = [value for value in call.inputs if isinstance(value, Value)]
    if isinstance(op, TapeRuntimeOp):  # whose operands may be one input twice
        inputs = list(dict.fromkeys(inputs))
    return Draft(call.result, op, inputs, parameters)


def _used(drafts: list[Draft], outputs: Sequence[str]) -> list[Draft]:
    """Those whose results reach an output: a model may compute what it does not return."""
    used = set(outputs)
    kept = []
    for draft in reversed(drafts):
        if draft.name in used:
            used.update(draft.inputs)
            kept.append(draft)
    return kept[::-1]


def _built(
    drafts: Sequence[Draft], found: Trace, examples: Sequence[Tensor], train: bool
) -> RuntimeGraph:
    """The graph of ``drafts``, which take the names that its nodes have."""
    graph = RuntimeGraph(*found.inputs, train=train, device=examples[0].device)
    names: dict[str, str] = {name: name for name in found.inputs}
    for draft in drafts:
        draft.inputs = [names[name] for name in draft.inputs]
        names[draft.name] = draft.name = graph.add(
            draft.op, *draft.inputs, parameters=draft.parameters
        )
    found.outputs = [names[name] for name in found.outputs]
    graph.output(*found.outputs)
    graph.several = found.several
    return graph


def _buffers(drafts: Sequence[Draft]) -> list[Tensor]:
    """What running the nodes may write to."""
    return [
        tensor for draft in drafts for name, tensor in draft.parameters.items()
        if not draft.op.slots[name].learned
    ]  # fmt: skip


def _check(
    model: Callable, graph: RuntimeGraph, examples: Sequence[Tensor], buffers: Sequence[Tensor]
) -> None:
    """Compare the graph with the model: on one sample, on one more in another order, and on all.

    Raises:
        GraphError: where they differ.
    """
    ones = [tensor[:1] for tensor in examples]
    for inputs in (ones, [_longer(tensor) for tensor in examples], examples):
        try:
            expected = _run(model, inputs, buffers)
        except TinyBNError:
            if inputs is ones:  # such as one value a channel in training
                continue
            raise
        try:
            given = _run(graph.forward, inputs, buffers)
        except TinyBNError as error:
            raise GraphError(
                f"the graph of {name_of(model)} takes no batch of {len(inputs[0].data)}, which the "
                f"model takes ({error}); wanted a model without constants of the batch's size"
            ) from error
        for one, other in zip(expected, given):
            if not _same(one, other):
                raise GraphError(
                    f"the graph of {name_of(model)} gives another result than it on a batch of "
                    f"{len(inputs[0].data)}; wanted a model that treats every batch by the same "
                    "operations"
                )


def _longer(tensor: Tensor) -> Tensor:
    xp = namespace(tensor.data)
    with use(tensor.device):
        return Tensor.wrap(xp.concatenate([tensor.data[::-1], tensor.data[:1]]))


def _run(function: Callable, inputs: Sequence[Tensor], buffers: Sequence[Tensor]) -> list[Array]:
    """Copies of what ``function`` returns; ``buffers`` are afterwards as they were."""
    before = [tensor.data.copy() for tensor in buffers]
    try:
        with no_grad():
            returned = function(*inputs)
        several = returned if isinstance(returned, (tuple, list)) else [returned]
        return [tensor.data.copy() for tensor in several]
    finally:
        for tensor, array in zip(buffers, before):
            tensor.data[...] = array


def _same(one: Array, other: Array) -> bool:
    """Whether the bits are the same but for NaN's."""
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    return bool(((one == other) | ((one != one) & (other != other))).all())
