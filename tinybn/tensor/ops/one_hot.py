"""Class numbers as rows with a single 1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...arguments import integer
from ...errors import ArgumentError, DTypeError, IndexOutOfRange
from ...kernels import recording
from ...kernels.arrays import namespace
from .. import watch
from ..dtypes import int32, int64
from ..tape import wrap
from ._operands import check_tensors

if TYPE_CHECKING:
    from ..tensor import Tensor


def one_hot(target: Tensor, num_classes: int = -1) -> Tensor:
    """Class numbers [...] as int64 rows [..., C] with a single 1.

    Args:
        target: int32 or int64, at least 0.
        num_classes: C; −1 for the largest class number plus 1.

    Raises:
        DTypeError: for other dtypes.
        IndexOutOfRange: for a number outside 0 to C − 1. In a captured step it gives zeros.
        ArgumentError: for a C that is no integer, or below 0 where there are no class numbers.
    """
    check_tensors(target=target)
    if target.dtype not in (int32, int64):
        raise DTypeError(f"target has dtype {target.dtype.name}; wanted int32 or int64")
    watch.read(target, "one_hot")
    classes = integer("num_classes", num_classes)
    if classes < 0 and target.size == 0:
        raise ArgumentError(f"num_classes is {classes} and target is empty; wanted the number")
    if classes == -1:
        classes = int(target.data.max()) + 1
    if classes < 0 or not recording.capturing():  # to look at them would be a host read
        outside = (target.data < 0) | (target.data >= classes)
        if bool(outside.any()):
            raise IndexOutOfRange(
                f"num_classes is {num_classes} and target holds classes {int(target.data.min())} "
                f"to {int(target.data.max())}; wanted them from 0 to num_classes - 1"
            )
    xp = namespace(target.data)
    hot = target.data[..., None] == xp.arange(classes)
    return wrap(hot.astype(int64))
