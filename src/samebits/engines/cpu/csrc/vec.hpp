// Sixteen fp32 lanes, one interface, four instruction sets, the same bits.
//
// Every kernel is written once against F16 (floats), I16 (int32) and M16 (lane masks) and compiled
// per instruction set in namespace samebits::<isa>. What each operation means:
//   add sub mul div sqrt fma   IEEE 754 binary32, round to nearest even, gradual underflow
//   vmax(a, b) = a > b ? a : b;  vmin(a, b) = a < b ? a : b   (second operand if unordered)
//   select(m, a, b)            lane of a where m is set, else of b
//   fold(v)                    lane i += lane i+8, then i+4, i+2, i+1; lane 0: the lanes(16) fold
//   fold16(v[16])              lane j = fold(v[j])
//   transpose16(v[16])         lane j of v[i] <-> lane i of v[j]
//   store_lower/store_upper    lanes 0 to 7, 8 to 15
//   load_part/store_part       the first n lanes (0 <= n <= 16); missing lanes read as +0
//   load<T>, store<T>          T = float, bf16, f16: widening is exact, narrowing rounds to nearest
//                              even, and a stored NaN is the canonical quiet NaN
//   round_i(v)                 nearest integer, ties to even, as int32 (|v| < 2^31)
#pragma once

#ifndef SB_ISA
#error "kernels are compiled once per instruction set with -DSB_ISA=<name>"
#endif

#include "scalar_types.hpp"

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

}  // namespace samebits::SB_ISA
