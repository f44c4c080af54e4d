"""The tape: how operations are recorded and how gradients run back along them.

An operation is a class with two functions side by side, :meth:`Op.forward` and
:meth:`Op.backward`, both on plain NumPy or CuPy arrays. :func:`apply` runs the
first, wraps its result in a Tensor and, if an input wants a gradient, hangs a
:class:`Node` on it. :func:`run_backward` walks the nodes from the newest to
the oldest. That is reverse-mode differentiation (Linnainmaa 1970; Griewank and
Walther, Evaluating Derivatives, ch. 3).

A Node refers to its parents and to what its gradient needs, never to the
Tensor that it made. So there is no reference cycle: when the last name of a
result goes, its whole graph and the device memory behind it go at once.
"""

from __future__ import annotations

import collections
import contextlib
import heapq
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from ..errors import DTypeError, ShapeError, TapeError
from ..kernels import recording
from ..kernels.arrays import namespace
from . import watch
from .device import elsewhere, use
from .dtypes import is_float
from .grad_mode import is_grad_enabled, no_grad

if TYPE_CHECKING:
    from .tensor import Tensor

Array = Any  # numpy.ndarray or cupy.ndarray
_Pending = tuple[Array, bool]  # a gradient so far, and whether its buffer is ours to write into

_sequence = itertools.count()  # later nodes get larger numbers: a parent's is always smaller
_tensor_type: type[Tensor]  # set by tensor.py, which imports this file


class Version:
    """How often the memory that several views share was written in place.

    Attributes:
        value: the number of in-place writes.
    """

    __slots__ = ("value", "_views")

    def __init__(self) -> None:
        self.value = 0
        self._views: dict[int, weakref.ref] | None = None  # by id; only tensors still alive

    def add_view(self, tensor: Tensor) -> None:
        """Note that ``tensor`` is one of several that share the memory."""
        views = self._views = {} if self._views is None else self._views
        key = id(tensor)
        if key not in views:
            views[key] = weakref.ref(tensor, lambda _: views.pop(key, None))

    def others(self, tensor: Tensor) -> list[Tensor]:
        """The tensors alive, other than ``tensor``, that share the memory as base or view.

        A recorded in-place write gives ``tensor`` a new node; the others' nodes
        then tell of values that their memory no longer has.
        """
        alive = [ref() for ref in list((self._views or {}).values())]
        return [t for t in alive if t is not None and t is not tensor]


class Node:
    """One recorded operation: its parents, and what its gradient needs.

    Attributes:
        op: the Op class.
        parents: for each input the Node that made it, the leaf Tensor itself,
            or None where no gradient is wanted.
        needs: for each input whether a gradient is wanted.
        shape, dtype: of the result, which are those of its gradient.
        sequence: a number larger than those of all parents.
        hooks: functions called with the gradient, which may replace it.
        retain: a weak reference to the result, where ``retain_grad`` asks for its gradient.
    """

    __slots__ = (
        "op", "parents", "needs", "shape", "dtype", "sequence", "hooks", "retain",
        "_saved", "_versions", "_freed", "__weakref__",
    )  # fmt: skip

    def __init__(self, op: type[Op], needs: tuple[bool, ...]) -> None:
        self.op = op
        self.needs = needs
        self.parents: tuple[Node | Tensor | None, ...] = ()
        self.shape: tuple[int, ...] = ()
        self.dtype: np.dtype | None = None
        self.sequence = next(_sequence)
        self.hooks: list[Callable] | None = None
        self.retain: weakref.ref | None = None
        self._saved: tuple = ()
        self._versions: Sequence[tuple[Version, int]] = ()
        self._freed = False

    def save(self, *values: Any) -> None:
        """Keep ``values`` (inputs, the result, other arrays, numbers) for backward."""
        self._saved = values

    @property
    def saved(self) -> tuple:
        """The values that forward saved.

        Raises:
            TapeError: if an input or result among them was since written in place.
        """
        for version, value in self._versions:
            if version.value != value:
                raise TapeError(
                    f"backward of {self.op.__name__} needs a tensor of shape {self.shape} or an "
                    f"input of it as it was at version {value}, but it was written in place "
                    f"(version {version.value}); write into a copy instead"
                )
        return self._saved

    def _watch(self, tensors: Sequence[Tensor]) -> None:
        """Remember the versions of those tensors whose arrays were saved."""
        if self._saved:
            saved = set(map(id, self._saved))
            self._versions = [
                (t._version, t._version.value) for t in tensors if id(t._data) in saved
            ]

    def _free(self) -> None:
        self.parents = self._saved = self._versions = ()
        self._freed = True


