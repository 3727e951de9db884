// Sixteen fp32 lanes, one interface, four instruction sets, the same bits.
//
// Every kernel is written once against F16 (floats), I16 (int32) and M16 (lane masks) and compiled
// per instruction set in namespace samebits::<isa>. What each operation means:
//   add sub mul div sqrt fma   IEEE 754 binary32, round to nearest even, gradual underflow
//   vmax(a, b) = a > b ? a : b;  vmin(a, b) = a < b ? a : b   (second operand if unordered)
//   select(m, a, b)            lane of a where m is set, else of b
//   fold(v)                    lane i += lane i+8, then i+4, i+2, i+1; lane 0: the lanes(16) fold
//   fold16(v[16])              lane j = fold(v[j])
//   load_part/store_part       the first n lanes (0 <= n <= 16); missing lanes read as +0
//   load<T>, store<T>          T = float, bf16, f16: widening is exact, narrowing rounds to nearest
//                              even, and a stored NaN is the canonical quiet NaN
//   round_i(v)                 nearest integer, ties to even, as int32 (|v| < 2^31)
#pragma once
#include <cstdint>
#include <cstring>

#ifndef SB_ISA
#error "kernels are compiled once per instruction set with -DSB_ISA=<name>"
#endif

namespace samebits::SB_ISA {

struct bf16 { uint16_t bits; };
struct f16 { uint16_t bits; };

static inline float bit_float(uint32_t u) { float f; std::memcpy(&f, &u, 4); return f; }
static inline uint32_t float_bits(float f) { uint32_t u; std::memcpy(&u, &f, 4); return u; }

constexpr uint32_t kNan32 = 0x7fc00000u;
constexpr uint16_t kNanBf16 = 0x7fc0u;
constexpr uint16_t kNanF16 = 0x7e00u;

static inline uint16_t to_bf16_bits(float f) {
  if (f != f) return kNanBf16;
  uint32_t u = float_bits(f);
  return static_cast<uint16_t>((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

static inline float f16_bits_to_float(uint16_t h) {
  uint32_t sign = (h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
  if (e == 31) return bit_float(sign | 0x7f800000u | (m << 13));
  if (e != 0) return bit_float(sign | ((e + 112u) << 23) | (m << 13));
  float v = static_cast<float>(m) * 0x1p-24f;  // exact
  return bit_float(sign | float_bits(v));
}

static inline uint16_t to_f16_bits(float f) {
  if (f != f) return kNanF16;
  uint32_t u = float_bits(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
  if (a >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // rounds past 65504
  if (a < 0x38800000u) {  // subnormal result: let an exact addition do the rounding
    float v = bit_float(a) + 0.5f;
    return static_cast<uint16_t>(sign | (float_bits(v) - 0x3f000000u));
  }
  uint32_t r = a + 0xfffu + ((a >> 13) & 1u) - (112u << 23);
  return static_cast<uint16_t>(sign | (r >> 13));
}

}  // namespace samebits::SB_ISA

#if defined(SB_ISA_avx512)
#include "vec_avx512.hpp"
#elif defined(SB_ISA_avx2)
#include "vec_avx2.hpp"
#elif defined(SB_ISA_neon)
#include "vec_neon.hpp"
#else
#include "vec_scalar.hpp"
#endif

namespace samebits::SB_ISA {

// ---- what follows needs no knowledge of the instruction set ----
static inline F16 load(const float* p) { return load_f32(p); }
static inline F16 load(const bf16* p) { return load_bf16(p); }
static inline F16 load(const f16* p) { return load_f16(p); }
static inline F16 load_part(const float* p, int n) { return load_part_f32(p, n); }
static inline F16 load_part(const bf16* p, int n) {
  bf16 t[16] = {};
  std::memcpy(t, p, 2 * static_cast<size_t>(n));
  return load_bf16(t);
}
static inline F16 load_part(const f16* p, int n) {
  f16 t[16] = {};
  std::memcpy(t, p, 2 * static_cast<size_t>(n));
  return load_f16(t);
}
/// Replaces every NaN by the canonical one.
static inline F16 canonical(F16 v) { return select(is_nan(v), set1(bit_float(kNan32)), v); }
static inline void store(float* p, F16 v) { store_f32(p, canonical(v)); }
static inline void store(bf16* p, F16 v) { store_bf16(p, v); }
static inline void store(f16* p, F16 v) { store_f16(p, v); }
static inline void store_part(float* p, F16 v, int n) { store_part_f32(p, canonical(v), n); }
static inline void store_part(bf16* p, F16 v, int n) {
  bf16 t[16];
  store_bf16(t, v);
  std::memcpy(p, t, 2 * static_cast<size_t>(n));
}
static inline void store_part(f16* p, F16 v, int n) {
  f16 t[16];
  store_f16(t, v);
  std::memcpy(p, t, 2 * static_cast<size_t>(n));
}
static inline float to_float(float v) { return v; }
static inline float to_float(bf16 v) { return bit_float(static_cast<uint32_t>(v.bits) << 16); }
static inline float to_float(f16 v) { return f16_bits_to_float(v.bits); }
static inline void store1(float* p, float v) { *p = v != v ? bit_float(kNan32) : v; }
static inline void store1(bf16* p, float v) { p->bits = to_bf16_bits(v); }
static inline void store1(f16* p, float v) { p->bits = to_f16_bits(v); }

}  // namespace samebits::SB_ISA
