"""Queries and keys made ready for attention: each head's RMS norm, if there is one, and its turn.

One launch for what are up to four operations, with their bits: between them nothing is kept that
they would not round. The row tree folds neighbours, so the halves of a head can be held apart: the
last addition is that of their sums.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch
from samebits.engines.triton.rows.norm import affine
from samebits.engines.triton.rows.rotary import product
from samebits.engines.triton.rows.schedule import cdiv
from samebits.engines.triton.rows.tree import begin, fold_pairs, overlaps

#: Pairs of elements that one program turns, at most: fewer while there are few tokens.
_PAIRS, _MORE, _TOKENS, _WARPS = 512, 2048, 200, 4


@triton.jit
def heads_kernel(
    q, k, q_weight, k_weight, cos, sin, positions, q_out, k_out, q_heads, k_heads, q_groups,
    groups, q0, q1, k0, k1, c0, z0, limit, eps,
    HALF: tl.constexpr, H: tl.constexpr, NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (token, group of H heads); the first `q_groups` of a token's `groups` are queries'.

    Args:
        q, k: head h of token j is 2 HALF elements at j and h times their strides; outputs are
            contiguous.
        q_weight, k_weight: [2 HALF] factors of the norms, with NORM.
        cos, sin: rows of HALF factors; a row that is not below `limit` counts as NaN.
    """
    begin(PDL)
    j = (tl.program_id(0) // groups).to(tl.int64)
    group = tl.program_id(0) % groups
    of_q = group < q_groups
    x, y, w = tl.where(of_q, q, k), tl.where(of_q, q_out, k_out), tl.where(of_q, q_weight, k_weight)
    heads, token, step = (
        tl.where(of_q, q_heads, k_heads), tl.where(of_q, q0, k0), tl.where(of_q, q1, k1)
    )  # fmt: skip
    h = tl.where(of_q, group, group - q_groups) * H + tl.arange(0, H)
    d = tl.arange(0, HALF)
    here = (h < heads)[:, None] & (d < HALF)[None, :]
    from_x = x + (j * token + h.to(tl.int64) * step)[:, None] + d[None, :]
    a = tl.load(from_x, here, 0.0)
    b = tl.load(from_x + HALF, here, 0.0)
    if NORM:
        af, bf = a.to(tl.float32), b.to(tl.float32)
        total = fold_pairs(tl.fma(af, af, 0.0), HALF) + fold_pairs(tl.fma(bf, bf, 0.0), HALF)
        mean = tl.div_rn(total, tl.full([H], 2 * HALF, tl.float32))
        r = tl.div_rn(tl.full([H], 1.0, tl.float32), tl.sqrt_rn(mean + eps))[:, None]
        a = affine(af * r, tl.load(w + d), 0.0, True, False).to(a.dtype)
        b = affine(bf * r, tl.load(w + HALF + d), 0.0, True, False).to(b.dtype)
    at = tl.load(positions + j).to(tl.int64)
    known = (d < HALF) & (at >= 0) & (at < limit)
    c = tl.load(cos + at * c0 + d, known, float("nan"))[None, :]
    s = tl.load(sin + at * z0 + d, known, float("nan"))[None, :]
    to_y = y + ((j * heads + h) * (2 * HALF))[:, None] + d[None, :]
    tl.store(to_y, (product(a, c) - product(b, s)).to(a.dtype), here)
    tl.store(to_y + HALF, (product(b, c) + product(a, s)).to(a.dtype), here)


def heads(
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor,
    q_weight: torch.Tensor | None,
    k_weight: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Arguments are checked by `samebits.ops.rotary_qk`.

    Args:
        q: [tokens, Hq, D], k: [tokens, Hk, D], any strides with a contiguous last axis.
        cos, sin: [P, D / 2], last axis contiguous; positions: [tokens], contiguous.
        q_weight, k_weight: [D] contiguous, or both None for no norm.

    Returns:
        Both, contiguous.
    """
    (tokens, q_heads, d), k_heads = q.shape, k.shape[1]
    turned = (
        torch.empty(q.shape, dtype=q.dtype, device=q.device),
        torch.empty(k.shape, dtype=k.dtype, device=k.device),
    )
    if not tokens or not q_heads + k_heads:
        return turned
    share = max(1, (_PAIRS if tokens < _TOKENS else _MORE) // (d // 2))
    q_groups = cdiv(q_heads, share)
    groups = q_groups + cdiv(k_heads, share)
    pdl = overlaps(q, tokens * groups)
    launch(
        heads_kernel, (tokens * groups,), q, k, q if q_weight is None else q_weight,
        k if k_weight is None else k_weight, cos, sin, positions, *turned, q_heads, k_heads,
        q_groups, groups, *q.stride()[:2], *k.stride()[:2], cos.stride(0), sin.stride(0),
        len(cos), eps, HALF=d // 2, H=share, NORM=q_weight is not None, PDL=pdl,
        num_warps=_WARPS, pdl=pdl,
    )  # fmt: skip
    return turned
