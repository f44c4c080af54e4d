"""Dropout as an op that keeps no mask: backward makes it again from the seed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ... import kernels
from ...arguments import number
from ..dtypes import is_float
from ..random import default_generator
from ..tape import Array, Node, Op, apply
from ._operands import check_tensors, not_floating

if TYPE_CHECKING:
    from ..tensor import Tensor


class Dropout(Op):
    """x/(1 − p) with probability 1 − p, else 0."""

    @staticmethod
    def forward(ctx: Node, x: Array, *, p: float, seed: int, offset: int) -> Array:
        ctx.save(p, seed, offset)
        return kernels.dropout(x, p=p, seed=seed, offset=offset)

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        p, seed, offset = ctx.saved
        return (kernels.dropout(grad, p=p, seed=seed, offset=offset),)


def dropout(input: Tensor, p: float = 0.5, training: bool = True) -> Tensor:
    """Set each element to 0 with probability ``p``, and scale the others by 1/(1 − p).

    Draws from the device's default generator, so ``tb.manual_seed`` decides
    the mask. Not ``training``: the input itself.

    Raises:
        ArgumentError: unless 0 ≤ p ≤ 1.
        DTypeError: for an input that is not floating.

    Source: Srivastava et al. 2014, JMLR 15:1929.
    """
    check_tensors(input=input)
    p = number("p", p, least=0, most=1)
    if not is_float(input.dtype):
        raise not_floating("input", input)
    if not training or p == 0:
        return input
    seed, offset = default_generator(input.device).reserve(input.size)
    return apply(Dropout, input, p=p, seed=seed, offset=offset)
