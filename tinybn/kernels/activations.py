"""Activations that kernels apply in passing, and their derivatives.

ReLU(z) = max(z, 0); SiLU(z) = z/(1 + exp(−z)) (Elfwing et al. 2017,
https://arxiv.org/abs/1702.03118); GELU(z) = z·Φ(z), exact, with
Φ(z) = (1 + erf(z/√2))/2 (Hendrycks and Gimpel 2016, https://arxiv.org/abs/1606.08415).
"""

from __future__ import annotations

import triton
import triton.language as tl

LARGE = tl.constexpr(1e4)  # beyond ±LARGE both curves are straight lines in every precision


@triton.jit
def activate(z, ACTIVATION: tl.constexpr):
    if ACTIVATION == "relu":
        z = tl.where(z <= 0.0, 0.0, z)  # NaN stays NaN
    elif ACTIVATION == "silu":
        z = tl.where(z < -LARGE, -0.0, z / (1.0 + tl.exp(-z)))  # not −∞/∞
    elif ACTIVATION == "gelu":
        z = tl.where(z < -LARGE, -0.0, 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476)))
    return z


@triton.jit
def activation_backward(dy, z, ACTIVATION: tl.constexpr):
    """dy·dy/dz; 0 where ReLU has no slope, whatever dy is."""
    if ACTIVATION == "relu":
        g = tl.where(z <= 0.0, 0.0, dy)
    else:
        z = tl.where(z > LARGE, LARGE, tl.where(z < -LARGE, -LARGE, z))  # ∞·0 is no slope
        if ACTIVATION == "silu":
            sigmoid = 1.0 / (1.0 + tl.exp(-z))
            g = dy * (sigmoid * (1.0 + z * (1.0 - sigmoid)))
        else:
            density = 0.3989422804014327 * tl.exp(-0.5 * z * z)
            g = dy * (0.5 * (1.0 + tl.erf(z * 0.7071067811865476)) + z * density)
    return g
