"""Copies the keys and values of paged sequences side by side, for kernels that read packed ones.

A copy rounds nothing, so it is a matter of schedule. It pays where each key serves many rows: a
chunk of a prompt behind a cached prefix.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch

#: Keys that a program copies.
_KEYS = 64


@triton.jit(do_not_specialize=["pages"], do_not_specialize_on_alignment=["table", "kv_lens"])
def gather_kernel(
    k, v, table, kv_lens, k_out, v_out, offsets, pages, skb, skh, skt, svb, svh, svt, HEADS,
    PAGE: tl.constexpr, D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr, KEYS: tl.constexpr,
):  # fmt: skip
    """Program (sequence, step, head) copies up to KEYS rows; the first also writes an offset."""
    sequence, step, head = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    length = tl.load(kv_lens + sequence).to(tl.int32)
    before = 0
    for block in range(0, sequence, 128):
        at = block + tl.arange(0, 128)
        before += tl.sum(tl.load(kv_lens + at, mask=at < sequence, other=0).to(tl.int32))
    if (step == 0) & (head == 0):
        if sequence == 0:
            tl.store(offsets, 0)
        tl.store(offsets + sequence + 1, before + length)
    key = step * KEYS + tl.arange(0, KEYS)
    there = key < length
    page = tl.load(table + tl.cast(sequence, tl.int64) * pages + key // PAGE, mask=there, other=0)
    page, slot = page.to(tl.int64), (key % PAGE).to(tl.int64)
    row = (tl.cast(before, tl.int64) + key) * HEADS + head
    d, dv = tl.arange(0, BLOCK_D), tl.arange(0, BLOCK_DV)
    mask = there[:, None] & (d < D)[None, :]
    x = tl.load(k + (page * skb + slot * skt + head * skh)[:, None] + d[None, :], mask=mask)
    tl.store(k_out + row[:, None] * D + d[None, :], x, mask=mask)
    mask = there[:, None] & (dv < DV)[None, :]
    x = tl.load(v + (page * svb + slot * svt + head * svh)[:, None] + dv[None, :], mask=mask)
    tl.store(v_out + row[:, None] * DV + dv[None, :], x, mask=mask)


def gathered(
    k: torch.Tensor,
    v: torch.Tensor,
    table: torch.Tensor,
    kv_lens: torch.Tensor,
    total: int,
    longest: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Keys and values of all sequences, one after the other.

    Args:
        k: pages [n, page, heads, d]; v: [n, page, heads, dv]; columns side by side.
        table: [count, pages], contiguous; kv_lens: [count].
        total: keys of all sequences, or more; longest: of the longest one, or more.

    Returns:
        [total, heads, d], [total, heads, dv], and cumulative lengths [count + 1] int32. Rows
        behind the last sequence hold anything.
    """
    page, heads, d = k.shape[1:]
    dv, count = v.size(3), table.size(0)
    packed_k, packed_v = k.new_empty((total, heads, d)), v.new_empty((total, heads, dv))
    offsets = kv_lens.new_empty(count + 1, dtype=torch.int32)
    launch(
        gather_kernel, (count, max(1, -(-longest // _KEYS)), heads), k, v, table, kv_lens,
        packed_k, packed_v, offsets, table.size(1), k.stride(0), k.stride(2), k.stride(1),
        v.stride(0), v.stride(2), v.stride(1), heads, PAGE=page, D=d, DV=dv,
        BLOCK_D=_power(d), BLOCK_DV=_power(dv), KEYS=_KEYS,
    )  # fmt: skip
    return packed_k, packed_v, offsets


def _power(d: int) -> int:
    return 1 << max(0, d - 1).bit_length()