class Op:
    """One differentiable operation; a subclass has both functions and no state.

    ``view`` says that the result may share the first input's memory.
    """

    view = False

    @staticmethod
    def forward(ctx: Node, *arrays: Array, **options: Any) -> Array:
        """Compute the result; ``ctx.save(...)`` keeps what backward needs."""
        raise NotImplementedError

    @staticmethod
    def backward(ctx: Node, grad: Array) -> tuple[Array | None, ...]:
        """Return the gradient for each input, None where ``ctx.needs`` is False."""
        raise NotImplementedError


def apply(op: type[Op], *inputs: Any, **options: Any) -> Tensor:
    """Run ``op`` on Tensors (and Python scalars, passed as they are) and record it.

    ``options`` go to ``op.forward`` as keywords and get no gradient.
    """
    recording = is_grad_enabled()
    tensors, arrays, needs = [], [], []
    for value in inputs:
        if isinstance(value, _tensor_type):
            tensors.append(value)
            arrays.append(value._data)
            needs.append(recording and value._requires_grad)
        else:
            arrays.append(value)
            needs.append(False)
    on_host = True
    if tensors:
        first = tensors[0]._data
        on_host = isinstance(first, np.ndarray)
        if (device := elsewhere(first)) is not None:
            with use(device):
                return apply(op, *inputs, **options)
    node = Node(op, tuple(needs))
    if on_host:
        with np.errstate(all="ignore"):  # infinities and NaN are values here, as on the GPU
            result = _tensor_type.wrap(op.forward(node, *arrays, **options))
    else:
        result = _tensor_type.wrap(op.forward(node, *arrays, **options))
    if op.view and shares_memory(result._data, arrays[0]):
        _share_version(inputs[0], result)
    watcher = watch.current()
    if watcher is not None:
        watcher.operation(op, inputs, options, result)
    if True in needs and is_float(result._data.dtype):
        _record(node, inputs, tensors, result)
    return result


def _share_version(base: Tensor, view: Tensor) -> None:
    view._version = base._version
    view._version.add_view(base)
    view._version.add_view(view)


def _record(node: Node, inputs: tuple[Any, ...], tensors: list[Tensor], result: Tensor) -> None:
    node.parents = tuple(
        [(v if v._node is None else v._node) if need else None
         for v, need in zip(inputs, node.needs)]
    )  # fmt: skip
    node.shape, node.dtype = result._data.shape, result._data.dtype
    node._watch([*tensors, result])
    result._node = node
    result._requires_grad = True


def run_backward(root: Node | Tensor, gradient: Array, retain_graph: bool) -> None:
    """Send ``gradient`` back from ``root`` and add it up in the leaves' ``grad``.

    Raises:
        TapeError: if part of the graph was freed by an earlier backward.
    """
    # Newest first: every child of a node is newer than the node, so when a
    # node is popped all contributions to its gradient have arrived. The leaves
    # come last, and every ``grad`` is written after all hooks have run, so that
    # a backward that raises has changed no gradient.
    pending: dict[int, _Pending] = {}
    queue: list[tuple[int, Node]] = []
    leaves: dict[int, Tensor] = {}
    finished: list[tuple[Tensor, Array, bool]] = []
    _send(root, gradient, False, pending, queue, leaves)
    with np.errstate(all="ignore"):
        while queue:
            _, node = heapq.heappop(queue)
            _step(node, pending, queue, leaves, finished, retain_graph)
        for key, leaf in leaves.items():
            finished.append((leaf, *_run_hooks(leaf._hooks, *pending.pop(key))))
        for tensor, grad, owned in finished:
            _accumulate(tensor, grad, owned)


