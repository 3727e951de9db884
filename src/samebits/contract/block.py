"""The tensor core's step (`arithmetic.BlockFma`) in NumPy: the definition, in integers."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from samebits.contract.arithmetic import FP32, BlockFma, Format
from samebits.contract.numerics import F32, Array, canonical

I64 = npt.NDArray[np.int64]
_NO_TERM = -(1 << 20)  # an exponent below every other


def decode(x: Array, fmt: Format) -> tuple[I64, I64]:
    """Signed integer significand s and exponent e of finite x = s * 2^(e - fraction).

    Subnormals keep the format's smallest exponent and a significand with leading zeros. Bits below
    the format's last place are dropped; Inf and NaN give 0 (`fused_block` treats them apart).
    """
    v = np.where(np.isfinite(x), x, 0).astype(np.float64)
    e = np.maximum(np.frexp(v)[1].astype(np.int64) - 1, fmt.min_exponent)
    return np.ldexp(v, fmt.fraction - e).astype(np.int64), e


def _to_grid(s: I64, e: I64, fraction: int, top: I64, grid: int) -> I64:
    """s * 2^(e - fraction) in units of 2^(top - grid), magnitude truncated toward zero."""
    shift = np.minimum(top - e + fraction - grid, 62)  # to the right if positive
    magnitude = np.abs(s)
    moved = np.where(
        shift > 0, magnitude >> np.maximum(shift, 0), magnitude << np.maximum(-shift, 0)
    )
    return np.sign(s) * np.where(s != 0, moved, 0)


def _truncated(total: I64, top: I64, arithmetic: BlockFma) -> F32:
    """total * 2^(top - grid) truncated toward zero to the result's precision."""
    unit = top - arithmetic.fraction
    magnitude = np.abs(total)
    exponent = unit + np.frexp(magnitude.astype(np.float64))[1] - 1
    last_place = np.maximum(exponent, FP32.min_exponent) - (arithmetic.significand - 1)
    drop = np.clip(last_place - unit, 0, 62)
    kept = (magnitude >> drop << drop) * np.sign(total)
    return np.ldexp(kept.astype(np.float64), unit).astype(np.float32)  # exact, or Inf


def fused_block(x: Array, w: Array, acc: Array, arithmetic: BlockFma) -> F32:
    """One step for every pair of rows: acc[m, n] + sum_i x[m, i] * w[n, i].

    Args:
        x: [M, B] fp32 values of the input format, B <= arithmetic.block.
        w: [N, B].
        acc: [M, N] fp32.

    Returns:
        [M, N] fp32, with the canonical NaN of `numerics` (the contract's own NaN is put in once, at
        the very end).
    """
    fmt, grid = arithmetic.format, arithmetic.fraction
    (sx, ex), (sw, ew), (sc, ec) = decode(x, fmt), decode(w, fmt), decode(acc, FP32)
    s = sx[:, None, :] * sw[None, :, :]
    e = ex[:, None, :] + ew[None, :, :]
    top = np.where(s != 0, e, _NO_TERM).max(-1, initial=_NO_TERM)
    top = np.maximum(top, np.where(sc != 0, ec, _NO_TERM))
    top = np.maximum(top, arithmetic.floor)
    total = _to_grid(s, e, 2 * fmt.fraction, top[..., None], grid).sum(-1)
    total = total + _to_grid(sc, ec, FP32.fraction, top, grid)
    with np.errstate(all="ignore"):
        result = _truncated(total, top, arithmetic)
        # In fp64 no finite term overflows, so this is not finite only by an Inf or NaN term.
        plain = (x[:, None, :].astype(np.float64) * w[None, :, :]).sum(-1) + acc
        return canonical(np.where(np.isfinite(plain), result, plain))


def block_chain(x: Array, w: Array, arithmetic: BlockFma, acc: Array | None = None) -> F32:
    """The chain over k in ascending blocks, from `acc` (+0 if None): [M, K], [N, K] -> [M, N]."""
    d = np.zeros((len(x), len(w)), np.float32) if acc is None else np.asarray(acc, np.float32)
    for k in range(0, x.shape[1], arithmetic.block):
        stop = k + arithmetic.block
        d = fused_block(x[:, k:stop], w[:, k:stop], d, arithmetic)
    return d
