"""What the kernels of matrix products share: tile order, chains, the fold, the epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton import path


@triton.constexpr_function
def largest_half(leaves):
    """The largest power of two below `leaves`: where a pairwise fold cuts them."""
    return 1 << (leaves - 1).bit_length() - 1


@triton.jit
def negative_zeros(R: tl.constexpr, C: tl.constexpr):
    """fp32 [R, C] of -0, the neutral element of addition: -0 + p is p, also for p = -0.

    Triton's constants forget the sign of a zero.
    """
    return tl.zeros((R, C), tl.float32) * -1.0


@triton.jit
def tile_of(
    index, rows, cols,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """The (row, column) of the index-th tile: groups of GROUP rows of tiles, so that the operands
    of the tiles that run at a time fit into the L2 cache."""
    high = tl.cdiv(rows, BLOCK_R)
    wide = tl.cdiv(cols, BLOCK_C)
    first = index // (GROUP * wide) * GROUP
    height = min(high - first, GROUP)
    inside = index % (GROUP * wide)
    return first + inside % height, inside // height


@triton.jit
def chain(
    a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, start, stop,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
    FMA: tl.constexpr, TMA: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    """The chain over k in [start, stop), ascending from +0: fp32 [BLOCK_R, BLOCK_C].

    Where k runs past the end of a leaf, zeros are loaded. A tensor core's block does not notice
    them; an fma chain is given -0 * +0 instead, for x + -0 is x even where x is -0.

    Args:
        a, b: pointers to the tile's rows at k = 0, or tensor descriptors.
        a_tile, b_tile: offsets of a block's elements, or, with TMA, the tile's first row.
        row_ok, col_ok: which rows exist; the copy engine knows it itself.
        EVEN_K: no block of k runs past the end of a leaf.
        A_TURNED, B_TURNED: the descriptors are of the transposes.
    """
    acc = tl.zeros((BLOCK_R, BLOCK_C), tl.float32)
    if TMA:
        for at in range(start, stop, BLOCK_K):
            a_block = a.load([at, a_tile]).T if A_TURNED else a.load([a_tile, at])
            b_block = b.load([at, b_tile]) if B_TURNED else b.load([b_tile, at]).T
            acc = tl.dot(a_block, b_block, acc, input_precision="tf32")
    else:
        in_k = tl.arange(0, BLOCK_K)
        for at in range(start, stop, BLOCK_K):
            row_mask = row_ok[:, None]
            col_mask = col_ok[None, :]
            if not EVEN_K:
                row_mask = row_mask & (in_k < stop - at)[None, :]
                col_mask = col_mask & (in_k < stop - at)[:, None]
            a_block = tl.load(a + tl.cast(at, tl.int64) * a_k + a_tile, row_mask, 0.0)
            b_block = tl.load(b + tl.cast(at, tl.int64) * b_k + b_tile, col_mask, 0.0)
            if FMA and not EVEN_K:
                # Not as the load's own value for what it leaves out: there -0 counts as 0.
                inside = (in_k < stop - at)[None, :]
                a_block = tl.where(inside, a_block, negative_zeros(BLOCK_R, BLOCK_K))
            if FMA:  # 16-bit operands are widened, or the tensor core would take them
                a_block = a_block.to(tl.float32)
                b_block = b_block.to(tl.float32)
            acc = tl.dot(a_block, b_block, acc, input_precision="ieee" if FMA else "tf32")
    return acc


@triton.jit
def walk(
    a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, leaf, k, ticket,
    LEAVES: tl.constexpr, PAIRWISE: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
    FMA: tl.constexpr, TMA: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    """All LEAVES leaves of k, `leaf` long, one after another, folded ascending or pairwise.

    With a ticket the path is followed and judged.
    """
    CHECK: tl.constexpr = ticket is not None
    if CHECK:
        agreed = path.expected_of(ticket)
    word = tl.full((), 0, tl.uint32)
    if LEAVES == 1:
        total = chain(
            a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, 0, k,
            BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
        )  # fmt: skip
        if CHECK:
            word = path.leaf_word(0, k)
    elif PAIRWISE:
        total, word = balanced(
            a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, leaf, k, 0, LEAVES, CHECK,
            BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
        )  # fmt: skip
    else:
        total = negative_zeros(BLOCK_R, BLOCK_C)
        for i in range(LEAVES):
            total += chain(
                a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, i * leaf, min(i * leaf + leaf, k),
                BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
            )  # fmt: skip
            if CHECK:
                word = path.fold_word(word, path.leaf_word(i * leaf, min(i * leaf + leaf, k)))
    if CHECK:
        path.judge(ticket, word == agreed)
    return total


@triton.jit
def balanced(
    a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, leaf, k,
    FIRST: tl.constexpr, LEAVES: tl.constexpr, CHECK: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, EVEN_K: tl.constexpr,
    FMA: tl.constexpr, TMA: tl.constexpr, A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
):  # fmt: skip
    """Leaves FIRST, ..., FIRST + LEAVES - 1 folded pairwise, as `contract.tree.fold` does, and the
    digest of that (a leaf's word for a leaf)."""
    digest = tl.full((), 0, tl.uint32)
    if LEAVES == 1:
        total = chain(
            a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, FIRST * leaf,
            min(FIRST * leaf + leaf, k),
            BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
        )  # fmt: skip
        if CHECK:
            digest = path.leaf_word(FIRST * leaf, min(FIRST * leaf + leaf, k))
    else:
        half: tl.constexpr = largest_half(LEAVES)
        left, first = balanced(
            a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, leaf, k, FIRST, half, CHECK,
            BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
        )  # fmt: skip
        right, last = balanced(
            a, b, a_tile, b_tile, row_ok, col_ok, a_k, b_k, leaf, k, FIRST + half, LEAVES - half,
            CHECK, BLOCK_R, BLOCK_C, BLOCK_K, EVEN_K, FMA, TMA, A_TURNED, B_TURNED,
        )  # fmt: skip
        total = left + right
        if CHECK:
            digest = path.join(first, last, half, LEAVES - half)
    return total, digest


@triton.jit
def fold_partials(
    p, seals, area: tl.constexpr, FIRST: tl.constexpr, LEAVES: tl.constexpr,
    PAIRWISE: tl.constexpr, CHECK: tl.constexpr,
):  # fmt: skip
    """LEAVES partials from the FIRST on, `area` elements apart, folded ascending or pairwise.

    They were written by other SMs: the loads go past this one's L1 cache.

    Returns:
        The sum; with CHECK also the digest of the path, and views of what was folded, whose sum is
        the fourth, the sum of what was sealed. Every leaf has another factor in them, so that
        partials that changed places show.
    """
    digest = tl.full((), 0, tl.uint32)
    views = tl.zeros(p.shape, tl.int64)
    sealed = tl.full((), 0, tl.int64)
    if LEAVES == 1:
        total = tl.load(p + FIRST * area, cache_modifier=".cg")
        if CHECK:
            digest, views, sealed = open_seal(total, seals, FIRST)
    elif PAIRWISE:
        half: tl.constexpr = largest_half(LEAVES)
        left, first, views, sealed = fold_partials(p, seals, area, FIRST, half, PAIRWISE, CHECK)
        right, last, views_right, sealed_right = fold_partials(
            p, seals, area, FIRST + half, LEAVES - half, PAIRWISE, CHECK
        )
        total = left + right
        if CHECK:
            digest = path.join(first, last, half, LEAVES - half)
            views += views_right
            sealed += sealed_right
    else:
        total = tl.load(p + FIRST * area, cache_modifier=".cg")
        if CHECK:
            digest, views, sealed = open_seal(total, seals, FIRST)
        for i in tl.static_range(1, LEAVES):
            part = tl.load(p + (FIRST + i) * area, cache_modifier=".cg")
            total += part
            if CHECK:
                word, views_part, sealed_part = open_seal(part, seals, FIRST + i)
                digest = path.fold_word(digest, word)
                views += views_part
                sealed += sealed_part
    return total, digest, views, sealed


@triton.jit
def close_seal(part, seals, index, begin, end):
    """Seals a partial result fp32 [R, C] over k in [begin, end): a sum and a word, int64."""
    tl.store(seals + 2 * index, tl.sum(path.views(part)))
    tl.store(seals + 2 * index + 1, path.leaf_word(begin, end).to(tl.int64))


@triton.jit
def open_seal(part, seals, index: tl.constexpr):
    """The word of a partial result that is folded, its numbers' views and their sealed sum, the
    last two by a factor."""
    sealed = tl.load(seals + 2 * index, cache_modifier=".cg")
    word = tl.load(seals + 2 * index + 1, cache_modifier=".cg").to(tl.uint32)
    return word, path.views(part) * (2 * index + 3), sealed * (2 * index + 3)


@triton.jit
def break_seals(seals, leaves: tl.constexpr):
    """Makes the words of all leaves unreadable, when every warp has read them."""
    tl.debug_barrier()
    leaf = tl.arange(0, triton.next_power_of_2(leaves))
    tl.store(seals + 2 * leaf + 1, -1, leaf < leaves)


@triton.jit
def finish(
    total, c, in_r, in_c, row_ok, col_ok, c_row, c_col, alpha, beta,
    ALPHA: tl.constexpr, BIAS: tl.constexpr, BETA: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """The epilogue of a `LinearContract` before its last rounding, every step rounded once.

    Args:
        total: fp32 [R, C].
        c: bias at the tile's first element, with strides c_row and c_col.
        in_r, in_c: places inside the tile, and whether they hold results.
        ALPHA, BETA: whether the factors differ from one; one multiplies nothing.
    """
    if ALPHA:
        total = total * alpha
    if BIAS != "none":
        if BIAS == "rows":
            bias = tl.load(c + in_r * c_row, row_ok, 0.0).to(tl.float32)[:, None]
        elif BIAS == "cols":
            bias = tl.load(c + in_c * c_col, col_ok, 0.0).to(tl.float32)[None, :]
        else:
            place = in_r[:, None] * c_row + in_c[None, :] * c_col
            bias = tl.load(c + place, row_ok[:, None] & col_ok[None, :], 0.0).to(tl.float32)
        if BETA:
            bias = bias * beta
        total = total + bias
    if RELU:
        total = tl.where(total > 0, total, tl.where(total != total, total, 0.0))
    return total
