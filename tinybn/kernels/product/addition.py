"""One step of a matrix product's sum, in the precision that was asked for.

The tensor cores multiply the first 11 bits of float32 (TF32), and cut off what is beyond: without
rounding before, all products come out too small. Three products of parts are as good as float32's
own (Ootomo and Yokota 2022, doi:10.1177/10943420221090256): small terms have a sum of their own,
and long sums are added up outside, since the tensor cores cut sums off too.
Triton has this as ``"tf32x3"``, at twice the instructions, since it looks for infinities and NaN
in each operand.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def high_part(x):
    """x rounded to 11 bits, of which the tensor cores read all; they cut the others off.

    Adding half a unit of the last bit to the bits themselves would turn NVIDIA's NaN into −0; so
    ∞ and NaN stay what they are.
    """
    power = (x.to(tl.int32, bitcast=True) & -(2**23)).to(tl.float32, bitcast=True)
    rounded = x + power * 2.0**-11  # ±2ᵉ·2⁻¹¹ where 2ᵉ ≤ |x| < 2ᵉ⁺¹
    return (rounded.to(tl.int32, bitcast=True) & -(2**13)).to(tl.float32, bitcast=True)


@triton.jit
def add_product(total, small, a, b, ACC: tl.constexpr, PRECISION: tl.constexpr):
    """``total`` + a·b, as a sum and a sum of small terms; ``sum_of`` adds these up at the end."""
    if PRECISION == "tf32x3":
        a_high = high_part(a)
        b_high = high_part(b)
        small = tl.dot(a - a_high, b_high, small, input_precision="tf32")
        small = tl.dot(a_high, b - b_high, small, input_precision="tf32")
        # Without this number Triton would have the tensor cores add ``total`` too.
        product = tl.dot(a_high, b_high, input_precision="tf32", max_num_imprecise_acc=2**30)
        total += product
    elif PRECISION == "tf32":
        total = tl.dot(high_part(a), high_part(b), total, input_precision="tf32")
    else:
        total = tl.dot(a, b, total, input_precision=PRECISION, out_dtype=ACC)
    return total, small


@triton.jit
def sum_of(total, small, PRECISION: tl.constexpr):
    """The two sums added up."""
    if PRECISION == "tf32x3":
        # ∞ less its high part is NaN, and so are the small terms then.
        total = tl.where(tl.abs(total) == float("inf"), total, total + small)
    return total
