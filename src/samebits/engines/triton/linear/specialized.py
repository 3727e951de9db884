"""Matrix products with specialised warps (Gluon, sm_90): one copies, two groups multiply.

The producer streams blocks of k through a ring of buffers without a break from leaf to leaf and
from tile to tile, so a tree of several leaves costs the additions of its fold and nothing else.
Each of the two consumers, a warpgroup of its own, has 64 rows of a tile. The roles and barriers are
those of warp-specialised persistent kernels as CUTLASS describes them for Hopper.
"""

from __future__ import annotations

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from samebits.engines.triton.linear.tile import finish, fold_partials, tile_of

_TYPES = {
    torch.float32: gl.float32, torch.bfloat16: gl.bfloat16, torch.float16: gl.float16,
    torch.float8_e4m3fn: gl.float8e4nv, torch.float8_e5m2: gl.float8e5,
}  # fmt: skip


def shared_layout(block: list[int], dtype: torch.dtype) -> gl.NVMMASharedLayout:
    """How a block lies in shared memory: what its tensor descriptor names."""
    return gl.NVMMASharedLayout.get_default_for(block, _TYPES[dtype])


@gluon.jit
def specialized_kernel(
    a, b, y, c, partials, arrivals,
    rows, cols, k, leaf, c_row, c_col, alpha, beta,
    BLOCK_C: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    LEAVES: gl.constexpr, PAIRWISE: gl.constexpr, SPLIT: gl.constexpr,
    A_TURNED: gl.constexpr, B_TURNED: gl.constexpr,
    ALPHA: gl.constexpr, BIAS: gl.constexpr, BETA: gl.constexpr, RELU: gl.constexpr,
):  # fmt: skip
    """``y[r, c] = epilogue(sum_k a[r, k] * b[c, k])`` in tiles of 128 x BLOCK_C.

    Args:
        a, b: descriptors of [rows, k] and [cols, k] in blocks of 64 and BLOCK_C rows (of [k, rows]
            and [k, cols] if turned).
        y: descriptor of [rows, cols] in blocks of 64 rows.
        c: bias, see `tile.finish`.
        partials: with SPLIT, fp32 [tiles, 2, LEAVES, 64 * BLOCK_C].
        arrivals: with SPLIT, int32 [tiles, 2], zero before and after.
        leaf: elements of k in a leaf, a multiple of BLOCK_K unless there is one leaf.
        SPLIT: every leaf is a piece of work of its own; the last consumer to arrive folds.
    """
    a_block: gl.constexpr = a.block_shape
    b_block: gl.constexpr = b.block_shape
    a_ring = gl.allocate_shared_memory(a.dtype, [2 * STAGES, a_block[0], a_block[1]], a.layout)
    b_ring = gl.allocate_shared_memory(b.dtype, [STAGES, b_block[0], b_block[1]], b.layout)
    y_slabs = gl.allocate_shared_memory(y.dtype, [2, 64, BLOCK_C], y.layout)
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=1)
        mbarrier.init(empty.index(i), count=2)
    fence_async_shared()
    shared = (a_ring, b_ring, full, empty)
    sizes = (rows, cols, k, leaf)
    output = (y, y_slabs, c, c_row, c_col, alpha, beta, partials, arrivals)
    gl.warp_specialize(
        [
            (consume, (0, shared, sizes, output, BLOCK_C, BLOCK_K, STAGES, GROUP, LEAVES, PAIRWISE,
                       SPLIT, A_TURNED, B_TURNED, ALPHA, BIAS, BETA, RELU)),
            (consume, (1, shared, sizes, output, BLOCK_C, BLOCK_K, STAGES, GROUP, LEAVES, PAIRWISE,
                       SPLIT, A_TURNED, B_TURNED, ALPHA, BIAS, BETA, RELU)),
            (produce, (a, b, shared, sizes, BLOCK_C, BLOCK_K, STAGES, GROUP, LEAVES, SPLIT,
                       A_TURNED, B_TURNED)),
        ],
        [4, 1],
        [240, 24],
    )  # fmt: skip


@gluon.jit
def work_of(
    item, sizes, BLOCK_C: gl.constexpr, GROUP: gl.constexpr, LEAVES: gl.constexpr,
    SPLIT: gl.constexpr,
):  # fmt: skip
    """(slot, first row, first column, k from, k up to, leaf) of the item-th piece of work."""
    rows, cols, k, leaf = sizes
    part = 0
    start = 0
    stop = k
    if SPLIT:
        part = item % LEAVES
        item = item // LEAVES
        start = part * leaf
        stop = min(start + leaf, k)
    tile_r, tile_c = tile_of(item, rows, cols, 128, BLOCK_C, GROUP)
    return item, tile_r * 128, tile_c * BLOCK_C, start, stop, part


@gluon.jit
def items_of(sizes, BLOCK_C: gl.constexpr, LEAVES: gl.constexpr, SPLIT: gl.constexpr):
    """How many pieces of work there are."""
    rows, cols, _k, _leaf = sizes
    tiles = gl.cdiv(rows, 128) * gl.cdiv(cols, BLOCK_C)
    return tiles * LEAVES if SPLIT else tiles


