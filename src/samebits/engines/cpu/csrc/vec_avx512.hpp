// vec.hpp on AVX-512 (F, BW, DQ, VL): one register per vector.
#pragma once
#include <immintrin.h>

namespace samebits::SB_ISA {

struct F16 { __m512 v; };
struct I16 { __m512i v; };
struct M16 { __mmask16 v; };

static inline __mmask16 first(int n) { return static_cast<__mmask16>((1u << n) - 1u); }

static inline F16 zero() { return {_mm512_setzero_ps()}; }
static inline F16 set1(float x) { return {_mm512_set1_ps(x)}; }
static inline I16 set1_i(int32_t x) { return {_mm512_set1_epi32(x)}; }
static inline F16 load_f32(const float* p) { return {_mm512_loadu_ps(p)}; }
static inline F16 load_part_f32(const float* p, int n) { return {_mm512_maskz_loadu_ps(first(n), p)}; }
static inline void store_f32(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
static inline void store_part_f32(float* p, F16 a, int n) { _mm512_mask_storeu_ps(p, first(n), a.v); }
static inline void store_lower(float* p, F16 a) { _mm256_storeu_ps(p, _mm512_castps512_ps256(a.v)); }
static inline void store_upper(float* p, F16 a) { _mm256_storeu_ps(p, _mm512_extractf32x8_ps(a.v, 1)); }
static inline I16 load_i(const int32_t* p) { return {_mm512_loadu_si512(p)}; }
static inline void store_i(int32_t* p, I16 a) { _mm512_storeu_si512(p, a.v); }

static inline F16 add(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
static inline F16 sub(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
static inline F16 mul(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
static inline F16 div(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
static inline F16 sqrt(F16 a) { return {_mm512_sqrt_ps(a.v)}; }
static inline F16 fma(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
static inline F16 vmax(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
static inline F16 vmin(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
static inline F16 neg(F16 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0f))}; }
static inline F16 abs(F16 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0f), a.v)}; }
static inline F16 floor(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)}; }
static inline F16 ceil(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)}; }
static inline F16 trunc(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)}; }
static inline F16 round(F16 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }

