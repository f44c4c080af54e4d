"""Mixed precision under PyTorch's names: ``autocast``, and a GradScaler for float16.

A step in float16 is

    with nn.amp.autocast(dtype=tb.float16):
        loss = nn.functional.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()

with ``scaler = nn.amp.GradScaler()`` before the loop. bfloat16 has float32's range
and needs no scaler.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..arguments import integer, number, switch
from ..errors import ArgumentError, DTypeError, OrderError, StateError
from ..kernels.arrays import Array, accumulation_dtype, namespace
from ..kernels.checks import check_writable
from ..tensor import Tensor
from ..tensor.autocast import autocast
from ..tensor.device import use
from ..tensor.dtypes import float16
from .optim import Optimizer
from .optim.optimizer import partition

__all__ = ["GradScaler", "autocast"]

LARGEST = float(np.finfo(np.float32).max)  # of scales, which are float32
OPTIONS = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")


class GradScaler:
    """Keeps small gradients from becoming 0 in float16: scales the loss up and them down.

    The scale is as large as goes: after ``growth_interval`` steps with finite gradients
    in a row it is multiplied by ``growth_factor``. A step whose gradients are not all
    finite is skipped, and the scale multiplied by ``backoff_factor``.

    The scale, the count of finite steps and whether gradients are finite stay on the
    device of the first loss. :meth:`step` reads one number from the device, and so
    waits for it; :meth:`get_scale` and :meth:`state_dict` do too; the rest does not.

    Args:
        device: ``"cpu"`` or ``"cuda"``, accepted as in PyTorch; the losses' device is what counts.
        init_scale: the first scale, above 0.
        growth_factor: above 1.
        backoff_factor: between 0 and 1.
        growth_interval: at least 1.
        enabled: False makes ``step`` a plain ``optimizer.step`` and all else do nothing.

    Raises:
        ArgumentError: for values outside these.

    Source: Micikevicius et al. 2018, https://arxiv.org/abs/1710.03740, section 3.2; the rule
    by which the scale changes is PyTorch's.
    """

    def __init__(
        self,
        device: str | None = None,
        init_scale: float = 65536.0,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        if device not in (None, "cpu", "cuda"):
            raise ArgumentError(f"device is {device!r}; wanted 'cpu' or 'cuda'")
        self._enabled = switch("enabled", enabled)
        self._set_options(init_scale, growth_factor, backoff_factor, growth_interval)
        self._first_tracker = 0
        self._scale: Tensor | None = None  # 0-d float32, made where the first loss is
        self._tracker: Array | None = None  # 0-d int32
        # Since the last update(): for each optimiser 0-d float32, above 0 where gradients
        # are not finite, and those that made, or skipped, their step.
        self._found: dict[Optimizer, Array] = {}
        self._stepped: set[Optimizer] = set()

    def _set_options(self, scale: Any, growth: Any, backoff: Any, interval: Any) -> None:
        scale = number("init_scale", scale, above=0, most=LARGEST)
        growth = number("growth_factor", growth, above=1)
        backoff = number("backoff_factor", backoff, above=0, below=1)
        interval = integer("growth_interval", interval, 1)
        self._first_scale, self._growth_factor = scale, growth
        self._backoff_factor, self._growth_interval = backoff, interval

    def scale(self, outputs: Any) -> Any:
        """``outputs``, a Tensor or a list or tuple of them, times the scale.

        float16 and bfloat16 give float32, in which the first scale is not infinite.

        Raises:
            DTypeError: for what is no Tensor.
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, (list, tuple)):
            return type(outputs)([self.scale(output) for output in outputs])
        if not isinstance(outputs, Tensor):
            raise DTypeError(f"scale() of {type(outputs).__name__}; wanted a Tensor")
        if self._scale is None:
            with use(outputs.device):
                xp = namespace(outputs.data)
                self._scale = Tensor.wrap(xp.full((), self._first_scale, np.float32))
                self._tracker = xp.full((), self._first_tracker, np.int32)
        return outputs * self._scale.to(outputs.device)

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients of ``optimizer`` by the scale, in place, such as to clip them.

        :meth:`step` does it where this was not called.

        Raises:
            OrderError: if there are no gradients or no scaled loss, or this or ``step`` was
                already called since the last ``update``.
            DTypeError: for float16 gradients, which have no room for a scale: parameters
                are float32 under autocast. No gradient is changed then.
        """
        if not self._enabled:
            return
        scale, _ = self._made("unscale_()")
        if optimizer in self._stepped:
            raise OrderError("unscale_() was called after step(); wanted before it")
        if optimizer in self._found:
            raise OrderError("unscale_() was already called for this optimizer since update()")
        groups = optimizer.param_groups
        params = [p for group in groups for p in group["params"] if p.grad is not None]
        if not params:
            raise OrderError("the optimizer has no gradients; wanted scale(loss).backward() first")
        for param in params:
            if param.dtype == float16:
                raise DTypeError(
                    f"a gradient of shape {param.shape} is float16; wanted float32 parameters, "
                    "which autocast casts"
                )
        found = []
        for (device, _), members in partition(params, lambda param: None).items():
            here = scale.to(device).data
            with use(device):
                bad = _unscale([p.grad for p in members if p.grad is not None], here)
            found.append(Tensor.wrap(bad).to(scale.device).data)
        with use(scale.device):
            self._found[optimizer] = sum(found[1:], found[0])

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """``optimizer.step()``, but nothing where a gradient is infinite or NaN.

        Waits for the device, to read that one number.

        Returns:
            What ``optimizer.step`` returned, or None.

        Raises:
            OrderError: if it was already called since the last ``update``, or as :meth:`unscale_`.
            ArgumentError: for a closure, which would need a scaled loss of its own; a
                scaler that is not enabled passes it on.
            DTypeError: as :meth:`unscale_`.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or kwargs:
            raise ArgumentError("step() was given a closure; wanted none where enabled")
        if optimizer in self._stepped:
            raise OrderError("step() was already called for this optimizer since update()")
        if optimizer not in self._found:
            self.unscale_(optimizer)
        finite = not bool(self._found[optimizer])
        result = optimizer.step() if finite else None
        self._stepped.add(optimizer)
        return result

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """Let the scale grow or back off, once after the steps of all optimisers.

        Args:
            new_scale: the next scale itself, above 0.

        Raises:
            OrderError: if neither ``step`` nor ``unscale_`` came before.
            ArgumentError: for a new_scale that is not above 0.
        """
        if not self._enabled:
            return
        scale, tracker = self._made("update()")
        if new_scale is not None:
            value = number("new_scale", new_scale, above=0, most=LARGEST)
            with use(scale.device):
                scale.data[...] = value
        elif not self._found:
            raise OrderError("update() was called with no step() or unscale_() before it")
        else:
            with use(scale.device), np.errstate(over="ignore"):
                found = list(self._found.values())
                self._follow(scale.data, tracker, sum(found[1:], found[0]) > 0)
        scale._version.value += 1  # so that backward of a loss scaled before raises
        self._found, self._stepped = {}, set()

    def _follow(self, scale: Array, tracker: Array, bad: Array) -> None:
        """Write the next scale and count into their arrays, without reading them here."""
        xp = namespace(scale)
        larger = scale * np.float32(self._growth_factor)
        due = tracker + 1 >= self._growth_interval
        kept = xp.where(due & xp.isfinite(larger), larger, scale)
        scale[...] = xp.where(bad, scale * np.float32(self._backoff_factor), kept)
        tracker[...] = xp.where(bad | due, 0, tracker + 1)

    def _made(self, call: str) -> tuple[Tensor, Array]:
        if self._scale is None or self._tracker is None:
            raise OrderError(f"{call} was called before any loss was scaled; wanted scale(loss)")
        return self._scale, self._tracker

    def get_scale(self) -> float:
        """The scale now; 1.0 if not enabled."""
        if not self._enabled:
            return 1.0
        return self._first_scale if self._scale is None else self._scale.item()

    def get_growth_factor(self) -> float:
        """By what the scale grows."""
        return self._growth_factor

    def get_backoff_factor(self) -> float:
        """By what the scale backs off."""
        return self._backoff_factor

    def get_growth_interval(self) -> int:
        """After how many finite steps in a row the scale grows."""
        return self._growth_interval

    def is_enabled(self) -> bool:
        """Whether the scaler does anything."""
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """The scale, the options and the count of finite steps, as PyTorch's; empty if disabled."""
        if not self._enabled:
            return {}
        tracker = self._first_tracker if self._tracker is None else int(self._tracker)
        return dict(zip(OPTIONS, (
            self.get_scale(), self._growth_factor, self._backoff_factor, self._growth_interval,
            tracker,
        )))  # fmt: skip

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what :meth:`state_dict` gave; a scaler that is not enabled ignores it.

        Raises:
            StateError: for missing keys or values outside their range; nothing is changed then.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise StateError(
                "the scaler's state is empty, as of one not enabled; wanted a full one"
            )
        missing = [key for key in OPTIONS if key not in state_dict]
        if missing:
            raise StateError(f"the scaler's state has no {', '.join(missing)}")
        *options, tracker = (state_dict[key] for key in OPTIONS)
        try:
            tracker = integer("_growth_tracker", tracker, 0)
            self._set_options(*options)
        except ArgumentError as error:
            raise StateError(f"the scaler's state does not fit: {error}") from error
        self._first_tracker = tracker
        if self._scale is not None and self._tracker is not None:
            with use(self._scale.device):
                self._scale.data[...], self._tracker[...] = self._first_scale, tracker
            self._scale._version.value += 1


def _unscale(grads: list[Tensor], scale: Array) -> Array:
    """Divide ``grads`` by ``scale`` in place; 0-d float32, 1 if an element is not finite, else 0.

    Each gradient is added up, and the sums are looked at together: an infinity or a
    NaN stays one in any sum, and float64 holds every sum of finite float32.
    """
    xp = namespace(scale)
    for grad in grads:
        check_writable(grad.data, "a gradient")
    sums = xp.empty(len(grads), np.float64)
    with np.errstate(all="ignore"):
        for i, grad in enumerate(grads):
            wide = grad.data.astype(accumulation_dtype(grad.dtype), copy=False)
            wide /= scale
            if wide is not grad.data:
                grad.data[...] = wide
            wide.sum(dtype=np.float64, out=sums[i, ...])
            grad._version.value += 1
    return xp.asarray(~xp.isfinite(sums).all()).astype(np.float32)
