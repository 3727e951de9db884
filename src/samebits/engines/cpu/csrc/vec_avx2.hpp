// vec.hpp on AVX2 + FMA + F16C: two registers per vector.
#pragma once
#include <immintrin.h>

namespace samebits::SB_ISA {

struct F16 { __m256 lo, hi; };
struct I16 { __m256i lo, hi; };
struct M16 { __m256i lo, hi; };

#define SB_F(expr_lo, expr_hi) F16{expr_lo, expr_hi}

static inline __m256i first8(int n) {  // lanes below n, for any n
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline F16 zero() { return {_mm256_setzero_ps(), _mm256_setzero_ps()}; }
static inline F16 set1(float x) { __m256 v = _mm256_set1_ps(x); return {v, v}; }
static inline I16 set1_i(int32_t x) { __m256i v = _mm256_set1_epi32(x); return {v, v}; }
static inline F16 load_f32(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
static inline F16 load_part_f32(const float* p, int n) {
  return {_mm256_maskload_ps(p, first8(n)), _mm256_maskload_ps(p + 8, first8(n - 8))};
}
static inline void store_f32(float* p, F16 a) { _mm256_storeu_ps(p, a.lo); _mm256_storeu_ps(p + 8, a.hi); }
static inline void store_lower(float* p, F16 a) { _mm256_storeu_ps(p, a.lo); }
static inline void store_upper(float* p, F16 a) { _mm256_storeu_ps(p, a.hi); }
static inline void store_part_f32(float* p, F16 a, int n) {
  _mm256_maskstore_ps(p, first8(n), a.lo);
  _mm256_maskstore_ps(p + 8, first8(n - 8), a.hi);
}
static inline I16 load_i(const int32_t* p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8))};
}
static inline void store_i(int32_t* p, I16 a) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), a.lo);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p + 8), a.hi);
}