def _step(
    node: Node,
    pending: dict[int, _Pending],
    queue: list[tuple[int, Node]],
    leaves: dict[int, Tensor],
    finished: list[tuple[Tensor, Array, bool]],
    retain_graph: bool,
) -> None:
    """Take the finished gradient of ``node`` and send its parts to the parents."""
    if node._freed:
        raise TapeError(
            f"backward through {node.op.__name__} a second time: its graph was freed by the "
            "first backward; call backward(retain_graph=True) to keep it"
        )
    device = elsewhere(pending[id(node)][0])
    if device is not None:
        with use(device):
            return _step(node, pending, queue, leaves, finished, retain_graph)
    grad, _ = _run_hooks(node.hooks, *pending.pop(id(node)))
    retained = node.retain() if node.retain is not None else None
    if retained is not None:
        finished.append((retained, grad, False))
    parents = node.parents
    gradients = node.op.backward(node, grad)
    saved = {id(value) for value in node._saved}
    if not retain_graph:
        node._free()
    counts = collections.Counter(map(id, gradients))
    for parent, part in zip(parents, gradients, strict=True):
        if parent is None or part is None:
            continue
        # A buffer is ours to write into only if nothing else can see it.
        owned = (
            part is not grad
            and part.base is None
            and counts[id(part)] == 1
            and id(part) not in saved
        )
        if part.dtype != parent.dtype:
            part, owned = part.astype(parent.dtype), True
        if part.shape != parent.shape:
            raise ShapeError(
                f"backward of {node.op.__name__} gave a gradient of shape {part.shape} "
                f"for an input of shape {parent.shape}"
            )
        _send(parent, part, owned, pending, queue, leaves)


def _send(
    target: Node | Tensor,
    part: Array,
    owned: bool,
    pending: dict[int, _Pending],
    queue: list[tuple[int, Node]],
    leaves: dict[int, Tensor],
) -> None:
    """Add ``part`` to the gradient that waits for ``target``."""
    key = id(target)
    if key not in pending:
        pending[key] = (part, owned)
        if isinstance(target, Node):
            heapq.heappush(queue, (-target.sequence, target))
        else:
            leaves[key] = target
    else:
        pending[key] = (_added(*pending[key], part), True)


def _added(total: Array, in_place: bool, part: Array) -> Array:
    """``total + part``, in the memory of ``total`` if that is ours."""
    device = elsewhere(total)
    if device is not None:
        with use(device):
            return _added(total, in_place, part)
    if not in_place:
        return total + part
    total += part
    return total


def _copied(array: Array) -> Array:
    """A copy on the array's own device: CuPy's would go to the current one."""
    device = elsewhere(array)
    with contextlib.nullcontext() if device is None else use(device):
        return array.copy()


def _accumulate(tensor: Tensor, part: Array, owned: bool) -> None:
    """Add ``part`` to ``tensor.grad``."""
    recorded = recording.current()
    if recorded is not None:
        recorded.leaf(tensor)
    if tensor.grad is None:
        tensor.grad = _tensor_type.wrap(part if owned else _copied(part))
    elif recorded is not None and recorded.capturing:
        # A replay adds to the same memory, so it must be what the next one finds.
        tensor.grad.data[...] = _added(tensor.grad.data, False, part)
    else:
        # Not in place: the user may hold the old gradient by another name.
        tensor.grad = _tensor_type.wrap(_added(tensor.grad.data, False, part))


def _run_hooks(hooks: list[Callable] | None, grad: Array, owned: bool) -> _Pending:
    """Pass ``grad`` through the hooks, which may write into it or return another.

    Raises:
        DTypeError, ShapeError: for a result that is no Tensor or of another shape.
    """
    if not hooks:
        return grad, owned
    for hook in tuple(hooks):
        if not owned:  # a hook that writes must change this gradient alone
            grad, owned = _copied(grad), True
        with no_grad():
            replaced = hook(_tensor_type.wrap(grad))
        if replaced is not None:
            if not is_tensor(replaced):
                raise DTypeError(
                    f"a hook returned {type(replaced).__name__}; wanted a Tensor or None"
                )
            if replaced.shape != grad.shape:
                raise ShapeError(
                    f"a hook returned a gradient of shape {replaced.shape} where "
                    f"{grad.shape} is wanted"
                )
            grad, owned = replaced.data.astype(grad.dtype, copy=False), False
    return grad, False  # the hooks may have kept what they saw


def shares_memory(a: Array, b: Array) -> bool:
    """Whether the two arrays' memory may overlap (by their bounds)."""
    xp = namespace(a)
    return isinstance(b, xp.ndarray) and bool(xp.may_share_memory(a, b))


def register_tensor_type(cls: type[Tensor]) -> None:
    """Tell the tape which class wraps results; tensor.py calls it once."""
    global _tensor_type
    _tensor_type = cls


def is_tensor(value: Any) -> bool:
    """Whether ``value`` is a Tensor; for the ops, which cannot import the class."""
    return isinstance(value, _tensor_type)


def wrap(array: Array) -> Tensor:
    """Return a Tensor around ``array``, with no graph and no copy."""
    return _tensor_type.wrap(array)
