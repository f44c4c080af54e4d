"""Learning-rate schedules: what an optimiser's options are at step 0, 1, 2, …

A schedule is a formula of the step's number, so that going on from a
checkpoint needs that number alone. Making one sets the options of step 0;
each :meth:`Schedule.step`, called after the optimiser's own, those of the next.
Whether a step is an iteration or an epoch is the caller's choice;
:class:`~tinybn.nn.Trainer` calls it after each iteration. The values are those
of PyTorch's schedulers of the same names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ..arguments import choice, integer, number, switch
from ..errors import ArgumentError, ArgumentTypeError, StateError
from ..kernels import recording
from .optim import Optimizer

Options = dict[str, Any]


class Schedule:
    """Base of the schedules; a subclass gives :meth:`options_at`.

    Args:
        optimizer: the optimiser whose parameter groups are set.

    Attributes:
        base_lrs: each group's learning rate when the schedule was made.
        last_epoch: the number of the step whose options are set, from 0
            (PyTorch's name for it, whatever a step is).

    Raises:
        TypeError: if ``optimizer`` is no Optimizer.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if not isinstance(optimizer, Optimizer):
            raise ArgumentTypeError(f"a schedule sets an Optimizer, not {type(optimizer).__name__}")
        self.optimizer = optimizer
        self.base_lrs = [float(group["lr"]) for group in optimizer.param_groups]
        self.last_epoch = 0

    def options_at(self, step: int) -> list[Options]:
        """For each parameter group, the options to set at ``step``, such as ``{"lr": 0.1}``."""
        raise NotImplementedError(f"{type(self).__name__} defines no options_at(step)")

    def step(self) -> None:
        """Go on to the next step's options. Call it after ``optimizer.step()``."""
        self._set(self.last_epoch + 1)
        recorded = recording.current()
        if recorded is not None:
            recorded.on_replay(self.step)

    def get_last_lr(self) -> list[float]:
        """Each group's learning rate as it is set now."""
        return [float(group["lr"]) for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What :meth:`load_state_dict` needs to go on: numbers alone."""
        return {"last_epoch": self.last_epoch, "base_lrs": list(self.base_lrs)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where ``state_dict()`` gave ``state``; sets that step's options.

        Raises:
            StateError: if ``state`` is not such a dictionary for as many groups.
        """
        wanted = sorted(self.state_dict())
        if not isinstance(state, dict) or sorted(state) != wanted:
            raise StateError(f"the schedule's state is {state!r}; wanted a dict with {wanted}")
        try:
            epoch = integer("last_epoch", state["last_epoch"], 0)
            rates = [number("a rate", rate, least=0) for rate in state["base_lrs"]]
        except (TypeError, ValueError):
            epoch, rates = -1, []
        if epoch < 0 or len(rates) != len(self.base_lrs):
            raise StateError(
                f"the schedule's state has last_epoch {state['last_epoch']!r} and base_lrs "
                f"{state['base_lrs']!r}; wanted a count and {len(self.base_lrs)} numbers"
            )
        before = self.base_lrs
        self._rebase(rates)
        try:
            self._set(epoch)
        except Exception:
            self._rebase(before)
            raise

    def _rebase(self, rates: list[float]) -> None:
        self.base_lrs = rates

    def _set(self, step: int) -> None:
        options = self.options_at(step)
        for group, values in zip(self.optimizer.param_groups, options, strict=True):
            group.update(values)
        self.last_epoch = step

    def __repr__(self) -> str:
        return f"{type(self).__name__}(last_epoch={self.last_epoch}, lr={self.get_last_lr()})"


class LambdaLR(Schedule):
    """lr = base · lr_lambda(step).

    Args:
        optimizer: the optimiser to set.
        lr_lambda: a function of the step's number, or one for each group.

    Raises:
        ArgumentError: for a list of another length than the groups.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        lr_lambda: Callable[[int], float] | Sequence[Callable[[int], float]],
    ) -> None:
        super().__init__(optimizer)
        groups = len(self.base_lrs)
        listed = [lr_lambda] * groups if callable(lr_lambda) else lr_lambda
        if not isinstance(listed, (list, tuple)) or not all(map(callable, listed)):
            raise ArgumentTypeError(f"lr_lambda is {lr_lambda!r}; wanted a function, or several")
        self.lr_lambdas = list(listed)
        if len(self.lr_lambdas) != groups:
            raise ArgumentError(
                f"lr_lambda holds {len(self.lr_lambdas)} functions; wanted one for each of "
                f"{groups} parameter groups"
            )
        self._set(0)

    def options_at(self, step: int) -> list[Options]:
        factors = [
            number("what lr_lambda returned", function(step), least=0)
            for function in self.lr_lambdas
        ]
        return [{"lr": base * factor} for base, factor in zip(self.base_lrs, factors)]


class StepLR(Schedule):
    """lr = base · gamma^⌊step / step_size⌋.

    Args:
        optimizer: the optimiser to set.
        step_size: after how many steps the rate drops.
        gamma: the factor by which it does.

    Raises:
        ArgumentError: for a step_size below 1, or a gamma that is not finite or below 0.
    """

    def __init__(self, optimizer: Optimizer, step_size: int, gamma: float = 0.1) -> None:
        super().__init__(optimizer)
        self.step_size = integer("step_size", step_size, 1)
        self.gamma = number("gamma", gamma, least=0)
        self._set(0)

    def options_at(self, step: int) -> list[Options]:
        factor = self.gamma ** (step // self.step_size)
        return [{"lr": base * factor} for base in self.base_lrs]


class CosineAnnealingLR(Schedule):
    """lr = eta_min + (base − eta_min)·(1 + cos(π·step / T_max)) / 2.

    From the base rate down to ``eta_min`` in ``T_max`` steps, and up again after.
    Loshchilov and Hutter 2016, SGDR, https://arxiv.org/abs/1608.03983, formula 5.

    Args:
        optimizer: the optimiser to set.
        T_max: steps from the highest rate to the lowest.
        eta_min: the lowest rate.

    Raises:
        ArgumentError: for a T_max below 1, or an eta_min that is not finite or below 0.
    """

    def __init__(self, optimizer: Optimizer, T_max: int, eta_min: float = 0.0) -> None:
        super().__init__(optimizer)
        self.T_max = integer("T_max", T_max, 1)
        self.eta_min = number("eta_min", eta_min, least=0)
        self._set(0)

    def options_at(self, step: int) -> list[Options]:
        share = step / self.T_max
        return [{"lr": _cosine(base, self.eta_min, share)} for base in self.base_lrs]


class OneCycleLR(Schedule):
    """The learning rate up to ``max_lr`` and down again, once, and momentum the other way.

    Smith and Topin 2017, https://arxiv.org/abs/1708.07120. With N steps, the
    rate goes from max_lr / div_factor to max_lr in pct_start·N − 1 steps, then
    to max_lr / div_factor / final_div_factor at step N − 1, along half cosines.

    Args:
        optimizer: the optimiser to set.
        max_lr: the highest rate, or one for each group.
        total_steps: N; or give epochs and steps_per_epoch, and N is their product.
        pct_start: the rising part of N, between 0 and 1.
        anneal_strategy: ``"cos"``, or ``"linear"`` for straight lines.
        cycle_momentum: whether to move ``momentum`` (Adam's first beta) between
            max_momentum, where the rate is low, and base_momentum, where it is high.
        three_phase: False; PyTorch's third phase is not provided.

    Raises:
        ArgumentError: for values outside these, no N, or momentum to cycle that
            the optimiser lacks; by :meth:`step` beyond N steps.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | Sequence[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: str = "cos",
        cycle_momentum: bool = True,
        base_momentum: float = 0.85,
        max_momentum: float = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
    ) -> None:
        super().__init__(optimizer)
        if total_steps is None:
            if epochs is None or steps_per_epoch is None:
                raise ArgumentError(
                    f"total_steps is None, epochs {epochs!r} and steps_per_epoch "
                    f"{steps_per_epoch!r}; wanted the first, or both others"
                )
            epochs = integer("epochs", epochs, 1)
            total_steps = epochs * integer("steps_per_epoch", steps_per_epoch, 1)
        self._anneal = _ANNEAL[choice("anneal_strategy", anneal_strategy, _ANNEAL)]
        if switch("three_phase", three_phase):
            raise ArgumentError("three_phase is True; OneCycleLR has two phases, wanted False")
        rising = number("pct_start", pct_start, least=0, most=1)
        groups = optimizer.param_groups
        rates = max_lr if isinstance(max_lr, (list, tuple)) else [max_lr] * len(groups)
        self.max_lrs = [number("max_lr", rate, least=0) for rate in rates]
        if len(self.max_lrs) != len(groups):
            raise ArgumentError(
                f"max_lr holds {len(self.max_lrs)} rates; wanted one for each of {len(groups)} "
                "parameter groups"
            )
        self.total_steps = integer("total_steps", total_steps, 1)
        self.cycle_momentum = switch("cycle_momentum", cycle_momentum)
        if self.cycle_momentum and not all("momentum" in g or "betas" in g for g in groups):
            raise ArgumentError(
                f"{type(optimizer).__name__} has no momentum to cycle; wanted cycle_momentum=False"
            )
        below = 1 if self.cycle_momentum and any("betas" in g for g in groups) else math.inf
        self.base_momentum = number("base_momentum", base_momentum, least=0, below=below)
        self.max_momentum = number("max_momentum", max_momentum, least=0, below=below)
        self.div_factor = number("div_factor", div_factor, above=0)
        self.final_div_factor = number("final_div_factor", final_div_factor, above=0)
        self._peak = rising * self.total_steps - 1
        self._set(0)

    def options_at(self, step: int) -> list[Options]:
        if step > self.total_steps:
            raise ArgumentError(f"step {step} of a cycle of {self.total_steps}: it is over")
        rising = step <= self._peak
        if rising:
            share = step / self._peak if self._peak else 1.0
        else:
            share = (step - self._peak) / (self.total_steps - 1 - self._peak or 1.0)
        momentum = (self.max_momentum, self.base_momentum)
        result = []
        for group, high in zip(self.optimizer.param_groups, self.max_lrs):
            low = high / self.div_factor
            ends = (low, high) if rising else (high, low / self.final_div_factor)
            options: Options = {"lr": self._anneal(*ends, share)}
            if self.cycle_momentum:
                value = self._anneal(*(momentum if rising else momentum[::-1]), share)
                if "betas" in group:
                    options["betas"] = (value, *group["betas"][1:])
                else:
                    options["momentum"] = value
            result.append(options)
        return result


class LinearWarmup(Schedule):
    """A straight rise to the base learning rate, and then another schedule or that rate.

    For step < steps, lr = after's lr at its step 0 · (start + (1 − start)·step / steps);
    from then on after's options at step − steps. So it is PyTorch's LinearLR
    followed by ``after`` in a SequentialLR. Step this schedule alone, not ``after``.

    Args:
        after: the schedule that follows, or an optimiser, whose rate then stays.
        steps: the length of the rise.
        start_factor: the share of the rate at step 0, above 0 (at a rate of 0
            the first step would do nothing) and at most 1.

    Raises:
        ArgumentError: for values outside these.
    """

    def __init__(
        self, after: Schedule | Optimizer, steps: int, start_factor: float = 1.0 / 3
    ) -> None:
        if not isinstance(after, (Schedule, Optimizer)):
            raise ArgumentTypeError(
                f"after is {type(after).__name__}; wanted a Schedule or an Optimizer"
            )
        self.steps = integer("steps", steps, 1)
        self.start_factor = number("start_factor", start_factor, above=0, most=1)
        self.after = LambdaLR(after, _constant) if isinstance(after, Optimizer) else after
        super().__init__(self.after.optimizer)
        self.base_lrs = list(self.after.base_lrs)
        self._set(0)

    def options_at(self, step: int) -> list[Options]:
        options = self.after.options_at(max(step - self.steps, 0))
        if step < self.steps:
            factor = self.start_factor + (1 - self.start_factor) * step / self.steps
            for values in options:
                values["lr"] *= factor
        return options

    def _rebase(self, rates: list[float]) -> None:
        super()._rebase(rates)
        self.after._rebase(rates)


def _constant(step: int) -> float:
    return 1.0


def _cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * (1 + math.cos(math.pi * share)) / 2


def _linear(start: float, end: float, share: float) -> float:
    return start + (end - start) * share


_ANNEAL = {"cos": _cosine, "linear": _linear}
