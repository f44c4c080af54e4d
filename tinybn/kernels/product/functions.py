"""Matrix products, and the gradients of a layer's product."""

from __future__ import annotations

from ...errors import ShapeError
from ..arrays import Array, contiguous, namespace
from ..checks import check_finish, check_float, check_like, check_out
from ..engines import implementation
from ..results import contiguous_or_none, result_in, written


def matmul(
    a: Array,
    b: Array,
    bias: Array | None = None,
    *,
    addend: Array | None = None,
    activation: str | None = None,
    out: Array | None = None,
) -> Array:
    """activation(a·b + bias + addend), added up in the accumulation dtype and rounded once.

    Args:
        a: [M, K], floating.
        b: [K, N] of a's dtype.
        bias: [N] of a's dtype, or None.
        addend: [M, N] of a's dtype, such as a residual connection's, or None.
        activation: None, ``"relu"``, ``"silu"`` or ``"gelu"`` (exact).
        out: where the result is written, [M, N] of a's dtype.

    Raises:
        ShapeError, DTypeError, DeviceError: for arguments that do not fit.

    Source: Golub and Van Loan 2013, Matrix Computations, 4th edition, section 1.1.10.
    """
    check_float(a, "a")
    check_like(a, "a", b=b, bias=bias)
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0]:
        raise ShapeError(f"a has shape {a.shape} and b {b.shape}; wanted [M, K] and [K, N]")
    if bias is not None and bias.shape != b.shape[1:]:
        raise ShapeError(f"bias has shape {bias.shape}; wanted {b.shape[1:]}")
    shape = (a.shape[0], b.shape[1])
    check_finish(a, shape, addend, activation)
    if out is not None:
        check_out(out, a, shape, a.dtype)
    y = result_in(out, namespace(a).empty(shape, a.dtype), a, b, bias, addend)
    if y.size and not a.size:  # a sum of nothing
        zeros, dtype = namespace(a).zeros, a.dtype
        a, b = zeros((shape[0], 1), dtype), zeros((1, shape[1]), dtype)
    if y.size:
        implementation("matmul", a)(
            a, b, contiguous_or_none(bias), y, contiguous_or_none(addend), activation
        )
    return written(y, out)


def linear_backward(
    dy: Array, x: Array | None, weight: Array | None, needs: tuple[bool, ...]
) -> tuple[Array | None, Array | None, Array | None]:
    """The gradients of y = x·weightᵀ + bias.

    Args:
        dy: [N, O], the gradient of y, floating.
        x: [N, I] of its dtype; only the gradient of weight needs it.
        weight: [O, I] of its dtype; only the gradient of x needs it.
        needs: which of the gradients of x, weight and bias are wanted.

    Returns:
        dx [N, I], dweight [O, I] and dbias [O], None where not wanted.

    Raises:
        ShapeError, DTypeError, DeviceError: for arguments that do not fit.

    Source: Giles 2008, Collected matrix derivative results, section 2.2.1.
    """
    check_float(dy, "dy")
    check_like(dy, "dy", x=x, weight=weight)
    x, weight = x if needs[1] else None, weight if needs[0] else None
    for array, name, axis, letter in ((x, "x", 0, "N"), (weight, "weight", 1, "O")):
        if array is not None and (dy.ndim != 2 or array.ndim != 2 or len(array) != dy.shape[axis]):
            raise ShapeError(
                f"dy has shape {dy.shape} and {name} {array.shape}; wanted [N, O] and [{letter}, I]"
            )
    empty = namespace(dy).empty
    dx = empty((len(dy), weight.shape[1]), dy.dtype) if weight is not None else None
    dweight = empty((dy.shape[1], x.shape[1]), dy.dtype) if x is not None else None
    dbias = empty(dy.shape[1], dy.dtype) if needs[2] else None
    made = [g if g is not None and g.size else None for g in (dx, dweight, dbias)]
    if dy.size and any(gradient is not None for gradient in made):
        implementation("linear_backward", dy)(contiguous(dy), x, contiguous_or_none(weight), *made)
    else:
        for gradient in (dx, dweight, dbias):
            if gradient is not None:
                gradient[...] = 0  # a sum of nothing
    return dx, dweight, dbias
