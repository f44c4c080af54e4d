"""tinybn: a small deep-learning framework that never imports PyTorch.

Tensors are NumPy or CuPy arrays with a tape that differentiates what is done
to them; Triton kernels run on their memory.

    >>> import tinybn as tb
    >>> x = tb.tensor([1.0, 2.0], requires_grad=True, device="cpu")
    >>> (x * x).sum().backward()
    >>> x.grad
    tensor([2., 4.])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from . import _openblas  # noqa: F401 - first, since NumPy reads what it sets
from ._lazy import lazily
from .errors import TinyBNError

# The function ``tensor`` takes the subpackage's name here: ``from tinybn.tensor.tape import Op``
# works, ``import tinybn.tensor.tape as tape`` finds the function and fails.
from .tensor import (
    Device,
    Generator,
    Tensor,
    add,
    arange,
    as_tensor,
    bfloat16,
    bool_,
    cat,
    chunk,
    clip,
    concatenate,
    cos,
    cuda_available,
    default_device,
    default_generator,
    div,
    empty,
    empty_like,
    enable_grad,
    exp,
    expm1,
    eye,
    float16,
    float32,
    float64,
    from_dlpack,
    full,
    full_like,
    gelu,
    gradcheck,
    int32,
    int64,
    is_grad_enabled,
    isfinite,
    isinf,
    isnan,
    linear,
    linspace,
    log,
    log1p,
    manual_seed,
    matmul,
    maximum,
    minimum,
    mul,
    no_grad,
    ones,
    ones_like,
    pad,
    pow,
    rand,
    rand_like,
    randint,
    randn,
    randn_like,
    randperm,
    relu,
    remainder,
    rsqrt,
    set_default_device,
    set_grad_enabled,
    sigmoid,
    silu,
    sin,
    softplus,
    split,
    sqrt,
    stack,
    sub,
    tanh,
    tensor,
    where,
    zeros,
    zeros_like,
)

if TYPE_CHECKING:
    from . import data, graph, kernels, nn, testing
    from .kernels import (
        get_float32_matmul_precision,
        interpret,
        set_float32_matmul_precision,
    )
    from .nn import load, save

__version__ = "0.1.0"

_HOMES = {
    "data": "data",
    "get_float32_matmul_precision": "kernels",
    "graph": "graph",
    "interpret": "kernels",
    "kernels": "kernels",
    "load": "nn",
    "nn": "nn",
    "save": "nn",
    "set_float32_matmul_precision": "kernels",
    "testing": "testing",
}  # loaded when first used
__getattr__, __dir__ = lazily(__name__, _HOMES)

__all__ = [
    "add", "arange", "as_tensor", "bfloat16", "bool_", "cat", "chunk", "clip", "concatenate",
    "cos", "cuda_available", "data", "default_device", "default_generator", "Device", "div",
    "empty", "empty_like", "enable_grad", "exp", "expm1", "eye", "float16", "float32", "float64",
    "from_dlpack", "full", "full_like", "gelu", "Generator", "get_float32_matmul_precision",
    "gradcheck", "graph", "int32",
    "int64", "interpret", "is_grad_enabled", "isfinite", "isinf", "isnan", "kernels", "linear",
    "linspace", "load", "log", "log1p", "manual_seed", "matmul", "maximum", "minimum", "mul",
    "nn", "no_grad", "ones", "ones_like", "pad", "pow", "rand", "rand_like", "randint",
    "randn", "randn_like", "randperm", "relu", "remainder", "rsqrt", "save",
    "set_default_device", "set_float32_matmul_precision", "set_grad_enabled",
    "sigmoid", "silu", "sin", "softplus", "split", "sqrt", "stack", "sub", "tanh", "Tensor",
    "tensor", "testing", "TinyBNError", "where", "zeros", "zeros_like",
]  # fmt: skip
