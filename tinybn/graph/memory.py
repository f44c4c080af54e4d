"""Where results lie in one block of memory, planned once from when each is last read.

Greedy by size: the largest result first, each at the lowest place that no result alive at the
same time takes (Pisarchyk and Lee 2020, https://arxiv.org/abs/2001.03288, section 5.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALIGNMENT = 256  # bytes: what CUDA's own allocations have


class Lifetime(NamedTuple):
    """A result's bytes, and the steps by which it is made and last read, both included."""

    nbytes: int
    first: int
    last: int


def place(lifetimes: Sequence[Lifetime]) -> tuple[list[int], int]:
    """Each result's offset in the block, and the block's bytes."""
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    total = 0
    for i in sorted(range(len(lifetimes)), key=lambda i: -lifetimes[i].nbytes):
        size, first, last = lifetimes[i]
        beside = sorted(
            (offsets[j], offsets[j] + rounded(lifetimes[j].nbytes))
            for j in placed
            if lifetimes[j].first <= last and first <= lifetimes[j].last
        )
        at = 0
        for start, end in beside:
            if at + rounded(size) <= start:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append(i)
        total = max(total, at + rounded(size))
    return offsets, total


def rounded(nbytes: int) -> int:
    """``nbytes`` up to where the next result may begin."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT
