"""How the programs that share a channel tell each other their partial sums.

Each part of a channel has a slot of two values. In one cooperative launch a
program writes its slot and waits for the others' without locks, fences or
atomics: a value travels in one 8-byte word with a tag, so that whoever sees
the tag has the value. A slot's tag goes up by one in every launch, and all
slots of a launch in step; so nothing needs clearing, and a captured graph can
be replayed. Who waits reads the parts in their order: the sums have the same
bits in every program and in every run.

Of a tile that has fewer elements than the program has threads, several threads
load each element, and one may find it written where another found it missing;
the check sees only one of them. So tiles that are waited for have as many
elements as the program has threads.

Where a channel has many parts, some programs merge a few channels each for all
others, who wait for these sums only. They come in COPIES: hundreds of programs
that poll the same words would hold up the one that writes them.

Where the values are float64, or programs run one after another (the
interpreter), reduction and use are launches of their own, and nobody waits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from .tiles import sum_both


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
    """Both values of each ``slot``, 0 where masked; waits until they are there.

    If TAGGED, ``slot`` has at least as many elements as the program has threads.
    """
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
def publish_merged(
    slots_ptr, first_slot, units, parts, first, second, tag, TAGGED: tl.constexpr,
    BLOCK_C: tl.constexpr, MERGE_C: tl.constexpr, COPIES: tl.constexpr,
):  # fmt: skip
    """Write two values to the MERGE_C channels from ``first_slot`` on, to all copies."""
    plane = units // parts * BLOCK_C
    slot = (first_slot + tl.arange(0, MERGE_C))[None, :]
    slot = 2 * (plane * (parts + tl.arange(0, COPIES)))[:, None] + slot
    publish(slots_ptr, slot, plane, first[None, :], second[None, :], tag, slot >= 0, TAGGED)


@triton.jit
def collect_merged(
    slots_ptr, channels, units, parts, part, tag,
    TAGGED: tl.constexpr, BLOCK_C: tl.constexpr, COPIES: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """Both merged values of each channel; waits until they are there."""
    plane = units // parts * BLOCK_C
    copies_ptr = slots_ptr + 2 * plane * (parts + part % COPIES)
    if not TAGGED:
        return collect(copies_ptr, channels, plane, tag, channels >= 0, TAGGED)
    row = tl.arange(0, max(THREADS // BLOCK_C, 1))[:, None]
    slot = row * 0 + channels[None, :]
    return sum_both(*collect(copies_ptr, slot, plane, tag, row + 0 * slot == 0, TAGGED))


@triton.jit
def _missing(first, second, mask, tag):
    late = tl.where(mask & (((first.to(tl.int32) ^ tag) | (second.to(tl.int32) ^ tag)) != 0), 1, 0)
    return tl.max(tl.ravel(late), 0) > 0
