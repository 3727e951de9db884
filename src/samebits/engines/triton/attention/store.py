"""Stores new keys and values in the slots of a paged cache."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch

#: Elements of K that a program moves, about.
_SIZE = 4096


@triton.jit(do_not_specialize=["rows"])
def store_kernel(
    k, v, k_cache, v_cache, slots, rows, sk, skh, sv, svh, skb, skt, skc, svb, svt, svc,
    PAGE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Program (ROWS tokens, head). Strides: row, head of K, V; page, slot, head of the caches."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64)
    slot = tl.load(slots + row, row < rows, other=-1).to(tl.int64)
    there, row = (slot >= 0)[:, None], row.to(tl.int64)
    page, place = slot // PAGE, slot % PAGE
    d, dv = tl.arange(0, BLOCK_D)[None, :], tl.arange(0, BLOCK_DV)[None, :]
    x = tl.load(k + (row * sk + head * skh)[:, None] + d, there & (d < D))
    y = tl.load(v + (row * sv + head * svh)[:, None] + dv, there & (dv < DV))
    to_k = k_cache + (page * skb + place * skt + head * skc)[:, None] + d
    to_v = v_cache + (page * svb + place * svt + head * svc)[:, None] + dv
    tl.store(to_k, x, there & (d < D))
    tl.store(to_v, y, there & (dv < DV))


def store(
    k: torch.Tensor,
    v: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    slots: torch.Tensor,
) -> None:
    """Arguments are checked by `samebits.ops.store_paged`; columns lie side by side."""
    rows, heads, d = k.shape
    dv, page = v.size(2), k_cache.size(1)
    block_d, block_dv = _power(d), _power(dv)
    share = max(1, _SIZE // max(block_d, block_dv)) if rows >= 256 else 1
    launch(
        store_kernel, (-(-rows // share), heads), k, v, k_cache, v_cache, slots, rows,
        *k.stride()[:2], *v.stride()[:2], *k_cache.stride()[:3], *v_cache.stride()[:3],
        PAGE=page, D=d, DV=dv, BLOCK_D=block_d, BLOCK_DV=block_dv, ROWS=share,
        num_warps=4 if share > 1 else 1,
    )  # fmt: skip


def _power(d: int) -> int:
    return 1 << max(0, d - 1).bit_length()
