"""SGD with momentum."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable

from ...arguments import number, switch
from ...errors import ArgumentError
from ...kernels import recording, sgd_step
from ...tensor import Tensor
from ...tensor.device import use
from .optimizer import Again, Group, Optimizer, partition, values_and_grads


class SGD(Optimizer):
    """Stochastic gradient descent, with momentum.

    g ← grad + weight_decay·p; b ← momentum·b + (1 − dampening)·g, and g at a
    parameter's first step; p ← p − lr·b, or p − lr·(g + momentum·b) with nesterov.
    Sutskever et al. 2013, On the importance of initialization and momentum in
    deep learning, ICML; the form is PyTorch's.

    Args:
        params: see :class:`Optimizer`.
        lr: the learning rate, at least 0.
        momentum: at least 0; without it nothing is kept.
        dampening: taken off the gradient's share in the momentum.
        weight_decay: the L2 penalty, at least 0.
        nesterov: needs momentum above 0 and dampening 0.
        maximize: climb instead of descending.

    Raises:
        TypeError, ArgumentError: as :class:`Optimizer`.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float = 1e-3,
        momentum: float = 0.0,
        dampening: float = 0.0,
        weight_decay: float = 0.0,
        nesterov: bool = False,
        *,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": lr, "momentum": momentum, "dampening": dampening, "weight_decay": weight_decay,
            "nesterov": nesterov, "maximize": maximize,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _checked(self, options: Group) -> Group:
        checked: Group = {
            key: number(key, options[key], least=0) for key in ("lr", "momentum", "weight_decay")
        }
        checked["dampening"] = number("dampening", options["dampening"])
        for key in ("nesterov", "maximize"):
            checked[key] = switch(key, options[key])
        if checked["nesterov"] and (checked["momentum"] <= 0 or checked["dampening"] != 0):
            raise ArgumentError(
                f"nesterov with momentum {checked['momentum']} and dampening "
                f"{checked['dampening']}; wanted momentum above 0 and dampening 0"
            )
        return {key: checked[key] for key in options}

    def _update(self, group: Group, params: list[Tensor]) -> list[Again]:
        def kind(param: Tensor) -> bool:
            return "momentum_buffer" not in self.state.get(param, {})

        again: list[Again] = []
        for (device, first), members in partition(params, kind).items():
            buffers = self._arrays(members, "momentum_buffer") if group["momentum"] else None
            with use(device):
                written = sgd_step(*values_and_grads(members), buffers, first_step=first, **group)
            recorded = recording.current()
            if first and buffers is not None and recorded is not None:
                recorded.guard(lambda: False)  # the next step adds to the buffers
            again.append(functools.partial(_again, written, first))
        return again


def _again(written: Callable[..., None] | None, first: bool, group: Group) -> None:
    if written is not None:
        written(first_step=first, **group)
