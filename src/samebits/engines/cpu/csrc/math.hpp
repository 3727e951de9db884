// exp2, exp, log and their relatives on sixteen fp32 lanes: the same bits on every instruction set.
//
// Each function is range reduction, one fixed polynomial in explicit fma, and integer exponent
// assembly; lane l of the result depends on lane l of the arguments alone. The polynomials are
// minimax fits (Remez) with coefficients rounded to fp32 one after the other, the rest being fitted
// again each time; the errors are measured in docs/measured.md. contract/functions.py is the exact twin.
// The only bits that are not defined are a NaN's payload and sign: store() makes it canonical.
#pragma once
#include "vec.hpp"

namespace samebits::SB_ISA {

static inline I16 set_exponent(I16 n) { return shl<23>(add_i(n, set1_i(127))); }

/// v * 2^n for -252 <= n <= 254. The first product is exact when |v| is in [0.5, 2], so a result
/// in the subnormal range is rounded once.
static inline F16 scale(F16 v, I16 n) {
  I16 half = sar<1>(n);
  return mul(mul(v, as_float(set_exponent(half))), as_float(set_exponent(sub_i(n, half))));
}

/// The argument kept inside [lo, hi]; a NaN stays.
static inline F16 clamp(F16 x, float lo, float hi) {
  return vmin(set1(hi), vmax(set1(lo), x));
}

/// A power as significand * 2^exponent, so that users can fold factors in before scaling.
struct Power {
  F16 significand;
  I16 exponent;
};

/// 2^f for f in [-0.5, 0.5]; relative error of the polynomial 2^-28.3.
static inline F16 exp2_poly(F16 f) {
  F16 p = set1(0x1.417a70p-13f);
  p = fma(p, f, set1(0x1.5f0948p-10f));
  p = fma(p, f, set1(0x1.3b2dd2p-7f));
  p = fma(p, f, set1(0x1.c6af7ap-5f));
  p = fma(p, f, set1(0x1.ebfbdcp-3f));
  p = fma(p, f, set1(0x1.62e430p-1f));
  return fma(p, f, set1(1.0f));
}

/// (e^r - 1 - r) / r^2 for |r| <= ln(2) / 2.
static inline F16 expm1_poly(F16 r) {
  F16 p = set1(0x1.6b6982p-10f);
  p = fma(p, r, set1(0x1.122f1ep-7f));
  p = fma(p, r, set1(0x1.55568cp-5f));
  p = fma(p, r, set1(0x1.5554a4p-3f));
  return fma(p, r, set1(0.5f));
}

/// x = n ln(2) + r, |r| <= ln(2) / 2, for |x| < 2^14. Cody and Waite with two constants.
struct Reduced {
  F16 n, r;
};
static inline Reduced reduce_ln2(F16 x) {
  F16 n = round(mul(x, set1(0x1.715476p+0f)));
  F16 r = fma(n, set1(-0x1.62e400p-1f), x);  // 15 bits: n * hi is exact
  return {n, fma(n, set1(-0x1.7f7d1cp-20f), r)};
}

static inline Power exp2_parts(F16 x) {  // |x| < 2^22 or NaN
  F16 n = round(x);
  return {exp2_poly(sub(x, n)), round_i(n)};
}
/// e^x = (1 + significand) * 2^exponent.
static inline Power expm1_parts(F16 x) {  // |x| < 2^14 or NaN
  Reduced t = reduce_ln2(x);
  return {fma(expm1_poly(t.r), mul(t.r, t.r), t.r), round_i(t.n)};
}
/// 2^x. Subnormal results are rounded once; x < -150 gives +0, x >= 128 gives Inf.
static inline F16 exp2(F16 x) {
  Power p = exp2_parts(clamp(x, -160.0f, 130.0f));
  return scale(p.significand, p.exponent);
}

/// 2^x for x <= 127 with x < -126 giving exactly +0: attention's softmax weights. A NaN stays.
static inline F16 exp2_flush(F16 x) {
  F16 n = round(vmax(set1(-127.0f), x));
  F16 p = exp2_poly(sub(vmax(set1(-127.0f), x), n));
  F16 y = as_float(add_i(as_int(p), shl<23>(round_i(n))));
  y = select(lt(x, set1(-126.0f)), zero(), y);
  return select(is_nan(x), x, y);
}

/// e^x.
static inline F16 exp(F16 x) {
  Power p = expm1_parts(clamp(x, -110.0f, 90.0f));
  return scale(add(p.significand, set1(1.0f)), p.exponent);
}

/// e^x with fewer steps than exp: +0 from 2^-127 down, Inf from 2^128 up. A NaN stays.
static inline F16 exp_flush(F16 x) {
  const F16 rounding = set1(0x1.8p23f);  // leaves the nearest integer
  x = clamp(x, -88.0f, 89.0f);
  F16 n = sub(fma(x, set1(0x1.715476p+0f), rounding), rounding);
  F16 r = fma(n, set1(-0x1.7f7d1cp-20f), fma(n, set1(-0x1.62e400p-1f), x));
  F16 y = add(fma(expm1_poly(r), mul(r, r), r), set1(1.0f));
  return mul(y, as_float(set_exponent(round_i(n))));
}

/// log(1 + f) + n ln(2) for f in [sqrt(1/2) - 1, sqrt(2) - 1].
static inline F16 log_parts(F16 f, F16 n) {
  F16 p = set1(0x1.147dd0p-4f);
  p = fma(p, f, set1(-0x1.de2584p-4f));
  p = fma(p, f, set1(0x1.e6cda8p-4f));
  p = fma(p, f, set1(-0x1.fc24b4p-4f));
  p = fma(p, f, set1(0x1.233aacp-3f));
  p = fma(p, f, set1(-0x1.555c52p-3f));
  p = fma(p, f, set1(0x1.99a47ep-3f));
  p = fma(p, f, set1(-0x1.000006p-2f));
  p = fma(p, f, set1(0x1.555548p-2f));
  F16 z = mul(f, f);
  F16 t = fma(mul(p, f), z, mul(n, set1(0x1.7f7d1cp-20f)));
  t = fma(z, set1(-0.5f), t);
  return fma(n, set1(0x1.62e400p-1f), add(f, t));
}

/// The binary exponent that leaves a significand in [sqrt(1/2), sqrt(2)), of a positive normal x.
static inline I16 log_exponent(F16 x) {
  return sar<23>(sub_i(as_int(x), set1_i(0x3f3504f3)));
}

/// What log and log1p share: `y` for arguments in their domain, else Inf, -Inf at `pole`, or NaN.
static inline F16 log_specials(F16 x, float pole, F16 y) {
  const F16 inf = set1(__builtin_inff());
  y = select(eq(x, inf), inf, y);
  y = select(eq(x, set1(pole)), neg(inf), y);
  return select(le(set1(pole), x), y, set1(bit_float(kNan32)));
}

/// Natural logarithm, subnormal arguments included. log(+-0) = -Inf, log(x < 0) = NaN.
static inline F16 log(F16 x) {
  M16 tiny = lt(x, set1(0x1p-126f));
  F16 v = select(tiny, mul(x, set1(0x1p24f)), x);
  I16 n = log_exponent(v);
  F16 m = as_float(sub_i(as_int(v), shl<23>(n)));
  F16 e = add(to_float(n), select(tiny, set1(-24.0f), zero()));
  return log_specials(x, 0.0f, log_parts(sub(m, set1(1.0f)), e));
}

/// log(1 + x). With 1 + x = 2^n (1 + f), f is one fma and exact where n = 0.
static inline F16 log1p(F16 x) {
  const F16 one = set1(1.0f);
  I16 n = log_exponent(add(one, x)), half = sar<1>(n), rest = sub_i(n, half);
  F16 s1 = as_float(set_exponent(sub_i(set1_i(0), half))), s2 = as_float(set_exponent(sub_i(set1_i(0), rest)));
  F16 f = fma(mul(x, s1), s2, sub(mul(s1, s2), one));
  F16 y = log_specials(x, -1.0f, log_parts(f, to_float(n)));
  return select(eq(x, zero()), x, y);
}

}  // namespace samebits::SB_ISA
