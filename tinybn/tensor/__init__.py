"""Tensors: arrays on a device with a tape that differentiates what is done to them."""

from .creation import (
    arange,
    as_tensor,
    empty,
    empty_like,
    eye,
    from_dlpack,
    full,
    full_like,
    linspace,
    ones,
    ones_like,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    tensor,
    zeros,
    zeros_like,
)
from .device import Device, as_device, cuda_available, default_device, set_default_device
from .dtypes import as_dtype, bfloat16, bool_, float16, float32, float64, int32, int64, is_float
from .grad_mode import enable_grad, is_grad_enabled, no_grad, set_grad_enabled
from .gradcheck import gradcheck
from .ops.activation import gelu, relu, sigmoid, silu, softplus
from .ops.compare import isfinite, isinf, isnan
from .ops.elementwise import (
    add,
    clip,
    div,
    maximum,
    minimum,
    mul,
    pow,
    remainder,
    sub,
    where,
)
from .ops.join import cat, chunk, concatenate, pad, split, stack
from .ops.matmul import linear, matmul
from .ops.unary import cos, exp, expm1, log, log1p, rsqrt, sin, sqrt, tanh
from .random import Generator, default_generator, manual_seed
from .tensor import Tensor

__all__ = [
    "add", "arange", "as_device", "as_dtype", "as_tensor", "bfloat16", "bool_", "cat", "chunk",
    "clip", "concatenate", "cos", "cuda_available", "default_device", "default_generator",
    "Device", "div", "empty", "empty_like", "enable_grad", "exp", "expm1", "eye", "float16",
    "float32", "float64", "from_dlpack", "full", "full_like", "gelu", "Generator", "gradcheck",
    "int32", "int64", "is_float", "is_grad_enabled", "isfinite", "isinf", "isnan", "linear",
    "linspace", "log", "log1p", "manual_seed", "matmul", "maximum", "minimum", "mul", "no_grad",
    "ones", "ones_like", "pad", "pow", "rand", "rand_like", "randint", "randn", "randn_like",
    "randperm", "relu", "remainder", "rsqrt", "set_default_device", "set_grad_enabled", "sigmoid",
    "silu", "sin", "softplus", "split", "sqrt", "stack", "sub", "tanh", "Tensor", "tensor",
    "where", "zeros", "zeros_like",
]  # fmt: skip
