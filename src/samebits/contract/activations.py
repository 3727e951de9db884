"""Activation functions and their fused derivatives: exact twins in NumPy of csrc/activations.hpp.

Parameters are fp32, as the engine takes them. `g` is the gradient of the result.
"""

from __future__ import annotations

import numpy as np

from samebits.contract.functions import (
    _EXPM1,
    LN2_HIGH,
    LN2_LOW,
    LOG2E,
    _integers,
    _log_parts,
    _power,
    clamp,
    exp,
    nearest,
    polynomial,
)
from samebits.contract.functions64 import (
    erfcx64,
    exp64,
    expm1_64,
    fma64,
    log1p_64,
    log_exponent,
    log_specials,
    narrow,
    pow,
    widen,
)
from samebits.contract.numerics import (
    CANONICAL_NAN,
    F32,
    F64,
    Array,
    add32,
    div32,
    fma32,
    mul32,
    sub32,
)

_GELU0 = float.fromhex("0x1.9884533d43651p-1")  # sqrt(2 / pi)
_GELU1 = float.fromhex("0x1.6e4e26d4801f7p-5")  # 0.044715
_ONE = np.float32(1)


def _f32(x: Array | float) -> F32:
    return np.asarray(x, np.float32)


def _param(p: float) -> float:
    return float(np.float32(p))


def _at_least(x: Array, low: float) -> F32:
    x = _f32(x)
    return np.where(x < np.float32(low), np.float32(low), x)


def _nan_at_minus_inf(x: Array, y: F32) -> F32:
    return np.where(_f32(x) == -np.inf, CANONICAL_NAN, y)


def _times(g: Array, derivative: F64) -> F32:
    with np.errstate(all="ignore"):
        return narrow(widen(g) * derivative)


def log1p(x: Array) -> F32:
    """log(1 + x) in fp32."""
    x = _f32(x)
    n = log_exponent(add32(_ONE, x)).astype(np.int64)
    half = n >> 1
    s1, s2 = _power(-half), _power(half - n)
    f = fma32(mul32(x, s1), s2, sub32(mul32(s1, s2), _ONE))
    y = log_specials(x, -1.0, _log_parts(f, n.astype(np.float32)))
    return np.where(x == 0, x, y)


def _times_sigmoid(v: Array, x: Array) -> F32:
    """v / (1 + e^-x) = v / (1 + (p + 2^-n)) 2^-n with e^-x = (1 + p) 2^n."""
    t = clamp(-_f32(x), -60.0, 110.0)
    n = nearest(mul32(t, LOG2E))
    r = fma32(n, -LN2_LOW, fma32(n, -LN2_HIGH, t))
    p = fma32(polynomial(r, _EXPM1), mul32(r, r), r)
    down = -_integers(n)
    half = down >> 1
    s1, s2 = _power(half), _power(down - half)
    return mul32(mul32(div32(v, add32(_ONE, add32(p, mul32(s1, s2)))), s1), s2)


def sigmoid(x: Array) -> F32:
    """1 / (1 + e^-x)."""
    return _times_sigmoid(np.ones_like(_f32(x)), x)


def silu(x: Array) -> F32:
    """x / (1 + e^-x)."""
    return _nan_at_minus_inf(x, _times_sigmoid(_at_least(x, -110.0), x))


def glu(v: Array, x: Array) -> F32:
    """v / (1 + e^-x), rounded once."""
    with np.errstate(all="ignore"):
        return narrow(widen(v) / (1.0 + exp64(-widen(clamp(x, -600.0, 600.0)))))


def _gelu_exponent(v: F64) -> F64:
    return v * fma64(v * v, 2 * _GELU0 * _GELU1, 2 * _GELU0)


def gelu_tanh(x: Array) -> F32:
    """x / 2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))."""
    e = exp64(-_gelu_exponent(widen(clamp(x, -12.0, 12.0))))
    return _nan_at_minus_inf(x, narrow(widen(_at_least(x, -12.0)) / (1.0 + e)))


def _normal(x: Array) -> tuple[F64, F64]:
    """Phi(x) and exp(-x^2 / 2), |x| <= 15."""
    v = widen(clamp(np.abs(x), 0.0, 15.0))
    bell = exp64((v * v) * -0.5)
    tail = (bell * 0.5) * erfcx64(v * float.fromhex("0x1.6a09e667f3bcdp-1"))
    below = np.asarray(x) < 0
    return fma64(np.where(below, 1.0, -1.0), tail, np.where(below, 0.0, 1.0)), bell


