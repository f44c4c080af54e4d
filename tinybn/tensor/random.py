"""Random numbers: counter-based generators, one for each device.

A counter-based generator (Philox; Salmon, Moraes, Dror and Shaw, Parallel
Random Numbers: As Easy as 1, 2, 3, 2011) turns the pair (seed, counter) into
random bits with no state between, so that each of a million GPU threads makes
its own number from its own counter. What remains to keep is how many counters
have been used: ``offset``.
"""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from ..arguments import integer
from ..errors import ArgumentError, CaptureError, StateError
from ..kernels import recording
from .device import Device, as_device

_NUMBERS_PER_COUNTER = 4  # a Philox-4x32 counter gives four 32-bit numbers


class Generator:
    """A stream of random numbers.

    Attributes:
        device: the Device whose tensors it fills.
        seed: the key of the stream, a non-negative number below 2**63.
        offset: the number of counters used so far.
    """

    def __init__(self, device: str | Device | None = None, seed: int = 0) -> None:
        self.device = as_device(device)
        self._lock = threading.Lock()
        self.seed = 0
        self.offset = 0
        self.manual_seed(seed)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of ``seed`` from its beginning.

        Raises:
            ArgumentError: for a seed that is no integer in [0, 2**63).
        """
        seed = _check_seed(seed)
        with self._lock:
            self.seed, self.offset = seed, 0
        return self

    def reserve(self, n: int) -> tuple[Any, Any]:
        """Set aside the counters that ``n`` numbers use; return the seed and the first counter.

        While a step is recorded for replays on a GPU, both are arrays there, which each replay
        finds renewed.
        """
        numbers = self._advance(n)
        recorded = recording.current()
        if recorded is None or self.device.type == "cpu":
            return numbers
        seed, first = recorded.live(numbers, lambda: self._advance(n))
        return seed, first

    def _advance(self, n: int) -> tuple[int, int]:
        with self._lock:
            first = self.offset
            self.offset += -(-n // _NUMBERS_PER_COUNTER)
            return self.seed, first

    def next_seed(self) -> int:
        """Draw a number in [0, 2**63) from the stream, to seed a generator on the host with."""
        if recording.current() is not None:
            raise CaptureError(
                "random numbers that the host makes (randint, randperm, a shuffled loader) would "
                "be the same in each replay of a captured step; wanted them made before it"
            )
        seed, offset = self._advance(1)
        # NumPy's Philox-4x64 on the same counter; the key's second word keeps
        # these draws apart from any others made with this seed.
        bits = np.random.Philox(key=[seed, _SEED_STREAM], counter=[offset, 0, 0, 0])
        return int(bits.random_raw()) >> 1

    def get_state(self) -> dict[str, int]:
        """The state as a dictionary of numbers, for :meth:`set_state`."""
        with self._lock:
            return {"seed": self.seed, "offset": self.offset}

    def set_state(self, state: dict[str, int]) -> None:
        """Go on where the generator was when ``get_state`` gave ``state``.

        Raises:
            StateError: if ``state`` is not such a dictionary.
        """
        if not isinstance(state, dict) or set(state) != {"seed", "offset"}:
            raise StateError(f"a generator's state is {state!r}; wanted a dict of seed and offset")
        try:
            seed, offset = _check_seed(state["seed"]), integer("offset", state["offset"], 0)
        except ArgumentError as error:
            raise StateError(f"a generator's state does not fit: {error}") from error
        with self._lock:
            self.seed, self.offset = seed, offset

    def __repr__(self) -> str:
        return f"Generator(device={str(self.device)!r}, seed={self.seed}, offset={self.offset})"


_SEED_STREAM = 0x7469_6E79_626E  # "tinybn"
_generators: dict[Device, Generator] = {}
_generators_lock = threading.Lock()
_common_seed = 0


def default_generator(device: str | Device | None = None) -> Generator:
    """The generator that functions on ``device`` use when none is given to them."""
    device = as_device(device)
    with _generators_lock:
        if device not in _generators:
            _generators[device] = Generator(device, _common_seed)
        return _generators[device]


def manual_seed(seed: int) -> None:
    """Restart the default generators of all devices, also of those yet unused, from ``seed``.

    Raises:
        ArgumentError: for a seed that is no integer in [0, 2**63).
    """
    global _common_seed
    seed = _check_seed(seed)
    with _generators_lock:
        _common_seed = seed
        for generator in _generators.values():
            generator.manual_seed(seed)


def _check_seed(seed: Any) -> int:
    return integer("seed", seed, 0, 2**63 - 1)
