"""What a call of attention has besides Q, K and V."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sequences:
    """How packed tensors are cut into sequences; all on the device, int32 or int64.

    Attributes:
        count: number of sequences.
        longest_q: rows of the longest query, or more.
        longest_kv: keys of the longest sequence, or more.
        cu_q: [count + 1] cumulative query lengths.
        cu_k: [count + 1] cumulative KV lengths, or None.
        kv_lens: [count] KV lengths of a paged cache, or None.
        table: [count, pages] page numbers of a paged cache, or None.
        starts: [count] position of each sequence's first row; None puts the rows at the end.
        total_kv: keys of all sequences of a paged cache, or more; None: not known on the host.
    """

    count: int
    longest_q: int
    longest_kv: int
    cu_q: torch.Tensor
    cu_k: torch.Tensor | None = None
    kv_lens: torch.Tensor | None = None
    table: torch.Tensor | None = None
    starts: torch.Tensor | None = None
    total_kv: int | None = None


@dataclass(frozen=True)
class Options:
    """What changes the mathematics; see `samebits.ops.attention`."""

    scale: float
    causal: bool = False
    window: int | None = None
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    k_scale: torch.Tensor | None = None
    v_scale: torch.Tensor | None = None
    lse: bool = False
