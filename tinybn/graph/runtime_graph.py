"""RuntimeGraph: a model as data, run by a plan."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

from ..arguments import switch
from ..errors import ArgumentError, DeviceError, DTypeError, OrderError, StateError
from ..kernels import recording
from ..kernels.arrays import Array
from ..kernels.engines import engine_of
from ..kernels.launch import observe
from ..tensor import Device, Tensor, default_device, float32, zeros
from ..tensor.archive import NAMES
from ..tensor.device import as_device, use
from ..tensor.dtypes import as_dtype, is_float
from ..tensor.state import IncompatibleKeys
from ..tensor.state import load as load_state
from ..tensor.tape import run_backward
from .capture import capture
from .node import GraphNode, Wanted, check_name, checked, ordered
from .plan import Plan, Run
from .profile import Profile, profile
from .runtime_op import RuntimeOp
from .saving import save
from .show import draw, table

MOST_PLANS = 16  # each has memory of its own; the oldest goes
STATE = (
    "inputs", "train", "device", "dtype", "wanted", "notes", "several",
    "_nodes", "_new", "_outputs",
)  # fmt: skip


class RuntimeGraph:
    """Operations joined by name, run for each shape of input by a plan made once.

    ::

        graph = RuntimeGraph("x", train=True)
        statistics = graph.add(BatchNormStatsRuntimeOp(16), "x", name="statistics")
        graph.add(BatchNormNormalizeRuntimeOp(16), "x", statistics, name="normalize")
        graph.load_state_dict({"normalize.weight": …, …})
        y = graph.forward(x)
        dx = graph.backward(dy)

    A node may read one that is added later. The outputs are those that :meth:`output` names,
    or else the node added last. On a GPU forward is replayed as one CUDA graph from its third
    call with a shape on, and backward likewise.

    Args:
        inputs: the names of what :meth:`forward` is given.
        train: whether :meth:`forward` keeps what :meth:`backward` needs.
        device: of the parameters; None is the default device.
        dtype: of the parameters, floating; float32 where not given.

    Raises:
        ArgumentError: for names that are empty or given twice.
        DTypeError: for a dtype that is not floating.
    """

    def __init__(
        self, *inputs: str, train: bool = False, device: str | Device | None = None,
        dtype: Any = None,
    ) -> None:  # fmt: skip
        self.inputs = inputs or ("x",)
        for i, name in enumerate(self.inputs):
            check_name(name, self.inputs[:i])
        self.train = switch("train", train)
        self.device = default_device() if device is None else as_device(device)
        self.dtype = float32 if dtype is None else as_dtype(dtype)
        if not is_float(self.dtype):
            raise DTypeError(f"dtype is {self.dtype.name}; wanted a floating dtype")
        self.notes: list[str] = []  # what compile() could not do, and why
        self.wanted: dict[str, Wanted] = {}  # of the inputs that are of one kind alone
        self._nodes: dict[str, GraphNode] = {}
        self._new: dict[str, Tensor] = {}  # parameters that wait for values
        self._outputs: tuple[str, ...] = ()
        self.several = False  # whether forward returns a tuple, of one output too
        self._changed()

    def _changed(self) -> None:
        self._plans: dict[Any, Plan] = {}
        self._last: Plan | None = None
        self._made: Run | None = None  # by the last call of _run
        self._recorded: dict[int, Run] = {}  # what CUDA graphs replay, by its first output
        self._pending: Run | None = None  # what backward is of
        self._learned = self.parameters()
        self._learns: list[bool] = []
        self._order: list[GraphNode] | None = None
        self._replayed = capture(self._run, self.device)
        self._lock = threading.RLock()  # of the memory that plans and replays write

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: plans lie in memory of their own, and are made anew."""
        return {name: vars(self)[name] for name in STATE}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._changed()

    # Building

    def add(
        self, op: RuntimeOp, *inputs: str, name: str | None = None,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> str:  # fmt: skip
        """Add a node, and return its name.

        Args:
            op: what it does.
            inputs: the names of what it reads: inputs of the graph, or nodes.
            name: None for the operation's kind and a number.
            parameters: Tensors for the slots, shared and not copied; None for new ones, whose
                values :meth:`load_state_dict`, or who writes to them, gives.

        Raises:
            ArgumentError: for a name that is taken or no name, or too few or many inputs.
            StateError: for parameters that are missing, unknown or of another shape, all named.
        """
        if not isinstance(op, RuntimeOp):
            raise ArgumentError(f"op is {type(op).__name__}; wanted a RuntimeOp")
        taken = (*self.inputs, *self._nodes)
        if name is None:
            number = len(self._nodes)
            while f"{op.name}{number}" in taken:
                number += 1
            name = f"{op.name}{number}"
        check_name(name, taken)
        if len(inputs) != op.inputs:
            raise ArgumentError(
                f"node {name} ({op.name}) is given {len(inputs)} inputs; wanted {op.inputs}"
            )
        node = GraphNode(name, op, tuple(str(i) for i in inputs))
        node.parameters = (
            self._new_parameters(op)
            if parameters is None
            else checked(name, op, parameters, self.device)
        )
        self._nodes[name] = node
        if parameters is None:
            self._new |= {f"{name}.{slot}": tensor for slot, tensor in node.parameters.items()}
        self._changed()
        return name

    def _new_parameters(self, op: RuntimeOp) -> dict[str, Tensor]:
        made = {}
        for slot, (shape, learned, dtype) in op.slots.items():
            kind = self.dtype if dtype is None else dtype
            tensor = made[slot] = zeros(*shape, dtype=kind, device=self.device)
            tensor.requires_grad = learned and self.train
        return made

    def output(self, *names: str) -> None:
        """Say which nodes' results :meth:`forward` returns, in this order.

        Raises:
            ArgumentError: for none, or a name that no node has.
        """
        unknown = [n for n in names if n not in self._nodes]
        if unknown or not names:
            raise ArgumentError(f"outputs are {names}; wanted some of {', '.join(self._nodes)}")
        self._outputs, self.several = tuple(names), len(names) > 1
        self._changed()

    @property
    def outputs(self) -> tuple[str, ...]:
        """The names of the nodes whose results :meth:`forward` returns."""
        return self._outputs or tuple(self._nodes)[-1:]

    @property
    def nodes(self) -> list[GraphNode]:
        """The nodes in the order in which they run.

        Raises:
            ArgumentError: for a graph without nodes, one that reads what is not there, a cycle,
                or a node whose result nobody uses.
        """
        if self._order is None:
            self._order = ordered(self._nodes, self.inputs, self.outputs)
        return self._order

    def readable_nodes(self) -> tuple[list[GraphNode], list[str]]:
        """The nodes to show: as they run, or as they were added, and what keeps them from it."""
        try:
            return self.nodes, []
        except ArgumentError as error:
            return list(self._nodes.values()), [f"It cannot run: {error}"]

    def save(self, path: str | os.PathLike) -> None:
        """Write the graph to a file that :func:`tinybn.graph.load` reads: a model as data.

        It is a safetensors file of the parameters by ``{node}.{slot}``, those that nodes share
        once, with the nodes as JSON in its metadata.

        Raises:
            ArgumentError: for a RuntimeOp, or an argument of one, that is not tinybn's; for a
                folder that cannot be written; and as :attr:`nodes`.
        """
        wanted = {n: [kind.shape, NAMES[kind.dtype]] for n, kind in self.wanted.items()}
        save(
            path, self.nodes, inputs=self.inputs, outputs=self.outputs, several=self.several,
            train=self.train, dtype=NAMES[self.dtype], notes=self.notes, wanted=wanted,
        )  # fmt: skip

    # Parameters

    def parameters(self) -> list[Tensor]:
        """The learned parameters, each once: what an optimiser is given."""
        every = [
            node.parameters[slot]
            for node in self._nodes.values()
            for slot, kind in node.op.slots.items()
            if kind.learned
        ]
        return list({id(t): t for t in every}.values())

    def state_dict(self) -> dict[str, Tensor]:
        """Parameters and buffers by ``{node}.{slot}``, detached; they share the graph's memory."""
        return {key: tensor.detach() for key, tensor in self._named().items()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> IncompatibleKeys:
        """Copy Tensors or arrays by ``{node}.{slot}`` into the graph's, in place.

        Raises:
            StateError: listing every missing, unknown and mis-shaped entry; nothing is changed.
        """
        return load_state(self._named(), state_dict, True, type(self).__name__)

    def _named(self) -> dict[str, Tensor]:
        return {
            f"{node.name}.{slot}": tensor
            for node in self._nodes.values()
            for slot, tensor in node.parameters.items()
        }

    # Running

    def forward(self, *inputs: Tensor) -> Any:
        """Run the graph.

        Args:
            inputs: a Tensor for each of the graph's inputs, on its device.

        Returns:
            A Tensor, or a tuple of several outputs, without history. On a GPU it is the CUDA
            graph's own memory, which the next call writes anew. Threads that call one graph take
            turns; a forward and its backward belong in one thread.

        Raises:
            ArgumentError: for another number of inputs, and as :attr:`nodes`.
            ShapeError, DTypeError, DeviceError: for inputs that do not fit, in a compiled graph
                all but those of the example's dtype and, the batch aside, shape.
            StateError: for parameters that were given no values. Nothing is changed then.
        """
        self._check_inputs(inputs)
        with self._lock:
            plan = self._plan(inputs)  # raises before anything is recorded or changed
            self._check_values()
            self._pending = None  # what an earlier backward needs may be written over
            wanted = any(tensor.requires_grad for tensor in inputs)
            if self.device.type == "cuda" and not wanted:
                found = self._replayed(*inputs)
            else:
                found = self._run(*inputs, plan=plan)
            self._last = plan
            if self.train:
                # A replay runs no Python: its output tells which recording it is.
                self._pending = self._recorded.get(id(found[0].data), self._made)
                self._made = None  # its memory goes with the backward
                if self._pending is not None:
                    self._pending.note(plan.kept(inputs, found))
        return found if self.several else found[0]

    def results(self, *inputs: Tensor) -> dict[str, Array]:
        """Every node's result in one run, as arrays by name, with the inputs.

        It keeps nothing for a backward, but updates running statistics as :meth:`forward` does.

        Raises:
            as :meth:`forward`.
        """
        self._check_inputs(inputs)
        with self._lock:
            plan = self._plan(inputs)
            self._check_values()
        arrays = {name: tensor.data for name, tensor in zip(self.inputs, inputs)}
        with use(self.device):
            return plan.run(arrays, copies=True)[0]

    __call__ = forward

    def forget(self) -> None:
        """Let go of what the last forward kept for a backward."""
        self._pending = None

    def _check_inputs(self, inputs: tuple[Any, ...]) -> None:
        if len(inputs) != len(self.inputs):
            raise ArgumentError(
                f"the graph is given {len(inputs)} inputs; wanted {', '.join(self.inputs)}"
            )
        for name, tensor in zip(self.inputs, inputs):
            if not isinstance(tensor, Tensor):
                raise DTypeError(f"{name} is {type(tensor).__name__}; wanted a Tensor")
            if tensor.device != self.device:
                raise DeviceError(f"{name} is on {tensor.device}; wanted {self.device}")
            if name in self.wanted:
                self.wanted[name].check(name, tensor)

    def _check_values(self) -> None:
        """Raise StateError for new parameters that nobody has written to."""
        unset = [key for key, tensor in self._new.items() if tensor._version.value == 0]
        if unset:
            raise StateError(
                f"the parameters {', '.join(unset)} have no values yet; wanted load_state_dict"
            )
        self._new = {}

    def _plan(self, inputs: tuple[Tensor, ...]) -> Plan:
        learns = [p.requires_grad for p in self._learned] if self.train else []
        if learns != self._learns:  # what is kept for backward, and what a recording does, is other
            self._plans, self._recorded, self._learns = {}, {}, learns
            self._replayed = capture(self._run, self.device)
        arrays = [tensor.data for tensor in inputs]
        wants = tuple(tensor.requires_grad for tensor in inputs)
        key = (
            engine_of(arrays[0]), wants, *((a.shape, a.dtype, a.strides) for a in arrays),
        )  # fmt: skip
        plan = self._plans.get(key)
        if plan is None or not plan.is_good():
            self._plans.pop(key, None)
            if len(self._plans) == MOST_PLANS:
                del self._plans[next(iter(self._plans))]
            plan = self._plans[key] = self._new_plan(inputs)
        return plan

    def _new_plan(self, inputs: tuple[Tensor, ...]) -> Plan:
        with use(self.device):
            return Plan(
                self.nodes, {name: t.data for name, t in zip(self.inputs, inputs)}, self.outputs,
                self.train, {name: t.requires_grad for name, t in zip(self.inputs, inputs)},
            )  # fmt: skip

    def _run(self, *inputs: Tensor, plan: Plan | None = None) -> tuple[Tensor, ...]:
        plan = self._plan(inputs) if plan is None else plan
        arrays = {name: tensor.data for name, tensor in zip(self.inputs, inputs)}
        sources = None
        if not self.train and engine_of(inputs[0].data) == "cpu" and observe.current() is None:
            results = plan.replay(arrays, self.outputs)
            return tuple(Tensor.wrap(results[name]) for name in self.outputs)
        if self.train:
            sources = {
                name: None if not t.requires_grad else t if t._node is None else t._node
                for name, t in zip(self.inputs, inputs)
            }
        recorded = recording.current()
        if recorded is not None:  # a replay writes and reads where the parameters are now
            for node in self._nodes.values():
                for tensor in node.parameters.values():
                    recorded.unchanged(tensor, "data")
        with use(self.device):
            results, made = plan.run(arrays, sources)
        roots = [(made.get(name), results[name]) for name in self.outputs]
        self._made = Run(roots, recording.capturing())
        if self._made.recorded:
            recording.keep_alive(plan)  # whose memory every replay writes
            self._recorded[id(roots[0][1])] = self._made
        return tuple(Tensor.wrap(results[name]) for name in self.outputs)

    def backward(self, gradient: Any = None) -> None:
        """Add gradients to those of the parameters, and of the inputs that require one.

        Args:
            gradient: of the output, as of :meth:`Tensor.backward`; may be left out where that
                has one element.

        Raises:
            OrderError: without a forward before it, or a second time after one.
            ArgumentError: for a graph that does not train, or with several outputs.
            TapeError, ShapeError, DTypeError, DeviceError: for a gradient that is missing or does
                not fit; TapeError where a parameter, input or output that it reads was written in
                place since.
        """
        if not self.train:
            raise ArgumentError("the graph does not train; wanted RuntimeGraph(…, train=True)")
        if len(self.outputs) > 1:
            raise ArgumentError(f"backward of {len(self.outputs)} outputs; wanted one")
        run = self._pending
        if run is None:
            raise OrderError("backward comes after a forward, once; there was none since")
        root, result = run.roots[0]
        if root is None:
            raise ArgumentError("nothing wants a gradient; wanted a parameter or input that does")
        dy = Tensor.wrap(result)._upstream(gradient)
        run.check()
        self._pending = None
        replayed = run.recorded and recording.current() is None
        if not replayed or any(p.grad is not None for p in self.parameters()):
            with use(self.device):
                run_backward(root, dy, retain_graph=run.recorded)
            return
        if run.backward is None:
            run.backward = capture(
                lambda dy: run_backward(root, dy.data, retain_graph=True), self.device
            )
        run.backward(Tensor.wrap(dy))

    # Looking

    def __repr__(self) -> str:
        inputs, outputs = ", ".join(self.inputs), ", ".join(self.outputs)
        return f"RuntimeGraph({inputs} -> {outputs}, {len(self._nodes)} nodes)"

    def __str__(self) -> str:
        """A table of the nodes; of the last forward's shapes, where there was one."""
        return table(self, self._last)

    def to_dot(self) -> str:
        """The graph in Graphviz's DOT language: ``dot -Tsvg`` draws it.

        Boxes are operations, with their parameters and the last forward's shapes.
        """
        return draw(self, self._last)

    def profile(self, *inputs: Tensor, repeats: int = 20) -> Profile:
        """Time each launch of a forward; parameters, buffers and gradients stay as they are.

        Args:
            inputs: as of :meth:`forward`.
            repeats: how often; the median counts.

        Returns:
            A table when printed, and ``rows`` with microseconds, bytes and GB/s of each launch:
            by CUDA events on a GPU, by the wall clock on the CPU.

        Raises:
            as :meth:`forward`; ArgumentError for fewer than one repeat.
        """
        self._check_inputs(inputs)
        if repeats < 1:
            raise ArgumentError(f"repeats is {repeats}; wanted at least 1")
        self._check_values()
        plan = self._new_plan(inputs)  # with memory of its own: a backward may need the other's
        arrays = {name: tensor.data for name, tensor in zip(self.inputs, inputs)}
        with use(self.device):
            return profile(plan, arrays, repeats)
