"""Matrix products in tiles, with the sum over k cut into parts where there are few tiles.

Small networks multiply matrices of a few hundred rows: tiles alone would not fill a GPU. So
several programs share a tile, each with a part of the terms. Each leaves its sum in memory and
counts itself in; the last to arrive adds the parts up in their order, so that the same input
gives the same bits, and sets the count back to 0 for the next launch.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..activations import activate
from .addition import add_product, sum_of


@triton.jit
def multiply(
    a_ptr, b_ptr, m, n, M, N, K, first, part_k, a_m, a_k, b_k, b_n, WIDE: tl.constexpr,
    ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Rows ``m`` and columns ``n`` of a·b, of ``part_k`` terms from ``first`` on."""
    total = tl.zeros([m.shape[0], n.shape[0]], ACC)
    small = total
    if WIDE:
        m = m.to(tl.int64)
        n = n.to(tl.int64)
    for start in range(first, tl.minimum(first + part_k, K), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        if WIDE:
            k = k.to(tl.int64)
        mask = (m < M)[:, None] & (k < K)[None, :]
        a = tl.load(a_ptr + m[:, None] * a_m + k[None, :] * a_k, mask=mask, other=0.0)
        mask = (k < K)[:, None] & (n < N)[None, :]
        b = tl.load(b_ptr + k[:, None] * b_k + n[None, :] * b_n, mask=mask, other=0.0)
        if UPCAST:
            a = a.to(ACC)
            b = b.to(ACC)
        total, small = add_product(total, small, a, b, ACC, PRECISION)
    return sum_of(total, small, PRECISION)


@triton.jit
def add_up(total, partial_ptr, counter_ptr, first, part, parts, STEP: tl.constexpr):
    """The sum of ``parts`` slots, STEP apart from ``first`` on, if this program is the last."""
    M: tl.constexpr = total.shape[0]
    N: tl.constexpr = total.shape[1]
    # How many slots are asked for at once: as many as registers hold.
    TOGETHER: tl.constexpr = 8 if M * N <= 512 else (2 if M * N <= 2048 else 1)
    at = tl.arange(0, M)[:, None] * N + tl.arange(0, N)[None, :]
    sums = partial_ptr + first.to(tl.int64) * (M * N) + at
    tl.store(sums + part * (STEP * M * N), total)
    tl.debug_barrier()  # all threads have stored before one of them counts the program in
    last = tl.atomic_add(counter_ptr, 1, sem="acq_rel") == parts - 1
    if last:
        total = tl.zeros([M, N], total.dtype)
        for start in range(0, parts, TOGETHER):
            for i in tl.static_range(TOGETHER):  # these loads do not wait for each other
                other = start + i
                # Not from L1, which does not see what other multiprocessors write.
                total += tl.load(
                    sums + other * (STEP * M * N), mask=at < tl.where(other < parts, M * N, 0),
                    other=0.0, cache_modifier=".cg",
                )  # fmt: skip
        tl.store(counter_ptr, 0)
    return total, last


@triton.jit
def add_parts(total, partial_ptr, arrived_ptr, first, part, parts, TEAM: tl.constexpr = 16):
    """The sum of the parts of programs from ``first`` on; whether this one is last, and has it.

    Each TEAM of parts is added up by its last, and the teams' sums by the last of them: one
    program would wait for the memory once for every few of all parts.
    """
    # Callers bound a range by ``last``: beside a mask Triton 3.9 interprets it as an int32.
    team = part // TEAM
    of_team = first + team * TEAM
    members = tl.minimum(parts - team * TEAM, TEAM)
    total, last = add_up(
        total, partial_ptr, arrived_ptr + of_team, of_team, part % TEAM, members, 1
    )
    if last:
        if parts > TEAM:  # so that first + 1 is in the first team, which counts at first
            teams = tl.cdiv(parts, TEAM)
            total, last = add_up(
                total, partial_ptr, arrived_ptr + first + 1, first, team, teams, TEAM
            )
    return total, last


@triton.jit
def product_tile(
    program, base, a_ptr, b_ptr, bias_ptr, addend_ptr, y_ptr, partial_ptr, arrived_ptr, M, N, K,
    parts, part_k, a_m, a_k, b_k, b_n, WIDE: tl.constexpr, ACC: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """One part of one tile of y = activation(a·b + bias + addend), y and addend row-major.

    The parts' slots begin at ``base``.
    """
    tile = program // parts
    part = program % parts
    columns = tl.cdiv(N, BLOCK_N)
    m = tile // columns * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile % columns * BLOCK_N + tl.arange(0, BLOCK_N)
    total = multiply(
        a_ptr, b_ptr, m, n, M, N, K, part * part_k, part_k, a_m, a_k, b_k, b_n, WIDE, ACC, UPCAST,
        PRECISION, BLOCK_K,
    )  # fmt: skip
    mask = (m < M)[:, None] & (n < N)[None, :]
    if parts > 1:
        total, last = add_parts(total, partial_ptr, arrived_ptr, base + tile * parts, part, parts)
        mask = (m < tl.where(last, M, 0))[:, None] & (n < N)[None, :]
    if bias_ptr is not None:
        total += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(ACC)[None, :]
    if WIDE:
        m = m.to(tl.int64)
    if addend_ptr is not None:
        addend = tl.load(addend_ptr + m[:, None] * N + n[None, :], mask=mask, other=0.0)
        total += addend.to(ACC)
    total = activate(total, ACTIVATION)
    tl.store(y_ptr + m[:, None] * N + n[None, :], total.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit
def matmul_kernel(
    a_ptr, b_ptr, bias_ptr, addend_ptr, y_ptr, partial_ptr, arrived_ptr, M, N, K, parts, part_k,
    a_m, a_k, b_k, b_n, WIDE: tl.constexpr, ACC: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, ACTIVATION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    product_tile(
        tl.program_id(0), 0, a_ptr, b_ptr, bias_ptr, addend_ptr, y_ptr, partial_ptr, arrived_ptr,
        M, N, K, parts, part_k, a_m, a_k, b_k, b_n, WIDE, ACC, UPCAST, PRECISION, ACTIVATION,
        BLOCK_M, BLOCK_N, BLOCK_K,
    )  # fmt: skip


@triton.jit
def linear_backward_kernel(
    dy_ptr, x_ptr, weight_ptr, dx_ptr, dweight_ptr, dbias_ptr, partial_ptr, arrived_ptr,
    ROWS, OUT, IN, x_programs, x_parts, x_part_k, weight_programs, weight_parts, weight_part_k,
    weight_slot, bias_parts, bias_part_k, bias_slot, x_n, x_i, WIDE: tl.constexpr,
    ACC: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """All three gradients in one launch, since they do not need each other.

    The first programs make dx = dy·weight, those after them dweight = dyᵀ·x, and the last
    dbias, the sums of dy's columns; an absent one has no programs. What dweight's and dbias's
    programs leave to be added up begins at ``weight_slot`` and ``bias_slot``, and dx's at 0.
    """
    program = tl.program_id(0)
    if dx_ptr is not None:
        if program < x_programs:
            product_tile(
                program, 0, dy_ptr, weight_ptr, None, None, dx_ptr, partial_ptr, arrived_ptr, ROWS,
                IN, OUT, x_parts, x_part_k, OUT, 1, IN, 1, WIDE, ACC, UPCAST, PRECISION, None,
                BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
    program -= x_programs
    if dweight_ptr is not None:
        if (program >= 0) & (program < weight_programs):
            product_tile(
                program, weight_slot, dy_ptr, x_ptr, None, None, dweight_ptr, partial_ptr,
                arrived_ptr, OUT, IN, ROWS, weight_parts, weight_part_k, 1, OUT, x_n, x_i, WIDE,
                ACC, UPCAST, PRECISION, None, BLOCK_M, BLOCK_N, BLOCK_K,
            )  # fmt: skip
    program -= weight_programs
    if dbias_ptr is not None:
        if program >= 0:
            column_sums(
                program, bias_slot, dy_ptr, dbias_ptr, partial_ptr,
                arrived_ptr, ROWS, OUT, bias_parts, bias_part_k, WIDE, ACC, BLOCK_M, BLOCK_N,
            )  # fmt: skip


@triton.jit
def column_sums(
    program, base, dy_ptr, dbias_ptr, partial_ptr, arrived_ptr, ROWS, OUT, parts, part_rows,
    WIDE: tl.constexpr, ACC: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """One part of the sums of BLOCK_N columns of dy."""
    tile = program // parts
    part = program % parts
    n = tile * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros([BLOCK_M, BLOCK_N], ACC)
    first = part * part_rows
    for start in range(first, tl.minimum(first + part_rows, ROWS), BLOCK_M):
        m = start + tl.arange(0, BLOCK_M)
        if WIDE:
            m = m.to(tl.int64)
        mask = (m < ROWS)[:, None] & (n < OUT)[None, :]
        dy = tl.load(dy_ptr + m[:, None] * OUT + n[None, :], mask=mask, other=0.0)
        total += dy.to(ACC)
    mask = n < OUT
    if parts > 1:
        total, last = add_parts(total, partial_ptr, arrived_ptr, base + tile * parts, part, parts)
        mask = n < tl.where(last, OUT, 0)
    tl.store(dbias_ptr + n, tl.sum(total, 0).to(dbias_ptr.dtype.element_ty), mask=mask)
