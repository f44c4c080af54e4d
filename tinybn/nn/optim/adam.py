"""Adam and AdamW."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

from ...arguments import number, switch
from ...errors import ArgumentTypeError
from ...kernels import adam_step
from ...tensor import Tensor
from ...tensor.device import use
from .optimizer import Again, Group, Optimizer, partition, values_and_grads


class Adam(Optimizer):
    """Adam: steps scaled by running means of the gradient and of its square.

    Kingma and Ba 2014, https://arxiv.org/abs/1412.6980, algorithm 1.

    Args:
        params: see :class:`Optimizer`.
        lr: the learning rate, at least 0.
        betas: the decay of the two means, each at least 0 and below 1.
        eps: added to the root of the second mean, at least 0.
        weight_decay: the L2 penalty, at least 0.
        maximize: climb instead of descending.
        decoupled_weight_decay: decay the parameter beside the gradient, as :class:`AdamW`.

    Raises:
        TypeError, ArgumentError: as :class:`Optimizer`.
    """

    _counts = True

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
        decoupled_weight_decay: bool = False,
    ) -> None:
        defaults = {
            "lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay,
            "maximize": maximize, "decoupled_weight_decay": decoupled_weight_decay,
        }  # fmt: skip
        super().__init__(params, defaults)

    def _checked(self, options: Group) -> Group:
        checked: Group = {
            key: number(key, options[key], least=0) for key in ("lr", "eps", "weight_decay")
        }
        given = options["betas"]
        if not isinstance(given, (tuple, list)) or len(given) != 2:
            raise ArgumentTypeError(f"betas is {given!r}; wanted two numbers")
        checked["betas"] = tuple(number("a beta", beta, least=0, below=1) for beta in given)
        for key in ("maximize", "decoupled_weight_decay"):
            checked[key] = switch(key, options[key])
        return {key: checked[key] for key in options}

    def _update(self, group: Group, params: list[Tensor]) -> list[Again]:
        def kind(param: Tensor) -> int:
            return int(self.state.get(param, {}).get("step", 0)) + 1

        again: list[Again] = []
        for (device, step), members in partition(params, kind).items():
            means = [self._arrays(members, name) for name in ("exp_avg", "exp_avg_sq")]
            with use(device):
                written = adam_step(
                    *values_and_grads(members), *means, **_numbers(group, step)
                )  # fmt: skip
            self._count(members, step)
            again.append(functools.partial(self._again, written, members))
        return again

    def _again(
        self, written: Callable[..., None] | None, members: list[Tensor], group: Group
    ) -> None:
        step = int(self.state[members[0]]["step"]) + 1
        if written is not None:
            written(**_numbers(group, step))
        self._count(members, step)

    def _count(self, members: list[Tensor], step: int) -> None:
        for param in members:
            self.state[param]["step"] = step


def _numbers(group: Group, step: int) -> dict[str, Any]:
    """The arguments of ``adam_step``."""
    beta1, beta2 = group["betas"]
    return dict(
        step=step, lr=group["lr"], eps=group["eps"], beta1=beta1, beta2=beta2,
        weight_decay=group["weight_decay"], maximize=group["maximize"],
        decoupled=group["decoupled_weight_decay"],
    )  # fmt: skip


class AdamW(Adam):
    """Adam whose weight decay is taken off the parameter itself: p ← p·(1 − lr·weight_decay).

    Loshchilov and Hutter 2017, https://arxiv.org/abs/1711.05101, algorithm 2.
    Arguments as :class:`Adam`, with weight_decay 0.01.
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[Group],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(
            params, lr, betas, eps, weight_decay, maximize=maximize, decoupled_weight_decay=True
        )
