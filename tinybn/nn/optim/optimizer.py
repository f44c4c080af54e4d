"""What all optimisers share: parameter groups, state, and the checks before a step."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from ...errors import (
    ArgumentError,
    ArgumentTypeError,
    DeviceError,
    DTypeError,
    ShapeError,
    StateError,
)
from ...kernels import recording
from ...kernels.arrays import Array, namespace
from ...kernels.recording import Recording
from ...tensor import Tensor
from ...tensor.device import Device
from ...tensor.grad_mode import enable_grad, no_grad
from ..parameter import Parameter
from ..utils import clear_grad

Group = dict[str, Any]
Again = Callable[[Group], None]


class Optimizer:
    """Base of the optimisers; a subclass gives :meth:`_checked` and :meth:`_update`.

    Args:
        params: the Tensors to update, or dictionaries ``{"params": tensors, option: value …}``,
            one for each parameter group with options of its own.
        defaults: the options of groups that do not give them.

    Attributes:
        param_groups: dictionaries with ``"params"`` and the options, which may be changed
            between steps: ``optimizer.param_groups[0]["lr"] = 0.01``.
        state: for each updated parameter a dictionary of what the optimiser keeps of it.

    Raises:
        TypeError: for params that are no Tensors, or an option that is not known.
        ArgumentError: (a ValueError) for no params, one given twice, one that cannot
            have a gradient of its own, or an option outside its range.
    """

    _counts: ClassVar[bool] = False  # whether an update's numbers differ from step to step

    def __init__(self, params: Iterable[Tensor] | Iterable[Group], defaults: Group) -> None:
        self.defaults = self._checked(defaults)
        self.param_groups: list[Group] = []
        self.state: dict[Tensor, dict[str, Any]] = {}
        if isinstance(params, (Tensor, dict, set)):
            raise ArgumentTypeError(
                f"params is a {type(params).__name__}; wanted a list of Tensors or of groups"
            )
        groups = _listed(params)
        if not groups:
            raise ArgumentError(f"{type(self).__name__} got no parameters; wanted at least one")
        if not any(isinstance(group, dict) for group in groups):
            groups = [{"params": groups}]
        for group in groups:
            self.add_param_group(group)

    def add_param_group(self, param_group: Group) -> None:
        """Add a group ``{"params": tensors, option: value …}``; other options are the defaults.

        Raises:
            TypeError, ArgumentError: as the class; nothing is added then.
        """
        if not isinstance(param_group, dict) or "params" not in param_group:
            raise ArgumentTypeError(
                f'a parameter group is a dict with "params", not {param_group!r}'
            )
        options = {key: value for key, value in param_group.items() if key != "params"}
        unknown = sorted(set(options) - set(self.defaults))
        if unknown:
            raise ArgumentTypeError(f"{type(self).__name__} has no option {', '.join(unknown)}")
        params = param_group["params"]
        if isinstance(params, set):
            raise ArgumentTypeError("params is a set, which has no order; wanted a list of Tensors")
        params = [params] if isinstance(params, Tensor) else _listed(params)
        seen = {id(param) for group in self.param_groups for param in group["params"]}
        for param in params:
            self._check_param(param)
            if id(param) in seen:
                raise ArgumentError(f"a parameter of shape {param.shape} is given twice")
            seen.add(id(param))
        self.param_groups.append({"params": params, **self._checked({**self.defaults, **options})})

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Remove the parameters' gradients, or with ``set_to_none=False`` fill them with 0."""
        for group in self.param_groups:
            for param in group["params"]:
                clear_grad(param, set_to_none)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update every parameter that has a gradient; the others are left as they are.

        Args:
            closure: computes the gradients anew and returns the loss; called first.

        Returns:
            What ``closure`` returned, or None.

        Raises:
            ShapeError, DTypeError, DeviceError, ArgumentError: for a gradient that does not
                fit its parameter, or an option outside its range; nothing is updated then.
        """
        loss = None
        if closure is not None:
            with enable_grad():
                loss = closure()
        with no_grad():
            # All is checked before the first group is updated; options may have been changed.
            ready = [
                (
                    self._checked(self._given(group)),
                    [param for param in group["params"] if _has_grad(param)],
                )
                for group in self.param_groups
            ]
            again = [self._update(options, params) for options, params in ready]
            written = [param for _, params in ready for param in params]
            _count_writes(written)
            recorded = recording.current()
            if recorded is not None:
                self._record(recorded, again, written)
        return loss

    def _record(self, recorded: Recording, again: list[list[Again]], written: list[Tensor]) -> None:
        """Let replays follow the options, which the launches read from the device."""

        sent = [self._checked(self._given(group)) for group in self.param_groups]
        switches = self._switches()

        def replayed() -> None:
            nonlocal sent
            given = [self._given(group) for group in self.param_groups]
            if self._counts or given != sent:  # a replay waits for this, and they seldom differ
                sent = [self._checked(options) for options in given]
                for options, updates in zip(sent, again):
                    for update in updates:
                        update(options)
            _count_writes(written)

        recorded.unchanged(self, "state")
        recorded.guard(lambda: self._switches() == switches)
        recorded.on_replay(replayed)

    def _given(self, group: Group) -> Group:
        """A group's options, without its parameters."""
        return {key: group[key] for key in self.defaults}

    def _switches(self) -> list[Any]:
        """What of the options decides which arithmetic is done: truth values, and which are 0."""
        return [
            (len(group["params"]), *(bool(group[key]) for key in self.defaults))
            for group in self.param_groups
        ]

    def state_dict(self) -> dict[str, Any]:
        """The state and options in PyTorch's layout, with numbers in place of parameters.

        Returns:
            ``{"state": {number: {name: value}}, "param_groups": [{"params": [number …], …}]}``.
            The Tensors are the optimiser's own, not copies; ``copy.deepcopy`` gives those.
        """
        numbers: dict[int, int] = {}
        groups = []
        for group in self.param_groups:
            members = [numbers.setdefault(id(p), len(numbers)) for p in group["params"]]
            groups.append({**group, "params": members})
        state = {numbers[id(p)]: dict(values) for p, values in self.state.items()}
        return {"state": dict(sorted(state.items())), "param_groups": groups}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over the state and options that :meth:`state_dict` gave, as copies.

        Tensors are copied to their parameter's device and dtype. An option that this
        class lacks is accepted only if it is off (None or False), as in PyTorch's files.

        Raises:
            StateError: for other groups, sizes or options; nothing is changed then.
        """
        if not isinstance(state_dict, dict) or not {"state", "param_groups"} <= set(state_dict):
            raise StateError('an optimiser\'s state is a dict with "state" and "param_groups"')
        given = state_dict["param_groups"]
        if not all(isinstance(group, dict) and "params" in group for group in given):
            raise StateError('each of an optimiser\'s "param_groups" is a dict with "params"')
        sizes = [len(group["params"]) for group in self.param_groups]
        if [len(group["params"]) for group in given] != sizes:
            raise StateError(
                f"the state has groups of {[len(group['params']) for group in given]} parameters; "
                f"wanted {sizes}"
            )
        groups: list[Group] = []
        owners: dict[Any, Tensor] = {}
        for mine, theirs in zip(self.param_groups, given):
            owners.update(zip(theirs["params"], mine["params"]))
            groups.append({"params": mine["params"], **self._options(theirs)})
        state = {}
        for number, values in state_dict["state"].items():
            if number not in owners:
                raise StateError(f"the state has parameter {number}, which is in no group")
            state[owners[number]] = _copied(values, owners[number], number)
        self.state, self.param_groups = state, groups

    def __repr__(self) -> str:
        lines = [f"{type(self).__name__} ("]
        for i, group in enumerate(self.param_groups):
            lines.append(f"Parameter Group {i}")
            lines += [f"    {key}: {group[key]}" for key in sorted(group) if key != "params"]
        return "\n".join([*lines, ")"])

    def _checked(self, options: Group) -> Group:
        """Return ``options`` as Python numbers, or raise ArgumentError."""
        raise NotImplementedError

    def _update(self, group: Group, params: list[Tensor]) -> list[Again]:
        """Make a step of ``params``, which all have fitting gradients.

        Returns what makes a recorded step's next replay another step, given the group's options.
        """
        raise NotImplementedError

    def _options(self, group: Group) -> Group:
        """The options in a loaded group."""
        missing = sorted(set(self.defaults) - set(group))
        unknown = sorted(
            key
            for key, value in group.items()
            # PyTorch's schedules leave the first rate in the groups; ours keep it themselves.
            if key not in self.defaults and key not in ("params", "initial_lr")
            if value is not None
            if value is not False
        )
        if missing or unknown:
            raise StateError(
                f"the state's options do not fit {type(self).__name__}: "
                f"missing {missing}, unknown {unknown}"
            )
        try:
            return self._checked({key: group[key] for key in self.defaults})
        except ArgumentError as error:
            raise StateError(f"the state's options do not fit: {error}") from error

    def _arrays(self, params: list[Tensor], name: str) -> list[Array]:
        """The state called ``name`` of each parameter, made of zeros or moved as needed."""
        arrays = []
        for param in params:
            state = self.state.setdefault(param, {})
            if name not in state:
                state[name] = Tensor.wrap(namespace(param.data).zeros_like(param.data))
            elif state[name].dtype != param.dtype or state[name].device != param.device:
                state[name] = state[name].to(param.device).to(param.dtype)
            arrays.append(state[name].data)
        return arrays

    @staticmethod
    def _check_param(param: Any) -> None:
        if not isinstance(param, Tensor):
            raise ArgumentTypeError(
                f"a parameter is {type(param).__name__}; wanted a Tensor, as in model.parameters()"
            )
        if not param.is_leaf:
            raise ArgumentError(
                f"a parameter of shape {param.shape} was computed from others, and its gradient "
                "goes to them; wanted a leaf"
            )
        # A Parameter without requires_grad was frozen on purpose, and may be thawed.
        if not param.requires_grad and not isinstance(param, Parameter):
            raise ArgumentError(
                f"a tensor of shape {param.shape} does not require a gradient; "
                "wanted requires_grad=True"
            )
        _check_memory(param)


def _listed(params: Any) -> list[Any]:
    try:
        return list(params)
    except TypeError:
        raise ArgumentTypeError(
            f"params is {params!r}; wanted a list of Tensors or of groups"
        ) from None


def _count_writes(params: list[Tensor]) -> None:
    for param in params:
        param._version.value += 1


def _check_memory(param: Tensor) -> None:
    if not param.data.flags.c_contiguous:
        raise ArgumentError(f"a parameter of shape {param.shape} is not contiguous; wanted it so")


def _has_grad(param: Tensor) -> bool:
    """Whether there is a gradient to follow; raises if it does not fit the parameter."""
    grad = param.grad
    if grad is None:
        return False
    if grad.shape != param.shape:
        raise ShapeError(f"a gradient has shape {grad.shape}; wanted its parameter's {param.shape}")
    if grad.dtype != param.dtype:
        raise DTypeError(f"a gradient has dtype {grad.dtype}; wanted its parameter's {param.dtype}")
    _check_memory(param)
    if grad.device != param.device:
        raise DeviceError(f"a gradient is on {grad.device}; wanted its parameter's {param.device}")
    return True


def partition(params: list[Tensor], kind: Callable[[Tensor], Any]) -> dict[Any, list[Tensor]]:
    """The parameters by (device, kind): what one kernel call can update. Mostly all of them."""
    parts: dict[tuple[Device, Any], list[Tensor]] = {}
    for param in params:
        parts.setdefault((param.device, kind(param)), []).append(param)
    return parts


def values_and_grads(params: list[Tensor]) -> tuple[list[Array], list[Array]]:
    """The arrays of the parameters, and of their gradients."""
    return [p.data for p in params], [p.grad.data for p in params if p.grad is not None]


def _copied(values: dict[str, Any], param: Tensor, index: int) -> dict[str, Any]:
    """Copies of a parameter's loaded state, checked against the parameter."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if name == "step":  # PyTorch keeps it as a 0-d tensor
            try:
                result[name] = int(value)
            except (TypeError, ValueError, OverflowError):
                result[name] = -1
            if result[name] < 0:
                raise StateError(f"the step of parameter {index} is {value!r}; wanted a count")
        elif value is not None:
            if not hasattr(value, "shape"):
                raise StateError(
                    f"{name} of parameter {index} is {type(value).__name__}; wanted a Tensor"
                )
            if tuple(value.shape) != param.shape:
                raise StateError(
                    f"{name} of parameter {index} has shape {tuple(value.shape)}; "
                    f"wanted {param.shape}"
                )
            value = value if isinstance(value, Tensor) else Tensor(value, device=param.device)
            copied = value.detach().to(param.device).to(param.dtype)
            xp = namespace(copied.data)
            result[name] = Tensor.wrap(xp.array(copied.data, order="C", copy=True))
    return result
