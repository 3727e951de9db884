// vec.hpp in plain C++: the definition that the other instruction sets must match.
#pragma once
#include <math.h>

namespace samebits::SB_ISA {

struct F16 { float v[16]; };
struct I16 { int32_t v[16]; };
struct M16 { uint32_t v; };

#define SB_LANES for (int i = 0; i < 16; ++i)
#define SB_MAP1(R, name, T, expr) static inline R name(T a) { R r; SB_LANES r.v[i] = (expr); return r; }
#define SB_MAP2(R, name, T, expr) static inline R name(T a, T b) { R r; SB_LANES r.v[i] = (expr); return r; }
#define SB_CMP(name, T, expr) static inline M16 name(T a, T b) { M16 m{0}; SB_LANES m.v |= static_cast<uint32_t>(expr) << i; return m; }

static inline F16 set1(float x) { F16 r; SB_LANES r.v[i] = x; return r; }
static inline F16 zero() { return set1(0.0f); }
static inline I16 set1_i(int32_t x) { I16 r; SB_LANES r.v[i] = x; return r; }
static inline F16 load_f32(const float* p) { F16 r; std::memcpy(r.v, p, 64); return r; }
static inline F16 load_part_f32(const float* p, int n) { F16 r = zero(); std::memcpy(r.v, p, 4 * static_cast<size_t>(n)); return r; }
static inline void store_f32(float* p, F16 a) { std::memcpy(p, a.v, 64); }
static inline void store_lower(float* p, F16 a) { std::memcpy(p, a.v, 32); }
static inline void store_upper(float* p, F16 a) { std::memcpy(p, a.v + 8, 32); }
static inline void store_part_f32(float* p, F16 a, int n) { std::memcpy(p, a.v, 4 * static_cast<size_t>(n)); }
static inline I16 load_i(const int32_t* p) { I16 r; std::memcpy(r.v, p, 64); return r; }
static inline void store_i(int32_t* p, I16 a) { std::memcpy(p, a.v, 64); }

SB_MAP2(F16, add, F16, a.v[i] + b.v[i])
SB_MAP2(F16, sub, F16, a.v[i] - b.v[i])
SB_MAP2(F16, mul, F16, a.v[i] * b.v[i])
SB_MAP2(F16, div, F16, a.v[i] / b.v[i])
SB_MAP2(F16, vmax, F16, a.v[i] > b.v[i] ? a.v[i] : b.v[i])
SB_MAP2(F16, vmin, F16, a.v[i] < b.v[i] ? a.v[i] : b.v[i])
SB_MAP1(F16, sqrt, F16, ::sqrtf(a.v[i]))
SB_MAP1(F16, neg, F16, bit_float(float_bits(a.v[i]) ^ 0x80000000u))
SB_MAP1(F16, abs, F16, bit_float(float_bits(a.v[i]) & 0x7fffffffu))
SB_MAP1(F16, floor, F16, ::floorf(a.v[i]))
SB_MAP1(F16, ceil, F16, ::ceilf(a.v[i]))
SB_MAP1(F16, trunc, F16, ::truncf(a.v[i]))
SB_MAP1(F16, round, F16, ::rintf(a.v[i]))
static inline F16 fma(F16 a, F16 b, F16 c) { F16 r; SB_LANES r.v[i] = ::fmaf(a.v[i], b.v[i], c.v[i]); return r; }

SB_CMP(lt, F16, a.v[i] < b.v[i])
SB_CMP(le, F16, a.v[i] <= b.v[i])
SB_CMP(eq, F16, a.v[i] == b.v[i])
SB_CMP(lt_i, I16, a.v[i] < b.v[i])
SB_CMP(eq_i, I16, a.v[i] == b.v[i])
static inline M16 is_nan(F16 a) { M16 m{0}; SB_LANES m.v |= static_cast<uint32_t>(a.v[i] != a.v[i]) << i; return m; }
static inline M16 m_and(M16 a, M16 b) { return {a.v & b.v}; }
static inline M16 m_or(M16 a, M16 b) { return {a.v | b.v}; }
static inline M16 m_not(M16 a) { return {~a.v & 0xffffu}; }
static inline M16 m_first(int n) { return {(1u << n) - 1u}; }
static inline uint32_t m_bits(M16 a) { return a.v; }
static inline M16 m_from_bits(uint32_t b) { return {b & 0xffffu}; }
static inline F16 select(M16 m, F16 a, F16 b) { F16 r; SB_LANES r.v[i] = (m.v >> i) & 1u ? a.v[i] : b.v[i]; return r; }
static inline I16 select_i(M16 m, I16 a, I16 b) { I16 r; SB_LANES r.v[i] = (m.v >> i) & 1u ? a.v[i] : b.v[i]; return r; }

static inline I16 as_int(F16 a) { I16 r; std::memcpy(r.v, a.v, 64); return r; }
static inline F16 as_float(I16 a) { F16 r; std::memcpy(r.v, a.v, 64); return r; }
#define SB_U(x) static_cast<uint32_t>(x)
SB_MAP2(I16, add_i, I16, static_cast<int32_t>(SB_U(a.v[i]) + SB_U(b.v[i])))
SB_MAP2(I16, sub_i, I16, static_cast<int32_t>(SB_U(a.v[i]) - SB_U(b.v[i])))
SB_MAP2(I16, and_i, I16, a.v[i] & b.v[i])
SB_MAP2(I16, or_i, I16, a.v[i] | b.v[i])
SB_MAP2(I16, xor_i, I16, a.v[i] ^ b.v[i])
template <int n> SB_MAP1(I16, shl, I16, static_cast<int32_t>(SB_U(a.v[i]) << n))
template <int n> SB_MAP1(I16, shr, I16, static_cast<int32_t>(SB_U(a.v[i]) >> n))
template <int n> SB_MAP1(I16, sar, I16, a.v[i] >> n)
// x86 returns INT_MIN for what does not fit; so does this.
SB_MAP1(I16, round_i, F16, (a.v[i] >= -0x1p31f && a.v[i] < 0x1p31f) ? static_cast<int32_t>(::rintf(a.v[i])) : INT32_MIN)
SB_MAP1(F16, to_float, I16, static_cast<float>(a.v[i]))

static inline F16 load_bf16(const bf16* p) { F16 r; SB_LANES r.v[i] = bit_float(SB_U(p[i].bits) << 16); return r; }
static inline F16 load_f16(const f16* p) { F16 r; SB_LANES r.v[i] = f16_bits_to_float(p[i].bits); return r; }
static inline void store_bf16(bf16* p, F16 a) { SB_LANES p[i].bits = to_bf16_bits(a.v[i]); }
static inline void store_f16(f16* p, F16 a) { SB_LANES p[i].bits = to_f16_bits(a.v[i]); }

static inline float fold(F16 a) {
  for (int w = 8; w >= 1; w /= 2)
    for (int i = 0; i < w; ++i) a.v[i] = a.v[i] + a.v[i + w];
  return a.v[0];
}
static inline F16 fold16(const F16* a) { F16 r; SB_LANES r.v[i] = fold(a[i]); return r; }

static inline void transpose16(F16* a) {
  for (int i = 0; i < 16; ++i)
    for (int j = 0; j < i; ++j) {
      float t = a[i].v[j];
      a[i].v[j] = a[j].v[i];
      a[j].v[i] = t;
    }
}

#undef SB_U
#undef SB_CMP
#undef SB_MAP2
#undef SB_MAP1
#undef SB_LANES

}  // namespace samebits::SB_ISA
