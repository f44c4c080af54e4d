"""Fewer launches for inference: BatchNorm folded into the product before it, and joined ends.

With frozen statistics BatchNorm is y = s·x + t with s = weight/sqrt(running_var + eps) and
t = bias − running_mean·s, one pair a channel. Of a product x = w·z + b that makes another product,
y = (s·w)·z + (s·b + t) (Jacob et al. 2018, https://arxiv.org/abs/1712.05877, section 3.2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

from .. import kernels
from ..kernels.arrays import Array, accumulation_dtype, namespace
from ..tensor import Tensor
from ..tensor.ops.elementwise import Add
from .ops import (
    ActivationRuntimeOp,
    BatchNormRuntimeOp,
    Conv2dRuntimeOp,
    LinearRuntimeOp,
    TapeRuntimeOp,
)
from .runtime_op import RuntimeOp

JOINED = ("relu", "silu", "gelu")  # activations that products and BatchNorm apply in passing


@dataclass
class Draft:
    """A node before it is in a graph."""

    name: str
    op: RuntimeOp
    inputs: list[str]
    parameters: dict[str, Tensor] = field(default_factory=dict)


class Unfolded(NamedTuple):
    """A BatchNorm that stays beside the product before it, and why."""

    norm: Draft
    product: Draft
    why: str

    def sentence(self) -> str:
        """What the table of the graph says of it."""
        return f"{self.norm.name} is not folded into {self.product.name}: {self.why}"


def fold(
    drafts: list[Draft], outputs: list[str], results: Mapping[str, Array]
) -> tuple[list[Draft], list[Unfolded]]:
    """Fold and join what can be; ``results`` are all nodes' results and inputs on the example.

    Returns:
        The drafts that are left, and each BatchNorm that was not folded though a product is
        before it.
    """
    notes: list[Unfolded] = []
    for draft in list(drafts):
        if isinstance(draft.op, BatchNormRuntimeOp) and not draft.op.training:
            before = _only(drafts, outputs, draft.inputs[0])
            if before is not None and _is_open_product(before):
                why = _fold(draft, before, results)
                if why is None:
                    drafts.remove(before)
                else:
                    notes.append(Unfolded(draft, before, why))
    for draft in list(drafts):
        _join(drafts, outputs, draft, results)
    return drafts, notes


def _only(drafts: list[Draft], outputs: list[str], name: str) -> Draft | None:
    """The draft ``name`` if one node alone reads it, once, and the caller does not."""
    readers = sum(draft.inputs.count(name) for draft in drafts)
    if readers != 1 or name in outputs:
        return None
    return next((draft for draft in drafts if draft.name == name), None)


def _is_open_product(draft: Draft) -> bool:
    """Whether it is a product that nothing finishes yet."""
    return isinstance(draft.op, (LinearRuntimeOp, Conv2dRuntimeOp)) and draft.op.has_backward


def _fold(norm: Draft, product: Draft, results: Mapping[str, Array]) -> str | None:
    """Make ``norm`` the product of both, or say why not."""
    z, x = results[product.inputs[0]], results[product.name]
    if isinstance(product.op, LinearRuntimeOp) and x.ndim != 2:
        return f"its channels are not the last axis of {list(x.shape)}"
    weight, bias = product.parameters["weight"].data, product.parameters.get("bias")
    folded = _folded(norm, weight, None if bias is None else bias.data)
    op = _finished(product.op, bias=True)
    alone = op.forward(op.context(), [z], dict(zip(("weight", "bias"), folded)))
    columns = {name: t.data for name, t in norm.parameters.items()}
    apart = kernels.batch_norm_forward_inference(
        x, columns.get("weight"), columns.get("bias"), columns["running_mean"],
        columns["running_var"], eps=norm.op.options["eps"],
    )  # fmt: skip
    why = _disagreement(alone, apart, weight[0].size)
    if why is not None:
        return why
    residual = norm.op.inputs == 2
    norm.op = _finished(product.op, True, norm.op.options["activation"], residual)
    norm.inputs[0] = product.inputs[0]
    norm.parameters = {n: Tensor.wrap(a) for n, a in zip(("weight", "bias"), folded)}
    return None


def _folded(norm: Draft, weight: Array, bias: Array | None) -> tuple[Array, Array]:
    """The product's weight and bias with ``norm`` in them, worked out in float64."""
    xp = namespace(weight)
    wide = {name: t.data.astype(np.float64) for name, t in norm.parameters.items()}
    scale = 1 / xp.sqrt(wide["running_var"] + norm.op.options["eps"])
    shift = -wide["running_mean"]
    if bias is not None:
        shift = shift + bias.astype(np.float64)
    scale = scale * wide.get("weight", 1.0)
    shift = shift * scale + wide.get("bias", 0.0)
    column = scale.reshape(-1, *(1,) * (weight.ndim - 1))
    return (weight * column).astype(weight.dtype), shift.astype(weight.dtype)


