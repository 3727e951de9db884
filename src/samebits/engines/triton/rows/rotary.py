"""Rotary position embedding: pairs of elements turned by the angle of their position."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from samebits.engines.triton.launch import launch
from samebits.engines.triton.rows.schedule import cdiv, power_above
from samebits.engines.triton.rows.tree import begin, overlaps

#: Pairs of elements that one program turns, at most: many, for they wait for one position.
PAIRS, WARPS = 4096, 4


@triton.jit
def product(a, b):
    """a b, rounded to their type, as fp32."""
    return (a.to(tl.float32) * b.to(tl.float32)).to(a.dtype).to(tl.float32)


@triton.jit
def rotary_kernel(
    x, cos, sin, positions, y, s1, s2, groups, x0, x1, x2, c0, c1, c2, z0, z1, z2, second, limit,
    HALF: tl.constexpr, BLOCK: tl.constexpr, H: tl.constexpr, STEP: tl.constexpr,
    INTERLEAVED: tl.constexpr, SHARED: tl.constexpr, LOOKUP: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """H vectors of 2 HALF elements; vector (i, j, h) lies at i, j, h times its strides.

    Args:
        x, y: vectors, y contiguous.
        cos, sin: factors with strides c and z; a pair's second element has its own
            `second` further.
        positions: with LOOKUP, the row of the factors for (i, j), contiguous; a row that is not
            below `limit` counts as NaN.
        s1, s2: sizes of axes j and h; groups: programs that share the latter.
        STEP: distance of the factors of neighbouring pairs. SHARED: all h have the same factors.
    """
    begin(PDL)
    j = tl.program_id(0) // groups
    h = (tl.program_id(0) - j * groups) * H + tl.arange(0, H)
    j = j.to(tl.int64)
    i = tl.program_id(1).to(tl.int64)
    d = tl.arange(0, BLOCK)
    here = (h < s2)[:, None] & (d < HALF)[None, :]
    h = h.to(tl.int64)
    from_x = x + i * x0 + j * x1 + (h * x2)[:, None]
    to_y = y + ((i * s1 + j) * s2 + h)[:, None] * (2 * HALF)
    wide = tl.arange(0, 2 * BLOCK)[None, :]
    here_wide = (h < s2)[:, None] & (wide < 2 * HALF)
    if INTERLEAVED:
        a, b = tl.split(tl.reshape(tl.load(from_x + wide, here_wide), [H, BLOCK, 2]))
    else:
        a = tl.load(from_x + d[None, :], here)
        b = tl.load(from_x + HALF + d[None, :], here)
    if LOOKUP:
        at = tl.load(positions + i * s1 + j).to(tl.int64)
        known = ((d < HALF) & (at >= 0) & (at < limit))[None, :]
        from_cos = (cos + at * c1 + d * STEP)[None, :]
        from_sin = (sin + at * z1 + d * STEP)[None, :]
    else:
        known = (d < HALF)[None, :]
        from_cos = (cos + i * c0 + j * c1 + d * STEP)[None, :]
        from_sin = (sin + i * z0 + j * z1 + d * STEP)[None, :]
    if not SHARED:
        known = here
        from_cos += (h * c2)[:, None]
        from_sin += (h * z2)[:, None]
    c = tl.load(from_cos, known, float("nan"))
    s = tl.load(from_sin, known, float("nan"))
    first = (product(a, c) - product(b, s)).to(y.dtype.element_ty)
    if second:
        c = tl.load(from_cos + second, known, float("nan"))
        s = tl.load(from_sin + second, known, float("nan"))
    last = (product(b, c) + product(a, s)).to(y.dtype.element_ty)
    if INTERLEAVED:
        tl.store(to_y + wide, tl.reshape(tl.join(first, last), [H, 2 * BLOCK]), here_wide)
    else:
        tl.store(to_y + d[None, :], first, here)
        tl.store(to_y + HALF + d[None, :], last, here)


def rotary(
    x: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    positions: torch.Tensor | None,
    interleaved: bool,
) -> torch.Tensor:
    """Rotary embedding of arguments that `samebits.ops.rotary` has checked.

    Args:
        x: [i, j, h, D], i < 65536, of any strides with a contiguous last axis.
        cos, sin: [i, j, h, D or D/2], broadcast by strides of 0, last axis contiguous; or, with
            positions, [positions, D or D/2].
        positions: [i, j] contiguous integers, or None.

    Returns:
        [i, j, h, D], contiguous.
    """
    i, j, h, d = x.shape
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    full = cos.shape[-1] == d
    if positions is None:
        c0, c1, c2, z0, z1, z2 = *cos.stride()[:3], *sin.stride()[:3]
    else:
        c0, c1, c2, z0, z1, z2 = 0, cos.stride(0), 0, 0, sin.stride(0), 0
    block = power_above(d // 2)
    share = max(1, min(PAIRS // block, power_above(h)))
    groups = cdiv(h, share)
    pdl = overlaps(x, i * j * groups)
    launch(
        rotary_kernel, (j * groups, i),
        x, cos, sin, x if positions is None else positions, y, j, h, groups, *x.stride()[:3],
        c0, c1, c2, z0, z1, z2, (1 if interleaved else d // 2) if full else 0, len(cos),
        HALF=d // 2, BLOCK=block, H=share, STEP=2 if full and interleaved else 1,
        INTERLEAVED=interleaved, SHARED=c2 == z2 == 0, LOOKUP=positions is not None, PDL=pdl,
        num_warps=WARPS, pdl=pdl,
    )  # fmt: skip
    return y
