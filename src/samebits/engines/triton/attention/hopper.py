"""Which calls of attention the kernels in CUDA C++ take, and their launch.

Their bits are those of the Triton kernels, which compute the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from samebits.contract import AttentionContract
from samebits.engines.cuda.attention import decode, prefill, spread
from samebits.engines.triton.attention.arguments import Options, Sequences
from samebits.engines.triton.attention.schedule import AttentionSchedule

#: Elements of keys and values of a paged cache that are copied side by side at most.
GATHERED = 1 << 28
#: Rows of all query heads, and keys, of chunks of prompts from which on a processor for every 128
#: rows is faster than all of them with a share of the keys. On an H200, us behind 8,192 keys: 37
#: rows of 32 heads 102 by shares, 65 144, 197 373; by the prefill kernel 144 for up to 250.
CHUNK_ROWS, CHUNK_KEYS = 2048, 1024


def prefilled(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    options: Options,
    tiles: int,
    **where: Any,
) -> bool:
    """Runs the warp-specialised kernel where the schedule has it and it takes this; else False.

    Args:
        tiles: of 128 rows of a head.
        where: the sequences, as `prefill.prefill` takes them.
    """
    wanted, o = schedule.prefill, options
    if wanted is None or tiles < wanted.tiles or not _plain(o, where.values()):
        return False
    if not q.is_cuda or not prefill.covers(contract, q, k, v):
        return False
    prefill.prefill(
        contract, wanted, q, k, v, out, scale=o.scale, causal=o.causal, window=o.window or 0,
        sinks=o.sinks, lse=lse, **where,
    )  # fmt: skip
    return True


def _plain(o: Options, where: Iterable[Any]) -> bool:
    """Whether the warp-specialised kernel knows these options, and reads where sequences begin."""
    return (
        all(x is None for x in (o.softcap, o.k_scale, o.v_scale))
        and o.scale > 0
        and all(x.dtype is torch.int32 for x in where if isinstance(x, torch.Tensor))
    )


def worth_copying(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: Options,
    s: Sequences,
    tiles: int,
) -> bool:
    """Whether a batch has rows enough for the kernel of packed sequences, and keys few enough; and
    that kernel takes it."""
    if not s.total_kv or s.longest_q == 1 or schedule.prefill is None or not k.is_cuda:
        return False
    rows = q.size(0) * q.size(1)
    long = rows >= CHUNK_ROWS and s.longest_kv >= CHUNK_KEYS
    elements = s.total_kv * k.size(2) * (k.size(3) + v.size(3))
    return (
        (long or tiles >= schedule.prefill.tiles)
        and elements <= GATHERED
        and k.dtype is q.dtype
        and _plain(options, (s.starts, s.cu_q))
        and prefill.covers(contract, one(q), k, v, copies=True)
    )


def decoded(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    options: Options,
    *,
    keys: int,
    **where: Any,
) -> bool:
    """Runs a kernel for one position a sequence where the schedule has it and it takes this.

    Args:
        q, out: [b, h, d]; k, v: [b, h, t, d] or pages [n, h, page, d].
        keys: the most that a sequence can have.
        where: the sequences, as `decode.decode` takes them.
    """
    wanted, o = schedule.decode, options
    special = (o.softcap, o.sinks, o.k_scale, o.v_scale, o.lse or None)
    table = where.get("table")
    integers = (x for x in where.values() if isinstance(x, torch.Tensor))
    if (
        not q.is_cuda
        or wanted is None
        or any(x is not None for x in special)
        or any(x.dtype is not torch.int32 for x in integers)
        or not o.scale > 0
    ):
        return False
    lanes, window = q.size(0) * k.size(1), o.window or 0
    leaves = spread.leaves_seen(contract.leaf, keys, window)
    if wanted.spreads(lanes, leaves) and spread.covers(contract, q, k, v):
        spread.spread(contract, q, k, v, out, scale=o.scale, keys=keys, window=window, **where)
        return True
    page = None if table is None else k.size(2)
    # With a table there are twice as many blocks, which share twice as many lanes as well.
    if wanted.runs(lanes if table is None else lanes // 2, leaves) and decode.covers(
        contract, q, k, v, page
    ):
        decode.decode(
            contract, wanted, q, k, v, out, scale=o.scale, keys=keys, window=window, **where
        )
        return True
    return False


def one(x: torch.Tensor) -> torch.Tensor:
    """Packed rows [total, heads, d] as one sequence [1, heads, total, d]."""
    return x.transpose(0, 1).unsqueeze(0)