def _disagreement(alone: Array, apart: Array, terms: int) -> str | None:
    """Why folding loses too much on the example, or None.

    Both are sums of ``terms`` products, rounded to their dtype, as the weights of both are. Errors
    of rounding at random grow as √terms; four times those of the sum and of one rounding to the
    dtype is what two such results may lie apart, in units of the largest.
    """
    xp = namespace(apart)
    if not bool(xp.isfinite(apart).all()) or not bool(xp.isfinite(alone).all()):
        return "its result on the example is not finite"
    wide = accumulation_dtype(apart.dtype)
    narrow = float(ml_dtypes.finfo(apart.dtype).eps)
    apart, alone = apart.astype(wide), alone.astype(wide)
    largest = float(abs(apart).max()) if apart.size else 0.0
    apart_by = float(abs(alone - apart).max()) if apart.size else 0.0
    bound = 4 * (narrow + float(np.finfo(wide).eps) * math.sqrt(terms))
    if apart_by <= bound * largest:
        return None
    return (
        f"on the example the results differ by {apart_by / largest if largest else apart_by:.1e} "
        f"of the largest, more than {bound:.1e} (a running variance near zero, or a huge scale)"
    )


def _finished(
    op: RuntimeOp, bias: bool, activation: str | None = None, residual: bool = False
) -> RuntimeOp:
    """The product ``op`` with an end: what is done to its sums before they are written."""
    shape = op.slots["weight"].shape
    finish: dict[str, Any] = dict(bias=bias, activation=activation, residual=residual)
    if isinstance(op, LinearRuntimeOp):
        return LinearRuntimeOp(shape[1], shape[0], **finish)
    groups = op.options["groups"]
    return Conv2dRuntimeOp(
        shape[1] * groups, shape[0], op.options["windows"], groups=groups, **finish
    )


def _join(
    drafts: list[Draft], outputs: list[str], draft: Draft, results: Mapping[str, Array]
) -> None:
    """Make a sum, or an activation, the end of the product or BatchNorm before it."""
    is_sum = isinstance(draft.op, TapeRuntimeOp) and draft.op.op is Add
    activation = draft.op.activation if isinstance(draft.op, ActivationRuntimeOp) else None
    if is_sum:
        if draft.op.operands != (0, 1) or not _alike(results, draft.inputs):
            return
    elif activation not in JOINED:
        return
    for i, name in enumerate(draft.inputs):
        before = _only(drafts, outputs, name)
        if before is None or not _is_open(before, for_sum=is_sum):
            continue
        residual = is_sum or before.op.inputs == 2
        others = [n for j, n in enumerate(draft.inputs) if j != i]
        # It comes where its end was, under whose name others read it.
        before.inputs += others
        before.op = _ended(before.op, activation, residual)
        before.name = draft.name
        drafts.remove(before)
        drafts[drafts.index(draft)] = before
        return


def _alike(results: Mapping[str, Array], names: Sequence[str]) -> bool:
    """Whether the results are of one shape and dtype, so that a sum of them broadcasts nothing."""
    return len({(results[name].shape, results[name].dtype) for name in names}) == 1


def _is_open(draft: Draft, for_sum: bool) -> bool:
    """Whether an activation, or a sum before one, can still be its end."""
    if not isinstance(draft.op, (LinearRuntimeOp, Conv2dRuntimeOp, BatchNormRuntimeOp)):
        return False
    if getattr(draft.op, "training", False) or draft.op.options.get("activation") is not None:
        return False
    return not (for_sum and draft.op.inputs == 2)


def _ended(op: RuntimeOp, activation: str | None, residual: bool) -> RuntimeOp:
    """The product or BatchNorm ``op`` with an end."""
    if isinstance(op, BatchNormRuntimeOp):
        (features,) = op.slots["running_mean"].shape
        return BatchNormRuntimeOp(
            features, op.options["eps"], affine="weight" in op.slots, activation=activation,
            residual=residual,
        )  # fmt: skip
    return _finished(op, "bias" in op.slots, activation, residual)
