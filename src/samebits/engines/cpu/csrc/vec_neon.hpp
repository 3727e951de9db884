// vec.hpp on AArch64 NEON: four registers per vector.
#pragma once
#include <arm_neon.h>

namespace samebits::SB_ISA {

struct F16 { float32x4_t v[4]; };
struct I16 { int32x4_t v[4]; };
struct M16 { uint32x4_t v[4]; };

#define SB_Q for (int q = 0; q < 4; ++q)
#define SB_MAP1(R, name, T, expr) static inline R name(T a) { R r; SB_Q r.v[q] = (expr); return r; }
#define SB_MAP2(R, name, T, expr) static inline R name(T a, T b) { R r; SB_Q r.v[q] = (expr); return r; }

static inline F16 set1(float x) { F16 r; SB_Q r.v[q] = vdupq_n_f32(x); return r; }
static inline F16 zero() { return set1(0.0f); }
static inline I16 set1_i(int32_t x) { I16 r; SB_Q r.v[q] = vdupq_n_s32(x); return r; }
static inline F16 load_f32(const float* p) { F16 r; SB_Q r.v[q] = vld1q_f32(p + 4 * q); return r; }
static inline void store_f32(float* p, F16 a) { SB_Q vst1q_f32(p + 4 * q, a.v[q]); }
static inline void store_lower(float* p, F16 a) { vst1q_f32(p, a.v[0]), vst1q_f32(p + 4, a.v[1]); }
static inline void store_upper(float* p, F16 a) { vst1q_f32(p, a.v[2]), vst1q_f32(p + 4, a.v[3]); }
static inline F16 load_part_f32(const float* p, int n) {
  float t[16] = {};
  std::memcpy(t, p, 4 * static_cast<size_t>(n));
  return load_f32(t);
}
static inline void store_part_f32(float* p, F16 a, int n) {
  float t[16];
  store_f32(t, a);
  std::memcpy(p, t, 4 * static_cast<size_t>(n));
}
static inline I16 load_i(const int32_t* p) { I16 r; SB_Q r.v[q] = vld1q_s32(p + 4 * q); return r; }
static inline void store_i(int32_t* p, I16 a) { SB_Q vst1q_s32(p + 4 * q, a.v[q]); }

SB_MAP2(F16, add, F16, vaddq_f32(a.v[q], b.v[q]))
SB_MAP2(F16, sub, F16, vsubq_f32(a.v[q], b.v[q]))
SB_MAP2(F16, mul, F16, vmulq_f32(a.v[q], b.v[q]))
SB_MAP2(F16, div, F16, vdivq_f32(a.v[q], b.v[q]))
// NEON's own max and min order NaN and signed zero otherwise than vec.hpp says.
SB_MAP2(F16, vmax, F16, vbslq_f32(vcgtq_f32(a.v[q], b.v[q]), a.v[q], b.v[q]))
SB_MAP2(F16, vmin, F16, vbslq_f32(vcltq_f32(a.v[q], b.v[q]), a.v[q], b.v[q]))
SB_MAP1(F16, sqrt, F16, vsqrtq_f32(a.v[q]))
SB_MAP1(F16, neg, F16, vnegq_f32(a.v[q]))
SB_MAP1(F16, abs, F16, vabsq_f32(a.v[q]))
SB_MAP1(F16, floor, F16, vrndmq_f32(a.v[q]))
SB_MAP1(F16, ceil, F16, vrndpq_f32(a.v[q]))
SB_MAP1(F16, trunc, F16, vrndq_f32(a.v[q]))
SB_MAP1(F16, round, F16, vrndnq_f32(a.v[q]))
static inline F16 fma(F16 a, F16 b, F16 c) { F16 r; SB_Q r.v[q] = vfmaq_f32(c.v[q], a.v[q], b.v[q]); return r; }

SB_MAP2(M16, lt, F16, vcltq_f32(a.v[q], b.v[q]))
SB_MAP2(M16, le, F16, vcleq_f32(a.v[q], b.v[q]))
SB_MAP2(M16, eq, F16, vceqq_f32(a.v[q], b.v[q]))
SB_MAP1(M16, is_nan, F16, vmvnq_u32(vceqq_f32(a.v[q], a.v[q])))
SB_MAP2(M16, lt_i, I16, vcltq_s32(a.v[q], b.v[q]))
SB_MAP2(M16, eq_i, I16, vceqq_s32(a.v[q], b.v[q]))
SB_MAP2(M16, m_and, M16, vandq_u32(a.v[q], b.v[q]))
SB_MAP2(M16, m_or, M16, vorrq_u32(a.v[q], b.v[q]))
SB_MAP1(M16, m_not, M16, vmvnq_u32(a.v[q]))
static inline uint32_t m_bits(M16 a) {
  const uint32_t w[4] = {1, 2, 4, 8};
  uint32x4_t weight = vld1q_u32(w);
  uint32_t bits = 0;
  SB_Q bits |= vaddvq_u32(vandq_u32(a.v[q], weight)) << (4 * q);
  return bits;
}
static inline M16 m_from_bits(uint32_t b) {
  const uint32_t w[4] = {1, 2, 4, 8};
  uint32x4_t weight = vld1q_u32(w);
  M16 r;
  SB_Q r.v[q] = vtstq_u32(vdupq_n_u32((b >> (4 * q)) & 15u), weight);
  return r;
}
static inline M16 m_first(int n) { return m_from_bits((1u << n) - 1u); }
static inline F16 select(M16 m, F16 a, F16 b) { F16 r; SB_Q r.v[q] = vbslq_f32(m.v[q], a.v[q], b.v[q]); return r; }
static inline I16 select_i(M16 m, I16 a, I16 b) { I16 r; SB_Q r.v[q] = vbslq_s32(m.v[q], a.v[q], b.v[q]); return r; }

SB_MAP1(I16, as_int, F16, vreinterpretq_s32_f32(a.v[q]))
SB_MAP1(F16, as_float, I16, vreinterpretq_f32_s32(a.v[q]))
SB_MAP2(I16, add_i, I16, vaddq_s32(a.v[q], b.v[q]))
SB_MAP2(I16, sub_i, I16, vsubq_s32(a.v[q], b.v[q]))
SB_MAP2(I16, and_i, I16, vandq_s32(a.v[q], b.v[q]))
SB_MAP2(I16, or_i, I16, vorrq_s32(a.v[q], b.v[q]))
SB_MAP2(I16, xor_i, I16, veorq_s32(a.v[q], b.v[q]))
template <int n> SB_MAP1(I16, shl, I16, vshlq_n_s32(a.v[q], n))
template <int n> SB_MAP1(I16, shr, I16, vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(a.v[q]), n)))
template <int n> SB_MAP1(I16, sar, I16, vshrq_n_s32(a.v[q], n))
// Saturation is replaced by x86's INT_MIN so that the bits agree.
static inline I16 round_i(F16 a) {
  I16 r;
  SB_Q {
    uint32x4_t fits = vandq_u32(vcgeq_f32(a.v[q], vdupq_n_f32(-0x1p31f)), vcltq_f32(a.v[q], vdupq_n_f32(0x1p31f)));
    r.v[q] = vbslq_s32(fits, vcvtnq_s32_f32(a.v[q]), vdupq_n_s32(INT32_MIN));
  }
  return r;
}
SB_MAP1(F16, to_float, I16, vcvtq_f32_s32(a.v[q]))

