"""Where the kernels read columns from and write results to."""

from __future__ import annotations

from collections.abc import Sequence

from . import layout
from .arrays import Array, contiguous, namespace


def contiguous_or_none(array: Array | None) -> Array | None:
    return None if array is None else contiguous(array)


def written(result: Array, out: Array | None) -> Array:
    """``out`` with ``result`` in it, or ``result`` where no ``out`` was given."""
    if out is None or out is result:
        return result
    out[...] = result
    return out


def result_in(out: Array | None, fresh: Array, *inputs: Array | None) -> Array:
    """Where a kernel writes: ``out`` itself if it lies as ``fresh`` does, apart from all inputs."""
    if out is None or out.strides != fresh.strides:
        return fresh
    may_share = namespace(fresh).may_share_memory
    return fresh if any(a is not None and may_share(out, a) for a in inputs) else out


def taken_as_they_are(
    x: Array, others: Sequence[Array | None], columns: Sequence[Array | None]
) -> bool:
    """Whether the kernels take x, others of its shape and columns without a copy."""
    return (
        layout.is_dense(x)
        and all(other is None or layout.lies_as(other, x) for other in others)
        and all(column is None or column.flags.c_contiguous for column in columns)
    )