@gluon.jit
def produce(
    a, b, shared, sizes,
    BLOCK_C: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    LEAVES: gl.constexpr, SPLIT: gl.constexpr, A_TURNED: gl.constexpr, B_TURNED: gl.constexpr,
):  # fmt: skip
    """Fetches the blocks of all pieces of work, in the order in which they are consumed."""
    a_ring, b_ring, full, empty = shared
    stage = 0
    phase = 0
    items = items_of(sizes, BLOCK_C, LEAVES, SPLIT)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        _, row, col, start, stop, _ = work_of(item, sizes, BLOCK_C, GROUP, LEAVES, SPLIT)
        for at in range(start, stop, BLOCK_K):
            mbarrier.wait(empty.index(stage), phase ^ 1)
            ready = full.index(stage)
            mbarrier.expect(ready, 2 * a.block_type.nbytes + b.block_type.nbytes)
            for half in gl.static_range(2):
                target = a_ring.index(2 * stage + half)
                if A_TURNED:
                    tma.async_copy_global_to_shared(a, [at, row + 64 * half], ready, target)
                else:
                    tma.async_copy_global_to_shared(a, [row + 64 * half, at], ready, target)
            if B_TURNED:
                tma.async_copy_global_to_shared(b, [at, col], ready, b_ring.index(stage))
            else:
                tma.async_copy_global_to_shared(b, [col, at], ready, b_ring.index(stage))
            stage += 1
            if stage == STAGES:
                stage = 0
                phase ^= 1


@gluon.jit
def consume(
    WHICH: gl.constexpr, shared, sizes, output,
    BLOCK_C: gl.constexpr, BLOCK_K: gl.constexpr, STAGES: gl.constexpr, GROUP: gl.constexpr,
    LEAVES: gl.constexpr, PAIRWISE: gl.constexpr, SPLIT: gl.constexpr,
    A_TURNED: gl.constexpr, B_TURNED: gl.constexpr,
    ALPHA: gl.constexpr, BIAS: gl.constexpr, BETA: gl.constexpr, RELU: gl.constexpr,
):  # fmt: skip
    """Multiplies 64 rows of every tile."""
    a_ring, b_ring, full, empty = shared
    rows, cols, _k, leaf = sizes
    y, y_slabs, c, c_row, c_col, alpha, beta, partials, arrivals = output
    depth: gl.constexpr = 256 // a_ring.dtype.primitive_bitwidth
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_C, depth])
    in_r = gl.arange(0, 64, gl.SliceLayout(1, layout))
    in_c = gl.arange(0, BLOCK_C, gl.SliceLayout(0, layout))
    stage = 0
    phase = 0
    items = items_of(sizes, BLOCK_C, LEAVES, SPLIT)
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        slot, row, col, start, stop, part = work_of(item, sizes, BLOCK_C, GROUP, LEAVES, SPLIT)
        row += 64 * WHICH
        total = gl.zeros([64, BLOCK_C], gl.float32, layout) * -1.0  # -0 + p is p
        length = stop if LEAVES == 1 or SPLIT else leaf
        for first in range(start, stop, length):
            last = min(first + length, stop)
            acc = gl.zeros([64, BLOCK_C], gl.float32, layout)
            for at in range(first, last, BLOCK_K):
                mbarrier.wait(full.index(stage), phase)
                a_block = a_ring.index(2 * stage + WHICH)
                b_block = b_ring.index(stage)
                acc = warpgroup_mma(
                    a_block.permute((1, 0)) if A_TURNED else a_block,
                    b_block if B_TURNED else b_block.permute((1, 0)),
                    acc, is_async=True,
                )  # fmt: skip
                acc = warpgroup_mma_wait(1, deps=[acc])  # the block before this one is done with
                mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES), pred=at > first)
                stage += 1
                if stage == STAGES:
                    stage = 0
                    phase ^= 1
            product = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(empty.index((stage + STAGES - 1) % STAGES))
            total = total + product
        finished = True
        if SPLIT:
            area: gl.constexpr = 64 * BLOCK_C
            shelf = partials + (slot * 2 + WHICH).to(gl.int64) * (LEAVES * area)
            shelf += place(in_r, in_c)
            gl.store(shelf + part * area, total)
            gl.thread_barrier()  # the stores of all threads come before the arrival
            count = gl.atomic_add(arrivals + slot * 2 + WHICH, 1, sem="acq_rel")
            finished = count == LEAVES - 1
            if finished:
                gl.store(arrivals + slot * 2 + WHICH, 0)
                total = fold_partials(shelf, area, 0, LEAVES, PAIRWISE)
        if finished:
            bias = c
            if BIAS != "none":
                bias += row.to(gl.int64) * c_row + col.to(gl.int64) * c_col
            total = finish(
                total, bias, in_r, in_c, in_r < rows - row, in_c < cols - col,
                c_row, c_col, alpha, beta, ALPHA, BIAS, BETA, RELU,
            )  # fmt: skip
            slab = y_slabs.index(WHICH)
            tma.store_wait(0)
            slab.store(total.to(y.dtype))
            fence_async_shared()
            tma.async_copy_shared_to_global(y, [row, col], slab)
    tma.store_wait(0)


@gluon.jit
def place(row, col):
    """Where a partial result [64, C] has its elements: 8 bytes a thread, 256 a warp, side by side,
    in the layout in which the tensor core leaves them."""
    r = row[:, None]
    c = col[None, :]
    thread = r // 16 * 32 + r % 8 * 4 + c % 8 // 2
    at = (c // 8 * 2 + r // 8 % 2) * 256 + thread * 2 + c % 2
    return gl.max_contiguous(at, [1, 2])
