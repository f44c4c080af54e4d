"""From an operation that a model ran to the RuntimeOp that runs it in a graph.

A new operation of the tape is known here once it stands in ``PLAIN`` (it treats all samples
alike) or has a function in ``LOWER``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ..errors import GraphError
from ..tensor import Tensor
from ..tensor.ops import (
    activation,
    elementwise,
    index,
    join,
    matmul,
    pool,
    reduce,
    shape,
    softmax,
    unary,
)
from ..tensor.ops.batch_norm import BatchNormFrozen, BatchNormTraining
from ..tensor.ops.conv import Conv2d
from ..tensor.ops.cross_entropy import CrossEntropy
from ..tensor.ops.dropout import Dropout
from ..tensor.ops.matmul import Linear
from ..tensor.ops.pool import AvgPool2d, MaxPool2d
from ..tensor.tape import Op
from .ops import (
    ACTIVATIONS,
    ActivationRuntimeOp,
    AvgPool2dRuntimeOp,
    BatchNormRuntimeOp,
    Conv2dRuntimeOp,
    CrossEntropyRuntimeOp,
    FlattenRuntimeOp,
    LinearRuntimeOp,
    MaxPool2dRuntimeOp,
    TapeRuntimeOp,
)
from .runtime_op import Constant, Operand, RuntimeOp, Slot
from .trace import Call, Value

Lowered = tuple[RuntimeOp, dict[str, Tensor]]  # the operation, and Tensors for its slots

PLAIN = {
    unary.Neg, unary.Abs, unary.Square, unary.Exp, unary.Expm1, unary.Log, unary.Log1p,
    unary.Sqrt, unary.Rsqrt, unary.Reciprocal, unary.Sin, unary.Cos,
    elementwise.Add, elementwise.Sub, elementwise.Mul, elementwise.Div,
    elementwise.Pow, elementwise.Extremum, elementwise.Clip, elementwise.Where, elementwise.Cast,
    elementwise.Clone, reduce.Sum, reduce.Mean, reduce.Max, reduce.Min, reduce.Var, reduce.Std,
    shape.Permute, softmax.Softmax, softmax.LogSoftmax, softmax.LogSumExp, activation.Softplus,
    reduce.CumSum, elementwise.Remainder, join.Concatenate, join.Stack, join.Pad, index.Slice,
    index.Gather, matmul.MatMul, pool.AdaptiveAvgPool2d,
}  # fmt: skip


def check(call: Call, train: bool) -> None:
    """Raise GraphError unless ``call`` has a place in a graph."""
    op = call.op
    if not any(isinstance(value, Value) for value in call.inputs):
        learned = any(isinstance(value, Tensor) and value.requires_grad for value in call.inputs)
        if train and learned:
            raise GraphError(
                f"{op.__name__} is of parameters alone; wanted them used as they are in a graph "
                "that trains"
            )
        return
    why = _refusal(op, call.options, train)
    if why is not None:
        raise GraphError(why)
    lower(call)


def _refusal(op: type[Op], options: Mapping[str, Any], train: bool) -> str | None:
    """Why no operation of this kind has a place in a graph, or None."""
    if op is Dropout and train:
        return "Dropout draws anew in each step, which no graph does; tb.graph.capture records it"
    if op is Dropout:
        return "Dropout runs as in training; wanted model.eval()"
    if op is BatchNormTraining and options.get("running_mean") is not None and not train:
        return f"{op.__name__} runs as in training; wanted model.eval(), or train=True"
    if op in LOWER or op in PLAIN or op in _NAMES:
        return None
    known = sorted(one.__name__ for one in {*LOWER, *PLAIN, *_NAMES})
    return f"the operation {op.__name__} is not known to graphs; wanted some of {', '.join(known)}"


def lower(call: Call) -> Lowered:
    """The RuntimeOp of ``call``.

    Raises:
        GraphError: where its options or operands have no place in a graph.
    """
    if call.op in _NAMES:
        return ActivationRuntimeOp(_NAMES[call.op]), {}
    return LOWER.get(call.op, _plain)(call)


def _plain(call: Call) -> Lowered:
    operands: list[Operand] = []
    slots, parameters = {}, {}
    order: list[str] = []
    for value in call.inputs:
        if isinstance(value, Value):
            if value not in order:
                order.append(value)
            operands.append(order.index(value))
        elif isinstance(value, Tensor):
            name = f"operand{len(operands)}"
            slots[name] = Slot(value.shape, value.requires_grad, value.dtype)
            parameters[name] = value
            operands.append(name)
        else:
            operands.append(None if value is None else Constant(value))
    return TapeRuntimeOp(call.op, operands, slots, **call.options), parameters


def _leaves(call: Call, *names: str) -> dict[str, Tensor]:
    """As many of the operands after the first, by name, but those that are None."""
    given = dict(zip(names, call.inputs[1:]))
    if any(isinstance(value, Value) for value in given.values()):
        raise GraphError(f"{call.op.__name__} has a weight that depends on the input")
    return {name: value for name, value in given.items() if value is not None}


def _linear(call: Call) -> Lowered:
    leaves = _leaves(call, "weight", "bias")
    out, into = leaves["weight"].shape
    return LinearRuntimeOp(into, out, "bias" in leaves), leaves


def _conv2d(call: Call) -> Lowered:
    leaves = _leaves(call, "weight", "bias")
    out, per_group = leaves["weight"].shape[:2]
    groups = call.options["groups"]
    op = Conv2dRuntimeOp(
        per_group * groups, out, call.options["windows"], groups=groups, bias="bias" in leaves
    )
    return op, leaves


def _max_pool2d(call: Call) -> Lowered:
    return MaxPool2dRuntimeOp(call.options["windows"], ceil_mode=call.options["ceil_mode"]), {}


def _avg_pool2d(call: Call) -> Lowered:
    options = dict(call.options)
    return AvgPool2dRuntimeOp(options.pop("windows"), **options), {}


def _reshape(call: Call) -> Lowered:
    (source,) = call.inputs
    before, after = call.shapes[source], call.options["shape"]
    if not before or not after or before[0] != after[0]:
        raise GraphError(
            f"a reshape of {before} to {after} changes the first axis; wanted the batch as it is"
        )
    return FlattenRuntimeOp(after[1:]), {}


def _batch_norm_frozen(call: Call) -> Lowered:
    names = ("weight", "bias", "running_mean", "running_var")
    residual = len(call.inputs) > 5 and call.inputs[5] is not None
    leaves = _leaves(call, *names)
    op = BatchNormRuntimeOp(
        len(leaves["running_mean"].data), call.options["eps"], affine="weight" in leaves,
        activation=call.options["activation"], residual=residual,
    )  # fmt: skip
    return op, leaves


def _batch_norm_training(call: Call) -> Lowered:
    residual = len(call.inputs) > 3 and call.inputs[3] is not None
    leaves = _leaves(call, "weight", "bias")
    options = call.options
    kept = {
        "running_mean": options["running_mean"], "running_var": options["running_var"],
        "num_batches_tracked": options["tracked"],
    }  # fmt: skip
    buffers = {name: Tensor.wrap(array) for name, array in kept.items() if array is not None}
    features = call.shapes[call.result][1]
    op = BatchNormRuntimeOp(
        features, options["eps"], options["momentum"], "weight" in leaves, training=True,
        tracked="running_mean" in buffers, counted="num_batches_tracked" in buffers,
        activation=options["activation"], residual=residual,
    )  # fmt: skip
    return op, leaves | buffers


def _cross_entropy(call: Call) -> Lowered:
    logits, target, weight = call.inputs
    if not (isinstance(logits, Value) and isinstance(target, Value)):
        raise GraphError("cross-entropy of a constant; wanted logits and targets from the inputs")
    leaves = _leaves(call._replace(inputs=(logits, weight)), "weight")
    classes = len(leaves["weight"].data) if leaves else None
    return CrossEntropyRuntimeOp(classes, **call.options), leaves


_NAMES = {op: name for name, op in ACTIVATIONS.items()}
LOWER: dict[type[Op], Callable[[Call], Lowered]] = {
    Linear: _linear,
    Conv2d: _conv2d,
    MaxPool2d: _max_pool2d,
    AvgPool2d: _avg_pool2d,
    shape.Reshape: _reshape,
    BatchNormFrozen: _batch_norm_frozen,
    BatchNormTraining: _batch_norm_training,
    CrossEntropy: _cross_entropy,
}