static inline M16 lt(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
static inline M16 le(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
static inline M16 eq(F16 a, F16 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
static inline M16 is_nan(F16 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
static inline M16 lt_i(I16 a, I16 b) { return {_mm512_cmplt_epi32_mask(a.v, b.v)}; }
static inline M16 eq_i(I16 a, I16 b) { return {_mm512_cmpeq_epi32_mask(a.v, b.v)}; }
static inline M16 m_and(M16 a, M16 b) { return {static_cast<__mmask16>(a.v & b.v)}; }
static inline M16 m_or(M16 a, M16 b) { return {static_cast<__mmask16>(a.v | b.v)}; }
static inline M16 m_not(M16 a) { return {static_cast<__mmask16>(~a.v)}; }
static inline M16 m_first(int n) { return {first(n)}; }
static inline uint32_t m_bits(M16 a) { return a.v; }
static inline M16 m_from_bits(uint32_t b) { return {static_cast<__mmask16>(b)}; }
static inline F16 select(M16 m, F16 a, F16 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }
static inline I16 select_i(M16 m, I16 a, I16 b) { return {_mm512_mask_blend_epi32(m.v, b.v, a.v)}; }

static inline I16 as_int(F16 a) { return {_mm512_castps_si512(a.v)}; }
static inline F16 as_float(I16 a) { return {_mm512_castsi512_ps(a.v)}; }
static inline I16 add_i(I16 a, I16 b) { return {_mm512_add_epi32(a.v, b.v)}; }
static inline I16 sub_i(I16 a, I16 b) { return {_mm512_sub_epi32(a.v, b.v)}; }
static inline I16 and_i(I16 a, I16 b) { return {_mm512_and_si512(a.v, b.v)}; }
static inline I16 or_i(I16 a, I16 b) { return {_mm512_or_si512(a.v, b.v)}; }
static inline I16 xor_i(I16 a, I16 b) { return {_mm512_xor_si512(a.v, b.v)}; }
template <int n> static inline I16 shl(I16 a) { return {_mm512_slli_epi32(a.v, n)}; }
template <int n> static inline I16 shr(I16 a) { return {_mm512_srli_epi32(a.v, n)}; }
template <int n> static inline I16 sar(I16 a) { return {_mm512_srai_epi32(a.v, n)}; }
static inline I16 round_i(F16 a) { return {_mm512_cvtps_epi32(a.v)}; }
static inline F16 to_float(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }

static inline F16 load_bf16(const bf16* p) {
  __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
static inline F16 load_f16(const f16* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
static inline void store_bf16(bf16* p, F16 a) {
  __m512i u = _mm512_castps_si512(a.v);
  __m512i lsb = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
  __m512i r = _mm512_srli_epi32(_mm512_add_epi32(u, _mm512_add_epi32(lsb, _mm512_set1_epi32(0x7fff))), 16);
  r = _mm512_mask_mov_epi32(r, is_nan(a).v, _mm512_set1_epi32(kNanBf16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(r));
}
static inline void store_f16(f16* p, F16 a) {
  __m256i h = _mm512_cvtps_ph(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  h = _mm256_mask_mov_epi16(h, is_nan(a).v, _mm256_set1_epi16(kNanF16));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), h);
}

static inline float fold(F16 a) {
  __m256 y = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

// The transposing form of fold: each level halves 2n vectors into n, so 16 folds cost 15 adds.
static inline F16 fold16(const F16* a) {
  __m512 s8[8], s4[4], s2[2];
  for (int i = 0; i < 8; ++i) {  // lanes 0-7: fold-8 of a[i]; lanes 8-15: of a[i + 8]
    __m512 lo = _mm512_shuffle_f32x4(a[i].v, a[i + 8].v, 0x44);
    __m512 hi = _mm512_shuffle_f32x4(a[i].v, a[i + 8].v, 0xee);
    s8[i] = _mm512_add_ps(lo, hi);
  }
  for (int i = 0; i < 4; ++i) {  // quarters: i, i+8 | i+4, i+12
    __m512 lo = _mm512_shuffle_f32x4(s8[i], s8[i + 4], 0x88);
    __m512 hi = _mm512_shuffle_f32x4(s8[i], s8[i + 4], 0xdd);
    s4[i] = _mm512_add_ps(lo, hi);  // 128-bit parts: a[i], a[i+8], a[i+4], a[i+12]
  }
  for (int i = 0; i < 2; ++i) {
    __m512 lo = _mm512_shuffle_ps(s4[i], s4[i + 2], 0x44);  // x0 x1 | y0 y1
    __m512 hi = _mm512_shuffle_ps(s4[i], s4[i + 2], 0xee);  // x2 x3 | y2 y3
    s2[i] = _mm512_add_ps(lo, hi);  // per part: a[i].0 a[i].1 a[i+2].0 a[i+2].1
  }
  __m512 lo = _mm512_shuffle_ps(s2[0], s2[1], 0x88);  // x.0 x+2.0 | x+1.0 x+3.0
  __m512 hi = _mm512_shuffle_ps(s2[0], s2[1], 0xdd);
  __m512 r = _mm512_add_ps(lo, hi);  // per part p of {0, 8, 4, 12}: p, p+2, p+1, p+3
  const __m512i order = _mm512_setr_epi32(0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15);
  return {_mm512_permutexvar_ps(order, r)};
}

static inline void transpose16(F16* a) {
  __m512 t[16], u[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_ps(a[2 * i].v, a[2 * i + 1].v);
    t[2 * i + 1] = _mm512_unpackhi_ps(a[2 * i].v, a[2 * i + 1].v);
  }
  for (int i = 0; i < 4; ++i)  // u[4i + c], part p: column 4p + c of rows 4i .. 4i+3
    for (int h = 0; h < 2; ++h) {
      __m512d x = _mm512_castps_pd(t[4 * i + h]), y = _mm512_castps_pd(t[4 * i + 2 + h]);
      u[4 * i + 2 * h] = _mm512_castpd_ps(_mm512_unpacklo_pd(x, y));
      u[4 * i + 2 * h + 1] = _mm512_castpd_ps(_mm512_unpackhi_pd(x, y));
    }
  for (int c = 0; c < 4; ++c) {
    __m512 even0 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0x88), odd0 = _mm512_shuffle_f32x4(u[c], u[4 + c], 0xdd);
    __m512 even1 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0x88), odd1 = _mm512_shuffle_f32x4(u[8 + c], u[12 + c], 0xdd);
    a[c].v = _mm512_shuffle_f32x4(even0, even1, 0x88);
    a[8 + c].v = _mm512_shuffle_f32x4(even0, even1, 0xdd);
    a[4 + c].v = _mm512_shuffle_f32x4(odd0, odd1, 0x88);
    a[12 + c].v = _mm512_shuffle_f32x4(odd0, odd1, 0xdd);
  }
}

}  // namespace samebits::SB_ISA