static inline F16 load_bf16(const bf16* p) {
  F16 r;
  SB_Q r.v[q] = vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p) + 4 * q), 16));
  return r;
}
static inline F16 load_f16(const f16* p) {
  F16 r;
  SB_Q r.v[q] = vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p) + 4 * q)));
  return r;
}
static inline void store_bf16(bf16* p, F16 a) {
  float t[16];
  store_f32(t, a);
  for (int i = 0; i < 16; ++i) p[i].bits = to_bf16_bits(t[i]);
}
static inline void store_f16(f16* p, F16 a) {
  float t[16];
  store_f32(t, a);
  for (int i = 0; i < 16; ++i) p[i].bits = to_f16_bits(t[i]);
}

static inline float fold(F16 a) {
  float32x4_t x = vaddq_f32(vaddq_f32(a.v[0], a.v[2]), vaddq_f32(a.v[1], a.v[3]));
  float32x2_t y = vadd_f32(vget_low_f32(x), vget_high_f32(x));
  return vget_lane_f32(y, 0) + vget_lane_f32(y, 1);
}
static inline F16 fold16(const F16* a) {
  float t[16];
  for (int i = 0; i < 16; ++i) t[i] = fold(a[i]);
  return load_f32(t);
}

static inline void transpose16(F16* a) {  // sixteen 4x4 blocks
  F16 r[16];
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 4; ++j) {
      float32x4_t r0 = a[4 * i].v[j], r1 = a[4 * i + 1].v[j], r2 = a[4 * i + 2].v[j], r3 = a[4 * i + 3].v[j];
      float64x2_t t0 = vreinterpretq_f64_f32(vtrn1q_f32(r0, r1)), t1 = vreinterpretq_f64_f32(vtrn2q_f32(r0, r1));
      float64x2_t t2 = vreinterpretq_f64_f32(vtrn1q_f32(r2, r3)), t3 = vreinterpretq_f64_f32(vtrn2q_f32(r2, r3));
      r[4 * j].v[i] = vreinterpretq_f32_f64(vtrn1q_f64(t0, t2));
      r[4 * j + 1].v[i] = vreinterpretq_f32_f64(vtrn1q_f64(t1, t3));
      r[4 * j + 2].v[i] = vreinterpretq_f32_f64(vtrn2q_f64(t0, t2));
      r[4 * j + 3].v[i] = vreinterpretq_f32_f64(vtrn2q_f64(t1, t3));
    }
  for (int i = 0; i < 16; ++i) a[i] = r[i];
}

#undef SB_MAP2
#undef SB_MAP1
#undef SB_Q

}  // namespace samebits::SB_ISA
