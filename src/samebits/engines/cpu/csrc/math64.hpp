// Elementary functions that reduce or cancel in fp64 and round once to fp32 (error <= 0.51 ulp).
//
// fp64 gives ~29 spare bits, so plain formulas stay accurate where fp32 would need double-float
// tricks: log1p(a) of a computed `a`, 1 - erfc, x * Phi(x) far in the tail, powers. A function is
// `narrow` of such a formula plus fp32 selects for special values.
#pragma once
#include "math.hpp"
#include "vec64.hpp"

namespace samebits::SB_ISA {

constexpr float kMax = 0x1.fffffep127f;
constexpr double kLn2 = 0x1.62e42fefa39efp-1, kLog2e = 0x1.71547652b82fep+0;
constexpr double kPi = 0x1.921fb54442d18p+1;

static inline F16 inf() { return set1(__builtin_inff()); }
static inline F16 nan() { return set1(bit_float(kNan32)); }
/// |magnitude| with the sign of x.
static inline F16 with_sign(F16 magnitude, F16 x) {
  const I16 sign = set1_i(INT32_MIN);
  return as_float(or_i(as_int(abs(magnitude)), and_i(as_int(x), sign)));
}
static inline M16 sign_bit(F16 x) { return lt_i(as_int(x), set1_i(0)); }
static inline I16 to_int(D16 n) { return round_i(narrow(n)); }
static inline D16 neg(D16 a) { return sub(set1_d(-0.0), a); }

template <int N>
static inline D16 poly(D16 x, const double (&c)[N]) {  // c[0] + c[1] x + ..., Horner
  D16 y = set1_d(c[N - 1]);
  for (int i = N - 2; i >= 0; --i) y = fma(y, x, set1_d(c[i]));
  return y;
}

// ---- exponentials ----
/// e^r - 1 for |r| <= ln(2) / 2, relative error 2^-37.
static inline D16 expm1_reduced(D16 r) {
  static constexpr double c[] = {0x1.0000000017164p-1, 0x1.5555557350b50p-3, 0x1.555554f374d47p-5,
                                 0x1.1110b221053b1p-7, 0x1.6c1766c712966p-10, 0x1.a16f652f9f1bbp-13,
                                 0x1.a0039e9a102a3p-16};
  return fma(poly(r, c), mul(r, r), r);
}
static inline D16 exp_d(D16 x) {  // |x| < 700
  D16 n = round_d(mul(x, set1_d(kLog2e)));
  D16 p = expm1_reduced(fma(n, set1_d(-kLn2), x));
  return mul(add(p, set1_d(1.0)), pow2_d(to_int(n)));
}
static inline D16 expm1_d(D16 x) {
  D16 n = round_d(mul(x, set1_d(kLog2e)));
  D16 p = expm1_reduced(fma(n, set1_d(-kLn2), x)), s = pow2_d(to_int(n));
  return fma(p, s, sub(s, set1_d(1.0)));
}
static inline D16 exp2_d(D16 x) {
  D16 n = round_d(x);
  D16 p = expm1_reduced(mul(sub(x, n), set1_d(kLn2)));
  return mul(add(p, set1_d(1.0)), pow2_d(to_int(n)));
}

static inline F16 expm1(F16 x) {
  F16 y = narrow(expm1_d(widen(clamp(x, -40.0f, 90.0f))));
  return select(eq(x, zero()), x, y);
}
static inline F16 sinh(F16 x) {
  D16 e = expm1_d(widen(clamp(abs(x), 0.0f, 91.0f)));
  return with_sign(narrow(mul(add(e, div(e, add(e, set1_d(1.0)))), set1_d(0.5))), x);
}
static inline F16 cosh(F16 x) {
  D16 e = exp_d(widen(clamp(abs(x), 0.0f, 91.0f)));
  return narrow(mul(add(e, div(set1_d(1.0), e)), set1_d(0.5)));
}

// ---- logarithms ----
/// log((1 + s) / (1 - s)) for |s| <= 0.175, relative error 2^-44.
static inline D16 log_ratio(D16 s) {
  static constexpr double c[] = {0x1p+0, 0x1.555555564a25dp-2, 0x1.99999627b3fedp-3,
                                 0x1.24944c2a289b7p-3, 0x1.c616c79c51955p-4, 0x1.9249f2703db83p-4};
  return mul(add(s, s), poly(mul(s, s), c));
}
struct LogParts {
  D16 n, fraction;  // x = 2^n m, fraction = log(m), m in [sqrt(1/2), sqrt(2))
};
static inline LogParts split_log(F16 x) {  // finite x > 0; others give finite garbage
  M16 tiny = lt(x, set1(0x1p-126f));
  F16 v = select(tiny, mul(x, set1(0x1p24f)), x);
  I16 n = log_exponent(v);
  D16 m = widen(as_float(sub_i(as_int(v), shl<23>(n)))), one = set1_d(1.0);
  I16 e = add_i(n, select_i(tiny, set1_i(-24), set1_i(0)));
  return {to_double(e), log_ratio(div(sub(m, one), add(m, one)))};
}
static inline D16 log2_d(F16 x) {
  LogParts p = split_log(x);
  return fma(p.fraction, set1_d(kLog2e), p.n);
}
/// log(1 + a) for 2^-50 < 1 + a < 2^150, accurate for small a.
static inline D16 log1p_d(D16 a) {
  F16 u = narrow(mul(add(a, set1_d(1.0)), set1_d(0x1p-30)));
  I16 n = add_i(log_exponent(u), set1_i(30));
  D16 s = pow2_d(sub_i(set1_i(0), n));
  D16 f = fma(a, s, sub(s, set1_d(1.0)));  // (1 + a) 2^-n - 1
  return fma(to_double(n), set1_d(kLn2), log_ratio(div(f, add(f, set1_d(2.0)))));
}

static inline F16 log2(F16 x) { return log_specials(x, 0.0f, narrow(log2_d(x))); }
static inline F16 log10(F16 x) {
  LogParts p = split_log(x);
  D16 y = fma(p.n, set1_d(0x1.34413509f79ffp-2), mul(p.fraction, set1_d(0x1.bcb7b1526e50ep-2)));
  return log_specials(x, 0.0f, narrow(y));
}
static inline F16 asinh(F16 x) {
  F16 a = abs(x);
  D16 v = widen(clamp(a, 0.0f, kMax)), one = set1_d(1.0), z = mul(v, v);
  D16 y = log1p_d(add(v, div(z, add(one, sqrt(add(z, one))))));
  return with_sign(select(eq(a, inf()), a, narrow(y)), x);
}
static inline F16 acosh(F16 x) {
  D16 t = sub(widen(x), set1_d(1.0));
  F16 y = narrow(log1p_d(add(t, sqrt(mul(t, add(t, set1_d(2.0)))))));
  y = select(eq(x, inf()), x, y);
  return select(lt(x, set1(1.0f)), nan(), y);
}
static inline F16 atanh(F16 x) {
  F16 a = abs(x), one = set1(1.0f);
  D16 v = widen(a);
  F16 y = narrow(mul(set1_d(0.5), log1p_d(div(add(v, v), sub(set1_d(1.0), v)))));
  y = select(eq(a, one), inf(), y);
  return with_sign(select(le(a, one), y, nan()), x);
}
static inline F16 logaddexp(F16 a, F16 b) {
  F16 high = vmax(a, b), low = vmax(vmin(a, b), sub(high, set1(110.0f)));
  D16 h = widen(high);
  F16 y = narrow(add(h, log1p_d(exp_d(sub(widen(low), h)))));
  y = select(eq(abs(high), inf()), high, y);
  return select(m_or(is_nan(a), is_nan(b)), nan(), y);
}
static inline F16 logaddexp2(F16 a, F16 b) {
  F16 high = vmax(a, b), low = vmax(vmin(a, b), sub(high, set1(160.0f)));
  D16 h = widen(high);
  F16 y = narrow(fma(log1p_d(exp2_d(sub(widen(low), h))), set1_d(kLog2e), h));
  y = select(eq(abs(high), inf()), high, y);
  return select(m_or(is_nan(a), is_nan(b)), nan(), y);
}
/// x log(y), and 0 where x = 0 unless y is NaN.
static inline F16 xlogy(F16 x, F16 y) {
  F16 v = select(eq(x, zero()), zero(), mul(x, log(y)));
  return select(is_nan(y), y, v);
}

// ---- powers ----
static inline F16 rsqrt(F16 x) { return div(set1(1.0f), sqrt(x)); }
static inline F16 hypot(F16 a, F16 b) {
  D16 x = widen(a), y = widen(b);
  F16 r = narrow(sqrt(fma(x, x, mul(y, y))));
  return select(m_or(eq(abs(a), inf()), eq(abs(b), inf())), inf(), r);
}
/// x^y with the special values of C's pow.
static inline F16 pow(F16 x, F16 y) {
  const F16 one = set1(1.0f);
  F16 a = abs(x);
  D16 t = mul(widen(clamp(y, -kMax, kMax)), log2_d(a));
  F16 t32 = narrow(t), r = narrow(exp2_d(t));
  r = select(lt(set1(200.0f), t32), inf(), r);
  r = select(lt(t32, set1(-200.0f)), zero(), r);
  // 0, Inf, or an infinite exponent: only the direction of growth counts
  M16 edge = m_or(m_or(eq(a, zero()), eq(a, inf())), eq(abs(y), inf()));
  F16 grow = mul(with_sign(one, y), select(lt(a, one), set1(-1.0f), one));
  r = select(edge, select(lt(zero(), grow), inf(), zero()), r);
  r = select(m_and(eq(a, one), eq(abs(y), inf())), one, r);
  F16 half = mul(y, set1(0.5f));
  M16 whole = eq(round(y), y), odd = m_and(whole, m_not(eq(round(half), half)));
  r = select(m_and(odd, sign_bit(x)), neg(r), r);
  M16 undefined = m_and(m_and(lt(x, zero()), m_not(whole)), lt(a, inf()));
  r = select(undefined, nan(), r);
  r = select(m_or(is_nan(x), is_nan(y)), nan(), r);
  return select(m_or(eq(y, zero()), eq(x, one)), one, r);
}

// ---- error function ----
/// e^(z*z) erfc(z) for 0 <= z <= 10.8, relative error 2^-34.
static inline D16 erfcx_d(D16 z) {
  static constexpr double c[] = {
      0x1.6e9827d22c27bp-3,  -0x1.4e102b9ed7f04p-2, 0x1.f6ff2045912f4p-3,  -0x1.336ffb2a41b6ap-3,
      0x1.258b122b52c05p-4,  -0x1.8fa5eb842e30ep-6, 0x1.17c922eb2fd09p-8,  0x1.735d48e8b44c4p-11,
      -0x1.391b8d10c14f9p-11, 0x1.6b877c29360fcp-15, 0x1.0bd9ddb8717adp-14, -0x1.458aa23aaa4b7p-17,
      -0x1.c51b72c15ca84p-18};
  D16 three = set1_d(3.0);
  return poly(div(sub(z, three), add(z, three)), c);
}
static inline F16 erf(F16 x) {
  static constexpr double c[] = {0x1.20dd750428b1fp+0,  -0x1.812746adb208ep-2, 0x1.ce2f20974d329p-4,
                                 -0x1.b82cb8f1bc38ap-6, 0x1.56586cd79d2cap-8,  -0x1.bfdf58b6d479fp-11,
                                 0x1.f56be4c13c4edp-14, -0x1.d25cf1cc67327p-17, 0x1.1b8c413c50d62p-20};
  F16 a = clamp(abs(x), 0.0f, 4.0f);
  D16 v = widen(a), z = mul(v, v);
  F16 small = narrow(mul(v, poly(z, c)));
  F16 large = narrow(sub(set1_d(1.0), mul(exp_d(neg(z)), erfcx_d(v))));
  return with_sign(select(le(a, set1(1.0f)), small, large), x);
}
static inline F16 erfc(F16 x) {
  D16 v = widen(clamp(abs(x), 0.0f, 10.5f));
  D16 e = mul(exp_d(neg(mul(v, v))), erfcx_d(v));
  M16 below = lt(x, zero());
  return narrow(fma(widen(select(below, set1(-1.0f), set1(1.0f))), e,
                    widen(select(below, set1(2.0f), zero()))));
}

}  // namespace samebits::SB_ISA
