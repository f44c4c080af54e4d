"""Copying a state dictionary into tensors, all of it or nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from ..errors import StateError
from .dtypes import is_float
from .grad_mode import no_grad
from .tensor import Tensor


class IncompatibleKeys(NamedTuple):
    """What a non-strict ``load_state_dict`` passed over."""

    missing_keys: list[str]
    unexpected_keys: list[str]


def load(
    own: Mapping[str, Tensor], given: Mapping[str, Any], strict: bool, owner: str
) -> IncompatibleKeys:
    """Copy ``given`` into the tensors of the same names in ``own``, in place.

    Args:
        own: the tensors to write into.
        given: Tensors or arrays.
        strict: whether missing or unexpected names are errors.
        owner: whose state it is, for the message.

    Raises:
        StateError: listing all that does not fit; nothing is written then.
    """
    missing = [key for key in own if key not in given]
    unexpected = [key for key in given if key not in own]
    ready, misfits = [], []
    for key, target in own.items():
        if key not in given:
            continue
        value = given[key]
        value = value if isinstance(value, Tensor) else Tensor(value, device=target.device)
        if value.shape != target.shape:
            misfits.append(f"{key} has shape {value.shape}, wanted {target.shape}")
        elif is_float(value.dtype) and not is_float(target.dtype):
            misfits.append(f"{key} has dtype {value.dtype}, wanted {target.dtype}")
        ready.append((target, value))
    faults = [f"misfitting: {'; '.join(misfits)}"] if misfits else []
    if strict:
        faults += [f"missing: {', '.join(missing)}"] if missing else []
        faults += [f"unexpected: {', '.join(unexpected)}"] if unexpected else []
    if faults:
        raise StateError(f"the state does not fit {owner}; {'; '.join(faults)}")
    with no_grad():
        for target, value in ready:
            target.copy_(value.detach().to(target.device).to(target.dtype))
    return IncompatibleKeys(missing, unexpected)
