"""Functions of bf16 arguments that are rounded to bf16: a few instructions, the same results.

There are 65,536 arguments, and all of them are tested: each result, rounded to bf16, is that of
the exact formula in `functions`. That is no accident: but for a handful of arguments the exact
value lies more than 4 units in the last place of fp32 from the middle between two bf16 numbers (10
units for both kinds of gelu), so fp32 with the chip's exp2 decides right. The formulas keep that
accuracy where results are tiny; an argument that needed more is written down.
"""

from __future__ import annotations

import triton
import triton.language as tl

from samebits.engines.triton.functions import (
    _ROUNDING,
    at_least,
    chips_nan,
    clamp,
    power_of_two,
    reciprocal,
)

_HALF_LOG2E = tl.constexpr(0.7213475108146667)
_GELU_LINEAR = tl.constexpr(1.1511040925979614)  # sqrt(2 / pi) log2(e)
_GELU_CUBIC = tl.constexpr(0.05147162079811096)  # 0.044715 of that
#: Phi(-a) e^(a a / 2) in u = (a - 3) / (a + 3), 0 <= a <= 13.6: relative error 7e-9.
_TAIL = tl.constexpr([
    float.fromhex(c)
    for c in (
        "0x1.c5e214p-15", "0x1.e67c6ep-14", "-0x1.6462aap-12", "-0x1.01fc80p-10", "0x1.7cb944p-9",
        "0x1.91e0c4p-8", "-0x1.7a9456p-5", "0x1.f8bacep-4", "-0x1.a6b66ap-3", "0x1.f1b89cp-4",
    )
])  # fmt: skip
#: -log2(e) / 2 in two parts.
_SQUARE_HIGH = tl.constexpr(-0.7213475108146667)
_SQUARE_LOW = tl.constexpr(-9.629815167500055e-09)


@triton.jit
def _logistic(t):
    """2^t / (2^t + 2^-t), with few bits lost down to 2^-149; t is clamped to [-80, 80].

    The quotient is corrected once, so that it does not depend on the reciprocal's last bit.
    """
    t = clamp(t, -80.0, 80.0)
    above = tl.exp2(t)
    total = above + tl.exp2(-t)
    inverse = reciprocal(total)
    quotient = above * inverse
    return tl.fma(tl.fma(-quotient, total, above), inverse, quotient)


@triton.jit
def silu(x):
    """x / (1 + e^-x)."""
    y = x * _logistic(x * _HALF_LOG2E)
    # Here the exact formula, rounded to fp32, is the middle between two bf16 numbers.
    return tl.where(x == -0.00390625, -0.001953125, y)


@triton.jit
def gelu_tanh(x):
    """x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    cubic = tl.full(x.shape, _GELU_CUBIC, tl.float32)
    linear = tl.full(x.shape, _GELU_LINEAR, tl.float32)
    return x * _logistic(x * tl.fma(x * x, cubic, linear))


@triton.jit
def gelu(x):
    """x Phi(x): Phi(-a) = P(u) e^(-a a / 2), where a a is exact."""
    a = tl.minimum(tl.abs(x), 14.0, propagate_nan=tl.PropagateNan.ALL)
    u = (a - 3.0) / (a + 3.0)
    p = tl.full(x.shape, _TAIL[0], tl.float32)
    for i in tl.static_range(1, 10):
        p = tl.fma(p, u, tl.full(x.shape, _TAIL[i], tl.float32))
    square = a * a
    high = tl.full(x.shape, _SQUARE_HIGH, tl.float32)
    z = tl.fma(square, high, tl.full(x.shape, _ROUNDING, tl.float32))
    n = z - _ROUNDING
    r = tl.fma(square, tl.full(x.shape, _SQUARE_LOW, tl.float32), tl.fma(square, high, -n))
    # 2^n in two steps: n reaches -141.
    tail = p * tl.exp2(r) * power_of_two(z.to(tl.int32, bitcast=True) + 64) * 5.421010862427522e-20
    y = at_least(x, -14.0) * tl.where(x < 0, tail, 1.0 - tail)
    return tl.where(x == float("-inf"), chips_nan(x), y)
