"""Launches the kernel that spreads a leaf over a cluster's blocks: decoding with few leaves.

One launch, without a workspace, with the bits of every other schedule. What it takes is narrower
than attention's contract (see `covers`).
"""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import torch

from samebits.contract import AttentionContract, path
from samebits.engines import tickets
from samebits.engines.cuda import nvrtc
from samebits.engines.cuda.launch import REAL, WORD, launcher, readable

_HERE = Path(__file__).parent
_HEADERS = (*sorted(_HERE.glob("*.cuh")), _HERE.parent / "path.cuh")
_LOG2E = math.log2(math.e)

HEAD_DIMS = (64, 128)
#: Query heads of a KV head, and leaves that a row sees, at most.
ROWS, LEAVES = 16, 8
_THREADS, _STEP = 128, 64


def leaves_seen(leaf: int, keys: int, window: int) -> int:
    """Leaves that the last of `keys` keys' row can see; `window` 0 is none."""
    most = -(-keys // leaf)
    return min(most, -(-(window - 1) // leaf) + 1) if window else most


def covers(contract: AttentionContract, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the kernel takes q [b, h, d] over k and v [b, h, t, d] or pages.

    It wants columns side by side, 16-byte aligned rows, and no axis of stride 0.
    """
    d = q.size(-1)
    return (
        d in HEAD_DIMS
        and v.size(-1) == d
        and q.size(-2) <= ROWS * k.size(1)
        and contract.maximum == "ceil(64)"
        and contract.kv == contract.input
        and contract.leaf == 512
        and contract.exp2 == "hw"
        and all(readable(x) for x in (q, k, v))
    )


def spread(
    contract: AttentionContract,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    *,
    scale: float,
    keys: int,
    counts: torch.Tensor | None = None,
    added: int = 0,
    window: int = 0,
    table: torch.Tensor | None = None,
) -> None:
    """Attention of one query position a sequence into `out`: the arguments of `decode.decode`.

    A row sees no more than `LEAVES` leaves.
    """
    batch, heads, d = q.shape
    kv_heads = k.size(1)
    seen = max(1, leaves_seen(contract.leaf, keys, window))
    leaves = 1 << (seen - 1).bit_length()
    page, stride = (1, 0) if table is None else (k.size(2), table.stride(0))
    ticket: tuple[int, ...] = ()
    if tickets.checking():
        subject = tickets.Subject("attention", contract.id, "cuda.spread")
        made = tickets.ticket(q.device, subject, path.seed(contract), contract.leaf)
        ticket = (made.data_ptr(),)
    _launcher(d, contract.leaf, q.dtype, leaves, bool(ticket))(
        (batch * kv_heads,), q, *q.stride()[:2], k, *k.stride()[:3], v, *v.stride()[:3],
        out, *out.stride()[:2], counts, added, keys, table, stride, page, kv_heads,
        heads // kv_heads, window, scale * _LOG2E, *ticket,
    )  # fmt: skip


def constants(d: int, leaf: int, bf16: bool, leaves: int, check: bool = False) -> dict[str, int]:
    """The kernel's compile-time parameters; a cluster has at most 16 blocks."""
    return {
        "HEAD_DIM": d, "LEAF": leaf, "BF16": int(bf16), "SLICES": min(4, 16 // leaves),
        "LEAVES": leaves, "CHECK": int(check),
    }  # fmt: skip


def cubin(values: dict[str, int]) -> bytes:
    """The compiled kernel."""
    return nvrtc.compile_source(_HERE / "spread.cu", "sm_90a", values, _HEADERS)


@functools.cache
def _launcher(d: int, leaf: int, dtype: torch.dtype, leaves: int, check: bool) -> Any:
    values = constants(d, leaf, dtype is torch.bfloat16, leaves, check)
    slices = values["SLICES"]
    return launcher(
        "attention_spread", lambda: cubin(values), (*(WORD,) * 23, REAL, *(WORD,) * check),
        threads=_THREADS, shared=_shared(d, leaf, slices, leaves, check), cluster=slices * leaves,
        pdl=True,
    )  # fmt: skip


def _shared(d: int, leaf: int, slices: int, leaves: int, check: bool) -> int:
    """Bytes of a block's keys and values; of rows' scores, maxima and factors; of leaves; of q, and
    with `check` of seals in its place."""
    row = 4 * (leaf + 8) + 4 * leaf // 32 + 4 * leaf // _STEP + 4
    first = max(2 * d * ROWS, leaves * (ROWS * 5 * 8 + 8) if check else 0)
    return 2 * (2 * leaf * d // slices) + ROWS * (row + leaves * (4 * d // slices + 8)) + first
