"""What the tests of the ops share: drawn shapes and memory layouts, and error bounds."""

from __future__ import annotations

import hypothesis
import numpy as np
from hypothesis import strategies as st

from tinybn.tensor import dtypes
from tinybn.tensor.tensor import Tensor

DTYPES = (
    dtypes.float16,
    dtypes.bfloat16,
    dtypes.float32,
    dtypes.float64,
    dtypes.int32,
    dtypes.int64,
    dtypes.bool_,
)
FLOATS = DTYPES[:4]
# The distance from 1 to the next larger number.
EPS = {
    dtypes.float16: 2.0**-10,
    dtypes.bfloat16: 2.0**-7,
    dtypes.float32: 2.0**-23,
    dtypes.float64: 2.0**-52,
}
LAYOUTS = ("contiguous", "transposed", "sliced", "reversed", "expanded")
SIZES = (1, 2, 3, 4, 5, 7, 8, 9)  # one, primes, powers of two and their neighbours

few = hypothesis.settings()  # the profile's number of examples
some = hypothesis.settings(max_examples=3 * few.max_examples)
many = hypothesis.settings(max_examples=20 * few.max_examples)
seeds = st.integers(0, 2**32 - 1)
layouts = st.sampled_from(LAYOUTS)


def shapes(min_dims: int = 1, max_dims: int = 3, *, empty: bool = False, most: int = 130):
    """Shapes of at most ``most`` elements; with ``empty`` a size may be 0."""
    sizes = st.sampled_from((0, *SIZES) if empty else SIZES)
    drawn = st.lists(sizes, min_size=min_dims, max_size=max_dims)
    return drawn.map(tuple).filter(lambda shape: int(np.prod(shape)) <= most)


def normal(shape, seed: int, dtype=np.float64) -> np.ndarray:
    """Normal values; of the non-floating dtypes small integers or booleans."""
    rng = np.random.default_rng(seed)
    if dtype in FLOATS:
        return np.asarray(rng.standard_normal(shape)).astype(dtype)
    return rng.integers(0, 2 if dtype == dtypes.bool_ else 9, shape).astype(dtype)


def laid_out(values: np.ndarray, layout: str) -> np.ndarray:
    """The values in another memory layout; ``expanded`` repeats the first along axis 0."""
    if values.ndim == 0 or layout == "contiguous":
        return values
    if layout == "transposed":
        return np.ascontiguousarray(values.T).T
    if layout == "sliced":
        wide = np.zeros((*values.shape[:-1], 2 * values.shape[-1]), values.dtype)
        wide[..., ::2] = values
        return wide[..., ::2]
    if layout == "reversed":
        return np.ascontiguousarray(values[::-1])[::-1]
    return np.broadcast_to(values[:1], values.shape)


def leaf(values: np.ndarray, layout: str = "contiguous") -> Tensor:
    """A leaf that wants a gradient, with its memory laid out so."""
    tensor = Tensor.wrap(laid_out(values, layout))
    tensor.requires_grad = True
    return tensor


def plain(values) -> Tensor:
    """A Tensor around the array itself."""
    return Tensor.wrap(np.asarray(values))


def as64(tensor: Tensor) -> np.ndarray:
    """The values in float64."""
    return np.asarray(tensor.data).astype(np.float64)


def gradient_of(fn, *tensors: Tensor, upstream: np.ndarray) -> list[np.ndarray]:
    """The gradients that ``upstream`` sends back through ``fn`` to the tensors."""
    result = fn(*tensors)
    result.backward(plain(upstream.astype(result.dtype)))
    return [t.grad.data for t in tensors]