def gelu(x: Array) -> F32:
    """x Phi(x)."""
    with np.errstate(all="ignore"):
        return _nan_at_minus_inf(x, narrow(widen(_at_least(x, -15.0)) * _normal(x)[0]))


def mish(x: Array) -> F32:
    """x tanh(log(1 + e^x)) = x g / (g + 2) with g = w (w + 2), w = e^x."""
    w = exp64(widen(clamp(x, -110.0, 40.0)))
    g = w * (w + 2.0)
    return _nan_at_minus_inf(x, narrow(widen(_at_least(x, -110.0)) * g / (g + 2.0)))


def softplus(x: Array, beta: float, threshold: float) -> F32:
    """log(1 + e^t) / beta with t = beta x; x where t > threshold."""
    x, beta32 = _f32(x), _f32(beta)
    t = mul32(x, beta32)
    y = add32(np.where(t > 0, t, np.float32(0)), log1p(exp(-np.abs(t))))
    return np.where(t > _f32(threshold), x, div32(y, beta32))


def elu(x: Array, negative: float, positive: float, input_scale: float) -> F32:
    """positive x for x >= 0, else negative (e^(input_scale x) - 1)."""
    x = _f32(x)
    e = expm1_64(widen(clamp(mul32(x, _f32(input_scale)), -40.0, 90.0)))
    return np.where(x >= 0, mul32(x, _f32(positive)), narrow(e * _param(negative)))


def softshrink(x: Array, lambd: float) -> F32:
    """x moved towards 0 by lambd, 0 (with x's sign) inside."""
    x, limit = _f32(x), _f32(lambd)
    y = np.where(x > limit, sub32(x, limit), mul32(x, np.float32(0)))
    return np.where(x < -limit, add32(x, limit), y)


def logit(x: Array, eps: float) -> F32:
    """log(x / (1 - x)); eps >= 0 clamps x to [eps, 1 - eps] first."""
    x = _f32(x)
    if eps >= 0:
        x = clamp(x, float(_f32(eps)), float(sub32(_ONE, _f32(eps))))
    half = np.float32(0.5)
    q = np.where(x > half, sub32(_ONE, x), x)
    v = widen(q)
    with np.errstate(all="ignore"):
        y = narrow(log1p_64(fma64(v, -2.0, 1.0) / v))
    y = np.where(q == 0, np.float32(np.inf), y)
    y = np.where(x < half, -y, y)
    return np.where(q >= 0, y, CANONICAL_NAN)


def rsqrt(x: Array) -> F32:
    """1 / sqrt(x), two IEEE operations."""
    with np.errstate(all="ignore"):
        return div32(_ONE, np.sqrt(_f32(x)))


def square(x: Array) -> F32:
    """x x."""
    return mul32(x, x)


def cube(x: Array) -> F32:
    """(x x) x."""
    return mul32(mul32(x, x), x)


def square_root(x: Array) -> F32:
    """IEEE square root."""
    with np.errstate(all="ignore"):
        return add32(np.sqrt(_f32(x)), np.float32(-0.0))


def reciprocal(x: Array) -> F32:
    """1 / x."""
    return div32(_ONE, x)


def inverse_square(x: Array) -> F32:
    """1 / (x x)."""
    return div32(_ONE, mul32(x, x))


def pow_exponent(x: Array, y: float) -> F32:
    """x^y."""
    return pow(x, np.full_like(_f32(x), y))


def pow_base(y: Array, x: float) -> F32:
    """x^y."""
    return pow(np.full_like(_f32(y), x), y)


# ---- derivatives -------------------------------------------------------------------------------


def silu_backward(g: Array, x: Array) -> F32:
    """g s (1 + x (1 - s)) with s = sigmoid(x)."""
    v = widen(clamp(x, -110.0, 110.0))
    e = exp64(-v)
    s = 1.0 / (1.0 + e)
    return _times(g, s * fma64(v, e * s, 1.0))


def gelu_backward(g: Array, x: Array) -> F32:
    """g (Phi(x) + x phi(x))."""
    cdf, bell = _normal(x)
    density = bell * float.fromhex("0x1.9884533d43651p-2")
    return _times(g, fma64(widen(clamp(x, -15.0, 15.0)), density, cdf))


