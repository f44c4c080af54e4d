"""A model as a list of the operations that it runs on an example, with kernels held back."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..errors import GraphError
from ..kernels.launch import observe
from ..tensor import Tensor, no_grad, watch
from ..tensor.tape import Node, Op


class Call(NamedTuple):
    """One operation of a model.

    Attributes:
        op: the tape's class.
        inputs: for each operand the name of a traced value, a Tensor that was there before (a
            parameter, buffer or constant), a number, or None.
        options: keywords of ``op.forward``.
        result: the name of its result.
        shapes: of the traced inputs, by name, and of the result.
    """

    op: type[Op]
    inputs: tuple[Any, ...]
    options: Mapping[str, Any]
    result: str
    shapes: Mapping[str, tuple[int, ...]]


class Value(str):
    """The name of a traced value, to tell it from other strings."""


class Trace:
    """What :func:`trace` returns; a :class:`~tinybn.tensor.watch.Watcher` of the model's run.

    Attributes:
        inputs: the names of the model's inputs.
        calls: the operations, in order.
        outputs: the names of the results that the model returned.
        several: whether it returned a tuple or list of them.
    """

    def __init__(self, examples: Sequence[Tensor], check: Callable[[Call], None]) -> None:
        self._check = check
        self.inputs = ["x"] if len(examples) == 1 else [f"x{i}" for i in range(len(examples))]
        self.calls: list[Call] = []
        self.outputs: list[str] = []
        self.several = False
        self._names: dict[int, str] = {}
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._kept: list[Any] = []  # so that no other array takes the place of one seen
        for name, tensor in zip(self.inputs, examples):
            self._note(name, tensor)

    def _note(self, name: str, tensor: Tensor) -> None:
        self._names[id(tensor.data)] = name
        self._shapes[name] = tensor.shape
        self._kept.append(tensor.data)

    def operation(
        self, op: type[Op], inputs: Sequence[Any], options: Mapping[str, Any], result: Tensor
    ) -> None:
        given = tuple(self._named(value) for value in inputs)
        traced = [value for value in given if isinstance(value, Value)]
        name = f"v{len(self.calls)}"
        shapes = {str(value): self._shapes[value] for value in traced} | {name: result.shape}
        call = Call(op, given, dict(options), name, shapes)
        self._check(call)
        if not traced:  # of parameters and constants alone: a constant for what follows
            _compute(call, result)
            return
        self.calls.append(call)
        self._note(name, result)

    def _named(self, value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        name = self._names.get(id(value.data))
        return value if name is None else Value(name)

    def read(self, tensor: Any, what: str) -> None:
        if id(getattr(tensor, "data", None)) in self._names:
            raise GraphError(
                f"{what} reads a value that depends on the input, and what comes of it is no "
                "operation of a graph; wanted a model without branches on values, comparisons and "
                "masks"
            )

    def write(self, tensor: Tensor, what: str) -> None:
        raise GraphError(
            f"{what} writes in place to a tensor of shape {tensor.shape}; wanted a model that "
            "makes new tensors"
        )

    def finish(self, returned: Any) -> None:
        """Note what the model returned.

        Raises:
            GraphError: unless it is Tensors that it computed from its input.
        """
        self.several = isinstance(returned, (tuple, list))
        if self.several and not returned:
            raise GraphError("the model returns nothing; wanted Tensors, alone or in a tuple")
        for tensor in returned if self.several else [returned]:
            name = self._names.get(id(getattr(tensor, "data", None)))
            if name is None or name in self.inputs:
                raise GraphError(
                    f"the model returns {type(tensor).__name__} that no operation computed from "
                    "its input; wanted Tensors, alone or in a tuple"
                )
            self.outputs.append(name)


def _compute(call: Call, result: Tensor) -> None:
    """Give ``result`` its values, which have not come about with kernels held back."""
    if call.op.view:
        return
    arrays = [value.data if isinstance(value, Tensor) else value for value in call.inputs]
    with observe.under(observe.Observer()):
        node = Node(call.op, (False,) * len(arrays))
        result.data[...] = call.op.forward(node, *arrays, **call.options)


def trace(model: Callable, examples: Sequence[Tensor], check: Callable[[Call], None]) -> Trace:
    """Run ``model`` on ``examples`` with launches held back, and note what it does.

    Args:
        check: raises GraphError for a call that has no place in a graph.

    Raises:
        GraphError: for such an operation, control flow on values, or results that are not the
            model's Tensors; with the module's path.
    """
    try:
        return _traced(model, examples, check)
    except GraphError as error:
        path = _path(model, examples, check)
        raise GraphError(f"{path}: {error}") from error


def _traced(model: Callable, examples: Sequence[Tensor], check: Callable[[Call], None]) -> Trace:
    found = Trace(examples, check)
    with no_grad(), observe.under(observe.Observer(dry=True)), watch.under(found):
        returned = model(*examples)
    found.finish(returned)
    return found


def _path(model: Callable, examples: Sequence[Tensor], check: Callable[[Call], None]) -> str:
    """Which module tracing fails in: the model's name and the dotted path below it.

    The model is traced once more, with every ``forward`` wrapped; ordinarily a wrapper would
    keep ``Sequential`` from joining layers, and the trace from seeing what really runs.
    """
    name = name_of(model)
    modules = _modules(model)
    failed: list[str] = []

    def announced(path: str, forward: Callable) -> Callable:
        def call(*args: Any, **options: Any) -> Any:
            try:
                return forward(*args, **options)
            except GraphError:
                failed.append(path)
                raise

        return call

    own = [vars(module).get("forward") for _, module in modules]
    try:
        for path, module in modules:
            vars(module)["forward"] = announced(path, module.forward)
        with contextlib.suppress(GraphError):
            _traced(model, examples, check)
    finally:
        for (_, module), forward in zip(modules, own):
            del vars(module)["forward"]
            if forward is not None:
                vars(module)["forward"] = forward
    return f"{name}.{failed[0]}" if failed and failed[0] else name


def name_of(model: Callable) -> str:
    """What messages call the model: a function's name, or a module's class."""
    return getattr(model, "__name__", type(model).__name__)


def _modules(model: Callable) -> list[tuple[str, Any]]:
    """The model's modules by dotted path; of a function those of the models that it closes over."""
    holders = [("", model)]
    names = getattr(getattr(model, "__code__", None), "co_freevars", ())
    cells = getattr(model, "__closure__", None) or ()
    with contextlib.suppress(ValueError):  # of a cell that is empty yet
        holders += [(name, cell.cell_contents) for name, cell in zip(names, cells)]
    return [
        (".".join(filter(None, (prefix, path))), module)
        for prefix, holder in holders
        if hasattr(holder, "named_modules")
        for path, module in holder.named_modules()
    ]
