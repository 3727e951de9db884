// Sixteen fp64 lanes, for functions whose argument reduction or cancellation needs more than fp32.
//
//   widen(F16) exact; narrow(D16) rounds to nearest even, subnormal results included
//   add sub mul div sqrt fma abs  IEEE 754 binary64, round to nearest even
//   round_d(v)                 nearest integer, ties to even
//   pow2_d(n)                  2^n for -1022 <= n <= 1023
//   fold_any(D16)              the sum of the lanes, for results that no order can change
// There are no comparisons: what depends on a condition is selected in fp32.
#pragma once
#include "vec.hpp"

#if defined(SB_ISA_scalar)
#include <math.h>
#endif

namespace samebits::SB_ISA {

#if defined(SB_ISA_avx512)
constexpr int kParts = 2;
using Part = __m512d;
#define SB_PART(op) _mm512_##op##_pd
static inline Part part_round(Part a) { return _mm512_roundscale_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Part part_set1(double x) { return _mm512_set1_pd(x); }
static inline void part_store(double* p, Part a) { _mm512_storeu_pd(p, a); }
static inline Part part_abs(Part a) { return _mm512_abs_pd(a); }
static inline Part part_pow2(__m256i n) {
  return _mm512_castsi512_pd(_mm512_slli_epi64(_mm512_add_epi64(_mm512_cvtepi32_epi64(n), _mm512_set1_epi64(1023)), 52));
}
#elif defined(SB_ISA_avx2)
constexpr int kParts = 4;
using Part = __m256d;
#define SB_PART(op) _mm256_##op##_pd
static inline Part part_round(Part a) { return _mm256_round_pd(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline Part part_set1(double x) { return _mm256_set1_pd(x); }
static inline void part_store(double* p, Part a) { _mm256_storeu_pd(p, a); }
static inline Part part_abs(Part a) { return _mm256_andnot_pd(_mm256_set1_pd(-0.0), a); }
static inline Part part_pow2(__m128i n) {
  return _mm256_castsi256_pd(_mm256_slli_epi64(_mm256_add_epi64(_mm256_cvtepi32_epi64(n), _mm256_set1_epi64x(1023)), 52));
}
#elif defined(SB_ISA_neon)
constexpr int kParts = 8;
using Part = float64x2_t;
static inline Part part_round(Part a) { return vrndnq_f64(a); }
static inline Part part_set1(double x) { return vdupq_n_f64(x); }
static inline void part_store(double* p, Part a) { vst1q_f64(p, a); }
static inline Part part_abs(Part a) { return vabsq_f64(a); }
static inline Part part_add(Part a, Part b) { return vaddq_f64(a, b); }
static inline Part part_sub(Part a, Part b) { return vsubq_f64(a, b); }
static inline Part part_mul(Part a, Part b) { return vmulq_f64(a, b); }
static inline Part part_div(Part a, Part b) { return vdivq_f64(a, b); }
static inline Part part_sqrt(Part a) { return vsqrtq_f64(a); }
static inline Part part_fmadd(Part a, Part b, Part c) { return vfmaq_f64(c, a, b); }
#define SB_PART(op) part_##op
#else
constexpr int kParts = 16;
using Part = double;
static inline Part part_round(Part a) { return ::rint(a); }
static inline Part part_set1(double x) { return x; }
static inline void part_store(double* p, Part a) { *p = a; }
static inline Part part_abs(Part a) { return ::fabs(a); }
static inline Part part_add(Part a, Part b) { return a + b; }
static inline Part part_sub(Part a, Part b) { return a - b; }
static inline Part part_mul(Part a, Part b) { return a * b; }
static inline Part part_div(Part a, Part b) { return a / b; }
static inline Part part_sqrt(Part a) { return ::sqrt(a); }
static inline Part part_fmadd(Part a, Part b, Part c) { return ::fma(a, b, c); }
#define SB_PART(op) part_##op
#endif

struct D16 { Part v[kParts]; };

#define SB_EACH for (int i = 0; i < kParts; ++i)
static inline D16 set1_d(double x) { D16 r; SB_EACH r.v[i] = part_set1(x); return r; }
static inline D16 add(D16 a, D16 b) { D16 r; SB_EACH r.v[i] = SB_PART(add)(a.v[i], b.v[i]); return r; }
static inline D16 sub(D16 a, D16 b) { D16 r; SB_EACH r.v[i] = SB_PART(sub)(a.v[i], b.v[i]); return r; }
static inline D16 mul(D16 a, D16 b) { D16 r; SB_EACH r.v[i] = SB_PART(mul)(a.v[i], b.v[i]); return r; }
static inline D16 div(D16 a, D16 b) { D16 r; SB_EACH r.v[i] = SB_PART(div)(a.v[i], b.v[i]); return r; }
static inline D16 sqrt(D16 a) { D16 r; SB_EACH r.v[i] = SB_PART(sqrt)(a.v[i]); return r; }
static inline D16 fma(D16 a, D16 b, D16 c) { D16 r; SB_EACH r.v[i] = SB_PART(fmadd)(a.v[i], b.v[i], c.v[i]); return r; }
static inline D16 round_d(D16 a) { D16 r; SB_EACH r.v[i] = part_round(a.v[i]); return r; }
static inline D16 abs(D16 a) { D16 r; SB_EACH r.v[i] = part_abs(a.v[i]); return r; }
static inline double fold_any(D16 a) {
  for (int parts = kParts / 2; parts >= 1; parts /= 2)
    for (int i = 0; i < parts; ++i) a.v[i] = SB_PART(add)(a.v[i], a.v[i + parts]);
  double lane[16 / kParts];
  part_store(lane, a.v[0]);
  for (int width = 8 / kParts; width >= 1; width /= 2)
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  return lane[0];
}

#if defined(SB_ISA_avx512)
static inline D16 widen(F16 a) {
  return {{_mm512_cvtps_pd(_mm512_castps512_ps256(a.v)), _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1))}};
}
static inline F16 narrow(D16 a) {
  return {_mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(a.v[0])), _mm512_cvtpd_ps(a.v[1]), 1)};
}
static inline D16 to_double(I16 a) {
  return {{_mm512_cvtepi32_pd(_mm512_castsi512_si256(a.v)), _mm512_cvtepi32_pd(_mm512_extracti64x4_epi64(a.v, 1))}};
}
static inline D16 pow2_d(I16 n) {
  return {{part_pow2(_mm512_castsi512_si256(n.v)), part_pow2(_mm512_extracti64x4_epi64(n.v, 1))}};
}
#elif defined(SB_ISA_avx2)
static inline D16 widen(F16 a) {
  return {{_mm256_cvtps_pd(_mm256_castps256_ps128(a.lo)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.lo, 1)),
           _mm256_cvtps_pd(_mm256_castps256_ps128(a.hi)), _mm256_cvtps_pd(_mm256_extractf128_ps(a.hi, 1))}};
}
static inline F16 narrow(D16 a) {
  return {_mm256_set_m128(_mm256_cvtpd_ps(a.v[1]), _mm256_cvtpd_ps(a.v[0])),
          _mm256_set_m128(_mm256_cvtpd_ps(a.v[3]), _mm256_cvtpd_ps(a.v[2]))};
}
#define SB_INT_PARTS(f)                                                                              \
  {f(_mm256_castsi256_si128(a.lo)), f(_mm256_extracti128_si256(a.lo, 1)), f(_mm256_castsi256_si128(a.hi)), \
   f(_mm256_extracti128_si256(a.hi, 1))}