def gelu_tanh_backward(g: Array, x: Array) -> F32:
    """Derivative of gelu_tanh."""
    v = widen(clamp(x, -12.0, 12.0))
    e = exp64(-_gelu_exponent(v))
    s = 1.0 / (1.0 + e)
    slope = fma64(v * v, 6 * _GELU0 * _GELU1, 2 * _GELU0)
    return _times(g, s * fma64(v * (e * s), slope, 1.0))


def mish_backward(g: Array, x: Array) -> F32:
    """Derivative of mish."""
    v = widen(clamp(x, -110.0, 40.0))
    w = exp64(v)
    h = w * (w + 2.0)
    d = h + 2.0
    bend = (v * 4.0) * (w * (1.0 + w)) / d
    return _times(g, (h + bend) / d)


def softplus_backward(g: Array, x: Array, beta: float, threshold: float) -> F32:
    """g sigmoid(beta x); g where beta x > threshold."""
    t = mul32(x, _f32(beta))
    with np.errstate(all="ignore"):
        y = narrow(widen(g) / (1.0 + exp64(-widen(clamp(t, -110.0, 110.0)))))
    return np.where(t > _f32(threshold), _f32(g), y)


def elu_backward(g: Array, x: Array, negative: float, positive: float, scale: float) -> F32:
    """Derivative of elu, from its argument."""
    x = _f32(x)
    e = exp64(widen(clamp(mul32(x, _f32(scale)), -110.0, 90.0)))
    y = _times(g, e * (_param(scale) * _param(negative)))
    return np.where(x > 0, mul32(g, _f32(positive)), y)


def elu_backward_result(g: Array, y: Array, negative: float, positive: float, scale: float) -> F32:
    """Derivative of elu, from its result."""
    d = (widen(y) + _param(negative)) * _param(scale)
    return np.where(_f32(y) > 0, mul32(g, _f32(positive)), _times(g, d))


def logit_backward(g: Array, x: Array, eps: float) -> F32:
    """g / (x (1 - x)); outside the clamped range 0, outside [0, 1] NaN."""
    x = _f32(x)
    low, high = (_f32(eps), sub32(_ONE, _f32(eps))) if eps >= 0 else (_f32(0), _ONE)
    v = widen(x)
    with np.errstate(all="ignore"):
        y = narrow(widen(g) / (v * (1.0 - v)))
    outside = np.float32(0) if eps >= 0 else CANONICAL_NAN
    return np.where((x < low) | (x > high), outside, y)


def hardtanh_backward(g: Array, x: Array, low: float, high: float) -> F32:
    """g inside (low, high), else 0."""
    x = _f32(x)
    return np.where((x <= _f32(low)) | (x >= _f32(high)), np.float32(0), _f32(g))


def shrink_backward(g: Array, x: Array, lambd: float) -> F32:
    """g outside [-lambd, lambd], else 0."""
    return np.where(np.abs(_f32(x)) <= _f32(lambd), np.float32(0), _f32(g))


def hardswish_backward(g: Array, x: Array) -> F32:
    """Derivative of x relu6(x + 3) / 6."""
    x, g = _f32(x), _f32(g)
    y = mul32(g, add32(div32(x, np.float32(3)), np.float32(0.5)))
    return np.where(x <= -3, np.float32(0), np.where(x >= 3, g, y))


def add_scaled(a: Array, b: Array, alpha: float) -> F32:
    """a + alpha b, two IEEE operations."""
    return add32(a, mul32(b, _f32(alpha)))


def _extreme(a: Array, b: Array, larger: bool) -> F32:
    a, b = _f32(a), _f32(b)
    first = (a > b) if larger else (a < b)
    zero = np.copysign(np.float32(0), np.where(np.signbit(a) == larger, b, a))
    y = np.where((a == 0) & (b == 0), zero, np.where(first, a, b))
    return np.where(np.isnan(a) | np.isnan(b), CANONICAL_NAN, y)


def maximum(a: Array, b: Array) -> F32:
    """The larger; NaN wins, +0 is above -0."""
    return _extreme(a, b, True)


def minimum(a: Array, b: Array) -> F32:
    """The smaller; NaN wins, -0 is below +0."""
    return _extreme(a, b, False)
