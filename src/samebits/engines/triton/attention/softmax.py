"""The online softmax of the contract, as device functions.

Power-of-two maximum, softcap, the fold over leaves, the sink: the arithmetic of
`samebits.contract.attention_steps`, line for line. No sum and no rounding here depends on a layout,
so every tile, warp count and split has the same bits.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.contract import functions as exact
from samebits.engines.triton.functions import chips_nan, log, polynomial, power_of_two

#: Keys of a step: the maximum is raised once for each.
STEP = tl.constexpr(64)

_EXP2_6 = tl.constexpr([float.fromhex(c) for c in exact._EXP2])
_LOG2E = tl.constexpr(float(exact.LOG2E))
_TWO_LOG2E = tl.constexpr(float.fromhex("0x1.715476p+1"))
_LN2 = tl.constexpr(float.fromhex("0x1.62e430p-1"))
#: 1.5 * 2^23: adding and subtracting it rounds to the nearest integer, ties to even; the sum's word
#: ends with that integer.
_ROUNDING = tl.constexpr(12582912.0)
_ALL = tl.constexpr(tl.PropagateNan.ALL)


@triton.jit
def larger(x, y):
    return tl.maximum(x, y, propagate_nan=_ALL)


@triton.jit
def row_maximum(x):
    """The largest of each row of [M, N]; NaN if one is NaN. Exact, so in any order."""
    return tl.reduce(x, 1, larger)


@triton.jit
def raised(m, top):
    """The power-of-two maximum after a step whose largest exponent is `top`."""
    return larger(m, tl.ceil(top))


@triton.jit
def power(n):
    """2^n in fp32 for integers n <= 0; 0 below -126 and for NaN."""
    n = tl.where(n >= -126.0, n, -127.0)
    return power_of_two(n.to(tl.int32))


@triton.jit
def flushed_exp2(x):
    """2^x for x <= 127, +0 where x < -126 (`functions.exp2_flush`)."""
    d = larger(x, -127.0)
    z = d + _ROUNDING
    y = polynomial(d - (z - _ROUNDING), _EXP2_6, 7) * power_of_two(z.to(tl.int32, bitcast=True))
    return tl.where(x < -126.0, 0.0, y)


@triton.jit
def capped(x, cap):
    """softcap: tanh(x) * cap with tanh = 1 - 2 / (2^(2 x log2 e) + 1)."""
    e = flushed_exp2(tl.minimum(x * _TWO_LOG2E, 126.0, propagate_nan=_ALL))
    return (1.0 - tl.div_rn(tl.full(x.shape, 2.0, tl.float32), e + 1.0)) * cap


@triton.jit
def with_bias(x, bias):
    """x with an additive mask, which is to the base e."""
    return tl.fma(bias, tl.full(x.shape, _LOG2E, tl.float32), x)


@triton.jit
def fold(m, l, o, leaf_m, leaf_l, leaf_o):  # noqa: E741
    """The next leaf folded into the running m, l [M] and o [M, D]; skipped if its m is -Inf."""
    top = larger(m, leaf_m)
    old, new = power(m - top), power(leaf_m - top)
    skip = leaf_m == float("-inf")
    l = tl.where(skip, l, tl.fma(l, old, leaf_l * new))  # noqa: E741
    olds = tl.broadcast_to(old[:, None], o.shape)
    o = tl.where(skip[:, None], o, tl.fma(o, olds, leaf_o * new[:, None]))
    return top, l, o


@triton.jit
def fold_sink(m, l, o, sink):  # noqa: E741
    """The sink's logits [M] folded in after all leaves."""
    x = sink * _LOG2E
    sink_m = tl.ceil(x)
    top = larger(m, sink_m)
    skip = x == float("-inf")
    old = tl.where(skip, 1.0, power(m - top))
    weight = flushed_exp2(x - sink_m) * power(sink_m - top)
    l = tl.where(skip, l, tl.fma(l, old, weight))  # noqa: E741
    return tl.where(skip, m, top), l, o * old[:, None]


@triton.jit
def result(m, l, o):  # noqa: E741
    """o / l in fp32; +0 for a row that sees nothing."""
    nothing = m == float("-inf")
    y = tl.div_rn(o, tl.broadcast_to(tl.where(nothing, 1.0, l)[:, None], o.shape))
    return tl.where(nothing[:, None], 0.0, y)


@triton.jit
def logsumexp(m, l):  # noqa: E741
    """The logsumexp of the scores; -Inf for a row that sees nothing."""
    lse = tl.fma(m, tl.full(m.shape, _LN2, tl.float32), log(l))
    # The chip's NaN, which the compiler may have replaced by its own.
    lse = tl.where(lse == lse, lse, chips_nan(m))
    return tl.where(m == float("-inf"), float("-inf"), lse)