#define SB_BIN(name, op) \
  static inline F16 name(F16 a, F16 b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
SB_BIN(add, _mm256_add_ps)
SB_BIN(sub, _mm256_sub_ps)
SB_BIN(mul, _mm256_mul_ps)
SB_BIN(div, _mm256_div_ps)
SB_BIN(vmax, _mm256_max_ps)
SB_BIN(vmin, _mm256_min_ps)
#undef SB_BIN
static inline F16 sqrt(F16 a) { return {_mm256_sqrt_ps(a.lo), _mm256_sqrt_ps(a.hi)}; }
static inline F16 fma(F16 a, F16 b, F16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}
static inline F16 neg(F16 a) { __m256 s = _mm256_set1_ps(-0.0f); return {_mm256_xor_ps(a.lo, s), _mm256_xor_ps(a.hi, s)}; }
static inline F16 abs(F16 a) { __m256 s = _mm256_set1_ps(-0.0f); return {_mm256_andnot_ps(s, a.lo), _mm256_andnot_ps(s, a.hi)}; }
#define SB_ROUND(name, mode) \
  static inline F16 name(F16 a) { return {_mm256_round_ps(a.lo, mode | _MM_FROUND_NO_EXC), _mm256_round_ps(a.hi, mode | _MM_FROUND_NO_EXC)}; }
SB_ROUND(floor, _MM_FROUND_TO_NEG_INF)
SB_ROUND(ceil, _MM_FROUND_TO_POS_INF)
SB_ROUND(trunc, _MM_FROUND_TO_ZERO)
SB_ROUND(round, _MM_FROUND_TO_NEAREST_INT)
#undef SB_ROUND

#define SB_CMP(name, op)                                                                   \
  static inline M16 name(F16 a, F16 b) {                                                   \
    return {_mm256_castps_si256(_mm256_cmp_ps(a.lo, b.lo, op)), _mm256_castps_si256(_mm256_cmp_ps(a.hi, b.hi, op))}; \
  }
SB_CMP(lt, _CMP_LT_OQ)
SB_CMP(le, _CMP_LE_OQ)
SB_CMP(eq, _CMP_EQ_OQ)
SB_CMP(unordered, _CMP_UNORD_Q)
#undef SB_CMP
static inline M16 is_nan(F16 a) { return unordered(a, a); }
static inline M16 lt_i(I16 a, I16 b) { return {_mm256_cmpgt_epi32(b.lo, a.lo), _mm256_cmpgt_epi32(b.hi, a.hi)}; }
static inline M16 eq_i(I16 a, I16 b) { return {_mm256_cmpeq_epi32(a.lo, b.lo), _mm256_cmpeq_epi32(a.hi, b.hi)}; }
static inline M16 m_and(M16 a, M16 b) { return {_mm256_and_si256(a.lo, b.lo), _mm256_and_si256(a.hi, b.hi)}; }
static inline M16 m_or(M16 a, M16 b) { return {_mm256_or_si256(a.lo, b.lo), _mm256_or_si256(a.hi, b.hi)}; }
static inline M16 m_not(M16 a) {
  __m256i ones = _mm256_set1_epi32(-1);
  return {_mm256_xor_si256(a.lo, ones), _mm256_xor_si256(a.hi, ones)};
}
static inline M16 m_first(int n) { return {first8(n), first8(n - 8)}; }
static inline uint32_t m_bits(M16 a) {
  return static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(a.lo))) |
         (static_cast<uint32_t>(_mm256_movemask_ps(_mm256_castsi256_ps(a.hi))) << 8);
}
static inline M16 m_from_bits(uint32_t b) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  __m256i lo = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(b & 255u)), bit);
  __m256i hi = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>((b >> 8) & 255u)), bit);
  return {_mm256_cmpeq_epi32(lo, bit), _mm256_cmpeq_epi32(hi, bit)};
}
static inline F16 select(M16 m, F16 a, F16 b) {
  return {_mm256_blendv_ps(b.lo, a.lo, _mm256_castsi256_ps(m.lo)), _mm256_blendv_ps(b.hi, a.hi, _mm256_castsi256_ps(m.hi))};
}
static inline I16 select_i(M16 m, I16 a, I16 b) {
  return {_mm256_blendv_epi8(b.lo, a.lo, m.lo), _mm256_blendv_epi8(b.hi, a.hi, m.hi)};
}

static inline I16 as_int(F16 a) { return {_mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi)}; }
static inline F16 as_float(I16 a) { return {_mm256_castsi256_ps(a.lo), _mm256_castsi256_ps(a.hi)}; }
#define SB_BIN_I(name, op) \
  static inline I16 name(I16 a, I16 b) { return {op(a.lo, b.lo), op(a.hi, b.hi)}; }
SB_BIN_I(add_i, _mm256_add_epi32)
SB_BIN_I(sub_i, _mm256_sub_epi32)
SB_BIN_I(and_i, _mm256_and_si256)
SB_BIN_I(or_i, _mm256_or_si256)
SB_BIN_I(xor_i, _mm256_xor_si256)
#undef SB_BIN_I
template <int n> static inline I16 shl(I16 a) { return {_mm256_slli_epi32(a.lo, n), _mm256_slli_epi32(a.hi, n)}; }
template <int n> static inline I16 shr(I16 a) { return {_mm256_srli_epi32(a.lo, n), _mm256_srli_epi32(a.hi, n)}; }
template <int n> static inline I16 sar(I16 a) { return {_mm256_srai_epi32(a.lo, n), _mm256_srai_epi32(a.hi, n)}; }
static inline I16 round_i(F16 a) { return {_mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi)}; }
static inline F16 to_float(I16 a) { return {_mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi)}; }

