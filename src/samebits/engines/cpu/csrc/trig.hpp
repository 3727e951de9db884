// Circular functions and their inverses, in fp64, rounded once to fp32.
#pragma once
#include "math64.hpp"

namespace samebits::SB_ISA {

/// Angle = q * pi/2 + r with |r| <= pi/4 (q modulo 4 counts).
struct Quadrant {
  D16 r;
  I16 q;
};

/// Payne and Hanek's reduction of a finite |x| >= 2^17, in integers: the significand times the 128
/// bits of 2/pi that matter modulo 4. Leaves r as the sum of two floats.
static inline void reduce_large(float x, float* high, float* low, int32_t* q) {
  static const uint64_t two_over_pi[] = {0, 0xa2f9836e4e441529ull, 0xfc2757d1f534ddc0ull,
                                         0xdb6295993c439041ull, 0xfe5163abdebbc561ull, 0xb7246e3a424dd2e0ull};
  const uint32_t u = float_bits(x);
  const uint64_t m = (u & 0x7fffffu) | 0x800000u;
  const int start = 62 + static_cast<int>((u >> 23) & 255u) - 150;
  const uint64_t* t = two_over_pi + (start >> 6);
  const int s = start & 63;
  const uint64_t hi = s ? (t[0] << s) | (t[1] >> (64 - s)) : t[0];
  const uint64_t lo = s ? (t[1] << s) | (t[2] >> (64 - s)) : t[1];
  unsigned __int128 p = static_cast<unsigned __int128>(m) * lo;
  p += static_cast<unsigned __int128>(m * hi) << 64;
  const unsigned __int128 f = p << 2;  // the fraction, as a signed number of 2^-128
  const double fraction = static_cast<double>(static_cast<int64_t>(f >> 64)) * 0x1p64 +
                          static_cast<double>(static_cast<uint64_t>(f));
  const double r = fraction * (kPi * 0x1p-129);
  *q = static_cast<int32_t>(p >> 126) + static_cast<int32_t>(static_cast<uint64_t>(f >> 127));
  *high = static_cast<float>(r);
  *low = static_cast<float>(r - static_cast<double>(*high));
}

static inline Quadrant reduce_quadrant(F16 a) {  // a >= 0; Inf and NaN count as 0
  M16 large = m_and(le(set1(0x1p17f), a), lt(a, inf()));
  D16 x = widen(select(lt(a, set1(0x1p17f)), a, zero()));
  D16 n = round_d(mul(x, set1_d(0x1.45f306dc9c883p-1)));
  D16 r = fma(n, set1_d(-0x1.921fb54442d18p+0), x);
  r = fma(n, set1_d(-0x1.1a62633145c07p-54), r);
  I16 q = to_int(n);
  uint32_t mask = m_bits(large);
  if (mask) {
    float v[16], high[16] = {}, low[16] = {};
    int32_t quadrant[16] = {};
    store_f32(v, a);
    for (int i = 0; i < 16; ++i)
      if ((mask >> i) & 1u) reduce_large(v[i], high + i, low + i, quadrant + i);
    r = add(add(r, widen(load_f32(high))), widen(load_f32(low)));
    q = add_i(q, load_i(quadrant));
  }
  return {r, q};
}

static inline D16 sin_reduced(D16 r, D16 z) {
  static constexpr double c[] = {0x1p+0, -0x1.5555554c6ff01p-3, 0x1.11110869026dfp-7,
                                 -0x1.a00f7e0d9a9cbp-13, 0x1.6cd1af0779bfbp-19};
  return mul(r, poly(z, c));
}
static inline D16 cos_reduced(D16 z) {
  static constexpr double c[] = {0x1p+0, -0x1.ffffffffe984fp-2, 0x1.55555545c1c59p-5,
                                 -0x1.6c16b3467e0d0p-10, 0x1.a00eb87f5cc6ep-16, -0x1.23c9475bb8a3cp-22};
  return poly(z, c);
}
/// NaN for Inf and NaN, else y.
static inline F16 finite_only(F16 x, F16 y) { return select(lt(abs(x), inf()), y, nan()); }
static inline M16 is_odd(I16 q) { return eq_i(and_i(q, set1_i(1)), set1_i(1)); }

/// sin(a + quarters * pi/2), for a >= 0.
static inline F16 sin_shifted(F16 a, int quarters) {
  Quadrant t = reduce_quadrant(a);
  D16 z = mul(t.r, t.r);
  I16 q = add_i(t.q, set1_i(quarters));
  F16 y = select(is_odd(q), narrow(cos_reduced(z)), narrow(sin_reduced(t.r, z)));
  return as_float(xor_i(as_int(y), shl<30>(and_i(q, set1_i(2)))));
}
static inline F16 flip_sign(F16 y, F16 x) {
  return as_float(xor_i(as_int(y), and_i(as_int(x), set1_i(INT32_MIN))));
}
static inline F16 sin(F16 x) { return finite_only(x, flip_sign(sin_shifted(abs(x), 0), x)); }
static inline F16 cos(F16 x) { return finite_only(x, sin_shifted(abs(x), 1)); }
static inline F16 tan(F16 x) {
  Quadrant t = reduce_quadrant(abs(x));
  D16 z = mul(t.r, t.r), s = sin_reduced(t.r, z), c = cos_reduced(z);
  F16 y = select(is_odd(t.q), neg(narrow(div(c, s))), narrow(div(s, c)));
  return finite_only(x, flip_sign(y, x));
}
/// atan(a / b) for a, b >= 0, not both 0; a32 and b32 are their fp32 values.
static inline D16 atan_ratio(D16 a, D16 b, F16 a32, F16 b32) {
  static constexpr double c[] = {0x1p+0, -0x1.55555554743fbp-2, 0x1.999998787e87ap-3,
                                 -0x1.24920976b406dp-3, 0x1.c70ecdeec7fd3p-4, -0x1.738c5626c1f10p-4,
                                 0x1.33afecdbf5693p-4, -0x1.d1e89d9fc5439p-5, 0x1.c9b2829692c4dp-6};
  const F16 one = set1(1.0f), none = zero();
  M16 steep = lt(mul(b32, set1(0x1.3504f4p+1f)), a32);    // above 3 pi / 8: atan(-b / a) + pi / 2
  M16 flat = le(a32, mul(b32, set1(0x1.a8279ap-2f)));     // below pi / 8: atan(a / b)
  F16 a_up = select(steep, none, one), b_up = select(flat, none, set1(-1.0f));
  F16 a_down = select(flat, none, one), b_down = select(steep, none, one);
  F16 base = select(steep, set1(2.0f), select(flat, none, one));
  D16 up = fma(widen(b_up), b, mul(widen(a_up), a));      // between: atan((a - b) / (a + b)) + pi / 4
  D16 down = fma(widen(b_down), b, mul(widen(a_down), a));
  D16 s = div(up, down);
  return fma(widen(base), set1_d(kPi / 4), mul(s, poly(mul(s, s), c)));
}
static inline F16 atan(F16 x) {
  F16 a = clamp(abs(x), 0.0f, kMax), one = set1(1.0f);
  return with_sign(narrow(atan_ratio(widen(a), widen(one), a, one)), x);
}
/// r, or pi - r where `reflect`.
static inline F16 reflected(D16 r, M16 reflect) {
  F16 sign = select(reflect, set1(-1.0f), set1(1.0f)), turn = select(reflect, set1(1.0f), zero());
  return narrow(fma(widen(sign), r, mul(widen(turn), set1_d(kPi))));
}
static inline F16 atan2(F16 y, F16 x) {
  const F16 one = set1(1.0f);
  F16 a = abs(y), b = abs(x);
  M16 a_inf = eq(a, inf()), b_inf = eq(b, inf()), any_inf = m_or(a_inf, b_inf);
  a = select(any_inf, select(a_inf, one, zero()), a);
  b = select(any_inf, select(b_inf, one, zero()), b);
  b = select(m_and(eq(a, zero()), eq(b, zero())), one, b);
  F16 r = with_sign(reflected(atan_ratio(widen(a), widen(b), a, b), sign_bit(x)), y);
  return select(m_or(is_nan(x), is_nan(y)), nan(), r);
}
static inline D16 cosine_of_asin(F16 a) {  // sqrt(1 - a^2)
  D16 v = widen(a), one = set1_d(1.0);
  return sqrt(mul(sub(one, v), add(one, v)));
}
static inline F16 asin(F16 x) {
  F16 a = abs(x);
  D16 b = cosine_of_asin(a);
  F16 y = with_sign(narrow(atan_ratio(widen(a), b, a, narrow(b))), x);
  return select(le(a, set1(1.0f)), y, nan());
}
static inline F16 acos(F16 x) {
  F16 a = abs(x);
  D16 b = cosine_of_asin(a);
  F16 y = reflected(atan_ratio(b, widen(a), narrow(b), a), sign_bit(x));
  return select(le(a, set1(1.0f)), y, nan());
}

}  // namespace samebits::SB_ISA
