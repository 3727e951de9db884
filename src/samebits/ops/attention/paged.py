"""A paged KV cache on a CPU, for engines: what all layers of a step share is checked once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from samebits.engines.cpu import attention as engine
from samebits.errors import ShapeError
from samebits.ops.attention import checks


@dataclass(frozen=True)
class Step:
    """Lengths and pages of a batch's requests.

    Attributes:
        sequences: as the engine takes them.
        rows: new rows of all requests.
        pages: the table names no page from here on.
    """

    sequences: engine.Sequences
    rows: int
    pages: int


def step(
    op: str,
    block_table: torch.Tensor,
    seq_lens: torch.Tensor,
    cu_q: torch.Tensor,
    *,
    rows: int,
    pages: int,
    page: int,
    q_start: torch.Tensor | None = None,
) -> Step:
    """The arguments of `samebits.ops.attention_paged` that say which keys a row sees.

    Args:
        op: whose name errors have.
        rows: rows of q; pages, page: of the caches.

    Raises:
        ShapeError, DTypeError: as `samebits.ops.attention_paged`.
    """
    cu_q = checks.offsets(op, "cu_q", cu_q, rows)
    lens = checks.integers(op, "seq_lens", seq_lens, 1)
    table = checks.integers(op, "block_table", block_table, 2)
    count = cu_q.numel() - 1
    if lens.numel() != count or table.size(0) != count:
        raise ShapeError(
            f"{op}: cu_q names {count} sequences, seq_lens {lens.numel()}, block_table "
            f"{table.size(0)}"
        )
    if count:
        if int(lens.min()) < 0 or int(lens.max()) > table.size(1) * page:
            raise ShapeError(
                f"{op}: seq_lens must lie in 0..{table.size(1) * page} (pages in block_table times "
                "page size)"
            )
        used = torch.arange(table.size(1), device=table.device)[None, :] * page < lens[:, None]
        if bool((used & ((table < 0) | (table >= pages))).any()):
            raise ShapeError(f"{op}: block_table names a page outside 0..{pages - 1}")
    q_lens = cu_q.diff()
    starts = lens - q_lens
    if q_start is not None:
        starts = checks.integers(op, "q_start", q_start, 1)
        if starts.numel() != count:
            raise ShapeError(f"{op}: q_start {tuple(starts.shape)} is not one for each sequence")
    sequences = engine.Sequences(
        count, int(q_lens.max()) if count else 0, starts.contiguous(), cu_q=cu_q, block_table=table,
        kv_lens=lens, page=page,
    )  # fmt: skip
    return Step(sequences, rows, pages)


def attend(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    step: Step,
    *,
    scale: float,
    causal: bool,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    """`samebits.ops.attention_paged` of a step, in CPU memory, to `out` [total_q, Hq, Dv].

    Raises:
        DTypeError, ShapeError: tensors that do not fit each other or the step.
    """
    op = "attention_paged"
    q, k_cache, v_cache = checks.operands(op, q, k_cache, v_cache)
    pages, page, kv_heads, d = k_cache.shape
    if (
        (pages, page) != (step.pages, step.sequences.page)
        or v_cache.shape[:3] != (pages, page, kv_heads)
        or q.dim() != 3
        or q.shape[0] != step.rows
        or q.shape[2] != d
        or out.shape != (step.rows, q.shape[1], v_cache.shape[3])
        or out.dtype is not q.dtype
        or out.stride(2) != 1
    ):
        raise ShapeError(
            f"{op}: q {tuple(q.shape)}, caches {tuple(k_cache.shape)} and {tuple(v_cache.shape)} "
            f"and out {tuple(out.shape)} do not fit a step of {step.rows} rows and {step.pages} "
            f"pages of {step.sequences.page}"
        )
    checks.writable(op, "out", out)
    checks.apart(op, out, q, k_cache, v_cache)
    if q.shape[1] != kv_heads:
        checks.heads(op, q.shape[1], kv_heads, True)
    logits = None if sinks is None else checks.sink_logits(op, sinks, q.shape[1])
    engine.packed(
        q, k_cache, v_cache, step.sequences, scale=scale, causal=causal, window=window,
        softcap=softcap, sinks=logits, lse=False, out=out,
    )  # fmt: skip