static inline F16 load_bf16(const bf16* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  __m256i lo = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q)), 16);
  __m256i hi = _mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(q + 1)), 16);
  return {_mm256_castsi256_ps(lo), _mm256_castsi256_ps(hi)};
}
static inline F16 load_f16(const f16* p) {
  const __m128i* q = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtph_ps(_mm_loadu_si128(q)), _mm256_cvtph_ps(_mm_loadu_si128(q + 1))};
}
static inline __m128i narrow_bf16(__m256 v) {
  __m256i u = _mm256_castps_si256(v);
  __m256i lsb = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
  __m256i r = _mm256_srli_epi32(_mm256_add_epi32(u, _mm256_add_epi32(lsb, _mm256_set1_epi32(0x7fff))), 16);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  r = _mm256_blendv_epi8(r, _mm256_set1_epi32(kNanBf16), nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
}
static inline void store_bf16(bf16* p, F16 a) {
  __m128i* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, narrow_bf16(a.lo));
  _mm_storeu_si128(q + 1, narrow_bf16(a.hi));
}
static inline __m128i narrow_f16(__m256 v) {
  __m128i h = _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(v, v, _CMP_UNORD_Q));
  __m128i m = _mm_packs_epi32(_mm256_castsi256_si128(nan), _mm256_extracti128_si256(nan, 1));
  return _mm_blendv_epi8(h, _mm_set1_epi16(kNanF16), m);
}
static inline void store_f16(f16* p, F16 a) {
  __m128i* q = reinterpret_cast<__m128i*>(p);
  _mm_storeu_si128(q, narrow_f16(a.lo));
  _mm_storeu_si128(q + 1, narrow_f16(a.hi));
}

static inline float fold(F16 a) {
  __m256 y = _mm256_add_ps(a.lo, a.hi);
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}

static inline __m256 fold8(const F16* a) {  // lane j = fold(a[j]), j < 8
  __m256 s[8];
  for (int i = 0; i < 8; ++i) s[i] = _mm256_add_ps(a[i].lo, a[i].hi);
  __m256 s4[4], s2[2];
  for (int i = 0; i < 4; ++i)  // low half: a[i], high half: a[i + 4]
    s4[i] = _mm256_add_ps(_mm256_permute2f128_ps(s[i], s[i + 4], 0x20), _mm256_permute2f128_ps(s[i], s[i + 4], 0x31));
  for (int i = 0; i < 2; ++i)
    s2[i] = _mm256_add_ps(_mm256_shuffle_ps(s4[i], s4[i + 2], 0x44), _mm256_shuffle_ps(s4[i], s4[i + 2], 0xee));
  __m256 r = _mm256_add_ps(_mm256_shuffle_ps(s2[0], s2[1], 0x88), _mm256_shuffle_ps(s2[0], s2[1], 0xdd));
  return _mm256_permute_ps(r, 0xd8);  // 0 2 1 3 -> 0 1 2 3
}
static inline F16 fold16(const F16* a) { return {fold8(a), fold8(a + 8)}; }
#undef SB_F

static inline void transpose8(__m256* r) {
  __m256 t[8], u[8];
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i)
    for (int h = 0; h < 2; ++h) {
      __m256d x = _mm256_castps_pd(t[4 * i + h]), y = _mm256_castps_pd(t[4 * i + 2 + h]);
      u[4 * i + 2 * h] = _mm256_castpd_ps(_mm256_unpacklo_pd(x, y));
      u[4 * i + 2 * h + 1] = _mm256_castpd_ps(_mm256_unpackhi_pd(x, y));
    }
  for (int c = 0; c < 4; ++c) {
    r[c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x20);
    r[4 + c] = _mm256_permute2f128_ps(u[c], u[4 + c], 0x31);
  }
}
static inline void transpose16(F16* a) {  // four 8x8 blocks
  __m256 q[4][8];
  for (int i = 0; i < 8; ++i) {
    q[0][i] = a[i].lo;
    q[1][i] = a[i].hi;
    q[2][i] = a[i + 8].lo;
    q[3][i] = a[i + 8].hi;
  }
  for (int i = 0; i < 4; ++i) transpose8(q[i]);
  for (int i = 0; i < 8; ++i) {
    a[i] = {q[0][i], q[2][i]};
    a[i + 8] = {q[1][i], q[3][i]};
  }
}

}  // namespace samebits::SB_ISA
