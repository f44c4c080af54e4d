"""How the programs that share a channel tell each other their partial sums.

Each part of a channel has a slot of two values. In one cooperative launch a
program writes its slot and waits for the others' without locks, fences or
atomics: a value travels in one 8-byte word with a tag, so that whoever sees
the tag has the value. A slot's tag goes up by one in every launch, and all
slots of a launch in step; so nothing needs clearing, and a captured graph can
be replayed. Who waits reads the parts in their order: the sums have the same
bits in every program and in every run.

Where the values are float64, or programs run one after another (the
interpreter), reduction and use are two launches, and nobody waits.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def packed(value, tag):
    bits = value.to(tl.int32, bitcast=True).to(tl.int64) << 32
    return bits | (tag.to(tl.int64) & 0xFFFFFFFF)


@triton.jit
def unpacked(word):
    return (word >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def next_tag(slots_ptr, slot):
    """The tag that this launch writes: one more than the last one's, which all slots hold."""
    return tl.load(slots_ptr + slot, volatile=True).to(tl.int32) + 1


@triton.jit
def publish(slots_ptr, slot, plane, first, second, tag, mask, TAGGED: tl.constexpr):
    """Write two values to each ``slot``, one in each plane."""
    if TAGGED:
        tl.store(slots_ptr + slot, packed(first, tag), mask=mask)
        tl.store(slots_ptr + plane + slot, packed(second, tag), mask=mask)
    else:
        tl.store(slots_ptr + slot, first, mask=mask)
        tl.store(slots_ptr + plane + slot, second, mask=mask)


@triton.jit
def collect(slots_ptr, slot, plane, tag, mask, TAGGED: tl.constexpr):
    """Both values of each ``slot``; waits until they are there."""
    at = slots_ptr + slot
    if TAGGED:
        first = tl.load(at, mask=mask, other=0, volatile=True)
        second = tl.load(at + plane, mask=mask, other=0, volatile=True)
        while _missing(first, second, mask, tag):
            first = tl.load(at, mask=mask, other=0, volatile=True)
            second = tl.load(at + plane, mask=mask, other=0, volatile=True)
        return unpacked(first), unpacked(second)
    else:
        return tl.load(at, mask=mask, other=0.0), tl.load(at + plane, mask=mask, other=0.0)


@triton.jit
def _missing(first, second, mask, tag):
    late = tl.where(mask & (((first.to(tl.int32) ^ tag) | (second.to(tl.int32) ^ tag)) != 0), 1, 0)
    return tl.max(tl.ravel(late), 0) > 0
