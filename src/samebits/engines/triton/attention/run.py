"""Launches attention by a contract and a schedule. Everything was checked by ops/attention."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from samebits.contract import AttentionContract, path
from samebits.engines import tickets
from samebits.engines.cuda.attention import prefill
from samebits.engines.triton.attention import hopper, portable
from samebits.engines.triton.attention.arguments import Options as Options
from samebits.engines.triton.attention.arguments import Sequences as Sequences
from samebits.engines.triton.attention.fold import fold_kernel
from samebits.engines.triton.attention.forward import attention_kernel
from samebits.engines.triton.attention.gather import gathered
from samebits.engines.triton.attention.latency import scores_kernel, values_kernel
from samebits.engines.triton.attention.schedule import AttentionSchedule
from samebits.engines.triton.launch import launch
from samebits.errors import ContractError

#: Elements of partial results (fp32) from which on a tile's leaves are not shared.
WORKSPACE = 1 << 27
#: Keys of a step.
STEP = 64
_LOG2E = math.log2(math.e)


Result = tuple[torch.Tensor, "torch.Tensor | None"]


def dense(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: Options,
    *,
    q_start: int = 0,
    starts: torch.Tensor | None = None,
    mask: torch.Tensor | None = None,
    masked_at: float = -math.inf,
) -> Result:
    """Attention over [B, H, T, D] tensors with contiguous columns.

    Args:
        q_start, starts: position of row 0, or one for each sequence.
        mask: bool or floating, expanded to [B, Hq, T, S].
        masked_at: the value from which down an additive mask hides a key.

    Returns:
        [B, Hq, T, Dv], laid out like [B, T, Hq, Dv] in memory when `q` is, and the logsumexp
        [B, Hq, T] in fp32 or None.

    Raises:
        ContractError: the kernels do not compute this contract.
    """
    batch, heads, q_len, _ = q.shape
    dv = v.size(3)
    if q.stride(1) < q.stride(2):
        out = q.new_empty((batch, q_len, heads, dv)).transpose(1, 2)
    else:
        out = q.new_empty((batch, heads, q_len, dv))
    lse = q.new_empty((batch, heads, q_len), dtype=torch.float32) if options.lse else None
    tiles = -(-q_len // prefill.ROWS) * batch * heads
    if mask is None and hopper.prefilled(
        contract, schedule, q, k, v, out, lse, options, tiles, position=q_start, positions=starts
    ):
        return out, lse
    seen = min(k.size(2), q_start + 1) if options.causal and starts is None else k.size(2)
    if (
        q_len == 1
        and mask is None
        and (starts is None or options.causal)
        and (not options.window or (options.causal and starts is None and q_start < k.size(2)))
        and hopper.decoded(
            contract, schedule, q.squeeze(2), k, v, out.squeeze(2), options, keys=seen,
            counts=starts, added=1,
        )
    ):  # fmt: skip
        return out, None
    strides = tuple(x.stride()[:3] for x in (q, k, v, out))
    call = _Call(
        contract, schedule, options, q, k, v, out, lse, "dense", batch, q_len, k.size(2),
        k.size(1), strides, (heads * q_len, q_len, 1), (None, None, None), starts, q_start,
    )  # fmt: skip
    call.run(mask, masked_at)
    return out, lse


def packed(
    contract: AttentionContract,
    schedule: AttentionSchedule,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    options: Options,
    sequences: Sequences,
    out: torch.Tensor | None = None,
) -> Result:
    """Attention over packed queries [total, Hq, D]; K and V packed alike, or pages of a cache.

    Args:
        out: [total, Hq, Dv] to write to, its columns side by side; None: a new tensor.

    Returns:
        [total, Hq, Dv], and the logsumexp [Hq, total] in fp32 or None.

    Raises:
        ContractError: as `dense`.
    """
    total, heads, _ = q.shape
    if out is None:
        out = q.new_empty((total, heads, v.size(-1)))
    s, paged = sequences, sequences.table is not None
    lse = q.new_empty((heads, total), dtype=torch.float32) if options.lse else None
    tiles = -(-total // prefill.ROWS) * heads
    packed_k, packed_v, cu_k = k, v, s.cu_k
    if s.table is not None and hopper.worth_copying(contract, schedule, q, k, v, options, s, tiles):
        assert s.kv_lens is not None and s.total_kv is not None and schedule.prefill is not None
        packed_k, packed_v, cu_k = gathered(k, v, s.table, s.kv_lens, s.total_kv, s.longest_kv)
        tiles = max(tiles, schedule.prefill.tiles)
    if cu_k is not None and hopper.prefilled(
        contract, schedule, hopper.one(q), hopper.one(packed_k), hopper.one(packed_v),
        hopper.one(out), None if lse is None else lse.unsqueeze(0), options, tiles,
        positions=s.starts, query_starts=s.cu_q, key_starts=cu_k,
        lengths=(s.longest_q, s.longest_kv),
    ):  # fmt: skip
        return out, lse
    if (
        paged
        and total == sequences.count
        and sequences.longest_q == 1
        and sequences.starts is None
        and (options.causal or not options.window)
        and hopper.decoded(
            contract, schedule, q, k.transpose(1, 2), v.transpose(1, 2), out, options,
            keys=sequences.longest_kv, counts=sequences.kv_lens, table=sequences.table,
        )
    ):  # fmt: skip
        return out, None
    strides = tuple(
        (x.stride(0) if paged and x.dim() == 4 else 0, x.stride(-2), x.stride(-3))
        for x in (q, k, v, out)
    )
    call = _Call(
        contract, schedule, options, q, k, v, out, lse, "paged" if paged else "varlen", s.count,
        s.longest_q, s.longest_kv, k.size(-2), strides, (0, total, 1),
        (s.cu_q, s.cu_k, s.kv_lens), s.starts, table=s.table,
    )  # fmt: skip
    call.run()
    return out, lse


@dataclass
class _Call:
    """One call, in the form in which the kernels take it.

    Attributes:
        keys: how sequences lie in memory: "dense", "varlen" or "paged".
        strides: of q, k, v and out in elements: (batch or page, head, row).
        lengths: cu_q, cu_k and kv_lens of `Sequences`.
    """

    contract: AttentionContract
    schedule: AttentionSchedule
    options: Options
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    lse: torch.Tensor | None
    keys: str
    batch: int
    q_len: int
    kv_len: int
    kv_heads: int
    strides: tuple[tuple[int, ...], ...]
    lse_strides: tuple[int, int, int]
    lengths: tuple[torch.Tensor | None, ...]
    starts: torch.Tensor | None = None
    q_start: int = 0
    table: torch.Tensor | None = None
    ticket: int | None = None

    def run(self, mask: torch.Tensor | None = None, masked_at: float = 0.0) -> None:
        if self.contract.maximum == "ceil":
            if self.out.numel():
                portable.run(self, mask, masked_at)
            return
        if self.contract.exp2 != "hw":
            raise ContractError(
                f"these kernels compute exp2 by the chip's ex2, not by {self.contract.exp2}"
            )
        if self.out.numel() == 0:
            return
        if tickets.checking():
            subject = tickets.Subject("attention", self.contract.id, repr(self.schedule))
            seed, device = path.seed(self.contract), self.q.device
            self.ticket = tickets.ticket(device, subject, seed, self.contract.leaf).data_ptr()
        schedule, lanes = self.schedule, self.batch * self.kv_heads
        group = self.out.size(1) // self.kv_heads
        leaves = -(-self.kv_len // self.contract.leaf)
        partial_size = self.out.numel() * leaves
        if self.q_len == 1 and mask is None and schedule.spreads(group, lanes * leaves):
            cut = min(schedule.values, schedule.columns)
            partial, stats, seals = self._workspace(leaves, cut)
            self._spread(partial, stats, seals, leaves, cut)
        else:
            tiles = lanes * -(-self.q_len * group // schedule.block_m)
            splits = schedule.splits(tiles, leaves) if partial_size <= WORKSPACE else 1
            if splits == 1:
                self._walk(tiles, 1, leaves, (None, None, None), 0, mask, masked_at)
                return
            cut = min(schedule.columns, _tile(self.out.size(-1)))
            partial, stats, seals = self._workspace(leaves, cut)
            self._walk(tiles, splits, leaves, (partial, stats, seals), cut, mask, masked_at)
        self._fold(partial, stats, seals, leaves, cut)

    @property
    def _pdl(self) -> bool:
        return self.schedule.pdl and self.q.is_cuda

    def _workspace(
        self, leaves: int, cut: int
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Memory for the leaves' o; for m, l and the fold's two factors; for seals of `cut` columns
        each, where paths are checked."""
        dv = self.out.size(-1)
        rows = self.out.numel() // dv
        return (
            self.q.new_empty((rows, leaves, dv), dtype=torch.float32),
            self.q.new_empty((rows, leaves, 4), dtype=torch.float32),
            None
            if self.ticket is None
            else self.q.new_empty((rows, leaves, 2 + -(-dv // cut)), dtype=torch.int64),
        )

    def _scaled(self) -> tuple[torch.Tensor, tuple[int, ...], float, float]:
        """q and its strides, the scores' factor, and the cap's second factor (0 for none).

        The factor is not negative: then the sign goes to q, exactly, and so to every score.
        """
        cap, scale = self.options.softcap, self.options.scale
        a, b = (scale * _LOG2E, 0.0) if cap is None else (scale / cap, cap * _LOG2E)
        if a >= 0:
            return self.q, self.strides[0], a, b
        q = -self.q
        strides = q.stride()[:3] if q.dim() == 4 else (0, q.stride(1), q.stride(0))
        return q, strides, -a, b

    def _common(self) -> dict[str, Any]:
        """What all kernels are compiled for."""
        options = self.options
        return {
            "GROUP": self.out.size(1) // self.kv_heads, "KEYS": self.keys,
            "CAUSAL": options.causal, "WINDOW": options.window is not None,
        }  # fmt: skip

    def _operands(self) -> dict[str, Any]:
        """What the kernels that read K or V are compiled for besides."""
        return {
            **self._common(), "PAGE": 0 if self.table is None else self.k.size(1),
            "SOFTCAP": self.options.softcap is not None,
            "K_SCALE": self.options.k_scale is not None, "BLOCK_M": self.schedule.block_m,
        }  # fmt: skip

    def _ends(self) -> dict[str, Any]:
        """What the kernels that write results are compiled for besides."""
        return {
            "DV": self.out.size(-1), "SINKS": self.options.sinks is not None,
            "LSE": self.lse is not None, "V_SCALE": self.options.v_scale is not None,
        }  # fmt: skip

    def _walk(
        self, tiles: int, splits: int, leaves: int, workspace: tuple[torch.Tensor | None, ...],
        cut: int, mask: torch.Tensor | None, masked_at: float,
    ) -> None:  # fmt: skip
        options, schedule = self.options, self.schedule
        q, q_strides, a, b = self._scaled()
        span, stages = schedule.pipeline(tiles * splits)
        d, dv, lanes = q.size(-1), self.out.size(-1), self.batch * self.kv_heads
        launch(
            attention_kernel, (tiles * splits,), q, self.k, self.v, self.out, self.lse,
            *workspace, self.ticket, *self.lengths, self.table, self.starts, mask, options.sinks,
            options.k_scale,
            options.v_scale, a, b, masked_at, self.q_start, self.q_len, self.kv_len, self.batch,
            self.kv_heads, tiles // lanes, splits, leaves, options.window or 0,
            self.contract.leaf, 0 if self.table is None else self.table.stride(0),
            *q_strides, *self.strides[1], *self.strides[2], *self.strides[3], *self.lse_strides,
            *((0, 0, 0, 0) if mask is None else mask.stride()),
            **self._operands(), **self._ends(), D=d, BLOCK_D=_tile(d), BLOCK_DV=_tile(dv),
            MASK=0 if mask is None else 1 if mask.dtype is torch.bool else 2,
            ONE_POSITION=self.q_len == 1, SPAN=span, SPLIT=splits > 1, STAGES=stages, SLICE=cut,
            PDL=splits > 1 and self._pdl, num_warps=schedule.warps, num_stages=stages,
        )  # fmt: skip

    def _spread(
        self, partial: torch.Tensor, stats: torch.Tensor, seals: torch.Tensor | None, leaves: int,
        cut: int,
    ) -> None:  # fmt: skip
        options, schedule, leaf = self.options, self.schedule, self.contract.leaf
        q, q_strides, a, b = self._scaled()
        d, dv, lanes = q.size(-1), self.out.size(-1), self.batch * self.kv_heads
        scores = q.new_empty((len(stats), leaves * leaf), dtype=torch.float32)
        tops = q.new_empty((len(stats), leaves * leaf // STEP), dtype=torch.float32)
        table_stride = 0 if self.table is None else self.table.stride(0)
        where = (*self.lengths, self.table, self.starts, options.k_scale)
        launch(
            scores_kernel, (lanes, -(-self.kv_len // STEP)), q, self.k, scores, tops, *where, a, b,
            self.q_start, self.kv_len, self.kv_heads, leaves, options.window or 0, leaf,
            table_stride, *q_strides, *self.strides[1], **self._operands(), D=d, BLOCK_D=_tile(d),
            PDL=self._pdl, num_warps=schedule.warps,
        )  # fmt: skip
        launch(
            values_kernel, (lanes, leaves, -(-dv // schedule.values)), q, self.v, scores, tops,
            partial, stats, seals, *where, a, self.q_start, self.kv_len, self.kv_heads, leaves,
            options.window or 0, table_stride, *self.strides[2], **self._operands(), DV=dv,
            COLUMNS=schedule.values, LEAF=leaf, SLICE=cut, PDL=self._pdl, num_warps=schedule.warps,
            pdl=self._pdl,
        )  # fmt: skip

    def _fold(
        self, partial: torch.Tensor, stats: torch.Tensor, seals: torch.Tensor | None, leaves: int,
        cut: int,
    ) -> None:  # fmt: skip
        options, schedule, heads = self.options, self.schedule, self.out.size(1)
        columns, batch = -(-self.out.size(-1) // schedule.columns), schedule.batch
        launch(
            fold_kernel, (self.batch * self.q_len * heads, columns), partial, stats, self.out,
            self.lse, seals, self.ticket, *self.lengths, self.starts, options.sinks,
            options.v_scale, self.q_start,
            self.q_len, self.kv_len, heads, self.q_len, leaves, options.window or 0,
            self.contract.leaf, *self.strides[3], *self.lse_strides, **self._common(),
            **self._ends(), COLUMNS=schedule.columns, BATCH=min(8, batch) if leaves <= 8 else batch,
            SLICE=cut, PDL=self._pdl, num_warps=1, pdl=self._pdl,
        )  # fmt: skip


def _tile(d: int) -> int:
    return max(16, 1 << (d - 1).bit_length())
