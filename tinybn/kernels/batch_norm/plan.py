"""How a BatchNorm is cut into units of work: one small table, and why.

A unit is some of the rows of BLOCK_C channels; a program takes one unit or,
where there are more, several.

| family    | when                                  | launches          | forward moves   |
|-----------|---------------------------------------|-------------------|-----------------|
| resident  | registers hold a whole channel tile   | 1                 | 1 read, 1 write |
| split     | all programs' registers hold x        | 1, cooperative    | 1 read, 1 write |
| streaming | else, a program for each channel tile | 1                 | 2 reads at most |
| streaming | else, NCHW                            | 1, cooperative    | 2 reads at most |
| streaming | else, channels contiguous             | 2 or 3            | 2 reads at most |

A channel tile is split where there are fewer of them than programs; the
programs of a channel then need each other's sums (``exchange.py``). In one
cooperative launch they wait for them; without such a launch (float64, the
interpreter) reducing and applying are two. Streaming reads the last rows first
the second time: L2 may still have them. In NCHW a channel needs few others'
sums, and waiting in one launch saves the second's start; where channels are
contiguous, nearly all programs share each channel, and two launches are faster.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

WARPS = 8
PROGRAMS = 2  # on a multiprocessor, of WARPS and REGISTERS: all of its registers
REGISTERS = 128
MORE_PROGRAMS, FEWER_REGISTERS = 3, 80  # where a program needs no more
MOST_PROGRAMS, FEWEST_REGISTERS = 4, 64
HELD, LOADED = 64, 32  # registers for what is held, and for each tensor's loads under way
HELD_SINGLY, LOADED_SINGLY = 32, 8  # where each element has an address of its own
CHANNELS = 32  # of a tile where they are contiguous: a 128-byte line of float32
STREAMED_CHANNELS = 64
FEWEST_CHANNELS = 4  # where there is little to read
ROWS_OF_A_THREAD = 8
ROUND = 2**14  # what starting a unit costs, in elements that would stream meanwhile
EXCHANGE = 2**14  # what waiting for other programs' sums costs, likewise
# From so many parts on, a channel's sums are merged by one program for all the others: who wait
# for it, or in a launch of its own.
MERGED_WAITING, MERGED_BETWEEN = 4, 32
POLLING = 16  # programs of a copy of merged sums
ALONE = 2**16  # bytes of a channel of x that one program reads as soon as several would
ALIGNED = 16  # rows: where parts begin, so that loads stay 16 bytes wide


@dataclass(frozen=True)
class Plan:
    """The cut of one shape.

    Attributes:
        block_rows, block_channels: a tile.
        hold: whether a unit's tiles stay in registers between the two passes.
        loaded: tiles asked for at once; all of a unit's where they are held.
        parts: units that share a channel tile.
        part_rows: rows of a unit, the last one's fewer.
        tiles: tiles of a unit, a multiple of ``loaded``.
        units: all of them.
        programs: how many run.
        together: whether one launch does both passes.
        warps, registers: of a program.
        merge_channels: channels whose sums one program merges for the others; each program
            merges all of its own where these are as many as a tile's.
        copies: of the merged sums, for fewer programs to poll the same words.
    """

    block_rows: int
    block_channels: int
    hold: bool
    loaded: int
    parts: int
    part_rows: int
    tiles: int
    units: int
    programs: int
    together: bool
    warps: int
    registers: int
    merge_channels: int
    copies: int

    @property
    def merging(self) -> bool:
        """Whether some programs merge sums for the others."""
        return self.merge_channels < self.block_channels

    @property
    def family(self) -> str:
        """Its row in the table above."""
        if not self.hold:
            return "streaming"
        return "resident" if self.parts == 1 else "split"


def make_plan(
    rows: int, channels: int, contiguous: bool, itemsize: int, tensors: int, processors: int,
    cooperative: bool = True, run: int = 16, block_rows: int | None = None,
    block_channels: int | None = None,
) -> Plan:  # fmt: skip
    """The cut for ``rows`` values of each of ``channels``.

    Args:
        contiguous: whether neighbouring channels are neighbours in memory.
        itemsize: bytes of an element.
        tensors: how many are read: 1 forward, 2 backward.
        processors: the GPU's multiprocessors.
        cooperative: whether programs may wait for each other.
        run: contiguous elements begin at multiples of so many. Where that is less than 16
            bytes, loads are as narrow; a tile then has so many elements a thread, since finer
            tiles leave less of the last one empty.
        block_rows, block_channels: powers of two that fix the tile.
    """
    wide = max(itemsize // 4, 1)  # float64 takes two registers
    aligned = contiguous or run * itemsize % 16 == 0
    each = 8 // wide if aligned else math.gcd(run, 8 // wide)
    warps = WARPS
    tile = warps * 32 * each
    if aligned and 2 * rows * channels <= processors * tile:
        each, tile = each // 2, tile // 2  # little to read: rather more programs
    room, under_way = (HELD, LOADED) if each > 1 else (HELD_SINGLY, LOADED_SINGLY)
    most = room // (each * wide * tensors)
    fits = rows * channels <= processors * PROGRAMS * most * tile and cooperative
    if block_channels is not None:
        block_c = block_channels
    elif contiguous:
        block_c = _channels(rows, channels, fits, tile, itemsize, tensors, processors)
    else:
        block_c = max(1, tile // power_of_two(rows))
    block_c = min(block_c, power_of_two(channels))
    block_r = block_rows or min(max(tile // block_c, 1), power_of_two(rows))
    channel_tiles = -(-channels // block_c)

    # Whole rows of contiguous channels lie far apart: only many programs fetch them fast enough.
    whole = fits and (not contiguous or _nearly_all(channel_tiles, processors))
    held = most if whole else None

    def cut(limit: int) -> tuple[int, int, int]:
        parts = _parts(rows, channel_tiles, block_r, block_c, limit, held)
        part_rows = -(-rows // parts)
        if parts > 1:
            part_rows = -(-part_rows // ALIGNED) * ALIGNED
            parts = -(-rows // part_rows)
        return parts, part_rows, -(-part_rows // block_r)

    limit = processors * (MORE_PROGRAMS if each == 1 and wide == 1 else PROGRAMS)
    alone = not contiguous and channel_tiles <= processors and rows * itemsize <= ALONE
    if alone and wide == 1 and most * block_r < 2 * rows <= 4 * most * block_r:
        # A multiprocessor has one program at most: let that have twice the warps, and large tiles.
        larger = 4 if each == 1 else 2
        each, most = each * larger // 2, most * 2 // larger
        warps, tile, block_r, limit = 2 * warps, larger * tile, larger * block_r, channel_tiles
    parts, part_rows, tiles = cut(limit)
    hold = tiles <= most and (parts == 1 or cooperative)
    narrow = not contiguous and 1 < each < 8 // wide
    if narrow and tensors == 1 and channel_tiles > processors * PROGRAMS:
        hold = False  # narrow loads need many programs; L2 has what is read again
    together = hold
    loaded, registers = tiles, REGISTERS
    if hold:
        if wide == 1:
            registers = _registers(tiles * tensors * each, parts, each, contiguous, itemsize)
    else:
        loaded = max(under_way // (each * wide), 1)
        if tensors == 1 and wide == 1 and not contiguous:
            if itemsize == 4 and each > 1:
                loaded //= 2
            registers, limit = FEWEST_REGISTERS, processors * MOST_PROGRAMS
            parts, part_rows, tiles = cut(limit)
        elif each == 1 and wide == 1:
            registers = FEWEST_REGISTERS if parts == 1 else FEWER_REGISTERS
        together = parts == 1 or (cooperative and not contiguous)
        loaded = -(-tiles // -(-tiles // loaded))  # as even as can be: the last load is no emptier
        tiles = -(-tiles // loaded) * loaded
    units = channel_tiles * parts
    merge = block_c
    if parts >= (MERGED_WAITING if together else MERGED_BETWEEN):
        merge = max(1, block_c // (1 << (parts.bit_length() - 1)))
    return Plan(
        block_rows=block_r, block_channels=block_c, hold=hold, loaded=loaded, parts=parts,
        part_rows=part_rows, tiles=tiles, units=units,
        programs=min(units, limit) if together and parts > 1 else units, together=together,
        warps=min(warps, max(1, block_r * block_c * warps // tile)), registers=registers,
        merge_channels=merge,
        copies=power_of_two(-(-parts // POLLING)) if merge < block_c and together else 1,
    )  # fmt: skip


def _registers(held: int, parts: int, each: int, contiguous: bool, itemsize: int) -> int:
    """Of a thread that holds ``held`` values: the fewer, the more programs hide each other's waits.

    Where channels are contiguous a thread holds statistics of several, too.
    """
    if contiguous:
        return FEWER_REGISTERS if held <= 16 and itemsize == 4 and parts == 1 else REGISTERS
    if held <= 16:
        return FEWEST_REGISTERS if each == 1 and parts == 1 else FEWER_REGISTERS
    return FEWER_REGISTERS if each == 1 and (held <= 28 or parts > 1) else REGISTERS


def _channels(
    rows: int, channels: int, fits: bool, tile: int, itemsize: int, tensors: int, processors: int
) -> int:
    """Contiguous channels of a tile: whole lines of DRAM, but work for the whole GPU first."""
    block_c = min(CHANNELS if fits else STREAMED_CHANNELS, power_of_two(channels))
    while (
        block_c > FEWEST_CHANNELS and -(-channels // block_c) * rows * block_c < processors * tile
    ):
        block_c //= 2
    # Few rows: several to a thread all the same, so that it computes few channels' statistics.
    wider = tile * ROWS_OF_A_THREAD // tensors // power_of_two(rows)
    while wider > block_c and not _nearly_all(-(-channels // wider), processors):
        wider //= 2
    return max(block_c, wider)


def _nearly_all(programs: int, processors: int) -> bool:
    """Whether one program each gives nearly all multiprocessors work."""
    return 10 * programs >= 9 * processors


def _parts(
    rows: int, channel_tiles: int, block_r: int, block_c: int, limit: int, held: int | None
) -> int:
    """The number of parts with which the slowest program has the least to do.

    Where x fits in registers, ``held`` tiles in a program's, it may be better not to split: the
    sums need no exchange then. A part of more tiles is read twice.
    """

    def cost(parts: int) -> tuple[int, int]:
        rounds = -(-channel_tiles * parts // limit)
        part_rows = -(-rows // parts)
        work = rounds * (part_rows * block_c + ROUND)
        if held is not None:
            work += EXCHANGE * (parts > 1) + part_rows * block_c * (part_rows > held * block_r)
        return work, parts

    most = min(limit, -(-rows // block_r))
    return min(range(1, most + 1), key=cost)


def power_of_two(n: int) -> int:
    """The smallest power of two that is at least n."""
    return 1 << max(n - 1, 0).bit_length()
