"""How a kernel is compiled and launched, and what its compiler reports."""

from __future__ import annotations

from typing import NamedTuple


class Options(NamedTuple):
    """How a kernel is compiled and launched, apart from its arguments.

    Attributes:
        warps: 32 threads each, in a program.
        registers: the most that a thread may use. Given no ceiling, ptxas
            spills a few to fit one more program on a multiprocessor.
        lifted: the ceiling instead of that where ``registers`` are too few for this version
            of Triton, and some would be spilled.
        stages: iterations of a loop of products whose loads are under way at once.
        cooperative: the programs wait for each other, so all must run at once;
            the driver refuses a launch whose programs would not fit.
    """

    warps: int = 4
    registers: int = 168
    lifted: int | None = None
    stages: int = 3
    cooperative: bool = False


DEFAULT = Options()


class Binary(NamedTuple):
    """A kernel compiled for one target, with what its compiler reports.

    Attributes:
        target: such as ``"sm_90"`` or ``"gfx942"``.
        assembly: the PTX, or for AMD the GCN assembly.
        registers: registers a thread.
        shared: bytes of shared memory a block.
        spills: bytes (NVIDIA) or registers (AMD) that did not fit and went to memory.
    """

    target: str
    assembly: str
    registers: int
    shared: int
    spills: int
