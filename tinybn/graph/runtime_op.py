"""RuntimeOp: one node's operation, with its parameters, its launches and its backward.

It runs an operation of the tape (``tensor/ops``) on arrays, so there is one forward, one
backward and one shape rule. What it adds is what a plan needs to know beforehand: how many
activations come in, which parameters there are, what comes out and what is launched. That is
found by a dry run: the operation on uninitialised arrays, with its launches held back.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np

from ..errors import ArgumentError
from ..kernels.arrays import Array, namespace
from ..kernels.launch.observe import Launch, Observer, under
from ..tensor.tape import Node, Op, shares_memory

Kind = TypeVar("Kind", bound="RuntimeOp")


class Slot(NamedTuple):
    """A parameter of a RuntimeOp.

    Attributes:
        shape: of its Tensor.
        learned: whether backward gives it a gradient; else it is a buffer.
        dtype: where it is none of the graph's choice, such as a count's.
    """

    shape: tuple[int, ...]
    learned: bool = True
    dtype: np.dtype | None = None


class Constant(NamedTuple):
    """An operand that is a number."""

    value: Any


Operand = int | str | Constant | None


class DryRun(NamedTuple):
    """What :meth:`RuntimeOp.dry_run` found out.

    Attributes:
        result: an uninitialised array of the result's shape, dtype and layout.
        view: whether it shares the first input's memory.
        saved: the arrays that backward needs of the inputs, parameters and the result.
        launches, backward_launches: what forward and backward launch, in order.
    """

    result: Array
    view: bool
    saved: list[Array]
    launches: list[Launch]
    backward_launches: list[Launch]


class RuntimeOp:
    """An operation of a :class:`RuntimeGraph`; a subclass names the tape's op and its operands.

    Attributes:
        op: the tape's operation, whose forward and backward it calls.
        inputs: how many activations come in.
        slots: the parameters by name.
        operands: for each operand of ``op.forward`` the number of an input, the name of a slot,
            a :class:`Constant`, or None for one that is left out.
        options: keywords of ``op.forward``.
        made_with: the arguments of its constructor, by place and by keyword: all that it is.
        has_backward: whether gradients run through it.
        takes_out: whether ``op.forward`` writes to memory that it is given.
    """

    op: ClassVar[type[Op]]
    made_with: tuple[tuple[Any, ...], dict[str, Any]]
    inputs: int = 1
    has_backward: bool = True
    takes_out: ClassVar[bool] = False

    def __new__(cls: type[Kind], *args: Any, **options: Any) -> Kind:
        op = object.__new__(cls)
        op.made_with = (args, options)
        return op

    def __init__(
        self,
        slots: Mapping[str, Slot] | None = None,
        operands: Sequence[Operand] = (0,),
        **options: Any,
    ) -> None:
        self.slots: dict[str, Slot] = dict(slots or {})
        self.operands = tuple(operands)
        for of in self.operands:
            if not (of is None or isinstance(of, (int, Constant)) or of in self.slots):
                raise ArgumentError(
                    f"an operand is {of!r}; wanted an input's number, a Constant, None or one of "
                    f"the slots ({', '.join(self.slots)})"
                )
        self.options = options

    @property
    def name(self) -> str:
        """Of its kind, such as ``"Linear"``."""
        return type(self).__name__.removesuffix("RuntimeOp")

    def keywords(self, inputs: Sequence[Array], parameters: Mapping[str, Array]) -> dict[str, Any]:
        """The keywords of ``op.forward`` for these arrays."""
        return self.options

    def forward(
        self,
        ctx: Node,
        inputs: Sequence[Array],
        parameters: Mapping[str, Array],
        out: Array | None = None,
    ) -> Array:
        """Run the operation on arrays.

        Args:
            ctx: keeps what backward needs.
            inputs: the activations.
            parameters: an array for each slot.
            out: where the result is written, of its shape, dtype and layout.
        """
        operands = [_operand(of, inputs, parameters) for of in self.operands]
        keywords = self.keywords(inputs, parameters)
        if out is not None:
            return self.op.forward(ctx, *operands, out=out, **keywords)
        return self.op.forward(ctx, *operands, **keywords)

    def context(self, wanted: Sequence[bool] | None = None, frozen: Container[str] = ()) -> Node:
        """A Node in which :meth:`forward` keeps what backward needs.

        Args:
            wanted: which inputs want a gradient; None for no backward.
            frozen: the learned slots that want none now.
        """
        if wanted is None or not self.has_backward:
            return Node(self.op, (False,) * len(self.operands))
        return Node(self.op, tuple(
            wanted[of] if isinstance(of, int)
            else isinstance(of, str) and self.slots[of].learned and of not in frozen
            for of in self.operands
        ))  # fmt: skip

    def dry_run(
        self,
        inputs: Sequence[Array],
        parameters: Mapping[str, Array],
        backward: Sequence[bool] | None = None,
        frozen: Container[str] = (),
    ) -> DryRun:
        """Find the result's shape, dtype and layout, and the launches; nothing is computed.

        Args:
            inputs: arrays of the inputs' shapes, dtypes and layouts.
            parameters: an array for each slot.
            backward: which inputs want a gradient; None for no backward.
            frozen: as of :meth:`context`.

        Raises:
            TinyBNError: for inputs or parameters that do not fit, as the operation says it.
        """
        ctx = self.context(backward, frozen)
        seen, back = Observer(dry=True), Observer(dry=True)
        with np.errstate(all="ignore"):
            with under(seen):
                result = self.forward(ctx, inputs, parameters)
            view = self.op.view and shares_memory(result, inputs[0])
            if not (seen.launches or view):
                seen.launches.append(self._library_call(result, inputs))
            saved = []
            if True in ctx.needs:
                saved = _arrays(ctx.saved)
                with under(back):
                    gradient = namespace(result).empty_like(result)
                    gradients = self.op.backward(ctx, gradient)
                if not (back.launches or view):
                    made = [g for g in gradients if g is not None]
                    back.launches.append(self._library_call(gradient, made))
        launches, backward_launches = (
            [launch.without_memory() for launch in found.launches] for found in (seen, back)
        )
        return DryRun(result, view, saved, launches, backward_launches)

    def _library_call(self, result: Array, others: Sequence[Array]) -> Launch:
        """What the array library does by itself, as one launch."""
        name = f"{namespace(result).__name__}: {self.op.__name__}"
        return Launch(name, dict(enumerate([*others, result])))

    def describe(self) -> str:
        """Its options, as the table of a graph shows them."""
        shown = {k: v for k, v in self.options.items() if v is not None and v is not False}
        return ", ".join(f"{k}={v}" for k, v in shown.items())


def _operand(of: Operand, inputs: Sequence[Array], parameters: Mapping[str, Array]) -> Any:
    if isinstance(of, int):
        return inputs[of]
    if isinstance(of, str):
        return parameters[of]
    return None if of is None else of.value


def _arrays(values: Sequence[Any]) -> list[Array]:
    return [v for v in values if hasattr(v, "strides")]
