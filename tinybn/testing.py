"""Property tests for kernels: hypothesis strategies, and a comparison with a reference.

Works for any function of NumPy arrays, so for your own Triton kernel too, with
no torch. Needs hypothesis: ``pip install "tinybn[test]"``.

Arrays are drawn as a shape, a dtype, a memory layout, a kind of values and a
seed; the seed fills the array. So a failing case shrinks to the smallest
shape and plainest layout that fail, fast, even where arrays are large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

from .errors import MissingDependency
from .kernels.arrays import BFLOAT16, accumulation_dtype
from .tensor import Tensor, gradcheck

try:
    import hypothesis
    from hypothesis import strategies as st
except ImportError as error:
    raise MissingDependency(
        'tinybn.testing needs hypothesis: pip install "tinybn[test]"'
    ) from error

FLOAT_DTYPES = (np.dtype("float32"), np.dtype("float64"), np.dtype("float16"), BFLOAT16)
# Sizes where tiling goes wrong: 1, primes, powers of two and their neighbours.
SIZES = (1, 2, 3, 4, 5, 7, 8, 9, 13, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 257)
LAYOUTS = ("contiguous", "transposed", "sliced", "reversed", "channels_last")
VALUES = ("normal", "constant", "large_mean", "tiny_variance", "mixed_scales")
NON_FINITE = ("infinity", "nan")


def shapes(ndim: int | Sequence[int] = (1, 2, 3, 4), max_elements: int = 4096) -> st.SearchStrategy:
    """Shapes of 1, primes and powers of two ± 1, of at most ``max_elements`` elements.

    Args:
        ndim: the number of axes, or several to choose from.
    """
    choices = (ndim,) if isinstance(ndim, int) else tuple(ndim)

    @st.composite
    def draw_shape(draw: st.DrawFn) -> tuple[int, ...]:
        shape: list[int] = []
        for _ in range(draw(st.sampled_from(choices))):
            room = max_elements // max(1, int(np.prod(shape)))
            shape.append(draw(st.sampled_from([n for n in SIZES if n <= max(1, room)])))
        return tuple(shape)

    return draw_shape()


def arrays(
    shape: tuple[int, ...] | st.SearchStrategy | None = None,
    dtype: Any | Sequence[Any] = FLOAT_DTYPES,
    layout: Sequence[str] = LAYOUTS,
    values: Sequence[str] = VALUES,
) -> st.SearchStrategy[np.ndarray]:
    """NumPy arrays for a kernel's input.

    Args:
        shape: a shape, a strategy for shapes, or None for :func:`shapes`.
        dtype: a floating dtype, or several to choose from.
        layout: memory layouts to choose from, of ``LAYOUTS``.
        values: kinds of values to choose from, of ``VALUES`` and ``NON_FINITE``.
    """
    dtypes = [np.dtype(d) for d in (dtype if isinstance(dtype, (list, tuple)) else (dtype,))]

    @st.composite
    def draw_array(draw: st.DrawFn) -> np.ndarray:
        drawn = draw(shape if isinstance(shape, st.SearchStrategy) else st.just(shape)
                     if shape is not None else shapes())  # fmt: skip
        kind = draw(st.sampled_from(list(values)))
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        filled = fill(rng, drawn, draw(st.sampled_from(dtypes)), kind)
        return lay_out(filled, draw(st.sampled_from(list(layout))))

    return draw_array()


def fill(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype, kind: str
) -> np.ndarray:
    """An array of random values of ``kind``: one of ``VALUES`` or ``NON_FINITE``."""
    x = rng.standard_normal(shape)
    if kind == "constant":
        x = np.full(shape, 100.1)
    elif kind == "large_mean":
        x = 1e4 + 1e-2 * x if np.finfo(accumulation_dtype(dtype)).eps > 1e-10 else 1e8 + x
    elif kind == "tiny_variance":
        x = 1e-3 * x
    elif kind == "mixed_scales":
        x = x * 10.0 ** rng.integers(-3, 4, shape)
    x = x.astype(dtype)
    if kind in NON_FINITE and x.size:
        x.reshape(-1)[rng.integers(x.size)] = np.nan if kind == "nan" else np.inf
    return x


def lay_out(x: np.ndarray, layout: str) -> np.ndarray:
    """``x`` with the same values in another memory layout, one of ``LAYOUTS``."""
    if layout == "transposed":
        return np.ascontiguousarray(x.T).T
    if layout == "channels_last" and x.ndim > 2:
        return np.moveaxis(np.ascontiguousarray(np.moveaxis(x, 1, -1)), -1, 1)
    if layout == "sliced":
        wide = np.full((*x.shape[:-1], 2 * x.shape[-1] + 1), 7, x.dtype)
        wide[..., 1::2] = x
        return wide[..., 1::2]
    if layout == "reversed":
        return x[::-1].copy()[::-1]
    return np.ascontiguousarray(x)


@dataclass
class BatchNormCase:
    """The arguments of one BatchNorm, all NumPy arrays; weight and bias may be None."""

    x: np.ndarray
    dy: np.ndarray
    weight: np.ndarray | None
    bias: np.ndarray | None
    running_mean: np.ndarray
    running_var: np.ndarray
    eps: float
    momentum: float

    @property
    def rows(self) -> int:
        """The number of values of one channel."""
        return self.x.size // self.x.shape[1]


def batch_norm_cases(
    ndim: int | Sequence[int] = (2, 3, 4, 5),
    dtype: Any | Sequence[Any] = FLOAT_DTYPES,
    layout: Sequence[str] = LAYOUTS,
    values: Sequence[str] = VALUES,
    max_elements: int = 4096,
) -> st.SearchStrategy[BatchNormCase]:
    """Cases for a BatchNorm kernel: [N, C] to [N, C, D, H, W] with at least two values a channel.

    Arguments as for :func:`shapes` and :func:`arrays`.
    """

    @st.composite
    def draw_case(draw: st.DrawFn) -> BatchNormCase:
        shape = draw(shapes(ndim, max_elements).filter(lambda s: int(np.prod(s)) // s[1] > 1))
        x = draw(arrays(shape, dtype, layout, values))
        wide = accumulation_dtype(x.dtype)
        rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
        channels = shape[1]

        def column() -> np.ndarray:
            return rng.standard_normal(channels).astype(wide)

        return BatchNormCase(
            x=x,
            dy=lay_out(fill(rng, shape, x.dtype, "normal"), draw(st.sampled_from(list(layout)))),
            weight=column() if draw(st.booleans()) else None,
            bias=column() if draw(st.booleans()) else None,
            running_mean=column(),
            running_var=np.abs(column()) + wide.type(0.1),
            eps=draw(st.sampled_from([1e-5, 1e-3, 1.0])),
            momentum=draw(st.sampled_from([0.1, 0.0, 1.0, 0.5])),
        )

    return draw_case()


def epsilon(dtype: Any) -> float:
    """The distance from 1 to the next number of ``dtype``."""
    return float(ml_dtypes.finfo(np.dtype(dtype)).eps)


def assert_close(
    got: np.ndarray,
    want: np.ndarray,
    *,
    terms: int | float | np.ndarray = 1,
    scale: float | np.ndarray | None = None,
    name: str = "result",
) -> None:
    """Raise AssertionError unless ``got`` is ``want`` within rounding.

    The bound on each element is ε(dtype)·|want| for the last rounding, plus
    2·terms·ε(accumulator)·scale, the worst case of a sum of ``terms`` terms
    whose absolute values add up to ``scale`` (Higham, Accuracy and Stability
    of Numerical Algorithms, equation 4.4). NaN and ±inf must stand in the same
    places.

    Args:
        got: the result under test; its dtype sets the bound.
        want: the expected values in float64.
        terms: how many terms the longest sum behind an element has; may broadcast.
        scale: broadcasts to want; None for its largest finite absolute value.
        name: what the message calls the result.
    """
    got, want = np.asarray(got), np.asarray(want, np.float64)
    if got.shape != want.shape:
        raise AssertionError(f"{name} has shape {got.shape}; wanted {want.shape}")
    value = got.astype(np.float64)
    finite = np.isfinite(want)
    if scale is None:
        scale = np.max(np.abs(want[finite]), initial=0.0)
    with np.errstate(all="ignore"):
        bound = epsilon(got.dtype) * np.abs(want)
        bound = bound + 2 * np.asarray(terms) * epsilon(accumulation_dtype(got.dtype)) * scale
        bound = bound + float(np.finfo(np.float32).tiny if got.dtype != np.float64 else 0.0)
        if got.dtype in (np.dtype("float16"), BFLOAT16):
            bound = bound + float(ml_dtypes.finfo(got.dtype).smallest_subnormal)
        good = np.where(finite, np.abs(value - want) <= bound, _same(value, want))
    if not good.all():
        where = tuple(int(i) for i in np.argwhere(~good)[0])
        raise AssertionError(
            f"{name}, {got.dtype} of shape {got.shape}: {np.sum(~good)} of {good.size} wrong, the "
            f"first at {where}: got {float(value[where])!r}, wanted {float(want[where])!r} within "
            f"{np.broadcast_to(bound, want.shape)[where]:.3g}"
        )


def _same(value: np.ndarray, want: np.ndarray) -> np.ndarray:
    return (value == want) | (np.isnan(value) & np.isnan(want))


def assert_matches_reference(
    kernel: Callable[..., Any],
    reference: Callable[..., Any],
    cases: st.SearchStrategy,
    *,
    terms: int | None = None,
    max_examples: int = 50,
) -> None:
    """Draw arguments, and compare ``kernel`` with ``reference`` on each.

    Args:
        kernel: takes the drawn arrays, returns an array or a tuple of arrays.
        reference: the same in NumPy; it gets the floating arrays in float64.
        cases: a strategy for a tuple of arguments, such as
            ``st.tuples(testing.arrays(), testing.arrays())``, or for one argument.
        terms: how many terms a sum in the kernel has at most, for the
            tolerance of :func:`assert_close`; None for the size of the largest
            argument; 1 for a kernel that works element by element.
        max_examples: how many cases to draw.

    Raises:
        AssertionError: with the smallest failing case that hypothesis finds: its
            shapes and dtypes, the first wrong index and both values.
    """

    @hypothesis.settings(max_examples=max_examples, deadline=None, database=None)
    @hypothesis.given(cases)
    def compare(case: Any) -> None:
        arguments = case if isinstance(case, tuple) else (case,)
        wide = [
            a.astype(np.float64) if isinstance(a, np.ndarray) and a.dtype in FLOAT_DTYPES else a
            for a in arguments
        ]
        with np.errstate(all="ignore"):  # infinities and NaN are values that cases may ask for
            expected = reference(*wide)
            results = kernel(*arguments)
        several = isinstance(expected, (tuple, list))
        if several != isinstance(results, (tuple, list)) or (
            several and len(results) != len(expected)
        ):
            raise AssertionError(
                f"the kernel returned {_count(results)}; wanted {_count(expected)}, as the "
                "reference does"
            )
        longest = max((a.size for a in arguments if isinstance(a, np.ndarray)), default=1)
        described = ", ".join(
            f"{a.dtype}{list(a.shape)} strides {list(a.strides)}"
            if isinstance(a, np.ndarray)
            else repr(a)
            for a in arguments
        )
        for i, (got, want) in enumerate(
            zip(results, expected) if several else [(results, expected)]
        ):
            count = longest if terms is None else terms
            assert_close(got, want, terms=count, name=f"result {i} for ({described})")

    compare()


def _count(results: Any) -> str:
    if isinstance(results, (tuple, list)):
        return f"{len(results)} results"
    return "nothing" if results is None else "one result"


def check_gradients(fn: Callable[..., Any], inputs: Sequence[Any]) -> None:
    """Compare ``fn``'s gradients with central differences in float64.

    Along random directions and under a random upstream gradient: a gradient of
    ones makes BatchNorm's dx zero and proves nothing.

    Args:
        fn: a function of Tensors.
        inputs: float64 Tensors that require gradients, or arrays to make them of.

    Raises:
        AssertionError: naming the function, the argument, the index and both values.
    """
    tensors = [
        x if isinstance(x, Tensor) else Tensor(np.asarray(x, np.float64), device="cpu",
                                               requires_grad=True)
        for x in inputs
    ]  # fmt: skip
    gradcheck(fn, tensors)
