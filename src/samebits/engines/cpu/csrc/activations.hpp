// Activation functions and the derivatives that torch fuses, rounded once to fp32.
//
// Where torch gives NaN for -Inf (x * 0 in the limit), so do these.
#pragma once
#include "trig.hpp"

namespace samebits::SB_ISA {

constexpr double kGelu0 = 0x1.9884533d43651p-1, kGelu1 = 0x1.6e4e26d4801f7p-5;  // sqrt(2/pi), 0.044715

static inline D16 one_d() { return set1_d(1.0); }
static inline F16 at_least(F16 x, float low) { return vmax(set1(low), x); }  // a NaN stays
static inline F16 nan_at_minus_inf(F16 x, F16 y) { return select(eq(x, neg(inf())), nan(), y); }
static inline D16 exp_minus(F16 x) { return exp_d(neg(widen(x))); }

static inline F16 tanh(F16 x) {
  D16 v = widen(clamp(abs(x), 0.0f, 20.0f)), e = expm1_d(add(v, v));
  return with_sign(narrow(div(e, add(e, set1_d(2.0)))), x);
}
// sigmoid, silu and softplus are on the hot path of models, so they stay in fp32 (errors < 2 ulp).
/// v / (1 + e^-x). With e^-x = (1 + p) 2^n it is v / (1 + (p + 2^-n)) 2^-n: one code for both signs,
/// few roundings, and nothing underflows before the result does. For x > 60 it is v.
static inline F16 times_sigmoid(F16 v, F16 x) {
  Power t = expm1_parts(clamp(neg(x), -60.0f, 110.0f));
  I16 n = sub_i(set1_i(0), t.exponent), half = sar<1>(n);
  F16 s1 = as_float(set_exponent(half)), s2 = as_float(set_exponent(sub_i(n, half)));
  F16 denominator = add(set1(1.0f), add(t.significand, mul(s1, s2)));
  return mul(mul(div(v, denominator), s1), s2);
}
static inline F16 sigmoid(F16 x) { return times_sigmoid(set1(1.0f), x); }
static inline F16 silu(F16 x) {
  return nan_at_minus_inf(x, times_sigmoid(at_least(x, -110.0f), x));
}
/// v sigmoid(x): torch's gated linear unit, rounded once.
static inline F16 glu(F16 v, F16 x) {
  return narrow(div(widen(v), add(one_d(), exp_minus(clamp(x, -600.0f, 600.0f)))));
}
/// x sigmoid(2 sqrt(2/pi) (x + 0.044715 x^3)) = x/2 (1 + tanh(...)), without its cancellation.
static inline D16 gelu_exponent(D16 v) {
  return mul(v, fma(mul(v, v), set1_d(2 * kGelu0 * kGelu1), set1_d(2 * kGelu0)));
}
static inline F16 gelu_tanh(F16 x) {
  D16 e = exp_d(neg(gelu_exponent(widen(clamp(x, -12.0f, 12.0f)))));
  return nan_at_minus_inf(x, narrow(div(widen(at_least(x, -12.0f)), add(one_d(), e))));
}
struct Normal {
  D16 cdf, bell;  // Phi(x) and exp(-x^2 / 2), for |x| <= 15
};
static inline Normal normal(F16 x) {
  D16 v = widen(clamp(abs(x), 0.0f, 15.0f));
  D16 bell = exp_d(mul(mul(v, v), set1_d(-0.5)));
  D16 tail = mul(mul(bell, set1_d(0.5)), erfcx_d(mul(v, set1_d(0x1.6a09e667f3bcdp-1))));
  M16 below = lt(x, zero());
  D16 cdf = fma(widen(select(below, set1(1.0f), set1(-1.0f))), tail,
                widen(select(below, zero(), set1(1.0f))));
  return {cdf, bell};
}
static inline F16 gelu(F16 x) {
  return nan_at_minus_inf(x, narrow(mul(widen(at_least(x, -15.0f)), normal(x).cdf)));
}
static inline F16 mish(F16 x) {
  D16 w = exp_d(widen(clamp(x, -110.0f, 40.0f))), g = mul(w, add(w, set1_d(2.0)));
  D16 y = div(mul(widen(at_least(x, -110.0f)), g), add(g, set1_d(2.0)));
  return nan_at_minus_inf(x, narrow(y));
}
/// log(1 + e^t) / beta with t = beta x; x itself where t > threshold.
static inline F16 softplus(F16 x, float beta, float threshold) {
  F16 t = mul(x, set1(beta));
  F16 y = add(vmax(t, zero()), log1p(exp(neg(abs(t)))));
  return select(lt(set1(threshold), t), x, div(y, set1(beta)));
}
/// x >= 0: positive * x; below: negative * (e^(input * x) - 1).
static inline F16 elu(F16 x, float negative, float positive, float input) {
  D16 e = expm1_d(widen(clamp(mul(x, set1(input)), -40.0f, 90.0f)));
  return select(le(zero(), x), mul(x, set1(positive)), narrow(mul(e, set1_d(negative))));
}
static inline F16 softshrink(F16 x, float lambda) {
  F16 l = set1(lambda), y = mul(x, zero());  // NaN stays
  y = select(lt(l, x), sub(x, l), y);
  return select(lt(x, neg(l)), add(x, l), y);
}
/// log(x / (1 - x)); with eps >= 0, x is first clamped to [eps, 1 - eps].
static inline F16 logit(F16 x, float eps) {
  const F16 half = set1(0.5f), one = set1(1.0f);
  if (eps >= 0.0f) x = clamp(x, eps, 1.0f - eps);
  F16 q = select(lt(half, x), sub(one, x), x);  // the smaller of x and 1 - x, exactly
  D16 v = widen(q);
  F16 y = narrow(log1p_d(div(fma(v, set1_d(-2.0), one_d()), v)));
  y = select(eq(q, zero()), inf(), y);
  y = select(lt(x, half), neg(y), y);
  return select(le(zero(), q), y, nan());
}
static inline F16 square(F16 x) { return mul(x, x); }
static inline F16 cube(F16 x) { return mul(mul(x, x), x); }
static inline F16 square_root(F16 x) { return sqrt(x); }
static inline F16 reciprocal(F16 x) { return div(set1(1.0f), x); }
static inline F16 inverse_square(F16 x) { return div(set1(1.0f), mul(x, x)); }
static inline F16 pow_exponent(F16 x, float y) { return pow(x, set1(y)); }
static inline F16 pow_base(F16 y, float x) { return pow(set1(x), y); }

// ---- derivatives: g is the gradient of the result ----
static inline F16 times(F16 g, D16 derivative) { return narrow(mul(widen(g), derivative)); }

static inline F16 silu_backward(F16 g, F16 x) {
  F16 c = clamp(x, -110.0f, 110.0f);
  D16 e = exp_minus(c), s = div(one_d(), add(one_d(), e));
  return times(g, mul(s, fma(widen(c), mul(e, s), one_d())));
}
static inline F16 gelu_backward(F16 g, F16 x) {
  Normal n = normal(x);
  D16 density = mul(n.bell, set1_d(0x1.9884533d43651p-2));  // 1 / sqrt(2 pi)
  return times(g, fma(widen(clamp(x, -15.0f, 15.0f)), density, n.cdf));
}
static inline F16 gelu_tanh_backward(F16 g, F16 x) {
  D16 v = widen(clamp(x, -12.0f, 12.0f));
  D16 e = exp_d(neg(gelu_exponent(v))), s = div(one_d(), add(one_d(), e));
  D16 slope = fma(mul(v, v), set1_d(6 * kGelu0 * kGelu1), set1_d(2 * kGelu0));
  return times(g, mul(s, fma(mul(v, mul(e, s)), slope, one_d())));
}
static inline F16 mish_backward(F16 g, F16 x) {
  D16 v = widen(clamp(x, -110.0f, 40.0f)), w = exp_d(v), h = mul(w, add(w, set1_d(2.0)));
  D16 d = add(h, set1_d(2.0));
  D16 bend = div(mul(mul(v, set1_d(4.0)), mul(w, add(one_d(), w))), d);
  return times(g, div(add(h, bend), d));
}
static inline F16 softplus_backward(F16 g, F16 x, float beta, float threshold) {
  F16 t = mul(x, set1(beta));
  F16 y = narrow(div(widen(g), add(one_d(), exp_minus(clamp(t, -110.0f, 110.0f)))));
  return select(lt(set1(threshold), t), g, y);
}
static inline F16 elu_backward(F16 g, F16 x, float negative, float positive, float input) {
  D16 e = exp_d(widen(clamp(mul(x, set1(input)), -110.0f, 90.0f)));
  F16 y = times(g, mul(e, mul(set1_d(input), set1_d(negative))));
  return select(lt(zero(), x), mul(g, set1(positive)), y);
}
static inline F16 elu_backward_result(F16 g, F16 y, float negative, float positive, float input) {
  D16 d = mul(add(widen(y), set1_d(negative)), set1_d(input));
  return select(lt(zero(), y), mul(g, set1(positive)), times(g, d));
}
static inline F16 logit_backward(F16 g, F16 x, float eps) {
  const bool clamped = eps >= 0.0f;
  F16 low = set1(clamped ? eps : 0.0f), high = set1(clamped ? 1.0f - eps : 1.0f);
  D16 v = widen(x);
  F16 y = narrow(div(widen(g), mul(v, sub(one_d(), v))));
  return select(m_or(lt(x, low), lt(high, x)), clamped ? zero() : nan(), y);
}
static inline F16 hardtanh_backward(F16 g, F16 x, float low, float high) {
  return select(m_or(le(x, set1(low)), le(set1(high), x)), zero(), g);
}
static inline F16 shrink_backward(F16 g, F16 x, float lambda) {
  return select(le(abs(x), set1(lambda)), zero(), g);
}
static inline F16 hardswish_backward(F16 g, F16 x) {
  const F16 three = set1(3.0f);
  F16 y = mul(g, add(div(x, three), set1(0.5f)));
  return select(le(x, neg(three)), zero(), select(le(three, x), g, y));
}
/// IEEE 754-2019 maximum: NaN wins, +0 is above -0.
static inline F16 maximum(F16 a, F16 b) {
  F16 y = select(eq(a, b), as_float(and_i(as_int(a), as_int(b))), vmax(a, b));
  return select(m_or(is_nan(a), is_nan(b)), nan(), y);
}
static inline F16 minimum(F16 a, F16 b) {
  F16 y = select(eq(a, b), as_float(or_i(as_int(a), as_int(b))), vmin(a, b));
  return select(m_or(is_nan(a), is_nan(b)), nan(), y);
}
static inline F16 add_scaled(F16 a, F16 b, float alpha) { return add(a, mul(b, set1(alpha))); }

}  // namespace samebits::SB_ISA
