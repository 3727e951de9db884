"""Matrix products with many rows: one CTA a processor walks over tiles, blocks arrive by TMA.

The trees are those of `kernel`; both operands have k or their rows contiguous, and y its columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.linear.tile import finish, tile_of, walk


@triton.jit
def persistent_kernel(
    a, b, y, c, ticket,
    rows, cols, k, leaf, c_row, c_col, alpha, beta,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
    LEAVES: tl.constexpr, PAIRWISE: tl.constexpr,
    A_TURNED: tl.constexpr, B_TURNED: tl.constexpr,
    ALPHA: tl.constexpr, BIAS: tl.constexpr, BETA: tl.constexpr, RELU: tl.constexpr,
):  # fmt: skip
    """``y[r, c] = epilogue(sum_k a[r, k] * b[c, k])``.

    Args:
        a, b: tensor descriptors of [rows, k] and [cols, k] (of [k, rows], [k, cols] if turned).
        y: tensor descriptor of [rows, cols] with blocks of BLOCK_C / 2 columns: a tile is stored in
            halves, which leaves the shared memory to blocks in flight.
        c: bias, see `tile.finish`.
        ticket: address of one of `engines.tickets`: paths are checked; or None.
        leaf: elements of k in a leaf, a multiple of BLOCK_K unless there is one leaf.
    """
    half: tl.constexpr = BLOCK_C // 2
    tiles = tl.cdiv(rows, BLOCK_R) * tl.cdiv(cols, BLOCK_C)
    in_r = tl.arange(0, BLOCK_R)
    in_c = tl.arange(0, half)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0)):
        tile_r, tile_c = tile_of(tile, rows, cols, BLOCK_R, BLOCK_C, GROUP)
        row = tile_r * BLOCK_R
        col = tile_c * BLOCK_C
        total = walk(
            a, b, row, col, None, None, None, None, leaf, k, ticket, LEAVES, PAIRWISE,
            BLOCK_R, BLOCK_C, BLOCK_K, True, False, True, A_TURNED, B_TURNED,
        )  # fmt: skip
        both = tl.permute(tl.reshape(total, (BLOCK_R, 2, half)), (0, 2, 1))
        left, right = tl.split(both)
        row_ok = in_r < rows - row
        bias = c
        if BIAS != "none":
            bias += row.to(tl.int64) * c_row + col.to(tl.int64) * c_col
        left = finish(
            left, bias, in_r, in_c, row_ok, in_c < cols - col,
            c_row, c_col, alpha, beta, ALPHA, BIAS, BETA, RELU,
        )  # fmt: skip
        y.store([row, col], left.to(y.dtype))
        right = finish(
            right, bias, in_r, half + in_c, row_ok, in_c < cols - col - half,
            c_row, c_col, alpha, beta, ALPHA, BIAS, BETA, RELU,
        )  # fmt: skip
        y.store([row, col + half], right.to(y.dtype))