static inline D16 to_double(I16 a) { return {SB_INT_PARTS(_mm256_cvtepi32_pd)}; }
static inline D16 pow2_d(I16 a) { return {SB_INT_PARTS(part_pow2)}; }
#undef SB_INT_PARTS
#elif defined(SB_ISA_neon)
static inline D16 widen(F16 a) {
  D16 r;
  for (int q = 0; q < 4; ++q) {
    r.v[2 * q] = vcvt_f64_f32(vget_low_f32(a.v[q]));
    r.v[2 * q + 1] = vcvt_high_f64_f32(a.v[q]);
  }
  return r;
}
static inline F16 narrow(D16 a) {
  F16 r;
  for (int q = 0; q < 4; ++q) r.v[q] = vcvt_high_f32_f64(vcvt_f32_f64(a.v[2 * q]), a.v[2 * q + 1]);
  return r;
}
static inline D16 to_double(I16 a) {
  D16 r;
  for (int q = 0; q < 4; ++q) {
    r.v[2 * q] = vcvtq_f64_s64(vmovl_s32(vget_low_s32(a.v[q])));
    r.v[2 * q + 1] = vcvtq_f64_s64(vmovl_high_s32(a.v[q]));
  }
  return r;
}
static inline D16 pow2_d(I16 a) {
  D16 r;
  for (int q = 0; q < 4; ++q) {
    int64x2_t bias = vdupq_n_s64(1023);
    r.v[2 * q] = vreinterpretq_f64_s64(vshlq_n_s64(vaddq_s64(vmovl_s32(vget_low_s32(a.v[q])), bias), 52));
    r.v[2 * q + 1] = vreinterpretq_f64_s64(vshlq_n_s64(vaddq_s64(vmovl_high_s32(a.v[q]), bias), 52));
  }
  return r;
}
#else
static inline D16 widen(F16 a) { D16 r; SB_EACH r.v[i] = static_cast<double>(a.v[i]); return r; }
static inline F16 narrow(D16 a) { F16 r; SB_EACH r.v[i] = static_cast<float>(a.v[i]); return r; }
static inline D16 to_double(I16 a) { D16 r; SB_EACH r.v[i] = static_cast<double>(a.v[i]); return r; }
static inline D16 pow2_d(I16 a) {
  D16 r;
  SB_EACH {
    uint64_t bits = static_cast<uint64_t>(static_cast<int64_t>(a.v[i]) + 1023) << 52;
    std::memcpy(&r.v[i], &bits, 8);
  }
  return r;
}
#endif
#undef SB_EACH
#undef SB_PART

}  // namespace samebits::SB_ISA
