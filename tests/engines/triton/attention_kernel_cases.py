"""Inputs for the attention kernels, and the contract evaluated over a whole call."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import interpreter
from samebits.contract import AttentionContract, hopper_attention
from samebits.engines.triton.attention import run
from samebits.engines.triton.attention.schedule import AttentionSchedule

DEVICE = "cpu" if interpreter.INTERPRETED else "cuda"
NAMES = {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float8_e4m3fn: "e4m3"}
MANY = 10**6  # programs: one for each leaf


def contract(
    dtype: torch.dtype = torch.bfloat16, kv: torch.dtype | None = None, leaf: int = 128
) -> AttentionContract:
    return hopper_attention(NAMES[dtype], kv=NAMES[kv or dtype], leaf=leaf)


def qkv(
    batch: int = 1, heads: int = 2, kv_heads: int = 1, q_len: int = 5, kv_len: int = 150,
    d: int = 16, dv: int | None = None, dtype: torch.dtype = torch.bfloat16, seed: int = 0,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """q, k, v whose entries differ by many powers of two, so that every addition rounds."""
    g = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 1.0) -> torch.Tensor:
        wide = torch.exp2(torch.randint(-4, 5, shape, generator=g).float())
        return (torch.randn(shape, generator=g) * wide * scale).to(dtype).to(DEVICE)

    return (
        draw(batch, heads, q_len, d), draw(batch, kv_heads, kv_len, d, scale=0.5),
        draw(batch, kv_heads, kv_len, dv or d),
    )  # fmt: skip


def alike(q_len: int, kv_len: int, d: int = 16) -> tuple[torch.Tensor, ...]:
    """q, k, v of two heads that share keys, every score near 128.

    Many keys have a say in a row then, and what rounding a score loses shows in their weights.
    """
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, h, t, d, generator=g) for h, t in ((2, q_len), *[(1, kv_len)] * 2))
    q[..., 0], k[..., 0] = 8, 16 * d**0.5
    return tuple(x.to(DEVICE, torch.bfloat16) for x in (q, k, v))


def ordered(q_len: int, kv_len: int, kv: torch.dtype) -> tuple[torch.Tensor, ...]:
    """q, k, v whose results say which 16 keys the tensor core takes together.

    Of every 32 keys two have weight 1 and values that cancel, both in the first half: what else is
    in their block is cut to a few bits, what is in the other keeps all.
    """
    g = torch.Generator().manual_seed(0)
    q = torch.zeros(1, 2, q_len, 32)
    k = torch.zeros(1, 1, kv_len, 32)
    q[..., 0], k[..., 0] = 32**0.5, -8.0 - torch.rand(kv_len, generator=g)
    v = torch.rand(1, 1, kv_len, 32, generator=g) / 4
    k[..., ::32, 0] = k[..., 2::32, 0] = 0
    v[..., ::32, :], v[..., 2::32, :] = 448, -448
    return q.to(DEVICE, torch.bfloat16), k.to(DEVICE, kv), v.to(DEVICE, kv)


def seen_keys(q_len: int, kv_len: int, start: int, causal: bool, window: int | None) -> np.ndarray:
    row, key = start + np.arange(q_len)[:, None], np.arange(kv_len)[None, :]
    seen = np.ones((q_len, kv_len), bool)
    if causal:
        seen &= key <= row
    if window is not None:
        seen &= np.abs(row - key) < window
    return seen


def expected(
    of: AttentionContract, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *,
    start: int | None = None, causal: bool = True, window: int | None = None,
    mask: torch.Tensor | None = None, sinks: torch.Tensor | None = None,
    k_scale: torch.Tensor | None = None, v_scale: torch.Tensor | None = None, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The contract's result [B, H, T, Dv] and logsumexp [B, H, T]."""
    q, k, v = q.cpu(), k.cpu(), v.cpu()
    batch, heads, q_len, _ = q.shape
    kv_len, group = k.size(2), heads // k.size(1)
    start = kv_len - q_len if start is None else start
    by_position = seen_keys(q_len, kv_len, start, causal, window)
    out = torch.empty(batch, heads, q_len, v.size(3), dtype=q.dtype)
    lse = torch.empty(batch, heads, q_len)
    for b in range(batch):
        for h in range(heads):
            given: dict[str, Any] = {"seen": by_position, **options}
            if mask is not None:
                m = mask.cpu().expand(batch, heads, q_len, kv_len)[b, h]
                if m.dtype is torch.bool:
                    given["seen"] = by_position & m.numpy()
                else:
                    given["seen"] = by_position & ~(m <= torch.finfo(m.dtype).min).numpy()
                    given["bias"] = m.float().numpy()
            for name, x, at in (("sink", sinks, h), ("k_scale", k_scale, h // group),
                                ("v_scale", v_scale, h // group)):  # fmt: skip
                given[name] = None if x is None else float(x[at])
            head = (q[b, h], k[b, h // group], v[b, h // group])
            out[b, h] = of.evaluate(*head, out_dtype=of.output, **given)
            lse[b, h] = of.logsumexp(*head, **given)
    return out, lse


def attend(
    of: AttentionContract, schedule: AttentionSchedule, q: torch.Tensor, k: torch.Tensor,
    v: torch.Tensor, *, start: int | None = None, mask: torch.Tensor | None = None,
    scale: float | None = None, causal: bool = True, **options: Any,
) -> tuple[torch.Tensor, torch.Tensor | None]:  # fmt: skip
    """The kernels' result and logsumexp, on the CPU."""
    lowest = 0.0
    if mask is not None:
        mask = mask.to(DEVICE).expand(*q.shape[:3], k.size(2))
        lowest = 0.0 if mask.dtype is torch.bool else torch.finfo(mask.dtype).min
    scale = q.size(-1) ** -0.5 if scale is None else scale
    options = {k: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for k, x in options.items()}
    out, lse = run.dense(
        of, schedule, q, k, v, run.Options(scale, causal, lse=True, **options),
        q_start=k.size(2) - q.size(2) if start is None else start, mask=mask, masked_at=lowest,
    )  # fmt: skip
    return out.cpu(), None if lse is None else lse.cpu()


def paged(x: torch.Tensor, page: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """[B, H, S, D] as pages [pages, page, H, D] in random order, and the table [B, pages].

    Slots that no sequence uses hold NaN.
    """
    batch, heads, kv_len, d = x.shape
    each = -(-kv_len // page)
    order = torch.randperm(batch * each, generator=torch.Generator().manual_seed(seed))
    table = order.view(batch, each).to(torch.int32)
    cache = torch.full((batch * each, page, heads, d), float("nan")).to(x.dtype).to(x.device)
    for b in range(batch):
        for i in range(each):
            part = x[b, :, i * page : (i + 1) * page].transpose(0, 1)
            cache[table[b, i], : part.size(0)] = part
    return cache, table.to(x.device)
